//! GET and SET, without and with pipelining: requests per second, and the server's CPU seconds per
//! million requests.

use std::path::Path;

use super::{PATIENCE, Plan, SOURCE, bench_tool, fill};
use crate::context::Context;
use crate::drivers::resp::{self, LoadPlan};
use crate::error::LabResult;
use crate::measure::stats::{Spread, median, spread_of};
use crate::report::figure::axis::grouped;
use crate::report::result::{Bar, Bound, Claim, ClaimRow, ExperimentResult, Figure, Table};
use crate::subjects::server::{Peer, Server};

/// One cell of the comparison, measured for every peer.
#[derive(Clone, Debug, Default)]
struct Cell {
    generator: &'static str,
    operation: &'static str,
    pipeline: usize,
    /// Requests per second: `[peer][run]`.
    rates: Vec<Vec<f64>>,
    /// Server CPU seconds per million requests: `[peer][run]`.
    cpu: Vec<Vec<f64>>,
}

const OWN: &str = "lab client";
const TOOL: &str = "redis-benchmark";

/// Runs the part and adds its claims, tables and figure.
///
/// # Errors
/// When a server fails or answers wrongly.
pub(crate) fn run(
    context: &Context,
    plan: &Plan,
    peers: &[Peer],
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let mut servers = Vec::new();
    for (index, peer) in peers.iter().enumerate() {
        context.note(format!("throughput: starting {} and writing {} keys", peer.name, plan.keys));
        let server = peer.start(&context.fresh_dir(&format!("throughput-{index}"))?, PATIENCE)?;
        fill(plan, &server, plan.keys)?;
        servers.push(server);
    }
    let tool = bench_tool::find();
    if tool.is_none() {
        result.note("redis-benchmark is not installed; the lab's own client was used");
    }
    let mut cells = Vec::new();
    for pipeline in plan.pipelines {
        for operation in ["GET", "SET"] {
            let own = measure_own(context, plan, peers, &servers, operation, pipeline)?;
            if let Some(tool) = &tool {
                cells.push(measure_tool(context, plan, tool, peers, &servers, &own)?);
            }
            cells.push(own);
        }
    }
    report(plan, peers, &cells, result);
    Ok(())
}

fn measure_own(
    context: &Context,
    plan: &Plan,
    peers: &[Peer],
    servers: &[Server],
    operation: &'static str,
    pipeline: usize,
) -> LabResult<Cell> {
    let mut cell = Cell::new(OWN, operation, pipeline, servers.len());
    for run in 0..plan.runs {
        for (index, server) in servers.iter().enumerate() {
            let set_share = if operation == "SET" { 1.0 } else { 0.0 };
            let seed = run as u64 + 1;
            let load = LoadPlan { pipeline, set_share, seed, ..plan.load(server.address) };
            let cpu_before = server.cpu_seconds()?;
            let report = resp::run(&load)?;
            let cpu_s = server.cpu_seconds()? - cpu_before;
            report.expect_no_errors(server.address)?;
            if report.misses > 0 {
                return Err(server.failure(format!("{} keys were not found", report.misses)));
            }
            cell.add(index, report.rate(), cpu_s / (report.commands_all as f64 / 1e6));
            cell.note(context, &peers[index].name, index);
        }
    }
    Ok(cell)
}

fn measure_tool(
    context: &Context,
    plan: &Plan,
    tool: &Path,
    peers: &[Peer],
    servers: &[Server],
    own: &Cell,
) -> LabResult<Cell> {
    let mut cell = Cell::new(TOOL, own.operation, own.pipeline, servers.len());
    for _ in 0..plan.runs {
        for (index, server) in servers.iter().enumerate() {
            // The tool takes a number of requests, not seconds. The rate of the lab's own client
            // says how many requests fill the time.
            let requests = (median(&own.rates[index]) * plan.run_s).max(1_000.0) as u64;
            let cpu_before = server.cpu_seconds()?;
            let rate = bench_tool::run(tool, plan, server, own.operation, own.pipeline, requests)?;
            let cpu_s = server.cpu_seconds()? - cpu_before;
            cell.add(index, rate, cpu_s / (requests as f64 / 1e6));
            cell.note(context, &peers[index].name, index);
        }
    }
    Ok(cell)
}

impl Cell {
    fn new(
        generator: &'static str,
        operation: &'static str,
        pipeline: usize,
        peers: usize,
    ) -> Cell {
        let none = vec![Vec::new(); peers];
        Cell { generator, operation, pipeline, rates: none.clone(), cpu: none }
    }

    fn add(&mut self, peer: usize, rate: f64, cpu_per_million: f64) {
        self.rates[peer].push(rate);
        self.cpu[peer].push(cpu_per_million);
    }

    fn note(&self, context: &Context, peer: &str, index: usize) {
        let last = |values: &[Vec<f64>]| values[index].last().copied().unwrap_or(f64::NAN);
        context.note(format!(
            "throughput: {} pipeline {} by {}: {peer} {:.0} /s, {:.2} CPU s per million",
            self.operation,
            self.pipeline,
            self.generator,
            last(&self.rates),
            last(&self.cpu),
        ));
    }

    /// Ours ÷ the reference, run by run, since both ran right after each other.
    fn ratios(values: &[Vec<f64>]) -> Vec<f64> {
        match values {
            [ours, reference, ..] => ours.iter().zip(reference).map(|(a, b)| a / b).collect(),
            _ => Vec::new(),
        }
    }

    fn title(&self) -> String {
        format!("{}, pipeline {}", self.operation, self.pipeline)
    }
}

const RATE: ClaimRow =
    ClaimRow::new("throughput", SOURCE, Bound::AtLeast(1.2)).between("Stillpoint", "Redis");
const RATE_PIPELINED: ClaimRow = ClaimRow { bound: Bound::AtLeast(2.0), ..RATE };
const CPU: ClaimRow = ClaimRow::new("server CPU per command", SOURCE, Bound::AtMost(0.5))
    .between("Stillpoint", "Redis");

impl Cell {
    fn claims(&self) -> Vec<Claim> {
        let (pipelined, by) = (self.pipeline > 1, self.generator);
        let at = format!("{}, by {by}", self.title());
        let rate = if pipelined { RATE_PIPELINED } else { RATE };
        let mut claims = vec![rate.claim(&at).measured_runs(&Cell::ratios(&self.rates))];
        if pipelined {
            claims.push(CPU.claim(&at).measured_runs(&Cell::ratios(&self.cpu)));
        }
        claims
    }

    fn rows(&self, peers: &[Peer]) -> Vec<Vec<String>> {
        let row = |(index, peer): (usize, &Peer)| {
            let rate = Spread::of(&self.rates[index])?;
            let whole = |value: f64| grouped(value as u64);
            Some(vec![
                self.title(),
                self.generator.into(),
                peer.name.clone(),
                whole(rate.median),
                format!("{} – {}", whole(rate.low), whole(rate.high)),
                format!("{:.2}", median(&self.cpu[index])),
            ])
        };
        peers.iter().enumerate().filter_map(row).collect()
    }
}

fn report(plan: &Plan, peers: &[Peer], cells: &[Cell], result: &mut ExperimentResult) {
    let columns = ["load", "generator", "server", "requests/s", "spread", "CPU s per million"];
    result.tables.push(Table {
        title: "Throughput and CPU".into(),
        columns: columns.map(String::from).to_vec(),
        rows: cells.iter().flat_map(|cell| cell.rows(peers)).collect(),
        ..Table::default()
    });
    result.claims.extend(cells.iter().flat_map(Cell::claims));
    let by_tool = cells.iter().any(|cell| cell.generator == TOOL);
    let shown = if by_tool { TOOL } else { OWN };
    let caption = format!(
        "{} connections, {} client threads, {} keys of {} bytes, {shown}; {}.",
        plan.connections,
        plan.threads,
        grouped(plan.keys),
        plan.value_bytes,
        spread_of(plan.runs),
    );
    result.figures.push(Figure {
        title: "Requests per second".into(),
        caption,
        y_label: "requests/s".into(),
        bars: bars(peers, cells, shown),
        ..Figure::default()
    });
}

fn bars(peers: &[Peer], cells: &[Cell], generator: &str) -> Vec<Bar> {
    let mut bars = Vec::new();
    for cell in cells.iter().filter(|c| c.generator == generator) {
        for (index, peer) in peers.iter().enumerate() {
            if let Some(value) = Spread::of(&cell.rates[index]) {
                bars.push(Bar { group: cell.title(), name: peer.name.clone(), value });
            }
        }
    }
    bars
}
