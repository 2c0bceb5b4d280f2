//! Reads of single writes, for who needs a key before the load has read its windows.

use std::ops::Range;

use stillpoint_io::AlignedBuf;

/// Bytes that are read for one write, unless it proves to be longer.
const READ_BYTES: usize = 256;

/// A part of a window that was read for one key.
pub(super) struct ReadPart {
    buffer: AlignedBuf,
    /// The window, and the range of its bytes that the buffer has.
    window: Option<u32>,
    range: Range<usize>,
}

impl ReadPart {
    pub(super) fn new(buffer: AlignedBuf) -> Self {
        Self { buffer, window: None, range: 0..0 }
    }

    pub(super) fn into_buffer(self) -> AlignedBuf {
        self.buffer
    }

    /// The bytes of a write that begins at this offset of a window. `len_of` tells how many of these bytes it
    /// has, if all of them are there. `read` reads a range of the window and perhaps more, and tells what the
    /// buffer has then.
    ///
    /// # Panics
    /// If the window ends before the write.
    pub(super) fn write<E>(
        &mut self,
        (window, at): (u32, usize),
        len_of: impl Fn(&[u8]) -> Option<usize>,
        read: impl Fn(Range<usize>, &mut AlignedBuf) -> Result<Range<usize>, E>,
    ) -> Result<Box<[u8]>, E> {
        let mut wanted = at..at + READ_BYTES;
        let mut is_there = self.window == Some(window) && self.range.contains(&at);
        loop {
            if !is_there {
                self.range = read(wanted.clone(), &mut self.buffer)?;
                self.window = Some(window);
            }
            let bytes = &self.buffer[at - self.range.start..];
            if let Some(len) = len_of(bytes) {
                return Ok(bytes[..len].into());
            }
            let goes_on = is_there || self.range.end >= wanted.end;
            assert!(goes_on, "the start has decoded the same bytes");
            wanted.end = at + 2 * bytes.len().max(READ_BYTES);
            is_there = false;
        }
    }
}
