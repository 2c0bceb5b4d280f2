//! Stalls of a large collection: while it grows, while the server saves, and after its DEL.
//!
//! ```text
//! grow ── capacity ── rest, save, rest, save, … under a load of the same command ── strings: rest, DEL, after
//! ```
//! Loads are open loops at a share of each server's own capacity, so whatever is due in a stall is charged with
//! it. Our server logs as it does by default. All figures of stalls compare it with itself at rest, and one run
//! of redis-server stands beside them. ZADD and ZRANGE are compared with redis-server in every run.

mod growth;

use std::time::Duration;

use self::growth::{Growth, grow};
use super::super::peers_redis::PATIENCE;
use super::super::peers_redis::saving::{at_rate, capacity, save_now, save_under_load};
use super::{Plan, SOURCE};
use crate::context::Context;
use crate::drivers::resp::{self, Load, LoadPlan, Traffic, Until};
use crate::error::LabResult;
use crate::measure::stats::{Percentiles, median};
use crate::report::figure::axis::grouped;
use crate::report::result::{Bound, ClaimRow, ExperimentResult, Table};
use crate::subjects::resp::admin::{Admin, Value};
use crate::subjects::server::{Peer, Server};
use crate::sys;
use crate::workloads::elements::{Command, KEY};

/// Commands by which a collection grows, and that write to it while it is saved.
const COMMANDS: [Command; 3] = [Command::HSet, Command::ZAdd, Command::LPush];
/// Commands on a sorted set that are compared with redis-server.
const COMPARED: [Command; 2] = [Command::ZAdd, Command::ZRange];
/// Pipelines of that comparison. The claims are on the last.
const PIPELINES: [usize; 2] = [1, 16];
/// Bytes of a string that others read and write while the collection is deleted.
const VALUE_BYTES: usize = 100;

const GROWTH: ClaimRow = ClaimRow::new(
    "the longest command of the growth, beyond the longest stall of a spinning thread",
    SOURCE,
    Bound::AtMost(2.0),
)
.unit("ms");
const SAVE_P999: ClaimRow =
    ClaimRow::new("p99.9", SOURCE, Bound::AtMost(1.2)).between("while saving", "at rest");
const SAVE_P9999: ClaimRow =
    ClaimRow::new("p99.99", SOURCE, Bound::AtMost(2.0)).between("while saving", "at rest");
const DEL: ClaimRow = ClaimRow::new("DEL", SOURCE, Bound::AtMost(1.0)).unit("ms");
const AFTER_DEL: ClaimRow = ClaimRow::new("p99.9 of the others", SOURCE, Bound::AtMost(1.2))
    .between("after DEL", "at rest");
const THROUGHPUT: ClaimRow =
    ClaimRow::new("throughput", SOURCE, Bound::AtLeast(2.0)).between("Stillpoint", "Redis");

/// The p99.9, the p99.99 and the longest of some latencies, in milliseconds.
type Tail = [f64; 3];

/// What one collection has shown in one run.
#[derive(Clone, Debug, Default)]
struct Shown {
    growth: Growth,
    saves: usize,
    save_s: f64,
    at_rest: Tail,
    while_saving: Tail,
    del_ms: f64,
    others_before: Tail,
    others_after: Tail,
}

/// Runs the part and adds its claims and tables.
///
/// # Errors
/// When a server fails or answers wrongly.
pub(super) fn run(
    context: &Context,
    plan: &Plan,
    peers: &[Peer],
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let [plain, reference, logged @ ..] = peers else { return Ok(()) };
    let ours = logged.first().unwrap_or(plain);
    let mut table = Table {
        title: format!(
            "Stalls of a collection of {} elements, in ms",
            grouped(plan.stall_elements)
        ),
        columns: [
            "command",
            "server",
            "grown in s",
            "longest command / stall of a spinning thread",
            "saved in s",
            "p99.9 / p99.99 / longest at rest",
            "… while saving",
            "DEL",
            "others' p99.9 / p99.99 / longest at rest",
            "… after DEL",
        ]
        .map(String::from)
        .into(),
        ..Table::default()
    };
    // Indexed by command and pipeline: our rates and Redis's, of each run.
    let mut rates = [[(); 2]; 2].map(|row| row.map(|()| [Vec::new(), Vec::new()]));
    for command in COMMANDS {
        let theirs = reference.start(&context.fresh_dir("stalls-reference")?, PATIENCE)?;
        let their_growth = grown(context, plan, &theirs, (reference, command))?;
        let mut all = Vec::new();
        for _ in 0..plan.runs {
            let server = ours.start(&context.fresh_dir("stalls")?, PATIENCE)?;
            let growth = grown(context, plan, &server, (ours, command))?;
            if command == Command::ZAdd {
                compare(context, plan, [&server, &theirs], &mut rates)?;
            }
            all.push(life(context, plan, &server, (ours, command, growth))?);
            server.kill()?;
        }
        let their_life = life(context, plan, &theirs, (reference, command, their_growth))?;
        table.rows.push(row(command, ours, &all));
        table.rows.push(row(command, reference, &[their_life]));
        claims(plan, command, &all, result);
        theirs.kill()?;
        sys::remove_dir_all(&context.work)?;
    }
    result.tables.push(table);
    add_rates(plan, &rates, result);
    Ok(())
}

/// Has the collection grow, and saves once so that the first measured save is like the others.
fn grown(
    context: &Context,
    plan: &Plan,
    server: &Server,
    (peer, command): (&Peer, Command),
) -> LabResult<Growth> {
    let growth = grow(server, command, plan.stall_elements)?;
    context.note(format!(
        "stalls: {} of {}: grown in {:.1} s; longest command {:.2} ms, longest stall of the client {:.2} ms",
        command.name(),
        peer.name,
        growth.seconds,
        growth.longest_ms,
        growth.stall_ms,
    ));
    save_now(&mut server.admin()?)?;
    Ok(growth)
}

/// A closed loop of one command on the grown collection.
fn on_elements(plan: &Plan, server: &Server, command: Command) -> LoadPlan {
    LoadPlan {
        connections: plan.connections,
        traffic: Traffic::Elements(command),
        keys: plan.stall_elements,
        ..LoadPlan::new(server.address)
    }
}

/// Saves a grown collection under load, and deletes it beside other clients.
fn life(
    context: &Context,
    plan: &Plan,
    server: &Server,
    (peer, command, growth): (&Peer, Command, Growth),
) -> LabResult<Shown> {
    let load = on_elements(plan, server, command);
    let capacity_per_s = capacity(&load, plan.stall_rest_s / 2.0)?;
    let load = at_rate(&load, capacity_per_s * plan.stall_load_share);
    let saves = save_under_load(server, &load, plan.stall_rest_s, None)?;
    let mut shown = deleted(plan, server)?;
    shown.growth = growth;
    (shown.saves, shown.save_s) = (saves.count(), saves.seconds());
    (shown.at_rest, shown.while_saving) = (tail(&saves.at_rest()), tail(&saves.while_saving()));
    context.note(format!(
        "stalls: {} of {}: capacity {capacity_per_s:.0}/s; {} saves of {:.2} s; p99.9 / p99.99 / longest {} \
         at rest, {} while saving; DEL {:.2}; others {} at rest, {} after DEL",
        command.name(),
        peer.name,
        shown.saves,
        shown.save_s,
        three(shown.at_rest),
        three(shown.while_saving),
        shown.del_ms,
        three(shown.others_before),
        three(shown.others_after),
    ));
    Ok(shown)
}

/// Deletes the collection while others read and write strings.
fn deleted(plan: &Plan, server: &Server) -> LabResult<Shown> {
    let mut admin = server.admin()?;
    let strings = LoadPlan {
        connections: plan.connections,
        keys: plan.keys,
        value_bytes: VALUE_BYTES,
        set_share: 0.5,
        ..LoadPlan::new(server.address)
    };
    let fill = LoadPlan { pipeline: 100, until: Until::EveryKeyWritten, ..strings.clone() };
    resp::run(&fill)?.expect_no_errors(server.address)?;
    let capacity_per_s = capacity(&strings, plan.stall_rest_s / 2.0)?;
    let load = Load::start(&at_rate(&strings, capacity_per_s * plan.stall_load_share))?;
    sys::sleep(Duration::from_secs_f64(plan.stall_rest_s));
    let began_ns = sys::now_ns();
    let done = delete(server, &mut admin);
    let ended_ns = sys::now_ns();
    sys::sleep(Duration::from_secs_f64(plan.stall_rest_s));
    let rest_s = (began_ns - load.started_ns()) as f64 / 1e9;
    load.stop();
    let report = load.join()?;
    report.expect_no_errors(server.address)?;
    done?;
    Ok(Shown {
        del_ms: (ended_ns - began_ns) as f64 / 1e6,
        others_before: tail(&report.latencies.within(&[[0.0, rest_s]])),
        others_after: tail(&report.latencies.within(&[[rest_s, report.seconds]])),
        ..Shown::default()
    })
}

fn delete(server: &Server, admin: &mut Admin) -> LabResult<()> {
    match admin.call(&[b"DEL", KEY])? {
        Value::Integer(1) => Ok(()),
        other => Err(server.failure(format!("DEL of the collection was answered {other:?}"))),
    }
}

/// Measures commands on a sorted set, with ours and Redis in turn.
fn compare(
    context: &Context,
    plan: &Plan,
    servers: [&Server; 2],
    rates: &mut [[[Vec<f64>; 2]; 2]; 2],
) -> LabResult<()> {
    for (command, rates) in COMPARED.into_iter().zip(rates) {
        for (pipeline, rates) in PIPELINES.into_iter().zip(rates) {
            let load = |server| LoadPlan { pipeline, ..on_elements(plan, server, command) };
            let [ours, theirs] = servers.map(|of| capacity(&load(of), plan.stall_rest_s / 2.0));
            let (ours, theirs) = (ours?, theirs?);
            context.note(format!(
                "stalls: {} at pipeline {pipeline}: {ours:.0} and {theirs:.0}/s",
                command.name()
            ));
            rates[0].push(ours);
            rates[1].push(theirs);
        }
    }
    Ok(())
}

fn tail(of: &Percentiles) -> Tail {
    [of.p999_ms(), of.ms(0.9999), of.max_ms()]
}

fn three([a, b, c]: Tail) -> String {
    format!("{a:.2} / {b:.2} / {c:.2}")
}

fn row(command: Command, peer: &Peer, all: &[Shown]) -> Vec<String> {
    let of = |value: fn(&Shown) -> f64| median(&all.iter().map(value).collect::<Vec<_>>());
    let tails = |value: fn(&Shown) -> Tail| {
        three([0, 1, 2].map(|at| median(&all.iter().map(|s| value(s)[at]).collect::<Vec<_>>())))
    };
    vec![
        command.name().to_owned(),
        peer.name.clone(),
        format!("{:.1}", of(|s| s.growth.seconds)),
        format!("{:.2} / {:.2}", of(|s| s.growth.longest_ms), of(|s| s.growth.stall_ms)),
        format!("{:.2}", of(|s| s.save_s)),
        tails(|s| s.at_rest),
        tails(|s| s.while_saving),
        format!("{:.2}", of(|s| s.del_ms)),
        tails(|s| s.others_before),
        tails(|s| s.others_after),
    ]
}

fn claims(plan: &Plan, command: Command, all: &[Shown], result: &mut ExperimentResult) {
    let elements = grouped(plan.stall_elements);
    let at = format!("{} on {elements} elements", command.name());
    let after = format!("DEL of {elements} elements of {}", command.name());
    let mut claim = |row: ClaimRow, at: &str, value: fn(&Shown) -> f64| {
        let runs: Vec<f64> = all.iter().map(value).collect();
        result.claims.push(row.claim(at).measured_runs(&runs));
    };
    claim(GROWTH, &at, |s| (s.growth.longest_ms - s.growth.stall_ms).max(0.0));
    claim(SAVE_P999, &at, |s| s.while_saving[0] / s.at_rest[0]);
    claim(SAVE_P9999, &at, |s| s.while_saving[1] / s.at_rest[1]);
    claim(DEL, &after, |s| s.del_ms);
    claim(AFTER_DEL, &after, |s| s.others_after[0] / s.others_before[0]);
}

fn add_rates(plan: &Plan, rates: &[[[Vec<f64>; 2]; 2]; 2], result: &mut ExperimentResult) {
    let members = grouped(plan.stall_elements);
    let mut table = Table {
        title: format!("Requests per second on a sorted set of {members} members"),
        columns: ["command", "pipeline", "ours", "Redis", "ratio"].map(String::from).into(),
        ..Table::default()
    };
    for (command, rates) in COMPARED.into_iter().zip(rates) {
        for (at, (pipeline, [ours, theirs])) in PIPELINES.into_iter().zip(rates).enumerate() {
            let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(a, b)| a / b).collect();
            table.rows.push(vec![
                command.name().to_owned(),
                pipeline.to_string(),
                grouped(median(ours) as u64),
                grouped(median(theirs) as u64),
                format!("{:.2}", median(&ratios)),
            ]);
            if at + 1 == PIPELINES.len() {
                let at = format!("{} on {members} members, pipeline {pipeline}", command.name());
                result.claims.push(THROUGHPUT.claim(&at).measured_runs(&ratios));
            }
        }
    }
    result.tables.push(table);
}
