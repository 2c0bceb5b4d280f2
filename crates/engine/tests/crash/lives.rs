//! Lives of a store, one after the other, each ended by a crash.

use std::sync::Arc;

use stillpoint::{Codec, Config, Durability, Environment, Error};
use stillpoint_io::{Fault, ManualClock, Rng, SeededRng, SimDisk};
use stillpoint_store::PointOfConsistency;

use crate::history::{History, State};
use crate::settings::Setting;
use crate::stage::{StageClock, StageDisk};
use crate::steps::open;
use crate::workload::{TABLES, Workload, scan_table};

/// Crashes in a row.
const DEPTH: u32 = 3;
/// Crash states judged after each life.
const STATES: u32 = 4;
/// Bytes of a segment of the log: small, so that logs have many.
const SEGMENT_BYTES: u64 = 128 << 10;

/// Runs one store from its making to its last crash. Returns the number of judged crash states.
pub(crate) fn run_seed(seed: u64, setting: &Setting) -> u64 {
    let rng = Arc::new(SeededRng::new(seed));
    let mut disk = SimDisk::new(rng.next_u64());
    let (mut base, mut next_id, mut states) = (State::new(), 0, 0);
    for life in 1..=DEPTH {
        let sessions = 2 + rng.below(5) as usize;
        let config = configure(setting, &disk, &rng, sessions);
        if rng.below(2) == 0 {
            disk.fail_at(1 + rng.below(400), Fault::PowerLoss);
        }
        let (history, id) = live(&config, base, &rng, next_id, sessions, &disk);
        next_id = id;
        let mut last = None;
        for _ in 0..STATES {
            let context = format!("seed {seed}, life {life}, crash state {states}");
            let after = match rng.below(8) {
                0 => disk.kill(),
                _ => disk.crash(rng.next_u64()),
            };
            let (after, found) = recover(setting, after, &rng, &context);
            let judged = judge(setting, &history, &found);
            judged.unwrap_or_else(|why| panic!("{context}: {why}"));
            states += 1;
            last = Some((after, found.state));
        }
        (disk, base) = last.expect("at least one state");
    }
    states
}

pub(crate) fn configure(
    setting: &Setting,
    disk: &SimDisk,
    rng: &SeededRng,
    sessions: usize,
) -> Config {
    // With huge pages, small stores would spend most of their time on clearing pages.
    rustix::thread::disable_transparent_huge_pages(true).expect("Linux");
    let mut config = Config::new("unused");
    config.checkpoint = setting.scheme.to_owned();
    config.journal = setting.journal.to_owned();
    config.durability = setting.durability;
    config.checkpoint_every = None;
    config.checkpoint_threads = 1;
    config.keep_checkpoints = 1 + rng.below(2) as usize;
    config.changed_percent_max = 100;
    config.merge_after = [None, Some(2), Some(3)][rng.below(3) as usize];
    config.codec = if rng.below(2) == 0 { Codec::None } else { Codec::Lz4 };
    config.sessions = sessions + 1;
    config.logs = 1 + rng.below(4) as usize;
    config.recovery_threads = 1 + rng.below(3) as usize;
    config.max_memory_bytes = 256 << 20;
    config.log_segment_bytes = SEGMENT_BYTES;
    config.serve_while_loading = rng.below(2) == 0;
    config.environment = Environment {
        disk: Some(Arc::new(StageDisk(disk.clone()))),
        clock: Arc::new(StageClock {
            clock: ManualClock::self_advancing(1_700_000_000_000),
            // Where commits stop for a moment, nobody looks at the clock meanwhile. Between the phases of
            // a scheme that stops them throughout, no session can act.
            guests: setting.row().capabilities.point
                != Some(PointOfConsistency::PhysicalThroughout),
        }),
        rng: Arc::new(SeededRng::new(rng.next_u64())),
        space: Arc::default(),
        background: false,
    };
    config
}

/// Opens the store and works until the machine dies or the steps are over.
fn live(
    config: &Config,
    base: State,
    rng: &Arc<SeededRng>,
    next_id: u64,
    sessions: usize,
    disk: &SimDisk,
) -> (History, u64) {
    let history = History::new(base);
    let opened = open(config.clone()).and_then(|engine| {
        for name in TABLES {
            engine.table(name)?;
        }
        Ok(Arc::new(engine))
    });
    let engine = match opened {
        Ok(engine) => engine,
        Err(error) => {
            assert!(disk.is_dead(), "the store does not open: {error}");
            return (history, next_id);
        }
    };
    let workload = Workload::new(engine, history, rng.clone(), next_id, sessions);
    let mut workload = workload.expect("there are sessions enough");
    workload.run(30 + rng.below(120));
    if let Some(error) = &workload.ended {
        assert!(disk.is_dead(), "the store fails on a sound disk: {error}");
    }
    (std::mem::take(&mut workload.history), workload.next_id)
}

/// Records that recovery served.
pub(crate) struct Found {
    pub(crate) state: State,
    pub(crate) checkpoint: Option<u64>,
}

/// Judges the recovered state by the journal's promise.
pub(crate) fn judge(setting: &Setting, history: &History, found: &Found) -> Result<(), String> {
    match setting.durability {
        Durability::Checkpoint => history.judge_none(&found.state, found.checkpoint),
        Durability::Relaxed | Durability::Strict => history.judge_redo(&found.state),
    }
}

/// Recovers, through up to two crashes of recovery itself, and reads everything.
fn recover(setting: &Setting, disk: SimDisk, rng: &SeededRng, context: &str) -> (SimDisk, Found) {
    let mut disk = disk;
    for _ in 0..rng.below(3) {
        disk.fail_at(1 + rng.below(60), Fault::PowerLoss);
        let config = configure(setting, &disk, rng, 2);
        match open(config) {
            Ok(engine) => drop(engine),
            Err(error) => assert!(disk.is_dead(), "{context}: recovery fails: {error}"),
        }
        disk = disk.crash(rng.next_u64());
    }
    let first =
        open_and_read(setting, &disk, rng).unwrap_or_else(|error| panic!("{context}: {error}"));
    if rng.below(2) == 0 {
        // Records that recovery has served must survive every later crash.
        disk = disk.crash(rng.next_u64());
        let second = open_and_read(setting, &disk, rng);
        let second = second.unwrap_or_else(|error| panic!("{context}, again: {error}"));
        assert!(first.state == second.state, "{context}: a second crash changed what was served");
        return (disk, second);
    }
    (disk, first)
}

pub(crate) fn open_and_read(
    setting: &Setting,
    disk: &SimDisk,
    rng: &SeededRng,
) -> Result<Found, Error> {
    let engine = open(configure(setting, disk, rng, 2))?;
    let mut session = engine.session()?;
    let mut state = State::new();
    for (_, table) in engine.tables() {
        let records = scan_table(&mut session, table.0)?;
        assert_eq!(engine.len(table), records.len() as u64, "count of records");
        state.extend(records);
    }
    Ok(Found { state, checkpoint: engine.stats().recovered.checkpoint })
}
