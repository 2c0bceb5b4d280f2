//! Random reads of pages past any engine, beside writes at a given rate: what the device gives at most.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stillpoint_io::{
    AlignedBuf, Caching, Disk, DiskError, DiskFile, OpenMode, Queue, RealDisk, Transfer,
};
use stillpoint_mem::Frames;

use crate::error::{LabError, LabResult};
use crate::sys;
use crate::workloads::random::Random;

/// Bytes of one write.
const RUN_BYTES: usize = 1 << 20;
/// Bytes of the file that is written, again and again.
const WRITTEN_BYTES: u64 = 64 << 20;
/// Name of that file.
const WRITTEN: &str = "raw-writes";

/// A load of reads and writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RawLoad {
    /// Bytes of a page.
    pub(crate) page_bytes: usize,
    /// Reads under way at a time.
    pub(crate) depth: usize,
    /// Pages per second that are written beside, in runs of 1 MiB, each of them flushed.
    pub(crate) writes_per_s: f64,
    /// Length of the run.
    pub(crate) seconds: f64,
}

/// Pages per second that are read from random places of a file in `dir`, past the page cache.
///
/// # Errors
/// When the disk refuses, or the file is shorter than a page.
pub(crate) fn reads_per_s(dir: &Path, file: &str, load: RawLoad) -> LabResult<f64> {
    let disk = RealDisk::new(dir).map_err(failed)?;
    let source = disk.open(Path::new(file), OpenMode::Read, Caching::Direct).map_err(failed)?;
    let end_ns = sys::now_ns() + (load.seconds * 1e9) as u64;
    let (disk, source) = (&disk, &source);
    let jobs: Vec<Box<dyn FnOnce() -> LabResult<f64> + Send + '_>> = vec![
        Box::new(move || read(disk, source, load, end_ns)),
        Box::new(move || write(disk, load, end_ns).map(|()| 0.0)),
    ];
    let rates = stillpoint_io::in_parallel("raw", jobs);
    let rates = rates.map_err(|e| LabError::process("raw reads", e))?;
    Ok(rates.into_iter().collect::<LabResult<Vec<f64>>>()?.into_iter().sum())
}

fn failed(error: DiskError) -> LabError {
    LabError::process("raw reads", error)
}

fn read(
    disk: &RealDisk,
    file: &Arc<dyn DiskFile>,
    RawLoad { page_bytes, depth, .. }: RawLoad,
    end_ns: u64,
) -> LabResult<f64> {
    let queue = Queue::of(disk, "raw", depth).map_err(|e| LabError::process("raw reads", e))?;
    let pages = file.len().map_err(failed)? / page_bytes as u64;
    if pages == 0 {
        return Err(LabError::process("raw reads", "the file has no page"));
    }
    let frames = Frames::new(depth, page_bytes).map_err(|e| LabError::process("raw reads", e))?;
    frames.populate(0..depth);
    let mut random = Random::new(7);
    let mut ask = |frame| {
        let offset = random.below(pages) * page_bytes as u64;
        queue.read(file, frames.target(frame), offset)
    };
    let mut reads: Vec<Transfer> = (0..depth).map(&mut ask).collect();
    let (start_ns, mut count) = (sys::now_ns(), 0u64);
    while sys::now_ns() < end_ns {
        queue.submit();
        queue.wait(&reads[count as usize % depth]);
        for (frame, read) in reads.iter_mut().enumerate() {
            if let Some(ended) = read.take() {
                ended.result.map_err(failed)?;
                count += 1;
                *read = ask(frame);
            }
        }
    }
    let seconds = (sys::now_ns() - start_ns) as f64 / 1e9;
    reads.iter().for_each(|read| queue.wait(read));
    Ok(count as f64 / seconds)
}

/// Writes at the load's rate until the end.
fn write(disk: &RealDisk, load: RawLoad, end_ns: u64) -> LabResult<()> {
    let bytes_per_s = load.writes_per_s * load.page_bytes as f64;
    if bytes_per_s < 1.0 {
        return Ok(());
    }
    let path = Path::new(WRITTEN);
    disk.remove(path).map_err(failed)?;
    let file = disk.open(path, OpenMode::CreateNew, Caching::Direct).map_err(failed)?;
    file.allocate(WRITTEN_BYTES).map_err(failed)?;
    let mut block = AlignedBuf::zeroed(RUN_BYTES);
    block.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
    let (start_ns, mut written) = (sys::now_ns(), 0u64);
    while sys::now_ns() < end_ns {
        let due = (sys::now_ns() - start_ns) as f64 / 1e9 * bytes_per_s;
        if due < written as f64 {
            sys::sleep(Duration::from_millis(1));
            continue;
        }
        file.write_at(&block, written % WRITTEN_BYTES).map_err(failed)?;
        file.sync().map_err(failed)?;
        written += RUN_BYTES as u64;
    }
    disk.remove(path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_read_beside_writes() -> LabResult<()> {
        let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
        let disk = RealDisk::new(dir.path()).map_err(failed)?;
        let file = disk.open(Path::new("pages"), OpenMode::CreateNew, Caching::Direct);
        let file = file.map_err(failed)?;
        file.write_at(&AlignedBuf::zeroed(RUN_BYTES), 0).map_err(failed)?;
        let load = RawLoad { page_bytes: 4096, depth: 8, writes_per_s: 1_000.0, seconds: 0.1 };
        assert!(reads_per_s(dir.path(), "pages", load)? > 10.0);
        assert!(!dir.path().join(WRITTEN).exists(), "nothing is left behind");
        Ok(())
    }
}
