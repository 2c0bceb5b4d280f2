//! `paged-ycsb`: YCSB A to F on a paged table, in a pool that holds everything and in one of a tenth. Keys are
//! uniform, or follow the Zipf law of 0.99. R comes from a bare loop in the same run.

use std::path::Path;

use serde::Serialize;
use stillpoint::Kind;

use super::{
    MEMORY, Measured, OF_FORMULA, VARIATION, count, data_bytes, formula, measure, memory_beyond,
    pool_of_data, table,
};
use crate::context::Context;
use crate::drivers::transactions::Drive;
use crate::error::{LabError, LabResult};
use crate::experiments::Experiment;
use crate::harness::Harness;
use crate::measure::stats::median;
use crate::report::result::ExperimentResult;
use crate::subjects::paged::{PoolSize, pool_of, with_pool};
use crate::subjects::ycsb::YcsbRecords;
use crate::sys;
use crate::workloads::random::KeyLaw;
use crate::workloads::ycsb::{MIXES, Mix, RANGES, RECORD_BYTES};

/// The amount of work.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Records of 1,000 bytes.
    pub(crate) records: u64,
    /// Threads.
    pub(crate) workers: usize,
    /// Transactions that a worker hands over as one batch. All their reads are under way together.
    pub(crate) batch: usize,
    /// Runs of each mix.
    pub(crate) runs: usize,
    /// Seconds of a run.
    pub(crate) run_s: f64,
    /// Seconds of the steady run.
    pub(crate) steady_s: f64,
    /// Seconds of the bare loop.
    pub(crate) raw_s: f64,
    /// The pool that holds everything.
    pub(crate) pool: PoolSize,
    /// How many times the data are larger than the smaller pool.
    pub(crate) times: f64,
}

/// The experiment.
pub(crate) struct PagedYcsb;

const LAWS: [(&str, KeyLaw); 2] =
    [("uniform", KeyLaw::Uniform), ("Zipf 0.99", KeyLaw::ScrambledZipf)];

impl Experiment for PagedYcsb {
    const ID: &'static str = "paged-ycsb";
    const TITLE: &'static str = "YCSB A to F on paged tables, in the pool and beyond it";
    const PAPER: &'static str = "Cooper et al., SoCC 2010; LeanStore, ICDE 2018, §5";
    const PARTS: &'static [&'static str] = &["mixes", "steady"];
    type Plan = Plan;

    fn full() -> Plan {
        Plan {
            records: 2_000_000,
            workers: 2,
            batch: 8,
            runs: 3,
            run_s: 10.0,
            steady_s: 120.0,
            raw_s: 3.0,
            pool: PoolSize { pool_bytes: 4 << 30, page_bytes: 16 << 10 },
            times: 10.0,
        }
    }

    fn quick() -> Plan {
        Plan {
            records: 2_000,
            runs: 1,
            run_s: 0.02,
            steady_s: 0.1,
            raw_s: 0.02,
            pool: PoolSize { pool_bytes: 16 << 20, page_bytes: 4 << 10 },
            ..Self::full()
        }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        plan.runs = asked.runs.unwrap_or(plan.runs).max(1);
        plan.run_s = asked.seconds.unwrap_or(plan.run_s).max(0.02);
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        result.parameter("record_bytes", RECORD_BYTES as u64);
        let dir = bench.context.fresh_dir("paged-ycsb")?;
        bench.context.note(format!("loading {} records", plan.records));
        let loaded = open(plan, plan.pool, &dir)?;
        loaded.load()?;
        checkpoint(&loaded)?;
        let mut in_memory = Vec::new();
        if bench.context.wants("mixes") {
            for (mix, _) in loads() {
                let rates = (1..=plan.runs as u64).map(|seed| {
                    run_mix((&loaded, false), plan, mix, plan.run_s, seed).map(|run| run.rate)
                });
                in_memory.push(median(&rates.collect::<LabResult<Vec<f64>>>()?));
            }
        }
        expect(loaded.check()?, loaded.written())?;
        checkpoint(&loaded)?;
        let inserted = loaded.inserted();
        loaded.close()?;
        let data = data_bytes(&dir)?;
        let pool = pool_of_data(data, plan.times, plan.pool.page_bytes);
        result.parameter("data_bytes", data);
        result.parameter("small_pool_bytes", pool.pool_bytes);
        let evicting = open(plan, pool, &dir)?;
        evicting.go_on(inserted);
        for part in Self::PARTS.iter().filter(|part| bench.context.wants(part)) {
            result.in_part(part, |result| match *part {
                "mixes" => mixes(bench, plan, (&evicting, &dir), (pool, data), &in_memory, result),
                _ => steady(plan, &evicting, (pool, data), result),
            })?;
        }
        expect(evicting.check()?, evicting.written())?;
        evicting.close()?;
        sys::remove_dir_all(&dir)
    }
}

/// All mixes with their laws. D has a law of its own.
fn loads() -> Vec<(Mix, &'static str)> {
    let mixes = MIXES.into_iter().chain([RANGES]);
    let of_laws = |mix: Mix| {
        let laws = LAWS
            .into_iter()
            .filter(move |(_, law)| !mix.reads_latest || *law == KeyLaw::ScrambledZipf);
        laws.map(move |(name, law)| {
            let name = if mix.reads_latest { "latest" } else { name };
            (Mix { law, ..mix }, name)
        })
    };
    mixes.flat_map(of_laws).collect()
}

fn open(plan: &Plan, pool: PoolSize, dir: &Path) -> LabResult<YcsbRecords> {
    YcsbRecords::open_with("paged", with_pool(dir, pool), Kind::Paged, plan.records)
}

fn checkpoint(subject: &YcsbRecords) -> LabResult<()> {
    let taken = subject.engine().checkpoint();
    taken.map(drop).map_err(|error| LabError::process("a checkpoint", error))
}

fn expect(found: u64, written: u64) -> LabResult<()> {
    if found == written {
        return Ok(());
    }
    let reason = format!("{found} records, {written} were written");
    Err(LabError::Engine { engine: "paged".to_owned(), reason })
}

fn run_mix(
    (subject, is_evicting): (&YcsbRecords, bool),
    plan: &Plan,
    mix: Mix,
    seconds: f64,
    seed: u64,
) -> LabResult<Measured> {
    let drive = Drive {
        workers: plan.workers,
        seconds,
        warm_up_s: seconds.min(plan.run_s) / 5.0,
        batch: plan.batch,
        ..Drive::new(plan.records)
    };
    let client = |worker| match is_evicting && mix.ranges == 0.0 {
        true => subject.users(mix, plan.workers, worker, seed),
        false => subject.client(mix, plan.workers, worker, seed),
    };
    measure(subject, &|| pool_of("paged", subject.engine()), &drive, &client)
}

fn mixes(
    bench: &Harness<'_>,
    plan: &Plan,
    (subject, dir): (&YcsbRecords, &Path),
    (pool, data): (PoolSize, u64),
    in_memory: &[f64],
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let mut rows = table(
        &format!("Data {} × the pool", plan.times),
        &[
            "mix",
            "keys",
            "operations/s",
            "in memory",
            "page reads each",
            "page writes/s",
            "R(q, w)",
            "of the formula",
            "log B each",
        ],
    );
    let mut beyond = Vec::new();
    for (number, (mix, law)) in loads().into_iter().enumerate() {
        // A range reads its pages one after the other.
        let in_flight = if mix.ranges > 0.0 { 1 } else { plan.batch };
        let raw = (pool.page_bytes, plan.workers * in_flight, plan.raw_s);
        let (mut shares, mut runs, mut raws) = (Vec::new(), Vec::new(), Vec::new());
        for seed in 1..=plan.runs as u64 {
            let measured = run_mix((subject, true), plan, mix, plan.run_s, seed + 100)?;
            let (limit, raw) = formula(dir, in_memory[number], &measured, raw)?;
            bench.context.note(format!("{} {law}: {:.0}/s of {limit:.0}", mix.name, measured.rate));
            shares.push(measured.rate / limit);
            raws.push(raw);
            beyond.push(memory_beyond(&measured, pool, data));
            runs.push(measured);
        }
        let of =
            |figure: fn(&Measured) -> f64| median(&runs.iter().map(figure).collect::<Vec<f64>>());
        let at = format!("{}, {law}", mix.name);
        result.claims.push(OF_FORMULA.claim(&at).measured_runs(&shares));
        rows.rows.push(vec![
            mix.name.to_owned(),
            law.to_owned(),
            count(of(|run| run.rate)),
            count(in_memory[number]),
            format!("{:.2}", of(|run| run.reads)),
            count(of(|run| run.writes_per_s)),
            count(median(&raws)),
            format!("{:.2}", median(&shares)),
            count(of(|run| run.log_bytes)),
        ]);
    }
    result.claims.push(MEMORY.claim("YCSB").measured_runs(&beyond));
    result.tables.push(rows);
    Ok(())
}

/// One long run of A with uniform keys.
fn steady(
    plan: &Plan,
    subject: &YcsbRecords,
    (pool, data): (PoolSize, u64),
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let mix = Mix { law: KeyLaw::Uniform, ..MIXES[0] };
    let measured = run_mix((subject, true), plan, mix, plan.steady_s, 1_000)?;
    let at = format!("A, uniform, {} s of eviction", plan.steady_s);
    result.claims.push(VARIATION.claim(&at).measured(measured.variation));
    result.claims.push(MEMORY.claim(&at).measured(memory_beyond(&measured, pool, data)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::paged::tests::quick;

    #[test]
    fn a_quick_run_has_all_mixes_and_both_laws() -> LabResult<()> {
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let result = quick::<PagedYcsb>()?;
        assert_eq!(result.tables[0].rows.len(), 11, "D has one law, all others two");
        assert_eq!(result.claims.len(), 11 + 1 + 2);
        let reads: Vec<&str> = result.tables[0].rows.iter().map(|row| &*row[4]).collect();
        assert!(
            reads.iter().any(|each| *each != "0.00"),
            "data are larger than the pool: {reads:?}"
        );
        Ok(())
    }
}
