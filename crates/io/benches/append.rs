//! Rates of the disk: appends with a flush each, and direct sequential writes from one thread and
//! from two. Also the time that a crash of the simulated disk takes, for the test harnesses.
//!
//! `cargo bench -p stillpoint-io` measures the disk under the temporary directory; `TMPDIR`
//! chooses another one.

#![expect(clippy::print_stdout, reason = "the figures are the output")]

use std::path::Path;
use std::sync::Arc;

use stillpoint_io::{
    AlignedBuf, Caching, Clock, Disk, DiskResult, OpenMode, RealClock, RealDisk, SimDisk, spawn,
    thread_cpu_ns,
};

const APPENDS: u64 = 1_000;
const BLOCK: usize = 4096;
const CHUNK: usize = 1 << 20;
const SEQUENTIAL_BYTES: u64 = 512 << 20;

/// Content of the file before the appends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Space {
    /// Nothing.
    Growing,
    /// Space that `allocate` has reserved. At the first write of each block, a file system still
    /// records that the block holds data.
    Reserved,
    /// Bytes from before, as in a recycled file.
    Overwritten,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scratch = tempfile::tempdir()?;
    let disk = Arc::new(RealDisk::new(scratch.path())?);
    for caching in [Caching::Buffered, Caching::Direct] {
        for space in [Space::Growing, Space::Reserved, Space::Overwritten] {
            append_and_flush(&*disk, caching, space)?;
        }
    }
    for threads in [1, 2] {
        write_sequentially(&disk, threads)?;
    }
    for (file_mib, dirty_mib) in [(4, 4), (4, 1), (64, 1), (256, 0)] {
        crash(file_mib, dirty_mib)?;
    }
    Ok(())
}

/// Median and 99th percentile of some times, in microseconds.
fn percentiles(mut times_ns: Vec<u64>) -> (f64, f64) {
    times_ns.sort_unstable();
    let at = |percent: usize| times_ns[(times_ns.len() - 1) * percent / 100] as f64 / 1e3;
    (at(50), at(99))
}

fn append_and_flush(disk: &dyn Disk, caching: Caching, space: Space) -> DiskResult<()> {
    let path = Path::new("append");
    let file = disk.open(path, OpenMode::CreateNew, caching)?;
    let mut block = AlignedBuf::new();
    block.resize(BLOCK, 1);
    let whole = APPENDS * BLOCK as u64;
    match space {
        Space::Growing => {}
        Space::Reserved => file.allocate(whole)?,
        Space::Overwritten => file.write_at(&AlignedBuf::zeroed(whole as usize), 0)?,
    }
    file.sync()?;
    let mut times_ns = Vec::new();
    for number in 0..APPENDS {
        let start_ns = RealClock.monotonic_ns();
        file.write_at(&block, number * BLOCK as u64)?;
        file.sync()?;
        times_ns.push(RealClock.monotonic_ns() - start_ns);
    }
    let (p50, p99) = percentiles(times_ns);
    println!("append 4 KiB + flush, {caching:?}, {space:?}: p50 {p50:.0} us, p99 {p99:.0} us");
    disk.remove(path)
}

fn write_sequentially(
    disk: &Arc<RealDisk>,
    threads: u64,
) -> Result<(), Box<dyn std::error::Error>> {
    let path = Path::new("sequential");
    let file = disk.open(path, OpenMode::CreateNew, Caching::Direct)?;
    file.allocate(SEQUENTIAL_BYTES)?;
    file.sync()?;
    let start_ns = RealClock.monotonic_ns();
    let mut writers = Vec::new();
    for writer in 0..threads {
        let file = file.clone();
        writers.push(spawn(&format!("writer-{writer}"), move || {
            let mut chunk = AlignedBuf::new();
            chunk.resize(CHUNK, 1);
            // Chunks in turn, so that both threads advance along the file together.
            (writer..SEQUENTIAL_BYTES / CHUNK as u64)
                .step_by(threads as usize)
                .try_for_each(|number| file.write_at(&chunk, number * CHUNK as u64))
        })?);
    }
    for writer in writers {
        writer.join()??;
    }
    file.sync()?;
    let seconds = (RealClock.monotonic_ns() - start_ns) as f64 / 1e9;
    let rate = SEQUENTIAL_BYTES as f64 / seconds / 1e9;
    println!("direct sequential 1 MiB writes, {threads} thread(s): {rate:.2} GB/s");
    disk.remove(path)?;
    Ok(())
}

fn crash(file_mib: u64, dirty_mib: u64) -> DiskResult<()> {
    const CRASHES: u64 = 200;
    let disk = SimDisk::new(1);
    let file = disk.open(Path::new("f"), OpenMode::CreateNew, Caching::Buffered)?;
    for chunk in 0..file_mib {
        file.write_at(&[1; CHUNK], chunk * CHUNK as u64)?;
    }
    file.sync()?;
    for chunk in 0..dirty_mib {
        file.write_at(&[2; CHUNK], chunk * CHUNK as u64)?;
    }
    let mut times_ns = Vec::new();
    for seed in 0..CRASHES {
        let start_ns = thread_cpu_ns();
        let image = disk.crash_image(seed);
        times_ns.push(thread_cpu_ns() - start_ns);
        drop(image);
    }
    let (p50, p99) = percentiles(times_ns);
    println!(
        "simulated power loss, {file_mib} MiB, {dirty_mib} MiB unflushed: p50 {p50:.0} us, p99 {p99:.0} us"
    );
    Ok(())
}
