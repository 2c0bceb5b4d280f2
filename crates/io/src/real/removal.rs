//! Removal of large files without a stall.
//!
//! Some file systems free the blocks of a file at once, under locks that every flush needs.
//! The system ext4 takes 280 ms for 2 GB, and flushes of other files wait meanwhile. So a large file
//! loses its name first, and then its blocks little by little. The pauses are several times as long as the
//! work. Who needs the space waits for them. For a start a thread of its own frees the blocks.

#![expect(
    unsafe_code,
    reason = "the kernel tells only by a lease whether a file is open elsewhere"
)]

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::open_regular;
use crate::clock::{Clock, RealClock};
use crate::thread::spawn;

/// Files up to this length are freed at once.
const AT_ONCE_BYTES: u64 = 16 << 20;
/// Bytes that are freed together.
const STEP_BYTES: u64 = 4 << 20;
/// The pause after a step, as a multiple of the step's time.
const PAUSE_PER_STEP: u64 = 4;

/// A large file without a name, which nobody else has open.
#[derive(Debug)]
pub(super) struct Nameless {
    file: File,
    bytes: u64,
}

/// Removes the name of a file. Returns the file if its blocks are still to be freed.
pub(super) fn unlink(path: &Path) -> io::Result<Option<Nameless>> {
    let metadata = std::fs::symlink_metadata(path)?;
    let is_large = metadata.is_file() && metadata.len() > AT_ONCE_BYTES;
    let open =
        if is_large { open_regular(OpenOptions::new().write(true), path).ok() } else { None };
    std::fs::remove_file(path)?;
    let nameless = open.filter(|file| is_last_use(file).unwrap_or(false));
    Ok(nameless.map(|file| Nameless { file, bytes: metadata.len() }))
}

/// Whether the file has no name any more, and no other open handle in any process. If it has, a
/// reader of a superseded checkpoint, or a copy of it by a hard link, still needs the contents.
fn is_last_use(file: &File) -> io::Result<bool> {
    if file.metadata()?.nlink() > 0 {
        return Ok(false);
    }
    let lease = |kind: libc::c_int| {
        // SAFETY: the descriptor is open, since `file` is borrowed. F_SETLEASE takes an integer and
        // touches no memory of this process.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) == 0 }
    };
    // The kernel grants this lease only if the file is open nowhere else. It is given back at once.
    let is_only_handle = lease(libc::F_WRLCK);
    Ok(is_only_handle && lease(libc::F_UNLCK))
}

impl Nameless {
    /// Frees the blocks with pauses, so that flushes of other files come between.
    pub(super) fn free(self) {
        let mut left = self.bytes;
        while left > STEP_BYTES {
            left -= STEP_BYTES;
            let begin_ns = RealClock.monotonic_ns();
            if self.file.set_len(left).is_err() {
                // The end of the last handle frees what is left.
                return;
            }
            let took_ns = RealClock.monotonic_ns() - begin_ns;
            RealClock.sleep(Duration::from_nanos(PAUSE_PER_STEP * took_ns));
        }
    }
}

/// Large files without a name for whose blocks nobody waits. They are freed one after the other.
#[derive(Debug, Default)]
pub(super) struct Freeing {
    /// The files that come next, while a thread frees one. `None` without a thread.
    waiting: Arc<Mutex<Option<VecDeque<Nameless>>>>,
}

impl Freeing {
    /// Frees the blocks of a file while the caller goes on. If the process ends before, the system frees
    /// them.
    pub(super) fn free(&self, nameless: Nameless) {
        let mut waiting = self.waiting.lock();
        match &mut *waiting {
            Some(waiting) => waiting.push_back(nameless),
            None => {
                let next = self.waiting.clone();
                let begun = spawn("free", move || {
                    nameless.free();
                    while let Some(nameless) = Self::next(&next) {
                        nameless.free();
                    }
                });
                // Without a thread the end of the handle has freed the file.
                *waiting = begun.is_ok().then(VecDeque::new);
            }
        }
    }

    /// The next file. Notes the end of the thread if there is none.
    fn next(waiting: &Mutex<Option<VecDeque<Nameless>>>) -> Option<Nameless> {
        let mut waiting = waiting.lock();
        let next = waiting.as_mut().and_then(VecDeque::pop_front);
        if next.is_none() {
            *waiting = None;
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn large(name: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join(name);
        let file = File::create(&path).expect("a file");
        file.set_len(AT_ONCE_BYTES + STEP_BYTES).expect("room");
        (scratch, path)
    }

    #[test]
    fn a_large_file_is_freed_in_steps_once_nobody_uses_it() {
        let (_scratch, path) = large("alone");
        let nameless = unlink(&path).expect("removed").expect("left to free");
        assert!(!path.exists());
        let file = nameless.file.try_clone().expect("a handle");
        nameless.free();
        assert_eq!(file.metadata().expect("its length").len(), STEP_BYTES);
    }

    /// Nobody waits for the pauses, and no two files are freed at the same time.
    #[test]
    fn files_are_freed_one_after_the_other_while_the_caller_goes_on() {
        let freeing = Freeing::default();
        let (handles, files): (Vec<File>, Vec<_>) = (0..3)
            .map(|number| {
                let (scratch, path) = large(&number.to_string());
                let nameless = unlink(&path).expect("removed").expect("left to free");
                (nameless.file.try_clone().expect("a handle"), (scratch, nameless))
            })
            .unzip();
        let bytes = |file: &File| file.metadata().expect("its length").len();
        // As long as another thread has the queue, nothing is freed, and nobody waits for that.
        *freeing.waiting.lock() = Some(VecDeque::new());
        let mut scratch = Vec::new();
        for (directory, nameless) in files {
            scratch.push(directory);
            freeing.free(nameless);
        }
        assert!(handles.iter().all(|file| bytes(file) == AT_ONCE_BYTES + STEP_BYTES));
        let first = Freeing::next(&freeing.waiting).expect("it waits");
        assert_eq!(first.file.metadata().expect("its inode").ino(), {
            handles[0].metadata().expect("its inode").ino()
        });
        let left = freeing.waiting.lock().take();
        assert_eq!(left.as_ref().map(VecDeque::len), Some(2));
        freeing.free(first);
        left.into_iter().flatten().for_each(|nameless| freeing.free(nameless));
        while freeing.waiting.lock().is_some() {
            RealClock.sleep(Duration::from_millis(1));
        }
        assert!(handles.iter().all(|file| bytes(file) == STEP_BYTES));
    }

    #[test]
    fn a_reader_of_a_removed_file_keeps_its_contents() {
        let (_scratch, path) = large("read");
        let reader = File::open(&path).expect("a handle");
        assert!(unlink(&path).expect("removed").is_none());
        assert_eq!(reader.metadata().expect("its length").len(), AT_ONCE_BYTES + STEP_BYTES);
    }

    #[test]
    fn another_name_keeps_the_contents() {
        let (scratch, path) = large("one");
        let other = scratch.path().join("other");
        std::fs::hard_link(&path, &other).expect("a link");
        assert!(unlink(&path).expect("removed").is_none());
        assert!(other.exists() && !path.exists());
    }

    #[test]
    fn a_small_file_is_freed_at_once() {
        let scratch = tempfile::tempdir().expect("a directory");
        let path = scratch.path().join("small");
        std::fs::write(&path, b"small").expect("written");
        assert!(unlink(&path).expect("removed").is_none());
        assert!(!path.exists());
    }
}
