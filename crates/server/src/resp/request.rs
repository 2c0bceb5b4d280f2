//! Arguments of one request, as ranges into the connection's input buffer.

use std::ops::Index;

/// Start and length in bytes of one argument, relative to its request's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u32,
    /// Length.
    pub len: u32,
}

/// Stands for a secret argument in logs.
pub const REDACTED: &[u8] = b"(redacted)";

/// The arguments of one request; argument 0 is the command's name.
#[derive(Clone, Copy, Debug)]
pub struct Args<'a> {
    bytes: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Args<'a> {
    /// Arguments at `spans` of `bytes`; every span lies inside `bytes`.
    pub fn new(bytes: &'a [u8], spans: &'a [Span]) -> Self {
        Self { bytes, spans }
    }

    /// Number of arguments, the command's name included.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// True when there is not even a command name.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Argument `i`, if it exists.
    pub fn get(&self, i: usize) -> Option<&'a [u8]> {
        let span = self.spans.get(i)?;
        self.bytes.get(span.start as usize..(span.start + span.len) as usize)
    }

    /// Argument `i`.
    ///
    /// # Panics
    /// When there is no argument `i`. The arity check of the command table rules that out.
    pub fn at(&self, i: usize) -> &'a [u8] {
        let span = self.spans[i];
        &self.bytes[span.start as usize..(span.start + span.len) as usize]
    }

    /// Arguments from `first` on.
    pub fn from(&self, first: usize) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (bytes, spans) = (self.bytes, self.spans.get(first..).unwrap_or(&[]));
        spans.iter().map(move |s| &bytes[s.start as usize..(s.start + s.len) as usize])
    }

    /// Bytes of all arguments together.
    pub fn total_len(&self) -> usize {
        self.spans.iter().map(|s| s.len as usize).sum()
    }

    /// Appends the request, as a client would send it. A word stands for each secret argument.
    pub fn encode(&self, out: &mut Vec<u8>, is_secret: impl Fn(usize) -> bool) {
        out.extend_from_slice(format!("*{}\r\n", self.len()).as_bytes());
        for (i, arg) in self.from(0).enumerate() {
            let arg = if is_secret(i) { REDACTED } else { arg };
            out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            out.extend_from_slice(arg);
            out.extend_from_slice(b"\r\n");
        }
    }

    /// The last argument.
    pub fn last(&self) -> &'a [u8] {
        self.at(self.spans.len() - 1)
    }
}

impl Index<usize> for Args<'_> {
    type Output = [u8];
    fn index(&self, i: usize) -> &[u8] {
        self.at(i)
    }
}
