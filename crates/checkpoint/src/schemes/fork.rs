//! Fork: copy-on-update by the system. Sources: Li et al., *Consistent Snapshots*, ICDE 2018, §II-A.2;
//! Redis saves so. The parent writes the file, by decision 0008.
//!
//! At a physical point of consistency the process forks. The child keeps the memory as it was, and
//! stands still. The capture threads of the parent read the child's memory
//! ([`HeldRecords`](stillpoint_store::HeldRecords)). Commits run no code of the scheme, but the system
//! copies each page at its first write.
//!
//! ```text
//! commits   … │ fork │ write ↯ write … write ↯        ↯ the system copies a page
//! child       └──────┴── holds the memory ────┐
//! capture            └──── child → lanes ─────┘
//! ```
//! Invariants:
//! 1. No commit is under way at the fork, so no cell in the child is being written.
//! 2. The child allocates nothing, takes no lock, and ends with its parent (`stillpoint_io::ForkedMemory`).
//! 3. A fork that is refused, a child that is killed, and a read that is denied fail this checkpoint
//!    alone. Nothing is marked that the next one needs.
//! 4. The child's private pages count against the memory limit while the child lives.
//!
//! Deviation: with deferred updates the point of consistency waits for commits under way, and not for
//! open transactions.

use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint_io::{ForkError, ForkedMemory};
use stillpoint_store::{
    Capture, CaptureError, Checkpointer, HeldMemory, HeldRecords, PointOfConsistency, Store,
};

/// Looks at the pages of the child in a capture, at most. A look walks all of its page tables.
const LOOKS: usize = 16;
/// Fewest slabs between two looks.
const SLABS_PER_LOOK: usize = 8;

/// Makes the memory of a point of consistency.
type Hold = dyn Fn() -> Result<Box<dyn HeldMemory>, ForkError> + Send + Sync;

struct Fork {
    make: Box<Hold>,
    /// The records of the point of consistency, or why they cannot be read.
    held: Mutex<Option<Result<Arc<HeldRecords>, ForkError>>>,
}

impl Fork {
    fn new(make: Box<Hold>) -> Self {
        Fork { make, held: Mutex::default() }
    }
}

fn fork() -> Result<Box<dyn HeldMemory>, ForkError> {
    Ok(Box::new(ForkedMemory::fork()?))
}

pub(crate) fn checkpointer() -> Option<Arc<dyn Checkpointer>> {
    Some(Arc::new(Fork::new(Box::new(fork))))
}

impl Checkpointer for Fork {
    fn point_of_consistency(&self) -> PointOfConsistency {
        PointOfConsistency::Physical
    }

    fn hold(&self) -> Result<(), CaptureError> {
        let held = Arc::new(HeldRecords::new((self.make)()?));
        *self.held.lock() = Some(Ok(held));
        Ok(())
    }

    fn capture(&self, store: &Store, unit: usize, to: &mut dyn Capture) {
        if to.is_abandoned() {
            return;
        }
        let held = match &*self.held.lock() {
            Some(Ok(held)) => held.clone(),
            Some(Err(_)) => return,
            None => unreachable!("the point of consistency has a child"),
        };
        if unit.is_multiple_of(store.group_count().div_ceil(LOOKS).max(SLABS_PER_LOOK)) {
            store.note_child_bytes(held.private_bytes());
        }
        if let Err(error) = held.capture(store, unit, to) {
            *self.held.lock() = Some(Err(error));
        }
    }

    fn release(&self, store: &Store) -> Result<(), CaptureError> {
        let held = self.held.lock().take();
        if let Some(Ok(held)) = &held {
            store.note_child_bytes(held.private_bytes());
        }
        store.note_child_bytes(0);
        held.map_or(Ok(()), |held| Ok(held.map(drop)?))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::ErrorKind;
    use std::sync::OnceLock;

    use stillpoint_io::RealClock;
    use stillpoint_store::{
        CellRules, DeletedKey, Lane, NoLog, RecordImage, Sink, StoreConfig, TableId, Worker,
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
            let cycle = Cycle {
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
            };
            let taken = run_checkpoint(&cycle, &dynamic);
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
}
