//! `ycsb`: YCSB's workloads A to F (SoCC 2010), embedded and over RESP.
//!
//! Embedded, an operation is a transaction on a record of ten fields, and an update writes one
//! field. Over RESP a record is a string of the same length, and an update replaces the whole
//! string. (The ICDE 2018 paper's client writes fields of a hash.) Workload E reads ranges, embedded
//! and of an ordered table. D and F would need a client that waits for its own reads. So only A, B and C
//! run over RESP.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use stillpoint::Kind;

use crate::context::Context;
use crate::drivers::resp::{self, LoadPlan, Until};
use crate::drivers::transactions::{self, Drive};
use crate::error::{LabError, LabResult};
use crate::experiments::Experiment;
use crate::experiments::calc_figures::bars;
use crate::experiments::peers_redis::{Peers, find_program};
use crate::harness::Harness;
use crate::measure::stats::{median, spread_of};
use crate::report::figure::axis::grouped;
use crate::report::result::{Bound, ClaimRow, ExperimentResult, Figure, Paper, Table};
use crate::subjects::records::records_commits;
use crate::subjects::server::{Peer, Server};
use crate::subjects::ycsb::{ROWS, Row, YcsbRecords};
use crate::sys;
use crate::workloads::random::KeyLaw;
use crate::workloads::ycsb::{MIXES, Mix, RANGES, RECORD_BYTES};

/// Longest time that a server may take to start.
const PATIENCE: Duration = Duration::from_secs(60);
/// Age after which a commit is flushed in relaxed durability, and a little more.
const RELAXED: Duration = Duration::from_millis(1_300);

/// The amount of work of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Records of 1,000 bytes.
    pub(crate) records: u64,
    /// Threads that run transactions.
    pub(crate) workers: usize,
    /// Transactions that a worker hands over as one batch.
    pub(crate) batch: usize,
    /// Runs of each mix and row.
    pub(crate) runs: usize,
    /// Seconds of a run.
    pub(crate) run_s: f64,
    /// Connections over RESP.
    pub(crate) connections: usize,
    /// Requests that a connection sends at once over RESP.
    pub(crate) pipelines: Vec<usize>,
}

/// Rates of a mix: `[subject][run]`.
type Rates = Vec<(String, Vec<f64>)>;

/// The experiment.
pub(crate) struct Ycsb;

impl Experiment for Ycsb {
    const ID: &'static str = "ycsb";
    const TITLE: &'static str = "YCSB A to F, embedded and over RESP";
    const PAPER: &'static str = "Cooper et al., SoCC 2010; Li et al., ICDE 2018, §III-C";
    const PARTS: &'static [&'static str] = &["embedded", "ranges", "resp"];
    type Plan = Plan;

    fn full() -> Plan {
        Plan {
            records: 2_000_000,
            workers: 2,
            batch: 8,
            runs: 5,
            run_s: 5.0,
            connections: 50,
            pipelines: vec![1, 16, 64],
        }
    }

    fn quick() -> Plan {
        Plan { records: 10_000, runs: 1, run_s: 0.2, pipelines: vec![16], ..Self::full() }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        plan.runs = asked.runs.unwrap_or(plan.runs).max(1);
        plan.run_s = asked.seconds.unwrap_or(plan.run_s).max(0.1);
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        result.parameter("record_bytes", RECORD_BYTES as u64);
        for part in Self::PARTS.iter().filter(|part| bench.context.wants(part)) {
            result.in_part(part, |result| match *part {
                "embedded" => embedded(bench, plan, (Kind::Memory, &MIXES), result),
                "ranges" => embedded(bench, plan, (Kind::Ordered, &[RANGES]), result),
                _ => over_resp(bench, plan, result),
            })?;
        }
        Ok(())
    }
}

const AT_REST: ClaimRow = ClaimRow::new("YCSB at rest", "CALC paper, §5.1.1", Bound::AtLeast(0.98))
    .between("calc", "none")
    .paper(Paper::words("no degradation of the baseline"));
/// Names of the servers over RESP.
const OURS: &str = "stillpoint";
const REDIS: &str = "redis";
const NULL: &str = "null server";
/// Pipelines from this one on are compared with the null server: with shorter ones the clients limit.
const LIMITED_PIPELINE: usize = 16;
const BESIDE_NULL: ClaimRow =
    ClaimRow::new("YCSB over RESP", "Stillpoint", Bound::AtLeast(0.9)).between(OURS, NULL);
const OVER_RESP: ClaimRow =
    ClaimRow::new("YCSB over RESP", "Stillpoint", Bound::AtLeast(1.0)).between(OURS, REDIS);

/// Runs mixes on a table of this kind.
fn embedded(
    bench: &Harness<'_>,
    plan: &Plan,
    (kind, mixes): (Kind, &[Mix]),
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let mut beds = Vec::new();
    for row in ROWS {
        let dir = bench.context.fresh_dir(&format!("ycsb-{}", row.name.replace(", ", "-")))?;
        bench.context.note(format!("loading {} records into {}", plan.records, row.name));
        let subject = YcsbRecords::open(row, kind, plan.records, &dir)?;
        subject.load()?;
        beds.push((row, subject, dir));
    }
    let title = if kind == Kind::Ordered { "Embedded, ordered table" } else { "Embedded" };
    let mut table = rate_table(title, &["mix", "row", "operations/s", "÷ none"]);
    for &mix in mixes {
        let rates = run_mix(bench, plan, mix, &beds)?;
        let of_baseline = |row: usize| -> Vec<f64> {
            rates[row].1.iter().zip(&rates[0].1).map(|(rate, none)| rate / none).collect()
        };
        if mix.updates > 0.0 {
            result.claims.push(AT_REST.claim(mix.name).measured_runs(&of_baseline(1)));
        }
        for (row, (name, rates)) in rates.iter().enumerate() {
            table.rows.push(vec![
                mix.name.to_owned(),
                name.clone(),
                grouped(median(rates) as u64),
                format!("{:.3}", median(&of_baseline(row))),
            ]);
        }
        figure(plan, &format!("YCSB {}, embedded", mix.name), rates, result);
    }
    result.tables.push(table);
    for (row, subject, dir) in beds {
        let written = subject.written();
        expect(row.name, subject.check()?, written)?;
        if records_commits(row.journal) {
            sys::sleep(RELAXED);
            drop(subject);
            let again = YcsbRecords::open(row, kind, plan.records, &dir)?;
            expect(row.name, again.check()?, written)?;
            result.note(format!("{}: reopened, {written} records, all sound.", row.name));
        }
        sys::remove_dir_all(&dir)?;
    }
    Ok(())
}

fn expect(name: &str, found: u64, expected: u64) -> LabResult<()> {
    if found == expected {
        return Ok(());
    }
    let reason = format!("{found} records, {expected} were written");
    Err(LabError::Engine { engine: name.to_owned(), reason })
}

fn run_mix(
    bench: &Harness<'_>,
    plan: &Plan,
    mix: Mix,
    beds: &[(Row, YcsbRecords, PathBuf)],
) -> LabResult<Rates> {
    let mut rates: Rates = beds.iter().map(|bed| (bed.0.name.to_owned(), Vec::new())).collect();
    for run in 0..plan.runs {
        for ((row, subject, _), (_, rates)) in beds.iter().zip(&mut rates) {
            let drive = Drive {
                workers: plan.workers,
                seconds: plan.run_s,
                warm_up_s: plan.run_s / 10.0,
                batch: plan.batch,
                ..Drive::new(plan.records)
            };
            let seed = run as u64 + 1;
            let client = |worker| subject.client(mix, plan.workers, worker, seed);
            let rate = transactions::run_clients(subject, &drive, &client)?.rate();
            bench.context.note(format!("YCSB {}: {}: {rate:.0}/s", mix.name, row.name));
            rates.push(rate);
        }
    }
    Ok(rates)
}

fn over_resp(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
    let context = bench.context;
    if !bench.children {
        result.note("No server was measured: this program does not serve.");
        return Ok(());
    }
    let redis = find_program("redis-server");
    let mut peers =
        Peers::stillpoint_and_redis(context.binary.clone(), redis.clone().unwrap_or_default())
            .plain;
    peers.truncate(2);
    if redis.is_none() {
        peers.truncate(1);
        result.note("redis-server is not installed: nothing was compared.");
    }
    peers.push(null_server(&context.binary));
    let mut servers = Vec::new();
    for peer in &peers {
        servers.push(filled(context, plan, peer)?);
    }
    let columns = ["mix", "pipeline", "server", "operations/s", "÷ redis"];
    let mut table = rate_table("Over RESP", &columns);
    for mix in MIXES.into_iter().filter(|mix| mix.reads + mix.updates >= 1.0) {
        for &pipeline in &plan.pipelines {
            let rates = load(context, plan, mix, pipeline, &peers, &servers)?;
            let of = |name: &str| rates.iter().find(|it| it.0 == name).map(|it| &it.1);
            let reference = of(REDIS).map_or(f64::NAN, |redis| median(redis));
            for (name, rates) in &rates {
                let rate = median(rates);
                table.rows.push(vec![
                    mix.name.to_owned(),
                    pipeline.to_string(),
                    name.clone(),
                    grouped(rate as u64),
                    format!("{:.2}", rate / reference),
                ]);
            }
            for (claim, other) in [(OVER_RESP, of(REDIS)), (BESIDE_NULL, of(NULL))] {
                let (Some(ours), Some(other)) = (of(OURS), other) else { continue };
                if claim.baseline == NULL && pipeline < LIMITED_PIPELINE {
                    continue;
                }
                let ratios = ours.iter().zip(other).map(|(ours, other)| ours / other);
                let claim = claim.claim(&format!("{}, pipeline {pipeline}", mix.name));
                result.claims.push(claim.measured_runs(&ratios.collect::<Vec<_>>()));
            }
            let title = format!("YCSB {} over RESP, pipeline {pipeline}", mix.name);
            figure(plan, &title, rates, result);
        }
    }
    result.tables.push(table);
    Ok(())
}

/// The limit: a server that answers at once.
fn null_server(binary: &std::path::Path) -> Peer {
    let line = format!("lab child null-server --port {{port}} --value-bytes {RECORD_BYTES}");
    let arguments = line.split(' ').map(str::to_owned).collect();
    Peer { name: NULL.into(), program: binary.to_owned(), arguments }
}

fn load_plan(plan: &Plan, server: &Server) -> LoadPlan {
    LoadPlan {
        connections: plan.connections,
        keys: plan.records,
        value_bytes: RECORD_BYTES,
        ..LoadPlan::new(server.address)
    }
}

/// A server with every record.
fn filled(context: &Context, plan: &Plan, peer: &Peer) -> LabResult<Server> {
    context.note(format!("writing {} records to {}", plan.records, peer.name));
    let dir = format!("ycsb-{}", peer.name.replace(' ', "-"));
    let server = peer.start(&context.fresh_dir(&dir)?, PATIENCE)?;
    let all = LoadPlan { pipeline: 16, until: Until::EveryKeyWritten, ..load_plan(plan, &server) };
    resp::run(&all)?.expect_no_errors(server.address)?;
    Ok(server)
}

fn load(
    context: &Context,
    plan: &Plan,
    mix: Mix,
    pipeline: usize,
    peers: &[Peer],
    servers: &[Server],
) -> LabResult<Rates> {
    let mut rates: Rates = peers.iter().map(|peer| (peer.name.clone(), Vec::new())).collect();
    for run in 0..plan.runs {
        for (server, (name, rates)) in servers.iter().zip(&mut rates) {
            let load = LoadPlan {
                pipeline,
                set_share: mix.updates,
                law: KeyLaw::ScrambledZipf,
                until: Until::Elapsed(Duration::from_secs_f64(plan.run_s)),
                warm_up: Duration::from_secs_f64(plan.run_s / 10.0),
                seed: run as u64 + 1,
                ..load_plan(plan, server)
            };
            let report = resp::run(&load)?;
            report.expect_no_errors(server.address)?;
            if report.misses > 0 {
                return Err(server.failure(format!("{} keys were not found", report.misses)));
            }
            let rate = report.rate();
            context.note(format!("YCSB {}, pipeline {pipeline}: {name}: {rate:.0}/s", mix.name));
            rates.push(rate);
        }
    }
    Ok(rates)
}

fn rate_table(title: &str, columns: &[&str]) -> Table {
    let columns = columns.iter().map(|column| (*column).to_owned()).collect();
    Table { title: title.into(), columns, ..Table::default() }
}

fn figure(plan: &Plan, title: &str, rates: Rates, result: &mut ExperimentResult) {
    result.figures.push(Figure {
        title: title.into(),
        caption: format!("{} records of 1,000 bytes; {}.", plan.records, spread_of(plan.runs)),
        y_label: "operations/s".into(),
        bars: bars(rates),
        ..Figure::default()
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::transactions::tests::Toy;
    use crate::experiments::run_plan;

    #[test]
    fn every_mix_has_its_rows() -> LabResult<()> {
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
        let context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        let bench = Harness { context: &context, open: &Toy::open, children: false };
        let plan = Plan { records: 1_000, run_s: 0.1, ..Ycsb::quick() };
        let result = run_plan::<Ycsb>(&bench, &plan)?;
        assert_eq!((result.figures.len(), result.tables[0].rows.len()), (6, 15));
        assert_eq!(result.tables[1].rows.len(), 3, "workload E");
        assert!(result.claims.len() == 2 && result.claims.iter().all(|c| c.measured.is_some()));
        assert!(result.notes.iter().any(|note| note.text.contains("all sound")));
        Ok(())
    }
}
