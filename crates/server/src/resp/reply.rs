//! Replies, written straight into the connection's output buffer.

use super::{format_f64, push_i64};

/// A place in the output to come back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(usize);

/// The output buffer of a connection and the protocol version it speaks.
///
/// Once `limit` bytes are pending the rest is dropped and
/// [`overflowed`](Self::overflowed) says so: the connection must then be closed.
#[derive(Debug)]
pub struct Reply {
    bytes: Vec<u8>,
    resp3: bool,
    limit: usize,
    overflowed: bool,
    errors: u64,
}

impl Reply {
    /// An empty RESP2 output that holds at most about `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { bytes: Vec::new(), resp3: false, limit, overflowed: false, errors: 0 }
    }

    /// The bytes written and not yet taken.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Capacity of the buffer in bytes.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Forgets everything written; keeps the memory up to `keep` bytes.
    pub fn clear(&mut self, keep: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(keep);
    }

    /// Forgets the first `n` bytes.
    pub fn consume(&mut self, n: usize) {
        self.bytes.drain(..n);
    }

    /// True once a reply did not fit the limit.
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// Error replies written so far.
    pub fn errors(&self) -> u64 {
        self.errors
    }

    /// True when the client asked for RESP3.
    pub fn is_resp3(&self) -> bool {
        self.resp3
    }

    /// Chooses the protocol version of what follows.
    pub fn set_resp3(&mut self, resp3: bool) {
        self.resp3 = resp3;
    }

    /// The present end.
    pub fn mark(&self) -> Mark {
        Mark(self.bytes.len())
    }

    /// Drops everything written after `mark`.
    pub fn truncate(&mut self, mark: Mark) {
        self.bytes.truncate(mark.0);
    }

    fn room(&mut self, more: usize) -> bool {
        if self.bytes.len().saturating_add(more) > self.limit {
            self.overflowed = true;
        }
        !self.overflowed
    }

    fn header(&mut self, kind: u8, n: i64) {
        if self.room(24) {
            self.bytes.push(kind);
            push_i64(&mut self.bytes, n);
            self.bytes.extend_from_slice(b"\r\n");
        }
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        if self.room(text.len() + 3) {
            self.bytes.push(kind);
            self.bytes.extend_from_slice(text);
            self.bytes.extend_from_slice(b"\r\n");
        }
    }

    /// Bytes that are already encoded.
    pub fn raw(&mut self, encoded: &[u8]) {
        if self.room(encoded.len()) {
            self.bytes.extend_from_slice(encoded);
        }
    }

    /// `+OK`.
    pub fn ok(&mut self) {
        self.raw(b"+OK\r\n");
    }

    /// A status line; `text` has no line breaks.
    pub fn simple(&mut self, text: &str) {
        debug_assert!(!text.contains(['\r', '\n']));
        self.line(b'+', text.as_bytes());
    }

    /// An error line, code first: `"ERR syntax error"`. Line breaks become spaces.
    pub fn error(&mut self, text: &str) {
        self.errors += 1;
        if text.contains(['\r', '\n']) {
            self.line(b'-', text.replace(['\r', '\n'], " ").as_bytes());
        } else {
            self.line(b'-', text.as_bytes());
        }
    }

    /// An integer.
    pub fn int(&mut self, value: i64) {
        match value {
            0 => self.raw(b":0\r\n"),
            1 => self.raw(b":1\r\n"),
            _ => self.header(b':', value),
        }
    }

    /// A string of bytes.
    pub fn bulk(&mut self, value: &[u8]) {
        self.bulk_with(value.len(), |out| out.extend_from_slice(value));
    }

    /// A string of exactly `len` bytes that `write` appends.
    pub fn bulk_with(&mut self, len: usize, write: impl FnOnce(&mut Vec<u8>)) {
        if !self.room(len + 26) {
            return;
        }
        self.header(b'$', len as i64);
        let start = self.bytes.len();
        write(&mut self.bytes);
        debug_assert_eq!(self.bytes.len() - start, len, "a bulk of another length than announced");
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// An integer as a string.
    pub fn bulk_int(&mut self, value: i64) {
        let mut text = Vec::with_capacity(20);
        push_i64(&mut text, value);
        self.bulk(&text);
    }

    /// Nothing, where a string would stand.
    pub fn null(&mut self) {
        self.raw(if self.resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// Nothing, where an array would stand.
    pub fn null_array(&mut self) {
        self.raw(if self.resp3 { b"_\r\n" } else { b"*-1\r\n" });
    }

    /// Announces `n` elements.
    pub fn array(&mut self, n: usize) {
        self.header(b'*', n as i64);
    }

    /// Announces `n` pairs (an array of 2 `n` in RESP2).
    pub fn map(&mut self, n: usize) {
        if self.resp3 { self.header(b'%', n as i64) } else { self.header(b'*', 2 * n as i64) }
    }

    /// Announces a set of `n` elements (an array in RESP2).
    pub fn set(&mut self, n: usize) {
        self.header(if self.resp3 { b'~' } else { b'*' }, n as i64);
    }

    /// Announces an out-of-band message of `n` elements (an array in RESP2).
    pub fn push(&mut self, n: usize) {
        self.header(if self.resp3 { b'>' } else { b'*' }, n as i64);
    }

    /// A floating-point number (a string in RESP2).
    pub fn double(&mut self, value: f64) {
        let text = format_f64(value);
        if self.resp3 { self.line(b',', text.as_bytes()) } else { self.bulk(text.as_bytes()) }
    }

    /// A truth value (0 or 1 in RESP2).
    pub fn bool(&mut self, value: bool) {
        if self.resp3 {
            self.line(b'#', if value { b"t" } else { b"f" });
        } else {
            self.int(i64::from(value));
        }
    }

    /// Text for people (a string in RESP2).
    pub fn verbatim(&mut self, text: &str) {
        if self.resp3 {
            if self.room(text.len() + 30) {
                self.header(b'=', text.len() as i64 + 4);
                self.raw(b"txt:");
                self.raw(text.as_bytes());
                self.raw(b"\r\n");
            }
        } else {
            self.bulk(text.as_bytes());
        }
    }

    /// Takes back everything written after `mark`.
    pub fn take_from(&mut self, mark: Mark) -> Vec<u8> {
        self.bytes.split_off(mark.0)
    }

    /// Announces, at `mark`, an array of `n` elements that were written since.
    pub fn array_at(&mut self, mark: Mark, n: usize) {
        let tail = self.bytes.split_off(mark.0);
        self.array(n);
        self.bytes.extend_from_slice(&tail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(resp3: bool, f: impl FnOnce(&mut Reply)) -> String {
        let mut reply = Reply::new(1 << 20);
        reply.set_resp3(resp3);
        f(&mut reply);
        String::from_utf8(reply.bytes().to_vec()).expect("ASCII reply")
    }

    #[test]
    fn each_type_in_both_versions() {
        let both = |f: fn(&mut Reply), two: &str, three: &str| {
            assert_eq!(written(false, f), two);
            assert_eq!(written(true, f), three);
        };
        both(Reply::null, "$-1\r\n", "_\r\n");
        both(Reply::null_array, "*-1\r\n", "_\r\n");
        both(|r| r.map(3), "*6\r\n", "%3\r\n");
        both(|r| r.set(3), "*3\r\n", "~3\r\n");
        both(|r| r.push(3), "*3\r\n", ">3\r\n");
        both(|r| r.bool(true), ":1\r\n", "#t\r\n");
        both(|r| r.double(1.5), "$3\r\n1.5\r\n", ",1.5\r\n");
        both(|r| r.verbatim("hi"), "$2\r\nhi\r\n", "=6\r\ntxt:hi\r\n");
        both(|r| r.int(-12), ":-12\r\n", ":-12\r\n");
        both(|r| r.bulk(b""), "$0\r\n\r\n", "$0\r\n\r\n");
        both(|r| r.error("ERR a\r\nb"), "-ERR a  b\r\n", "-ERR a  b\r\n");
    }

    #[test]
    fn an_array_announced_late_lands_at_its_mark() {
        let text = written(false, |r| {
            r.ok();
            let mark = r.mark();
            r.int(1);
            r.int(2);
            r.array_at(mark, 2);
        });
        assert_eq!(text, "+OK\r\n*2\r\n:1\r\n:2\r\n");
    }

    #[test]
    fn beyond_the_limit_nothing_is_kept() {
        let mut reply = Reply::new(100);
        reply.bulk(&[b'x'; 60]);
        let len = reply.bytes().len();
        reply.bulk(&[b'x'; 60]);
        assert!(reply.overflowed());
        assert_eq!(reply.bytes().len(), len);
    }
}
