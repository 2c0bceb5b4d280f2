//! redis-benchmark's own list of commands, without streams: requests per second.

use std::path::Path;
use std::process::Command;

use super::super::peers_redis::{PATIENCE, bench_tool};
use super::{Plan, SOURCE};
use crate::context::Context;
use crate::error::{LabError, LabResult};
use crate::measure::stats::median;
use crate::report::figure::axis::grouped;
use crate::report::result::{Bound, ClaimRow, ExperimentResult, Table};
use crate::subjects::server::{Peer, Server};

/// The tests of redis-benchmark, but `xadd`.
const TESTS: &str = "ping_inline,ping_mbulk,set,get,incr,lpush,rpush,lpop,rpop,sadd,hset,spop,\
                     zadd,zpopmin,lrange,mset";
/// Lines that stand for commands with many elements.
const MANY_ELEMENTS: &[&str] = &["LRANGE", "MSET"];

/// One way to load the servers.
struct Load {
    name: &'static str,
    pipeline: u64,
    /// Whether all commands have one key.
    one_key: bool,
    /// The least of our rate ÷ Redis's, for commands of one element.
    ratio_min: f64,
}

/// The least of our rate ÷ Redis's, for every command.
const RATIO_MIN: f64 = 0.9;

/// The claim on each test. The load gives its bound.
const THROUGHPUT: ClaimRow =
    ClaimRow::new("throughput", SOURCE, Bound::AtLeast(RATIO_MIN)).between("Stillpoint", "Redis");

const LOADS: &[Load] = &[
    Load { name: "without pipelining", pipeline: 1, one_key: false, ratio_min: 0.97 },
    Load { name: "pipeline of 16", pipeline: 16, one_key: false, ratio_min: 1.3 },
    Load { name: "pipeline of 16, one key", pipeline: 16, one_key: true, ratio_min: RATIO_MIN },
];

/// Runs the part and adds its claims and tables.
///
/// # Errors
/// When a server or redis-benchmark fails.
pub(super) fn run(
    context: &Context,
    plan: &Plan,
    peers: &[Peer],
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let Some(tool) = bench_tool::find() else {
        result.note("redis-benchmark is not installed; no throughput was measured");
        return Ok(());
    };
    for load in LOADS {
        let columns = peers.iter().map(|peer| peer.name.clone());
        let mut table = Table {
            title: format!("Requests per second, {}", load.name),
            columns: std::iter::once("test".to_owned()).chain(columns).collect(),
            ..Table::default()
        };
        // For each test: the rates, indexed by peer and run.
        let mut tests: Vec<(String, Vec<Vec<f64>>)> = Vec::new();
        for _ in 0..plan.runs {
            for (at, peer) in peers.iter().enumerate() {
                context.note(format!("throughput: {}: {}", load.name, peer.name));
                let server = peer.start(&context.fresh_dir("throughput")?, PATIENCE)?;
                for (test, rate) in rates(&tool, plan, load, &server)? {
                    let known = tests.iter().position(|(name, _)| *name == test);
                    let known = known.unwrap_or_else(|| {
                        tests.push((test, vec![Vec::new(); peers.len()]));
                        tests.len() - 1
                    });
                    tests[known].1[at].push(rate);
                }
            }
        }
        for (test, rates) in &tests {
            let cells = rates.iter().map(|rates| grouped(median(rates) as u64));
            table.rows.push(std::iter::once(test.clone()).chain(cells).collect());
            let [ours, theirs, ..] = &rates[..] else { continue };
            let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| a / b).collect();
            let is_many = MANY_ELEMENTS.iter().any(|many| test.starts_with(many));
            let least = if is_many { RATIO_MIN } else { load.ratio_min };
            let row = ClaimRow { bound: Bound::AtLeast(least), ..THROUGHPUT };
            let at = format!("{}, {test}", load.name);
            result.claims.push(row.claim(&at).measured_runs(&ratios));
        }
        result.tables.push(table);
    }
    Ok(())
}

/// Runs the list of tests; gives the requests per second of each.
fn rates(tool: &Path, plan: &Plan, load: &Load, server: &Server) -> LabResult<Vec<(String, f64)>> {
    let requests = match load.pipeline {
        1 => plan.requests,
        _ => plan.requests * plan.pipelined_percent / 100,
    };
    let mut command = Command::new(tool);
    command
        .args(["-p", &server.address.port().to_string(), "-c", &plan.connections.to_string()])
        .args(["-n", &requests.to_string(), "-P", &load.pipeline.to_string()])
        .args(["-t", TESTS, "--csv"]);
    if !load.one_key {
        command.args(["-r", &plan.keys.to_string()]);
    }
    let line = format!("{command:?}");
    let output = command.output().map_err(|e| LabError::process(&line, e))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let rates = rates_in_csv(&text);
    if rates.is_empty() || !output.status.success() {
        let said = format!("{text}{}", String::from_utf8_lossy(&output.stderr));
        return Err(LabError::process(&line, format!("{}; printed {said:?}", output.status)));
    }
    Ok(rates)
}

/// Test and rate of each line of the output.
fn rates_in_csv(text: &str) -> Vec<(String, f64)> {
    // Names of tests have commas in them.
    let cells = |line: &str| -> Vec<String> {
        line.split("\",\"").map(|cell| cell.trim().trim_matches('"').to_owned()).collect()
    };
    let mut lines = text.lines().map(cells);
    let head = lines.find(|cells| cells.first().is_some_and(|cell| cell == "test"));
    let column = head.and_then(|cells| cells.iter().position(|cell| cell == "rps"));
    let Some(column) = column else { return Vec::new() };
    let rate =
        |cells: Vec<String>| Some((cells.first()?.clone(), cells.get(column)?.parse().ok()?));
    lines.filter_map(rate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_test_has_its_rate() {
        let text = "WARNING: Could not fetch server CONFIG\n\
                    \"test\",\"rps\",\"avg_latency_ms\"\n\"SET\",\"98039.22\",\"0.3\"\n\
                    \"LPUSH (needed to benchmark LRANGE)\",\"5.5\",\"0.3\"\n";
        let want =
            [("SET".to_owned(), 98_039.22), ("LPUSH (needed to benchmark LRANGE)".into(), 5.5)];
        assert_eq!(rates_in_csv(text), want);
        assert_eq!(rates_in_csv("Could not connect"), []);
    }
}
