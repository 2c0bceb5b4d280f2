//! Keys that live for a short time, while checkpoints succeed, and while each of them fails.
//!
//! Each insertion deletes the key that was inserted a number of keys before. So the number of live keys
//! is always the same, whatever the machine does.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use stillpoint::Engine;
use stillpoint_io::{Call, Fault, FaultPlan, Lasts, SimDisk};

use super::bed::NAME;
use super::{BATCH, Plan, SCHEME, claim, table};
use crate::error::LabResult;
use crate::harness::Harness;
use crate::measure::stats::cost_ratio;
use crate::report::figure::axis::grouped;
use crate::report::result::ExperimentResult;
use crate::subjects::stillpoint::{failed, measured};
use crate::sys;
use crate::workloads::calc::{VALUE_BYTES, initial_value, key};

/// The most memory ÷ that of the live keys. There are the live keys, those of the chain, and those that
/// the checkpoint under way has captured; and what waits to be reclaimed.
const MEMORY_MAX: f64 = 4.0;
/// Time between two looks at the memory.
const LOOK_NS: u64 = 10_000_000;

/// What a run held.
#[derive(Debug)]
struct ChurnRun {
    live_bytes: f64,
    most_bytes: f64,
    keys: u64,
    seconds: f64,
    published: u64,
    failures: u64,
}

pub(super) fn churn(
    bench: &Harness<'_>,
    plan: &Plan,
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let columns = ["checkpoints", "published", "failed", "keys/s", "live MB", "most MB"];
    let mut rows = table("Memory while keys come and go", "churn", &columns);
    for fails in [false, true] {
        let what = if fails { "each fails" } else { "succeed" };
        bench.context.note(format!("{} s of keys that come and go: {what}", plan.churn_s));
        let dir = bench.context.fresh_dir("churn")?;
        let held = run(&dir, plan, fails)?;
        sys::remove_dir_all(&dir)?;
        rows.rows.push(vec![
            what.into(),
            held.published.to_string(),
            held.failures.to_string(),
            grouped((held.keys as f64 / held.seconds) as u64),
            format!("{:.1}", held.live_bytes / 1e6),
            format!("{:.1}", held.most_bytes / 1e6),
        ]);
        let of_live = cost_ratio(held.most_bytes, held.live_bytes);
        let title = format!("memory: most ÷ that of the live keys, checkpoints: {what}");
        claim(title, MEMORY_MAX, "churn", &[of_live], result);
    }
    result.tables.push(rows);
    Ok(())
}

fn open(dir: &Path, fails: bool) -> LabResult<Engine> {
    let mut config = measured(dir, SCHEME, "none");
    config.merge_after = Some(8);
    let disk = SimDisk::new(1);
    if fails {
        config.environment.disk = Some(Arc::new(disk.clone()));
    }
    let engine = Engine::open(config).map_err(|error| failed(NAME, error))?;
    // The directory of a checkpoint cannot be made.
    disk.inject(FaultPlan {
        calls: vec![Call::CreateDir],
        nth: 1,
        fault: Fault::InputOutput,
        lasts: Lasts::UntilCleared,
    });
    Ok(engine)
}

fn run(dir: &Path, plan: &Plan, fails: bool) -> LabResult<ChurnRun> {
    let wrong = |error: stillpoint::Error| failed(NAME, error);
    let engine = open(dir, fails)?;
    let records = engine.table("records").map_err(wrong)?;
    let mut session = engine.session().map_err(wrong)?;
    let held_bytes = || engine.stats().memory_bytes as f64;
    let mut keys = 0;
    let mut step = |live: u64| -> LabResult<u64> {
        let done = session.transact(|tx| {
            for record in keys..keys + BATCH {
                let value: [u8; VALUE_BYTES] = initial_value(record);
                tx.put(records, &key(record), &value)?;
                if let Some(old) = record.checked_sub(live) {
                    tx.delete(records, &key(old))?;
                }
            }
            Ok(())
        });
        done.map_err(wrong)?;
        keys += BATCH;
        Ok(keys)
    };
    while step(u64::MAX)? < plan.churn_live {}
    let live_bytes = held_bytes();
    let every = Some(Duration::from_secs_f64(plan.churn_every_s));
    engine.change_checkpoint_policy(|policy| policy.every = every).map_err(wrong)?;
    let start_ns = sys::now_ns();
    let end_ns = start_ns + (plan.churn_s * 1e9) as u64;
    let (mut most_bytes, mut look_ns) = (live_bytes, start_ns);
    let first = plan.churn_live;
    let mut done = first;
    loop {
        let now_ns = sys::now_ns();
        if now_ns >= end_ns {
            break;
        }
        if now_ns >= look_ns {
            most_bytes = held_bytes().max(most_bytes);
            look_ns = now_ns + LOOK_NS;
        }
        done = step(plan.churn_live)?;
        // No more keys than the rate allows.
        let due_ns = start_ns + ((done - first) as f64 / plan.churn_per_s * 1e9) as u64;
        sys::sleep_until(due_ns.min(end_ns));
    }
    let status = engine.stats().checkpoints;
    let seconds = (sys::now_ns() - start_ns) as f64 / 1e9;
    let (published, failures) = (status.published, status.failures);
    assert!(!fails || published == 0, "no directory can be made");
    Ok(ChurnRun { live_bytes, most_bytes, keys: done - first, seconds, published, failures })
}
