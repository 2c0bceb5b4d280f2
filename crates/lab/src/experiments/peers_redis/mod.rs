//! `peers-redis`: compares the server with redis-server on the same machine, under the same load,
//! in the same run.
//!
//! Four parts, each a file:
//! - [`throughput`]: GET and SET, without and with pipelining;
//! - [`saving`]: latencies, memory and duration of a save under load, and the
//!   restart after a crash;
//! - [`durable`]: writes that are acknowledged only when flushed;
//! - [`bench_tool`]: redis-benchmark itself, where it is installed.
//!
//! Competitors are data ([`Peer`]): any two servers of the protocol can stand
//! beside each other.

pub(crate) mod bench_tool;
pub(crate) mod durable;
pub(crate) mod saving;
pub(crate) mod throughput;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use crate::context::Context;
use crate::drivers::resp::{self, LoadPlan, Until};
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::harness::Harness;
use crate::report::result::ExperimentResult;
use crate::subjects::server::{Peer, Server};

const THROUGHPUT: &str = "throughput";
const SAVING: &str = "saving";
const DURABLE: &str = "durable";
/// Source of the claims.
const SOURCE: &str = "Stillpoint";

/// Longest time that a server may take to load its data.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// The amount of work of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Runs of each pair.
    pub(crate) runs: usize,
    /// Length of one run.
    pub(crate) run_s: f64,
    /// Uncounted time before each run.
    pub(crate) warm_up_s: f64,
    /// Connections of every load.
    pub(crate) connections: usize,
    /// Client threads of every load.
    pub(crate) threads: usize,
    /// Keys for throughput and durable writes.
    pub(crate) keys: u64,
    /// Keys for saves and restarts.
    pub(crate) saved_keys: u64,
    /// Bytes of a value.
    pub(crate) value_bytes: usize,
    /// Pipeline depths: the first without pipelining, the second with it.
    pub(crate) pipelines: [usize; 2],
    /// Share of its own capacity at which a server is loaded while it saves.
    pub(crate) load_share: f64,
    /// Share of SETs in the mixed load.
    pub(crate) set_share: f64,
    /// Time at rest before the first save of a load. The rest before each further save is a third
    /// as long.
    pub(crate) rest_s: f64,
    /// Number of timed flushes.
    pub(crate) flushes: usize,
}

impl Plan {
    fn load(&self, address: SocketAddr) -> LoadPlan {
        LoadPlan {
            connections: self.connections,
            threads: self.threads,
            keys: self.keys,
            value_bytes: self.value_bytes,
            until: Until::Elapsed(Duration::from_secs_f64(self.run_s)),
            warm_up: Duration::from_secs_f64(self.warm_up_s),
            ..LoadPlan::new(address)
        }
    }
}

/// The compared servers. In each list the first is ours, and the second is the reference of the
/// claims. Further servers appear in tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peers {
    /// Servers for throughput, saves and restarts.
    pub(crate) plain: Vec<Peer>,
    /// Servers that flush each write before its reply. The third is ours, without a log.
    pub(crate) durable: [Peer; 3],
}

impl Peers {
    /// Stillpoint and Redis.
    pub(crate) fn stillpoint_and_redis(binary: PathBuf, redis: PathBuf) -> Peers {
        let ours = |name: &str, more: &[&str]| {
            let base =
                "serve --data {dir} --port {port} --checkpoint-every 86400s --log-limit 64GiB";
            let words = base.split(' ').chain(more.iter().copied());
            let arguments = words.map(str::to_owned).collect();
            Peer { name: name.into(), program: binary.clone(), arguments }
        };
        let theirs = |name: &str, more: &[&str]| {
            let base = ["--dir", "{dir}", "--port", "{port}", "--bind", "127.0.0.1", "--save", ""];
            let quiet = ["--loglevel", "warning", "--auto-aof-rewrite-percentage", "0"];
            let words = base.iter().chain(&quiet).chain(more).copied();
            let arguments = words.map(str::to_owned).collect();
            Peer { name: name.into(), program: redis.clone(), arguments }
        };
        let without_log = ours("stillpoint", &["--journal", "none"]);
        Peers {
            plain: vec![
                without_log.clone(),
                theirs("redis", &[]),
                ours("stillpoint, relaxed log", &["--journal", "redo", "--durability", "relaxed"]),
            ],
            durable: [
                ours("stillpoint, strict", &["--journal", "redo", "--durability", "strict"]),
                theirs("redis, fsync always", &["--appendonly", "yes", "--appendfsync", "always"]),
                without_log,
            ],
        }
    }
}

/// The experiment.
pub(crate) struct PeersRedis;

impl Experiment for PeersRedis {
    const ID: &'static str = "peers-redis";
    const TITLE: &'static str =
        "The server beside Redis: throughput, saves, restarts, durable writes";
    const PAPER: &'static str =
        "Li et al., ICDE 2018, §5 (fork in Redis); the project's own bounds";
    const PARTS: &'static [&'static str] = &[THROUGHPUT, SAVING, DURABLE];
    type Plan = Plan;

    fn full() -> Plan {
        Plan {
            runs: 5,
            run_s: 60.0,
            warm_up_s: 1.0,
            connections: 50,
            threads: 2,
            keys: 1_000_000,
            saved_keys: 10_000_000,
            value_bytes: 100,
            pipelines: [1, 16],
            load_share: 0.7,
            set_share: 0.5,
            rest_s: 15.0,
            flushes: 500,
        }
    }

    fn quick() -> Plan {
        Plan {
            runs: 1,
            run_s: 0.5,
            warm_up_s: 0.1,
            keys: 20_000,
            saved_keys: 50_000,
            rest_s: 0.5,
            flushes: 20,
            ..Self::full()
        }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        plan.runs = asked.runs.unwrap_or(plan.runs).max(1);
        plan.run_s = asked.seconds.unwrap_or(plan.run_s).max(0.1);
    }

    /// Runs all parts, or reports why they cannot run.
    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        let context = bench.context;
        let Some(redis) = find_program("redis-server") else {
            let reason = "redis-server is not installed: nothing was compared";
            context.note(format!("SKIPPED {}: {reason}", Self::ID));
            result.skipped = Some(reason.into());
            return Ok(());
        };
        let peers = Peers::stillpoint_and_redis(context.binary.clone(), redis.clone());
        if let Some(version) = version_of(&redis) {
            result.parameter("redis", version);
        }
        run_with(context, plan, &peers, result)
    }
}

/// Runs all parts for these peers.
///
/// # Errors
/// When a server fails or answers wrongly, or a result cannot be taken.
pub(crate) fn run_with(
    context: &Context,
    plan: &Plan,
    peers: &Peers,
    result: &mut ExperimentResult,
) -> LabResult<()> {
    for peer in peers.plain.iter().chain(&peers.durable) {
        let line = format!("{} {}", peer.program.display(), peer.arguments.join(" "));
        result.parameter(&format!("command of {}", peer.name), line);
    }
    if context.wants(THROUGHPUT) {
        result
            .in_part(THROUGHPUT, |result| throughput::run(context, plan, &peers.plain, result))?;
    }
    if context.wants(SAVING) {
        result.in_part(SAVING, |result| saving::run(context, plan, &peers.plain, result))?;
    }
    if context.wants(DURABLE) {
        result.in_part(DURABLE, |result| durable::run(context, plan, &peers.durable, result))?;
    }
    Ok(())
}

/// A program of the search path.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

fn version_of(redis: &PathBuf) -> Option<String> {
    let output = std::process::Command::new(redis).arg("--version").output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Writes every key once and checks that the server has them all.
fn fill(plan: &Plan, server: &Server, keys: u64) -> LabResult<()> {
    let load = LoadPlan {
        keys,
        pipeline: 100,
        until: Until::EveryKeyWritten,
        warm_up: Duration::ZERO,
        ..plan.load(server.address)
    };
    resp::run(&load)?.expect_no_errors(server.address)?;
    match server.admin()?.dbsize()? {
        found if found == keys => Ok(()),
        found => Err(server.failure(format!("{found} keys after {keys} were written"))),
    }
}

#[cfg(test)]
mod tests;
