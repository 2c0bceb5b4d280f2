//! Random reads of a file through the queue, beside a bare ring of the same depth. Also writes in
//! runs of 1 MiB.
//!
//! `cargo bench -p stillpoint-io --bench queue -- [MIB] [SECONDS]` measures the disk under the
//! temporary directory; `TMPDIR` chooses another one. By default 1,024 MiB and 2 seconds a row.

#![expect(clippy::print_stdout, reason = "the figures are the output")]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use stillpoint_io::{
    AlignedBuf, Caching, Clock, Disk, DiskFile, OpenMode, Queue, RealClock, RealDisk, Rng,
    SeededRng, Transfer, thread_cpu_ns,
};
use stillpoint_mem::Frames;

const RUN_BYTES: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let numbers: Vec<u64> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let file_bytes = numbers.first().copied().unwrap_or(1024) << 20;
    let row_ns = numbers.get(1).copied().unwrap_or(2) * 1_000_000_000;
    let scratch = tempfile::tempdir()?;
    let disk = RealDisk::new(scratch.path())?;
    let file = disk.open(Path::new("pages"), OpenMode::CreateNew, Caching::Direct)?;
    let own = Queue::of(&disk, "bench", 64)?;
    let threads = Queue::by_threads("bench", 64)?;
    println!("io_uring: {}", own.is_ring());
    write(&file, &own, file_bytes)?;
    write(&file, &own, file_bytes)?;
    for page_bytes in [4 << 10, 16 << 10] {
        for depth in [1, 8, 32, 64] {
            let measured = Row { file: &file, file_bytes, page_bytes, depth, row_ns };
            measured.read("queue", &own)?;
            measured.read("threads", &threads)?;
            if depth == 1 {
                measured.read_bare()?;
            }
        }
    }
    Ok(())
}

/// Writes the whole file in runs, eight of them under way.
fn write(file: &Arc<dyn DiskFile>, queue: &Queue, file_bytes: u64) -> Result<(), Box<dyn Error>> {
    let start_ns = RealClock.monotonic_ns();
    let mut bufs: Vec<AlignedBuf> = (0..8).map(|_| AlignedBuf::zeroed(RUN_BYTES)).collect();
    bufs.iter_mut().for_each(|buf| buf.fill(7));
    let mut under_way: Vec<Transfer> = Vec::new();
    for run in 0..file_bytes / RUN_BYTES as u64 {
        if bufs.is_empty() {
            let oldest = under_way.remove(0);
            queue.wait(&oldest);
            let ended = oldest.take().ok_or("taken twice")?;
            ended.result?;
            bufs.extend(ended.buf);
        }
        let buf = bufs.pop().ok_or("a buffer came back")?;
        under_way.push(queue.write(file, buf, run * RUN_BYTES as u64));
        queue.submit();
    }
    for write in under_way {
        queue.wait(&write);
        write.take().ok_or("taken twice")?.result?;
    }
    file.sync()?;
    let took_ns = RealClock.monotonic_ns() - start_ns;
    println!("writes in runs of 1 MiB: {:.0} MB/s", file_bytes as f64 * 1e3 / took_ns as f64);
    Ok(())
}

struct Row<'a> {
    file: &'a Arc<dyn DiskFile>,
    file_bytes: u64,
    page_bytes: usize,
    depth: usize,
    row_ns: u64,
}

impl Row<'_> {
    fn offset(&self, rng: &SeededRng) -> u64 {
        rng.below(self.file_bytes / self.page_bytes as u64) * self.page_bytes as u64
    }

    fn read(&self, name: &str, queue: &Queue) -> Result<(), Box<dyn Error>> {
        let rng = SeededRng::new(1);
        let frames = Frames::new(self.depth, self.page_bytes)?;
        frames.populate(0..self.depth);
        let ask = |frame| queue.read(self.file, frames.target(frame), self.offset(&rng));
        let (start_ns, cpu_ns) = (RealClock.monotonic_ns(), thread_cpu_ns());
        let mut reads: Vec<Transfer> = (0..self.depth).map(ask).collect();
        let mut count = 0u64;
        while RealClock.monotonic_ns() - start_ns < self.row_ns {
            queue.submit();
            queue.wait(&reads[count as usize % self.depth]);
            for (frame, read) in reads.iter_mut().enumerate() {
                if let Some(ended) = read.take() {
                    ended.result?;
                    count += 1;
                    *read = ask(frame);
                }
            }
        }
        reads.iter().for_each(|read| queue.wait(read));
        self.print(name, count, start_ns, cpu_ns);
        Ok(())
    }

    /// The same reads on a ring of its own, without tickets, locks and shared completions.
    #[cfg(target_os = "linux")]
    #[expect(unsafe_code, reason = "the ring reads by address; the frames outlive it")]
    fn read_bare(&self) -> Result<(), Box<dyn Error>> {
        use io_uring::{IoUring, opcode, types};
        use std::os::fd::AsRawFd;
        let rng = SeededRng::new(1);
        let frames = Frames::new(self.depth, self.page_bytes)?;
        frames.populate(0..self.depth);
        let descriptor = self.file.descriptor(false)?.ok_or("no descriptor")?.as_raw_fd();
        let mut ring = IoUring::new(self.depth as u32)?;
        let (start_ns, cpu_ns) = (RealClock.monotonic_ns(), thread_cpu_ns());
        let mut free: Vec<usize> = (0..self.depth).collect();
        let mut count = 0u64;
        loop {
            let is_over = RealClock.monotonic_ns() - start_ns >= self.row_ns;
            while let Some(frame) = free.pop_if(|_| !is_over) {
                let address = frames.target(frame).address().as_ptr();
                let read =
                    opcode::Read::new(types::Fd(descriptor), address, self.page_bytes as u32);
                let entry = read.offset(self.offset(&rng)).build().user_data(frame as u64);
                // SAFETY: the frame lives until the loop has seen the entry's completion.
                unsafe { ring.submission().push(&entry) }?;
            }
            if free.len() == self.depth {
                break;
            }
            ring.submit_and_wait(1)?;
            for entry in ring.completion() {
                assert_eq!(entry.result(), self.page_bytes as i32, "a whole page");
                free.push(entry.user_data() as usize);
                count += 1;
            }
        }
        self.print("bare", count, start_ns, cpu_ns);
        Ok(())
    }

    #[cfg(not(target_os = "linux"))]
    fn read_bare(&self) -> Result<(), Box<dyn Error>> {
        Ok(())
    }

    fn print(&self, name: &str, count: u64, start_ns: u64, cpu_ns: u64) {
        let took_s = (RealClock.monotonic_ns() - start_ns) as f64 / 1e9;
        let cpu_us = (thread_cpu_ns() - cpu_ns) as f64 / 1e3 / count.max(1) as f64;
        println!(
            "{:>2} KiB, depth {:>2}, {name:<7}: {:>7.0} reads/s, {cpu_us:.1} µs of this thread per read",
            self.page_bytes >> 10,
            self.depth,
            count as f64 / took_s,
        );
    }
}
