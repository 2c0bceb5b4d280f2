//! A save under load, and the restart after a crash.
//!
//! Each server is loaded at the same share of *its own* capacity in an open loop. So a stall shows
//! in the latencies of all requests that were due meanwhile. Saves and rests alternate until the
//! saves have lasted nearly as long as the first rest. A single short save would have too few
//! answers for a p99.9.

mod figures;

use std::time::Duration;

use super::{PATIENCE, Plan, SOURCE, fill};
use crate::context::Context;
use crate::drivers::resp::{self, Arrivals, Load, LoadPlan, LoadReport, Pacing, Until};
use crate::error::LabResult;
use crate::measure::stats::{Percentiles, median};
use crate::report::figure::axis::grouped;
use crate::report::result::{Bound, Claim, ClaimRow, ExperimentResult, Paper, Table};
use crate::subjects::resp::admin::Admin;
use crate::subjects::server::{MemorySample, Peer, Server, Watch};
use crate::sys;
use crate::workloads::random::Random;

/// Most saves under one load. Short saves stop at this number, too.
const MOST_SAVES: usize = 8;
/// Time after a save that counts neither as saving nor as rest.
const AFTERMATH_S: f64 = 0.5;

/// Saves under one load, each after a rest.
#[derive(Debug)]
pub(crate) struct Saves {
    report: LoadReport,
    /// Samples of the process, if it was watched.
    memory: Vec<MemorySample>,
    /// Begin and end of each save, in seconds of the load.
    stretches: Vec<[f64; 2]>,
    fork_ms: f64,
}

/// All figures of one peer.
#[derive(Debug, Default)]
struct Findings {
    capacity_per_s: f64,
    idle_save_s: f64,
    saves: Vec<Saves>,
    restarts_s: Vec<f64>,
    peak_bytes: u64,
}

/// Runs the part and adds its claims, tables and figures.
///
/// # Errors
/// When a server fails, answers wrongly, or comes back with other data.
pub(crate) fn run(
    context: &Context,
    plan: &Plan,
    peers: &[Peer],
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let (mut servers, mut found) = (Vec::new(), Vec::new());
    for (index, peer) in peers.iter().enumerate() {
        context.note(format!("saving: starting {}, writing {} keys", peer.name, plan.saved_keys));
        let server = peer.start(&context.fresh_dir(&format!("saving-{index}"))?, PATIENCE)?;
        fill(plan, &server, plan.saved_keys)?;
        let idle_save_s = save_now(&mut server.admin()?)?.as_secs_f64();
        let capacity_per_s = capacity(&mixed(plan, &server), plan.run_s.min(10.0))?;
        context.note(format!(
            "saving: {} saves in {idle_save_s:.2} s when idle; capacity {capacity_per_s:.0} /s",
            peer.name
        ));
        servers.push(server);
        found.push(Findings { capacity_per_s, idle_save_s, ..Findings::default() });
    }
    for run in 0..plan.runs {
        for (index, server) in servers.iter().enumerate() {
            let load = mixed(plan, server);
            let rate_per_s = found[index].capacity_per_s * plan.load_share;
            let load = LoadPlan { seed: run as u64 + 1, ..at_rate(&load, rate_per_s) };
            let watch = Watch::start(server.pid())?;
            let saves = save_under_load(server, &load, plan.rest_s, Some(watch))?;
            context.note(saves.describe(&peers[index].name));
            found[index].saves.push(saves);
        }
    }
    // Servers load one at a time, since they would share the cores.
    for (server, findings) in servers.into_iter().zip(&mut found) {
        findings.peak_bytes = server.peak_bytes()?;
        server.kill()?;
    }
    for _ in 0..plan.runs {
        for (index, peer) in peers.iter().enumerate() {
            let seconds = restart(context, plan, peer, index)?;
            context.note(format!("restart: {} serves after {seconds:.2} s", peer.name));
            found[index].restarts_s.push(seconds);
        }
    }
    tables(peers, &found, result);
    figures::add(plan, peers, &found, result);
    if let [ours, reference, ..] = &found[..] {
        result.claims.extend(claims(ours, reference));
    }
    Ok(())
}

/// Asks for BGSAVE and returns the time until the save is done.
pub(crate) fn save_now(admin: &mut Admin) -> LabResult<Duration> {
    let saves = |admin: &mut Admin| -> LabResult<(bool, Option<String>)> {
        let fields = admin.info("persistence")?;
        let running = fields.get("rdb_bgsave_in_progress").is_some_and(|v| v != "0");
        Ok((running, fields.get("rdb_saves").cloned()))
    };
    let (_, before) = saves(admin)?;
    let began_ns = sys::now_ns();
    admin.call(&[b"BGSAVE"])?;
    loop {
        let (running, now) = saves(admin)?;
        // If the server counts finished saves, one more must have finished.
        if !running && (now.is_none() || now != before) {
            return Ok(Duration::from_nanos(sys::now_ns() - began_ns));
        }
        sys::sleep(Duration::from_millis(10));
    }
}

fn mixed(plan: &Plan, server: &Server) -> LoadPlan {
    LoadPlan { keys: plan.saved_keys, set_share: plan.set_share, ..plan.load(server.address) }
}

/// Requests per second of a load in a closed loop.
pub(crate) fn capacity(load: &LoadPlan, seconds: f64) -> LabResult<f64> {
    let until = Until::Elapsed(Duration::from_secs_f64(seconds));
    let report = resp::run(&LoadPlan { until, ..load.clone() })?;
    report.expect_no_errors(load.address)?;
    Ok(report.rate())
}

/// The load as an open loop, until it is told to end.
pub(crate) fn at_rate(load: &LoadPlan, rate_per_s: f64) -> LoadPlan {
    let pacing = Pacing::Open { rate_per_s, arrivals: Arrivals::Poisson };
    LoadPlan { pacing, until: Until::Told, ..load.clone() }
}

/// Rests and saves in turn under a load that ends when it is told to.
pub(crate) fn save_under_load(
    server: &Server,
    load: &LoadPlan,
    rest_s: f64,
    watch: Option<Watch>,
) -> LabResult<Saves> {
    let mut admin = server.admin()?;
    let load = Load::start(load)?;
    let saved = save_repeatedly(rest_s, &mut admin, load.started_ns());
    load.stop();
    let report = load.join()?;
    let saved = saved?;
    report.expect_no_errors(server.address)?;
    let since = |ns: u64| (ns - report.started_ns) as f64 / 1e9;
    let fork_us = admin.info("stats")?.get("latest_fork_usec").and_then(|v| v.parse().ok());
    Ok(Saves {
        stretches: saved.into_iter().map(|[from, to]| [since(from), since(to)]).collect(),
        memory: watch.map_or(Ok(Vec::new()), Watch::finish)?,
        fork_ms: fork_us.unwrap_or(0.0) / 1e3,
        report,
    })
}

/// Rests and saves in turn. Returns when each save began and ended. The last rest is as short as
/// those between saves.
fn save_repeatedly(rest_s: f64, admin: &mut Admin, started_ns: u64) -> LabResult<Vec<[u64; 2]>> {
    let mut saves: Vec<[u64; 2]> = Vec::new();
    sys::sleep_until(started_ns + (rest_s * 1e9) as u64);
    loop {
        let began_ns = sys::now_ns();
        save_now(admin)?;
        saves.push([began_ns, sys::now_ns()]);
        sys::sleep(Duration::from_secs_f64(rest_s / 3.0));
        let lasted_ns: u64 = saves.iter().map(|[from, to]| to - from).sum();
        if lasted_ns as f64 / 1e9 >= rest_s * 2.0 / 3.0 || saves.len() == MOST_SAVES {
            return Ok(saves);
        }
    }
}

impl Saves {
    /// Number of saves.
    pub(crate) fn count(&self) -> usize {
        self.stretches.len()
    }

    /// Median seconds of a save.
    pub(crate) fn seconds(&self) -> f64 {
        median(&self.stretches.iter().map(|[from, to]| to - from).collect::<Vec<_>>())
    }

    /// Begin of the first save, in seconds of the load.
    fn first_s(&self) -> f64 {
        self.stretches[0][0]
    }

    /// Stretches at rest: before the saves, and between them, without the time that a save leaves
    /// its traces in.
    pub(crate) fn at_rest(&self) -> Percentiles {
        let ends = self.stretches.iter().map(|save| save[1] + AFTERMATH_S);
        let begins = self.stretches.iter().map(|save| save[0]);
        let rests = std::iter::once(0.0).chain(ends).zip(begins).map(|(from, to)| [from, to]);
        self.report.latencies.within(&rests.collect::<Vec<_>>())
    }

    /// During the saves.
    pub(crate) fn while_saving(&self) -> Percentiles {
        self.report.latencies.within(&self.stretches)
    }

    fn since(&self, sample: &MemorySample) -> f64 {
        (sample.at_ns as f64 - self.report.started_ns as f64) / 1e9
    }

    /// Bytes held at rest, as the median of the samples before the saves.
    fn rest_bytes(&self) -> f64 {
        let before = self.memory.iter().filter(|s| self.since(s) < self.first_s());
        median(&before.map(|s| s.total_bytes() as f64).collect::<Vec<_>>())
    }

    /// Peak of memory during a save beyond the memory at rest, as a share of the memory at rest.
    fn extra_share(&self) -> f64 {
        let is_during = |s: &&MemorySample| {
            let at = self.since(s);
            self.stretches.iter().any(|[from, to]| (*from..to + 0.2).contains(&at))
        };
        let during = self.memory.iter().filter(is_during);
        let peak = during.map(|s| s.total_bytes() as f64).fold(f64::NAN, f64::max);
        (peak / self.rest_bytes() - 1.0).max(0.0)
    }

    fn describe(&self, name: &str) -> String {
        let (rest, saving) = (self.at_rest(), self.while_saving());
        format!(
            "saving: {name}: {} saves of {:.2} s under load, p99.9 {:.2} ms at rest and {:.2} ms \
             meanwhile, {:.1} % more memory, {} unanswered",
            self.count(),
            self.seconds(),
            rest.p999_ms(),
            saving.p999_ms(),
            self.extra_share() * 100.0,
            self.report.unanswered,
        )
    }
}

/// Restarts the killed server, and returns the seconds until it serves all its data. Then kills the
/// server again.
fn restart(context: &Context, plan: &Plan, peer: &Peer, index: usize) -> LabResult<f64> {
    let server = peer.start(&context.work.join(format!("saving-{index}")), PATIENCE)?;
    let mut admin = server.admin()?;
    let keys = admin.dbsize()?;
    if keys != plan.saved_keys {
        return Err(server.failure(format!("{keys} of {} keys came back", plan.saved_keys)));
    }
    let mut random = Random::new(7);
    let sample: Vec<(u64, u64)> = (0..10_000).map(|_| (random.below(plan.saved_keys), 0)).collect();
    admin.check_strings(&sample, plan.value_bytes)?;
    let seconds = server.start_ns as f64 / 1e9;
    server.kill()?;
    Ok(seconds)
}

fn of_saves(findings: &Findings, f: impl Fn(&Saves) -> f64) -> Vec<f64> {
    findings.saves.iter().map(f).collect()
}

const CLAIMS: [ClaimRow; 4] = [
    ClaimRow::new("p99.9", SOURCE, Bound::AtMost(1.2))
        .between("while saving", "at rest")
        .paper(Paper::words("fork's spike gone (ICDE 2018, §5)")),
    ClaimRow::new("memory that a save adds", SOURCE, Bound::AtMost(5.0)).unit("%"),
    ClaimRow::new("a save under load finishes sooner than Redis's", SOURCE, Bound::AtLeast(8.0)),
    ClaimRow::new("restart after kill -9 sooner than Redis's", SOURCE, Bound::AtLeast(5.0)),
];

fn claims(ours: &Findings, reference: &Findings) -> Vec<Claim> {
    let ratio =
        |a: &[f64], b: &[f64]| -> Vec<f64> { a.iter().zip(b).map(|(a, b)| a / b).collect() };
    let slower = of_saves(ours, |s| s.while_saving().p999_ms() / s.at_rest().p999_ms());
    let memory = of_saves(ours, |s| s.extra_share() * 100.0);
    let (save, their_save) = (of_saves(ours, Saves::seconds), of_saves(reference, Saves::seconds));
    let sooner = ratio(&their_save, &save);
    let restarts = ratio(&reference.restarts_s, &ours.restarts_s);
    let measured = CLAIMS.iter().zip([slower, memory, sooner, restarts]);
    measured.map(|(row, runs)| row.claim("").measured_runs(&runs)).collect()
}

fn tables(peers: &[Peer], found: &[Findings], result: &mut ExperimentResult) {
    let columns = [
        "server",
        "capacity /s",
        "idle save s",
        "save under load s",
        "fork ms",
        "p50 / p99 / p99.9 ms at rest",
        "… while saving",
        "slowest ms",
        "extra memory %",
        "peak MiB",
        "restart s",
        "unanswered",
    ];
    let mut table = Table {
        title: "Saves under load and restarts (medians)".into(),
        columns: columns.map(String::from).to_vec(),
        rows: Vec::new(),
        ..Table::default()
    };
    for (peer, f) in peers.iter().zip(found) {
        let three = |part: fn(&Saves) -> Percentiles| {
            let at = |q: f64| median(&of_saves(f, |s| part(s).ms(q)));
            format!("{:.2} / {:.2} / {:.2}", at(0.5), at(0.99), at(0.999))
        };
        let unanswered: u64 = f.saves.iter().map(|s| s.report.unanswered).sum();
        table.rows.push(vec![
            peer.name.clone(),
            grouped(f.capacity_per_s as u64),
            format!("{:.2}", f.idle_save_s),
            format!("{:.2}", median(&of_saves(f, Saves::seconds))),
            format!("{:.1}", median(&of_saves(f, |s| s.fork_ms))),
            three(Saves::at_rest),
            three(Saves::while_saving),
            format!("{:.1}", median(&of_saves(f, |s| s.while_saving().max_ms()))),
            format!("{:.1}", median(&of_saves(f, |s| s.extra_share() * 100.0))),
            grouped(f.peak_bytes >> 20),
            format!("{:.2}", median(&f.restarts_s)),
            unanswered.to_string(),
        ]);
    }
    result.tables.push(table);
}
