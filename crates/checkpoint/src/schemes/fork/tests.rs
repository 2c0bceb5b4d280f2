//! Failures of the child, and its memory.

use std::io::ErrorKind;
use std::sync::OnceLock;

use stillpoint_io::RealClock;
use stillpoint_store::{
    CellRules, DeletedKey, Lane, NoLog, RecordImage, Sink, StoreConfig, TableId, TxError, Worker,
};
use stillpoint_sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use super::*;
use crate::{CheckpointError, Cycle, NoSchemeLog, Pace, Progress, Wanted, run_checkpoint};

const TABLE: TableId = TableId(0);

/// What a test makes fail next.
#[derive(Debug, Default)]
struct Faults {
    /// The fork fails so.
    fork: Mutex<Option<ErrorKind>>,
    /// Reads fail so, once this many have succeeded.
    read: Mutex<Option<(usize, ErrorKind)>>,
    reads: AtomicUsize,
    /// Where each read looks how much memory counts, apart from the child's pages.
    store: OnceLock<Arc<Store>>,
    counted_max: AtomicUsize,
}

struct Faulty {
    forked: ForkedMemory,
    faults: Arc<Faults>,
}

impl HeldMemory for Faulty {
    fn read(&self, words: &[AtomicU64], bytes: &mut [u8]) -> Result<(), ForkError> {
        let number = self.faults.reads.fetch_add(1, Relaxed);
        if let Some(store) = self.faults.store.get() {
            self.faults.counted_max.fetch_max(counted(store), Relaxed);
        }
        match *self.faults.read.lock() {
            Some((after, kind)) if number >= after => {
                Err(ForkError::new("read a child's memory", kind))
            }
            _ => HeldMemory::read(&self.forked, words, bytes),
        }
    }

    fn private_bytes(&self) -> u64 {
        self.forked.copied_bytes()
    }
}

/// Bytes that count against the memory limit, apart from the child's pages.
fn counted(store: &Store) -> usize {
    while store.maintain() {}
    store.held_bytes() - store.child_bytes().0
}

/// A child whose pages count for more than the memory limit, while a worker writes.
struct Heavy {
    forked: ForkedMemory,
    store: Arc<Store>,
    refused: Arc<AtomicUsize>,
}

impl HeldMemory for Heavy {
    fn read(&self, words: &[AtomicU64], bytes: &mut [u8]) -> Result<(), ForkError> {
        while self.store.maintain() {}
        self.refused.fetch_add(refused(&self.store), Relaxed);
        HeldMemory::read(&self.forked, words, bytes)
    }

    fn private_bytes(&self) -> u64 {
        LIMIT_BYTES as u64
    }
}

const LIMIT_BYTES: usize = 64 << 20;

/// Puts a few values that need memory, and deletes them. Returns how many were refused for lack of it.
fn refused(store: &Arc<Store>) -> usize {
    let mut worker = Worker::new(store.clone(), Box::new(NoLog::default())).expect("a slot");
    let keys = 0..16u8;
    let put = |worker: &mut Worker, key: u8| {
        worker.transact(|tx| tx.put(TABLE, &[key], &vec![key; 1 << 20]))
    };
    let refused = keys.clone().filter(|&key| match put(&mut worker, key) {
        Ok(()) => false,
        Err(TxError::Memory(_)) => true,
        Err(error) => panic!("{error}"),
    });
    let refused = refused.count();
    keys.for_each(|key| {
        worker.transact(|tx| tx.delete(TABLE, &[key]).map(drop)).expect("needs no memory");
    });
    for _ in 0..100 {
        worker.idle();
    }
    refused
}

/// What only the child has takes memory, so writes that need more are refused while it lives.
#[test]
fn pages_of_the_child_count_against_the_limit() {
    let config = StoreConfig { max_memory_bytes: LIMIT_BYTES, ..StoreConfig::default() };
    let store = Arc::new(Store::new(&config, CellRules::IN_PLACE).expect("space"));
    store.add_table(TABLE, 1).expect("space");
    let mut worker = Worker::new(store.clone(), Box::new(NoLog::default())).expect("a slot");
    worker.transact(|tx| tx.put(TABLE, b"key", b"value")).expect("memory");
    drop(worker);
    while store.maintain() {}
    assert_eq!(refused(&store), 0, "there is room");
    let refusals = Arc::<AtomicUsize>::default();
    let make = {
        let (store, refused) = (store.clone(), refusals.clone());
        move || -> Result<Box<dyn HeldMemory>, ForkError> {
            let (store, refused) = (store.clone(), refused.clone());
            Ok(Box::new(Heavy { forked: ForkedMemory::fork()?, store, refused }))
        }
    };
    let cycle = cycle(&store, &(Arc::new(Fork::new(Box::new(make))) as _));
    let sink: Arc<dyn Sink> = Arc::new(Counted::default());
    run_checkpoint(&cycle, &sink).expect("nothing fails");
    assert!(refusals.load(Relaxed) > 0, "every write found memory");
    while store.maintain() {}
    assert_eq!(refused(&store), 0, "the child is gone");
}

/// The settings of a checkpoint of all records.
fn cycle(store: &Arc<Store>, scheme: &Arc<dyn Checkpointer>) -> Cycle {
    Cycle {
        store: store.clone(),
        scheme: scheme.clone(),
        wanted: Wanted::Full,
        clock: Arc::new(RealClock),
        threads: 1,
        pace: Pace::Unpaced,
        progress: Arc::<Progress>::default(),
        log: Arc::new(NoSchemeLog),
        quiesce_for: crate::QuiesceFor::Commits,
        before_point: None,
        observer: None,
    }
}

/// Counts records, and the bytes of their values.
#[derive(Default)]
struct Counted(Mutex<(usize, usize)>);

impl Sink for Counted {
    fn with_lane(&self, _: usize, with: &mut dyn FnMut(&mut dyn Lane)) {
        with(&mut &*self);
    }
}

impl Lane for &Counted {
    fn emit(&mut self, record: &RecordImage<'_>) {
        let mut counted = self.0.lock();
        counted.0 += 1;
        counted.1 += record.value.to_vec().len();
    }
    fn emit_deletion(&mut self, _: &DeletedKey<'_>) {
        unreachable!("a full checkpoint");
    }
    fn take_back(&mut self) {
        unreachable!("nothing is claimed");
    }
}

/// Whatever fails, that checkpoint alone fails, with the reason. The child is gone then.
#[test]
fn a_failure_of_the_child_fails_one_checkpoint() {
    let store = Store::new(&StoreConfig::default(), CellRules::IN_PLACE).expect("space");
    let store = Arc::new(store);
    store.add_table(TABLE, 1).expect("space");
    let mut worker = Worker::new(store.clone(), Box::new(NoLog::default())).expect("a slot");
    let mut bytes = 0;
    for (key, len) in [(&b"a"[..], 3), (b"b", 2000), (b"large", 200_000), (&[7; 3000], 9)] {
        worker.transact(|tx| tx.put(TABLE, key, &vec![1; len])).expect("memory");
        bytes += len;
    }
    let faults = Arc::new(Faults::default());
    let make = {
        let faults = faults.clone();
        move || -> Result<Box<dyn HeldMemory>, ForkError> {
            if let Some(kind) = *faults.fork.lock() {
                return Err(ForkError::new("fork", kind));
            }
            faults.reads.store(0, Relaxed);
            let forked = ForkedMemory::fork()?;
            Ok(Box::new(Faulty { forked, faults: faults.clone() }))
        }
    };
    let scheme: Arc<dyn Checkpointer> = Arc::new(Fork::new(Box::new(make)));
    let take = || {
        let sink = Arc::new(Counted::default());
        let dynamic: Arc<dyn Sink> = sink.clone();
        let taken = run_checkpoint(&cycle(&store, &scheme), &dynamic);
        assert_eq!(store.child_bytes().0, 0, "no child holds memory any more");
        let counted = *sink.0.lock();
        taken.map(|_| counted)
    };
    assert!(faults.store.set(store.clone()).is_ok());
    let at_rest = counted(&store);
    assert_eq!(take().expect("nothing fails"), (4, bytes));
    let copied = faults.counted_max.load(Relaxed) - at_rest;
    assert!((200_000..400_000).contains(&copied), "{copied} bytes of the large value count");
    assert_eq!(counted(&store), at_rest, "no copy is left");
    let reads = faults.reads.load(Relaxed);
    assert!(reads > 5, "the table, strides, a long key, a table and chunks: {reads}");
    *faults.fork.lock() = Some(ErrorKind::OutOfMemory);
    let refused = take().expect_err("no child");
    assert!(matches!(refused, CheckpointError::Memory(_)), "{refused}");
    assert!(refused.to_string().contains("cannot fork"), "{refused}");
    *faults.fork.lock() = None;
    assert_eq!(take().expect("the next one works"), (4, bytes));
    // A child that was killed, and a system that forbids to read it.
    for kind in [ErrorKind::NotFound, ErrorKind::PermissionDenied] {
        for after in 0..reads {
            *faults.read.lock() = Some((after, kind));
            let refused = take().expect_err("a read fails");
            assert!(matches!(refused, CheckpointError::Memory(_)), "{after}: {refused}");
            assert!(refused.to_string().contains("read a child"), "{refused}");
        }
        *faults.read.lock() = None;
        assert_eq!(take().expect("the next one works"), (4, bytes));
    }
}
