//! A server at its memory limit whose short values go and whose longer values come.
//!
//! Values of 100 B fill the memory, and nine of ten are deleted. Writers at a fixed rate run before and
//! directly afterwards, while records move. Then values of 1,000 B are put until the server refuses.

use super::super::peers_redis::PATIENCE;
use super::{Plan, SOURCE, limit, number};
use crate::context::Context;
use crate::drivers::resp::{self, Arrivals, LoadPlan, LoadReport, Pacing};
use crate::error::LabResult;
use crate::measure::stats::median;
use crate::report::result::{Bound, ClaimRow, ExperimentResult, Table};
use crate::subjects::resp::admin::{Admin, Value};
use crate::subjects::server::{Peer, Server};
use crate::sys;
use crate::workloads::strings;

const SHORT_BYTES: usize = 100;
const LONG_BYTES: usize = 1_000;
/// Commands that are sent together.
const PIPELINE: u64 = 100;
/// The first number of a long value's key.
const LONG_FROM: u64 = 1 << 36;
/// Keys that writers overwrite. They stay.
const WRITTEN_KEYS: u64 = 1_000;
/// Time in which longer values must find room.
const PATIENCE_S: f64 = 5.0;

const SHARE: ClaimRow = ClaimRow::new(
    "memory of values of 1,000 B ÷ limit, after nine of ten values of 100 B were deleted",
    SOURCE,
    Bound::AtLeast(0.8),
);
const WAITS: ClaimRow =
    ClaimRow::new("writers' p99.9 while records move ÷ before", SOURCE, Bound::AtMost(1.5));

/// Runs the part and adds its claims and its table.
///
/// # Errors
/// The server fails, or answers wrongly.
pub(super) fn run(
    context: &Context,
    plan: &Plan,
    peer: &Peer,
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let mut table = Table {
        title: "Nine of ten short values deleted, longer ones put".into(),
        columns: ["short values", "long values", "share", "p99.9 before, ms", "p99.9 after, ms"]
            .map(String::from)
            .into(),
        ..Table::default()
    };
    let (mut shares, mut waits) = (Vec::new(), Vec::new());
    for _ in 0..plan.runs {
        let server = peer.start(&context.fresh_dir("refill")?, PATIENCE)?;
        let mut admin = server.admin()?;
        limit(&mut admin, plan, "noeviction")?;
        let short = put_until_full(&mut admin, 0, SHORT_BYTES)?;
        // Room for the writers, who put values of the same length.
        delete(&mut admin, short.saturating_sub(short / 50)..short, |_| true)?;
        let before = load(plan, &server)?;
        let gone = WRITTEN_KEYS..short;
        delete(&mut admin, gone, |key| !key.is_multiple_of(10))?;
        let after = load(plan, &server)?;
        let began_ns = sys::now_ns();
        let mut long = 0;
        while (sys::now_ns() - began_ns) as f64 / 1e9 < PATIENCE_S.min(plan.run_s) {
            let more = put_until_full(&mut admin, LONG_FROM + long, LONG_BYTES)?;
            long += more;
            if more == 0 {
                sys::sleep(std::time::Duration::from_millis(50));
            }
        }
        let each = match admin.call(&[b"MEMORY", b"USAGE", &strings::key(LONG_FROM)])? {
            Value::Integer(bytes) => bytes as f64,
            _ => 0.0,
        };
        let share = long as f64 * each / plan.limit_bytes() as f64;
        let (rest, moving) = (before.latencies.all().p999_ms(), after.latencies.all().p999_ms());
        let used = number(&server, &mut admin, "memory", "used_memory")?;
        context.note(format!(
            "refill: {share:.3} of the limit, {:.0} MB used; p99.9 {rest:.2} ms, then {moving:.2} ms",
            used / 1e6
        ));
        shares.push(share);
        waits.push(moving / rest);
        table.rows.push(vec![
            short.to_string(),
            long.to_string(),
            format!("{share:.3}"),
            format!("{rest:.3}"),
            format!("{moving:.3}"),
        ]);
    }
    result.parameter("refill_share_median", median(&shares));
    result.claims.push(SHARE.claim("").measured_runs(&shares));
    result.claims.push(WAITS.claim("").measured_runs(&waits));
    result.tables.push(table);
    Ok(())
}

/// Writers at a fixed rate, on keys that stay.
fn load(plan: &Plan, server: &Server) -> LabResult<LoadReport> {
    let pacing = Pacing::Open { rate_per_s: plan.rate_per_s, arrivals: Arrivals::Poisson };
    let load = LoadPlan {
        set_share: 1.0,
        pacing,
        connections: 20,
        ..plan.load(server.address, WRITTEN_KEYS, SHORT_BYTES)
    };
    resp::run(&load)
}

/// Puts keys from number `from` on until the server refuses. Returns how many it has.
fn put_until_full(admin: &mut Admin, from: u64, bytes: usize) -> LabResult<u64> {
    let mut count = 0;
    loop {
        let keys: Vec<Vec<u8>> =
            (from + count..from + count + PIPELINE).map(strings::key).collect();
        let value = vec![b'x'; bytes];
        let requests: Vec<Vec<&[u8]>> =
            keys.iter().map(|key| vec![&b"SET"[..], key, &value]).collect();
        let taken = admin.count_taken(&requests)?;
        count += taken;
        if taken < PIPELINE {
            return Ok(count);
        }
    }
}

/// Deletes the keys of some numbers.
fn delete(
    admin: &mut Admin,
    numbers: std::ops::Range<u64>,
    goes: impl Fn(u64) -> bool,
) -> LabResult<()> {
    let mut numbers = numbers.filter(|&number| goes(number)).peekable();
    while numbers.peek().is_some() {
        let keys: Vec<Vec<u8>> =
            numbers.by_ref().take(PIPELINE as usize).map(strings::key).collect();
        let mut request: Vec<&[u8]> = vec![b"DEL"];
        request.extend(keys.iter().map(Vec::as_slice));
        admin.call(&request)?;
    }
    Ok(())
}
