//! A transaction that stays open and holds locks of a SIREN table, as one that waits for a person. Whoever
//! meets it waits, and nobody else does.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use stillpoint::{
    Config, Engine, Error, KeySet, Kind, Mode, Procedure, Session, Slot, Stamp, TableId, Tx,
    TxError,
};
use stillpoint_io::{Clock, RealClock, SimDisk};

use super::{all, configure, put};

/// Longer than any wait of this test that should end.
const FOR_EVER: Duration = Duration::from_secs(60);

struct World {
    engine: Engine,
    siren: TableId,
    memory: TableId,
}

impl World {
    fn new(lock_timeout: Option<Duration>) -> Self {
        let mut config: Config = configure(&SimDisk::new(3));
        config.lock_timeout = lock_timeout;
        config.environment.clock = std::sync::Arc::new(RealClock);
        let engine = Engine::open(config).expect("opens");
        let siren = engine.table_with("orders", Kind::Siren).expect("a table");
        let memory = engine.table("memory").expect("a table");
        Self { engine, siren, memory }
    }

    fn session(&self) -> Session {
        self.engine.session().expect("a session")
    }
}

/// Puts keys, declared in their order.
struct Puts {
    keys: Vec<(TableId, &'static [u8])>,
    ended: Option<Result<Option<Stamp>, TxError>>,
}

impl Procedure for Puts {
    fn declare(&mut self, keys: &mut KeySet) {
        for (table, key) in &self.keys {
            keys.push(*table, key, Mode::Write, 8);
        }
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        (0..self.keys.len() as u32).try_for_each(|slot| tx.put_slot(Slot(slot), b"declared"))
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        self.ended = Some(result);
    }
}

fn execute(
    session: &mut Session,
    keys: Vec<(TableId, &'static [u8])>,
) -> Result<Option<Stamp>, TxError> {
    let mut puts = Puts { keys, ended: None };
    session.execute(std::slice::from_mut(&mut puts));
    puts.ended.expect("it has ended")
}

fn await_end(ended: &Receiver<()>, what: &str) {
    assert!(ended.recv_timeout(FOR_EVER).is_ok(), "{what} stands still");
}

/// An insertion into a range that an open transaction has read waits, whether it finds its keys on the way or
/// declares them. Others, on tables in memory and on other keys, go on meanwhile. In the end it commits.
#[test]
fn who_meets_an_open_range_holds_up_nobody() {
    let world = World::new(None);
    let mut open = world.session();
    let mut holder = open.begin().expect("begins");
    assert!(holder.tx().expect("open").range(world.siren, ..).expect("free").next_record().is_ok());
    let (done, ended) = channel();
    let is_waiting = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let (world, is_waiting, done) = (&world, &is_waiting, &done);
        for declares in [false, true] {
            scope.spawn(move || {
                let mut session = world.session();
                if declares {
                    let keys = vec![(world.memory, &b"shared"[..]), (world.siren, b"declared")];
                    execute(&mut session, keys).expect("commits");
                } else {
                    put(&mut session, world.siren, b"found", b"value");
                }
                is_waiting.store(false, SeqCst);
                let _ = done.send(());
            });
        }
        RealClock.sleep(Duration::from_millis(200));
        for _ in 0..3 {
            let done = done.clone();
            scope.spawn(move || {
                let mut session = world.session();
                for _ in 0..20 {
                    // The key that the declared transaction has, too.
                    put(&mut session, world.memory, b"shared", b"value");
                    execute(&mut session, vec![(world.memory, b"shared")]).expect("commits");
                }
                let _ = done.send(());
            });
        }
        for _ in 0..3 {
            await_end(&ended, "a bystander");
        }
        assert!(is_waiting.load(SeqCst), "an insertion into the range that was read");
        holder.commit().expect("commits");
        await_end(&ended, "the first insertion");
        await_end(&ended, "the second insertion");
    });
    assert_eq!(all(&mut open, world.siren).len(), 2);
}

/// As above, with a limit: the insertions end with a typed error, and leave nothing.
#[test]
fn who_meets_an_open_range_for_too_long_is_told() {
    let limit = Duration::from_millis(100);
    let world = World::new(Some(limit));
    let mut open = world.session();
    put(&mut open, world.siren, b"key", b"value");
    let mut holder = open.begin().expect("begins");
    assert!(holder.tx().expect("open").range(world.siren, ..).expect("free").next_record().is_ok());
    std::thread::scope(|scope| {
        let world = &world;
        let waits = scope.spawn(move || {
            let mut session = world.session();
            let found = session.transact(|tx| {
                tx.put(world.memory, b"memory", b"value")?;
                tx.put(world.siren, b"new", b"value")
            });
            let declared = execute(&mut session, vec![(world.siren, b"new")]);
            (found, declared)
        });
        let (found, declared) = waits.join().expect("no panic");
        let is_it =
            matches!(found, Err(Error::Transaction(TxError::LockTimeout { waited_ms: 100.. })));
        assert!(is_it, "{found:?}");
        let is_it = matches!(declared, Err(TxError::LockTimeout { waited_ms: 100.. }));
        assert!(is_it, "{declared:?}");
    });
    drop(holder);
    assert_eq!(all(&mut open, world.siren).len(), 1);
    let mut out = Vec::new();
    assert!(open.read(world.memory, b"memory", &mut out).expect("reads").is_none());
}

/// A flush of a table that an open transaction uses waits without the right to change tables. So checkpoints
/// and new tables go on, also on the thread of the open transaction.
#[test]
fn a_flush_that_waits_holds_up_no_checkpoint() {
    let world = World::new(None);
    let mut open = world.session();
    put(&mut open, world.siren, b"key", b"value");
    let mut holder = open.begin().expect("begins");
    holder.tx().expect("open").put(world.siren, b"held", b"value").expect("free");
    let (done, ended) = channel();
    std::thread::scope(|scope| {
        let world = &world;
        let flushes = done.clone();
        scope.spawn(move || {
            world.engine.flush_tables(&[world.siren]).expect("a sound disk");
            let _ = flushes.send(());
        });
        RealClock.sleep(Duration::from_millis(50));
        scope.spawn(move || {
            world.engine.table("another").expect("a table");
            world.engine.checkpoint().expect("a sound disk");
            let _ = done.send(());
        });
        await_end(&ended, "a checkpoint");
        holder.commit().expect("commits");
        await_end(&ended, "the flush");
    });
    assert!(all(&mut open, world.siren).is_empty());
}

/// A session that leaves held locks alone learns at once that a table is in use, and flushes it later.
#[test]
fn a_flush_leaves_a_table_in_use_alone() {
    let world = World::new(None);
    let (mut open, mut other) = (world.session(), world.session());
    put(&mut open, world.siren, b"key", b"value");
    let mut holder = open.begin().expect("begins");
    holder.tx().expect("open").put(world.siren, b"held", b"value").expect("free");
    other.leave_held(true);
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| other.flush_tables(&[world.siren]));
        let refused = flush.join().expect("no panic");
        assert!(matches!(refused, Err(Error::Transaction(TxError::Held))), "{refused:?}");
    });
    holder.commit().expect("commits");
    assert_eq!(all(&mut open, world.siren).len(), 2);
    other.flush_tables(&[world.siren]).expect("nobody uses it");
    assert!(all(&mut open, world.siren).is_empty());
}

/// A flush gives up after the longest wait for a lock.
#[test]
fn a_flush_that_waits_for_too_long_is_told() {
    let world = World::new(Some(Duration::from_millis(50)));
    let mut open = world.session();
    let mut holder = open.begin().expect("begins");
    holder.tx().expect("open").put(world.siren, b"held", b"value").expect("free");
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| world.engine.flush_tables(&[world.siren]));
        let refused = flush.join().expect("no panic");
        let is_it = matches!(refused, Err(Error::Transaction(TxError::LockTimeout { .. })));
        assert!(is_it, "{refused:?}");
    });
    holder.commit().expect("commits");
    assert_eq!(all(&mut open, world.siren).len(), 1);
}
