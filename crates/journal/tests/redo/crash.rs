//! Tests with crashes at random moments, over several incarnations. Acknowledged records are
//! recovered, the recovered set is closed under dependencies, and dropped records stay dropped.

use std::collections::BTreeSet;

use stillpoint_format::manifest::IncarnationEntry;
use stillpoint_format::{LogGsn, Stamp};
use stillpoint_io::{Disk, Fault, Rng, SeededRng, SimDisk};
use stillpoint_journal::{Config, Hold, Journal, JournalError, ReplayStart};

use crate::support::{World, entry, open, scan_with, small};

/// Contents of the manifest.
struct Manifest {
    incarnations: Vec<IncarnationEntry>,
    start: ReplayStart,
    epoch: u64,
}

/// One run of a store between two crashes.
struct Run<'a> {
    rng: &'a SeededRng,
    journal: &'a dyn Journal,
    logs: u64,
    world: &'a mut World,
    manifest: &'a mut Manifest,
    acknowledged: &'a mut BTreeSet<Stamp>,
    /// Stamps of commits and reads that are answered once they are closed.
    waiting: Vec<Vec<Stamp>>,
}

impl Run<'_> {
    /// Random steps until the steps are over or the machine dies.
    fn go(&mut self, steps: u64) -> Result<(), JournalError> {
        for _ in 0..steps {
            match self.rng.below(20) {
                0 => self.journal.flush(self.rng.below(self.logs) as u8).map(drop)?,
                1 => self.journal.flush_all()?,
                2 => {
                    if let Some(stamps) = self.waiting.pop() {
                        self.journal.make_closed(&stamps)?;
                        assert!(stamps.iter().all(|&stamp| self.journal.is_closed(stamp)));
                        self.acknowledged.extend(stamps);
                    }
                }
                3 if self.rng.below(4) == 0 => self.checkpoint()?,
                4 => self.answer(),
                5 => {
                    // A read, whose answer depends on the read values.
                    let key = self.rng.below(12) as u8;
                    self.waiting.extend(self.world.cells.get(&key).map(|cell| vec![cell.1]));
                }
                _ => self.commit()?,
            }
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), JournalError> {
        let keys = |most| -> Vec<u8> {
            let count = self.rng.below(most);
            let keys: BTreeSet<u8> = (0..count).map(|_| self.rng.below(12) as u8).collect();
            keys.into_iter().collect()
        };
        let (reads, mut writes) = (keys(3), keys(4));
        writes.push(12 + self.rng.below(3) as u8);
        let size = [3, 40, 1000, 5000, 9000][self.rng.below(5) as usize];
        let value = vec![self.rng.below(256) as u8; size as usize];
        let log = self.rng.below(self.logs) as u8;
        let epoch = self.manifest.epoch;
        let stamp = self.world.transact(self.journal, log, epoch, &reads, &writes, &value)?;
        self.waiting.push(vec![stamp]);
        Ok(())
    }

    /// Sends the answers whose stamps are closed.
    fn answer(&mut self) {
        let journal = self.journal;
        self.waiting.retain(|stamps| {
            let closed = stamps.iter().all(|&stamp| journal.is_closed(stamp));
            if closed {
                self.acknowledged.extend(stamps);
            }
            !closed
        });
    }

    fn checkpoint(&mut self) -> Result<(), JournalError> {
        self.manifest.epoch += 1;
        let epoch = self.manifest.epoch;
        let positions = self.journal.positions_before_epoch(epoch);
        self.journal.flush_all()?;
        let floor = self.manifest.incarnations.last().expect("open").gsn_floor;
        self.manifest.start = ReplayStart { epoch, floor, positions, ..ReplayStart::default() };
        let positions = self.manifest.start.positions.clone();
        self.journal.hold(Hold { holder: "checkpoint", floor, positions })
    }
}

/// Crashes, recovers and goes on, `incarnations` times.
fn live(seed: u64, incarnations: u32) {
    let rng = SeededRng::new(seed);
    let mut disk = SimDisk::new(rng.next_u64());
    let mut world = World::default();
    let mut acknowledged = BTreeSet::new();
    let mut manifest =
        Manifest { incarnations: Vec::new(), start: ReplayStart::default(), epoch: 1 };
    let (mut floor, mut earlier) = (0, Vec::new());
    for number in 1..=incarnations {
        // The number of logs may differ from the last run.
        let logs = 1 + rng.below(4);
        let config = Config { earlier: earlier.clone(), ..small(number, floor, logs as u8) };
        if rng.below(4) == 0 {
            // A crash comes during the opening of the next incarnation, before the manifest names
            // it.
            disk.fail_at(1 + rng.below(20), Fault::PowerLoss);
            let redo = stillpoint_journal::registry::REGISTRY.find("redo").expect("listed");
            let _ = (redo.open)(&crate::support::environment(&disk), &config);
            disk = disk.crash(rng.next_u64());
        }
        let journal = open(&disk, &config);
        manifest.incarnations.push(entry(number, floor, None));
        if rng.below(3) == 0 {
            disk.fail_at(1 + rng.below(150), Fault::PowerLoss);
        }
        let mut run = Run {
            rng: &rng,
            journal: &*journal,
            logs,
            world: &mut world,
            manifest: &mut manifest,
            acknowledged: &mut acknowledged,
            waiting: Vec::new(),
        };
        let ended = run.go(20 + rng.below(200));
        assert!(ended.is_ok() || disk.is_dead(), "seed {seed}: {ended:?}");
        run.answer();
        drop(journal);
        let next_epoch = manifest.epoch + 1;
        for other in 0..3 {
            let context = format!("seed {seed}, incarnation {number}, crash {other}");
            let after = disk.crash(rng.next_u64());
            let known = &manifest.incarnations;
            let found = scan_with(&after, known, &manifest.start, Some(logs as u8));
            let found = found.unwrap_or_else(|error| panic!("{context}: {error}"));
            let recovered = world.check(&context, &found, &acknowledged, &manifest.start, known);
            if other == 2 {
                floor = found.gsn_max();
                let ends = found.copy_ends(number + 1, 0).expect("copies");
                let latest = manifest.incarnations.last_mut().expect("open");
                (latest.cut, latest.tails) = (Some(found.cut()), ends.tails.clone());
                found.trim(number + 1, &ends).expect("trims");
                earlier = ends.segments;
                // Cells of the recovered store may carry their old stamps.
                world = recovered;
                disk = after;
            }
        }
        manifest.epoch = next_epoch;
    }
}

#[test]
fn crashes_lose_nothing_acknowledged_and_leave_no_holes() {
    // STILLPOINT_CRASH_SEEDS=10000 for a campaign.
    let seeds = std::env::var("STILLPOINT_CRASH_SEEDS").ok().and_then(|text| text.parse().ok());
    for seed in 0..seeds.unwrap_or(100) {
        live(seed, 3);
    }
}

#[test]
fn a_dropped_record_stays_dropped_when_its_dependency_could_return() {
    let disk = SimDisk::new(1);
    let journal = open(&disk, &small(1, 0, 2));
    let a = crate::support::put(&*journal, 0, 1, &[], b"a", b"").expect("appends");
    crate::support::put(&*journal, 1, 1, &[a], b"b", b"").expect("appends");
    journal.flush(1).expect("flushes");
    let disk = disk.crash(1);
    let first = scan_with(&disk, &[entry(1, 0, None)], &ReplayStart::default(), Some(2));
    let first = first.expect("sound");
    assert_eq!(first.cut(), [LogGsn { log: 0, gsn: 0 }, LogGsn { log: 1, gsn: 0 }]);
    assert_eq!(first.gsn_max(), 2, "what is dropped counts for the floor");

    // The next incarnation must not fill the hole, since its gsns lie above the floor.
    let mut known = vec![entry(1, 0, Some(first.cut())), entry(2, first.gsn_max(), None)];
    let journal = open(&disk, &small(2, first.gsn_max(), 2));
    let again = crate::support::put(&*journal, 0, 1, &[], b"a", b"").expect("appends");
    assert_eq!(again.gsn(), 3);
    journal.flush(0).expect("flushes");
    let disk = disk.crash(2);
    // The segment is not trimmed, so only the recorded cut keeps the record out.
    let second = scan_with(&disk, &known, &ReplayStart::default(), Some(2)).expect("sound");
    let gsns: Vec<u64> = crate::support::replay(&second, 1 << 16).iter().map(|of| of.gsn).collect();
    assert_eq!(gsns, [3]);
    known[1].cut = Some(second.cut());
    let ends = second.copy_ends(3, 0).expect("copies");
    second.trim(3, &ends).expect("trims");
    let left = disk.list("log/001".as_ref()).expect("lists");
    assert!(!left.iter().any(|name| name.starts_with("0000000002-")), "{left:?}");
}
