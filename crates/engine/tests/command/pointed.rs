//! One situation each.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stillpoint::{Engine, Error, KeySet, Mode, Slot, StoredProcedure, TableId, Tx, TxError};
use stillpoint_format::manifest::CheckpointKind;
use stillpoint_io::{Clock, RealClock, SimDisk, read_all};
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::mix::{Asked, Mix, RANDOM, State, TABLES, TIME, call, config, key, state, with_mix};

/// Reads `reads`, writes `writes`.
fn asked(seed: u64, reads: &[&str], writes: &[&str]) -> Asked {
    let keys = |names: &[&str]| names.iter().map(|name| key(0, name)).collect();
    Asked { seed, flags: 0, reads: keys(reads), writes: keys(writes) }
}

fn open(disk: &SimDisk) -> Engine {
    with_mix(config(disk, "command", 2)).open().expect("opens")
}

/// A batch that names a procedure.
struct Named<'a> {
    mix: Mix,
    asked: &'a Asked,
    ended: Option<Result<Option<stillpoint::Stamp>, TxError>>,
}

impl stillpoint::Procedure for Named<'_> {
    fn declare(&mut self, keys: &mut KeySet) {
        self.mix.declare(&self.asked.input(), keys);
    }
    fn call(&mut self, call: &mut stillpoint::Call) {
        call.set_procedure("mix", Mix::VERSION);
        stillpoint::Arguments::encode(&self.asked.input(), &mut call.arguments);
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        self.mix.run(&self.asked.input(), tx).map(drop)
    }
    fn ended(&mut self, result: Result<Option<stillpoint::Stamp>, TxError>) {
        self.ended = Some(result);
    }
}

pub(crate) fn a_batch_reads_time_and_random_numbers_under_every_journal() {
    for journal in ["none", "redo", "command"] {
        let disk = SimDisk::new(1);
        let engine = with_mix(config(&disk, journal, 1)).open().expect("opens");
        let mut session = engine.session().expect("a session");
        let asked = Asked { flags: TIME | RANDOM, ..asked(1, &["x"], &["y"]) };
        let tables = TABLES.map(|name| engine.table(name).expect("a table"));
        let mut named = [Named { mix: Mix { tables }, asked: &asked, ended: None }];
        session.execute(&mut named[..]);
        assert!(matches!(named[0].ended, Some(Ok(Some(_)))), "{journal}: {:?}", named[0].ended);
        session.flush().expect("durable");
        let served = state(&engine);
        if journal != "none" {
            assert_comes_back(&disk, &served);
        }
    }
}

/// Notes how long its arguments are.
struct Measures {
    table: TableId,
}

impl StoredProcedure for Measures {
    type Input = Vec<u8>;
    type Output = ();

    fn declare(&self, _: &Vec<u8>, keys: &mut KeySet) {
        keys.push(self.table, b"n", Mode::Write, 8);
    }

    fn run(&self, input: &Vec<u8>, tx: &mut Tx<'_>) -> Result<(), TxError> {
        tx.put_slot(Slot(0), &(input.len() as u64).to_le_bytes())
    }
}

/// A call with longer arguments than a segment has bytes comes back.
pub(crate) fn a_call_with_long_arguments_comes_back() {
    let disk = SimDisk::new(1);
    let open = || {
        Engine::builder(config(&disk, "command", 1))
            .procedure("measures", |of| Ok(Measures { table: of.table("numbers")? }))
            .open()
            .expect("opens")
    };
    let engine = open();
    let mut session = engine.session().expect("a session");
    for len in [1_000, 300_000, 3_000_000] {
        session.call::<_, ()>("measures", &vec![7_u8; len]).expect("commits");
    }
    drop(session);
    drop(engine);
    assert_eq!(sum(&open()), 3_000_000);
}

/// A repair that gives up the newest checkpoint goes back to one from before a table was emptied. Calls
/// since then write to the table as it was.
pub(crate) fn a_repair_goes_back_to_before_a_table_was_emptied() {
    for is_damaged in [false, true] {
        a_start_from_one_of_two_checkpoints(is_damaged);
    }
}

#[expect(clippy::disallowed_methods, reason = "damages a file behind the engine's back")]
fn a_start_from_one_of_two_checkpoints(is_damaged: bool) {
    let directory = tempfile::tempdir().expect("a directory");
    let open = || {
        let mut config = config(&SimDisk::new(1), "command", 1);
        config.data = directory.path().to_owned();
        config.environment.disk = None;
        config.keep_checkpoints = 2;
        with_mix(config).open().expect("opens")
    };
    let engine = open();
    let mut model = State::new();
    let mut session = engine.session().expect("a session");
    let table = engine.table(TABLES[0]).expect("a table");
    call(&mut session, &asked(1, &[], &["first"]), &mut model);
    engine.checkpoint().expect("published");
    call(&mut session, &asked(2, &["first"], &["emptied"]), &mut model);
    engine.flush_tables(&[table]).expect("emptied");
    model.clear();
    call(&mut session, &asked(3, &["first", "emptied"], &["later"]), &mut model);
    let newest = engine.checkpoint().expect("published").epoch;
    call(&mut session, &asked(4, &["later"], &["last"]), &mut model);
    drop(session);
    drop(engine);
    if is_damaged {
        let paths_in = |dir: &Path| {
            let files = std::fs::read_dir(dir).expect("a directory");
            let mut paths: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
            paths.sort();
            paths
        };
        let checkpoints = paths_in(&directory.path().join("checkpoint"));
        let parts = paths_in(checkpoints.last().expect("two"));
        std::fs::write(&parts[0], b"damaged").expect("written");
        let repaired = stillpoint::offline::repair(directory.path(), true).expect("repaired");
        assert!(repaired.gives_up[0].contains(&newest.to_string()), "{repaired:?}");
    }
    assert!(state(&open()) == model, "{is_damaged}");
}

/// Compares what a start after a kill serves.
fn assert_comes_back(disk: &SimDisk, expected: &State) {
    let engine = with_mix(config(&disk.kill(), "command", 2)).open().expect("recovers");
    assert!(state(&engine) == *expected, "recovered something else");
}

/// The session whose log has great gsns reads `x`. Then the other one, whose log has small gsns,
/// overwrites `x`.
fn a_read_before_an_overwrite(disk: &SimDisk) -> State {
    let engine = open(disk);
    let mut model = State::new();
    let (mut ahead, mut behind) = (engine.session().expect("one"), engine.session().expect("two"));
    call(&mut behind, &asked(1, &[], &["x"]), &mut model);
    for seed in 0..20 {
        call(&mut ahead, &asked(seed, &[], &["other"]), &mut model);
    }
    call(&mut ahead, &asked(3, &["x"], &["y"]), &mut model);
    call(&mut behind, &asked(4, &[], &["x"]), &mut model);
    call(&mut ahead, &asked(5, &["x", "absent"], &["z"]), &mut model);
    call(&mut behind, &asked(6, &[], &["absent"]), &mut model);
    assert!(state(&engine) == model);
    model
}

pub(crate) fn who_overwrites_what_another_has_read_comes_after() {
    let disk = SimDisk::new(1);
    let expected = a_read_before_an_overwrite(&disk);
    assert_comes_back(&disk, &expected);
}

/// A record of writes comes between the calls, also one that overwrites what a call has read.
pub(crate) fn writes_come_in_their_order_among_calls() {
    let disk = SimDisk::new(1);
    let engine = open(&disk);
    let mut model = State::new();
    let table = engine.table(TABLES[0]).expect("a table");
    let (mut ahead, mut behind) = (engine.session().expect("one"), engine.session().expect("two"));
    for seed in 0..20 {
        call(&mut ahead, &asked(seed, &[], &["x", "other"]), &mut model);
    }
    call(&mut ahead, &asked(3, &["x"], &["y"]), &mut model);
    behind.transact(|tx| tx.put(table, b"x", b"blind")).expect("commits");
    model.insert(key(0, "x"), b"blind".to_vec());
    call(&mut ahead, &asked(4, &["x"], &["y", "z"]), &mut model);
    behind.transact(|tx| tx.delete(table, b"x")).expect("commits");
    model.remove(&key(0, "x"));
    call(&mut ahead, &asked(5, &["x"], &["y"]), &mut model);
    assert!(state(&engine) == model);
    assert_comes_back(&disk, &model);
}

/// Two keys whose absence has one stamp, since their hashes have the same highest byte.
fn of_one_partition(session: &mut stillpoint::Session, table: TableId) -> (String, String) {
    let mut seen: [Option<String>; 256] = std::array::from_fn(|_| None);
    for name in (0..).map(|number: u32| number.to_string()) {
        let hash = session.transact(|tx| {
            let slot = tx.key(table, name.as_bytes(), Mode::Read)?;
            Ok(tx.key_hash(slot))
        });
        let place = &mut seen[(hash.expect("a key") >> 56) as usize];
        if let Some(other) = place.take() {
            return (other, name);
        }
        *place = Some(name);
    }
    unreachable!("there are 256 partitions")
}

/// A replay forgets a deleted key at once, and knows the absence of a key by its partition. The gsn of
/// a write of another key there is not greater than that of the deletion.
/// The start has no checkpoint, or one of another scheme, which an earlier run with redo has taken.
pub(crate) fn a_write_of_an_absent_key_is_replayed_after_deletions_beside_it() {
    for checkpoint in ["none", "calc", "fuzzy", "fuzzy:partial"] {
        let disk = SimDisk::new(1);
        let settings = |disk: &SimDisk| {
            let mut config = config(disk, "command", 2);
            config.recovery_threads = 1;
            config
        };
        if checkpoint != "none" {
            let mut earlier = stillpoint::Config { journal: "redo".to_owned(), ..settings(&disk) };
            earlier.checkpoint = checkpoint.to_owned();
            let engine = with_mix(earlier).open().expect("opens");
            let table = engine.table(TABLES[0]).expect("a table");
            let mut session = engine.session().expect("a session");
            session.transact(|tx| tx.put(table, b"before", b"1")).expect("commits");
            engine.checkpoint().expect("published");
            session.transact(|tx| tx.put(table, b"before", b"2")).expect("commits");
        }
        let disk = disk.kill();
        let engine = with_mix(settings(&disk)).open().expect("recovers");
        // The first log, whose records come first among those of one gsn, and the second.
        let (mut first, mut second) =
            (engine.session().expect("one"), engine.session().expect("two"));
        let mut model = state(&engine);
        let table = engine.table(TABLES[0]).expect("a table");
        let (deleted, put) = of_one_partition(&mut first, table);
        let stay = |session: &mut stillpoint::Session, name: &str, model: &mut State| {
            session.transact(|tx| tx.put(table, name.as_bytes(), b"stays")).expect("commits");
            model.insert(key(0, name), b"stays".to_vec());
        };
        call(&mut first, &asked(1, &[], &["call"]), &mut model);
        stay(&mut first, &deleted, &mut model);
        stay(&mut second, "beside", &mut model);
        stay(&mut second, "beside", &mut model);
        stay(&mut second, &put, &mut model);
        first.transact(|tx| tx.delete(table, deleted.as_bytes())).expect("commits");
        model.remove(&key(0, &deleted));
        assert!(state(&engine) == model);
        let disk = disk.kill();
        let engine = with_mix(settings(&disk)).open().expect("recovers");
        assert!(state(&engine) == model, "{checkpoint}: recovered something else");
    }
}

pub(crate) fn a_call_reads_what_a_table_held_before_it_was_emptied() {
    for with_checkpoint in [false, true] {
        let disk = SimDisk::new(1);
        let engine = open(&disk);
        let mut model = State::new();
        let mut session = engine.session().expect("a session");
        let other = engine.table(TABLES[1]).expect("a table");
        let from_other = |seed| Asked {
            seed,
            flags: 0,
            reads: vec![key(1, "r")],
            writes: vec![key(0, "w"), key(0, seed)],
        };
        for round in 0..3 {
            let fill = Asked { writes: vec![key(1, "r"), key(1, round)], ..asked(round, &[], &[]) };
            call(&mut session, &fill, &mut model);
            if with_checkpoint && round < 2 {
                engine.checkpoint().expect("published");
            }
            call(&mut session, &from_other(10 + round), &mut model);
            engine.flush_tables(&[other]).expect("emptied");
            model.retain(|key, _| key.0 == 0);
            call(&mut session, &from_other(20 + round), &mut model);
        }
        assert!(state(&engine) == model);
        drop(session);
        assert_comes_back(&disk, &model);
        // The next start under another journal keeps what a replay of the calls needs.
        let disk = disk.kill();
        let engine = with_mix(config(&disk, "redo", 2)).open().expect("recovers");
        engine.flush_tables(&[engine.table(TABLES[0]).expect("a table")]).expect("emptied");
        model.clear();
        assert!(state(&engine) == model);
        assert_comes_back(&disk, &model);
    }
}

pub(crate) fn time_and_random_numbers_are_logged() {
    let disk = SimDisk::new(1);
    let engine = open(&disk);
    let mut model = State::new();
    let mut session = engine.session().expect("a session");
    for flags in [TIME, RANDOM, TIME | RANDOM, 0] {
        let call_of = |seed| Asked { flags, ..asked(seed, &["x"], &["x", "y"]) };
        (0..5).for_each(|seed| call(&mut session, &call_of(seed), &mut model));
    }
    let outside = session.transact(|tx| tx.time_ms());
    assert!(matches!(outside, Err(Error::Transaction(TxError::NoCall))), "{outside:?}");
    assert_comes_back(&disk, &model);
}

/// A start with another journal replays what it finds, and both kinds of records may lie in the logs.
pub(crate) fn the_journal_may_change_between_two_starts() {
    let mut disk = SimDisk::new(1);
    let mut model = State::new();
    for (round, journal) in
        ["redo", "command", "redo", "command", "command", "redo"].iter().enumerate()
    {
        let engine = with_mix(config(&disk, journal, 1 + round % 3)).open().expect("recovers");
        assert!(state(&engine) == model, "round {round}, {journal}");
        let mut session = engine.session().expect("a session");
        let table = engine.table(TABLES[0]).expect("a table");
        for seed in 0..10 {
            call(&mut session, &asked(seed, &["x", "y"], &["y", "z"]), &mut model);
            session.transact(|tx| tx.put(table, b"x", &[seed as u8])).expect("commits");
            model.insert(key(0, "x"), vec![seed as u8]);
        }
        drop(session);
        disk = disk.kill();
    }
    assert_comes_back(&disk, &model);
}

/// Adds to a number. The version and the amount that it adds depend on the type.
struct Add<const VERSION: u32, const MORE: u64> {
    table: TableId,
}

impl<const VERSION: u32, const MORE: u64> StoredProcedure for Add<VERSION, MORE> {
    const VERSION: u32 = VERSION;
    type Input = ();
    type Output = u64;

    fn declare(&self, (): &(), keys: &mut KeySet) {
        keys.push(self.table, b"n", Mode::Write, 8);
    }

    fn run(&self, (): &(), tx: &mut Tx<'_>) -> Result<u64, TxError> {
        let now = tx.value(Slot(0)).and_then(|value| value.u64_at(0)).unwrap_or(0) + MORE;
        tx.put_slot(Slot(0), &now.to_le_bytes())?;
        Ok(now)
    }
}

fn add<const VERSION: u32, const MORE: u64>(
    tables: &mut stillpoint::Tables<'_>,
) -> Result<Add<VERSION, MORE>, Error> {
    Ok(Add { table: tables.table("numbers")? })
}

fn sum(engine: &Engine) -> u64 {
    let (mut out, table) = (Vec::new(), engine.table("numbers").expect("a table"));
    engine.session().expect("a session").read(table, b"n", &mut out).expect("reads");
    u64::from_le_bytes(out.try_into().expect("eight bytes"))
}

fn opened<const VERSION: u32, const MORE: u64>(disk: &SimDisk) -> Result<Engine, Error> {
    Engine::builder(config(disk, "command", 1)).procedure("add", add::<VERSION, MORE>).open()
}

pub(crate) fn a_start_needs_the_versions_that_the_logs_name() {
    let disk = SimDisk::new(1);
    let engine = opened::<1, 3>(&disk).expect("opens");
    let called = engine.session().expect("a session").call::<_, u64>("add", &());
    assert_eq!(called.expect("commits"), 3_u64);
    let disk = disk.kill();
    let refused = opened::<2, 5>(&disk).expect_err("version 1 is missing").to_string();
    assert!(refused.contains("\"add\" version 1"), "{refused}");
    let refused = Engine::open(config(&disk, "redo", 1)).expect_err("it is missing").to_string();
    assert!(refused.contains("\"add\" version 1"), "{refused}");
    // The refused starts have changed nothing.
    assert_eq!(sum(&opened::<1, 3>(&disk).expect("recovers")), 3);

    let both = || {
        Engine::builder(config(&disk, "command", 1))
            .procedure("add", add::<1, 3>)
            .procedure("add", add::<2, 5>)
            .open()
            .expect("recovers")
    };
    let engine = both();
    assert_eq!(sum(&engine), 3);
    let called = engine.session().expect("a session").call::<_, u64>("add", &());
    assert_eq!(called.expect("commits"), 8_u64, "the newest version is called");
    drop(engine);
    let engine = both();
    assert_eq!(sum(&engine), 8);
    // An orderly end leaves a log that needs no procedure.
    engine.close().expect("closes");
    let engine = opened::<2, 5>(&disk).expect("recovers");
    assert_eq!(sum(&engine), 8);
}

/// The version number stayed, and the procedure has changed.
pub(crate) fn a_call_that_writes_something_else_is_refused() {
    let disk = SimDisk::new(1);
    let engine = opened::<1, 3>(&disk).expect("opens");
    let mut session = engine.session().expect("a session");
    for _ in 0..3 {
        session.call::<_, u64>("add", &()).expect("commits");
    }
    drop(session);
    drop(engine);
    let refused = opened::<1, 4>(&disk).expect_err("it adds 4").to_string();
    assert!(
        refused.starts_with("log 0, gsn 1: the call of procedure \"add\" version 1"),
        "{refused}"
    );
    assert!(refused.contains("the digest of its writes was"), "{refused}");
    assert_eq!(sum(&opened::<1, 3>(&disk).expect("recovers")), 9, "nothing was changed");
}

/// Several calls, each of many keys, that a thread of a replay takes together.
pub(crate) fn calls_of_many_keys_are_replayed_together() {
    let disk = SimDisk::new(1);
    let engine = open(&disk);
    let (mut session, mut model) = (engine.session().expect("a session"), State::new());
    for seed in 0..50 {
        let keys = |from: u64| (from..from + 12).map(|name| key(0, name)).collect();
        let asked = Asked { seed, flags: 0, reads: keys(seed % 7), writes: keys(100 + seed % 5) };
        call(&mut session, &asked, &mut model);
    }
    drop(session);
    assert_comes_back(&disk, &model);
}

/// Reads, overwrites, or lets others go before.
struct Turns {
    table: TableId,
    /// How often `x` was overwritten, if this is a replay.
    overwritten: Option<AtomicU64>,
}

const OVERWRITES: u8 = 0;
const LETS_OTHERS_GO: u8 = 1;
const READS: u8 = 2;

impl StoredProcedure for Turns {
    type Input = u8;
    type Output = ();

    fn declare(&self, what: &u8, keys: &mut KeySet) {
        let written: &[u8] = match *what {
            OVERWRITES => b"x",
            READS => b"y",
            _ => b"z",
        };
        keys.push(self.table, written, Mode::Write, 8);
        if *what == READS {
            keys.push(self.table, b"x", Mode::Read, 8);
        }
    }

    fn run(&self, what: &u8, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let now = |tx: &mut Tx<'_>, slot| tx.value(slot).and_then(|value| value.u64_at(0));
        match (*what, &self.overwritten) {
            // Relaxed: a hint of what the other thread does.
            (OVERWRITES, Some(times)) => {
                times.fetch_add(1, Relaxed);
            }
            (LETS_OTHERS_GO, Some(times)) => {
                let is_early = |_: &u64| times.load(Relaxed) < 2;
                (0..200)
                    .take_while(is_early)
                    .for_each(|_| RealClock.sleep(Duration::from_millis(1)));
            }
            _ => {}
        }
        let next = match *what {
            READS => now(tx, Slot(1)).unwrap_or(0),
            _ => now(tx, Slot(0)).unwrap_or(0) + 1,
        };
        tx.put_slot(Slot(0), &next.to_le_bytes())
    }
}

/// A thread of a replay is slow, and has not yet come to a call that reads a key. The other thread has a
/// call that overwrites the key, and could run that one.
pub(crate) fn a_replay_overwrites_nothing_that_is_still_to_be_read() {
    let turns = |disk: &SimDisk, replays: bool| {
        let overwritten = replays.then(|| AtomicU64::new(0));
        Engine::builder(config(disk, "command", 1))
            .procedure("turns", |of| Ok(Turns { table: of.table("numbers")?, overwritten }))
            .open()
    };
    let disk = SimDisk::new(1);
    let engine = turns(&disk, false).expect("opens");
    let mut session = engine.session().expect("a session");
    // Threads take eight calls at a time.
    let mut call = |what: u8| session.call::<_, ()>("turns", &what).expect("commits");
    [OVERWRITES, LETS_OTHERS_GO, READS].into_iter().for_each(&mut call);
    (3..8).for_each(|_| call(LETS_OTHERS_GO));
    call(OVERWRITES);
    drop(session);
    drop(engine);
    let engine = turns(&disk, true).unwrap_or_else(|error| panic!("{error}"));
    let (mut out, table) = (Vec::new(), engine.table("numbers").expect("a table"));
    engine.session().expect("a session").read(table, b"y", &mut out).expect("reads");
    assert_eq!(out, 1_u64.to_le_bytes());
}

/// A procedure asks for tables, and a store may have no room for another one.
pub(crate) fn a_dump_makes_procedures_for_calls_alone() {
    for (journal, expected) in [("redo", 0), ("command", 1)] {
        let directory = tempfile::tempdir().expect("a directory");
        let made = AtomicU64::new(0);
        let builder = || {
            let mut config = config(&SimDisk::new(1), journal, 1);
            config.data = directory.path().to_owned();
            config.environment.disk = None;
            Engine::builder(config).procedure("add", |of| {
                // Relaxed: one thread.
                made.fetch_add(1, Relaxed);
                add::<1, 3>(of)
            })
        };
        let engine = builder().open().expect("opens");
        engine.session().expect("a session").call::<_, u64>("add", &()).expect("commits");
        drop(engine);
        made.store(0, Relaxed);
        let mut found = 0;
        let visit = &mut |_: &str, _: &[u8], _: stillpoint::ValueRef<'_>| {
            found += 1;
            Ok(())
        };
        builder().dump(None, visit).expect("dumped");
        assert_eq!((found, made.load(Relaxed)), (1, expected), "{journal}");
    }
}

/// Does something at will when it runs again.
struct Moody {
    table: TableId,
    mood: u64,
}

const LIKE_BEFORE: u64 = 0;
const FAILS: u64 = 1;
const PANICS: u64 = 2;
const ASKS_FOR_MORE: u64 = 3;
const WRITES_NOTHING: u64 = 4;
const DECLARES_NOTHING: u64 = 5;
const FINDS_A_KEY: u64 = 6;

impl StoredProcedure for Moody {
    type Input = ();
    type Output = ();

    fn declare(&self, (): &(), keys: &mut KeySet) {
        assert!(self.mood != DECLARES_NOTHING, "in a bad mood");
        keys.push(self.table, b"n", Mode::Write, 8);
    }

    fn run(&self, (): &(), tx: &mut Tx<'_>) -> Result<(), TxError> {
        match self.mood {
            FAILS => return Err(TxError::abandon("in a bad mood")),
            PANICS => panic!("in a bad mood"),
            ASKS_FOR_MORE => drop(tx.get(self.table, b"another")?),
            WRITES_NOTHING => return Ok(()),
            FINDS_A_KEY => drop(tx.key_under(Slot(0), self.table, b"n.1", 8)?),
            _ => {}
        }
        tx.put_slot(Slot(0), b"calm")
    }
}

pub(crate) fn a_call_that_fails_or_asks_for_more_is_refused() {
    let moody = |disk: &SimDisk, (mood, recovery_threads)| {
        Engine::builder(stillpoint::Config { recovery_threads, ..config(disk, "command", 1) })
            .procedure("moody", move |of| Ok(Moody { table: of.table("numbers")?, mood }))
            .open()
    };
    let disk = SimDisk::new(1);
    let engine = moody(&disk, (LIKE_BEFORE, 2)).expect("opens");
    engine.session().expect("a session").call::<_, ()>("moody", &()).expect("commits");
    drop(engine);
    for (mood, why) in [
        (FAILS, "now fails: the transaction was abandoned: in a bad mood"),
        (PANICS, "in a bad mood"),
        (DECLARES_NOTHING, "in a bad mood"),
        (ASKS_FOR_MORE, "now fails: the key was not declared"),
        (WRITES_NOTHING, "the digest of its writes was"),
        (FINDS_A_KEY, "it asked for something that its record does not hold"),
    ] {
        for threads in [1, 2] {
            let refused = moody(&disk, (mood, threads)).expect_err("it does something else");
            let refused = refused.to_string();
            assert!(refused.contains("log 0, gsn 1: the call of procedure \"moody\""), "{refused}");
            assert!(refused.contains(why), "{refused}");
        }
    }
    let engine = moody(&disk, (LIKE_BEFORE, 2)).expect("recovers");
    assert_eq!(engine.len(engine.table("numbers").expect("a table")), 1);
}

/// Depends on what no log has: how often it was called.
struct Counts {
    table: TableId,
    calls: AtomicU64,
}

impl StoredProcedure for Counts {
    type Input = ();
    type Output = ();

    fn declare(&self, (): &(), keys: &mut KeySet) {
        keys.push(self.table, b"n", Mode::Write, 8);
    }

    fn run(&self, (): &(), tx: &mut Tx<'_>) -> Result<(), TxError> {
        // Relaxed: any change will do.
        tx.put_slot(Slot(0), &self.calls.fetch_add(1, Relaxed).to_le_bytes())
    }
}

pub(crate) fn a_procedure_with_an_unlogged_input_shows_itself() {
    let counting = |disk: &SimDisk, run_calls_twice, calls| {
        let config = stillpoint::Config { run_calls_twice, ..config(disk, "command", 1) };
        let make = move |of: &mut stillpoint::Tables<'_>| {
            Ok(Counts { table: of.table("numbers")?, calls: AtomicU64::new(calls) })
        };
        Engine::builder(config).procedure("counts", make).open()
    };
    let disk = SimDisk::new(1);
    let engine = counting(&disk, true, 0).expect("opens");
    let mut session = engine.session().expect("a session");
    let refused = session.call::<_, ()>("counts", &()).expect_err("two runs differ");
    let differs =
        |error: &TxError| matches!(error, TxError::NotDeterministic { name } if name == "counts");
    assert!(matches!(&refused, Error::Transaction(error) if differs(error)), "{refused}");
    assert_eq!(engine.len(engine.table("numbers").expect("a table")), 0, "nothing was written");
    drop(session);
    drop(engine);

    let engine = counting(&disk, false, 0).expect("opens");
    engine.session().expect("a session").call::<_, ()>("counts", &()).expect("commits");
    drop(engine);
    let refused = counting(&disk, false, 7).expect_err("it writes 7").to_string();
    assert!(refused.contains("diverges"), "{refused}");
}

/// Two runs of a sound procedure are equal.
pub(crate) fn a_sound_procedure_may_run_twice() {
    let disk = SimDisk::new(1);
    let settings = stillpoint::Config { run_calls_twice: true, ..config(&disk, "command", 2) };
    let engine = with_mix(settings).open().expect("opens");
    let mut model = State::new();
    let mut session = engine.session().expect("a session");
    for seed in 0..50 {
        let flags = seed as u8 % 4;
        let names = ["a", "b", "c", "d"].map(|name| name);
        let read = names[seed as usize % 4];
        let asked = Asked { flags, ..asked(seed, &[read], &[names[(seed as usize + 1) % 4]]) };
        call(&mut session, &asked, &mut model);
    }
    assert!(state(&engine) == model);
    assert_comes_back(&disk, &model);
}

/// Catches the refusal for lack of memory, and then writes something else.
struct Frugal {
    table: TableId,
}

impl StoredProcedure for Frugal {
    type Input = u64;
    type Output = bool;

    fn declare(&self, _: &u64, keys: &mut KeySet) {
        keys.push(self.table, b"large", Mode::Write, 0);
        keys.push(self.table, b"small", Mode::Write, 8);
    }

    fn run(&self, bytes: &u64, tx: &mut Tx<'_>) -> Result<bool, TxError> {
        let fits = tx.put_slot(Slot(0), &vec![7; *bytes as usize]).is_ok();
        tx.put_slot(Slot(1), &[u8::from(fits)])?;
        Ok(fits)
    }
}

/// A start has other limits, so what hangs on a limit is logged by its writes.
pub(crate) fn a_call_that_hangs_on_a_limit_is_logged_by_its_writes() {
    let frugal = |disk: &SimDisk| {
        let config =
            stillpoint::Config { max_memory_bytes: 32 << 20, ..config(disk, "command", 1) };
        let config = stillpoint::Config { log_segment_bytes: 64 << 20, ..config };
        Engine::builder(config)
            .procedure("frugal", |of| Ok(Frugal { table: of.table("numbers")? }))
            .open()
            .expect("opens")
    };
    let disk = SimDisk::new(1);
    let engine = frugal(&disk);
    let mut session = engine.session().expect("a session");
    assert!(session.call::<_, bool>("frugal", &1_000_u64).expect("commits"));
    assert!(!session.call::<_, bool>("frugal", &(40_u64 << 20)).expect("commits"));
    drop(session);
    drop(engine);
    let (engine, mut out) = (frugal(&disk), Vec::new());
    let table = engine.table("numbers").expect("a table");
    engine.session().expect("a session").read(table, b"small", &mut out).expect("reads");
    assert_eq!(out, [0]);
}

/// The MANIFEST notes each flush of a table for the calls of before. A full checkpoint makes the notes
/// superfluous, and one of changes does not. So many notes make a full one due, once.
pub(crate) fn many_flushes_make_a_full_checkpoint_due() {
    let disk = SimDisk::new(1);
    let mut config = config(&disk, "command", 1);
    config.checkpoint = "calc:partial".to_owned();
    config.environment.background = true;
    config.environment.clock = Arc::new(RealClock);
    let engine = with_mix(config).open().expect("opens");
    let table = engine.table(TABLES[0]).expect("a table");
    let (mut session, mut model) = (engine.session().expect("a session"), State::new());
    call(&mut session, &asked(1, &["x"], &["y"]), &mut model);
    engine.checkpoint().expect("the base of a chain");
    call(&mut session, &asked(2, &["x"], &["y"]), &mut model);
    for _ in 0..300 {
        engine.flush_tables(&[table]).expect("flushes");
    }
    let bytes = || read_all(&disk, Path::new("MANIFEST")).expect("reads").len();
    for _ in 0..1_000 {
        if engine.stats().checkpoints.published > 1 {
            break;
        }
        RealClock.sleep(Duration::from_millis(10));
    }
    let last = engine.stats().checkpoints.last.expect("published");
    assert_eq!(last.kind, CheckpointKind::Full);
    for _ in 0..100 {
        engine.flush_tables(&[table]).expect("flushes");
    }
    let few = bytes();
    assert!(few < 16_000, "{few} bytes");
    RealClock.sleep(Duration::from_millis(1_500));
    assert_eq!(engine.stats().checkpoints.published, 2, "few notes make none due");
}
