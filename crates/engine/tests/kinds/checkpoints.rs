//! Checkpoints of a store with two kinds of tables: in the middle of transactions, beside transactions,
//! and cut off at any call of the disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::Mutex;
use stillpoint::{Config, Error, QuiesceFor, Session, TxError};
use stillpoint_io::{Fault, SimDisk, spawn};

use crate::world::{World, configure};

type Found = BTreeMap<Vec<u8>, Vec<u8>>;

fn settings(disk: &SimDisk) -> Config {
    let mut config = configure(disk, 1, 2);
    config.checkpoint = "calc".to_owned();
    config
}

fn open(disk: &SimDisk) -> Arc<World> {
    Arc::new(World::open_with(settings(disk), 1, 0).expect("opens"))
}

fn put(session: &mut Session, world: &World, key: &[u8], value: &[u8]) {
    let written = session.transact(|tx| {
        tx.put(world.tables[0], key, value)?;
        tx.put(world.tables[1], key, value)
    });
    written.expect("commits");
}

/// The content of both tables, which must be the same.
fn state(world: &World) -> Found {
    let mut session = world.engine.session().expect("a session");
    let [memory, in_place] = world.tables.map(|table| {
        let mut found = Found::new();
        let mut note = |key: &[u8], value: stillpoint::ValueRef<'_>| {
            found.insert(key.to_vec(), value.to_vec());
        };
        let mut cursor = 0;
        loop {
            cursor = session.scan(table, cursor, 100, &mut note).expect("a sound store");
            if cursor == 0 {
                break;
            }
        }
        found
    });
    assert_eq!(memory, in_place, "both have the same");
    memory
}

fn checkpoint(world: &Arc<World>) -> bool {
    let world = world.clone();
    let take = move || world.engine.checkpoint().is_ok();
    spawn("checkpoint", take).expect("a thread").join().expect("no panic")
}

/// A transaction is open, with operations before a checkpoint and behind it. `cut` stops the machine at
/// that call of the checkpoint. Gives the disk at the crash, and the calls of the checkpoint.
fn open_across_a_checkpoint(cut: Option<u64>) -> (SimDisk, u64) {
    let disk = SimDisk::new(1);
    let world = open(&disk);
    let mut session = world.engine.session().expect("a session");
    let mut other = world.engine.session().expect("a session");
    for key in [b"a", b"b"] {
        put(&mut session, &world, key, b"before");
    }
    assert!(checkpoint(&world));
    put(&mut session, &world, b"c", b"before");
    let [memory, in_place] = world.tables;
    let (mut image, mut calls) = (None, 0);
    let stopped = session.transact(|tx| {
        for turn in 0..3 {
            tx.put(in_place, b"a", &[turn; 9])?;
            tx.put(in_place, b"new", &[turn; 20])?;
            tx.delete(in_place, b"b")?;
            tx.put(memory, b"a", b"after")?;
            if turn == 1 {
                let before = disk.call_counts().changes();
                if let Some(cut) = cut {
                    disk.fail_at(cut, Fault::PowerLoss);
                }
                let taken = checkpoint(&world);
                assert!(taken || cut.is_some());
                calls = disk.call_counts().changes() - before;
            }
        }
        if cut.is_none() {
            // Makes the log durable, the open operations included.
            put(&mut other, &world, b"other", b"other");
            image = Some(disk.crash_image(7));
        }
        Err::<(), _>(TxError::abandon("as the test wants it"))
    });
    assert!(stopped.is_err());
    (image.unwrap_or_else(|| disk.crash(7)), calls)
}

fn expected(keys: &[&[u8]]) -> Found {
    keys.iter().map(|key| (key.to_vec(), b"before".to_vec())).collect()
}

/// The opening undoes a transaction that was open at the crash, although a checkpoint has its first
/// operations. Neither a second crash nor a checkpoint in between changes the outcome.
pub(crate) fn a_transaction_open_across_a_checkpoint_is_undone() {
    let (image, calls) = open_across_a_checkpoint(None);
    let mut expected = expected(&[b"a", b"b", b"c"]);
    expected.insert(b"other".to_vec(), b"other".to_vec());
    let mut disk = image;
    for life in 0..3 {
        let world = open(&disk);
        assert_eq!(state(&world), expected, "life {life}");
        if life == 0 {
            assert!(world.kind.undone.load(Relaxed) > 0 && world.kind.left_out.load(Relaxed) > 0);
        } else {
            assert!(checkpoint(&world));
            assert_eq!(state(&world), expected, "life {life}, behind a checkpoint");
        }
        disk = disk.crash(life);
    }
    for cut in 1..=calls {
        let (image, _) = open_across_a_checkpoint(Some(cut));
        let world = open(&image);
        let found = state(&world);
        assert_eq!(found, self::expected(&[b"a", b"b", b"c"]), "cut off at call {cut}");
        assert!(checkpoint(&world), "cut off at call {cut}");
        let again = open(&image.crash(cut));
        assert_eq!(state(&again), found, "cut off at call {cut}, once more");
    }
}

/// While a checkpoint copies a table, transactions change records that are copied already, and
/// others that are not.
pub(crate) fn transactions_beside_a_checkpoint_are_in_it_or_replayed() {
    let disk = SimDisk::new(1);
    let world = open(&disk);
    let mut session = world.engine.session().expect("a session");
    let mut expected = Found::new();
    for key in b'a'..=b'l' {
        put(&mut session, &world, &[key], b"before");
        expected.insert(vec![key], b"before".to_vec());
    }
    let (weak, turns) = (Arc::downgrade(&world), Mutex::new((session, 0)));
    *world.kind.on_copy.lock() = Some(Arc::new(move || {
        let Some(world) = weak.upgrade() else { return };
        let (session, turn) = &mut *turns.lock();
        *turn += 1;
        put(session, &world, b"a", &[*turn]);
        put(session, &world, b"l", &[*turn]);
    }));
    assert!(checkpoint(&world));
    *world.kind.on_copy.lock() = None;
    let last = [state(&world)[&b"a"[..]][0]];
    assert!(last[0] > 2, "transactions ran beside the checkpoint");
    for key in [b'a', b'l'] {
        expected.insert(vec![key], last.to_vec());
    }
    assert_eq!(state(&world), expected);
    let again = open(&disk.kill());
    assert_eq!(state(&again), expected);
    assert!(again.kind.redone.load(Relaxed) > 0 && again.kind.left_out.load(Relaxed) > 0);
}

/// A checkpoint frees the logs, also those of earlier incarnations. A kind whose files are
/// published does not hold them any more.
pub(crate) fn logs_are_freed_behind_a_checkpoint_of_both_kinds() {
    let mut disk = SimDisk::new(1);
    let mut kept = Vec::new();
    for life in 0..3 {
        let world = open(&disk);
        let mut session = world.engine.session().expect("a session");
        for turn in 0..200_u64 {
            put(&mut session, &world, &[turn as u8 % 20], &(1000 * life + turn).to_le_bytes());
            if turn % 50 == 49 {
                assert!(checkpoint(&world));
            }
        }
        let stats = world.engine.stats();
        let holders: Vec<_> = stats.log_holders.iter().map(|holder| holder.name).collect();
        assert_eq!(holders, ["checkpoint", crate::in_place::NAME]);
        assert!(stats.log_holders.iter().all(|holder| holder.bytes < 50_000), "{stats:?}");
        kept.push(disk.used_bytes());
        let before = state(&world);
        drop((session, world));
        disk = disk.kill();
        let world = open(&disk);
        assert_eq!(state(&world), before);
        drop(world);
        disk = disk.kill();
    }
    assert!(kept[2] < 2 * kept[0], "{kept:?}");
}

/// A flush empties tables of both kinds, after a crash, too, whatever the newest checkpoint holds.
pub(crate) fn a_flush_empties_tables_of_both_kinds() {
    for crashes in [false, true] {
        let disk = SimDisk::new(1);
        let world = open(&disk);
        let mut session = world.engine.session().expect("a session");
        put(&mut session, &world, b"before", b"before");
        assert!(checkpoint(&world));
        put(&mut session, &world, b"between", b"between");
        world.engine.flush_tables(&world.tables).expect("a sound disk");
        assert_eq!(state(&world), Found::new());
        assert!(world.tables.iter().all(|&table| world.engine.len(table) == 0));
        put(&mut session, &world, b"after", b"after");
        let expected = Found::from([(b"after".to_vec(), b"after".to_vec())]);
        assert_eq!(state(&world), expected);
        if !crashes {
            assert!(checkpoint(&world));
        }
        drop((session, world));
        let world = open(&disk.kill());
        assert_eq!(state(&world), expected, "crashes: {crashes}");
    }
}

/// A flush comes in the middle of a checkpoint that has copied the table already.
pub(crate) fn a_flush_during_a_checkpoint_empties_what_it_has_copied() {
    let disk = SimDisk::new(1);
    let world = open(&disk);
    let mut session = world.engine.session().expect("a session");
    for key in b'a'..=b'l' {
        put(&mut session, &world, &[key], b"before");
    }
    let weak = Arc::downgrade(&world);
    *world.kind.on_copy.lock() = Some(Arc::new(move || {
        let Some(world) = weak.upgrade() else { return };
        world.engine.flush_tables(&world.tables).expect("a sound disk");
    }));
    assert!(checkpoint(&world));
    *world.kind.on_copy.lock() = None;
    put(&mut session, &world, b"later", b"later");
    let expected = Found::from([(b"later".to_vec(), b"later".to_vec())]);
    assert_eq!(state(&world), expected);
    drop((session, world));
    assert_eq!(state(&open(&disk.kill())), expected);
}

/// The published form of a point of consistency, in a store with tables of two kinds. A transaction that
/// waits to begin is not waited for. A checkpoint that would wait for its own thread is refused, and the
/// end of a store waits for no transaction.
pub(crate) fn a_published_point_waits_for_no_transaction_that_waits_for_it() {
    let disk = SimDisk::new(1);
    let mut config = settings(&disk);
    (config.checkpoint, config.quiesce_for) = ("zigzag".to_owned(), QuiesceFor::Transactions);
    let world = Arc::new(World::open_with(config, 1, 0).expect("opens"));
    let stops = Arc::new(AtomicBool::new(false));
    let (working, ends) = (world.clone(), stops.clone());
    let thread = spawn("commits", move || {
        let mut session = working.engine.session().expect("a session");
        for turn in 0_u64.. {
            put(&mut session, &working, &[turn as u8 % 20], &turn.to_le_bytes());
            if ends.load(Relaxed) {
                break;
            }
        }
    });
    for _ in 0..20 {
        world.engine.checkpoint().expect("a sound disk");
    }
    stops.store(true, Relaxed);
    thread.expect("a thread").join().expect("no panic");
    let mut session = world.engine.session().expect("a session");
    let open = session.begin().expect("begins");
    let refused = world.engine.checkpoint();
    assert!(matches!(refused, Err(Error::InsideTransaction { .. })), "{refused:?}");
    drop(open);
    world.engine.checkpoint().expect("a sound disk");
}
