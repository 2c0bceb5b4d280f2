//! Tests of the steps of a commit, taken outside of the store with an entry of the caller's own.
#![cfg(not(any(loom, shuttle)))]

use std::sync::Arc;

use stillpoint_store::{
    CellRules, Commit, CommitLog, LogRefused, Mode, NoLog, Phase, Shortage, Stamp, Store,
    StoreConfig, TableId, TxError, Worker,
};

const TABLE: TableId = TableId(0);

fn store() -> Arc<Store> {
    let config = StoreConfig { max_memory_bytes: 64 << 20, ..StoreConfig::default() };
    let store = Arc::new(Store::new(&config, CellRules::IN_PLACE).expect("address space"));
    store.add_table(TABLE, 1).expect("address space");
    store
}

fn worker(store: &Arc<Store>, log: impl CommitLog + 'static) -> Worker {
    Worker::new(store.clone(), Box::new(log)).expect("a free slot")
}

fn value(reader: &mut Worker, key: &[u8]) -> Option<(Vec<u8>, Stamp)> {
    let mut out = Vec::new();
    let seen = reader.read(TABLE, key, &mut out).expect("the table");
    seen.map(|seen| (out, seen.stamp))
}

/// Collects the stamps that answers depend on.
struct Wanting;

impl CommitLog for Wanting {
    fn append(&mut self, _: &Commit<'_>) -> Result<Stamp, LogRefused> {
        panic!("who takes the steps appends")
    }
    fn wait_for_room(&mut self) -> Result<(), LogRefused> {
        Ok(())
    }
    fn is_closed(&self, _: Stamp) -> bool {
        true
    }
    fn wants_dependencies(&self) -> bool {
        true
    }
}

#[test]
fn a_commit_takes_the_stamp_that_it_is_given() {
    let store = store();
    // A worker that ends waits for all read sections, including that of the commit.
    let mut reader = worker(&store, NoLog::default());
    let mut worker = worker(&store, Wanting);
    let stamp = Stamp::new(41, 7);
    let ended = worker.run_until_ended(|open| {
        open.tx().put(TABLE, b"key", b"value")?;
        let mut steps = open.begin_commit()?;
        assert_eq!(steps.prepare()?, None);
        assert!(steps.writes());
        let entry = steps.entry();
        let keys: Vec<Vec<u8>> = entry.writes.iter().map(|write| write.key.to_vec()).collect();
        assert_eq!((entry.epoch, keys), (store.driver().now().epoch(), vec![b"key".to_vec()]));
        assert_eq!(value(&mut reader, b"key"), None, "nobody sees what is not installed");
        steps.install(stamp);
        Ok(steps.release())
    });
    assert_eq!(ended.expect("commits"), Some(stamp));
    assert_eq!(value(&mut reader, b"key"), Some((b"value".to_vec(), stamp)));
    assert_eq!(worker.take_dependencies(), [stamp]);
}

#[test]
fn steps_that_are_dropped_change_nothing() {
    let store = store();
    worker(&store, NoLog::default())
        .transact(|tx| tx.put(TABLE, b"key", b"before"))
        .expect("memory");
    let mut reader = worker(&store, NoLog::default());
    let before = value(&mut reader, b"key");
    let mut first = worker(&store, NoLog::default());
    let ended: Result<(), TxError> = first.run_until_ended(|open| {
        open.tx().put(TABLE, b"key", &[1; 100_000])?;
        let mut steps = open.begin_commit()?;
        assert_eq!(steps.prepare()?, None);
        drop(steps);
        Err(TxError::abandon("as the test wants it"))
    });
    assert!(matches!(ended, Err(TxError::Abandoned(_))));
    assert_eq!(value(&mut reader, b"key"), before);
    worker(&store, NoLog::default())
        .transact(|tx| tx.put(TABLE, b"key", b"after"))
        .expect("the lock is free");
}

/// A log without room at first. While the commit waits, a checkpoint passes through its phases.
struct Full {
    store: Arc<Store>,
    waits: u32,
}

impl CommitLog for Full {
    fn append(&mut self, _: &Commit<'_>) -> Result<Stamp, LogRefused> {
        if self.waits == 0 { Err(LogRefused::NoRoom) } else { Ok(Stamp::new(9, 1)) }
    }
    fn wait_for_room(&mut self) -> Result<(), LogRefused> {
        self.waits += 1;
        // Each phase waits for a grace period, so the commit stands in no read section.
        for phase in [Phase::Prepare, Phase::Resolve] {
            self.store.driver().advance(phase);
        }
        Ok(())
    }
    fn is_closed(&self, _: Stamp) -> bool {
        true
    }
}

#[test]
fn a_commit_that_waits_leaves_its_section_and_reads_the_phase_anew() {
    let store = store();
    let mut worker = worker(&store, Full { store: store.clone(), waits: 0 });
    let ended = worker.run_until_ended(|open| {
        open.tx().put(TABLE, b"key", b"value")?;
        let mut steps = open.begin_commit()?;
        assert_eq!(steps.prepare()?, None);
        let before = steps.entry().epoch;
        assert!(matches!(steps.append(), Err(LogRefused::NoRoom)));
        steps.wait(Shortage::Log)?;
        assert_eq!(steps.prepare()?, None);
        assert_eq!(steps.entry().epoch, before + 1, "the point of consistency has passed");
        let stamp = steps.append()?;
        steps.install(stamp);
        Ok(steps.release())
    });
    assert_eq!(ended.expect("commits"), Some(Stamp::new(9, 1)));
    // The quiesce would wait for ever if a wait were still announced or a read section open.
    drop(store.driver().quiesce());
}

#[test]
fn a_conflict_that_the_body_hides_does_not_commit() {
    let store = store();
    let mut holder = worker(&store, NoLog::default());
    let mut other = worker(&store, NoLog::default());
    let mut runs = 0;
    holder
        .transact(|tx| {
            tx.put(TABLE, b"key", b"held")?;
            let ended = other.run_until_ended(|open| {
                runs += 1;
                if runs == 1 {
                    let met = open.tx().key(TABLE, b"key", Mode::Write);
                    assert!(matches!(met, Err(TxError::Conflict)));
                    let refused = open.begin_commit().map(|_| ());
                    assert!(matches!(refused, Err(TxError::Conflict)));
                }
                Ok(())
            });
            ended.expect("nothing is written");
            Ok(())
        })
        .expect("memory");
    assert_eq!(runs, 1);
}
