//! `peers-clients`: the cost of one client to the others, compared with redis-server in the same
//! run.
//!
//! - `stalls`: one command over many keys or bytes, and a pipeline of commands of constant time.
//!   Meanwhile other clients read a small value and note their longest wait;
//! - `large`: the peak of memory while one long value is set;
//! - `unread`: clients that read nothing, and one that writes everything before it reads.

mod witness;

use std::ops::Range;
use std::time::Duration;

use serde::Serialize;

use self::witness::{Waits, WritingFirst, watched};
use super::peers_redis::{PATIENCE, Peers, find_program};
use crate::context::Context;
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::harness::Harness;
use crate::measure::stats::median;
use crate::report::result::{Bound, ClaimRow, ExperimentResult, Table};
use crate::subjects::resp::codec;
use crate::subjects::server::{Peer, Server};
use crate::sys;

const STALLS: &str = "stalls";
const LARGE: &str = "large";
const UNREAD: &str = "unread";
/// Source of the claims.
const SOURCE: &str = "Stillpoint";
/// The step that consists of many commands of constant time.
const PIPELINE: &str = "a pipeline";
/// Keys that one MSET of the fill sets.
const FILLED_KEYS: usize = 200_000;
/// Shorter waits count as none, since the scheduler alone may cause them.
const SHORTEST_WAIT_MS: f64 = 5.0;
/// Values that clients leave unread.
const UNREAD_VALUE_BYTES: usize = 10 << 20;
/// `--max-memory` of our server in the part `unread`, and the resulting limit of all clients'
/// buffers.
const MAX_MEMORY: &str = "2GiB";
const CLIENTS_LIMIT_BYTES: f64 = (1u64 << 30) as f64;

/// The amount of work of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Fresh servers of each peer.
    pub(crate) runs: usize,
    /// Keys in the database.
    pub(crate) keys: usize,
    /// Keys of one command over many.
    pub(crate) command_keys: usize,
    /// Bytes of the long value.
    pub(crate) value_bytes: usize,
    /// Commands of one pipeline.
    pub(crate) pipeline: usize,
    /// Clients that read nothing.
    pub(crate) unread_clients: usize,
    /// Values that each of these clients asks for.
    pub(crate) unread_values: usize,
    /// Time for which these clients stay connected.
    pub(crate) unread_s: f64,
    /// Requests that one client writes before it reads.
    pub(crate) unread_gets: usize,
}

/// The experiment.
pub(crate) struct PeersClients;

impl Experiment for PeersClients {
    const ID: &'static str = "peers-clients";
    const TITLE: &'static str = "What one client costs the others, beside Redis";
    const PAPER: &'static str = "the project's own bounds";
    const PARTS: &'static [&'static str] = &[STALLS, LARGE, UNREAD];
    type Plan = Plan;

    fn full() -> Plan {
        Plan {
            runs: 5,
            keys: 1_000_000,
            command_keys: 200_000,
            value_bytes: 512 << 20,
            pipeline: 200_000,
            unread_clients: 8,
            unread_values: 90,
            unread_s: 10.0,
            unread_gets: 1_000_000,
        }
    }

    fn quick() -> Plan {
        Plan {
            runs: 1,
            keys: 5_000,
            command_keys: 1_000,
            value_bytes: 4 << 20,
            pipeline: 2_000,
            unread_values: 3,
            unread_s: 0.3,
            unread_gets: 10_000,
            ..Self::full()
        }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        plan.runs = asked.runs.unwrap_or(plan.runs).max(1);
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

/// Runs all parts for these peers: our server, the reference, and further settings of our server.
fn run_with(
    context: &Context,
    plan: &Plan,
    peers: &[Peer],
    result: &mut ExperimentResult,
) -> LabResult<()> {
    if context.wants(STALLS) {
        result.in_part(STALLS, |result| stalls(context, plan, peers, result))?;
    }
    if context.wants(LARGE) {
        result.in_part(LARGE, |result| large(context, plan, peers, result))?;
    }
    if context.wants(UNREAD) {
        result.in_part(UNREAD, |result| unread(context, plan, peers, result))?;
    }
    Ok(())
}

fn start(context: &Context, peer: &Peer) -> LabResult<Server> {
    let server = peer.start(&context.fresh_dir("clients")?, PATIENCE)?;
    while server.admin()?.dbsize().is_err() {
        sys::sleep(Duration::from_millis(5));
    }
    Ok(server)
}

fn request(arguments: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    codec::request(&mut bytes, arguments);
    bytes
}

/// A command over the keys of these numbers, each followed by `value`, if there is one.
fn over_keys(command: &str, keys: Range<usize>, value: Option<&[u8]>) -> Vec<u8> {
    let names: Vec<Vec<u8>> = keys.map(|n| format!("k{n}").into_bytes()).collect();
    let mut arguments = vec![command.as_bytes()];
    for name in &names {
        arguments.push(name);
        arguments.extend(value);
    }
    request(&arguments)
}

/// A step of the part `stalls`.
struct Step {
    name: &'static str,
    requests: fn(&Plan) -> Vec<u8>,
}

/// The steps in order. Later steps need the keys of earlier ones. The first needs [`Plan::keys`]
/// keys.
const STEPS: &[Step] = &[
    Step { name: "KEYS *", requests: |_| request(&[b"KEYS", b"*"]) },
    Step { name: "FLUSHALL of all keys", requests: |_| request(&[b"FLUSHALL"]) },
    Step {
        name: "MSET of new keys",
        requests: |plan| over_keys("MSET", 0..plan.command_keys, Some(b"new")),
    },
    Step { name: "MGET", requests: |plan| over_keys("MGET", 0..plan.command_keys, None) },
    Step { name: "MSET", requests: |plan| over_keys("MSET", 0..plan.command_keys, Some(b"other")) },
    Step { name: "DEL", requests: |plan| over_keys("DEL", 0..plan.command_keys, None) },
    Step {
        name: "MSET after DEL",
        requests: |plan| over_keys("MSET", 0..plan.command_keys, Some(b"again")),
    },
    Step { name: "UNLINK", requests: |plan| over_keys("UNLINK", 0..plan.command_keys, None) },
    Step { name: PIPELINE, requests: pipeline },
    Step { name: "FLUSHALL", requests: |_| request(&[b"FLUSHALL"]) },
    Step {
        name: "SET of a long value",
        requests: |plan| request(&[b"SET", b"long", &vec![b'v'; plan.value_bytes]]),
    },
    Step {
        name: "SET over a long value",
        requests: |plan| request(&[b"SET", b"long", &vec![b'w'; plan.value_bytes]]),
    },
    Step { name: "GET of a long value", requests: |_| request(&[b"GET", b"long"]) },
    Step {
        name: "SETRANGE in a long value",
        requests: |_| request(&[b"SETRANGE", b"long", b"1000", b"x"]),
    },
    Step { name: "DEL of a long value", requests: |_| request(&[b"DEL", b"long"]) },
    Step {
        name: "SETRANGE that makes a long value",
        requests: |plan| {
            let offset = (plan.value_bytes - 2).to_string();
            request(&[b"SETRANGE", b"made", offset.as_bytes(), b"x"])
        },
    },
    Step { name: "APPEND to a long value", requests: |_| request(&[b"APPEND", b"made", b"y"]) },
    Step { name: "UNLINK of a long value", requests: |_| request(&[b"UNLINK", b"made"]) },
];

/// Sets [`Plan::keys`] keys, by several commands: one has at most 2^20 arguments.
fn fill(plan: &Plan, client: &mut WritingFirst) -> LabResult<()> {
    for first in (0..plan.keys).step_by(FILLED_KEYS) {
        let keys = first..plan.keys.min(first + FILLED_KEYS);
        client.exchange(&over_keys("MSET", keys, Some(b"twenty bytes of text")))?;
    }
    Ok(())
}

fn pipeline(plan: &Plan) -> Vec<u8> {
    let mut bytes = Vec::new();
    for n in 0..plan.pipeline / 4 {
        let key = format!("k{n}").into_bytes();
        codec::request(&mut bytes, &[b"SET", &key, b"value"]);
        codec::request(&mut bytes, &[b"GET", &key]);
        codec::request(&mut bytes, &[b"EXISTS", &key]);
        codec::request(&mut bytes, &[b"INCR", b"counter"]);
    }
    bytes
}

fn stalls(
    context: &Context,
    plan: &Plan,
    peers: &[Peer],
    result: &mut ExperimentResult,
) -> LabResult<()> {
    // [step][peer][run]
    let mut longest_ms = vec![vec![Vec::new(); peers.len()]; STEPS.len()];
    for _ in 0..plan.runs {
        for (at, peer) in peers.iter().enumerate() {
            let server = start(context, peer)?;
            let mut client = WritingFirst::connect(&server)?;
            fill(plan, &mut client)?;
            for (step, longest_ms) in STEPS.iter().zip(&mut longest_ms) {
                let requests = (step.requests)(plan);
                let (took_ms, waits) = watched(&server, || client.exchange(&requests))?;
                context.note(format!(
                    "stalls: {}: {}: took {took_ms:.1} ms, others waited {:.1} ms at most",
                    peer.name, step.name, waits.longest_ms
                ));
                longest_ms[at].push(waits.longest_ms);
            }
        }
    }
    let columns = peers.iter().map(|peer| format!("{}: median (greatest)", peer.name));
    let mut table = Table {
        title: "The longest wait of the others, in ms".into(),
        columns: std::iter::once("while".to_owned()).chain(columns).collect(),
        ..Table::default()
    };
    for (step, waits) in STEPS.iter().zip(&longest_ms) {
        let row = std::iter::once(step.name.to_owned()).chain(waits.iter().map(|w| cell(w)));
        table.rows.push(row.collect());
        let [ours, theirs, ..] = &waits[..] else { continue };
        let claim = if step.name == PIPELINE {
            PIPELINE_WAIT.claim("").measured_runs(ours)
        } else {
            // Medians are compared, since single runs are noisy on both sides.
            let theirs = median(theirs).max(SHORTEST_WAIT_MS);
            let ratios: Vec<f64> =
                ours.iter().map(|ms| ms.max(SHORTEST_WAIT_MS) / theirs).collect();
            STEP_WAIT.claim(&format!("during {}", step.name)).measured_runs(&ratios)
        };
        result.claims.push(claim);
    }
    result.tables.push(table);
    Ok(())
}

/// Median and greatest of some runs.
fn cell(runs: &[f64]) -> String {
    let greatest = runs.iter().copied().fold(0.0, f64::max);
    format!("{:.1} ({greatest:.1})", median(runs))
}

const PIPELINE_WAIT: ClaimRow =
    row("longest wait of the others during a pipeline", 10.0).unit("ms");
const STEP_WAIT: ClaimRow = row("longest wait of the others", 1.5).between("ours", "Redis's");
const LONG_VALUE: ClaimRow = row("peak of memory while a long value is set ÷ its length", 2.2);
/// The claims of the part `unread`.
const UNREAD_CLAIMS: [ClaimRow; 3] = [
    row("p99.9 of the others while clients read nothing", 10.0).unit("ms"),
    row("peak of memory beyond data and the clients' limit", 256.0).unit("MiB"),
    row("GETs written before the first reply is read: time ÷ Redis's", 1.2),
];

const fn row(metric: &'static str, most: f64) -> ClaimRow {
    ClaimRow::new(metric, SOURCE, Bound::AtMost(most))
}

fn large(
    context: &Context,
    plan: &Plan,
    peers: &[Peer],
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let requests = request(&[b"SET", b"long", &vec![b'v'; plan.value_bytes]]);
    let mut shares = vec![Vec::new(); peers.len()];
    for _ in 0..plan.runs {
        for (peer, shares) in peers.iter().zip(&mut shares) {
            let server = start(context, peer)?;
            let before = server.peak_bytes()?;
            WritingFirst::connect(&server)?.exchange(&requests)?;
            let more = server.peak_bytes()?.saturating_sub(before);
            let share = more as f64 / plan.value_bytes as f64;
            context.note(format!("large: {}: peak {share:.2} × the value", peer.name));
            shares.push(share);
        }
    }
    let mut table = Table {
        title: "Peak of memory while a long value is set ÷ its length".into(),
        columns: ["server", "median (greatest)"].map(str::to_owned).into(),
        ..Table::default()
    };
    for (peer, shares) in peers.iter().zip(&shares) {
        table.rows.push(vec![peer.name.clone(), cell(shares)]);
    }
    result.tables.push(table);
    if let Some(ours) = shares.first() {
        result.claims.push(LONG_VALUE.claim("").measured_runs(ours));
    }
    Ok(())
}

fn unread(
    context: &Context,
    plan: &Plan,
    peers: &[Peer],
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let [ours, theirs, ..] = peers else { return Ok(()) };
    let mut limited = ours.clone();
    limited.arguments.extend(["--max-memory", MAX_MEMORY].map(str::to_owned));
    let (mut waits, mut beyond_mib, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.runs {
        let (waited, beyond) = beside_silent_clients(context, plan, &limited)?;
        waits.push(waited);
        beyond_mib.push(beyond);
        ratios.push(answered_ms(context, plan, ours)? / answered_ms(context, plan, theirs)?);
    }
    let p999_ms: Vec<f64> = waits.iter().map(|waits| waits.p999_ms).collect();
    let longest_ms: Vec<f64> = waits.iter().map(|waits| waits.longest_ms).collect();
    result.tables.push(Table {
        title: "Beside clients that read nothing, in ms".into(),
        columns: ["waits of the others", "median (greatest)"].map(str::to_owned).into(),
        rows: vec![
            vec!["p99.9".to_owned(), cell(&p999_ms)],
            vec!["longest".to_owned(), cell(&longest_ms)],
        ],
        ..Table::default()
    });
    for (row, runs) in UNREAD_CLAIMS.iter().zip([p999_ms, beyond_mib, ratios]) {
        result.claims.push(row.claim("").measured_runs(&runs));
    }
    Ok(())
}

/// Waits of other clients beside clients that read nothing, and the peak of memory in MiB. The peak
/// is that beyond the data and the clients' limit.
fn beside_silent_clients(context: &Context, plan: &Plan, peer: &Peer) -> LabResult<(Waits, f64)> {
    let server = start(context, peer)?;
    server.admin()?.call(&[b"SET", b"big", &vec![b'v'; UNREAD_VALUE_BYTES]])?;
    let ((), waits) = watched(&server, || read_nothing(plan, &server))?;
    let peak = server.peak_bytes()?;
    context.note(format!(
        "unread: others' p99.9 {:.2} ms, longest {:.1} ms, peak {} MiB",
        waits.p999_ms,
        waits.longest_ms,
        peak >> 20
    ));
    let allowed = CLIENTS_LIMIT_BYTES + UNREAD_VALUE_BYTES as f64;
    Ok((waits, (peak as f64 - allowed) / f64::from(1 << 20)))
}

/// Milliseconds until all GETs are answered. The client writes all of them before it reads a reply.
fn answered_ms(context: &Context, plan: &Plan, peer: &Peer) -> LabResult<f64> {
    let server = start(context, peer)?;
    server.admin()?.call(&[b"SET", b"k", b"twenty bytes of text"])?;
    let gets = request(&[b"GET", b"k"]).repeat(plan.unread_gets);
    let took_ms = WritingFirst::connect(&server)?.exchange(&gets)?;
    context.note(format!("unread: {}: {} GETs {took_ms:.0} ms", peer.name, plan.unread_gets));
    Ok(took_ms)
}

/// Clients ask for long values and read nothing.
fn read_nothing(plan: &Plan, server: &Server) -> LabResult<()> {
    let requests = request(&[b"GET", b"big"]).repeat(plan.unread_values);
    let mut clients = Vec::new();
    for _ in 0..plan.unread_clients {
        let mut client = WritingFirst::connect(server)?;
        client.send(&requests)?;
        clients.push(client);
    }
    sys::sleep(Duration::from_secs_f64(plan.unread_s));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole experiment with redis-server as every peer: the machinery can be tested without
    /// our server. The part `unread` is left out, since redis-server has no limit like
    /// `--max-memory`.
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
        let plan = PeersClients::quick();
        let mut result = context.result(PeersClients::ID, PeersClients::TITLE, PeersClients::PAPER);
        stalls(&context, &plan, &both, &mut result)?;
        large(&context, &plan, &both, &mut result)?;
        assert_eq!(result.claims.len(), STEPS.len() + 1);
        for claim in &result.claims {
            assert!(claim.met.is_some(), "not measured: {}", claim.claim);
        }
        for table in &result.tables {
            assert!(table.rows.iter().all(|row| row.len() == table.columns.len()));
        }
        Ok(())
    }
}
