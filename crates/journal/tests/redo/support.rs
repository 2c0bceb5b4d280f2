//! A small store of keys and stamps over a journal, and the check of its state after a crash.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stillpoint_format::ident::StoreId;
use stillpoint_format::log::{RecordKind, Write, WriteIter, WriteOp, WritesEncoder};
use stillpoint_format::manifest::IncarnationEntry;
use stillpoint_format::{LogGsn, Stamp, names};
use stillpoint_io::{Disk, ManualClock, SimDisk};
use stillpoint_journal::{
    Config, Durability, Entry, Environment, Journal, JournalError, KeptWrite, Logs, ReceiveWrites,
    ReplayOperation, ReplayOptions, ReplayStart, ScanError, ScanInput, registry, scan,
    scan_receiving,
};

pub(crate) const STORE: StoreId = StoreId(*b"journal-test-sto");

pub(crate) fn environment(disk: &SimDisk) -> Environment {
    Environment { disk: Arc::new(disk.clone()), clock: Arc::new(ManualClock::new(0)) }
}

/// Small segments and batches, and no background threads.
pub(crate) fn small(incarnation: u32, floor: u64, logs: u8) -> Config {
    Config {
        durability: Durability::Strict,
        segment_bytes: 64 << 10,
        batch_bytes: 4 << 10,
        buffer_bytes: 64 << 10,
        spare_segments: 1,
        recycled_segments: 2,
        background: false,
        ..Config::new(STORE, incarnation, floor, logs)
    }
}

pub(crate) fn open(disk: &SimDisk, config: &Config) -> Arc<dyn Journal> {
    let redo = registry::REGISTRY.find("redo").expect("listed");
    (redo.open)(&environment(disk), config).expect("the journal opens")
}

/// One commit that writes `value` under `key` of table 1.
pub(crate) fn put(
    journal: &dyn Journal,
    log: u8,
    epoch: u64,
    touched: &[Stamp],
    key: &[u8],
    value: &[u8],
) -> Result<Stamp, JournalError> {
    let body = |to: &mut Vec<u8>| WritesEncoder::new(to).put(1, 0, key, 0, value);
    append(journal, log, &Entry { kind: RecordKind::Writes, epoch, touched, body: &body })
}

/// Appends an entry as soon as there is room.
pub(crate) fn append(
    journal: &dyn Journal,
    log: u8,
    entry: &Entry<'_>,
) -> Result<Stamp, JournalError> {
    loop {
        match journal.append(log, entry) {
            Err(JournalError::NoRoom { .. }) => journal.admit(log)?,
            appended => return appended,
        }
    }
}

/// A replayed record: its place, epoch, and writes as key → value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Replayed {
    pub(crate) gsn: u64,
    pub(crate) log: u8,
    pub(crate) epoch: u64,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

pub(crate) fn scan_with(
    disk: &SimDisk,
    incarnations: &[IncarnationEntry],
    start: &ReplayStart,
    logs: Option<u8>,
) -> Result<Logs, ScanError> {
    scan_by(disk, incarnations, start, logs, scan)
}

/// Scans as `by` says.
fn scan_by<T>(
    disk: &SimDisk,
    incarnations: &[IncarnationEntry],
    start: &ReplayStart,
    logs: Option<u8>,
    by: impl FnOnce(&Arc<dyn Disk>, &ScanInput<'_>) -> Result<T, ScanError>,
) -> Result<T, ScanError> {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let mut incarnations = incarnations.to_vec();
    if let Some(latest) = incarnations.last_mut() {
        latest.logs = logs.unwrap_or_else(|| count_logs(&*disk));
    }
    let input = ScanInput {
        store: STORE,
        incarnations: &incarnations,
        clean_shutdown: None,
        next_epoch: u64::MAX,
        start,
        threads: 2,
        progress: &|done, total| assert!(done <= total),
    };
    by(&disk, &input)
}

/// Whether a scan with receivers hands on what a replay does. False if it hands on more than is kept.
pub(crate) fn scan_hands_on(
    disk: &SimDisk,
    incarnations: &[IncarnationEntry],
    start: &ReplayStart,
) -> bool {
    let receivers = vec![Received::default(), Received::default()];
    let scanned = scan_by(disk, incarnations, start, None, |disk, input| {
        scan_receiving(disk, input, receivers)
    });
    let (logs, received) = scanned.expect("sound");
    let Some((received, commits)) = received else { return false };
    assert_same(&replay(&logs, 1 << 20), received, commits);
    true
}

pub(crate) fn entry(number: u32, gsn_floor: u64, cut: Option<Vec<LogGsn>>) -> IncarnationEntry {
    IncarnationEntry {
        number,
        gsn_floor,
        logs: 8,
        cut,
        calls: false,
        tails: Vec::new(),
        scheme: None,
    }
}

/// Logs that have a directory.
pub(crate) fn count_logs(disk: &dyn Disk) -> u8 {
    disk.list(names::LOG_DIR.as_ref()).map_or(0, |found| found.len() as u8)
}

/// Scans a store of one incarnation without a checkpoint.
pub(crate) fn scan_first(disk: &SimDisk) -> Result<Logs, ScanError> {
    scan_with(disk, &[entry(1, 0, None)], &ReplayStart::default(), None)
}

/// All replayed records, partition by partition within a round. Checks that each partition is in
/// gsn order over all rounds, and that progress ends at the total.
pub(crate) fn replay(logs: &Logs, round_bytes: usize) -> Vec<Replayed> {
    let options = ReplayOptions::new(3, round_bytes, 2);
    let partition_of = |_: u16, key: &[u8]| key.iter().map(|b| usize::from(*b)).sum::<usize>() % 3;
    let mut replay = logs.replay(options, &partition_of);
    let mut last = [0; 3];
    let (mut all, mut progress) = (Vec::new(), (0, logs.replay_bytes()));
    while let Some(round) = replay.next_round().expect("validated logs replay") {
        let mut records = BTreeSet::new();
        for (partition, last) in last.iter_mut().enumerate() {
            for write in round.partition(partition) {
                assert!(write.gsn >= *last, "{} after {last} in {partition}", write.gsn);
                *last = write.gsn;
                records.insert((write.log, write.gsn));
                assert_eq!(partition_of(1, write.write.key), partition);
                let value = match &write.write.op {
                    WriteOp::Put { value, .. } => value.to_vec(),
                    other => panic!("only values are written here: {other:?}"),
                };
                let key = write.write.key.to_vec();
                let (gsn, log, epoch) = (write.gsn, write.log, write.epoch);
                all.push(Replayed { gsn, log, epoch, key, value });
            }
        }
        assert_eq!(records.len() as u64, round.records());
        assert!(round.progress().0 >= progress.0);
        progress = round.progress();
    }
    assert!(all.is_empty() || progress.0 == progress.1, "{progress:?}");
    assert_same_unordered(logs, &all);
    all
}

/// Log, gsn, key and value of each write.
#[derive(Default)]
struct Received(Vec<(u8, u64, Vec<u8>, Vec<u8>)>);

impl ReceiveWrites for Received {
    type Error = ScanError;

    fn write(&mut self, kept: &KeptWrite<'_>) -> Result<(), ScanError> {
        let &Write { table, generation, .. } = kept.write;
        let mut decoded = WriteIter::behind((table, generation), kept.encoded);
        let write = decoded.next().expect("a write").expect("decodes");
        assert!(decoded.next().is_none(), "one write alone");
        assert_eq!((write.table, write.key), (table, kept.write.key));
        let WriteOp::Put { value, .. } = write.op else { panic!("only values are written here") };
        self.0.push((kept.log, kept.gsn, write.key.to_vec(), value.to_vec()));
        Ok(())
    }

    fn operation(&mut self, operation: &ReplayOperation<'_>) -> Result<(), ScanError> {
        panic!("only values are written here: {operation:?}")
    }
}

/// A replay in no order has the same writes.
fn assert_same_unordered(logs: &Logs, replayed: &[Replayed]) {
    let receivers = (0..3).map(|_| Received::default()).collect();
    let received = logs.replay_unordered(receivers, &|done, total| assert!(done <= total));
    let (received, commits) = received.expect("validated logs replay");
    assert_same(replayed, received, commits);
}

fn assert_same(replayed: &[Replayed], received: Vec<Received>, commits: u64) {
    let mut received: Vec<_> = received.into_iter().flat_map(|of| of.0).collect();
    let as_received = |of: &Replayed| (of.log, of.gsn, of.key.clone(), of.value.clone());
    let mut expected: Vec<_> = replayed.iter().map(as_received).collect();
    received.sort();
    expected.sort();
    assert!(received == expected, "{} writes, and not {}", received.len(), expected.len());
    expected.dedup_by_key(|(log, gsn, ..)| (*log, *gsn));
    assert_eq!(commits, expected.len() as u64);
}

/// A transaction in the view of its caller.
#[derive(Clone, Debug)]
pub(crate) struct Transaction {
    pub(crate) stamp: Stamp,
    pub(crate) epoch: u64,
    /// Stamps of all cells that it read or overwrote.
    pub(crate) touched: Vec<Stamp>,
    pub(crate) keys: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

/// Keys with values and stamps, in memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct World {
    pub(crate) cells: BTreeMap<u8, (Vec<u8>, Stamp)>,
    pub(crate) history: Vec<Transaction>,
}

impl World {
    /// Reads `reads` and writes `value` under `keys` in one transaction.
    pub(crate) fn transact(
        &mut self,
        journal: &dyn Journal,
        log: u8,
        epoch: u64,
        reads: &[u8],
        keys: &[u8],
        value: &[u8],
    ) -> Result<Stamp, JournalError> {
        let touched: Vec<Stamp> = reads
            .iter()
            .chain(keys)
            .filter_map(|key| self.cells.get(key))
            .map(|cell| cell.1)
            .collect();
        let body = |to: &mut Vec<u8>| {
            let mut to = WritesEncoder::new(to);
            keys.iter().try_for_each(|key| to.put(1, 0, &[*key], 0, value))
        };
        let floor = touched.iter().map(|stamp| stamp.gsn()).max().unwrap_or(0);
        let entry = Entry { kind: RecordKind::Writes, epoch, touched: &touched, body: &body };
        let stamp = append(journal, log, &entry)?;
        assert!(stamp.gsn() > floor);
        for key in keys {
            self.cells.insert(*key, (value.to_vec(), stamp));
        }
        let (keys, value) = (keys.to_vec(), value.to_vec());
        self.history.push(Transaction { stamp, epoch, touched, keys, value });
        Ok(stamp)
    }

    /// Checks a recovery. Every acknowledged transaction is kept, and the kept set is closed under
    /// dependencies. Replay yields exactly the kept transactions that are not in the checkpoint.
    /// Returns the recovered store.
    pub(crate) fn check(
        &self,
        context: &str,
        logs: &Logs,
        acknowledged: &BTreeSet<Stamp>,
        start: &ReplayStart,
        finals: &[IncarnationEntry],
    ) -> World {
        let kept: BTreeSet<Stamp> = self
            .history
            .iter()
            .filter(|of| of.epoch < start.epoch || is_kept(of.stamp, logs, finals))
            .map(|of| of.stamp)
            .collect();
        for stamp in acknowledged {
            assert!(kept.contains(stamp), "{context}: {stamp:?} was acknowledged and is lost");
        }
        let mut after = World::default();
        for of in self.history.iter().filter(|of| kept.contains(&of.stamp)) {
            for dep in &of.touched {
                assert!(kept.contains(dep), "{context}: {:?} is kept without {dep:?}", of.stamp);
            }
            for key in &of.keys {
                after.cells.insert(*key, (of.value.clone(), of.stamp));
            }
            after.history.push(of.clone());
        }
        let mut expected: Vec<Replayed> = Vec::new();
        for of in after.history.iter().filter(|of| of.epoch >= start.epoch) {
            for key in &of.keys {
                expected.push(Replayed {
                    gsn: of.stamp.gsn(),
                    log: of.stamp.log(),
                    epoch: of.epoch,
                    key: vec![*key],
                    value: of.value.clone(),
                });
            }
        }
        let order = |of: &Replayed| (of.key.clone(), of.gsn, of.log);
        expected.sort_by_key(order);
        let mut found = replay(logs, 64 << 10);
        found.sort_by_key(order);
        assert_eq!(found, expected, "{context}: replay");
        after
    }
}

/// Whether the cut of the stamp's incarnation contains it.
fn is_kept(stamp: Stamp, logs: &Logs, finals: &[IncarnationEntry]) -> bool {
    let of = finals.iter().rposition(|entry| stamp.gsn() > entry.gsn_floor).expect("some floor");
    let latest = logs.cut();
    let cut = finals[of].cut.as_ref().unwrap_or(&latest);
    cut.iter().any(|end| end.log == stamp.log() && stamp.gsn() <= end.gsn)
}
