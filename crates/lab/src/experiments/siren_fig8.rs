//! `siren-fig8`: how many tuples a SIREN checkpoint holds twice, over its time, beside uniform updates
//! (Figure 8 of the paper).
//!
//! All pages are dirty when the checkpoint begins. The measured curves stand beside the paper's equations,
//! which take the rates of updates and of capture that were measured in the run.

use serde::Serialize;
use stillpoint_siren::{Logging, Removes};

use crate::context::Context;
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::harness::Harness;
use crate::report::figure::axis::grouped;
use crate::report::result::{Bound, Claim, ExperimentResult, Figure, Series};
use crate::subjects::siren::{
    BesideUpdates, PAGE_BYTES, SirenStore, Stored, duplicates, duplicates_max,
};
use crate::sys;

const SOURCE: &str = "SIREN §4.1, Figure 8";
/// Largest distance of a measured curve from its equation, as a share of the equation's peak.
const DISTANCE_MAX: f64 = 0.1;
/// Points of a curve of an equation.
const POINTS: u32 = 50;

/// The amount of work.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Tuples of 300 bytes.
    pub(crate) tuples: u64,
    /// Updates per second.
    pub(crate) rate_per_s: f64,
    /// The disk's rate. The paper's disk copies 70,000 tuples per second.
    pub(crate) disk_bytes_per_s: u64,
}

/// The experiment.
pub(crate) struct SirenFig8;

impl Experiment for SirenFig8 {
    const ID: &'static str = "siren-fig8";
    const TITLE: &'static str = "Tuples that a SIREN checkpoint holds twice, over its time";
    const PAPER: &'static str = "SIREN, ICDE 2006, Figure 8";
    type Plan = Plan;

    fn full() -> Plan {
        Plan { tuples: 700_000, rate_per_s: 100e3, disk_bytes_per_s: 30_000_000 }
    }

    fn quick() -> Plan {
        Plan { tuples: 20_000, ..Self::full() }
    }

    fn adjust(_: &mut Plan, _: &Context) {}

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        result.parameter("page_bytes", PAGE_BYTES);
        result.parameter("data_bytes", plan.tuples * 300);
        for (name, removes) in [("siren", Removes::Pend), ("siren-semi-fuzzy", Removes::ToPages)] {
            let dir = bench.context.fresh_dir(name)?;
            bench.context.note(format!("loading {} tuples into {name}", plan.tuples));
            let stored = Stored {
                tuples: plan.tuples,
                removes,
                logging: Logging::None,
                disk_bytes_per_s: plan.disk_bytes_per_s,
                checkpoint_log_bytes: u64::MAX,
            };
            let store = SirenStore::load(&dir, stored)?;
            let run = store.checkpoint_beside(plan.rate_per_s, 1)?;
            draw(name, plan.tuples, &run, result);
            drop(store);
            sys::remove_dir_all(&dir)?;
        }
        figure(plan.rate_per_s, result);
        Ok(())
    }
}

/// The curves of a run, measured and by the equations, and the distance between them.
fn draw(name: &str, tuples: u64, run: &BesideUpdates, result: &mut ExperimentResult) {
    let all = tuples as f64;
    let percent = |count: f64| count / all * 100.0;
    let mut add = |label: &str, points: Vec<[f64; 2]>| {
        result.series.push(Series {
            name: format!("held twice, {label}"),
            label: label.to_owned(),
            x_unit: "s".into(),
            y_unit: "%".into(),
            points,
            ..Series::default()
        });
    };
    let samples: Vec<_> = run.samples.iter().filter(|(at, _)| *at <= run.seconds).collect();
    add(name, samples.iter().map(|(at, seen)| [*at, percent(seen.removed as f64)]).collect());
    if name == "siren-semi-fuzzy" {
        return;
    }
    let pages = samples.iter().map(|(at, seen)| [*at, percent(seen.touched as f64)]);
    add("copy-on-update of pages", pages.collect());
    let curves = [("equation 1", 1.0), ("equation 2", run.tuples_per_page)];
    for (label, per_page) in curves {
        let at = |step: u32| run.seconds * f64::from(step) / f64::from(POINTS);
        let point = |at| [at, percent(duplicates(all, per_page, run, at))];
        add(label, (0..=POINTS).map(|step| point(at(step))).collect());
    }
    for (number, (label, per_page)) in curves.into_iter().enumerate() {
        let peak = duplicates_max(all, per_page, run);
        let distance = samples.iter().map(|(at, seen)| {
            let measured = [seen.removed, seen.touched][number] as f64;
            (measured - duplicates(all, per_page, run, *at)).abs() / peak
        });
        let claim = format!("distance of the curve from {label} ÷ its peak, greatest over time");
        let claim = Claim::new(claim, SOURCE, Bound::AtMost(DISTANCE_MAX));
        result.claims.push(claim.measured(distance.fold(0.0, f64::max)));
    }
}

fn figure(rate: f64, result: &mut ExperimentResult) {
    result.figures.push(Figure {
        title: "Tuples held twice during a checkpoint".into(),
        caption: format!(
            "All pages are dirty at the begin. {} uniform updates per second.",
            grouped(rate as u64)
        ),
        x_label: "time, s".into(),
        y_label: "share of the database, %".into(),
        series: result.series.iter().map(|series| series.name.clone()).collect(),
        ..Figure::default()
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::transactions::tests::Toy;
    use crate::error::LabError;
    use crate::experiments::run_plan;

    #[test]
    fn curves_stand_beside_their_equations() -> LabResult<()> {
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
        let context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        let bench = Harness { context: &context, open: &Toy::open, children: false };
        let plan = Plan { tuples: 5_000, rate_per_s: 20e3, ..SirenFig8::quick() };
        let result = run_plan::<SirenFig8>(&bench, &plan)?;
        assert_eq!((result.claims.len(), result.series.len(), result.figures.len()), (2, 5, 1));
        assert!(result.claims.iter().all(|claim| claim.measured.is_some()));
        Ok(())
    }
}
