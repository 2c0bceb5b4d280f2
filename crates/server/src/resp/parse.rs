//! The push parser of requests. The caller passes a growing buffer. The parser reports a whole
//! request and the positions of its arguments. The parser copies nothing, does not recurse, and
//! takes no memory for lengths that are only announced.

use super::{Span, parse_i64};

/// Limits of a request.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most arguments of one request.
    pub max_args: i64,
    /// Longest argument in bytes.
    pub max_bulk: i64,
    /// Longest inline request in bytes.
    pub max_inline: usize,
    /// Whether these are the tighter limits before authentication. The refusal then says so.
    pub unauthenticated: bool,
}

impl Limits {
    /// Limits before authentication: 10 arguments of 16 KiB.
    pub const UNAUTHENTICATED: Self =
        Self { max_args: 10, max_bulk: 16 << 10, max_inline: 64 << 10, unauthenticated: true };

    /// Limits of an authenticated client: 1 Mi arguments of `max_bulk` bytes.
    pub fn authenticated(max_bulk: i64) -> Self {
        Self { max_args: 1 << 20, max_bulk, max_inline: 64 << 10, unauthenticated: false }
    }
}

/// The reason why a byte stream is not a request. The connection is closed after the reply, since
/// the next byte need not begin a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// `*` was followed by no number, or by one that is out of range.
    #[error("Protocol error: invalid multibulk length")]
    MultibulkLength,
    /// More than 10 arguments before authentication.
    #[error("Protocol error: unauthenticated multibulk length")]
    UnauthenticatedMultibulkLength,
    /// `$` was followed by no number, or by one that is out of range.
    #[error("Protocol error: invalid bulk length")]
    BulkLength,
    /// An argument beyond 16 KiB before authentication.
    #[error("Protocol error: unauthenticated bulk length")]
    UnauthenticatedBulkLength,
    /// The argument count does not end.
    #[error("Protocol error: too big mbulk count string")]
    CountTooLong,
    /// The argument length does not end.
    #[error("Protocol error: too big bulk count string")]
    BulkCountTooLong,
    /// An argument did not begin with `$`. Holds the (printable) byte found.
    #[error("Protocol error: expected '$', got '{0}'")]
    ExpectedBulk(char),
    /// An argument was not followed by CR LF.
    #[error("Protocol error: expected CRLF after bulk")]
    ExpectedCrlf,
    /// An inline request without an end.
    #[error("Protocol error: too big inline request")]
    InlineTooLong,
    /// An inline request with an open quote.
    #[error("Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
}

/// Longest count or length line: a sign, 19 digits, and some slack.
const MAX_NUMBER_LINE: usize = 32;

/// State of the parser inside the request at the front of the buffer.
#[derive(Debug, Default)]
pub struct Parser {
    /// Bytes of the request already parsed.
    at: usize,
    /// Arguments still to come; `None` before the count was read.
    left: Option<u32>,
    /// Length of the argument whose bytes are awaited.
    bulk: Option<u32>,
    spans: Vec<Span>,
    failed: Option<ProtocolError>,
}

/// A piece of the request, complete or not.
enum Parsed<T> {
    Here(T),
    Awaited,
}

impl Parser {
    /// Looks for a whole request at the front of `buf`, from the position where the last call on
    /// the same request stopped. `Some(len)`: the request takes `len` bytes, and
    /// [`spans`](Self::spans) are its arguments. An empty line has none and is to be skipped.
    /// `None`: more bytes are needed.
    ///
    /// The parser unescapes inline requests in place, hence `&mut`. After an error the parser
    /// returns the same error again.
    ///
    /// # Errors
    /// [`ProtocolError`], the same however the stream was cut into pieces.
    pub fn next(
        &mut self,
        buf: &mut [u8],
        limits: &Limits,
    ) -> Result<Option<usize>, ProtocolError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let found = self.advance(buf, limits);
        self.failed = found.err();
        found
    }

    fn advance(&mut self, buf: &mut [u8], limits: &Limits) -> Result<Option<usize>, ProtocolError> {
        if self.left.is_none() {
            match buf.first() {
                None => return Ok(None),
                Some(b'*') => {}
                Some(_) => return self.inline(buf, limits),
            }
            match number_line(buf, 1, ProtocolError::CountTooLong)? {
                Parsed::Awaited => return Ok(None),
                Parsed::Here((digits, end)) => {
                    self.left = Some(count(&buf[1..digits], limits)?);
                    self.at = end;
                    self.spans.clear();
                }
            }
        }
        while let Some(left @ 1..) = self.left {
            match self.argument(buf, limits)? {
                Parsed::Awaited => return Ok(None),
                Parsed::Here(span) => self.spans.push(span),
            }
            self.left = Some(left - 1);
        }
        self.left = None;
        Ok(Some(std::mem::take(&mut self.at)))
    }

    /// The arguments of the request that [`next`](Self::next) last completed.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Bytes of the request in progress up to the end of the awaited argument. 0 if no argument is
    /// awaited.
    pub fn awaited_end(&self) -> usize {
        self.bulk.map_or(0, |len| self.at + len as usize + 2)
    }

    /// Bytes of bookkeeping held for the request in progress.
    pub fn memory(&self) -> usize {
        self.spans.capacity() * size_of::<Span>()
    }

    /// Frees the bookkeeping of a large request.
    pub fn shrink(&mut self) {
        if self.left.is_none() && self.spans.capacity() > 1024 {
            self.spans = Vec::new();
        }
    }

    fn argument(&mut self, buf: &[u8], limits: &Limits) -> Result<Parsed<Span>, ProtocolError> {
        let len = match self.bulk {
            Some(len) => len,
            None => {
                match buf.get(self.at) {
                    None => return Ok(Parsed::Awaited),
                    Some(b'$') => {}
                    Some(&byte) => return Err(ProtocolError::ExpectedBulk(printable(byte))),
                }
                match number_line(buf, self.at + 1, ProtocolError::BulkCountTooLong)? {
                    Parsed::Awaited => return Ok(Parsed::Awaited),
                    Parsed::Here((digits, end)) => {
                        let len = bulk_len(&buf[self.at + 1..digits], limits)?;
                        self.at = end;
                        self.bulk = Some(len);
                        len
                    }
                }
            }
        };
        let end = self.at + len as usize;
        let Some(terminator) = buf.get(end..end + 2) else {
            return Ok(Parsed::Awaited);
        };
        if terminator != b"\r\n" {
            return Err(ProtocolError::ExpectedCrlf);
        }
        let span = Span { start: self.at as u32, len };
        self.at = end + 2;
        self.bulk = None;
        Ok(Parsed::Here(span))
    }

    fn inline(&mut self, buf: &mut [u8], limits: &Limits) -> Result<Option<usize>, ProtocolError> {
        let window = &buf[..buf.len().min(limits.max_inline)];
        let from = self.at.min(window.len());
        let found = window[from..].iter().position(|&b| b == b'\n' || b == 0);
        let at = found.map_or(window.len(), |i| from + i);
        // A line with a NUL has no end, as in Redis.
        if window.get(at) != Some(&b'\n') {
            if buf.len() >= limits.max_inline {
                return Err(ProtocolError::InlineTooLong);
            }
            self.at = at;
            return Ok(None);
        }
        let newline = at;
        let end = if newline > 0 && buf[newline - 1] == b'\r' { newline - 1 } else { newline };
        self.at = 0;
        self.spans.clear();
        split_inline(&mut buf[..end], &mut self.spans)?;
        if limits.unauthenticated && self.spans.len() as i64 > limits.max_args {
            return Err(ProtocolError::UnauthenticatedMultibulkLength);
        }
        Ok(Some(newline + 1))
    }
}

/// The digits from `start` to CR, and the begin of the next line.
fn number_line(
    buf: &[u8],
    start: usize,
    too_long: ProtocolError,
) -> Result<Parsed<(usize, usize)>, ProtocolError> {
    let window = &buf[start..buf.len().min(start + MAX_NUMBER_LINE)];
    match window.iter().position(|&b| b == b'\r') {
        Some(i) if start + i + 1 < buf.len() => Ok(Parsed::Here((start + i, start + i + 2))),
        Some(_) => Ok(Parsed::Awaited),
        None if window.len() == MAX_NUMBER_LINE => Err(too_long),
        None => Ok(Parsed::Awaited),
    }
}

fn count(digits: &[u8], limits: &Limits) -> Result<u32, ProtocolError> {
    let count = parse_i64(digits).ok_or(ProtocolError::MultibulkLength)?;
    if count > limits.max_args {
        return Err(if limits.unauthenticated {
            ProtocolError::UnauthenticatedMultibulkLength
        } else {
            ProtocolError::MultibulkLength
        });
    }
    Ok(count.max(0) as u32)
}

fn bulk_len(digits: &[u8], limits: &Limits) -> Result<u32, ProtocolError> {
    let len = parse_i64(digits).filter(|&n| n >= 0).ok_or(ProtocolError::BulkLength)?;
    if len > limits.max_bulk {
        return Err(if limits.unauthenticated {
            ProtocolError::UnauthenticatedBulkLength
        } else {
            ProtocolError::BulkLength
        });
    }
    u32::try_from(len).map_err(|_| ProtocolError::BulkLength)
}

fn printable(byte: u8) -> char {
    if byte.is_ascii_graphic() || byte == b' ' { byte as char } else { '?' }
}

/// Splits a line at white space. Unescapes quoted parts in place, since the result is never longer
/// than the source.
fn split_inline(line: &mut [u8], spans: &mut Vec<Span>) -> Result<(), ProtocolError> {
    let (mut read, mut write) = (0, 0);
    loop {
        while read < line.len() && line[read].is_ascii_whitespace() {
            read += 1;
        }
        if read == line.len() {
            return Ok(());
        }
        let start = write;
        (read, write) = inline_word(line, read, write)?;
        spans.push(Span { start: start as u32, len: (write - start) as u32 });
    }
}

/// Copies one word from `read` to `write`. Returns both positions after the word.
fn inline_word(
    line: &mut [u8],
    mut read: usize,
    mut write: usize,
) -> Result<(usize, usize), ProtocolError> {
    let mut quote = None;
    loop {
        let Some(&byte) = line.get(read) else {
            return if quote.is_some() {
                Err(ProtocolError::UnbalancedQuotes)
            } else {
                Ok((read, write))
            };
        };
        match (quote, byte) {
            (Some(b'"'), b'\\') if read + 1 < line.len() => {
                let (value, used) = unescape(&line[read + 1..]);
                line[write] = value;
                write += 1;
                read += 1 + used;
            }
            (Some(b'\''), b'\\') if line.get(read + 1) == Some(&b'\'') => {
                line[write] = b'\'';
                write += 1;
                read += 2;
            }
            (Some(open), _) if byte == open => {
                // A closing quote must be followed by white space or the end.
                match line.get(read + 1) {
                    None => return Ok((read + 1, write)),
                    Some(next) if next.is_ascii_whitespace() => return Ok((read + 1, write)),
                    Some(_) => return Err(ProtocolError::UnbalancedQuotes),
                }
            }
            (None, b'"' | b'\'') => {
                quote = Some(byte);
                read += 1;
            }
            (None, b' ' | b'\n' | b'\r' | b'\t') => return Ok((read, write)),
            _ => {
                line[write] = byte;
                write += 1;
                read += 1;
            }
        }
    }
}

/// The byte that an escape (without its backslash) encodes, and the length of the escape.
fn unescape(escape: &[u8]) -> (u8, usize) {
    let hex = |b: u8| (b as char).to_digit(16);
    if let [b'x', high, low, ..] = *escape
        && let (Some(high), Some(low)) = (hex(high), hex(low))
    {
        return ((high * 16 + low) as u8, 3);
    }
    let value = match escape[0] {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => other,
    };
    (value, 1)
}

#[cfg(test)]
mod tests;
