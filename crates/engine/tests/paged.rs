//! Tests of paged tables on the simulated disk: tables larger than their pool, restarts, crashes, and what is
//! refused.

#[path = "paged/crashes.rs"]
mod crashes;
#[path = "paged/damage.rs"]
mod damage;
#[path = "common/histories.rs"]
mod histories;
#[path = "paged/large.rs"]
mod large;
#[path = "paged/load.rs"]
mod load;
#[path = "paged/offline.rs"]
mod offline;
#[path = "../examples/orders.rs"]
mod orders;
#[path = "paged/reads.rs"]
mod reads;
#[path = "paged/redo.rs"]
mod redo;

use std::collections::BTreeMap;
use std::sync::Arc;

use stillpoint::{
    Batch, Config, Durability, Engine, Environment, Error, Executed, KeySet, Kind, Mode, Procedure,
    Session, Slot, Stamp, TableId, Tx, TxError,
};
use stillpoint_io::{ManualClock, Rng, SeededRng, SimDisk};

const PAGE_BYTES: usize = 4096;

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

fn configure(disk: &SimDisk, pages: usize) -> Config {
    rustix::thread::disable_transparent_huge_pages(true).expect("Linux");
    let mut config = Config::new("unused");
    config.checkpoint_every = None;
    config.durability = Durability::Strict;
    config.sessions = 8;
    config.logs = 2;
    config.max_memory_bytes = 256 << 20;
    config.log_segment_bytes = 64 << 10;
    config.page_bytes = Some(PAGE_BYTES);
    config.pool_bytes = Some(pages * PAGE_BYTES);
    config.page_growth_bytes = 1 << 20;
    config.environment = Environment {
        disk: Some(Arc::new(disk.clone())),
        clock: Arc::new(ManualClock::self_advancing(1_700_000_000_000)),
        rng: Arc::new(SeededRng::new(1)),
        background: false,
        ..config.environment
    };
    config
}

fn open(disk: &SimDisk) -> (Engine, TableId) {
    let engine = Engine::open(configure(disk, 16)).expect("opens");
    let table = engine.table_with("orders", Kind::Paged).expect("a table");
    (engine, table)
}

fn put(session: &mut Session, table: TableId, key: &[u8], value: &[u8]) {
    session.transact(|tx| tx.put(table, key, value)).expect("commits");
}

fn all(session: &mut Session, table: TableId) -> Records {
    let read = session.transact(|tx| {
        let (mut records, mut range) = (Records::new(), tx.range(table, ..)?);
        while let Some((key, value)) = range.next_record()? {
            records.insert(key.to_vec(), value.to_vec());
        }
        Ok(records)
    });
    read.expect("reads")
}

/// Fills a table with several times its pool; gives its records.
fn fill(session: &mut Session, table: TableId, seed: u64) -> Records {
    let (rng, mut records) = (SeededRng::new(seed), Records::new());
    for _ in 0..1500 {
        let key = rng.below(2000).to_be_bytes().to_vec();
        if rng.below(5) == 0 {
            session.transact(|tx| tx.delete(table, &key)).expect("commits");
            records.remove(&key);
        } else {
            let value = vec![rng.below(256) as u8; 50 + rng.below(300) as usize];
            put(session, table, &key, &value);
            records.insert(key, value);
        }
    }
    records
}

#[test]
fn the_example_with_an_archive_runs() {
    orders::main().expect("a directory");
}

#[test]
fn a_table_larger_than_its_pool_survives_ends_and_crashes() {
    let disk = SimDisk::new(3);
    let (engine, table) = open(&disk);
    let mut session = engine.session().expect("a session");
    let mut records = fill(&mut session, table, 1);
    assert!(all(&mut session, table) == records);
    let stats = engine.stats().pool.expect("a pool");
    assert_eq!(stats.frames, 16);
    assert!(
        stats.hits > 500 && stats.evictions > 100 && stats.reads > 100 && stats.writes > 50,
        "{stats:?}"
    );
    engine.checkpoint().expect("a sound disk");
    records.extend(fill(&mut session, table, 2));
    let records = all(&mut session, table);
    session.flush().expect("a sound disk");
    let crashed = disk.crash_image(5);
    drop(session);
    engine.close().expect("closes");
    for (what, disk) in [("an end", disk.kill()), ("a crash", crashed)] {
        let (engine, table) = open(&disk);
        let mut session = engine.session().expect("a session");
        assert!(all(&mut session, table) == records, "{what} has lost something");
        assert_eq!(engine.len(table), records.len() as u64, "after {what}");
        put(&mut session, table, b"more", b"more");
    }
}

#[test]
fn one_transaction_changes_tables_of_all_kinds_or_none() {
    let disk = SimDisk::new(3);
    let (engine, paged) = open(&disk);
    let memory = engine.table("memory").expect("a table");
    let ordered = engine.table_with("ordered", Kind::Ordered).expect("a table");
    let mut session = engine.session().expect("a session");
    for fails in [false, true] {
        let value: &[u8] = if fails { b"never" } else { b"first" };
        let ended = session.transact(|tx| {
            for number in 0u32..200 {
                tx.put(paged, &number.to_be_bytes(), value)?;
            }
            tx.put(memory, b"key", value)?;
            tx.put(ordered, b"key", value)?;
            if fails { Err(TxError::abandon("as the test wants it")) } else { Ok(()) }
        });
        assert_eq!(ended.is_err(), fails, "{ended:?}");
    }
    session.flush().expect("a sound disk");
    let (engine, _) = open(&disk.crash_image(7));
    let mut session = engine.session().expect("a session");
    let found = all(&mut session, paged);
    assert_eq!(found.len(), 200);
    assert!(found.values().all(|value| value == b"first"));
    let mut out = Vec::new();
    session.read(memory, b"key", &mut out).expect("reads").expect("a value");
    assert_eq!(out, b"first");
    assert_eq!(all(&mut session, ordered).len(), 1);
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let disk = SimDisk::new(3);
    let refused = |setting: &str, change: &dyn Fn(&mut Config)| {
        let mut config = configure(&disk, 16);
        change(&mut config);
        let opened = Engine::open(config).map(drop);
        let is_it =
            matches!(&opened, Err(Error::Config { setting: found, .. }) if *found == setting);
        assert!(is_it, "{setting}: {opened:?}");
    };
    refused("pool", &|config| config.pool_bytes = Some(15 * PAGE_BYTES));
    refused("pool", &|config| config.pool_bytes = Some(config.max_memory_bytes));
    refused("page_size", &|config| config.page_bytes = Some(2048));
    refused("page_size", &|config| config.page_bytes = Some(12 << 10));
    for journal in ["none", "command", "undo-redo"] {
        refused("journal", &|config| {
            config.checkpoint = "none".to_owned();
            config.journal = journal.to_owned();
        });
    }
    let plain = |disk: &SimDisk| {
        let mut config = configure(disk, 16);
        config.pool_bytes = None;
        Engine::open(config)
    };
    let without = plain(&SimDisk::new(4)).expect("opens");
    let refused = without.table_with("orders", Kind::Paged);
    assert!(matches!(refused, Err(Error::Config { setting: "pool", .. })), "{refused:?}");
    // A store with paged tables is not opened without a pool, nor with pages of another size.
    let (engine, table) = open(&disk);
    put(&mut engine.session().expect("a session"), table, b"key", b"value");
    engine.checkpoint().expect("a sound disk");
    engine.close().expect("closes");
    let refused = plain(&disk).map(drop);
    let is_it = matches!(&refused, Err(Error::Config { setting: "pool", reason })
        if reason.contains("the store has paged tables (orders)"));
    assert!(is_it, "{refused:?}");
    let mut config = configure(&disk, 16);
    config.page_bytes = Some(8192);
    config.pool_bytes = Some(16 * 8192);
    assert!(Engine::open(config).is_err());
    open(&disk);
}

fn history(kinds: [Kind; 2], seed: u64) {
    let open = |disk: &SimDisk| Engine::open(configure(disk, 24)).expect("opens");
    let setting = histories::Setting { open, kinds, stays_open: false };
    histories::no_anomaly_across_crashes(setting, seed, 100);
}

#[test]
fn what_a_crash_leaves_is_closed_and_has_all_that_was_acknowledged() {
    crashes::what_a_crash_leaves_is_closed_and_has_all_that_was_acknowledged();
}

#[test]
fn a_crash_amid_a_redo_larger_than_the_pool_loses_nothing() {
    redo::a_crash_amid_a_redo_larger_than_the_pool();
}

#[test]
fn histories_of_paged_tables_have_no_anomaly() {
    (0..2).for_each(|seed| history([Kind::Paged, Kind::Paged], seed));
}

#[test]
fn histories_of_paged_tables_and_memory_have_no_anomaly() {
    (0..2).for_each(|seed| history([Kind::Paged, Kind::Ordered], seed));
}

#[test]
fn a_sound_store_is_never_called_damaged() {
    offline::a_sound_store_is_never_called_damaged();
}

#[test]
fn the_store_tells_the_size_of_its_pages() {
    offline::the_store_tells_the_size_of_its_pages();
}

#[test]
fn what_does_not_work_offline_is_refused_with_the_reason() {
    offline::what_does_not_work_is_refused_with_the_reason();
}

#[test]
fn a_page_with_a_flipped_bit_is_an_error_and_others_go_on() {
    damage::a_spoilt_page_is_an_error_and_others_go_on(damage::Spoilt::Flipped);
}

#[test]
fn a_stale_page_is_an_error_and_others_go_on() {
    damage::a_spoilt_page_is_an_error_and_others_go_on(damage::Spoilt::Stale);
}

#[test]
fn a_misplaced_page_is_an_error_and_others_go_on() {
    damage::a_spoilt_page_is_an_error_and_others_go_on(damage::Spoilt::Misplaced);
}

#[test]
fn a_damaged_map_falls_back_or_is_refused() {
    damage::a_damaged_map_falls_back_or_is_refused();
}

#[test]
fn a_failed_read_is_an_error_to_its_caller_alone() {
    reads::a_failed_read_is_an_error_to_its_caller_alone();
}

#[test]
fn a_failed_read_amid_a_rollback_fails_the_store() {
    reads::a_failed_read_amid_a_rollback_fails_the_store();
}

#[test]
fn a_batch_may_name_more_pages_than_the_pool_has() {
    reads::a_batch_may_name_more_pages_than_the_pool_has();
}

#[test]
fn sections_that_cannot_be_read_remove_nothing() {
    damage::sections_that_cannot_be_read_remove_nothing();
}

#[test]
fn pages_of_another_generation_are_found() {
    damage::pages_of_another_generation_are_found();
}

#[test]
fn a_wrong_number_of_records_is_found() {
    damage::a_wrong_number_of_records_is_found();
}

#[test]
fn an_error_of_the_program_is_no_damage() {
    damage::an_error_of_the_program_is_no_damage();
}

#[test]
fn keys_values_and_tables_beyond_the_limits_are_typed_errors() {
    let disk = SimDisk::new(3);
    let (engine, table) = open(&disk);
    let mut session = engine.session().expect("a session");
    let refused = session.transact(|tx| tx.put(table, &[7; 513], b"value"));
    let is_it = matches!(
        refused,
        Err(Error::Transaction(TxError::OrderedKeyTooLong { len: 513, limit: 512 }))
    );
    assert!(is_it, "{refused:?}");
    let refused = session.transact(|tx| tx.put(table, b"key", &vec![7; (512 << 20) + 1]));
    let is_it = matches!(refused, Err(Error::Transaction(TxError::ValueTooLong { .. })));
    assert!(is_it, "{refused:?}");
    put(&mut session, table, &[7; 512], &[7; 1024]);
    assert_eq!(all(&mut session, table).len(), 1);
    // Each table has its root in a frame.
    let made = (0..15).map(|number| engine.table_with(&format!("{number}"), Kind::Paged));
    let made: Vec<_> = made.collect();
    assert!(made[0].is_ok() && made[14].is_err());
    let calls = disk.call_counts().changes();
    assert!(engine.table_with("one more", Kind::Paged).is_err());
    assert_eq!(disk.call_counts().changes(), calls, "the MANIFEST never names such a table");
    put(&mut session, table, b"key", b"the store goes on");
}

#[test]
fn large_values_survive_crashes_and_leave_nothing_behind() {
    large::large_values_survive_crashes_and_leave_nothing_behind();
}

#[test]
fn a_value_is_patched_and_longer_than_the_pool() {
    large::a_value_is_patched_and_longer_than_the_pool();
}

#[test]
fn a_crash_amid_a_load_leaves_its_first_records() {
    load::a_crash_amid_a_load_leaves_its_first_records();
}

#[test]
fn a_load_leaves_what_puts_would_leave() {
    load::a_load_leaves_what_puts_would_leave();
}

#[test]
fn a_flush_empties_a_paged_table_for_good() {
    let disk = SimDisk::new(3);
    let (engine, table) = open(&disk);
    let mut session = engine.session().expect("a session");
    fill(&mut session, table, 1);
    engine.checkpoint().expect("a sound disk");
    engine.flush_tables(&[table]).expect("a sound disk");
    assert!(all(&mut session, table).is_empty());
    put(&mut session, table, b"key", b"new");
    session.flush().expect("a sound disk");
    let expected = Records::from([(b"key".to_vec(), b"new".to_vec())]);
    let crashed = disk.crash_image(9);
    let (engine, table) = open(&crashed);
    let mut session = engine.session().expect("a session");
    assert!(all(&mut session, table) == expected);
    let records = fill(&mut session, table, 2);
    engine.checkpoint().expect("a sound disk");
    let (engine, table) = open(&crashed.crash_image(1));
    let found = all(&mut engine.session().expect("a session"), table);
    assert!(records.iter().all(|(key, value)| found.get(key) == Some(value)));
}

/// Reads a key, declared, unless somebody else keeps it.
struct Reads {
    table: TableId,
    key: Vec<u8>,
    found: Option<Option<Vec<u8>>>,
}

impl Procedure for Reads {
    fn declare(&mut self, keys: &mut KeySet) {
        keys.push(self.table, &self.key, Mode::Read, 0);
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        self.found = Some(tx.value(Slot(0)).map(|value| value.to_vec()));
        Ok(())
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        match result {
            Ok(_) => assert!(self.found.is_some()),
            Err(TxError::WaitsForItself) => assert!(self.found.is_none()),
            Err(error) => panic!("{error}"),
        }
    }
}

/// What a transaction of a batch does.
#[derive(Clone, Copy, Debug)]
enum Act {
    Read,
    /// Ends with an error.
    Fails,
    /// Does not run.
    Refused,
    /// Writes the key that it has declared for reading.
    WritesUndeclared,
    /// Reads another key, which it has not declared.
    ReadsUndeclared,
    /// Gives the key the number of the transaction as its value.
    Writes,
}

/// Transactions of one key each.
struct Acts {
    table: TableId,
    acts: Vec<(Act, Vec<u8>)>,
    values: Records,
    /// The next transaction.
    next: usize,
    seen: usize,
}

impl Batch for Acts {
    fn len(&self) -> usize {
        self.acts.len()
    }
    fn declare(&mut self, index: usize, keys: &mut KeySet) {
        let (act, key) = &self.acts[index];
        let mode = if matches!(act, Act::Writes) { Mode::Write } else { Mode::Read };
        keys.push(self.table, key, mode, 8);
    }
    fn begins(&mut self, index: usize, _: &dyn Fn() -> usize) -> bool {
        assert_eq!(index, self.next, "asked once, in order");
        self.next += 1;
        !matches!(self.acts[index].0, Act::Refused)
    }
    fn run(&mut self, index: usize, tx: &mut Tx<'_>) -> Result<(), TxError> {
        assert_eq!(index + 1, self.next, "begun before");
        let (act, key) = self.acts[index].clone();
        let found = tx.value(Slot(0)).map(|value| value.to_vec());
        assert_eq!(found.as_ref(), self.values.get(&key), "transaction {index}");
        assert_eq!(tx.existed(Slot(0)), found.is_some());
        assert_eq!(tx.get(self.table, &key)?.map(|value| value.to_vec()), found);
        self.seen += usize::from(found.is_some());
        match act {
            Act::Read | Act::Refused => Ok(()),
            Act::Fails => Err(TxError::abandon("as the test wants it")),
            Act::WritesUndeclared => tx.put_slot(Slot(0), b"lost"),
            Act::ReadsUndeclared => tx.get(self.table, b"another").map(drop),
            Act::Writes => tx.put_slot(Slot(0), &index.to_le_bytes()),
        }
    }
    fn ended(&mut self, index: usize, result: Result<Option<Stamp>, TxError>) {
        assert_eq!(index + 1, self.next, "ended before the next one begins");
        let (act, key) = &self.acts[index];
        match (act, result) {
            (Act::Read, Ok(None))
            | (Act::Fails, Err(TxError::Abandoned(_)))
            | (Act::WritesUndeclared, Err(TxError::DeclaredForReading { .. }))
            | (Act::ReadsUndeclared, Err(TxError::NotDeclared)) => {}
            (Act::Writes, Ok(Some(_))) => {
                self.values.insert(key.clone(), index.to_le_bytes().to_vec());
            }
            (act, result) => panic!("transaction {index}, {act:?}: {result:?}"),
        }
    }
}

/// Transactions of a batch that read one key each run as if alone. They run in their order, beside transactions
/// that write, and an error is of one alone. Some values have pages of their own.
#[test]
fn reads_of_one_key_in_a_batch_are_transactions_of_their_own() {
    let (engine, table) = open(&SimDisk::new(5));
    let mut session = engine.session().expect("a session");
    let mut records = fill(&mut session, table, 1);
    let (rng, mut seen) = (SeededRng::new(1), 0);
    for number in 0..5u64 {
        let (key, value) = (number.to_be_bytes().to_vec(), vec![number as u8; 9000]);
        put(&mut session, table, &key, &value);
        records.insert(key, value);
    }
    for _ in 0..40 {
        let one = |_| {
            let act = match rng.below(16) {
                0 => Act::Fails,
                1 => Act::Refused,
                2 => Act::WritesUndeclared,
                3 => Act::ReadsUndeclared,
                4 => Act::Writes,
                _ => Act::Read,
            };
            (act, rng.below(2000).to_be_bytes().to_vec())
        };
        let acts = (0..1 + rng.below(100)).map(one).collect();
        let values = std::mem::take(&mut records);
        let mut batch = Acts { table, acts, values, next: 0, seen: 0 };
        session.execute(&mut batch);
        assert_eq!(batch.next, batch.acts.len());
        (records, seen) = (batch.values, seen + batch.seen);
    }
    assert!(seen > 500 && all(&mut session, table) == records);
}

/// Pages of keys that a transaction asks for are read together. Nobody waits for these keys.
#[test]
fn what_a_transaction_asks_for_is_read_ahead_and_not_locked() {
    let disk = SimDisk::new(8);
    let (engine, table) = open(&disk);
    let records = fill(&mut engine.session().expect("a session"), table, 8);
    engine.checkpoint().expect("a checkpoint");
    engine.close().expect("closes");
    // No page is in the pool at first, and all have room.
    let engine = Engine::open(configure(&disk, 400)).expect("opens");
    let memory = engine.table("memory").expect("a table");
    let [mut first, mut second] = [(); 2].map(|()| engine.session().expect("a session"));
    put(&mut first, memory, b"key", b"value");
    let reads = || engine.stats().pool.expect("a pool").reads;
    let keys: Vec<&[u8]> = records.keys().map(Vec::as_slice).step_by(records.len() / 4).collect();
    let mut open = first.begin().expect("begins");
    let mut tx = open.tx().expect("open");
    let asked = keys.iter().map(|key| (table, *key));
    let others = [(memory, &b"key"[..]), (memory, b"none"), (TableId(999), b"no table")];
    let before = reads();
    tx.prefetch(asked.clone().chain(others));
    let ahead = reads();
    assert!(ahead >= before + 4, "{before} pages, then {ahead}");
    for &key in &keys {
        let found = tx.get(table, key).expect("reads").map(|value| value.to_vec());
        assert_eq!(found.as_deref(), records.get(key).map(Vec::as_slice), "{key:?}");
    }
    assert_eq!(reads(), ahead, "all pages were here");
    let last = records.keys().last().expect("records");
    tx.prefetch(std::iter::once((table, last.as_slice())));
    drop(tx);
    put(&mut second, table, last, b"not locked");
    put(&mut second, memory, b"key", b"not locked");
    open.commit().expect("commits");
}

/// A batch reads beside an open transaction, which holds one of its keys.
#[test]
fn a_read_in_a_batch_waits_for_who_changes_its_key() {
    let (engine, table) = open(&SimDisk::new(6));
    let [mut first, mut second] = [(); 2].map(|()| engine.session().expect("a session"));
    for key in [b"a", b"b", b"c"] {
        put(&mut first, table, key, b"old");
    }
    let mut open = first.begin().expect("begins");
    open.tx().expect("open").put(table, b"b", b"new").expect("writes");
    let mut found = || {
        let reads = |key: &[u8; 1]| Reads { table, key: key.to_vec(), found: None };
        let mut batch = [b"a", b"b", b"c", b"a"].map(reads);
        second.execute_if_free(&mut batch[..]);
        batch.map(|read| read.found.map(|found| found.expect("it has a value")))
    };
    let [old, new] = [b"old", b"new"].map(|value| Some(value.to_vec()));
    assert_eq!(found(), [old.clone(), None, old.clone(), old.clone()]);
    open.commit().expect("commits");
    assert_eq!(found(), [old.clone(), new, old.clone(), old]);
}

/// The answer to a batch that reads waits for the commits that it shows, also of another log.
#[test]
fn a_read_in_a_batch_is_answered_when_what_it_shows_is_durable() {
    let (engine, table) = open(&SimDisk::new(7));
    let [mut first, mut second] = [(); 2].map(|()| engine.session().expect("a session"));
    let acts = vec![(Act::Writes, b"b".to_vec())];
    first.execute(&mut Acts { table, acts, values: Records::new(), next: 0, seen: 0 });
    for (key, shows) in [(b"a", false), (b"b", true)] {
        let reads = || Reads { table, key: key.to_vec(), found: None };
        let mut batch = [reads(), reads()];
        second.execute(&mut batch[..]);
        assert!(
            batch.iter().all(|read| read.found.as_ref().expect("it has run").is_some() == shows)
        );
        assert_eq!(engine.is_durable(&second.unflushed()), !shows);
    }
}

/// An event loop asks for pages, serves others meanwhile, and comes back.
#[test]
fn a_batch_that_may_not_wait_ends_when_its_pages_have_come() {
    let (engine, table) = open(&SimDisk::new(3));
    let mut session = engine.session().expect("a session");
    let records = fill(&mut session, table, 1);
    let mut returns = 0;
    for keys in records.keys().collect::<Vec<_>>().chunks(7) {
        let one = |key: &&Vec<u8>| Reads { table, key: key.to_vec(), found: None };
        let mut batch: Vec<Reads> = keys.iter().map(one).collect();
        let mut next = 0;
        while let Executed::Before { next: at, arrivals } =
            session.execute_here(&mut batch[..], next)
        {
            assert!(!arrivals.is_empty() && returns < 100_000);
            (next, returns) = (at, returns + 1);
        }
        for read in &batch {
            assert_eq!(read.found.as_ref().expect("it has run").as_ref(), records.get(&read.key));
        }
    }
    assert!(returns > 0, "the table is larger than its pool");
}

/// A commit is acknowledged upon a leaf that an open transaction of another log has split. The leaf was
/// evicted and read again in between.
#[test]
fn a_commit_depends_on_the_split_before_it_whichever_log_has_it() {
    for seed in 1..=4 {
        let disk = SimDisk::new(seed);
        let (engine, table) = open(&disk);
        let [mut first, mut second] = [(); 2].map(|()| engine.session().expect("a session"));
        for number in 0..200u8 {
            put(&mut second, table, &[200, number], &[1; 900]);
        }
        let mut splits = first.begin().expect("begins");
        for number in 0..8u8 {
            let mut tx = splits.tx().expect("no declared transaction");
            tx.put(table, &[1, number], &[2; 900]).expect("room");
        }
        let mut out = Vec::new();
        for number in 0..200u8 {
            // A key may share the word of one that the open transaction has locked.
            let _ = second.read(table, &[200, number], &mut out);
        }
        let key = (0..=u8::MAX)
            .map(|number| [1, 7, number])
            .find(|key| second.transact(|tx| tx.put(table, key, b"acknowledged")).is_ok());
        let key = key.expect("a key with a word of its own");
        let crashed = disk.crash_image(seed);
        let (engine, table) = open(&crashed);
        let found = all(&mut engine.session().expect("a session"), table);
        assert_eq!(found.get(&key[..]).map(Vec::as_slice), Some(&b"acknowledged"[..]));
        assert_eq!(found.len(), 201, "seed {seed}: the open transaction is undone");
        drop(splits);
    }
}
