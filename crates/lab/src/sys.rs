//! The lab's own calls of the operating system: time, threads, and files that belong to no engine
//! (results, figures, `/proc`).
//!
//! The lab measures real processes on a real machine and simulates nothing. So its files do not go
//! through `stillpoint_io::Disk`.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use stillpoint_io::{Clock, JoinHandle, RealClock};

use crate::error::{LabError, LabResult};

pub(crate) use stillpoint_io::thread_cpu_ns;

/// Nanoseconds of the machine's monotonic clock: comparable between threads.
pub(crate) fn now_ns() -> u64 {
    RealClock.monotonic_ns()
}

/// Milliseconds since the Unix epoch.
pub(crate) fn wall_ms() -> u64 {
    RealClock.wall_ms()
}

/// Blocks the calling thread.
pub(crate) fn sleep(duration: Duration) {
    RealClock.sleep(duration);
}

/// Blocks until `now_ns() >= at_ns`.
pub(crate) fn sleep_until(at_ns: u64) {
    let now = now_ns();
    if at_ns > now {
        sleep(Duration::from_nanos(at_ns - now));
    }
}

/// Starts a named thread.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> LabResult<JoinHandle<T>> {
    stillpoint_io::spawn(name, body).map_err(|e| LabError::process(format!("thread {name}"), e))
}

fn file_error(op: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LabError {
    let path = path.to_owned();
    move |source| LabError::File { op, path, source }
}

/// Reads a whole file as text.
#[expect(clippy::disallowed_methods, reason = "/proc, /sys and result files are no engine's")]
pub(crate) fn read_text(path: &Path) -> LabResult<String> {
    std::fs::read_to_string(path).map_err(file_error("read", path))
}

/// Writes a whole file, replacing it.
#[expect(clippy::disallowed_methods, reason = "result files and figures are no engine's")]
pub(crate) fn write_text(path: &Path, text: &str) -> LabResult<()> {
    std::fs::write(path, text).map_err(file_error("write", path))
}

/// Creates a directory and its missing parents.
#[expect(clippy::disallowed_methods, reason = "the result folder is no engine's")]
pub(crate) fn create_dir_all(path: &Path) -> LabResult<()> {
    std::fs::create_dir_all(path).map_err(file_error("create directory", path))
}

/// Removes a directory with its contents. A missing directory is no error.
#[expect(clippy::disallowed_methods, reason = "the data of a server that has ended")]
pub(crate) fn remove_dir_all(path: &Path) -> LabResult<()> {
    match std::fs::remove_dir_all(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(file_error("remove directory", path)(e))
        }
        _ => Ok(()),
    }
}

/// Copies the files of a directory, and those of the directories in it.
#[expect(clippy::disallowed_methods, reason = "a copy of an engine's files is no engine's")]
pub(crate) fn copy_dir(from: &Path, to: &Path) -> LabResult<()> {
    create_dir_all(to)?;
    for path in list_dir(from)? {
        let Some(name) = path.file_name() else { continue };
        if path.is_dir() {
            copy_dir(&path, &to.join(name))?;
        } else {
            std::fs::copy(&path, to.join(name)).map_err(file_error("copy", &path))?;
        }
    }
    Ok(())
}

/// Creates an empty file for a child's output.
#[expect(clippy::disallowed_methods, reason = "a child's output goes to a plain file")]
pub(crate) fn create_file(path: &Path) -> LabResult<std::fs::File> {
    std::fs::File::create(path).map_err(file_error("create", path))
}

/// Entries of a directory, sorted by name.
pub(crate) fn list_dir(path: &Path) -> LabResult<Vec<PathBuf>> {
    let entries = std::fs::read_dir(path).map_err(file_error("list", path))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|e| e.ok().map(|e| e.path())).collect();
    paths.sort();
    Ok(paths)
}

/// Appends `bytes` and flushes, `count` times. Returns the nanoseconds of each flush.
///
/// Durable writes are compared with this figure: the cost of one small append plus `fdatasync` in
/// this directory.
pub(crate) fn time_flushes(dir: &Path, bytes: usize, count: usize) -> LabResult<Vec<u64>> {
    use std::io::Write;
    let path = dir.join("flush-probe");
    let mut file = create_file(&path)?;
    let block = vec![0x5a_u8; bytes];
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let start = now_ns();
        file.write_all(&block).map_err(file_error("append to", &path))?;
        file.sync_data().map_err(file_error("flush", &path))?;
        times.push(now_ns() - start);
    }
    drop(file);
    remove_file(&path)?;
    Ok(times)
}

/// Removes a file.
#[expect(clippy::disallowed_methods, reason = "probe files and pictures are no engine's")]
pub(crate) fn remove_file(path: &Path) -> LabResult<()> {
    std::fs::remove_file(path).map_err(file_error("remove", path))
}
