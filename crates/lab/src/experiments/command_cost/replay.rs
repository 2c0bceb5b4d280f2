//! The replay of calls, with their first run and with the replay of redo. The rows of undo-redo show
//! what before-images cost: throughput, bytes of the log, and the time of a start, beside redo.
//!
//! A store runs transactions on one thread, and its files are copied while it is still open. So the
//! copy is what a crash would leave. A start from a copy uses it up, since its orderly end takes a
//! checkpoint.

use super::{Plan, SOURCE, WRITTEN, compared, table};
use crate::drivers::transactions::{self, Drive};
use crate::error::LabResult;
use crate::harness::Harness;
use crate::measure::stats::median;
use crate::report::figure::axis::grouped;
use crate::report::result::{Bound, ClaimRow, ExperimentResult};
use crate::subjects::adapter::Recovered;
use crate::subjects::records::setup;
use crate::subjects::stillpoint::recover;
use crate::sys;
use crate::workloads::calc::{Change, KEYS_PER_TRANSACTION, Mix};

const ONE_CORE: ClaimRow = ClaimRow::new("transactions per second", SOURCE, Bound::AtLeast(0.7))
    .between("replay of calls", "their first run");
const TWO_CORES: ClaimRow = ClaimRow::new("replay of calls", SOURCE, Bound::AtLeast(1.5))
    .between("two threads", "one thread");

/// The log of one run, replayed by one thread and by two.
#[derive(Clone, Copy, Debug)]
struct Replayed {
    /// Transactions per second of the first run.
    live_rate: f64,
    one: Recovered,
    two: Recovered,
}

impl Replayed {
    fn rate(recovered: &Recovered) -> f64 {
        recovered.commits as f64 / recovered.replay_s
    }
}

/// Microseconds of replay for a transaction.
fn us_per_transaction(recovered: &Recovered) -> f64 {
    recovered.replay_s * 1e6 / recovered.commits as f64
}

pub(super) fn replay(
    bench: &Harness<'_>,
    plan: &Plan,
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let columns = [
        "journal",
        "updates of 10",
        "live txn/s",
        "replay, 1 thread",
        "2 threads",
        "log B",
        "load s",
    ];
    let mut speeds = table("Replay in transactions per second", &columns);
    let columns = ["updates of 10", "command, 1 thread", "redo", "command, 2 threads", "redo"];
    let mut times = table("Microseconds of replay for a transaction", &columns);
    let mut ratios = [Vec::new(), Vec::new()];
    for &writes in &plan.replay_writes {
        let mut by_journal = Vec::new();
        for journal in ["command", "redo", "undo-redo"] {
            let runs = (0..plan.replays as u64)
                .map(|seed| one(bench, plan, journal, (writes, seed)))
                .collect::<LabResult<Vec<Replayed>>>()?;
            let of = |measure: &dyn Fn(&Replayed) -> f64| {
                median(&runs.iter().map(measure).collect::<Vec<_>>())
            };
            let shown = |measure: &dyn Fn(&Replayed) -> f64| grouped(of(measure) as u64);
            speeds.rows.push(vec![
                journal.into(),
                writes.to_string(),
                shown(&|run| run.live_rate),
                shown(&|run| Replayed::rate(&run.one)),
                shown(&|run| Replayed::rate(&run.two)),
                shown(&|run| run.one.log_bytes as f64 / run.one.commits as f64),
                format!("{:.2}", of(&|run| run.one.load_s)),
            ]);
            by_journal.push([
                of(&|run| us_per_transaction(&run.one)),
                of(&|run| us_per_transaction(&run.two)),
            ]);
            if journal == "command" && writes == KEYS_PER_TRANSACTION {
                ratios[0].extend(runs.iter().map(|run| Replayed::rate(&run.one) / run.live_rate));
                ratios[1].extend(runs.iter().map(|run| run.one.replay_s / run.two.replay_s));
            }
        }
        let [command, redo, _] = by_journal[..] else { continue };
        let cells = [command[0], redo[0], command[1], redo[1]];
        let cells = cells.iter().map(|us| format!("{us:.2}"));
        times.rows.push(std::iter::once(writes.to_string()).chain(cells).collect());
    }
    result.claims.push(ONE_CORE.claim("10 updates, 1 thread").measured_runs(&ratios[0]));
    result.claims.push(TWO_CORES.claim("10 updates").measured_runs(&ratios[1]));
    note_crossing(&times.rows, result);
    result.tables.push(speeds);
    result.tables.push(times);
    Ok(())
}

/// Says from how many updates on the replay of calls is no slower than that of redo.
fn note_crossing(rows: &[Vec<String>], result: &mut ExperimentResult) {
    for (threads, command) in [("one thread", 1), ("two threads", 3)] {
        let number =
            |row: &[String], at: usize| row.get(at).and_then(|cell| cell.parse::<f64>().ok());
        let wins = |row: &&Vec<String>| number(row, command) <= number(row, command + 1);
        let text = match rows.iter().find(wins).and_then(|row| row.first()) {
            Some(first) => format!(
                "With {threads}, the replay of calls is no slower than that of redo from {first} updates \
                 of ten on."
            ),
            None => {
                format!("With {threads}, the replay of redo is always faster than that of calls.")
            }
        };
        result.note(text);
    }
}

/// Runs transactions that read ten records and update some of them, and replays their log.
fn one(
    bench: &Harness<'_>,
    plan: &Plan,
    journal: &str,
    (writes, seed): (usize, u64),
) -> LabResult<Replayed> {
    let bed = bench.open_loaded(compared(), plan.replay_records, journal)?;
    bed.take_checkpoint()?;
    let drive = Drive {
        workers: 1,
        mix: Mix { writes, all_read_one: false },
        change: Change::Whole,
        seconds: plan.replayed_s,
        warm_up_s: plan.replayed_s / 20.0,
        seed: seed + 1,
        ..Drive::new(plan.replay_records)
    };
    let outcome = transactions::run(&*bed.engine, &drive)?;
    sys::sleep(WRITTEN);
    let start = |threads| -> LabResult<Recovered> {
        let dir = bench.context.fresh_dir("copy")?;
        sys::copy_dir(&bed.dir, &dir)?;
        let setup = setup(compared(), plan.replay_records, journal, dir.clone());
        let recovered = recover(&setup, threads)?;
        sys::remove_dir_all(&dir)?;
        Ok(recovered)
    };
    let (one, two) = (start(1)?, start(2)?);
    bed.clear()?;
    let replayed = Replayed { live_rate: outcome.rate(), one, two };
    bench.context.note(format!(
        "{journal}, {writes} updates: live {:.0} txn/s, replay {:.0} and {:.0} txn/s of {} commits",
        replayed.live_rate,
        Replayed::rate(&one),
        Replayed::rate(&two),
        one.commits
    ));
    Ok(replayed)
}
