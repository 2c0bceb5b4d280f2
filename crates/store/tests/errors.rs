//! Tests that errors change nothing: the memory limit, keys and values that are too long,
//! undeclared accesses, and procedures that panic.

mod common;

use common::{CheckingLog, Contents, Random, assert_same, contents_of, for_seeds, store_of};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use stillpoint_store::{
    KeySet, Mode, NoLog, Procedure, Slot, Stamp, Store, TableId, Tx, TxError, Worker,
};

const T: TableId = TableId(0);

fn worker_of(store: &Arc<Store>) -> Worker {
    Worker::new(store.clone(), Box::new(NoLog::default())).expect("a free slot")
}

/// A declared transaction made of closures.
struct Declared<F> {
    keys: Vec<(Vec<u8>, Mode)>,
    body: F,
    ended: Option<Result<Option<Stamp>, TxError>>,
}

impl<F: FnMut(&mut Tx<'_>) -> Result<(), TxError>> Declared<F> {
    fn new(keys: &[(&[u8], Mode)], body: F) -> Self {
        Self {
            keys: keys.iter().map(|(key, mode)| (key.to_vec(), *mode)).collect(),
            body,
            ended: None,
        }
    }

    fn run_on(mut self, worker: &mut Worker) -> Result<Option<Stamp>, TxError> {
        worker.execute(std::slice::from_mut(&mut self));
        self.ended.expect("it ended")
    }
}

impl<F: FnMut(&mut Tx<'_>) -> Result<(), TxError>> Procedure for Declared<F> {
    fn declare(&mut self, keys: &mut KeySet) {
        for (key, mode) in &self.keys {
            keys.push(T, key, *mode, 0);
        }
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        (self.body)(tx)
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        self.ended = Some(result);
    }
}

/// Reads present and missing keys in every way.
fn reads_go_on(worker: &mut Worker) {
    for step in 0..2_000u64 {
        let key = format!("missing {step}").into_bytes();
        let got = worker.transact(|tx| Ok(tx.get(T, &key)?.is_some()));
        assert!(!got.expect("a read"));
        let deleted = worker.transact(|tx| tx.delete(T, &key));
        assert!(!deleted.expect("a deletion of nothing"));
    }
    let long = vec![1; 5_000];
    assert!(!worker.transact(|tx| tx.delete(T, &long)).expect("long"));
    let none = Declared::new(&[(b"none", Mode::Read), (b"no", Mode::Write)], |tx| {
        assert!(tx.value(Slot(0)).is_none() && !tx.delete_slot(Slot(1))?);
        Ok(())
    });
    assert!(none.run_on(worker).expect("reads").is_none());
}

/// Deletions make room for values of the same size.
fn deletions_make_room(worker: &mut Worker, model: &Contents) {
    let keys: Vec<_> = model.keys().cloned().collect();
    for key in &keys {
        assert!(worker.transact(|tx| tx.delete(T, &key.1)).expect("deletion"));
    }
    assert!(contents_of(worker).is_empty());
    for _ in 0..keys.len() / 64 + 64 {
        worker.idle();
    }
    for key in keys.iter().take(keys.len() / 2) {
        let (label, value) = &model[key];
        let put = worker.transact(|tx| tx.put_tagged(T, &key.1, label.tag, value));
        put.expect("room for what was there before");
    }
}

#[test]
fn beyond_the_limit_writes_fail_and_nothing_else_does() {
    for_seeds(6, |seed| {
        let mut random = Random::new(seed);
        let store = store_of(24 << 20, 4, seed);
        let (state, closed) = (Arc::default(), Arc::new(AtomicU64::new(u64::MAX)));
        let mut worker =
            Worker::new(store.clone(), CheckingLog::new(0, &state, &closed)).expect("a free slot");
        let most = [100, 1_000, 10_000, 200_000, 3_000_000][random.below(5)];
        let mut model = Contents::new();
        let mut refused = 0;
        for step in 0u64.. {
            assert!(step < 400_000, "the limit was never reached");
            let key = (0, step.to_le_bytes().to_vec());
            let len = random.below(most);
            let (tag, value) = (random.next() as u8, random.bytes(len));
            let other = (0, random.below(1 + step as usize).to_le_bytes().to_vec());
            // One write needs no memory, and one does.
            let ended = worker.transact(|tx| {
                if model.contains_key(&other) {
                    tx.patch(T, &other.1, 0, b"")?;
                }
                tx.put_tagged(T, &key.1, tag, &value)
            });
            match ended {
                Ok(()) => drop(model.insert(key, (tag.into(), value))),
                Err(TxError::Memory(full)) => {
                    assert!(full.limit == 24 << 20 && full.held <= full.limit, "{full}");
                    refused += 1;
                    if refused == 5 {
                        break;
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(store.held_bytes() <= 24 << 20);
        assert_same(&contents_of(&mut worker), &model, "after the refusals");
        assert_same(&state.lock().replica, &model, "the log");
        reads_go_on(&mut worker);
        // A small value for a key that was only read beyond the limit is a write like any other.
        let tiny = (0..200_000u64)
            .filter(|step| {
                let key = format!("tiny {step}").into_bytes();
                let ended = worker.transact(|tx| {
                    tx.get(T, &key)?;
                    tx.put_tagged(T, &key, 1, b"t")
                });
                if ended.is_ok() {
                    model.insert((0, key), (1.into(), b"t".to_vec()));
                }
                ended.is_ok()
            })
            .count();
        assert!(tiny < 200_000, "writes go on beyond the limit");
        assert!(store.held_bytes() <= 28 << 20, "{}", store.held_bytes());
        assert_same(&contents_of(&mut worker), &model, "after the reads");
        deletions_make_room(&mut worker, &model);
        store.set_max_memory_bytes(64 << 20);
        let put = worker.transact(|tx| tx.put(T, b"more", &vec![0; 4 << 20]));
        put.expect("the limit was raised");
    });
}

/// Writes with the reserve go on at full memory, up to the reserve and not beyond. Afterwards reads
/// of keys without a value still go on.
#[test]
fn the_reserve_is_granted_to_who_asks_and_ends() {
    let store = store_of(24 << 20, 2, 1);
    let mut worker = worker_of(&store);
    let fill = |worker: &mut Worker, reserve: bool, prefix: &str| {
        (0..1_000_000u64).find(|step| {
            let key = format!("{prefix} {step}").into_bytes();
            let ended = worker.transact(|tx| {
                if reserve {
                    tx.use_reserve();
                }
                tx.put(T, &key, &[1; 1000])
            });
            matches!(ended, Err(TxError::Memory(_)))
        })
    };
    assert!(fill(&mut worker, false, "plain").is_some(), "the limit was never reached");
    assert!(store.held_bytes() <= 24 << 20);
    let within = fill(&mut worker, true, "reserve").expect("the reserve was never used up");
    // Sixteen MiB of records of a KiB and a little.
    assert!((10_000..16_384).contains(&within), "{within}");
    assert!(store.held_bytes() <= 40 << 20, "{}", store.held_bytes());
    assert_eq!(fill(&mut worker, false, "plain again"), Some(0), "one transaction's permit");
    reads_go_on(&mut worker);
    assert!(store.held_bytes() <= 56 << 20, "{}", store.held_bytes());
}

#[test]
fn what_is_too_long_is_refused() {
    let store = store_of(1 << 30, 2, 1);
    let mut worker = worker_of(&store);
    let key = vec![7; 65_537];
    let error = worker.transact(|tx| tx.put(T, &key, b"v")).expect_err("too long");
    assert!(matches!(error, TxError::KeyTooLong { len: 65_537 }), "{error}");
    let declared = Declared::new(&[(b"fine", Mode::Write), (&key, Mode::Write)], |_| {
        panic!("not all of its keys can be locked")
    });
    let error = declared.run_on(&mut worker).expect_err("too long");
    assert!(matches!(error, TxError::KeyTooLong { .. }), "{error}");
    assert_eq!(worker.read(T, &key, &mut Vec::new()).expect("a table"), None);

    let huge = vec![0; (512 << 20) + 1];
    worker
        .transact(|tx| {
            tx.put(T, b"k", b"before")?;
            let error = tx.put(T, b"k", &huge).expect_err("too long");
            assert!(matches!(error, TxError::ValueTooLong { .. }), "{error}");
            let error = tx.patch(T, b"k", 6, &huge[6..]).expect_err("too long");
            assert!(matches!(error, TxError::ValueTooLong { .. }), "{error}");
            let error = tx.patch(T, b"k", 7, b"x").expect_err("a gap");
            let expected = "a patch at offset 7 is outside the value, which has 6 bytes";
            assert_eq!(error.to_string(), expected);
            Ok(())
        })
        .expect("the refused writes did not happen");
    let mut value = Vec::new();
    worker.read(T, b"k", &mut value).expect("a table");
    assert_eq!(value, b"before");

    let error = worker.transact(|tx| tx.get(TableId(9), b"k").map(|_| ())).expect_err("no table");
    assert!(matches!(error, TxError::NoSuchTable(TableId(9))), "{error}");
}

#[test]
fn a_declaration_is_kept() {
    let store = store_of(1 << 30, 2, 1);
    let mut worker = worker_of(&store);
    worker
        .transact(|tx| {
            tx.put(T, b"a", b"1")?;
            tx.put(T, b"b", b"2")
        })
        .expect("memory");
    let keys: &[(&[u8], Mode)] = &[(b"a", Mode::Read), (b"b", Mode::Write)];
    let body = |tx: &mut Tx<'_>| {
        tx.put_slot(Slot(1), b"changed")?;
        tx.put_slot(Slot(0), b"changed")
    };
    let error = Declared::new(keys, body).run_on(&mut worker).expect_err("a");
    assert!(matches!(error, TxError::DeclaredForReading { slot: 0 }), "{error}");
    let body = |tx: &mut Tx<'_>| tx.put(T, b"a", b"changed");
    let error = Declared::new(keys, body).run_on(&mut worker).expect_err("a");
    assert!(matches!(error, TxError::DeclaredForReading { slot: 0 }), "{error}");
    let body = |tx: &mut Tx<'_>| {
        tx.put(T, b"b", b"changed")?;
        tx.get(T, b"c").map(|_| ())
    };
    let error = Declared::new(keys, body).run_on(&mut worker).expect_err("c");
    assert!(matches!(error, TxError::NotDeclared), "{error}");
    // A single key that is only read is not locked, but its declaration still counts.
    let body = |tx: &mut Tx<'_>| {
        assert_eq!(tx.get(T, b"a")?.expect("there").to_vec(), b"1");
        tx.put_slot(Slot(0), b"changed")
    };
    let error = Declared::new(&[(b"a", Mode::Read)], body).run_on(&mut worker);
    let error = error.expect_err("for reading");
    assert!(matches!(error, TxError::DeclaredForReading { slot: 0 }), "{error}");
    let values: Vec<_> = contents_of(&mut worker).into_values().collect();
    assert_eq!(values, [(0.into(), b"1".to_vec()), (0.into(), b"2".to_vec())]);
}

#[test]
fn a_panicking_procedure_leaves_no_lock_and_no_write() {
    let store = store_of(1 << 30, 2, 1);
    let mut worker = worker_of(&store);
    let mut other = worker_of(&store);
    let bump = |worker: &mut Worker| {
        worker
            .transact(|tx| {
                let now = tx.get(T, b"n")?.and_then(|value| value.u64_at(0));
                tx.put(T, b"n", &(now.unwrap_or(0) + 1).to_le_bytes())?;
                Ok(now.unwrap_or(0))
            })
            .expect("no error")
    };
    assert_eq!(bump(&mut worker), 0);
    // Undeclared: outside of read sections, with a lock held.
    let ended = catch_unwind(AssertUnwindSafe(|| {
        worker.transact(|tx| -> Result<(), TxError> {
            tx.put(T, b"n", b"rubbish!")?;
            tx.put(T, b"new", b"rubbish!")?;
            panic!("on purpose");
        })
    }));
    assert!(ended.is_err());
    assert_eq!(bump(&mut other), 1, "another worker gets the lock");
    assert_eq!(bump(&mut worker), 2, "the worker can be used again");
    // Declared: in a read section, in the middle of a batch.
    let turn = |panics: bool| {
        Declared::new(&[(b"n", Mode::Write)], move |tx| {
            let now = tx.value(Slot(0)).and_then(|value| value.u64_at(0)).expect("there");
            tx.put_slot(Slot(0), &(now + 10).to_le_bytes())?;
            assert!(!panics, "on purpose");
            Ok(())
        })
    };
    let mut batch = [turn(false), turn(true), turn(false)];
    let ended = catch_unwind(AssertUnwindSafe(|| worker.execute(&mut batch[..])));
    assert!(ended.is_err());
    let ends = batch.map(|turn| turn.ended.map(|result| result.is_ok()));
    assert_eq!(ends, [Some(true), None, None]);
    assert_eq!(bump(&mut other), 13);
    assert_eq!(bump(&mut worker), 14);
    // A panic of a scan's visitor leaves no read section open, so the quiesce ends.
    let ended = catch_unwind(AssertUnwindSafe(|| {
        worker.scan(T, 0, usize::MAX, &mut |_, _| panic!("on purpose"))
    }));
    assert!(ended.is_err());
    drop(store.driver().quiesce());
    assert_eq!(contents_of(&mut worker).len(), 1, "nothing of the rubbish stayed");
    // The panic itself drops this worker.
    let thread = stillpoint_io::spawn("doomed", move || {
        worker.transact(|tx| -> Result<(), TxError> {
            tx.put(T, b"n", b"rubbish!")?;
            panic!("on purpose");
        })
    })
    .expect("a thread");
    assert!(thread.join().is_err());
    assert_eq!(bump(&mut other), 15);
    store.driver().quiesce();
    assert!(worker_of(&store).number() < 2, "its slot is free again");
}

/// Uncommitted writes of a transaction count against the limit from one mebibyte on. Values that it
/// has overwritten itself do not count.
#[test]
fn private_writes_count_against_the_limit() {
    const LIMIT: usize = 24 << 20;
    let store = store_of(LIMIT, 2, 1);
    let mut worker = worker_of(&store);
    let value = vec![1; 1 << 20];
    let mut taken = 0;
    let refused = worker.transact(|tx| {
        taken = 0;
        for key in 0..40u8 {
            tx.put(T, &[key], &value)?;
            taken += 1;
        }
        Ok(())
    });
    assert!(matches!(refused, Err(TxError::Memory(_))), "{refused:?}");
    assert!((4..24).contains(&taken), "{taken} values were taken");
    // The same two keys are written repeatedly, longer each time.
    let replaced = worker.transact(|tx| {
        for round in 1..=100 {
            for key in [b"one", b"two"] {
                tx.put(T, key, &value[..round * 10_000])?;
                tx.patch(T, key, round * 10_000, b"end")?;
            }
        }
        assert!(tx.check_room(LIMIT).is_err());
        tx.check_room(1 << 20)
    });
    replaced.expect("what was overwritten does not count");
    let mut found = Vec::new();
    worker.read(T, b"two", &mut found).expect("a table");
    assert_eq!((found.len(), &found[1_000_000..]), (1_000_003, &b"end"[..]));
}

/// A run that reads a single key takes no lock, so no release of locks forgets its call.
#[test]
fn a_read_without_a_lock_leaves_its_call_to_nobody() {
    let store = store_of(64 << 20, 4, 1);
    let mut worker = worker_of(&store);
    for _ in 0..3 {
        let read = Declared::new(&[(b"k", Mode::Read)], |tx: &mut Tx<'_>| {
            assert!(tx.call().is_empty());
            tx.call().push(1);
            Ok(())
        });
        read.run_on(&mut worker).expect("a read");
        let open = worker.transact(|tx| Ok(tx.call().len()));
        assert_eq!(open.expect("nothing is refused"), 0);
        read_with_call(&mut worker);
    }
}

fn read_with_call(worker: &mut Worker) {
    let read = Declared::new(&[(b"k", Mode::Read)], |tx: &mut Tx<'_>| {
        tx.call().push(1);
        Ok(())
    });
    read.run_on(worker).expect("a read");
}
