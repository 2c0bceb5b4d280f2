//! Claims, figures and the table of the comparison.

use super::{BARE, CALC, Durability, Measured, OURS, Plan, Row};
use crate::context::Context;
use crate::error::{LabError, LabResult};
use crate::experiments::calc_figures::bars;
use crate::measure::stats::median;
use crate::report::figure::axis::grouped;
use crate::report::result::{Bound, ClaimRow, ExperimentResult, Figure, Table};

const BESIDE_BARE: ClaimRow =
    ClaimRow::new("CALC transactions, redo relaxed", "Stillpoint", Bound::AtLeast(1.0))
        .between(OURS, BARE)
        .goal(Bound::AtLeast(1.3));
const BESIDE_PEER: ClaimRow =
    ClaimRow::new("CALC transactions", "Stillpoint", Bound::AtLeast(10.0));

/// The result with its parameters.
pub(super) fn head(context: &Context, plan: &Plan, rows: &[Row]) -> LabResult<ExperimentResult> {
    let title = "Beside other embedded stores: the CALC transaction and YCSB";
    let mut result = context.result("peers", title, "The project's own bounds");
    result.command = "cd peers && cargo run --release --".to_owned();
    let plan = serde_json::to_value(plan).map_err(|e| LabError::process("a plan as JSON", e))?;
    if let serde_json::Value::Object(fields) = plan {
        result.parameters.extend(fields);
    }
    let names: Vec<&str> = rows.iter().map(|row| &*row.name).collect();
    result.parameter("stores", names.join(", "));
    result.note(
        "A CALC transaction reads 10 records of 100 bytes and adds one to a counter in each. Relaxed: a \
         crash may take the last commits away. Strict: each commit is durable before it returns. \
         YCSB's records have 1,000 bytes, and an update writes one field of ten. Stores with one writer \
         at a time run the two workers in turn.",
    );
    Ok(result)
}

/// Adds what was measured.
pub(super) fn add(measured: &[Measured], result: &mut ExperimentResult) {
    let find = |of: &Measured, name: &str| {
        let is_it = |it: &&Measured| {
            it.workload == of.workload && it.durability == of.durability && it.name == name
        };
        measured.iter().find(is_it)
    };
    let ratio = |ours: &Measured, other: &Measured| median(&ours.rates) / median(&other.rates);
    for other in measured.iter().filter(|it| it.workload == CALC && it.name != OURS) {
        let Some(ours) = find(other, OURS) else { continue };
        result.claims.push(match &*other.name {
            // The two ran in turn.
            BARE => {
                let pairs = ours.rates.iter().zip(&other.rates);
                let ratios: Vec<f64> = pairs.map(|(ours, bare)| ours / bare).collect();
                BESIDE_BARE.claim("").measured_runs(&ratios)
            }
            name => {
                let claim = BESIDE_PEER.claim_of((OURS, name), other.durability.name());
                claim.measured(ratio(ours, other))
            }
        });
    }
    let mut table = Table {
        title: "Transactions per second".into(),
        columns: ["workload", "durability", "store", "per second", "ours ÷ it"]
            .map(String::from)
            .to_vec(),
        ..Table::default()
    };
    let mut drawn: Vec<(String, Durability)> = Vec::new();
    for it in measured {
        let ratio = find(it, OURS).map_or(f64::NAN, |ours| ratio(ours, it));
        table.rows.push(vec![
            it.workload.clone(),
            it.durability.name().to_owned(),
            it.name.clone(),
            grouped(median(&it.rates) as u64),
            format!("{ratio:.2}"),
        ]);
        let of = (it.workload.clone(), it.durability);
        if !drawn.contains(&of) {
            drawn.push(of);
        }
    }
    result.tables.push(table);
    for (workload, durability) in drawn {
        let rows = measured.iter().filter(|it| it.workload == workload);
        let rows = rows.filter(|it| it.durability == durability);
        result.figures.push(Figure {
            title: format!("{workload}, {}", durability.name()),
            caption: "Two workers in one process; every record compared at the end.".into(),
            y_label: "transactions/s".into(),
            bars: bars(rows.map(|it| (it.name.clone(), it.rates.clone()))),
            ..Figure::default()
        });
    }
}
