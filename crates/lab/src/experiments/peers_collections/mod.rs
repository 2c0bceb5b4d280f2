//! `peers-collections`: hashes, lists, sets and sorted sets beside redis-server, in the same run.
//!
//! - [`memory`]: bytes of memory for each element, and bytes of the log for each command;
//! - [`throughput`]: redis-benchmark's own list of commands, without and with pipelining;
//! - [`stalls`]: the latencies of commands while a large collection grows, is saved and is deleted.

mod memory;
mod stalls;
mod throughput;

use serde::Serialize;

use super::peers_redis::{Peers, find_program};
use crate::context::Context;
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::harness::Harness;
use crate::report::result::ExperimentResult;
use crate::subjects::server::Peer;

const MEMORY: &str = "memory";
const THROUGHPUT: &str = "throughput";
const STALLS: &str = "stalls";
/// Source of the claims.
const SOURCE: &str = "Stillpoint";

/// The amount of work of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Fresh servers of each pair.
    pub(crate) runs: usize,
    /// Number of elements at the first measurement of the collection's bytes.
    pub(crate) elements_min: usize,
    /// Number of elements at the last measurement of the collection's bytes.
    pub(crate) elements_max: usize,
    /// Elements between two measurements.
    pub(crate) elements_step: usize,
    /// Hashes of ten fields.
    pub(crate) small_hashes: usize,
    /// Commands of one element whose log is measured.
    pub(crate) logged_commands: usize,
    /// Requests of each command of redis-benchmark without pipelining.
    pub(crate) requests: u64,
    /// Requests of each command for each request of a pipeline, in percent of `requests`.
    pub(crate) pipelined_percent: u64,
    /// The number of different keys, or elements, of redis-benchmark, and of the strings of the part `stalls`.
    pub(crate) keys: u64,
    /// Connections of redis-benchmark, and of the loads of the part `stalls`.
    pub(crate) connections: usize,
    /// Elements of the collection whose stalls are measured.
    pub(crate) stall_elements: u64,
    /// Share of its own capacity at which a server is loaded while stalls are measured.
    pub(crate) stall_load_share: f64,
    /// Time at rest before the first save, before DEL and after it, in seconds. A measurement of a rate takes
    /// half of it.
    pub(crate) stall_rest_s: f64,
}

/// The experiment.
pub(crate) struct PeersCollections;

impl Experiment for PeersCollections {
    const ID: &'static str = "peers-collections";
    const TITLE: &'static str = "Collections beside Redis: memory, log, throughput and stalls";
    const PAPER: &'static str = "the project's own bounds";
    const PARTS: &'static [&'static str] = &[MEMORY, THROUGHPUT, STALLS];
    type Plan = Plan;

    fn full() -> Plan {
        Plan {
            runs: 5,
            elements_min: 700_000,
            elements_max: 1_400_000,
            elements_step: 50_000,
            small_hashes: 100_000,
            logged_commands: 500_000,
            requests: 200_000,
            pipelined_percent: 200,
            keys: 1_000_000,
            connections: 50,
            stall_elements: 10_000_000,
            stall_load_share: 0.5,
            stall_rest_s: 4.0,
        }
    }

    fn quick() -> Plan {
        Plan {
            runs: 1,
            elements_min: 10_000,
            elements_max: 20_000,
            elements_step: 5_000,
            small_hashes: 1_000,
            logged_commands: 5_000,
            requests: 2_000,
            keys: 1_000,
            stall_elements: 5_000,
            stall_rest_s: 0.15,
            ..Self::full()
        }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        plan.runs = asked.runs.unwrap_or(plan.runs).max(1);
        plan.stall_rest_s = asked.seconds.unwrap_or(plan.stall_rest_s).max(0.1);
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        let context = bench.context;
        let Some(redis) = find_program("redis-server") else {
            let reason = "redis-server is not installed: nothing was compared";
            context.note(format!("SKIPPED {}: {reason}", Self::ID));
            result.skipped = Some(reason.into());
            return Ok(());
        };
        let peers = Peers::stillpoint_and_redis(context.binary.clone(), redis).plain;
        run_with(context, plan, &peers, result)
    }
}

/// Runs all parts for these peers: our server, the reference, and our server with a log.
fn run_with(
    context: &Context,
    plan: &Plan,
    peers: &[Peer],
    result: &mut ExperimentResult,
) -> LabResult<()> {
    if context.wants(MEMORY) {
        result.in_part(MEMORY, |result| memory::run(context, plan, peers, result))?;
    }
    if context.wants(THROUGHPUT) {
        result.in_part(THROUGHPUT, |result| throughput::run(context, plan, peers, result))?;
    }
    if context.wants(STALLS) {
        result.in_part(STALLS, |result| stalls::run(context, plan, peers, result))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole experiment with redis-server as both peers: the machinery can be tested without our
    /// server. The log is left out, since redis-server counts it elsewhere.
    #[test]
    fn a_server_beside_itself_is_measured_end_to_end() -> LabResult<()> {
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let Some(redis) = find_program("redis-server") else {
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "SKIPPED: redis-server is not installed");
            return Ok(());
        };
        let dir = tempfile::tempdir().map_err(|e| crate::LabError::process("tempdir", e))?;
        let context = Context::new(dir.path(), true, redis.clone(), Box::new(std::io::stderr()));
        let peers = Peers::stillpoint_and_redis(redis.clone(), redis).plain;
        let both = [peers[1].clone(), peers[1].clone()];
        let plan = PeersCollections::quick();
        let (id, title) = (PeersCollections::ID, PeersCollections::TITLE);
        let mut result = context.result(id, title, PeersCollections::PAPER);
        run_with(&context, &plan, &both, &mut result)?;
        // Claims on five families, on each of 19 lines of redis-benchmark in three loads, and on stalls.
        assert!(result.claims.len() > 57, "{}", result.claims.len());
        for claim in &result.claims {
            assert!(claim.met.is_some(), "not measured: {}", claim.claim);
        }
        for table in &result.tables {
            assert!(!table.rows.is_empty());
            assert!(table.rows.iter().all(|row| row.len() == table.columns.len()));
        }
        Ok(())
    }
}
