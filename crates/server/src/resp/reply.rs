//! Replies, written straight into the connection's output buffer.

use std::collections::VecDeque;

use super::{format_f64, push_i64};

/// A position in the output, to which the writer may return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(usize);

/// A budget that an output asks before it takes more memory.
pub trait Room: std::fmt::Debug + Send {
    /// Counts `bytes` more for the client. Returns false if the client may not have so many.
    fn grow(&self, bytes: usize) -> bool;
}

/// Length at which pending replies become a piece. Later replies go to the next piece.
pub const PIECE_BYTES: usize = 256 << 10;
/// A piece that is this full is closed before the next reply. Otherwise the next small replies
/// would double its memory.
const FULL_PIECE_BYTES: usize = PIECE_BYTES - PIECE_BYTES / 16;
/// The first memory of an output.
const FIRST_BYTES: usize = 1 << 10;
/// Memory that an empty output keeps.
const KEEP_BYTES: usize = 64 << 10;

/// The output of a connection and the protocol version it speaks.
///
/// Finished replies wait in pieces, so that neither a new reply nor a sent one moves the others.
/// Once `limit` bytes are pending, or the client may have no more memory, further replies are
/// dropped. Then [`overflowed`](Self::overflowed) is true, and the connection must be closed. The
/// output asks for memory before it copies a value.
#[derive(Debug)]
pub struct Reply {
    /// Whole replies that are older than those in `bytes`.
    pieces: VecDeque<Vec<u8>>,
    /// Lengths and capacities of all `pieces`.
    piece_bytes: usize,
    piece_capacity: usize,
    /// Bytes already taken of the oldest piece, or of `bytes` if there is none.
    taken: usize,
    bytes: Vec<u8>,
    resp3: bool,
    limit: usize,
    overflowed: bool,
    errors: u64,
    room: Option<Box<dyn Room>>,
}

impl Reply {
    /// An empty RESP2 output of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            pieces: VecDeque::new(),
            piece_bytes: 0,
            piece_capacity: 0,
            taken: 0,
            bytes: Vec::new(),
            resp3: false,
            limit,
            overflowed: false,
            errors: 0,
            room: None,
        }
    }

    /// As [`new`](Self::new), with a budget `room` that is asked before each growth.
    pub fn with_room(limit: usize, room: Box<dyn Room>) -> Self {
        Self { room: Some(room), ..Self::new(limit) }
    }

    /// The oldest bytes not yet taken. Empty if there are none.
    pub fn front(&self) -> &[u8] {
        &self.pieces.front().unwrap_or(&self.bytes)[self.taken..]
    }

    /// Bytes written and not yet taken.
    pub fn pending(&self) -> usize {
        self.piece_bytes + self.bytes.len() - self.taken
    }

    /// Capacity of all buffers in bytes.
    pub fn capacity(&self) -> usize {
        self.piece_capacity + self.bytes.capacity()
    }

    /// Takes the first `n` bytes of [`front`](Self::front).
    pub fn consume(&mut self, n: usize) {
        self.taken += n;
        if let Some(piece) = self.pieces.front() {
            if self.taken == piece.len() {
                self.piece_bytes -= piece.len();
                self.piece_capacity -= piece.capacity();
                self.pieces.pop_front();
                self.taken = 0;
            }
        } else if self.taken == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(KEEP_BYTES);
            self.taken = 0;
        }
    }

    /// Gives up all pending bytes, as pieces that the caller may free one by one.
    pub fn into_pieces(mut self) -> VecDeque<Vec<u8>> {
        self.pieces.push_back(self.bytes);
        self.pieces
    }

    /// Gives up all pending bytes in one piece.
    pub fn into_bytes(self) -> Vec<u8> {
        let mut bytes = self.pieces.into_iter().flatten().collect::<Vec<u8>>();
        bytes.extend_from_slice(&self.bytes);
        bytes.split_off(self.taken)
    }

    /// Whether a reply did not fit.
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// Error replies written so far.
    pub fn errors(&self) -> u64 {
        self.errors
    }

    /// Whether the client asked for RESP3.
    pub fn is_resp3(&self) -> bool {
        self.resp3
    }

    /// Chooses the protocol version of later replies.
    pub fn set_resp3(&mut self, resp3: bool) {
        self.resp3 = resp3;
    }

    /// Begins the reply to the next request. Marks of earlier replies become invalid.
    #[inline]
    pub fn begin(&mut self) -> Mark {
        if self.bytes.len() >= FULL_PIECE_BYTES {
            self.piece_bytes += self.bytes.len();
            self.piece_capacity += self.bytes.capacity();
            self.pieces.push_back(std::mem::take(&mut self.bytes));
        }
        self.mark()
    }

    /// A mark of the present end.
    pub fn mark(&self) -> Mark {
        Mark(self.bytes.len())
    }

    /// Everything written after `mark`.
    pub fn since(&self, mark: Mark) -> &[u8] {
        &self.bytes[mark.0..]
    }

    /// Drops everything written after `mark`.
    pub fn truncate(&mut self, mark: Mark) {
        self.bytes.truncate(mark.0);
    }

    #[inline]
    fn room(&mut self, more: usize) -> bool {
        let has_room = self.bytes.capacity() - self.bytes.len() >= more && !self.overflowed;
        has_room || self.grow(more)
    }

    /// Makes room for `more` bytes. Returns false if the client may not have so many.
    #[cold]
    fn grow(&mut self, more: usize) -> bool {
        let most = self.limit.saturating_sub(self.piece_bytes);
        let needed = self.bytes.len().saturating_add(more);
        if self.overflowed || needed > most {
            self.overflowed = true;
            return false;
        }
        let capacity = self.bytes.capacity();
        // A piece begins with all its memory if there were others before.
        let least = if self.pieces.is_empty() { FIRST_BYTES } else { PIECE_BYTES };
        let usual = least.max(2 * capacity);
        let wanted = needed.max(usual.min(most));
        if self.room.as_ref().is_some_and(|room| !room.grow(wanted - capacity)) {
            self.overflowed = true;
            return false;
        }
        self.bytes.reserve_exact(wanted - self.bytes.len());
        true
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

    /// Writes bytes that are already encoded.
    pub fn raw(&mut self, encoded: &[u8]) {
        if self.room(encoded.len()) {
            self.bytes.extend_from_slice(encoded);
        }
    }

    /// Writes `+OK`.
    pub fn ok(&mut self) {
        self.raw(b"+OK\r\n");
    }

    /// Writes a status line; `text` has no line breaks.
    pub fn simple(&mut self, text: &str) {
        debug_assert!(!text.contains(['\r', '\n']));
        self.line(b'+', text.as_bytes());
    }

    /// Writes an error line, code first: `"ERR syntax error"`. Line breaks become spaces.
    pub fn error(&mut self, text: &str) {
        self.errors += 1;
        if text.contains(['\r', '\n']) {
            self.line(b'-', text.replace(['\r', '\n'], " ").as_bytes());
        } else {
            self.line(b'-', text.as_bytes());
        }
    }

    /// Writes an integer.
    pub fn int(&mut self, value: i64) {
        match value {
            0 => self.raw(b":0\r\n"),
            1 => self.raw(b":1\r\n"),
            _ => self.header(b':', value),
        }
    }

    /// Writes a string of bytes.
    pub fn bulk(&mut self, value: &[u8]) {
        self.bulk_with(value.len(), |out| out.extend_from_slice(value));
    }

    /// Writes a string of exactly `len` bytes that `write` appends.
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

    /// Writes an integer as a string.
    pub fn bulk_int(&mut self, value: i64) {
        let mut text = Vec::with_capacity(20);
        push_i64(&mut text, value);
        self.bulk(&text);
    }

    /// Writes a null in place of a string.
    pub fn null(&mut self) {
        self.raw(if self.resp3 { b"_\r\n" } else { b"$-1\r\n" });
    }

    /// Writes a null in place of an array.
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

    /// Writes a floating-point number (a string in RESP2).
    pub fn double(&mut self, value: f64) {
        self.double_text(&format_f64(value));
    }

    /// Writes a floating-point number that is a text already (a string in RESP2).
    pub fn double_text(&mut self, text: &str) {
        if self.resp3 { self.line(b',', text.as_bytes()) } else { self.bulk(text.as_bytes()) }
    }

    /// Writes a truth value (0 or 1 in RESP2).
    pub fn bool(&mut self, value: bool) {
        if self.resp3 {
            self.line(b'#', if value { b"t" } else { b"f" });
        } else {
            self.int(i64::from(value));
        }
    }

    /// Writes text for people (a string in RESP2).
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

    /// Removes everything written after `mark`.
    pub fn take_from(&mut self, mark: Mark) -> Vec<u8> {
        self.bytes.split_off(mark.0)
    }

    /// Announces, at `mark`, an array of `n` elements that were written since.
    pub fn array_at(&mut self, mark: Mark, n: usize) {
        if !self.room(24) {
            return;
        }
        let mut header = vec![b'*'];
        push_i64(&mut header, n as i64);
        header.extend_from_slice(b"\r\n");
        self.bytes.splice(mark.0..mark.0, header);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(resp3: bool, f: impl FnOnce(&mut Reply)) -> String {
        let mut reply = Reply::new(1 << 20);
        reply.set_resp3(resp3);
        f(&mut reply);
        String::from_utf8(reply.front().to_vec()).expect("ASCII reply")
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
        let len = reply.pending();
        reply.bulk(&[b'x'; 60]);
        assert!(reply.overflowed());
        assert_eq!(reply.pending(), len);
        assert!(reply.capacity() <= 100);
    }

    #[test]
    fn replies_in_pieces_come_out_in_order() {
        let mut reply = Reply::new(64 << 20);
        let mut expected = Vec::new();
        let mut taken = Vec::new();
        for i in 0..2000_usize {
            let value = vec![i as u8; i * 13 % 9000 + if i % 500 == 499 { 700_000 } else { 0 }];
            let mark = reply.begin();
            reply.bulk(&value);
            if i % 7 == 3 {
                // The reply is dropped, as for a client that wants none.
                reply.truncate(mark);
            } else {
                expected.extend_from_slice(format!("${}\r\n", value.len()).as_bytes());
                expected.extend_from_slice(&value);
                expected.extend_from_slice(b"\r\n");
            }
            if i % 3 == 0 {
                let n = reply.front().len().min(i * 31);
                taken.extend_from_slice(&reply.front()[..n]);
                reply.consume(n);
            }
            assert_eq!(taken.len() + reply.pending(), expected.len());
        }
        while !reply.front().is_empty() {
            let n = reply.front().len().min(100_000);
            taken.extend_from_slice(&reply.front()[..n]);
            reply.consume(n);
        }
        assert!(taken == expected);
        assert!(reply.capacity() <= KEEP_BYTES);
    }

    #[derive(Debug)]
    struct Purse(std::sync::Arc<std::sync::atomic::AtomicUsize>);

    impl Room for Purse {
        fn grow(&self, bytes: usize) -> bool {
            let left = self.0.load(std::sync::atomic::Ordering::Relaxed).checked_sub(bytes);
            left.is_some_and(|left| {
                self.0.store(left, std::sync::atomic::Ordering::Relaxed);
                true
            })
        }
    }

    #[test]
    fn memory_is_asked_for_before_a_value_is_copied() {
        let left = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(5000));
        let mut reply = Reply::with_room(1 << 20, Box::new(Purse(left)));
        reply.bulk(&[b'x'; 3000]);
        let mut asked = false;
        reply.bulk_with(3000, |_| asked = true);
        assert!(reply.overflowed() && !asked && reply.capacity() <= 5000);
    }
}
