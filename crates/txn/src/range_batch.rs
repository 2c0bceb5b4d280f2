//! Some records of a range, in one buffer that is used again.

/// Records of a first batch. Each further batch has twice as many at most.
const FIRST: usize = if cfg!(any(loom, shuttle)) { 2 } else { 32 };
/// Bytes by which the buffer grows at least.
const GROWTH: usize = 4 << 10;
/// Bytes of room behind a record that is written in whole words.
const PADDING: usize = 8;

/// Where a record lies in the buffer. Its value follows its key.
#[derive(Clone, Copy, Debug)]
struct Entry {
    start: usize,
    key_bytes: u32,
    value_bytes: u32,
    tag: u8,
}

/// Some records of a range, in the order in which it is read.
#[derive(Debug)]
pub struct RangeBatch {
    /// The records' bytes, and room for more.
    bytes: Vec<u8>,
    used: usize,
    records: Vec<Entry>,
    /// The next batch begins with this key. A descending one begins below it.
    pub next: Vec<u8>,
    /// Whether the range has no more records.
    pub is_end: bool,
    /// Number of records that this batch takes. A range of few records costs no more than these.
    pub most: usize,
}

impl Default for RangeBatch {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            used: 0,
            records: Vec::new(),
            next: Vec::new(),
            is_end: false,
            most: FIRST,
        }
    }
}

impl RangeBatch {
    /// Forgets all records.
    pub fn clear(&mut self) {
        self.used = 0;
        self.records.clear();
        self.next.clear();
        self.is_end = false;
    }

    /// Appends a record of these lengths, and gives the room for its key and for its value. The room
    /// holds any bytes.
    #[inline]
    pub fn push(
        &mut self,
        tag: u8,
        key_bytes: usize,
        value_bytes: usize,
    ) -> (&mut [u8], &mut [u8]) {
        let room = self.push_padded(tag, key_bytes, value_bytes);
        room[..key_bytes + value_bytes].split_at_mut(key_bytes)
    }

    /// As [`push`](Self::push), with the value behind the key, and eight bytes behind both that mean nothing.
    #[inline]
    pub fn push_padded(&mut self, tag: u8, key_bytes: usize, value_bytes: usize) -> &mut [u8] {
        let (start, end) = (self.used, self.used + key_bytes + value_bytes);
        if self.bytes.len() < end + PADDING {
            self.bytes.resize((end + PADDING).max(self.bytes.len() * 2).max(GROWTH), 0);
        }
        self.used = end;
        let (key_bytes, value_bytes) = (key_bytes as u32, value_bytes as u32);
        self.records.push(Entry { start, key_bytes, value_bytes, tag });
        &mut self.bytes[start..end + PADDING]
    }

    /// Takes back the last record.
    pub fn pop(&mut self) {
        if let Some(last) = self.records.pop() {
            self.used = last.start;
        }
    }

    /// Gives the last record another value.
    ///
    /// # Panics
    /// If there is no record.
    pub fn set_last_value(&mut self, value: &[u8]) {
        let last = self.records.last_mut().expect("a record");
        let start = last.start + last.key_bytes as usize;
        last.value_bytes = value.len() as u32;
        self.used = start + value.len();
        if self.bytes.len() < self.used {
            self.bytes.resize(self.used, 0);
        }
        self.bytes[start..self.used].copy_from_slice(value);
    }

    /// Number of records.
    #[inline]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there is no record.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Key, tag and value of a record.
    ///
    /// # Panics
    /// If there is no such record.
    #[inline]
    pub fn record(&self, number: usize) -> (&[u8], u8, &[u8]) {
        let Entry { start, key_bytes, value_bytes, tag } = self.records[number];
        let (key_bytes, value_bytes) = (key_bytes as usize, value_bytes as usize);
        let bytes = &self.bytes[start..start + key_bytes + value_bytes];
        let (key, value) = bytes.split_at(key_bytes);
        (key, tag, value)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_last_record_gets_another_value() {
        let mut batch = RangeBatch::default();
        for value in [&[1; 3][..], &[2; 9000], &[]] {
            batch.clear();
            batch.push(7, 1, 2).0[0] = 5;
            batch.push(8, 1, 2).0[0] = 6;
            batch.set_last_value(value);
            batch.push(9, 1, 0).0[0] = 7;
            assert_eq!(batch.record(1), (&[6][..], 8, value));
            assert_eq!((batch.record(0).0, batch.record(2).0), (&[5][..], &[7][..]));
        }
    }

    #[test]
    fn records_are_what_they_were() {
        let mut batch = RangeBatch::default();
        for round in 0..3u8 {
            batch.clear();
            for number in 0..200u8 {
                let (key, value) = batch.push(round, 1, usize::from(number));
                key[0] = number;
                value.fill(number);
                batch.push(9, 40, 40);
                batch.pop();
                batch.push_padded(round, 2, 3).fill(number);
            }
            assert_eq!(batch.len(), 400);
            for number in 0..200u8 {
                let at = 2 * usize::from(number);
                let (key, tag, value) = batch.record(at);
                assert_eq!((key, tag), (&[number][..], round));
                assert_eq!(value, vec![number; number.into()]);
                assert_eq!(batch.record(at + 1), (&[number; 2][..], round, &[number; 3][..]));
            }
        }
    }
}
