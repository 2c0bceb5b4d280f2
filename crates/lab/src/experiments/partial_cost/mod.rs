//! `partial-cost`: the cost of a checkpoint of changes, of a start from a chain, and of a merge.
//!
//! | part | what is compared |
//! |---|---|
//! | cost | bytes and processor time of a checkpoint of changes, with a full one |
//! | chain | the load of a full checkpoint and 16 of changes, with that of a full one; then merged |
//! | merge | the memory of an offline merge |
//! | merging | strict transactions beside a merge, with such without |
//! | beside | transactions lost within checkpoints of changes, with full ones; worst windows, latencies |
//! | churn | the memory while keys come and go, and checkpoints succeed or fail |
//!
//! In the first three parts no transaction runs meanwhile. The changed records lie at equal distances in the table, so a
//! checkpoint of changes finds no two of them side by side.

mod bed;
mod beside;
mod churn;
mod merging;

use serde::Serialize;
use stillpoint::offline;

use crate::context::Context;
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::harness::Harness;
use crate::measure::process::own_bytes;
use crate::measure::stats::{cost_ratio, median};
use crate::report::figure::axis::grouped;
use crate::report::result::{Bound, Claim, ExperimentResult, Table};
use crate::subjects::stillpoint::failed;
use crate::sys;
use bed::{Bed, NAME, Taken};

const SOURCE: &str = "Stillpoint";
const PARTS: [&str; 6] = ["cost", "chain", "merge", "merging", "beside", "churn"];
/// The scheme that is measured.
const SCHEME: &str = "calc:partial";
/// Records of one transaction.
const BATCH: u64 = 64;
/// Bytes that a merge may hold beyond what the process held before.
const MERGE_BYTES_MAX: f64 = 256.0 * 1048576.0;

/// The amount of work of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Records of 8 + 100 bytes of part `cost`.
    pub(crate) records: u64,
    /// Shares of the records that change before a checkpoint of changes.
    pub(crate) shares: Vec<f64>,
    /// Checkpoints of each kind and share, and loads of each chain.
    pub(crate) runs: usize,
    /// Records of part `chain`.
    pub(crate) chain_records: u64,
    /// Checkpoints of changes of a chain.
    pub(crate) links: u64,
    /// Records of part `merge`.
    pub(crate) merge_records: u64,
    /// Runs of part `merging`, each with a chain of its own.
    pub(crate) merging_runs: usize,
    /// Length of its measurements: saturated, without and with a merge.
    pub(crate) merging_s: f64,
    /// Runs of part `beside` for each row, saturated and at half of the load.
    pub(crate) beside_runs: usize,
    /// Checkpoints in each run.
    pub(crate) beside_checkpoints: usize,
    /// Time between the begins of two of them.
    pub(crate) beside_gap_s: f64,
    /// Keys of part `churn` that live at a time.
    pub(crate) churn_live: u64,
    /// The most keys that it inserts in a second.
    pub(crate) churn_per_s: f64,
    /// Its length, once with checkpoints that succeed and once with such that fail.
    pub(crate) churn_s: f64,
    /// Time between two of its checkpoints.
    pub(crate) churn_every_s: f64,
}

/// Which records change between two checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    Disjoint,
    Identical,
    DeleteHeavy,
}

impl Set {
    const ALL: [Set; 3] = [Set::Disjoint, Set::Identical, Set::DeleteHeavy];

    fn name(self) -> &'static str {
        match self {
            Set::Disjoint => "disjoint",
            Set::Identical => "identical",
            Set::DeleteHeavy => "delete-heavy",
        }
    }
}

/// The experiment.
pub(crate) struct PartialCost;

impl Experiment for PartialCost {
    const ID: &'static str = "partial-cost";
    const TITLE: &'static str = "The cost of checkpoints of changes";
    const PAPER: &'static str =
        "The project's own bounds; after Ren et al., SIGMOD 2016 (CALC), §2.3 and §5.1.4";
    const PARTS: &'static [&'static str] = &PARTS;
    type Plan = Plan;

    fn full() -> Plan {
        Plan {
            records: 20_000_000,
            shares: vec![0.1, 0.01],
            runs: 5,
            chain_records: 10_000_000,
            links: 16,
            merge_records: 16_000_000,
            merging_runs: 3,
            merging_s: 20.0,
            beside_runs: 6,
            beside_checkpoints: 5,
            beside_gap_s: 6.0,
            churn_live: 1_000_000,
            churn_per_s: 1e6,
            churn_s: 60.0,
            churn_every_s: 5.0,
        }
    }

    fn quick() -> Plan {
        Plan {
            records: 100_000,
            runs: 1,
            chain_records: 40_000,
            merge_records: 40_000,
            merging_runs: 1,
            merging_s: 2.0,
            beside_runs: 1,
            beside_checkpoints: 2,
            beside_gap_s: 0.3,
            churn_live: 20_000,
            churn_s: 1.0,
            churn_every_s: 0.1,
            ..Self::full()
        }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        plan.runs = asked.runs.unwrap_or(plan.runs).max(1);
        plan.merging_runs = asked.runs.unwrap_or(plan.merging_runs).max(1);
        plan.beside_runs = asked.runs.unwrap_or(plan.beside_runs).max(1);
        plan.churn_s = asked.seconds.unwrap_or(plan.churn_s);
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        let parts = [cost, chain, merge, merging::merging, beside::beside, churn::churn];
        for (name, part) in PARTS.iter().zip(parts) {
            if bench.context.wants(name) {
                part(bench, plan, result)?;
            }
        }
        Ok(())
    }
}

fn table(title: &str, part: &str, columns: &[&str]) -> Table {
    Table {
        title: title.into(),
        part: part.into(),
        columns: columns.iter().map(|&column| column.into()).collect(),
        rows: Vec::new(),
    }
}

/// A claim of a part, with its measured figure.
fn claim(title: String, bound: f64, part: &str, ratios: &[f64], result: &mut ExperimentResult) {
    let claim = Claim::new(title, SOURCE, Bound::AtMost(bound)).measured_runs(ratios);
    result.claims.push(Claim { part: part.into(), ..claim });
}

/// Bytes and processor time of a checkpoint of changes, with a full one.
fn cost(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
    let mut bed = Bed::open(bench.context.fresh_dir("cost")?)?;
    bench.context.note(format!("loading {} records", plan.records));
    bed.put(0..plan.records, 1, 0)?;
    let columns = ["changed", "kind", "records", "MB", "CPU s", "s"];
    let mut table = table("Checkpoints in an idle store", "cost", &columns);
    let full: Vec<Taken> = (0..plan.runs).map(|_| bed.take_full()).collect::<LabResult<_>>()?;
    add(&mut table, "all", &full);
    for &share in &plan.shares {
        let step = (1.0 / share).round() as u64;
        let mut changes = Vec::new();
        for run in 0..plan.runs as u64 {
            bed.put(0..plan.records, step, run + 1)?;
            changes.push(bed.take()?);
        }
        let percent = share * 100.0;
        add(&mut table, &format!("{percent} %"), &changes);
        let changed = plan.records.div_ceil(step) as f64;
        // With 10 % changed records the ratio may be 0.15, and with 1 % it may be 0.03.
        let factor = if share >= 0.1 { 1.5 } else { 3.0 };
        let bound = (factor * share * 1e3).round() / 1e3;
        let of = |measure: fn(&Taken) -> f64| -> Vec<f64> {
            let pairs = changes.iter().zip(&full);
            pairs.map(|(changes, full)| cost_ratio(measure(changes), measure(full))).collect()
        };
        let at = format!("{percent} % changed");
        let of_full = format!("checkpoint of changes ÷ full, {at}");
        let (bytes, cpu_s) = (of(|taken| taken.bytes), of(|taken| taken.cpu_s));
        claim(format!("bytes: {of_full}"), bound, "cost", &bytes, result);
        claim(format!("processor time: {of_full}"), bound, "cost", &cpu_s, result);
        let records: Vec<f64> = changes.iter().map(|taken| taken.records / changed).collect();
        claim(format!("records in it ÷ changed records, {at}"), 1.0, "cost", &records, result);
    }
    result.tables.push(table);
    bed.clear()
}

fn add(table: &mut Table, changed: &str, taken: &[Taken]) {
    let of = |measure: fn(&Taken) -> f64| median(&taken.iter().map(measure).collect::<Vec<_>>());
    table.rows.push(vec![
        changed.into(),
        taken.first().map_or("", |taken| taken.kind).into(),
        grouped(of(|taken| taken.records) as u64),
        format!("{:.1}", of(|taken| taken.bytes) / 1e6),
        format!("{:.2}", of(|taken| taken.cpu_s)),
        format!("{:.2}", of(|taken| taken.seconds)),
    ]);
}

/// Loads of a chain, of the merged chain, and of a full checkpoint of the same records.
fn chain(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
    let columns = ["changes", "files", "MB", "load s"];
    let mut table = table("Loads of a chain", "chain", &columns);
    for set in Set::ALL {
        let bed = changed(bench, plan.chain_records, plan.links, set)?;
        let dir = bed.close();
        let mut loads = |what: &str| -> LabResult<(Vec<f64>, f64)> {
            let loads: Vec<(f64, f64)> =
                (0..plan.runs).map(|_| bed::load(&dir)).collect::<LabResult<_>>()?;
            let times: Vec<f64> = loads.iter().map(|load| load.0).collect();
            let bytes = loads.last().map_or(0.0, |load| load.1);
            bench.context.note(format!("{} {what}: {:.2} s", set.name(), median(&times)));
            table.rows.push(vec![
                set.name().into(),
                what.into(),
                format!("{:.1}", bytes / 1e6),
                format!("{:.3}", median(&times)),
            ]);
            Ok((times, bytes))
        };
        let (of_chain, chain_bytes) = loads("chain")?;
        let merged = offline::merge(&dir, 1).map_err(|error| failed(NAME, error))?;
        assert!(merged.is_some(), "a chain is merged");
        let (of_merged, _) = loads("merged")?;
        Bed::open(dir.clone())?.take_full()?;
        let (of_full, full_bytes) = loads("full")?;
        let ratios = |times: &[f64], bytes: f64| -> Vec<f64> {
            times.iter().zip(&of_full).map(|(time, full)| time / full / bytes).collect()
        };
        let of = format!("{} sets", set.name());
        let by_bytes = ratios(&of_chain, chain_bytes / full_bytes);
        let links = plan.links;
        let title = format!("load, per byte: chain of {links} ÷ full, {of}");
        claim(title, 1.2, "chain", &by_bytes, result);
        claim(format!("load: merged ÷ full, {of}"), 1.2, "chain", &ratios(&of_merged, 1.0), result);
        sys::remove_dir_all(&dir)?;
    }
    result.tables.push(table);
    Ok(())
}

/// Takes a full checkpoint, and `links` checkpoints of changes, each of a 32nd of the records.
fn changed(bench: &Harness<'_>, records: u64, links: u64, set: Set) -> LabResult<Bed> {
    let mut bed = Bed::open(bench.context.fresh_dir(set.name())?)?;
    bench.context.note(format!("loading {records} records, {} sets", set.name()));
    bed.put(0..records, 1, 0)?;
    bed.take()?;
    for link in 1..=links {
        match set {
            Set::Disjoint => bed.put(link..records, 32, link)?,
            Set::Identical => bed.put(0..records, 32, link)?,
            Set::DeleteHeavy => {
                bed.delete(link..records, 32)?;
                // A tenth as many records are new as are deleted.
                bed.put(records * link..records * link + records / 320, 1, link)?;
            }
        }
        bed.take()?;
    }
    Ok(bed)
}

/// Seconds of starts from a full checkpoint and `links` of changes, and the bytes of the files.
///
/// # Errors
/// When the engine refuses.
pub(super) fn chain_loads(
    bench: &Harness<'_>,
    records: u64,
    links: u64,
    runs: usize,
) -> LabResult<(Vec<f64>, f64)> {
    let dir = changed(bench, records, links, Set::Disjoint)?.close();
    let loads: Vec<(f64, f64)> = (0..runs).map(|_| bed::load(&dir)).collect::<LabResult<_>>()?;
    sys::remove_dir_all(&dir)?;
    Ok((loads.iter().map(|load| load.0).collect(), loads.last().map_or(0.0, |load| load.1)))
}

/// The most bytes that a merge holds at a time.
fn merge(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
    let dir = changed(bench, plan.merge_records, 8, Set::Disjoint)?.close();
    let before = own_bytes();
    let of = dir.clone();
    let merging = sys::spawn("merge", move || offline::merge(&of, 1))?;
    let mut most = 0;
    while !merging.is_finished() {
        most = most.max(own_bytes());
        sys::sleep(std::time::Duration::from_millis(2));
    }
    let merged = merging.join().map_err(|error| failed(NAME, error))?;
    let merged = merged.map_err(|error| failed(NAME, error))?.expect("a chain is merged");
    let held = most.saturating_sub(before) as f64;
    result.note(format!(
        "A merge of {:.2} GB held {:.0} MiB.",
        merged.bytes_before as f64 / 1e9,
        held / 1048576.0
    ));
    let title = "memory of an offline merge ÷ 256 MiB".to_owned();
    claim(title, 1.0, "merge", &[held / MERGE_BYTES_MAX], result);
    sys::remove_dir_all(&dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::run_plan;

    #[test]
    fn each_part_has_its_claims() -> LabResult<()> {
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let dir = tempfile::tempdir().map_err(|e| crate::LabError::process("tempdir", e))?;
        let context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        let open = &crate::subjects::stillpoint::open;
        let bench = Harness { context: &context, open, children: false };
        let plan = Plan { records: 20_000, ..PartialCost::quick() };
        let result = run_plan::<PartialCost>(&bench, &plan)?;
        assert_eq!((result.claims.len(), result.tables.len()), (6 + 6 + 1 + 2 + 3 + 2, 5));
        assert_eq!(result.tables[0].rows.len(), 3);
        assert_eq!(result.tables[1].rows.len(), 9);
        // A checkpoint of changes has the changed records, and no other.
        let records = result.claims.iter().filter(|claim| claim.claim.contains("changed records"));
        assert!(
            records.clone().count() == 2
                && records.clone().all(|claim| claim.measured == Some(1.0))
        );
        Ok(())
    }
}
