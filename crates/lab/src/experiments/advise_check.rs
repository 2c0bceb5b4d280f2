//! `advise-check`: the adviser's recommendation on three unlike loads of records, beside the best row of
//! longer runs of every scheme.

use serde::Serialize;

use crate::advise::records::check::{Checked, check, loads};
use crate::context::Context;
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::experiments::calc_figures::bars;
use crate::harness::Harness;
use crate::report::result::{Bound, ClaimRow, ExperimentResult, Figure, Table};

/// The amount of work of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Size and rate of the loads, as a share of the full ones.
    pub(crate) share: f64,
    /// Seconds for which the adviser measures a scheme.
    pub(crate) advise_s: f64,
    /// Seconds of the longer run of a scheme.
    pub(crate) longer_s: f64,
}

/// The experiment.
pub(crate) struct AdviseCheck;

impl Experiment for AdviseCheck {
    const ID: &'static str = "advise-check";
    const TITLE: &'static str = "The adviser beside longer runs of every scheme";
    const PAPER: &'static str = "The project's own bounds";
    type Plan = Plan;

    fn full() -> Plan {
        Plan { share: 1.0, advise_s: 2.5, longer_s: 6.0 }
    }

    fn quick() -> Plan {
        Plan { share: 0.01, advise_s: 0.1, longer_s: 0.2 }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        plan.longer_s = asked.seconds.unwrap_or(plan.longer_s);
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        for load in loads(plan.share) {
            bench.context.note(format!("load: {}", load.name));
            let checked = check(&load, [plan.advise_s, plan.longer_s], bench.context)?;
            add(plan, load.name, &checked, result);
        }
        Ok(())
    }
}

const WITHIN: ClaimRow = ClaimRow::new(
    "processor time of a transaction in longer runs: recommended ÷ best row",
    "Stillpoint",
    Bound::AtMost(1.1),
);
const KEEPS: ClaimRow = ClaimRow::new(
    "the recommended row keeps the rate and the limits in the longer run (1: yes)",
    "Stillpoint",
    Bound::AtLeast(1.0),
)
.unit("");

/// Claims, bars and a table of one load.
fn add(plan: &Plan, load: &str, checked: &Checked, result: &mut ExperimentResult) {
    let best = checked.best.as_deref().unwrap_or("none keeps the limits");
    result.claims.push(WITHIN.claim(load).measured(checked.ratio));
    result.claims.push(KEEPS.claim(load).measured(f64::from(u8::from(checked.keeps_limits))));
    result.note(format!("{load}: recommended {}, best {best}.", checked.recommended));
    result.figures.push(Figure {
        title: format!("Processor time of a transaction: {load}"),
        caption: format!(
            "Longer runs of {} s. Recommended after {} s of each scheme: {}.",
            plan.longer_s, plan.advise_s, checked.recommended
        ),
        y_label: "microseconds".into(),
        bars: bars(checked.rows.iter().map(|(scheme, it)| (scheme.clone(), vec![it[1]]))),
        ..Figure::default()
    });
    let row = |(scheme, it): &(String, [f64; 3])| {
        let numbers = it.map(|number| format!("{number:.2}"));
        [vec![scheme.clone()], numbers.to_vec()].concat()
    };
    let columns = ["scheme", "us, adviser", "us, longer run", "worst ms, longer run"];
    result.tables.push(Table {
        title: load.to_owned(),
        columns: columns.map(String::from).to_vec(),
        rows: checked.rows.iter().map(row).collect(),
        ..Table::default()
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::transactions::tests::Toy;
    use crate::experiments::run_plan;

    #[test]
    fn each_load_has_its_recommendation_and_its_best_row() -> LabResult<()> {
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let dir = tempfile::tempdir().map_err(|e| crate::LabError::process("tempdir", e))?;
        let context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        let bench = Harness { context: &context, open: &Toy::open, children: false };
        let result = run_plan::<AdviseCheck>(&bench, &AdviseCheck::quick())?;
        let (claims, tables) = (result.claims.len(), result.tables.len());
        assert_eq!((claims, result.figures.len(), tables), (6, 3, 3));
        assert!(result.tables.iter().all(|table| table.rows.len() > 5), "{:?}", result.tables);
        Ok(())
    }
}
