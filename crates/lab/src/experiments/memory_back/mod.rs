//! `memory-back`: whether memory comes back, and what a key takes.
//!
//! - [`rounds`]: records of all sizes come and go in many rounds, in this process. The memory is compared
//!   with that of a fresh store of the same records;
//! - [`refill`]: nine of ten short values are deleted at full memory, and longer ones take their place;
//! - [`bytes`]: bytes for each key, beside redis-server;
//! - [`cache`]: a full cache under `allkeys-lru` and a Zipf law, beside redis-server.

mod bytes;
mod cache;
mod refill;
mod rounds;

use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;

use super::peers_redis::{Peers, find_program};
use crate::context::Context;
use crate::drivers::resp::{LoadPlan, Until};
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::harness::Harness;
use crate::report::result::ExperimentResult;
use crate::subjects::resp::admin::Admin;
use crate::subjects::server::{Peer, Server};

const ROUNDS: &str = "rounds";
const REFILL: &str = "refill";
const BYTES: &str = "bytes";
const CACHE: &str = "cache";
/// Source of the claims.
const SOURCE: &str = "Stillpoint";

/// The amount of work of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Runs of each measurement beside a server.
    pub(crate) runs: usize,
    /// Rounds in which records come and go, for each order.
    pub(crate) rounds: usize,
    /// Bytes of keys and values that come in a round.
    pub(crate) round_bytes: usize,
    /// Bytes of keys and values that live.
    pub(crate) live_bytes: usize,
    /// The memory limit of a server that is filled, in MiB.
    pub(crate) limit_mib: u64,
    /// Length of one load.
    pub(crate) run_s: f64,
    /// Writes per second of the load beside which records move.
    pub(crate) rate_per_s: f64,
    /// Bytes of values for which the bytes of a key are measured, in MiB for each length.
    pub(crate) filled_mib: u64,
    /// Keys for which the bytes of a key are measured, at most.
    pub(crate) keys_max: u64,
    /// Lengths of values, in bytes.
    pub(crate) value_lengths: Vec<usize>,
    /// Keys of the cache's load for each key for which it has room, about.
    pub(crate) keys_per_room: u64,
    /// Share of SETs in the cache's load.
    pub(crate) set_share: f64,
    /// Time for which the cache is loaded before the measured time.
    pub(crate) settle_s: f64,
    /// Pipeline depths of the cache's load.
    pub(crate) pipelines: [usize; 2],
}

/// The experiment.
pub(crate) struct MemoryBack;

impl Experiment for MemoryBack {
    const ID: &'static str = "memory-back";
    const TITLE: &'static str = "Memory that comes back, bytes for each key, and a full cache";
    const PAPER: &'static str = "the project's own bounds";
    const PARTS: &'static [&'static str] = &[ROUNDS, REFILL, BYTES, CACHE];
    type Plan = Plan;

    fn full() -> Plan {
        Plan {
            runs: 3,
            rounds: 1_000,
            round_bytes: 4 << 20,
            live_bytes: 128 << 20,
            limit_mib: 256,
            run_s: 10.0,
            rate_per_s: 5_000.0,
            filled_mib: 128,
            keys_max: 1_000_000,
            value_lengths: vec![
                8, 16, 32, 64, 100, 512, 1_024, 2_045, 4_100, 8_300, 16_500, 65_600, 262_144,
                1_048_576,
            ],
            keys_per_room: 4,
            set_share: 0.2,
            settle_s: 10.0,
            pipelines: [1, 16],
        }
    }

    fn quick() -> Plan {
        Plan {
            runs: 1,
            rounds: 28,
            round_bytes: 64 << 10,
            live_bytes: 512 << 10,
            limit_mib: 24,
            run_s: 0.15,
            filled_mib: 1,
            keys_max: 2_000,
            value_lengths: vec![8, 1_024],
            settle_s: 0.05,
            ..Self::full()
        }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        plan.runs = asked.runs.unwrap_or(plan.runs).max(1);
        plan.run_s = asked.seconds.unwrap_or(plan.run_s).max(0.1);
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        let context = bench.context;
        if context.wants(ROUNDS) {
            result.in_part(ROUNDS, |result| rounds::run(context, plan, result))?;
        }
        let Some(redis) = find_program("redis-server") else {
            let reason = "redis-server is not installed: only the rounds were measured";
            context.note(format!("{}: {reason}", Self::ID));
            result.note(reason);
            return Ok(());
        };
        let peers = Peers::stillpoint_and_redis(context.binary.clone(), redis).plain;
        run_beside(context, plan, [&peers[0], &peers[1]], result)
    }
}

/// Runs the parts with servers, of which the first is ours.
fn run_beside(
    context: &Context,
    plan: &Plan,
    peers: [&Peer; 2],
    result: &mut ExperimentResult,
) -> LabResult<()> {
    if context.wants(REFILL) {
        result.in_part(REFILL, |result| refill::run(context, plan, peers[0], result))?;
    }
    if context.wants(BYTES) {
        result.in_part(BYTES, |result| bytes::run(context, plan, peers, result))?;
    }
    if context.wants(CACHE) {
        result.in_part(CACHE, |result| cache::run(context, plan, peers, result))?;
    }
    Ok(())
}

impl Plan {
    fn load(&self, address: SocketAddr, keys: u64, value_bytes: usize) -> LoadPlan {
        let until = Until::Elapsed(Duration::from_secs_f64(self.run_s));
        LoadPlan { keys, value_bytes, until, ..LoadPlan::new(address) }
    }

    fn limit_bytes(&self) -> u64 {
        self.limit_mib << 20
    }
}

/// Sets the memory limit and the policy of a server.
fn limit(admin: &mut Admin, plan: &Plan, policy: &str) -> LabResult<()> {
    let limit = plan.limit_bytes().to_string();
    for (name, value) in [("maxmemory-policy", policy), ("maxmemory", &limit)] {
        admin.call(&[b"CONFIG", b"SET", name.as_bytes(), value.as_bytes()])?;
    }
    Ok(())
}

/// A number in a section of INFO.
fn number(server: &Server, admin: &mut Admin, section: &str, name: &str) -> LabResult<f64> {
    let fields = admin.info(section)?;
    let found = fields.get(name).and_then(|value| value.parse().ok());
    found.ok_or_else(|| server.failure(format!("tells no {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::LabError;

    /// The parts with servers, with redis-server as both peers: the machinery can be tested without our
    /// server.
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
        let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
        let context = Context::new(dir.path(), true, redis.clone(), Box::new(std::io::sink()));
        let peers = Peers::stillpoint_and_redis(redis.clone(), redis).plain;
        let mut result = context.result(MemoryBack::ID, MemoryBack::TITLE, MemoryBack::PAPER);
        run_beside(&context, &MemoryBack::quick(), [&peers[1], &peers[1]], &mut result)?;
        assert!(result.claims.len() >= 7, "{:#?}", result.claims);
        for claim in &result.claims {
            assert!(claim.measured.is_some_and(f64::is_finite), "not measured: {}", claim.claim);
        }
        for table in &result.tables {
            let is_whole = |row: &Vec<String>| row.len() == table.columns.len();
            assert!(!table.rows.is_empty() && table.rows.iter().all(is_whole), "{}", table.title);
        }
        Ok(())
    }

    #[test]
    fn rounds_end_with_the_records_of_a_fresh_store() -> LabResult<()> {
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
        let context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        let mut result = context.result(MemoryBack::ID, MemoryBack::TITLE, MemoryBack::PAPER);
        rounds::run(&context, &MemoryBack::quick(), &mut result)?;
        assert_eq!(result.claims.len(), 3);
        assert!(result.claims.iter().all(|claim| claim.met == Some(true)), "{:#?}", result.claims);
        Ok(())
    }
}
