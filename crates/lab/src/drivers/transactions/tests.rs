//! The driver on a toy engine, whose behaviour is known.

use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;

use super::*;
use crate::subjects::adapter::{Checkpointed, LabSession, Setup, Status};
use crate::workloads::calc::{self, CalcTransaction, Check, LongTransaction, VALUE_BYTES};

/// An array behind one lock. Scheme `naive` holds the lock during its checkpoints, `calc` does not,
/// and `none` takes no checkpoints.
pub(crate) struct Toy {
    scheme: String,
    /// How long a checkpoint takes.
    checkpoint: Duration,
    /// Seconds in which commits stop, as the toy says. Points as published stop them for longer.
    stopped_s: f64,
    values: Mutex<Vec<[u8; VALUE_BYTES]>>,
    status: Mutex<Status>,
    asked: AtomicBool,
}

impl Toy {
    pub(crate) fn open(setup: &Setup) -> LabResult<Box<dyn LabEngine>> {
        let checkpoint =
            Duration::from_millis(if setup.pace_bytes_per_s.is_some() { 60 } else { 30 });
        Ok(Box::new(Toy {
            scheme: setup.scheme.clone(),
            checkpoint,
            stopped_s: if setup.published_points { 0.02 } else { 0.01 },
            values: Mutex::default(),
            status: Mutex::default(),
            asked: AtomicBool::new(false),
        }))
    }

    /// The toy has no threads: a call for its status carries out its checkpoints.
    fn work(&self) {
        if self.asked.swap(false, Ordering::AcqRel) {
            let held = (self.scheme == "naive").then(|| self.values.lock());
            sys::sleep(self.checkpoint);
            drop(held);
            let mut status = self.status.lock();
            status.checkpoints += 1;
            status.last_bytes = 1_000;
            status.last_stopped_s = self.stopped_s;
        }
    }
}

impl Checkpointed for Toy {
    fn start_checkpoint(&self) -> LabResult<()> {
        if self.scheme == "none" {
            let reason = "takes no checkpoints".into();
            return Err(LabError::Engine { engine: self.scheme.clone(), reason });
        }
        self.asked.store(true, Ordering::Release);
        Ok(())
    }

    fn status(&self) -> Status {
        self.work();
        let held_bytes = 1_000_000;
        Status { held_bytes, ..self.status.lock().clone() }
    }
}

impl LabEngine for Toy {
    fn load(&self, records: u64) -> LabResult<()> {
        *self.values.lock() = (0..records).map(calc::initial_value).collect();
        Ok(())
    }

    fn session(&self) -> LabResult<Box<dyn LabSession + '_>> {
        Ok(Box::new(ToySession { toy: self }))
    }

    fn check(&self, change: Change) -> LabResult<Check> {
        let mut check = Check::default();
        for (record, value) in self.values.lock().iter().enumerate() {
            let wrong = |reason| LabError::Engine { engine: self.scheme.clone(), reason };
            check.record(record as u64, value, VALUE_BYTES, change).map_err(wrong)?;
        }
        Ok(check)
    }
}

struct ToySession<'a> {
    toy: &'a Toy,
}

impl LabSession for ToySession<'_> {
    fn run(&mut self, transactions: &[CalcTransaction], change: Change) -> LabResult<()> {
        let mut values = self.toy.values.lock();
        for transaction in transactions {
            for &record in &transaction.keys[..transaction.writes] {
                calc::update(record, &mut values[record as usize], change);
            }
        }
        Ok(())
    }

    fn run_long(
        &mut self,
        transaction: &LongTransaction,
        change: Change,
        pause: &mut dyn FnMut(),
    ) -> LabResult<()> {
        for &record in &transaction.keys {
            calc::update(record, &mut self.toy.values.lock()[record as usize], change);
            pause();
        }
        Ok(())
    }
}

fn toy(scheme: &str) -> Box<dyn LabEngine> {
    let setup = Setup {
        dir: "toy".into(),
        scheme: scheme.into(),
        journal: "none".into(),
        pace_bytes_per_s: None,
        records: 5_000,
        value_bytes: VALUE_BYTES,
        sessions: 8,
        published_points: false,
        stable_pool_bytes: None,
    };
    let engine = Toy::open(&setup).expect("a toy opens");
    engine.load(5_000).expect("a toy loads");
    engine
}

fn drive() -> Drive {
    Drive { seconds: 0.5, warm_up_s: 0.1, ..Drive::new(5_000) }
}

#[test]
fn every_transaction_is_counted() -> LabResult<()> {
    let engine = toy("calc");
    let long = LongTransactions { seconds: 0.1, writes: 20, share: 1e-4, open_max: 2 };
    let drive = Drive { long: Some(long), checkpoints_at_s: vec![0.1, 0.3], ..drive() };
    let outcome = run(&*engine, &drive)?;
    assert!(outcome.transactions > outcome.windows.total(), "the warm-up is not in the windows");
    assert!((2..=14).contains(&outcome.long_transactions), "{}", outcome.long_transactions);
    assert_eq!(outcome.updates, outcome.transactions * 10 + outcome.long_transactions * 20);
    let check = engine.check(drive.change)?;
    assert_eq!(check.finish(5_000, outcome.updates, outcome.updates), Ok(()));
    assert_eq!(outcome.windows.rates().len(), 5);
    assert_eq!(outcome.held.len(), 5);

    let [first, second] = &outcome.captures[..] else { panic!("{:?}", outcome.captures) };
    assert!((first.from_s - 0.1).abs() < 0.03 && (second.from_s - 0.3).abs() < 0.03);
    assert!((0.03..0.08).contains(&first.seconds()), "{first:?}");
    Ok(())
}

#[test]
fn a_rate_is_kept_and_a_stall_is_charged() -> LabResult<()> {
    let rate = Some(2_000.0);
    let calm = run(&*toy("calc"), &Drive { rate_per_s: rate, ..drive() })?;
    assert!((1_700.0..2_300.0).contains(&calm.rate()), "{}", calm.rate());
    assert!(calm.latencies.all().p50_ms() < 5.0);

    let stalled = Drive { rate_per_s: rate, checkpoints_at_s: vec![0.2], ..drive() };
    let outcome = run(&*toy("naive"), &stalled)?;
    // 60 of 1,000 transactions were due meanwhile. A driver that charged only those under way would
    // show 8 at most.
    let waited = outcome.latencies.all().ms(0.97);
    assert!(waited > 8.0, "those that were due in the stall waited too: {waited}");
    let tail = outcome.latencies.all().max_ms();
    assert!((25.0..80.0).contains(&tail), "the checkpoint stops all for 30 ms: {tail}");
    Ok(())
}

#[test]
fn a_failing_checkpoint_ends_the_run() {
    let asked = Drive { checkpoints_at_s: vec![0.1], seconds: 30.0, ..drive() };
    let began_ns = sys::now_ns();
    let error = run(&*toy("none"), &asked).expect_err("none takes no checkpoints").to_string();
    assert!(error.contains("none") && sys::now_ns() - began_ns < 5_000_000_000, "{error}");
}
