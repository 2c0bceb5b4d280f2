//! `restart-serving`: a server that serves while it loads, beside one that loads first.
//!
//! ```text
//! start ── indexes read, log replayed ──▶ first answer ── records loaded beside clients ──▶ all loaded
//! ```
//! A server is filled, takes a checkpoint, gets a log of patches, and is killed. Then it is started again
//! and again. It loads first, or it serves nobody, or clients that each wait for their reply. Or it serves
//! reads at half of its capacity, which come whether they are answered in time or not. A start counts as
//! cold if the page cache has nothing of its files.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::Serialize;

use crate::context::Context;
use crate::drivers::resp::{self, Arrivals, Load, LoadPlan, Pacing, Until};
use crate::error::{LabError, LabResult};
use crate::experiments::Experiment;
use crate::harness::Harness;
use crate::report::figure::axis::grouped;
use crate::report::result::{Bound, Claim, ExperimentResult, Table};
use crate::subjects::resp::admin::{Admin, Value};
use crate::subjects::server::{Peer, Server};
use crate::sys;
use crate::workloads::random::Random;
use crate::workloads::strings;

const SOURCE: &str = "Stillpoint";
/// Longest time that a server may take to load its data.
const PATIENCE: Duration = Duration::from_secs(300);
/// Time between two attempts to get the first answer.
const ASK_EVERY: Duration = Duration::from_millis(1);
/// Time between two looks whether everything is loaded.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Where a patch begins in a value, and its bytes.
const PATCH_AT: usize = 20;
const PATCH: [u8; 60] = [b'#'; 60];
/// One key of so many gets patches.
const PATCHED_EVERY: u64 = 10;
/// Bytes that a patch takes in the log, about.
const LOGGED_BYTES: u64 = 110;
/// Commands that are sent together.
const TOGETHER: u64 = 200;
/// Keys whose values are compared after a start.
const SAMPLE: u64 = 2_000;

/// The amount of work of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Records of the two parts.
    pub(crate) records: [u64; 2],
    /// Bytes of a value.
    pub(crate) value_bytes: usize,
    /// Bytes of the log that a start replays, about.
    pub(crate) log_bytes: u64,
    /// Starts of each kind.
    pub(crate) runs: usize,
    /// Length of the measurement of the capacity.
    pub(crate) capacity_s: f64,
    /// Load of the reads, as a share of the capacity.
    pub(crate) load_share: f64,
}

/// The experiment.
pub(crate) struct RestartServing;

impl Experiment for RestartServing {
    const ID: &'static str = "restart-serving";
    const TITLE: &'static str = "A restart that serves while it loads";
    const PAPER: &'static str = "The project's own bounds";
    const PARTS: &'static [&'static str] = &["small", "large"];
    type Plan = Plan;

    fn full() -> Plan {
        Plan {
            records: [10_000_000, 50_000_000],
            value_bytes: 100,
            log_bytes: 2 << 30,
            runs: 3,
            capacity_s: 3.0,
            load_share: 0.5,
        }
    }

    fn quick() -> Plan {
        Plan {
            records: [20_000, 40_000],
            log_bytes: 1 << 20,
            runs: 1,
            capacity_s: 0.3,
            ..Self::full()
        }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        plan.runs = asked.runs.unwrap_or(plan.runs).max(1);
        plan.capacity_s = asked.seconds.unwrap_or(plan.capacity_s);
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        for (part, records) in Self::PARTS.iter().zip(plan.records) {
            if bench.context.wants(part) {
                result.in_part(part, |result| restart(bench.context, plan, records, result))?;
            }
        }
        Ok(())
    }
}

/// How a server is started.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Start {
    /// It loads first.
    Waits,
    /// It serves, and nobody asks it for anything.
    Alone,
    /// As `Alone`, and the page cache has nothing of its files.
    Cold,
    /// It serves clients that each wait for their reply.
    Asked,
    /// It serves reads at half of its capacity.
    Loaded,
}

const STARTS: [Start; 5] = [Start::Waits, Start::Alone, Start::Cold, Start::Asked, Start::Loaded];

impl Start {
    fn name(self) -> &'static str {
        match self {
            Self::Waits => "loads first",
            Self::Alone => "serves, no client",
            Self::Cold => "serves, no client, cold",
            Self::Asked => "serves 50 clients",
            Self::Loaded => "serves at half load",
        }
    }
}

/// What a start took.
#[derive(Clone, Copy, Debug)]
struct Started {
    /// Seconds from the start of the process to the first answer about its data.
    first_s: f64,
    /// Seconds from the start of the process until every record was loaded.
    all_s: f64,
    /// Bytes that are read before the first answer: of the log, and of indexes.
    read_first: f64,
    /// The latency, in milliseconds, of all but a hundredth of the reads of the first second.
    p99_ms: Option<f64>,
}

fn peer(context: &Context, more: &[&str]) -> Peer {
    let base = "serve --data {dir} --port {port} --journal redo --durability relaxed \
                --checkpoint-every 86400s --log-limit 64GiB";
    let words = base.split(' ').chain(more.iter().copied());
    let (name, program) = ("stillpoint".into(), context.binary.clone());
    Peer { name, program, arguments: words.map(str::to_owned).collect() }
}

fn restart(
    context: &Context,
    plan: &Plan,
    records: u64,
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let dir = context.fresh_dir("restart")?;
    let capacity = prepare(context, plan, records, &dir)?;
    context.note(format!("{records} records, {capacity:.0} GET/s"));
    let mut all: Vec<(Start, Vec<Started>)> = STARTS.map(|kind| (kind, Vec::new())).into();
    for _ in 0..plan.runs {
        for (kind, starts) in &mut all {
            let started = start(context, plan, (records, &dir), (*kind, capacity))?;
            context.note(format!("{}: {started:?}", kind.name()));
            starts.push(started);
        }
    }
    sys::remove_dir_all(&dir)?;
    add(records, &all, result);
    Ok(())
}

/// Fills a server, has it take a checkpoint and write a log, and kills it. Returns the reads per second
/// that it can answer.
fn prepare(context: &Context, plan: &Plan, records: u64, dir: &Path) -> LabResult<f64> {
    let server = peer(context, &[]).start(dir, PATIENCE)?;
    context.note(format!("writing {records} records"));
    let load = LoadPlan {
        keys: records,
        value_bytes: plan.value_bytes,
        pipeline: 100,
        until: Until::EveryKeyWritten,
        ..LoadPlan::new(server.address)
    };
    resp::run(&load)?.expect_no_errors(server.address)?;
    let mut admin = server.admin()?;
    admin.call(&[b"BGSAVE"])?;
    let saves = |admin: &mut Admin| number(admin, "rdb_saves");
    while saves(&mut admin)? == 0.0 {
        sys::sleep(LOOK_EVERY);
    }
    let patches = plan.log_bytes / LOGGED_BYTES;
    context.note(format!("writing {patches} patches"));
    let mut random = Random::new(5);
    for _ in 0..patches / TOGETHER {
        let keys: Vec<Vec<u8>> = (0..TOGETHER)
            .map(|_| strings::key(random.below(records / PATCHED_EVERY) * PATCHED_EVERY))
            .collect();
        let at = PATCH_AT.to_string();
        let requests: Vec<Vec<&[u8]>> =
            keys.iter().map(|key| vec![&b"SETRANGE"[..], key, at.as_bytes(), &PATCH]).collect();
        admin.call_all(&requests)?;
    }
    let seconds = Duration::from_secs_f64(plan.capacity_s);
    let report =
        resp::run(&LoadPlan { until: Until::Elapsed(seconds), ..reads(plan, records, &server) })?;
    report.expect_no_errors(server.address)?;
    server.kill()?;
    Ok(report.rate())
}

fn reads(plan: &Plan, records: u64, server: &Server) -> LoadPlan {
    LoadPlan { keys: records, value_bytes: plan.value_bytes, ..LoadPlan::new(server.address) }
}

fn number(admin: &mut Admin, field: &str) -> LabResult<f64> {
    let fields = admin.info("persistence")?;
    Ok(fields.get(field).and_then(|text| text.parse().ok()).unwrap_or(0.0))
}

/// Starts the server, waits until everything is loaded, looks at its records, and kills it.
fn start(
    context: &Context,
    plan: &Plan,
    (records, dir): (u64, &Path),
    (kind, capacity): (Start, f64),
) -> LabResult<Started> {
    if kind == Start::Cold {
        forget_files(dir)?;
    }
    let more: &[&str] = if kind == Start::Waits { &["--wait-for-load"] } else { &[] };
    let answers = |admin: &mut Admin| admin.call(&[b"GET", &strings::key(records / 2)]).is_ok();
    let began_ns = sys::now_ns();
    let server = peer(context, more).start_until(dir, PATIENCE, ASK_EVERY, answers)?;
    let pacing = match kind {
        Start::Waits | Start::Alone | Start::Cold => None,
        Start::Asked => Some(Pacing::Closed),
        Start::Loaded => Some(Pacing::Open {
            rate_per_s: capacity * plan.load_share,
            arrivals: Arrivals::Poisson,
        }),
    };
    let load = pacing
        .map(|pacing| {
            let reads = reads(plan, records, &server);
            Load::start(&LoadPlan { pacing, until: Until::Told, ..reads })
        })
        .transpose()?;
    let mut admin = server.admin()?;
    while number(&mut admin, "async_loading")? > 0.0 {
        sys::sleep(LOOK_EVERY);
    }
    let all_s = (sys::now_ns() - began_ns) as f64 / 1e9;
    let mut p99_ms = None;
    if let Some(load) = load {
        // A load of less than a second is over; the first second counts all the same.
        sys::sleep_until(load.started_ns() + 1_000_000_000);
        load.stop();
        let report = load.join()?;
        report.expect_no_errors(server.address)?;
        p99_ms = Some(report.latencies.within(&[[0.0, 1.0]]).p99_ms());
    }
    check(&server, &mut admin, plan, records)?;
    let indexes = number(&mut admin, "load_index_bytes")?;
    let read_first = number(&mut admin, "recovered_log_bytes")? + indexes;
    let first_s = server.start_ns as f64 / 1e9;
    server.kill()?;
    Ok(Started { first_s, all_s, read_first, p99_ms })
}

/// Has the page cache give up the files of a directory.
fn forget_files(dir: &Path) -> LabResult<()> {
    for path in sys::list_dir(dir)? {
        if path.is_dir() {
            forget_files(&path)?;
            continue;
        }
        let of = format!("if={}", path.display());
        let mut tool = Command::new("dd");
        let ended = tool.args([&of, "iflag=nocache", "count=0", "status=none"]).status();
        match ended {
            Ok(status) if status.success() => {}
            Ok(status) => return Err(LabError::process("dd", status)),
            Err(error) => return Err(LabError::process("dd", error)),
        }
    }
    Ok(())
}

/// Compares the number of keys, and the values of some.
fn check(server: &Server, admin: &mut Admin, plan: &Plan, records: u64) -> LabResult<()> {
    let keys = admin.dbsize()?;
    if keys != records {
        return Err(server.failure(format!("{keys} of {records} keys came back")));
    }
    let mut random = Random::new(7);
    for _ in 0..SAMPLE {
        let record = random.below(records);
        let key = strings::key(record);
        let Value::Bulk(value) = admin.call(&[b"GET", &key])? else {
            return Err(server.failure(format!("key {record} is gone")));
        };
        let is_patched = value.get(PATCH_AT..PATCH_AT + PATCH.len()) == Some(&PATCH[..]);
        if value.len() != plan.value_bytes || is_patched && !record.is_multiple_of(PATCHED_EVERY) {
            return Err(server.failure(format!("key {record} has a wrong value")));
        }
    }
    Ok(())
}

fn add(records: u64, all: &[(Start, Vec<Started>)], result: &mut ExperimentResult) {
    let millions = format!("{} records", grouped(records));
    let mut table = Table {
        title: format!("Starts with {millions}"),
        columns: [
            "start",
            "first answer s",
            "all loaded s",
            "read before MB",
            "p99 ms, first second",
        ]
        .map(String::from)
        .to_vec(),
        ..Table::default()
    };
    for (kind, starts) in all {
        for started in starts {
            table.rows.push(vec![
                kind.name().into(),
                format!("{:.3}", started.first_s),
                format!("{:.3}", started.all_s),
                format!("{:.1}", started.read_first / 1e6),
                started.p99_ms.map_or("–".into(), |ms| format!("{ms:.2}")),
            ]);
        }
    }
    let of = |wanted: Start| {
        all.iter().filter(move |(kind, _)| *kind == wanted).flat_map(|(_, starts)| starts)
    };
    let mut claim = |what: &str, most: f64, measured: Vec<f64>| {
        let claim = Claim::new(format!("{what}, {millions}"), SOURCE, Bound::AtMost(most));
        result.claims.push(claim.measured_runs(&measured));
    };
    let allowed = |started: &Started, rest_s: f64, rate: f64| rest_s + started.read_first / rate;
    let warm = of(Start::Alone).map(|s| s.first_s / allowed(s, 0.1, 1e9)).collect();
    claim("first answer ÷ (100 ms + log and indexes at 1 GB/s), warm", 1.0, warm);
    let cold = of(Start::Cold).map(|s| s.first_s / allowed(s, 0.15, 0.7e9)).collect();
    claim("first answer ÷ (150 ms + log and indexes at 0.7 GB/s), cold", 1.0, cold);
    let p99_ms = of(Start::Asked).filter_map(|s| s.p99_ms).collect();
    claim("p99 of the first second's reads in ms, 50 clients", 20.0, p99_ms);
    let pairs = |kind| -> Vec<f64> {
        of(kind).zip(of(Start::Waits)).map(|(one, waits)| one.all_s / waits.all_s).collect()
    };
    claim("whole load ÷ load first, no client", 1.1, pairs(Start::Alone));
    claim("whole load ÷ load first, half load", 1.6, pairs(Start::Loaded));
    result.tables.push(table);
}
