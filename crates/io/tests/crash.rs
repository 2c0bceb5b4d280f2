//! Tests of the simulated disk's states after a power loss, or after the death of the process.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use stillpoint_io::{
    Caching, Disk, DiskFile, Fault, OpenMode, Rng, SeededRng, SimDisk, Tearing, read_all,
    write_file_durably,
};

const SECTOR: usize = 512;
const ROOT: &str = "";

fn create(disk: &SimDisk, path: &str) -> Arc<dyn DiskFile> {
    disk.open(Path::new(path), OpenMode::CreateNew, Caching::Buffered).expect("a free name")
}

/// A file whose name and contents are durable.
fn create_durably(disk: &SimDisk, path: &str, bytes: &[u8]) -> Arc<dyn DiskFile> {
    let file = create(disk, path);
    file.write_at(bytes, 0).expect("write");
    file.sync().expect("flush");
    disk.sync_dir(Path::new(path).parent().expect("a parent")).expect("flush names");
    file
}

fn bytes_of(disk: &SimDisk, path: &str) -> Vec<u8> {
    read_all(disk, Path::new(path)).expect("a file")
}

/// The bytes of sector `number`, zeros beyond the end.
fn sector(bytes: &[u8], number: usize) -> [u8; SECTOR] {
    let mut sector = [0; SECTOR];
    let from = (number * SECTOR).min(bytes.len());
    let to = (from + SECTOR).min(bytes.len());
    sector[..to - from].copy_from_slice(&bytes[from..to]);
    sector
}

/// The test's model of a file: its states since the last flush.
struct History {
    /// The first state is durable, the last is the present one.
    versions: Vec<Vec<u8>>,
    /// Sectors that a write has touched since the flush.
    written: BTreeSet<usize>,
}

impl History {
    /// Returns a complaint if no power loss may leave `found`.
    fn check(&self, found: &[u8], tearing: Tearing, context: &str) {
        let lens: BTreeSet<usize> = self.versions.iter().map(Vec::len).collect();
        assert!(lens.contains(&found.len()), "{context}: length {} of {lens:?}", found.len());
        for number in 0..found.len().div_ceil(SECTOR) {
            let torn_allowed = tearing != Tearing::Never && self.written.contains(&number);
            let allowed = self.versions.iter().any(|version| {
                let cut = &version[..version.len().min(found.len())];
                sector(cut, number) == sector(found, number)
            });
            assert!(allowed || torn_allowed, "{context}: sector {number} was never so");
            if tearing == Tearing::ChangedBytes {
                self.check_unchanged_bytes(found, number, context);
            }
        }
    }

    fn check_unchanged_bytes(&self, found: &[u8], number: usize, context: &str) {
        let first = sector(&self.versions[0], number);
        let versions: Vec<_> = self.versions.iter().map(|v| sector(v, number)).collect();
        let end = found.len().saturating_sub(number * SECTOR).min(SECTOR);
        for at in 0..end {
            if versions.iter().all(|version| version[at] == first[at]) {
                let byte = found[number * SECTOR + at];
                assert_eq!(byte, first[at], "{context}: sector {number} byte {at} changed");
            }
        }
    }
}

/// Makes random writes, cuts and flushes of one file. Returns the disk at a random moment.
fn random_run(rng: &SeededRng, tearing: Tearing) -> (SimDisk, History) {
    let disk = SimDisk::new(rng.next_u64());
    disk.set_tearing(tearing);
    let file = create_durably(&disk, "f", b"");
    let mut history = History { versions: vec![Vec::new()], written: BTreeSet::new() };
    for step in 0..rng.below(25) {
        let mut bytes = history.versions.last().expect("never empty").clone();
        match rng.below(8) {
            0 => {
                file.sync().expect("flush");
                history = History { versions: vec![bytes], written: BTreeSet::new() };
                continue;
            }
            1 => {
                let len = rng.below(20_000) as usize;
                file.set_len(len as u64).expect("set length");
                bytes.resize(len, 0);
            }
            2 => {
                let len = rng.below(20_000) as usize;
                file.allocate(len as u64).expect("reserve");
                bytes.resize(len.max(bytes.len()), 0);
            }
            _ => {
                let (at, len) = (rng.below(16_000) as usize, 1 + rng.below(6_000) as usize);
                let fill = vec![step as u8 + 1; len];
                file.write_at(&fill, at as u64).expect("write");
                bytes.resize(bytes.len().max(at + len), 0);
                bytes[at..at + len].copy_from_slice(&fill);
                history.written.extend(at / SECTOR..(at + len).div_ceil(SECTOR));
            }
        }
        history.versions.push(bytes);
    }
    (disk, history)
}

#[test]
fn a_power_loss_leaves_only_what_was_written_and_all_that_was_flushed() {
    for tearing in [Tearing::Never, Tearing::ChangedBytes, Tearing::Garbage] {
        for seed in 0..400 {
            let (disk, history) = random_run(&SeededRng::new(seed), tearing);
            let now = history.versions.last().expect("never empty");
            for crash_seed in 0..8 {
                let context = format!("{tearing:?}, run {seed}, crash {crash_seed}");
                let image = disk.crash_image(crash_seed);
                let found = bytes_of(&image, "f");
                history.check(&found, tearing, &context);
                assert_zeros_beyond(&image, found.len(), &context);
                // The process dies first, and the power fails before the next process flushes.
                let image = disk.crash_image(seed).kill();
                assert_eq!(bytes_of(&image, "f"), bytes_of(&disk.crash_image(seed), "f"));
            }
            let killed = disk.kill();
            assert_eq!(&bytes_of(&killed, "f"), now, "run {seed}: a kill loses nothing");
            for crash_seed in 0..4 {
                let context = format!("{tearing:?}, run {seed}, kill, crash {crash_seed}");
                history.check(&bytes_of(&killed.crash(crash_seed), "f"), tearing, &context);
            }
        }
    }
}

/// Bytes that a crash cut off do not come back when the file grows again.
fn assert_zeros_beyond(disk: &SimDisk, len: usize, context: &str) {
    let file = disk.open(Path::new("f"), OpenMode::ReadWrite, Caching::Buffered).expect("open");
    file.set_len(30_000).expect("grow");
    let grown = bytes_of(disk, "f");
    assert!(grown[len..].iter().all(|byte| *byte == 0), "{context}: {len} bytes, then no zeros");
}

#[test]
fn what_is_found_after_a_crash_is_durable() {
    for seed in 0..200 {
        let (disk, _) = random_run(&SeededRng::new(seed), Tearing::Garbage);
        let first = disk.crash(seed);
        let found = bytes_of(&first, "f");
        assert_eq!((first.unflushed_sectors(), first.unflushed_names()), (0, 0));
        for second in 0..4 {
            assert_eq!(bytes_of(&first.crash(second), "f"), found, "run {seed}");
        }
    }
}

#[test]
fn unflushed_sectors_are_lost_kept_reordered_overtaken_and_torn() {
    let disk = SimDisk::new(0);
    let file = create_durably(&disk, "f", &[1; 3 * SECTOR]);
    file.write_at(&[2; SECTOR], 0).expect("write");
    file.write_at(&[3; SECTOR], 0).expect("write");
    file.write_at(&[4; SECTOR], SECTOR as u64).expect("write");
    let mut seen = BTreeMap::new();
    for seed in 0..2_000 {
        let bytes = bytes_of(&disk.crash_image(seed), "f");
        assert_eq!(sector(&bytes, 2), [1; SECTOR], "nobody wrote to this one");
        let value = |number| {
            let sector = sector(&bytes, number);
            if sector.iter().all(|byte| *byte == sector[0]) { sector[0] } else { u8::MAX }
        };
        *seen.entry((value(0), value(1))).or_insert(0) += 1;
    }
    for (what, values) in [
        ("nothing", (1, 1)),
        ("everything", (3, 4)),
        ("the first alone", (3, 1)),
        ("the second alone", (1, 4)),
        ("a value between", (2, 1)),
        ("a torn sector", (u8::MAX, 4)),
    ] {
        assert!(seen.contains_key(&values), "{what} never came: {seen:?}");
    }
}

#[test]
fn every_sector_that_a_ragged_write_touches_is_in_doubt() {
    let disk = SimDisk::new(0);
    disk.set_tearing(Tearing::Never);
    let file = create_durably(&disk, "f", &[1; 4 * SECTOR]);
    // The last byte of one sector, a whole one, and the first byte of a third.
    file.write_at(&[2; SECTOR + 2], SECTOR as u64 - 1).expect("write");
    assert_eq!(disk.unflushed_sectors(), 3);
    let mut found = BTreeSet::new();
    for after in disk.crash_states(0..400) {
        let bytes = bytes_of(&after, "f");
        found.insert((bytes[SECTOR - 1], bytes[SECTOR], bytes[2 * SECTOR]));
        assert_eq!((bytes[0], bytes[2 * SECTOR + 1], bytes[3 * SECTOR]), (1, 1, 1));
    }
    assert_eq!(found.len(), 8, "each of the three for itself: {found:?}");
}

#[test]
fn a_length_is_either_way_until_flushed() {
    let disk = SimDisk::new(0);
    let whole = [1; 10_000];
    let file = create_durably(&disk, "f", &whole);
    file.set_len(10).expect("set length");
    file.set_len(20_000).expect("set length");
    let mut found = BTreeMap::new();
    for after in disk.crash_states(0..400) {
        let bytes = bytes_of(&after, "f");
        let uncut = bytes == whole;
        *found.entry(bytes.len()).or_insert(false) |= uncut;
    }
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), [10, 10_000, 20_000]);
    assert!(found[&10_000], "the cut may be undone whole");
}

/// Names of a directory with the contents of the files behind them.
type Listing = BTreeMap<String, Vec<u8>>;

fn listing(disk: &SimDisk, directory: &str) -> Listing {
    let names = disk.list(Path::new(directory)).expect("a directory");
    let with_bytes = |name: String| {
        let bytes = read_all(disk, &Path::new(directory).join(&name)).expect("a file");
        (name, bytes)
    };
    names.into_iter().map(with_bytes).collect()
}

#[test]
fn of_unflushed_names_a_prefix_is_left() {
    for seed in 0..200 {
        let rng = SeededRng::new(seed);
        let disk = SimDisk::new(seed);
        let mut states = vec![Listing::new()];
        for step in 0..12u8 {
            let (one, other) = (rng.below(3).to_string(), rng.below(3).to_string());
            match rng.below(5) {
                0 => {
                    disk.sync_dir(Path::new(ROOT)).expect("flush names");
                    states.clear();
                }
                1 => disk.remove(Path::new(&one)).expect("remove"),
                2 if disk.exists(Path::new(&one)).expect("alive") => {
                    disk.rename(Path::new(&one), Path::new(&other)).expect("rename");
                }
                _ if !disk.exists(Path::new(&one)).expect("alive") => {
                    let file = create(&disk, &one);
                    // The file is flushed and its name is not, so the name decides whether a crash
                    // loses the file.
                    file.write_at(&[step], 0).expect("write");
                    file.sync().expect("flush");
                }
                _ => {}
            }
            states.push(listing(&disk, ROOT));
        }
        let mut found = BTreeSet::new();
        for crash_seed in 0..300 {
            let after = listing(&disk.crash_image(crash_seed), ROOT);
            assert!(states.contains(&after), "run {seed}, crash {crash_seed}: {after:?}");
            found.insert(after);
        }
        let possible: BTreeSet<Listing> = states.into_iter().collect();
        assert_eq!(found, possible, "run {seed}: every prefix comes up");
    }
}

#[test]
fn a_rename_between_directories_is_whole() {
    for flushed in [None, Some("from"), Some("to")] {
        let disk = SimDisk::new(0);
        for directory in ["from", "to"] {
            disk.create_dir_all(Path::new(directory)).expect("create");
        }
        disk.sync_dir(Path::new(ROOT)).expect("flush names");
        create_durably(&disk, "to/x", b"old");
        create_durably(&disk, "from/x", b"new");
        disk.rename(Path::new("from/x"), Path::new("to/x")).expect("rename");
        disk.remove(Path::new("from/gone")).expect("missing is no error");
        if let Some(directory) = flushed {
            disk.sync_dir(Path::new(directory)).expect("flush names");
        }
        let mut outcomes = BTreeSet::new();
        for after in disk.crash_states(0..200) {
            let (from, to) = (listing(&after, "from"), listing(&after, "to"));
            let replaced = to["x"] == b"new";
            assert!(replaced || to["x"] == b"old");
            assert_eq!(from.is_empty(), replaced, "in exactly one of the two");
            outcomes.insert(replaced);
        }
        let expected = if flushed.is_some() { vec![true] } else { vec![false, true] };
        assert_eq!(outcomes, expected.into_iter().collect(), "flushed: {flushed:?}");
    }
}

/// The test's model of a change of names: of file number `file`, in one or two directories.
#[derive(Clone)]
struct NameChange {
    file: u8,
    from: Option<(usize, String)>,
    to: Option<(usize, String)>,
}

impl NameChange {
    fn concerns(&self, directory: usize) -> bool {
        let here =
            |place: &Option<(usize, String)>| place.as_ref().is_some_and(|p| p.0 == directory);
        here(&self.from) || here(&self.to)
    }

    fn apply(&self, listings: &mut [Listing; 2]) {
        if let Some((directory, name)) = &self.from {
            listings[*directory].remove(name);
        }
        if let Some((directory, name)) = &self.to {
            listings[*directory].insert(name.clone(), vec![self.file]);
        }
    }
}

/// Every state of two directories that keeps a prefix of each one's changes. A change of both is
/// kept as a whole or not at all.
fn possible_listings(start: &[Listing; 2], changes: &[NameChange]) -> BTreeSet<[Listing; 2]> {
    let count = |directory| changes.iter().filter(|c| c.concerns(directory)).count();
    let mut possible = BTreeSet::new();
    for first in 0..=count(0) {
        for second in 0..=count(1) {
            let (mut left, mut listings) = ([first, second], start.clone());
            let consistent = changes.iter().all(|change| {
                let concerned: Vec<usize> = (0..2).filter(|d| change.concerns(*d)).collect();
                let kept = concerned.iter().filter(|d| left[**d] > 0).count();
                if kept == concerned.len() {
                    change.apply(&mut listings);
                }
                concerned.iter().for_each(|d| left[*d] = left[*d].saturating_sub(1));
                kept == 0 || kept == concerned.len()
            });
            if consistent {
                possible.insert(listings);
            }
        }
    }
    possible
}

#[test]
fn of_two_directories_consistent_prefixes_are_left() {
    const DIRECTORIES: [&str; 2] = ["0", "1"];
    let mut compared = 0;
    for seed in 0..300 {
        let rng = SeededRng::new(seed);
        let disk = SimDisk::new(seed);
        for directory in DIRECTORIES {
            disk.create_dir_all(Path::new(directory)).expect("create");
        }
        disk.sync_dir(Path::new(ROOT)).expect("flush names");
        let mut changes: Vec<NameChange> = Vec::new();
        for file in 0..9u8 {
            let draw = || (rng.below(2) as usize, rng.below(2).to_string());
            let ((from, from_name), (to, to_name)) = (draw(), draw());
            let path = |directory: usize, name: &str| format!("{}/{name}", DIRECTORIES[directory]);
            let (from_path, to_path) = (path(from, &from_name), path(to, &to_name));
            if disk.exists(Path::new(&from_path)).expect("alive") {
                if from_path == to_path {
                    disk.remove(Path::new(&from_path)).expect("remove");
                    changes.push(NameChange { file, from: Some((from, from_name)), to: None });
                } else {
                    let moved = bytes_of(&disk, &from_path)[0];
                    disk.rename(Path::new(&from_path), Path::new(&to_path)).expect("rename");
                    let (from, to) = (Some((from, from_name)), Some((to, to_name)));
                    changes.push(NameChange { file: moved, from, to });
                }
            } else {
                let handle = create(&disk, &from_path);
                handle.write_at(&[file], 0).expect("write");
                handle.sync().expect("flush");
                changes.push(NameChange { file, from: None, to: Some((from, from_name)) });
            }
        }
        let possible = possible_listings(&Default::default(), &changes);
        let flushed = rng.below(3) as usize;
        if let Some(directory) = DIRECTORIES.get(flushed) {
            disk.sync_dir(Path::new(directory)).expect("flush names");
        }
        let now = DIRECTORIES.map(|directory| listing(&disk, directory));
        for crash_seed in 0..40 {
            let image = disk.crash_image(crash_seed);
            let found = DIRECTORIES.map(|directory| listing(&image, directory));
            assert!(possible.contains(&found), "run {seed}, crash {crash_seed}: {found:?}");
            if flushed < DIRECTORIES.len() {
                assert_eq!(found[flushed], now[flushed], "run {seed}: flushed names stay");
                compared += 1;
            }
        }
    }
    assert!(compared > 1_000, "{compared}");
}

#[test]
fn a_directory_without_a_flushed_name_takes_its_files_along() {
    let disk = SimDisk::new(0);
    disk.create_dir_all(Path::new("a/b")).expect("create");
    create_durably(&disk, "a/b/f", b"kept?");
    disk.sync_dir(Path::new("a")).expect("flush names");
    let there = |disk: &SimDisk| disk.exists(Path::new("a/b/f")).expect("alive");
    let outcomes: BTreeSet<bool> = (0..100).map(|seed| there(&disk.crash_image(seed))).collect();
    assert_eq!(outcomes, BTreeSet::from([false, true]), "`a` itself was never flushed");
    disk.sync_dir(Path::new(ROOT)).expect("flush names");
    assert!(disk.crash_states(0..100).all(|after| there(&after)));
}

#[test]
fn a_removed_file_may_come_back_whole() {
    let disk = SimDisk::new(0);
    create_durably(&disk, "d", b"bytes");
    disk.remove(Path::new("d")).expect("remove");
    let mut outcomes = BTreeSet::new();
    for after in disk.crash_states(0..100) {
        let there = after.exists(Path::new("d")).expect("alive");
        assert!(!there || bytes_of(&after, "d") == b"bytes");
        outcomes.insert(there);
    }
    assert_eq!(outcomes, BTreeSet::from([false, true]));
}

#[test]
fn handles_of_a_dead_machine_touch_nothing() {
    let disk = SimDisk::new(0);
    let file = create_durably(&disk, "f", b"before");
    let lock = disk.lock(Path::new("LOCK")).expect("lock").expect("free");
    let after = disk.crash(1);
    let error = file.write_at(b"after!", 0).expect_err("no power");
    assert_eq!(error.to_string(), "write 6 bytes at 0 of /sim/f: the machine has lost power");
    assert!(file.sync().is_err() && file.len().is_err() && disk.list(Path::new(ROOT)).is_err());
    assert!(disk.is_dead() && !after.is_dead());
    assert_eq!(bytes_of(&after, "f"), b"before");
    // The stopped machine's lock does not block the new machine. The drop of the old lock does not
    // release the new machine's lock.
    let new_lock = after.lock(Path::new("LOCK")).expect("lock").expect("free");
    drop(lock);
    assert!(after.lock(Path::new("LOCK")).expect("lock").is_none());
    drop(new_lock);

    let file = after.open(Path::new("f"), OpenMode::ReadWrite, Caching::Buffered).expect("open");
    let next = after.kill();
    let error = file.write_at(b"x", 0).expect_err("dead");
    assert_eq!(error.to_string(), "write 1 bytes at 0 of /sim/f: the process has been killed");
    assert!(next.lock(Path::new("LOCK")).expect("lock").is_some());
}

#[test]
fn the_death_of_the_process_makes_nothing_durable() {
    let disk = SimDisk::new(0);
    let file = create_durably(&disk, "f", &[1; SECTOR]);
    file.write_at(&[2; SECTOR], 0).expect("write");
    create(&disk, "g");
    let next = disk.kill();
    assert!(next.exists(Path::new("g")).expect("alive"));
    assert_eq!((next.unflushed_sectors(), next.unflushed_names()), (1, 1));
    let mut found = BTreeSet::new();
    for seed in 0..100 {
        let after = next.crash_image(seed);
        found.insert((bytes_of(&after, "f")[0] == 1, after.exists(Path::new("g")).expect("alive")));
    }
    assert_eq!(found.len(), 4, "{found:?}");
    let file = next.open(Path::new("f"), OpenMode::ReadWrite, Caching::Buffered).expect("open");
    file.sync().expect("the next process can flush it");
    next.sync_dir(Path::new(ROOT)).expect("flush names");
    for after in next.crash_states(0..100) {
        assert_eq!(bytes_of(&after, "f"), [2; SECTOR]);
        assert!(after.exists(Path::new("g")).expect("alive"));
    }
}

#[test]
fn a_second_process_cannot_flush_what_a_failed_flush_forgot() {
    let disk = SimDisk::new(0);
    let file = create_durably(&disk, "f", &[1; SECTOR]);
    file.write_at(&[2; SECTOR], 0).expect("write");
    disk.fail_at(1, Fault::InputOutput);
    file.sync().expect_err("injected");
    let next = disk.kill();
    let file = next.open(Path::new("f"), OpenMode::ReadWrite, Caching::Buffered).expect("open");
    assert_eq!(bytes_of(&next, "f"), [2; SECTOR], "the page cache still shows it");
    file.sync().expect("the new process knows of no failure");
    let found: BTreeSet<u8> =
        (0..300).map(|seed| bytes_of(&next.crash_image(seed), "f")[0]).collect();
    assert!(found.contains(&1) && found.contains(&2), "{found:?}");
    // After another write and flush the file is durable.
    file.write_at(&[3; SECTOR], 0).expect("write");
    file.sync().expect("flush");
    assert!(next.crash_states(0..300).all(|after| bytes_of(&after, "f") == [3; SECTOR]));
}

#[test]
fn a_flush_reaches_the_sectors_beside_a_forgotten_one() {
    let disk = SimDisk::new(0);
    let file = create_durably(&disk, "f", &[1; 2 * SECTOR]);
    file.write_at(&[2; SECTOR], 0).expect("write");
    disk.fail_at(1, Fault::InputOutput);
    file.sync().expect_err("injected");
    let next = disk.kill();
    let file = next.open(Path::new("f"), OpenMode::ReadWrite, Caching::Buffered).expect("open");
    file.write_at(&[3; SECTOR], SECTOR as u64).expect("write");
    file.sync().expect("flush");
    for seed in 0..100 {
        let after = next.crash_image(seed);
        assert_eq!(sector(&bytes_of(&after, "f"), 1), [3; SECTOR]);
    }
    next.set_tearing(Tearing::Never);
    file.write_at(&[4; SECTOR], SECTOR as u64).expect("write");
    let found: BTreeSet<u8> =
        next.crash_states(0..200).map(|after| bytes_of(&after, "f")[SECTOR]).collect();
    assert_eq!(found, BTreeSet::from([3, 4]), "the old value is the flushed one");
}

#[test]
fn replacing_a_file_survives_a_power_loss_at_every_call() {
    let path = Path::new("d/MANIFEST");
    let prepare = |seed| {
        let disk = SimDisk::new(seed);
        disk.create_dir_all(Path::new("d")).expect("create");
        disk.sync_dir(Path::new(ROOT)).expect("flush names");
        write_file_durably(&disk, path, &[1; 5_000]).expect("first version");
        disk
    };
    let disk = prepare(0);
    let before = disk.call_counts().changes();
    write_file_durably(&disk, path, &[2; 7_000]).expect("second version");
    let sites = disk.call_counts().changes() - before;
    assert_eq!(sites, 6, "remove, create, write, flush, rename, flush names");
    let mut outcomes = BTreeSet::new();
    for site in 1..=sites + 1 {
        for seed in 0..100 {
            let disk = prepare(seed);
            disk.fail_at(site, Fault::PowerLoss);
            let acknowledged = write_file_durably(&disk, path, &[2; 7_000]).is_ok();
            assert_eq!(acknowledged, site > sites);
            let after = disk.crash(seed);
            let found = bytes_of(&after, "d/MANIFEST");
            let new = found == [2; 7_000];
            assert!(new || found == [1; 5_000], "site {site}, seed {seed}: neither old nor new");
            assert!(new || !acknowledged, "seed {seed}: acknowledged and lost");
            outcomes.insert((site, new));
            // A file left by an earlier attempt is no obstacle.
            write_file_durably(&after, path, b"third").expect("third version");
            assert_eq!(bytes_of(&after.crash(seed), "d/MANIFEST"), b"third");
        }
    }
    assert!(outcomes.contains(&(6, false)) && outcomes.contains(&(6, true)), "{outcomes:?}");
}
