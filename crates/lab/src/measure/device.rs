//! Rates of the disk below an engine, measured in the same run.

use std::path::Path;

use stillpoint_io::{AlignedBuf, Caching, Disk, DiskError, OpenMode, RealDisk};

use crate::error::{LabError, LabResult};
use crate::sys;

/// Bytes of one write.
const BLOCK_BYTES: usize = 1 << 20;

/// Bytes per second that `writers` threads write together. Each thread writes block after block
/// into an allocated file of its own, past the page cache, and flushes at the end.
///
/// # Errors
/// When the disk refuses.
pub(crate) fn write_bytes_per_s(dir: &Path, writers: usize, bytes: u64) -> LabResult<f64> {
    let failed = |e: DiskError| LabError::process("write bandwidth", e);
    let disk = RealDisk::new(dir).map_err(failed)?;
    let disk = &disk;
    let blocks = (bytes / writers as u64 / BLOCK_BYTES as u64).max(1);
    let name = |writer: usize| format!("bandwidth-{writer}");
    let jobs: Vec<_> = (0..writers)
        .map(|writer| {
            move || -> Result<(u64, u64), DiskError> {
                let path = Path::new("").join(name(writer));
                let file = disk.open(&path, OpenMode::CreateNew, Caching::Direct)?;
                file.allocate(blocks * BLOCK_BYTES as u64)?;
                let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
                block.iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8);
                // The first pass turns allocated space into written space.
                let mut span = (0, 0);
                for _ in 0..2 {
                    let began_ns = sys::now_ns();
                    for number in 0..blocks {
                        file.write_at(&block, number * BLOCK_BYTES as u64)?;
                    }
                    file.sync()?;
                    span = (began_ns, sys::now_ns());
                }
                Ok(span)
            }
        })
        .collect();
    let spans = stillpoint_io::in_parallel("bandwidth", jobs);
    let spans = spans.map_err(|e| LabError::process("write bandwidth", e))?;
    let spans: Vec<(u64, u64)> = spans.into_iter().collect::<Result<_, _>>().map_err(failed)?;
    for writer in 0..writers {
        disk.remove(Path::new(&name(writer))).map_err(failed)?;
    }
    let began_ns = spans.iter().map(|s| s.0).min().unwrap_or(0);
    let ended_ns = spans.iter().map(|s| s.1).max().unwrap_or(1);
    let written = writers as u64 * blocks * BLOCK_BYTES as u64;
    Ok(written as f64 * 1e9 / (ended_ns - began_ns) as f64)
}

/// Bytes per second that `readers` threads read of a file together, past the page cache. Each
/// thread reads a part of the file, block after block.
///
/// # Errors
/// When the disk refuses.
pub(crate) fn read_bytes_per_s(file: &Path, readers: usize) -> LabResult<f64> {
    let failed = |e: DiskError| LabError::process("read bandwidth", e);
    let (dir, name) = file.parent().zip(file.file_name()).unwrap_or((file, file.as_os_str()));
    let disk = RealDisk::new(dir).map_err(failed)?;
    let file = disk.open(Path::new(name), OpenMode::Read, Caching::Direct).map_err(failed)?;
    let bytes = file.len().map_err(failed)?;
    let blocks = bytes.div_ceil(BLOCK_BYTES as u64);
    let (readers, file) = (readers.max(1) as u64, &*file);
    let jobs: Vec<_> = (0..readers)
        .map(|reader| {
            move || -> Result<(), DiskError> {
                let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
                for number in blocks * reader / readers..blocks * (reader + 1) / readers {
                    file.read_at(&mut block, number * BLOCK_BYTES as u64)?;
                }
                Ok(())
            }
        })
        .collect();
    let began_ns = sys::now_ns();
    let read = stillpoint_io::in_parallel("bandwidth", jobs);
    let read = read.map_err(|e| LabError::process("read bandwidth", e))?;
    read.into_iter().collect::<Result<(), _>>().map_err(failed)?;
    Ok(bytes as f64 * 1e9 / (sys::now_ns() - began_ns) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_disk_writes_something_and_nothing_is_left() -> LabResult<()> {
        let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
        let rate = write_bytes_per_s(dir.path(), 2, 4 << 20)?;
        assert!(rate > 1e6, "{rate}");
        assert!(sys::list_dir(dir.path())?.is_empty());
        Ok(())
    }

    #[test]
    fn the_disk_reads_a_file() -> LabResult<()> {
        let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
        let path = dir.path().join("file");
        sys::write_text(&path, &"words ".repeat(500_000))?;
        let rate = read_bytes_per_s(&path, 4)?;
        assert!(rate > 1e6, "{rate}");
        assert!(read_bytes_per_s(&dir.path().join("none"), 1).is_err());
        Ok(())
    }
}
