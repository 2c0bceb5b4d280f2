//! Checkpoints of changes beside transactions on a tenth of the records, with full checkpoints.
//!
//! Saturated workers show the transactions that are lost while a checkpoint is taken, and the worst
//! window. At half of that rate latencies count, and the before-images that wait for the disk. The table
//! also counts commits that waited for room in a checkpoint's output. Their waits are in the windows and
//! in the latencies, which count from the time at which a transaction was due.

use super::{Plan, claim, table};
use crate::drivers::transactions::{self, Capture, Drive, Outcome};
use crate::error::LabResult;
use crate::experiments::calc_measures::{capture_lost, capture_seconds, worst_window_ratio};
use crate::harness::{Harness, Instance};
use crate::measure::stats::{cost_ratio, median};
use crate::report::figure::axis::grouped;
use crate::report::result::ExperimentResult;
use crate::subjects::records::{BASELINE, CALC_UNPACED, of_scheme, row};

/// Share of the records that transactions touch.
const HOT_SHARE: f64 = 0.1;

/// The runs of one row: saturated ones, and those at half of the baseline's rate.
#[derive(Debug, Default)]
struct Runs {
    saturated: Vec<Outcome>,
    at_half: Vec<Outcome>,
    /// The most bytes of before-images that waited for the disk.
    waiting_bytes: u64,
}

impl Runs {
    /// The checkpoints of all runs.
    fn captures(&self) -> impl Iterator<Item = &Capture> {
        self.saturated.iter().chain(&self.at_half).flat_map(|run| &run.captures)
    }
}

pub(super) fn beside(
    bench: &Harness<'_>,
    plan: &Plan,
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let rows = [row(BASELINE), row(CALC_UNPACED), of_scheme(super::SCHEME)?];
    let open = |row| bench.open_loaded(row, plan.records, "none");
    let beds: Vec<Instance<'_>> = rows.into_iter().map(open).collect::<LabResult<_>>()?;
    beds.iter().try_for_each(Instance::take_base)?;
    let mut runs: [Runs; 3] = Default::default();
    for round in 0..plan.beside_runs as u64 {
        for (bed, runs) in beds.iter().zip(&mut runs) {
            runs.saturated.push(drive(bench, plan, bed, (round, None))?);
        }
    }
    let half = median(&runs[0].saturated.iter().map(Outcome::rate).collect::<Vec<_>>()) / 2.0;
    for round in 0..plan.beside_runs as u64 {
        for (bed, runs) in beds.iter().zip(&mut runs) {
            runs.at_half.push(drive(bench, plan, bed, (round, Some(half)))?);
            runs.waiting_bytes = runs.waiting_bytes.max(bed.engine.status().waiting_bytes_max);
        }
    }
    add(&beds, &runs, result);
    beds.into_iter().try_for_each(Instance::clear)
}

fn drive(
    bench: &Harness<'_>,
    plan: &Plan,
    bed: &Instance<'_>,
    (round, rate_per_s): (u64, Option<f64>),
) -> LabResult<Outcome> {
    let gap_s = plan.beside_gap_s;
    let begins = (0..plan.beside_checkpoints).map(|n| gap_s * (n as f64 + 0.5)).collect();
    let drive = Drive {
        seconds: gap_s * (plan.beside_checkpoints as f64 + 0.5),
        hot_share: HOT_SHARE,
        rate_per_s,
        checkpoints_at_s: if bed.row.takes_checkpoints { begins } else { Vec::new() },
        seed: round + 1,
        ..Drive::new(plan.records)
    };
    let outcome = transactions::run(&*bed.engine, &drive)?;
    bench.context.note(format!("beside: {} {:.0} txn/s", bed.row.name, outcome.rate()));
    Ok(outcome)
}

/// The latency, in milliseconds, below which all but a thousandth of the answers came while a
/// checkpoint was taken.
fn p999_ms(run: &Outcome) -> f64 {
    let captures: Vec<[f64; 2]> = run.captures.iter().map(|c| [c.from_s, c.to_s]).collect();
    run.latencies.within(&captures).p999_ms()
}

fn add(beds: &[Instance<'_>], [rest, full, changes]: &[Runs; 3], result: &mut ExperimentResult) {
    let columns = ["row", "checkpoints", "txn/s", "lost in a checkpoint", "worst window ÷ rest"];
    let more = ["checkpoint s", "p99.9 ms at half load", "waiting MB", "waits", "waited ms"];
    let mut rows = table(
        "Checkpoints beside transactions, 10 % hot",
        "beside",
        &[&columns[..], &more[..]].concat(),
    );
    let over = |runs: &Runs, measure: fn(&Outcome, &Outcome) -> f64| -> Vec<f64> {
        let pairs = rest.saturated.iter().zip(&runs.saturated);
        pairs.map(|(rest, run)| measure(rest, run)).collect()
    };
    let captures = |runs: &Runs| runs.saturated.iter().map(|run| run.captures.len()).sum::<usize>();
    // The losses of single checkpoints drown in noise, so all of them are averaged.
    let lost = |runs: &Runs| over(runs, capture_lost).iter().sum::<f64>() / captures(runs) as f64;
    let worst = |runs: &Runs| median(&over(runs, worst_window_ratio));
    let tails = |runs: &Runs| -> Vec<f64> { runs.at_half.iter().map(p999_ms).collect() };
    for (bed, runs) in beds[1..].iter().zip([full, changes]) {
        let rates: Vec<f64> = runs.saturated.iter().map(Outcome::rate).collect();
        let seconds: Vec<f64> = runs.saturated.iter().map(capture_seconds).collect();
        rows.rows.push(vec![
            bed.row.name.into(),
            captures(runs).to_string(),
            grouped(median(&rates) as u64),
            grouped(lost(runs).max(0.0) as u64),
            format!("{:.2}", worst(runs)),
            format!("{:.2}", median(&seconds)),
            format!("{:.2}", median(&tails(runs))),
            format!("{:.1}", runs.waiting_bytes as f64 / 1e6),
            grouped(runs.captures().map(|capture| capture.waits).sum()),
            format!("{:.1}", runs.captures().map(|capture| capture.waited_s * 1e3).sum::<f64>()),
        ]);
    }
    let of = "changes ÷ full, 10 % hot";
    let loss = cost_ratio(lost(changes), lost(full));
    claim(format!("lost within a checkpoint: {of}"), 0.3, "beside", &[loss], result);
    let windows: Vec<f64> = over(full, worst_window_ratio)
        .iter()
        .zip(over(changes, worst_window_ratio))
        .map(|(full, changes)| full / changes)
        .collect();
    // The rate of the worst window is less where more is lost.
    claim("worst 100 ms window: full ÷ changes, 10 % hot".into(), 1.0, "beside", &windows, result);
    let tails: Vec<f64> =
        tails(changes).iter().zip(tails(full)).map(|(c, f)| cost_ratio(*c, f)).collect();
    claim(format!("p99.9 within checkpoints: {of}"), 1.0, "beside", &tails, result);
    result.tables.push(rows);
}
