//! The bytes of a HyperLogLog, as Redis has them, and the estimate (Ertl, "New cardinality estimation
//! algorithms for HyperLogLog sketches", 2017).
//!
//! ```text
//! header  magic "HYLL", encoding (u8: 0 dense, 1 sparse), 3 zeros,
//!         last count (u64, little-endian; the highest bit: it is not valid)
//! dense   16,384 registers of 6 bits, the first in the lowest bits
//! sparse  runs: 00llllll (l + 1 zeros), 01llllll llllllll (the same), 1vvvvvll (l + 1 times v + 1)
//! ```

/// Bits of a hash that name a register.
const INDEX_BITS: u32 = 14;
const REGISTERS: usize = 1 << INDEX_BITS;
/// Bits of a hash in which a pattern is looked for.
const PATTERN_BITS: u32 = 64 - INDEX_BITS;
const HEADER_BYTES: usize = 16;
const DENSE_BYTES: usize = HEADER_BYTES + REGISTERS * 6 / 8;
/// Bytes of a sparse sketch; a longer one becomes dense.
const SPARSE_BYTES_MAX: usize = 3000;
/// The largest value of a run.
const RUN_VALUE_MAX: u8 = 32;
const ZEROS_MAX: usize = 64;
const MAGIC: &[u8; 4] = b"HYLL";
const ENCODING_AT: usize = 4;
const COUNT_AT: usize = 8;
const SPARSE: u8 = 1;

/// The sketch is damaged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Corrupted;

/// The values of all registers.
pub(super) struct Registers(Box<[u8; REGISTERS]>);

impl Default for Registers {
    fn default() -> Self {
        Self(Box::new([0; REGISTERS]))
    }
}

impl Registers {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &u8> {
        self.0.iter()
    }
}

/// The hash of an element: MurmurHash64A, with the seed of Redis.
fn hash_of(element: &[u8]) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    let mut hash = 0xadc8_3b19 ^ (element.len() as u64).wrapping_mul(M);
    let mut words = element.chunks_exact(8);
    for word in &mut words {
        let mut k = word.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        k = k.wrapping_mul(M);
        k ^= k >> 47;
        hash = (hash ^ k.wrapping_mul(M)).wrapping_mul(M);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        hash ^= rest.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 47;
    hash = hash.wrapping_mul(M);
    hash ^ hash >> 47
}

/// A run of equal registers.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Position of the run, and of the next one.
    at: usize,
    end: usize,
    value: u8,
    len: usize,
}

fn run_at(bytes: &[u8], at: usize) -> Option<Run> {
    let first = *bytes.get(at)?;
    let (end, value, len) = match first >> 6 {
        0 => (at + 1, 0, usize::from(first & 0x3f) + 1),
        1 => {
            let second = usize::from(*bytes.get(at + 1)?);
            (at + 2, 0, (usize::from(first & 0x3f) << 8 | second) + 1)
        }
        _ => (at + 1, (first >> 2 & 0x1f) + 1, usize::from(first & 3) + 1),
    };
    Some(Run { at, end, value, len })
}

fn put_zeros(out: &mut Vec<u8>, len: usize) {
    let coded = len - 1;
    if len > ZEROS_MAX {
        out.push(0x40 | (coded >> 8) as u8);
    }
    out.push(coded as u8);
}

fn put_value(out: &mut Vec<u8>, value: u8, len: usize) {
    out.push(0x80 | (value - 1) << 2 | (len - 1) as u8);
}

/// A sketch.
pub(super) struct Sketch {
    pub(super) bytes: Vec<u8>,
}

impl Sketch {
    /// Whether these bytes are a sketch.
    pub(super) fn is_one(bytes: &[u8]) -> bool {
        bytes.len() >= HEADER_BYTES
            && bytes.starts_with(MAGIC)
            && bytes[ENCODING_AT] <= SPARSE
            && (bytes[ENCODING_AT] == SPARSE || bytes.len() == DENSE_BYTES)
    }

    /// The sketch of these bytes, or an empty one.
    pub(super) fn of(bytes: Option<&[u8]>) -> Self {
        if let Some(bytes) = bytes {
            return Self { bytes: bytes.to_vec() };
        }
        let mut bytes = MAGIC.to_vec();
        bytes.push(SPARSE);
        bytes.resize(HEADER_BYTES, 0);
        put_zeros(&mut bytes, REGISTERS);
        Self { bytes }
    }

    pub(super) fn is_dense(&self) -> bool {
        self.bytes[ENCODING_AT] != SPARSE
    }

    /// The count in the header, if it is valid.
    pub(super) fn known_count(&self) -> Option<i64> {
        let count = self.bytes[COUNT_AT..].first_chunk::<8>()?;
        i64::try_from(u64::from_le_bytes(*count)).ok()
    }

    /// Says that the count in the header is not valid.
    pub(super) fn invalidate(&mut self) {
        self.bytes[HEADER_BYTES - 1] |= 0x80;
    }

    /// Adds an element; gives whether anything has changed.
    pub(super) fn add(&mut self, element: &[u8]) -> Result<bool, Corrupted> {
        let hash = hash_of(element);
        let pattern = hash >> INDEX_BITS | 1 << PATTERN_BITS;
        let value = pattern.trailing_zeros() as u8 + 1;
        self.raise(hash as usize % REGISTERS, value)
    }

    /// Raises a register to a value; gives whether it was lower.
    pub(super) fn raise(&mut self, register: usize, value: u8) -> Result<bool, Corrupted> {
        if !self.is_dense() {
            match self.raise_run(register, value)? {
                Some(has_changed) => return Ok(has_changed),
                None => self.make_dense()?,
            }
        }
        Ok(self.raise_dense(register, value))
    }

    fn dense(&self, register: usize) -> u8 {
        let (byte, shift) = (HEADER_BYTES + register * 6 / 8, register * 6 % 8);
        let low = self.bytes[byte];
        let high = self.bytes.get(byte + 1).copied().unwrap_or(0);
        (u16::from_le_bytes([low, high]) >> shift) as u8 & 0x3f
    }

    fn raise_dense(&mut self, register: usize, value: u8) -> bool {
        if self.dense(register) >= value {
            return false;
        }
        let (byte, shift) = (HEADER_BYTES + register * 6 / 8, register * 6 % 8);
        let mask = !(0x3fu16 << shift);
        let new = u16::from(value) << shift;
        for (at, part) in (byte..).zip(0..2) {
            if let Some(byte) = self.bytes.get_mut(at) {
                *byte = *byte & mask.to_le_bytes()[part] | new.to_le_bytes()[part];
            }
        }
        true
    }

    /// Raises a register of a sparse sketch. `None` if the sketch must become dense first.
    fn raise_run(&mut self, register: usize, value: u8) -> Result<Option<bool>, Corrupted> {
        if value > RUN_VALUE_MAX {
            return Ok(None);
        }
        let (mut first, mut before) = (0, HEADER_BYTES);
        let mut run = run_at(&self.bytes, HEADER_BYTES).ok_or(Corrupted)?;
        while register >= first + run.len {
            before = run.at;
            first += run.len;
            run = run_at(&self.bytes, run.end).ok_or(Corrupted)?;
        }
        if run.value >= value {
            return Ok(Some(false));
        }
        let (left, right) = (register - first, first + run.len - 1 - register);
        let mut new = Vec::with_capacity(5);
        for (len, value) in [(left, run.value), (1, value), (right, run.value)] {
            match (len, value) {
                (0, _) => {}
                (len, 0) => put_zeros(&mut new, len),
                (len, value) => put_value(&mut new, value, len),
            }
        }
        let old_len = run.end - run.at;
        if new.len() > old_len && self.bytes.len() + new.len() - old_len > SPARSE_BYTES_MAX {
            return Ok(None);
        }
        self.bytes.splice(run.at..run.end, new);
        self.join_runs(before);
        self.invalidate();
        Ok(Some(true))
    }

    /// Joins neighbouring runs of equal values from byte `at` on, as far as the last change may
    /// have made neighbours equal.
    fn join_runs(&mut self, mut at: usize) {
        for _ in 0..5 {
            let Some(run) = run_at(&self.bytes, at) else { return };
            let next = run_at(&self.bytes, run.end);
            match next {
                Some(next)
                    if run.value > 0 && next.value == run.value && run.len + next.len <= 4 =>
                {
                    let mut joined = Vec::with_capacity(1);
                    put_value(&mut joined, run.value, run.len + next.len);
                    self.bytes.splice(run.at..next.end, joined);
                }
                _ => at = run.end,
            }
        }
    }

    /// All runs, which must cover the registers.
    fn runs(&self) -> impl Iterator<Item = Run> {
        let mut at = HEADER_BYTES;
        std::iter::from_fn(move || {
            let run = run_at(&self.bytes, at)?;
            at = run.end;
            Some(run)
        })
    }

    /// Makes a sparse sketch dense, with 6 bits for each register.
    pub(super) fn make_dense(&mut self) -> Result<(), Corrupted> {
        if self.is_dense() {
            return Ok(());
        }
        let mut all = Registers::default();
        self.merge_into(&mut all)?;
        self.bytes.truncate(HEADER_BYTES);
        self.bytes[ENCODING_AT] = 0;
        self.bytes.resize(DENSE_BYTES, 0);
        for (register, &value) in all.iter().enumerate().filter(|(_, value)| **value > 0) {
            self.raise_dense(register, value);
        }
        Ok(())
    }

    /// Raises registers to those of this sketch.
    pub(super) fn merge_into(&self, all: &mut Registers) -> Result<(), Corrupted> {
        if self.is_dense() {
            for (register, value) in all.0.iter_mut().enumerate() {
                *value = (*value).max(self.dense(register));
            }
            return Ok(());
        }
        let mut first = 0;
        for run in self.runs() {
            let part = all.0.get_mut(first..first + run.len).ok_or(Corrupted)?;
            part.iter_mut().for_each(|value| *value = (*value).max(run.value));
            first += run.len;
        }
        if first == REGISTERS { Ok(()) } else { Err(Corrupted) }
    }

    /// The runs of a sparse sketch as a text.
    pub(super) fn runs_text(&self) -> String {
        let text = |run: Run| match (run.value, run.end - run.at) {
            (0, 1) => format!("z:{}", run.len),
            (0, _) => format!("Z:{}", run.len),
            (value, _) => format!("v:{value},{}", run.len),
        };
        self.runs().map(text).collect::<Vec<_>>().join(" ")
    }
}

/// About how many different elements raised the registers.
pub(super) fn estimate(all: &Registers) -> i64 {
    let mut counts = [0u32; 64];
    all.iter().for_each(|&value| counts[usize::from(value & 63)] += 1);
    let m = REGISTERS as f64;
    let q = PATTERN_BITS as usize;
    let mut z = m * tau((m - f64::from(counts[q + 1])) / m);
    for count in counts[1..=q].iter().rev() {
        z = (z + f64::from(*count)) * 0.5;
    }
    z += m * sigma(f64::from(counts[0]) / m);
    (0.721_347_520_444_481_7 * m * m / z).round() as i64
}

fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut z) = (1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if z == before {
            return z;
        }
    }
}

fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut y, mut z) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x).powi(2) * y;
        if z == before {
            return z / 3.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_those_of_redis() {
        // redis-server 7.0.15: PFADD p a b c, GET p.
        let mut sketch = Sketch::of(None);
        for element in [b"a", b"b", b"c"] {
            assert!(sketch.add(element).expect("sound"));
            assert!(!sketch.add(element).expect("sound"));
        }
        sketch.invalidate();
        assert_eq!(sketch.bytes[..COUNT_AT], *b"HYLL\x01\0\0\0");
        assert!(sketch.known_count().is_none() && Sketch::is_one(&sketch.bytes));
        let mut all = Registers::default();
        sketch.merge_into(&mut all).expect("sound");
        assert_eq!(estimate(&all), 3);
        assert_eq!(sketch.runs().map(|run| run.len).sum::<usize>(), REGISTERS);
    }

    #[test]
    fn sparse_and_dense_registers_agree() {
        let mut random = 7u64;
        for limit in [5, 20, 40] {
            let (mut sparse, mut dense) = (Sketch::of(None), Sketch::of(None));
            dense.make_dense().expect("sound");
            let mut model = [0; REGISTERS];
            for step in 0..4000 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let (register, value) = ((random >> 40) as usize % REGISTERS, (random >> 33) as u8);
                let (register, value) = (register % 300 * 54, value % limit + 1);
                let expected = value > model[register];
                model[register] = model[register].max(value);
                assert_eq!(sparse.raise(register, value).expect("sound"), expected, "{step}");
                assert_eq!(dense.raise(register, value).expect("sound"), expected, "{step}");
            }
            for sketch in [sparse, dense] {
                let mut all = Registers::default();
                sketch.merge_into(&mut all).expect("sound");
                assert_eq!(*all.0, model);
            }
        }
    }

    #[test]
    fn damaged_runs_are_refused() {
        for end in [&b""[..], b"\0", b"\x7f", b"\x7f\xff\0", b"\x80\x80"] {
            let mut sketch = Sketch::of(None);
            sketch.bytes.truncate(HEADER_BYTES);
            sketch.bytes.extend_from_slice(end);
            assert!(Sketch::is_one(&sketch.bytes));
            assert!(sketch.merge_into(&mut Registers::default()).is_err());
            assert!(sketch.make_dense().is_err());
            assert!(end == b"\x7f\xff\0" || sketch.raise(16_000, 3).is_err());
        }
    }
}
