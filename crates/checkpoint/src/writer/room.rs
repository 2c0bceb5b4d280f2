//! Space on the disk: what the writers of a checkpoint may take of it, and what they leave.

use std::io::{Error, ErrorKind};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use stillpoint_io::{DIRECT_ALIGN, Disk, DiskError, DiskFile, DiskResult};

/// The room of all writers together. Two writers that each looked at the disk would both take the
/// same free bytes. So a writer claims its bytes before it writes them.
pub(super) struct Room {
    disk: Arc<dyn Disk>,
    leave_bytes: u64,
    /// Bytes of the writes under way. The disk may count some of them as free still.
    claimed_bytes: Mutex<u64>,
    /// Signals that a write under way has ended.
    ended: Condvar,
}

/// Bytes that a writer may write while this value lives.
#[must_use = "the claim ends when it is dropped"]
pub(super) struct Claim<'a> {
    room: &'a Room,
    bytes: u64,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        *self.room.claimed_bytes.lock() -= self.bytes;
        self.room.ended.notify_all();
    }
}

impl Room {
    /// Leaves so many bytes of the disk to others; with 0 nothing is refused.
    pub(super) fn new(disk: Arc<dyn Disk>, leave_bytes: u64) -> Self {
        Self { disk, leave_bytes, claimed_bytes: Mutex::new(0), ended: Condvar::new() }
    }

    /// Claims the bytes of the next write of a file. If the free space may not suffice for the
    /// writes under way and this one, waits for their end.
    ///
    /// # Errors
    /// The write would leave less than others need, or the disk does not tell its space.
    pub(super) fn claim(&self, file: &dyn DiskFile, bytes: usize) -> DiskResult<Option<Claim<'_>>> {
        if self.leave_bytes == 0 {
            return Ok(None);
        }
        let bytes = bytes.next_multiple_of(DIRECT_ALIGN) as u64;
        let mut claimed = self.claimed_bytes.lock();
        loop {
            let Some(space) = self.disk.space()? else { return Ok(None) };
            let needed = self.leave_bytes.saturating_add(bytes);
            if space.free_bytes >= needed.saturating_add(*claimed) {
                *claimed += bytes;
                return Ok(Some(Claim { room: self, bytes }));
            }
            if *claimed == 0 {
                return Err(self.refusal(file, bytes, space.free_bytes));
            }
            self.ended.wait(&mut claimed);
        }
    }

    fn refusal(&self, file: &dyn DiskFile, bytes: u64, free_bytes: u64) -> DiskError {
        let why =
            format!("{free_bytes} bytes are free, and {} are left to the log", self.leave_bytes);
        let full = Error::new(ErrorKind::StorageFull, why);
        DiskError::new(format!("write {bytes} bytes of"), file.path(), full)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use stillpoint_io::{Caching, Clock, OpenMode, RealClock, SimDisk, spawn};

    use super::*;

    const MIB: usize = 1 << 20;

    fn disk_and_file() -> (SimDisk, Arc<dyn DiskFile>) {
        let disk = SimDisk::new(1);
        let file = disk.open(Path::new("part"), OpenMode::CreateNew, Caching::Buffered);
        let file = file.expect("an empty disk");
        disk.set_capacity(Some(disk.used_bytes() + 3 * MIB as u64));
        (disk, file)
    }

    #[test]
    fn two_writers_cannot_both_take_the_last_bytes() {
        let (disk, file) = disk_and_file();
        let room = Arc::new(Room::new(Arc::new(disk.clone()), MIB as u64));
        let first = room.claim(&*file, 2 * MIB).expect("two of three are free");
        let second = spawn("second", {
            let (room, file) = (room.clone(), file.clone());
            move || room.claim(&*file, MIB).map(|_| ()).expect_err("the log's space")
        })
        .expect("a thread");
        // Time for a second look at the disk, which still has three MiB free.
        RealClock.sleep(Duration::from_millis(20));
        file.write_at(&vec![7; 2 * MIB], 0).expect("they are free");
        assert!(!second.is_finished(), "refused or granted while a write is under way");
        drop(first);
        let refused = second.join().expect("no panic");
        assert_eq!(refused.source.kind(), ErrorKind::StorageFull, "{refused}");
        assert!(refused.to_string().contains("left to the log"), "{refused}");
    }

    #[test]
    fn writers_do_not_wait_where_all_their_bytes_fit() {
        let (disk, file) = disk_and_file();
        let room = Room::new(Arc::new(disk), MIB as u64);
        let first = room.claim(&*file, MIB).expect("space");
        let second = room.claim(&*file, MIB).expect("space for both");
        assert!(first.is_some() && second.is_some(), "both claims are kept");
        drop(first);
        // Bytes that were claimed and not written are free again.
        assert!(room.claim(&*file, MIB).expect("space").is_some());
    }
}
