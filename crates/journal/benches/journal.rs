//! Costs of a commit and of a flush, and the rate of the device.
//!
//! `cargo bench -p stillpoint-journal -- [DIR] [SECONDS]`: DIR is on the device to measure
//! (default: the system's directory for temporary files). Every line is the best and the
//! median of five runs.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stillpoint_format::ident::StoreId;
use stillpoint_format::log::{PatchRange, RecordKind, WritesEncoder};
use stillpoint_format::manifest::IncarnationEntry;
use stillpoint_format::{EncodeError, Stamp};
use stillpoint_io::{
    AlignedBuf, Caching, Clock, Disk, DiskFile, DiskLock, DiskResult, OpenMode, RealClock,
    RealDisk, SharedLock, Space, in_parallel, thread_cpu_ns,
};
use stillpoint_journal::{
    Config, Durability, Entry, Environment, Hold, Journal, JournalError, ReplayOptions,
    ReplayStart, ScanInput, registry, scan,
};

const STORE: StoreId = StoreId(*b"journal-benchmar");
const RUNS: usize = 5;

/// A disk that keeps no bytes and costs nothing, so that only the journal's own work is measured.
#[derive(Debug)]
struct NullDisk;

#[derive(Debug)]
struct NullFile(PathBuf);

impl Disk for NullDisk {
    fn open(&self, path: &Path, _: OpenMode, _: Caching) -> DiskResult<Arc<dyn DiskFile>> {
        Ok(Arc::new(NullFile(path.to_owned())))
    }
    fn create_dir_all(&self, _: &Path) -> DiskResult<()> {
        Ok(())
    }
    fn list(&self, _: &Path) -> DiskResult<Vec<String>> {
        Ok(Vec::new())
    }
    fn exists(&self, _: &Path) -> DiskResult<bool> {
        Ok(false)
    }
    fn rename(&self, _: &Path, _: &Path) -> DiskResult<()> {
        Ok(())
    }
    fn remove(&self, _: &Path) -> DiskResult<()> {
        Ok(())
    }
    fn sync_dir(&self, _: &Path) -> DiskResult<()> {
        Ok(())
    }
    fn lock(&self, _: &Path) -> DiskResult<Option<Box<dyn DiskLock>>> {
        Ok(None)
    }
    fn lock_shared(&self, _: &Path) -> DiskResult<SharedLock> {
        Ok(SharedLock::Absent)
    }
    fn space(&self) -> DiskResult<Option<Space>> {
        Ok(None)
    }
    fn describe(&self, path: &Path) -> PathBuf {
        path.to_owned()
    }
}

impl DiskFile for NullFile {
    fn read_at(&self, _: &mut [u8], _: u64) -> DiskResult<usize> {
        Ok(0)
    }
    fn write_at(&self, _: &[u8], _: u64) -> DiskResult<()> {
        Ok(())
    }
    fn sync(&self) -> DiskResult<()> {
        Ok(())
    }
    fn len(&self) -> DiskResult<u64> {
        Ok(0)
    }
    fn set_len(&self, _: u64) -> DiskResult<()> {
        Ok(())
    }
    fn allocate(&self, _: u64) -> DiskResult<()> {
        Ok(())
    }
    fn path(&self) -> &Path {
        &self.0
    }
}

fn open(
    disk: &Arc<dyn Disk>,
    durability: Durability,
    incarnation: u32,
    logs: u8,
) -> Arc<dyn Journal> {
    let env = Environment { disk: Arc::clone(disk), clock: Arc::new(RealClock) };
    let config = Config { durability, ..Config::new(STORE, incarnation, 0, logs) };
    let redo = registry::REGISTRY.find("redo").expect("listed");
    (redo.open)(&env, &config).expect("opens")
}

fn best_and_median(mut figures: Vec<f64>, smaller_is_better: bool) -> (f64, f64) {
    figures.sort_by(f64::total_cmp);
    let best = if smaller_is_better { figures[0] } else { figures[figures.len() - 1] };
    (best, figures[figures.len() / 2])
}

fn append(
    journal: &dyn Journal,
    log: u8,
    touched: &[Stamp],
    writes: &dyn Fn(&mut WritesEncoder<'_>) -> Result<(), EncodeError>,
) -> Stamp {
    let body = |to: &mut Vec<u8>| writes(&mut WritesEncoder::new(to));
    let entry = Entry { kind: RecordKind::Writes, epoch: 1, touched, body: &body };
    append_entry(journal, log, &entry)
}

/// Appends an entry as soon as there is room.
fn append_entry(journal: &dyn Journal, log: u8, entry: &Entry<'_>) -> Stamp {
    loop {
        match journal.append(log, entry) {
            Err(JournalError::NoRoom { .. }) => journal.admit(log).expect("room"),
            appended => return appended.expect("appends"),
        }
    }
}

/// CPU nanoseconds of one append with ten patches of 8 bytes under 8-byte keys.
fn append_cost() {
    let disk: Arc<dyn Disk> = Arc::new(NullDisk);
    let keys: Vec<[u8; 8]> = (0..10u64).map(u64::to_le_bytes).collect();
    let writes = |to: &mut WritesEncoder<'_>| {
        keys.iter().try_for_each(|key| to.patch(1, 0, key, &[PatchRange { offset: 8, bytes: key }]))
    };
    let encode_only = {
        let mut buf = Vec::with_capacity(1 << 20);
        let mut figures = Vec::new();
        for _ in 0..RUNS {
            let begin = thread_cpu_ns();
            for _ in 0..1_000_000 {
                if buf.len() > 1 << 19 {
                    buf.clear();
                }
                writes(&mut WritesEncoder::new(&mut buf)).expect("encodes");
            }
            figures.push((thread_cpu_ns() - begin) as f64 / 1e6);
        }
        best_and_median(figures, true)
    };
    println!(
        "encode 10 patches only:           {:6.1} ns best, {:6.1} ns median",
        encode_only.0, encode_only.1
    );
    for (name, other) in [("closed", false), ("of an open log", true)] {
        let journal = open(&disk, Durability::Relaxed, 1, 2);
        let mut figures = Vec::new();
        for _ in 0..RUNS {
            let mut touched = [Stamp::NONE; 10];
            let begin = thread_cpu_ns();
            for n in 0..1_000_000 {
                if other && n % 10 == 0 {
                    touched[n / 10 % 10] = append(&*journal, 1, &[], &|to| to.delete(1, 0, b"k"));
                }
                append(&*journal, 0, &touched, &writes);
            }
            figures.push((thread_cpu_ns() - begin) as f64 / 1e6);
        }
        let (best, median) = best_and_median(figures, true);
        println!("append 10 patches, stamps {name:14} {best:6.1} ns best, {median:6.1} ns median");
    }
}

/// The device's own bandwidth: large direct writes into an allocated file.
fn raw_bandwidth(disk: &dyn Disk, clock: &dyn Clock, seconds: f64) -> f64 {
    let path = Path::new("raw");
    let file = disk.open(path, OpenMode::CreateNew, Caching::Direct).expect("creates");
    let total: u64 = 1 << 30;
    file.allocate(total).expect("allocates");
    let block = AlignedBuf::zeroed(4 << 20);
    let (begin, mut bytes) = (clock.monotonic_ns(), 0u64);
    while clock.monotonic_ns() - begin < (seconds * 1e9) as u64 {
        file.write_at(&block, bytes % total).expect("writes");
        bytes += block.len() as u64;
    }
    file.sync().expect("flushes");
    let mb_per_s = bytes as f64 / 1e6 / ((clock.monotonic_ns() - begin) as f64 / 1e9);
    disk.remove(path).expect("removes");
    mb_per_s
}

/// Relaxed appends of whole values (10 × 100 bytes) as fast as the disk takes them.
fn sustained(
    disk: &Arc<dyn Disk>,
    clock: &dyn Clock,
    writers: u8,
    incarnation: u32,
    seconds: f64,
) -> f64 {
    let journal = open(disk, Durability::Relaxed, incarnation, writers);
    let value = [7u8; 100];
    let begin = clock.monotonic_ns();
    let worker = |log: u8| {
        let journal = &journal;
        move || {
            let mut epoch = 1;
            let mut appended = 0u64;
            while clock.monotonic_ns() - begin < (seconds * 1e9) as u64 {
                for n in 0..1000u64 {
                    let body = |to: &mut Vec<u8>| {
                        let mut to = WritesEncoder::new(to);
                        (0..10u64).try_for_each(|k| to.put(1, 0, &(n + k).to_le_bytes(), 0, &value))
                    };
                    let kind = RecordKind::Writes;
                    let entry = Entry { kind, epoch, touched: &[Stamp::NONE; 10], body: &body };
                    append_entry(&**journal, log, &entry);
                }
                // Segments are freed every 256 MiB, as checkpoints would free them.
                appended += 1_250_000;
                if appended > 256 << 20 {
                    appended = 0;
                    epoch += 1;
                    let positions = journal.positions_before_epoch(epoch - 1);
                    let hold = Hold { holder: "checkpoint", floor: 0, positions };
                    journal.hold(hold).expect("frees");
                }
            }
        }
    };
    in_parallel("writer", (0..writers).map(worker).collect()).expect("no panic");
    journal.close().expect("closes");
    let elapsed = (clock.monotonic_ns() - begin) as f64 / 1e9;
    let stats = journal.stats();
    drop(journal);
    disk.remove("log".as_ref()).expect("removes");
    stats.written_bytes as f64 / 1e6 / elapsed
}

/// Strict commits, `group` per flush, from one session.
fn strict(disk: &Arc<dyn Disk>, clock: &dyn Clock, group: usize, incarnation: u32, seconds: f64) {
    let journal = open(disk, Durability::Strict, incarnation, 1);
    let mut flushes_ns = Vec::new();
    let begin = clock.monotonic_ns();
    while clock.monotonic_ns() - begin < (seconds * 1e9) as u64 {
        for _ in 0..group {
            append(&*journal, 0, &[], &|to| to.put(1, 0, b"key-0001", 0, &[1; 100]));
        }
        let before = clock.monotonic_ns();
        journal.flush(0).expect("flushes");
        flushes_ns.push(clock.monotonic_ns() - before);
    }
    let elapsed = (clock.monotonic_ns() - begin) as f64 / 1e9;
    flushes_ns.sort_unstable();
    let at = |share: f64| flushes_ns[((flushes_ns.len() - 1) as f64 * share) as usize] as f64 / 1e3;
    println!(
        "strict, {group:2} per flush: {:9.0} commits/s, flush p50 {:6.0} µs, p99 {:6.0} µs",
        (flushes_ns.len() * group) as f64 / elapsed,
        at(0.5),
        at(0.99)
    );
    journal.close().expect("closes");
    drop(journal);
    disk.remove("log".as_ref()).expect("removes");
}

/// Recovery's part: scanning and replaying 512 MB of patches, two logs, two threads.
fn read_back(disk: &Arc<dyn Disk>, clock: &dyn Clock) {
    let journal = open(disk, Durability::Relaxed, 1, 2);
    let keys: Vec<[u8; 8]> = (0..10u64).map(u64::to_le_bytes).collect();
    let commits = 1_700_000u32;
    for n in 0..commits {
        let writes = |to: &mut WritesEncoder<'_>| {
            keys.iter()
                .try_for_each(|key| to.patch(1, 0, key, &[PatchRange { offset: 8, bytes: key }]))
        };
        append(&*journal, (n % 2) as u8, &[], &writes);
    }
    journal.close().expect("closes");
    drop(journal);
    let entry = IncarnationEntry {
        number: 1,
        gsn_floor: 0,
        logs: 2,
        cut: None,
        calls: false,
        tails: Vec::new(),
        scheme: None,
    };
    let start = ReplayStart::default();
    let input = ScanInput {
        store: STORE,
        incarnations: &[entry],
        clean_shutdown: None,
        next_epoch: u64::MAX,
        start: &start,
        threads: 2,
        progress: &|_, _| (),
    };
    let begin = clock.monotonic_ns();
    let logs = scan(disk, &input).expect("sound");
    let scanned = clock.monotonic_ns();
    let options = ReplayOptions::new(2, 32 << 20, 2);
    let partition_of = |_: u16, key: &[u8]| usize::from(key[0]) % 2;
    let mut replay = logs.replay(options, &partition_of);
    let mut records = 0;
    while let Some(round) = replay.next_round().expect("sound") {
        records += round.records();
        let merge = |partition| {
            let round = &round;
            move || round.partition(partition).map(|write| write.gsn & 1).sum::<u64>()
        };
        in_parallel("merge", (0..2).map(merge).collect()).expect("no panic");
    }
    assert_eq!(records, u64::from(commits));
    let replayed = clock.monotonic_ns();
    let megabytes = logs.replay_bytes() as f64 / 1e6;
    let rate = |from: u64, to: u64| megabytes / ((to - from) as f64 / 1e9);
    println!(
        "read back {megabytes:.0} MB of patches: scan {:.0} MB/s, decode and merge {:.0} MB/s",
        rate(begin, scanned),
        rate(scanned, replayed)
    );
    disk.remove("log".as_ref()).expect("removes");
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let parent = arguments.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let seconds: f64 = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(2.0);
    append_cost();
    let dir = tempfile::tempdir_in(&parent).expect("a directory on the device");
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::new(dir.path()).expect("a disk"));
    let clock = RealClock;
    for group in [1, 16] {
        strict(&disk, &clock, group, 1, seconds);
    }
    read_back(&disk, &clock);
    for writers in [1, 2] {
        let mut ratios = Vec::new();
        for _ in 0..RUNS {
            let raw = raw_bandwidth(&*disk, &clock, seconds);
            let ours = sustained(&disk, &clock, writers, 1, seconds);
            println!("relaxed, {writers} writers: {ours:6.0} MB/s, device {raw:6.0} MB/s");
            ratios.push(ours / raw);
        }
        let (best, median) = best_and_median(ratios, false);
        println!("relaxed, {writers} writers: ratio {best:.2} best, {median:.2} median");
    }
}
