//! Writes that are acknowledged only when they are flushed, and a crash in the middle. A check asks
//! that every acknowledged write survives.

use super::{PATIENCE, Plan, SOURCE, fill};
use crate::context::Context;
use crate::drivers::resp::{self, Load, LoadPlan, Until};
use crate::error::LabResult;
use crate::measure::stats::{Spread, median, quantile};
use crate::report::figure::axis::grouped;
use crate::report::result::{Bound, Claim, ClaimRow, ExperimentResult, Table};
use crate::subjects::server::{Peer, Server};
use crate::sys;

/// Figures of one pipeline depth: `[peer][run]`.
#[derive(Clone, Debug, Default)]
struct Runs {
    rates: [Vec<f64>; 3],
    p99_ms: [Vec<f64>; 3],
}

/// Runs the part and adds its claims and table.
///
/// # Errors
/// When a server fails, answers wrongly, or has lost an acknowledged write.
pub(crate) fn run(
    context: &Context,
    plan: &Plan,
    peers: &[Peer; 3],
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let flush_dir = context.fresh_dir("flush")?;
    let mut flushes: Vec<f64> = sys::time_flushes(&flush_dir, 4096, plan.flushes)?
        .iter()
        .map(|&ns| ns as f64 / 1e6)
        .collect();
    flushes.sort_by(f64::total_cmp);
    let (flush_ms, flush_p99_ms) = (quantile(&flushes, 0.5), quantile(&flushes, 0.99));
    context.note(format!("durable: a device flush takes {flush_ms:.3} ms, p99 {flush_p99_ms:.3}"));
    result.parameters.insert("flush_p50_ms".into(), flush_ms.into());
    result.parameters.insert("flush_p99_ms".into(), flush_p99_ms.into());

    let mut servers = Vec::new();
    for (index, peer) in peers.iter().enumerate() {
        let server = peer.start(&context.fresh_dir(&format!("durable-{index}"))?, PATIENCE)?;
        fill(plan, &server, plan.keys)?;
        servers.push(server);
    }
    let mut table = Table {
        title: "Durable writes".into(),
        columns: ["pipeline", "server", "SET/s", "spread", "p99 ms"].map(String::from).to_vec(),
        rows: Vec::new(),
        ..Table::default()
    };
    for pipeline in plan.pipelines {
        let runs = measure(context, plan, peers, &servers, pipeline)?;
        for (index, peer) in peers.iter().enumerate() {
            let Some(rate) = Spread::of(&runs.rates[index]) else {
                continue;
            };
            table.rows.push(vec![
                pipeline.to_string(),
                peer.name.clone(),
                grouped(rate.median as u64),
                format!("{} – {}", grouped(rate.low as u64), grouped(rate.high as u64)),
                format!("{:.2}", median(&runs.p99_ms[index])),
            ]);
        }
        result.claims.extend(claims(&runs, pipeline, flush_ms));
    }
    result.tables.push(table);
    let checked = crash(context, plan, peers, servers)?;
    result.note(format!(
        "Durable servers were killed in the middle of writes and started again: {checked}."
    ));
    Ok(())
}

fn measure(
    context: &Context,
    plan: &Plan,
    peers: &[Peer; 3],
    servers: &[Server],
    pipeline: usize,
) -> LabResult<Runs> {
    let mut runs = Runs::default();
    for run in 0..plan.runs {
        for (index, server) in servers.iter().enumerate() {
            let seed = run as u64 + 1;
            let load = LoadPlan { pipeline, set_share: 1.0, seed, ..plan.load(server.address) };
            let report = resp::run(&load)?;
            report.expect_no_errors(server.address)?;
            let p99_ms = report.latencies.all().p99_ms();
            runs.rates[index].push(report.rate());
            runs.p99_ms[index].push(p99_ms);
            let name = &peers[index].name;
            let rate = report.rate();
            context.note(format!(
                "durable: pipeline {pipeline}: {name} {rate:.0} /s, p99 {p99_ms:.2} ms"
            ));
        }
    }
    Ok(runs)
}

const WRITES: ClaimRow = ClaimRow::new("durable writes", SOURCE, Bound::AtLeast(1.2))
    .between("strict", "appendfsync always");
const WRITES_PIPELINED: ClaimRow = ClaimRow { bound: Bound::AtLeast(2.0), ..WRITES };
const P99: ClaimRow =
    ClaimRow::new("p99 of strict writes beyond the p99 without a log", SOURCE, Bound::AtMost(3.0))
        .unit("device flushes");

fn claims(runs: &Runs, pipeline: usize, flush_ms: f64) -> [Claim; 2] {
    let pairs = |a: &[f64], b: &[f64], f: fn(f64, f64) -> f64| -> Vec<f64> {
        a.iter().zip(b).map(|(&a, &b)| f(a, b)).collect()
    };
    let [strict, always, _] = &runs.rates;
    let ratios = pairs(strict, always, |a, b| a / b);
    let [strict, _, without] = &runs.p99_ms;
    let extra: Vec<f64> =
        pairs(strict, without, |a, b| a - b).iter().map(|ms| ms / flush_ms).collect();
    let writes = if pipeline > 1 { WRITES_PIPELINED } else { WRITES };
    let at = format!("pipeline {pipeline}");
    [writes.claim(&at).measured_runs(&ratios), P99.claim(&at).measured_runs(&extra)]
}

/// Kills both durable servers under load and compares the recovered data with the acknowledged
/// writes.
fn crash(
    context: &Context,
    plan: &Plan,
    peers: &[Peer; 3],
    servers: Vec<Server>,
) -> LabResult<String> {
    let mut said = Vec::new();
    for (index, server) in servers.into_iter().enumerate().take(2) {
        let load = LoadPlan {
            set_share: 1.0,
            pipeline: plan.pipelines[1],
            remember: true,
            seed: 99,
            until: Until::Told,
            ..plan.load(server.address)
        };
        let writes = Load::start(&load)?;
        sys::sleep(std::time::Duration::from_secs_f64(plan.run_s.min(5.0)));
        server.kill()?;
        let expected = writes.join_after_crash()?.acknowledged;
        let server =
            peers[index].start(&context.work.join(format!("durable-{index}")), PATIENCE)?;
        server.admin()?.check_strings(&expected, plan.value_bytes)?;
        let name = &peers[index].name;
        context
            .note(format!("durable: {name}: {} acknowledged keys are all there", expected.len()));
        said.push(format!("{name} had all {} acknowledged keys", expected.len()));
    }
    Ok(said.join(", "))
}
