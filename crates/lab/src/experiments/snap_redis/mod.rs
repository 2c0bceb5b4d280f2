//! `snap-fig5` and `snap-fig6`: snapshots of a server under YCSB (ICDE 2018, §III-C, Figures 5 and 6).
//!
//! The paper changed Redis: Redis-HG and Redis-PB take snapshots by hourglass and piggyback, and not by
//! fork. Here one server has all schemes, and redis-server stands beside it. A record is a string of
//! 1,000 bytes, and an update replaces it. (The paper's client writes a field of a hash.) The lab asks for a
//! snapshot every six seconds; the paper's `save 10 1` does so every ten, of states up to four times as
//! large. A snapshot that takes longer delays the next one to the begin of a further period.
//!
//! - `snap-fig5` ([`throughput`]): saturated clients, by size and share of updates. Dumps, memory and
//!   processor time stand beside.
//! - `snap-fig6` ([`latency`]): an open loop at half of each server's own capacity, by size. It has the
//!   worst latency from each snapshot to the next, and for how long the snapshot stops commits.
//!
//! Both run the whole grid of sizes and shares of updates, or the part `floors`. That part has what bounds
//! name, in minutes: fork, hourglass and piggyback, the smallest and the greatest size, one share of updates,
//! and short periods.

mod latency;
#[cfg(test)]
mod tests;
mod throughput;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use stillpoint_checkpoint::registry::REGISTRY;

pub(crate) use latency::SnapFig6;
pub(crate) use throughput::SnapFig5;

use super::peers_redis::{PATIENCE, find_program};
use crate::context::Context;
use crate::drivers::resp::{self, Arrivals, Load, LoadPlan, LoadReport, Pacing, Until};
use crate::error::{LabError, LabResult};
use crate::harness::Harness;
use crate::measure::machine::available_bytes;
use crate::report::result::ExperimentResult;
use crate::subjects::resp::admin::Admin;
use crate::subjects::server::{MemorySample, Peer, Server, Watch};
use crate::sys;
use crate::workloads::random::{KeyLaw, Random};
use crate::workloads::ycsb::RECORD_BYTES;

/// Bytes of a record beside its value: key, header, index.
const OVERHEAD_BYTES: u64 = 120;
/// Requests that a connection sends at once while the records are written.
const FILL_PIPELINE: usize = 32;
/// Records whose values are compared after a restart.
const COMPARED: u64 = 10_000;

/// The amount of work of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Records of 1,000 bytes, one size after the other.
    pub(crate) records: Vec<u64>,
    /// Shares of updates among the requests; the others read.
    pub(crate) update_shares: Vec<f64>,
    /// Runs of each server at each size and share.
    pub(crate) runs: usize,
    /// Time from one snapshot to the next.
    pub(crate) period_s: f64,
    /// Snapshots in a run.
    pub(crate) snapshots: usize,
    /// Uncounted time before each run.
    pub(crate) warm_up_s: f64,
    /// Connections of the load.
    pub(crate) connections: usize,
    /// Client threads.
    pub(crate) threads: usize,
    /// Load of an open loop, as a share of the server's own capacity.
    pub(crate) load_share: f64,
}

/// The whole grid, and the part of it that bounds name.
const PARTS: [&str; 2] = ["grid", "floors"];

impl Plan {
    const FULL: Plan = Plan {
        records: Vec::new(),
        update_shares: Vec::new(),
        runs: 1,
        period_s: 6.0,
        snapshots: 2,
        warm_up_s: 1.0,
        connections: 50,
        threads: 2,
        load_share: 0.5,
    };

    /// The paper's records, scaled to the memory of this machine.
    fn sizes() -> Vec<u64> {
        vec![250_000, 1_000_000, 4_000_000]
    }

    fn quickly(self) -> Plan {
        let records = vec![2_000, 8_000];
        Plan { records, period_s: 0.4, warm_up_s: 0.1, runs: 1, snapshots: 2, ..self }
    }

    fn adjust(&mut self, asked: &Context) {
        if part_of(asked) == PARTS[1] {
            let ends = ends_of(&self.records).into_iter().flatten().collect();
            self.records = ends;
            self.update_shares.truncate(1);
            self.period_s = self.period_s.min(3.0);
        }
        self.runs = asked.runs.unwrap_or(self.runs).max(1);
        self.period_s = asked.seconds.unwrap_or(self.period_s);
    }

    /// Seconds of a load without snapshots.
    fn seconds(&self) -> f64 {
        self.period_s * self.snapshots as f64
    }

    /// The end of the period in which this moment lies.
    fn next_s(&self, at_s: f64) -> f64 {
        (at_s / self.period_s).ceil() * self.period_s
    }

    fn load(&self, server: &Server, records: u64) -> LoadPlan {
        LoadPlan {
            connections: self.connections,
            threads: self.threads,
            keys: records,
            value_bytes: RECORD_BYTES,
            law: KeyLaw::ScrambledZipf,
            warm_up: Duration::from_secs_f64(self.warm_up_s),
            until: Until::Told,
            ..LoadPlan::new(server.address)
        }
    }
}

/// The part that is to be run. A run without a part is the grid, which has the points of the floors too.
fn part_of(asked: &Context) -> &str {
    asked.part.as_deref().unwrap_or(PARTS[0])
}

/// A server with its way to take snapshots.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Subject {
    /// The command line. Its name is that of figures.
    pub(crate) peer: Peer,
    /// Copies of a value that the server may hold at a time.
    copies: u64,
    /// Whether the server takes snapshots.
    takes_snapshots: bool,
}

/// Names of servers that claims compare.
const NONE: &str = "none";
const FORK: &str = "fork";
const HUGE_FORK: &str = "fork, 2 MiB";
const CONSTANT: [&str; 2] = ["hourglass", "piggyback"];
const CALC: &str = "calc";
const REDIS: &str = "redis";

/// All servers, `none` first.
pub(crate) fn subjects(binary: &Path, redis: Option<PathBuf>) -> Vec<Subject> {
    let ours = |name: &str, scheme: &str, pages: &str| {
        let base = "serve --data {dir} --port {port} --journal none --checkpoint-every 86400s";
        let words = base.split(' ').chain(["--checkpoint", scheme, "--pages", pages]);
        let arguments = words.map(str::to_owned).collect();
        let row = REGISTRY.find(scheme).ok();
        let copies = row.map_or(1, |row| row.capabilities.cells.copies as u64);
        let copies = if scheme == FORK { 2 } else { copies };
        let peer = Peer { name: name.into(), program: binary.to_owned(), arguments };
        Subject { peer, copies, takes_snapshots: scheme != NONE }
    };
    let mut all = vec![
        ours(NONE, NONE, "huge"),
        ours(FORK, FORK, "small"),
        ours(HUGE_FORK, FORK, "huge"),
        ours(CONSTANT[0], CONSTANT[0], "huge"),
        ours(CONSTANT[1], CONSTANT[1], "huge"),
        ours(CALC, CALC, "huge"),
    ];
    if let Some(program) = redis {
        let line = "--dir {dir} --port {port} --bind 127.0.0.1 --loglevel warning --save";
        let arguments = line.split(' ').chain([""]).map(str::to_owned).collect();
        let peer = Peer { name: REDIS.into(), program, arguments };
        all.push(Subject { peer, copies: 2, takes_snapshots: true });
    }
    all
}

/// Measures the servers of a run in its part. If this program does not serve, only a note says so.
fn measure(
    bench: &Harness<'_>,
    plan: &Plan,
    result: &mut ExperimentResult,
    compare: fn(&Context, &Plan, &[Subject], &mut ExperimentResult) -> LabResult<()>,
) -> LabResult<()> {
    let context = bench.context;
    if !bench.children {
        result.note("No server was measured: this program does not serve.");
        return Ok(());
    }
    let redis = find_program("redis-server");
    if redis.is_none() {
        result.note("redis-server is not installed, and was not measured.");
    }
    let chosen = chosen(context, subjects(&context.binary, redis));
    result.in_part(part_of(context), |result| compare(context, plan, &chosen, result))
}

/// The servers that were asked for. What claims divide by is always there: no snapshots, and fork.
fn chosen(context: &Context, mut all: Vec<Subject>) -> Vec<Subject> {
    let scheme = |it: &Subject| it.name().split(',').next().unwrap_or_default().to_owned();
    if !context.schemes.is_empty() {
        let wanted = |it: &Subject| [NONE, FORK].contains(&it.name());
        all.retain(|it| wanted(it) || context.schemes.contains(&scheme(it)));
    } else if part_of(context) == PARTS[1] {
        all.retain(|it| ![CALC, REDIS].contains(&it.name()));
    }
    all
}

impl Subject {
    fn name(&self) -> &str {
        &self.peer.name
    }

    /// Whether there is memory for so many records, and for the copies that a snapshot of `beside` makes.
    fn fits(&self, records: u64, beside: Option<&Subject>) -> bool {
        let copies = self.copies + beside.map_or(0, |it| it.copies - 1);
        let bytes = records * (RECORD_BYTES as u64 * copies + OVERHEAD_BYTES);
        bytes <= available_bytes() / 10 * 9
    }

    fn dir(&self, context: &Context) -> PathBuf {
        let name = self.name().replace([',', ' '], "-");
        context.work.join(format!("snapshots-{name}"))
    }

    /// Starts the server on an empty directory and writes the records.
    fn start(&self, context: &Context, plan: &Plan, records: u64) -> LabResult<Server> {
        context.note(format!("writing {records} records to {}", self.name()));
        let dir = self.dir(context);
        sys::remove_dir_all(&dir)?;
        let server = self.peer.start(&dir, PATIENCE)?;
        let all = LoadPlan {
            pipeline: FILL_PIPELINE,
            until: Until::EveryKeyWritten,
            warm_up: Duration::ZERO,
            ..plan.load(&server, records)
        };
        resp::run(&all)?.expect_no_errors(server.address)?;
        Ok(server)
    }

    /// Kills the server, starts it again from its last snapshot and compares what came back.
    fn finish(&self, context: &Context, server: Server, records: u64) -> LabResult<()> {
        let mut admin = server.admin()?;
        if self.takes_snapshots && saves(&mut admin)?.1.is_none_or(|count| count == "0") {
            take_snapshot(&mut admin)?;
        }
        server.kill()?;
        let dir = self.dir(context);
        if self.takes_snapshots {
            let server = self.peer.start(&dir, PATIENCE)?;
            let mut admin = server.admin()?;
            let found = admin.dbsize()?;
            if found != records {
                return Err(server.failure(format!("{found} of {records} records came back")));
            }
            let mut random = Random::new(7);
            let sample: Vec<_> = (0..COMPARED).map(|_| (random.below(records), 0)).collect();
            admin.check_strings(&sample, RECORD_BYTES)?;
            server.kill()?;
        }
        sys::remove_dir_all(&dir)
    }
}

/// One snapshot.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Snapshot {
    /// Begin and end, in seconds of the load.
    stretch: [f64; 2],
    /// Milliseconds in which no commit could begin. Of Redis, those of its fork.
    stopped_ms: f64,
}

/// A load with its snapshots.
#[derive(Debug)]
struct Run {
    report: LoadReport,
    snapshots: Vec<Snapshot>,
    /// Empty if the memory was not watched.
    memory: Vec<MemorySample>,
    server_cpu_s: f64,
}

/// What a run does.
#[derive(Clone, Copy, Debug)]
struct Kind {
    records: u64,
    update_share: f64,
    /// Requests per second of an open loop. Without a number the clients are saturated.
    rate_per_s: Option<f64>,
    /// A watched process is read by another thread of this machine, which shows in worst latencies.
    watches_memory: bool,
    seed: u64,
}

/// Loads a server, and asks for a snapshot in each period.
fn run(plan: &Plan, subject: &Subject, server: &Server, kind: Kind) -> LabResult<Run> {
    let pacing = kind.rate_per_s.map_or(Pacing::Closed, |rate_per_s| Pacing::Open {
        rate_per_s,
        arrivals: Arrivals::Poisson,
    });
    let mut admin = server.admin()?;
    let watch = kind.watches_memory.then(|| Watch::start(server.pid())).transpose()?;
    let cpu_before_s = server.cpu_seconds()?;
    let load = Load::start(&LoadPlan {
        set_share: kind.update_share,
        pacing,
        seed: kind.seed,
        ..plan.load(server, kind.records)
    })?;
    let started_ns = load.started_ns();
    let taken = match subject.takes_snapshots {
        true => take_snapshots(plan, &mut admin, started_ns),
        false => Ok(Vec::new()),
    };
    if let Ok(taken) = &taken {
        let end_s = taken.last().map_or(plan.seconds(), |last| plan.next_s(last.stretch[1]));
        sys::sleep_until(started_ns + (end_s * 1e9) as u64);
    }
    load.stop();
    let report = load.join()?;
    let snapshots = taken?;
    report.expect_no_errors(server.address)?;
    if report.misses > 0 {
        return Err(server.failure(format!("{} records were not found", report.misses)));
    }
    // A child of the server counts once the server has waited for it.
    let server_cpu_s = server.cpu_seconds()? - cpu_before_s;
    let memory = watch.map(Watch::finish).transpose()?.unwrap_or_default();
    Ok(Run { report, snapshots, memory, server_cpu_s })
}

/// Takes the snapshots of a load. Each begins after a tenth of a period, which is at rest.
fn take_snapshots(plan: &Plan, admin: &mut Admin, started_ns: u64) -> LabResult<Vec<Snapshot>> {
    let since = |ns: u64| ns.saturating_sub(started_ns) as f64 / 1e9;
    let mut taken: Vec<Snapshot> = Vec::new();
    let mut period_s = 0.0;
    while taken.len() < plan.snapshots {
        let due_s = period_s + 0.1 * plan.period_s;
        sys::sleep_until(started_ns + (due_s * 1e9) as u64);
        let begin_ns = sys::now_ns();
        let stopped_ms = take_snapshot(admin)?;
        let end_s = since(sys::now_ns());
        taken.push(Snapshot { stretch: [since(begin_ns), end_s], stopped_ms });
        period_s = plan.next_s(end_s);
    }
    Ok(taken)
}

/// Asks for a snapshot and waits until it is there. Returns for how many milliseconds it stopped commits.
fn take_snapshot(admin: &mut Admin) -> LabResult<f64> {
    let (_, before) = saves(admin)?;
    admin.call(&[b"BGSAVE"])?;
    loop {
        // The answer to INFO takes time from the server, too.
        sys::sleep(Duration::from_millis(20));
        match saves(admin)? {
            (true, _) => {}
            (false, now) if now != before => break,
            (false, _) => check_last(admin)?,
        }
    }
    let number = |text: Option<&String>| text.and_then(|text| text.parse::<f64>().ok());
    if let Some(ms) = number(admin.info("persistence")?.get("checkpoint_last_stopped_ms")) {
        return Ok(ms);
    }
    Ok(number(admin.info("stats")?.get("latest_fork_usec")).map_or(f64::NAN, |us| us / 1e3))
}

/// Whether a snapshot is under way, and how many there were.
fn saves(admin: &mut Admin) -> LabResult<(bool, Option<String>)> {
    let fields = admin.info("persistence")?;
    let running = fields.get("rdb_bgsave_in_progress").is_some_and(|value| value != "0");
    Ok((running, fields.get("rdb_saves").cloned()))
}

/// Fails if the last snapshot has.
fn check_last(admin: &mut Admin) -> LabResult<()> {
    let fields = admin.info("persistence")?;
    if fields.get("rdb_last_bgsave_status").is_none_or(|status| status != "err") {
        return Ok(());
    }
    let why = fields.get("checkpoint_last_error").cloned().unwrap_or_default();
    Err(LabError::process("BGSAVE", format!("failed: {why}")))
}

/// The words of a column for a number that may be missing.
fn shown(value: f64, digits: usize) -> String {
    if value.is_finite() { format!("{value:.digits$}") } else { "–".to_owned() }
}

/// The sizes at which all servers of a claim were measured: the smallest and the greatest.
fn ends_of(sizes: &[u64]) -> Option<[u64; 2]> {
    Some([*sizes.first()?, *sizes.last()?])
}
