//! Tests that a transaction finds the same on each kind of table.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use stillpoint::{
    Error, Executed, KeySet, Mode, Procedure, Session, Slot, Stamp, TableId, Tx, TxError,
};
use stillpoint_io::{Clock, RealClock, Rng, SeededRng, SimDisk};

use crate::in_place::NAME;
use crate::world::{World, configure};

/// Each kind alone, and two kinds together: a transaction alternates between their tables. The numbers
/// are those of [`World::table_of`].
const KINDS: [[usize; 2]; 12] = [
    [0, 0],
    [1, 1],
    [0, 1],
    [1, 0],
    [2, 2],
    [0, 2],
    [2, 0],
    [2, 1],
    [3, 3],
    [0, 3],
    [3, 0],
    [3, 2],
];

fn world(absences: u64) -> World {
    World::open_all(&SimDisk::new(1), 1, 2, absences).expect("opens")
}

fn get(session: &mut Session, table: TableId, key: &[u8]) -> Option<(u8, Vec<u8>)> {
    let mut out = Vec::new();
    let seen = session.read(table, key, &mut out).expect("a sound store");
    seen.map(|seen| (seen.tag, out))
}

#[test]
fn a_transaction_sees_its_own_writes_and_leaves_them() {
    for (kinds, absences) in KINDS.iter().flat_map(|kinds| [(kinds, 0), (kinds, 60)]) {
        let world = world(absences);
        let [a, b] = kinds.map(|kind| world.table_of(kind));
        let mut session = world.engine.session().expect("a session");
        let stamps = session
            .transact(|tx| {
                tx.put_tagged(a, b"one", 7, b"first")?;
                tx.put(b, b"two", b"second")?;
                tx.patch(a, b"one", 3, b"ly and more")?;
                assert_eq!(
                    tx.get(a, b"one")?.map(|v| v.to_vec()),
                    Some(b"firly and more".to_vec())
                );
                assert!(tx.delete(b, b"two")?);
                assert!(!tx.delete(b, b"two")?, "it is gone already");
                assert!(tx.get(b, b"two")?.is_none());
                tx.put(b, b"three", b"third")?;
                let slot = tx.key(a, b"one", Mode::Read)?;
                assert_eq!(slot, tx.key(a, b"one", Mode::Write)?, "a key keeps its slot");
                assert!(!tx.existed(slot));
                assert_eq!(tx.key_hash(slot), tx.key_hash(slot));
                assert!(matches!(
                    tx.patch(b, b"three", 6, b"x"),
                    Err(TxError::PatchOutsideValue { offset: 6, len: 5 })
                ));
                Ok([tx.stamp(slot)])
            })
            .expect("commits");
        assert_eq!(stamps, [Stamp::NONE]);
        assert_eq!(get(&mut session, a, b"one"), Some((7, b"firly and more".to_vec())));
        assert_eq!(get(&mut session, b, b"two"), None);
        assert_eq!(get(&mut session, b, b"three"), Some((0, b"third".to_vec())));
        let stamps = session.transact(|tx| {
            let slots = [tx.key(a, b"one", Mode::Read)?, tx.key(b, b"three", Mode::Read)?];
            assert!(slots.iter().all(|&slot| tx.existed(slot)));
            Ok(slots.map(|slot| tx.stamp(slot)))
        });
        let [one, three] = stamps.expect("commits");
        assert_eq!(one, three, "both keys have the stamp of the one commit");
        assert!(!one.is_none());
        assert!(world.kind.is_unlocked());
        let waits = world.kind.waits.load(Relaxed);
        assert_eq!(waits > 0, absences > 0 && kinds.contains(&1), "{kinds:?}: {waits} waits");
    }
}

#[test]
fn what_fails_or_panics_leaves_nothing() {
    for kinds in KINDS {
        let world = world(20);
        let [a, b] = kinds.map(|kind| world.table_of(kind));
        let mut session = world.engine.session().expect("a session");
        session.transact(|tx| tx.put(a, b"one", b"before")).expect("commits");
        let change = |tx: &mut Tx<'_>| -> Result<(), TxError> {
            tx.put(a, b"one", b"changed")?;
            tx.put(b, b"two", b"added")?;
            tx.put(a, b"one", b"again")?;
            tx.delete(a, b"one").map(|_| ())
        };
        let failed = session.transact(|tx| {
            change(tx)?;
            Err::<(), _>(TxError::abandon("as the test wants it"))
        });
        assert!(matches!(failed, Err(Error::Transaction(TxError::Abandoned(_)))));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = session.transact(|tx| {
                change(tx)?;
                if tx.get(b, b"two")?.is_some() {
                    panic!("as the test wants it");
                }
                Ok(())
            });
        }));
        assert!(panicked.is_err());
        assert_eq!(get(&mut session, a, b"one"), Some((0, b"before".to_vec())));
        assert_eq!(get(&mut session, b, b"two"), None);
        assert!(world.kind.is_unlocked());
        session.transact(|tx| change(tx)).expect("the session goes on");
    }
}

/// Moves an amount between two declared accounts.
struct Move {
    from: (TableId, Vec<u8>),
    to: (TableId, Vec<u8>),
    fails: bool,
    ended: Option<Result<Option<Stamp>, TxError>>,
}

impl Procedure for Move {
    fn declare(&mut self, keys: &mut KeySet) {
        for (table, key) in [&self.from, &self.to] {
            keys.push(*table, key, Mode::Write, 8);
        }
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let balance = |tx: &mut Tx<'_>, slot| tx.value(slot).and_then(|value| value.u64_at(0));
        let from = balance(tx, Slot(0)).expect("an account");
        tx.put_slot(Slot(0), &(from - 1).to_le_bytes())?;
        if self.fails {
            return Err(TxError::abandon("as the test wants it"));
        }
        // The balance is read again, since both may be one account.
        let to = balance(tx, Slot(1)).expect("an account");
        tx.put_slot(Slot(1), &(to + 1).to_le_bytes())
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        self.ended = Some(result);
    }
}

const ACCOUNTS: u64 = 6;
const BALANCE: u64 = 1_000_000;

fn account(number: u64) -> Vec<u8> {
    vec![b'a', number as u8]
}

fn fill(world: &World) {
    let mut session = world.engine.session().expect("a session");
    let filled = session.transact(|tx| {
        for (table, number) in world.tables.iter().flat_map(|&t| (0..ACCOUNTS).map(move |n| (t, n)))
        {
            tx.put(table, &account(number), &BALANCE.to_le_bytes())?;
        }
        Ok(())
    });
    filled.expect("commits");
}

fn sum(world: &World) -> u64 {
    let mut session = world.engine.session().expect("a session");
    let sum = session.transact(|tx| {
        let mut sum = 0;
        for (table, number) in world.tables.iter().flat_map(|&t| (0..ACCOUNTS).map(move |n| (t, n)))
        {
            sum += tx.get(table, &account(number))?.and_then(|v| v.u64_at(0)).expect("an account");
        }
        Ok(sum)
    });
    sum.expect("commits")
}

fn client(world: &World, seed: u64, turns: u64) {
    let rng = SeededRng::new(seed);
    let mut session = world.engine.session().expect("a session");
    let pick = || (world.tables[rng.below(2) as usize], account(rng.below(ACCOUNTS)));
    for _ in 0..turns {
        if rng.below(2) == 0 {
            let mut batch: Vec<Move> = (0..1 + rng.below(5))
                .map(|_| Move { from: pick(), to: pick(), fails: rng.below(8) == 0, ended: None })
                .collect();
            session.execute(&mut batch[..]);
            for one in &batch {
                match one.ended.as_ref().expect("each ends") {
                    Ok(stamp) => assert!(stamp.is_some() && !one.fails),
                    Err(TxError::Abandoned(_)) => assert!(one.fails),
                    Err(error) => panic!("a declared transaction failed: {error}"),
                }
            }
        } else {
            let (from, to, fails) = (pick(), pick(), rng.below(8) == 0);
            let moved = session.transact(|tx| {
                let have = tx.get(from.0, &from.1)?.and_then(|v| v.u64_at(0)).expect("an account");
                tx.put(from.0, &from.1, &(have - 1).to_le_bytes())?;
                std::thread::yield_now();
                let there = tx.get(to.0, &to.1)?.and_then(|v| v.u64_at(0)).expect("an account");
                tx.put(to.0, &to.1, &(there + 1).to_le_bytes())?;
                if fails { Err(TxError::abandon("as the test wants it")) } else { Ok(()) }
            });
            assert_eq!(moved.is_err(), fails, "{moved:?}");
        }
    }
}

#[test]
fn transfers_among_kinds_keep_the_sum_and_end() {
    let world = Arc::new(world(10));
    fill(&world);
    let clients = (1..=3).map(|seed| {
        let world = world.clone();
        stillpoint_io::spawn("client", move || client(&world, seed, 400)).expect("a thread")
    });
    let clients: Vec<_> = clients.collect();
    for _ in 0..20 {
        assert_eq!(sum(&world), 2 * ACCOUNTS * BALANCE);
        RealClock.sleep(Duration::from_millis(1));
    }
    for client in clients {
        client.join().expect("a client does not panic");
    }
    assert_eq!(sum(&world), 2 * ACCOUNTS * BALANCE);
    assert_eq!(world.kind.behind.load(Relaxed), 0, "the clock went back");
    assert!(world.kind.is_unlocked());
    assert!(world.kind.undone.load(Relaxed) > 0, "nothing was undone");
}

/// A flush of tables waits for all read sections. The flush ends while a transaction waits for a
/// key that is not in memory. So the transaction stands in no read section.
#[test]
fn who_waits_stands_in_no_read_section() {
    let world = Arc::new(world(50));
    fill(&world);
    let other = world.engine.table("another").expect("a table");
    let engine = Arc::downgrade(&world);
    *world.kind.on_wait.lock() = Some(Arc::new(move || {
        let Some(world) = engine.upgrade() else { return };
        let flush = move || world.engine.flush_tables(&[other]).expect("a sound store");
        stillpoint_io::spawn("flush", flush).expect("a thread").join().expect("no panic");
    }));
    let waits = || world.kind.waits.load(Relaxed);
    let mut session = world.engine.session().expect("a session");
    let [memory, in_place] = world.tables;
    while waits() < 10 {
        session
            .transact(|tx| {
                tx.put(memory, b"key", b"value")?;
                tx.put(in_place, b"key", b"value")
            })
            .expect("commits");
    }
    while waits() < 40 {
        let [from, to] = [(memory, account(1)), (in_place, account(2))];
        let mut batch = [Move { from, to, fails: false, ended: None }];
        session.execute(&mut batch[..]);
        assert!(matches!(batch[0].ended, Some(Ok(Some(_)))), "{:?}", batch[0].ended);
    }
    *world.kind.on_wait.lock() = None;
}

#[test]
fn a_declared_transaction_keeps_to_its_keys() {
    let world = world(0);
    fill(&world);
    struct Stray(TableId, Option<TxError>);
    impl Procedure for Stray {
        fn declare(&mut self, keys: &mut KeySet) {
            keys.push(self.0, &account(1), Mode::Read, 8);
        }
        fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
            assert!(tx.value(Slot(0)).is_some());
            assert_eq!(tx.key(self.0, &account(1), Mode::Read)?, Slot(0));
            let written = tx.put(self.0, &account(1), b"no");
            assert!(matches!(written, Err(TxError::DeclaredForReading { slot: 0 })));
            tx.get(self.0, &account(2)).map(|_| ())
        }
        fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
            self.1 = result.err();
        }
    }
    let mut session = world.engine.session().expect("a session");
    let mut stray = Stray(world.tables[1], None);
    session.execute(std::slice::from_mut(&mut stray));
    assert!(matches!(stray.1, Some(TxError::NotDeclared)), "{:?}", stray.1);
}

/// As an event loop does it: a key that is not in memory is on its way, the loop serves others
/// meanwhile, and nobody waits.
#[test]
fn a_batch_that_may_not_wait_says_what_it_lacks() {
    for absences in [0, 30, 60] {
        let world = world(absences);
        *world.kind.on_wait.lock() = None;
        fill(&world);
        let mut session = world.engine.session().expect("a session");
        let (before, mut returns) = (world.kind.waits.load(Relaxed), 0);
        let undone = world.kind.undone.load(Relaxed);
        for turn in 0..60 {
            let pick = |n: u64| (world.tables[(turn / 2 + n) as usize % 2], account(n % ACCOUNTS));
            let mut batch: Vec<Move> = (0..5)
                .map(|n| Move {
                    from: pick(n),
                    to: pick(n + 1 + turn % 2),
                    fails: n == 3,
                    ended: None,
                })
                .collect();
            let mut next = 0;
            while let Executed::Before { next: at, arrivals } =
                session.execute_here(&mut batch[..], next)
            {
                assert!(at >= next && at < 5 && !arrivals.is_empty());
                let (ended, rest) = batch.split_at(at);
                assert!(ended.iter().all(|of| of.ended.is_some()));
                assert!(rest.iter().all(|of| of.ended.is_none()));
                assert!(arrivals.iter().all(|arrival| arrival.has_arrived()));
                assert!(world.kind.is_unlocked(), "nothing is held meanwhile");
                next = at;
                returns += 1;
            }
            for (n, one) in batch.iter().enumerate() {
                let ended = one.ended.as_ref().expect("each ends");
                assert_eq!(ended.is_err(), n == 3, "{ended:?}");
            }
        }
        assert_eq!(world.kind.waits.load(Relaxed), before, "it has waited");
        assert_eq!(returns > 0, absences > 0, "{returns} returns");
        let undone = world.kind.undone.load(Relaxed) - undone;
        // Every second failing transaction has changed a table in place. Others lack a key in the
        // middle.
        assert!(undone >= 30 && (undone > 30) == (absences > 0), "{undone} operations undone");
        assert_eq!(sum(&world), 2 * ACCOUNTS * BALANCE);
    }
}

/// All batches run by `execute_here` where every table is in memory.
#[test]
fn a_batch_in_memory_runs_from_any_transaction_on() {
    let engine = stillpoint::Engine::open(configure(&SimDisk::new(1), 1, 1)).expect("opens");
    let table = engine.table("in memory").expect("a table");
    let mut session = engine.session().expect("a session");
    let accounts = |tx: &mut Tx<'_>| {
        (0..2).try_for_each(|n| tx.put(table, &account(n), &BALANCE.to_le_bytes()))
    };
    session.transact(accounts).expect("commits");
    let [from, to] = [0, 1].map(|n| (table, account(n)));
    let one = || Move { from: from.clone(), to: to.clone(), fails: false, ended: None };
    let mut batch = [one(), one(), one()];
    assert!(matches!(session.execute_here(&mut batch[..], 1), Executed::All));
    assert!(batch[0].ended.is_none() && batch[1..].iter().all(|of| of.ended.is_some()));
    let mut out = Vec::new();
    session.read(table, &account(1), &mut out).expect("reads");
    assert_eq!(out, (BALANCE + 2).to_le_bytes());
}

/// A scan meets each key once, and the number of keys is that of the committed keys.
#[test]
fn a_walk_over_a_table_of_any_kind_sees_what_has_committed() {
    let world = world(40);
    fill(&world);
    let mut session = world.engine.session().expect("a session");
    for table in world.tables {
        for count in [1, 2, 5, 100] {
            let (mut seen, mut cursor) = (Vec::new(), 0);
            loop {
                let mut note = |key: &[u8], value: stillpoint::ValueRef<'_>| {
                    assert_eq!(value.u64_at(0), Some(BALANCE));
                    seen.push(key.to_vec());
                };
                cursor = session.scan(table, cursor, count, &mut note).expect("a sound store");
                if cursor == 0 {
                    break;
                }
            }
            seen.sort();
            assert_eq!(seen, (0..ACCOUNTS).map(account).collect::<Vec<_>>(), "count {count}");
        }
        let (mut heads, mut cursor) = (Vec::new(), 0);
        loop {
            let mut note = |_: &[u8], value: stillpoint::ValueRef<'_>| heads.push(value.to_vec());
            cursor = session.scan_heads(table, cursor, 4, 3, &mut note).expect("a sound store");
            if cursor == 0 {
                break;
            }
        }
        assert_eq!(heads, vec![BALANCE.to_le_bytes()[..3].to_vec(); ACCOUNTS as usize]);
        let count = || world.engine.len(table);
        assert_eq!(count(), ACCOUNTS);
        let failed = session.transact(|tx| {
            tx.delete(table, &account(0))?;
            tx.put(table, b"more", b"more")?;
            tx.put(table, b"and more", b"more")?;
            assert_eq!(count(), ACCOUNTS, "nothing has committed");
            Err::<(), _>(TxError::abandon("as the test wants it"))
        });
        assert!(failed.is_err());
        assert_eq!(session.len(table).expect("a sound store"), ACCOUNTS);
        session.transact(|tx| tx.delete(table, &account(0))).expect("commits");
        assert_eq!(session.len(table).expect("a sound store"), ACCOUNTS - 1);
    }
}

#[test]
fn an_unknown_kind_is_refused() {
    let disk = SimDisk::new(1);
    let world = World::open(&disk, 1, 1, 0).expect("opens");
    let table = world.tables[1];
    assert!(matches!(world.engine.table_of_kind("in memory", NAME), Err(Error::TableName { .. })));
    assert!(matches!(world.engine.table_of_kind("x", "unknown"), Err(Error::Config { .. })));
    assert_eq!(world.engine.table("in place").expect("found by its name"), table);
    drop(world);
    // The store is not opened without the kind, nor without a journal.
    let plain = stillpoint::Engine::open(configure(&disk, 1, 1));
    assert!(matches!(plain, Err(Error::Manifest { .. })), "{plain:?}");
    // Nor with before-images, which the records of other kinds do not have.
    for journal in ["none", "undo-redo"] {
        let mut config = configure(&disk, 1, 1);
        config.checkpoint = "none".to_owned();
        config.journal = journal.to_owned();
        let opened = World::open_with(config, 1, 0).map(|_| ());
        assert!(matches!(opened, Err(Error::Config { setting: "journal", .. })), "{opened:?}");
    }
}

/// A transaction stays open across calls. The transaction has a name once it has changed anything
/// in place, and ends by a commit, a drop or a conflict.
#[test]
fn a_transaction_lives_across_calls() {
    for (kinds, absences) in KINDS.iter().flat_map(|kinds| [(kinds, 0), (kinds, 40)]) {
        let world = world(absences);
        let [a, b] = kinds.map(|kind| world.table_of(kind));
        let mut session = world.engine.session().expect("a session");
        let mut other = world.engine.session().expect("a session");
        let mut transaction = session.begin().expect("begins");
        assert_eq!(transaction.first_record(), None);
        transaction.tx().expect("not in a batch").put(a, b"one", b"first").expect("no conflict");
        transaction.tx().expect("not in a batch").put(b, b"two", b"second").expect("no conflict");
        let name = transaction.first_record();
        assert_eq!(name.is_some(), kinds != &[0, 0], "{kinds:?}");
        // Others go on, and so does a checkpoint.
        other.transact(|tx| tx.put(world.tables[0], b"other", b"other")).expect("commits");
        let taken = world.engine.checkpoint();
        assert!(taken.is_ok() || world.engine.config().checkpoint == "none", "{taken:?}");
        transaction.tx().expect("not in a batch").put(a, b"one", b"again").expect("no conflict");
        assert_eq!(transaction.first_record(), name, "the name stays");
        let one = transaction
            .tx()
            .expect("not in a batch")
            .get(a, b"one")
            .expect("no conflict")
            .map(|v| v.to_vec());
        assert_eq!(one.as_deref(), Some(&b"again"[..]), "it sees its own writes");
        transaction.commit().expect("commits");
        assert_eq!(get(&mut session, a, b"one"), Some((0, b"again".to_vec())));
        assert_eq!(get(&mut session, b, b"two"), Some((0, b"second".to_vec())));
        let mut dropped = session.begin().expect("begins");
        dropped.tx().expect("not in a batch").put(a, b"one", b"never").expect("no conflict");
        dropped.tx().expect("not in a batch").delete(b, b"two").expect("no conflict");
        drop(dropped);
        assert_eq!(get(&mut session, a, b"one"), Some((0, b"again".to_vec())));
        assert_eq!(get(&mut session, b, b"two"), Some((0, b"second".to_vec())));
        assert!(world.kind.is_unlocked());
        // The younger one may not wait for the older one.
        let mut older = session.begin().expect("begins");
        older.tx().expect("not in a batch").put(a, b"one", b"older").expect("no conflict");
        let mut younger = other.begin().expect("begins");
        let met = younger.tx().expect("not in a batch").put(a, b"one", b"younger");
        assert!(matches!(met, Err(TxError::Conflict)), "{met:?}");
        let ended = younger.commit();
        assert!(matches!(ended, Err(Error::Transaction(TxError::Conflict))), "{ended:?}");
        older.commit().expect("commits");
        assert_eq!(get(&mut other, a, b"one"), Some((0, b"older".to_vec())));
        assert!(world.kind.is_unlocked());
    }
}

/// A crash, and the end of the engine, leave nothing of a transaction that was open.
#[test]
fn what_was_open_at_the_end_has_not_happened() {
    for (kinds, closes) in KINDS.iter().flat_map(|kinds| [(kinds, false), (kinds, true)]) {
        let disk = SimDisk::new(1);
        let world = World::open_all(&disk, 1, 2, 0).expect("opens");
        let [a, b] = kinds.map(|kind| world.table_of(kind));
        let mut session = world.engine.session().expect("a session");
        session.transact(|tx| tx.put(a, b"one", b"before")).expect("commits");
        let mut open = session.begin().expect("begins");
        open.tx().expect("not in a batch").put(a, b"one", b"open").expect("no conflict");
        open.tx().expect("not in a batch").put(b, b"two", b"open").expect("no conflict");
        let other = world.engine.session().expect("a session").transact(|tx| {
            // The flush of this commit also makes the operations of the open transaction durable.
            tx.put(world.tables[0], b"other", b"other")
        });
        other.expect("commits");
        let after = if closes {
            let World { engine, .. } = world;
            engine.close().expect("closes");
            let ended = open.commit();
            assert!(matches!(ended, Err(Error::Ended)), "{ended:?}");
            assert!(matches!(session.begin().map(drop), Err(Error::Ended)));
            drop(session);
            disk.kill()
        } else {
            disk.crash(7)
        };
        let world = World::open_all(&after, 1, 2, 0).expect("opens again");
        let [a, b] = kinds.map(|kind| world.table_of(kind));
        let mut session = world.engine.session().expect("a session");
        assert_eq!(get(&mut session, a, b"one"), Some((0, b"before".to_vec())), "{kinds:?}");
        assert_eq!(get(&mut session, b, b"two"), None, "{kinds:?}, closed: {closes}");
        assert!(get(&mut session, world.tables[0], b"other").is_some());
        assert!(world.kind.is_unlocked());
    }
}

/// Puts a key, declared.
struct Puts(TableId);

impl Procedure for Puts {
    fn declare(&mut self, keys: &mut KeySet) {
        keys.push(self.0, b"declared", Mode::Write, 8);
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        tx.put_slot(Slot(0), b"value")
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        result.expect("commits");
    }
}

#[test]
fn a_named_session_commits_to_each_kind_with_its_serial() {
    for kinds in KINDS {
        let disk = SimDisk::new(1);
        let open = |disk: &SimDisk| World::open_all(disk, 1, 2, 0).expect("opens");
        let world = open(&disk);
        let tables = kinds.map(|kind| world.table_of(kind));
        let mut session = world.engine.session_named("one").expect("a name");
        for table in tables {
            session.transact(|tx| tx.put(table, b"found", b"value")).expect("commits");
            session.transact(|tx| Ok(tx.get(table, b"found")?.is_some())).expect("reads");
            session.execute(&mut [Puts(table)][..]);
            assert!(matches!(session.execute_here(&mut [Puts(table)][..], 0), Executed::All));
            let mut transaction = session.begin().expect("begins");
            transaction.tx().expect("open").put(table, b"open", b"value").expect("puts");
            transaction.commit().expect("commits");
        }
        session.flush().expect("flushes");
        assert_eq!((session.serial(), session.durable_serial()), (10, 10), "{kinds:?}");
        let session = open(&disk.crash(1)).engine.session_named("one").expect("a name");
        assert_eq!(session.serial(), 10, "{kinds:?}");
    }
}

/// A flush of tables ends the transaction when it is about to write its serial.
#[test]
fn a_named_session_whose_commit_is_refused_leaves_nothing() {
    let world = World::open(&SimDisk::new(1), 1, 2, 0).expect("opens");
    let [memory, in_place] = world.tables;
    let mut session = world.engine.session_named("one").expect("a name");
    session.transact(|tx| tx.put(in_place, b"key", b"old")).expect("commits");
    let mut transaction = session.begin().expect("begins");
    transaction.tx().expect("open").put(memory, b"key", b"new").expect("puts");
    transaction.tx().expect("open").put(in_place, b"key", b"new").expect("puts");
    std::thread::scope(|threads| {
        let flushed = threads.spawn(|| world.engine.flush_tables(&[memory])).join();
        flushed.expect("no panic").expect("empties");
    });
    let refused = transaction.commit();
    assert!(matches!(refused, Err(Error::Transaction(TxError::Conflict))), "{refused:?}");
    assert!(world.kind.is_unlocked());
    assert_eq!(get(&mut session, in_place, b"key"), Some((0, b"old".to_vec())));
    assert_eq!(session.serial(), 2, "a commit and a read");
}
