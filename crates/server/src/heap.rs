//! The heap that one command may take for copies of what it reads.
//!
//! Copies lie outside of the memory for data and of the clients' buffers. A short request may ask for
//! very long copies. It may have a packed payload, or name a key a thousand times, or have `SORT` make
//! names of long elements. So each command has a budget of its own.

use crate::error::{CmdError, CmdResult};

/// Bounds of a command's heap.
const BYTES_MIN: usize = 256 << 20;
const BYTES_MAX: usize = 4 << 30;

/// The rest of a command's heap.
#[derive(Debug)]
pub(crate) struct Heap {
    left: usize,
    is_spent: bool,
}

impl Heap {
    /// A heap of so many bytes.
    pub(crate) fn of(left: usize) -> Self {
        Self { left, is_spent: false }
    }

    /// The heap of a command over a store whose data may take `data_bytes`: half of that, at least 256
    /// MiB and at most 4 GiB. Without a limit when a start makes the commands of its log again, where
    /// `data_bytes` is 0: they found heap before.
    pub(crate) fn beside(data_bytes: usize) -> Self {
        Self::of(match data_bytes {
            0 => usize::MAX,
            bytes => (bytes / 2).clamp(BYTES_MIN, BYTES_MAX),
        })
    }

    /// Takes bytes. False if there are not so many, and from then on.
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        match self.left.checked_sub(bytes).filter(|_| !self.is_spent) {
            Some(left) => self.left = left,
            None => self.is_spent = true,
        }
        !self.is_spent
    }

    /// Whether all bytes were there that the command asked for.
    ///
    /// # Errors
    /// `OOM`: the command ends, and has changed nothing.
    pub(crate) fn check(&self) -> CmdResult {
        if self.is_spent { Err(CmdError::HEAP) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spent_heap_stays_spent() {
        let mut heap = Heap::beside(1);
        assert!(heap.take(BYTES_MIN - 10) && heap.take(10) && heap.check().is_ok());
        assert!(!heap.take(1) && !heap.take(0) && heap.check().is_err());
        assert!(
            Heap::beside(usize::MAX).take(BYTES_MAX) && !Heap::beside(usize::MAX).take(5 << 30)
        );
        assert!(Heap::beside(0).take(1 << 40));
    }
}
