//! A full cache: `allkeys-lru`, and reads and writes by a Zipf law over more keys than there is room for.
//!
//! Hits and misses are the servers' own counts, as differences over the measured time. The load before that time
//! has other random numbers. With the same ones a slow server has all the keys already that the measured load
//! sets, and evicts nothing.

use std::time::Duration;

use super::super::peers_redis::PATIENCE;
use super::{Plan, SOURCE, limit, number};
use crate::context::Context;
use crate::drivers::resp::{self, LoadPlan, Until};
use crate::error::LabResult;
use crate::measure::stats::median;
use crate::report::result::{Bound, ClaimRow, ExperimentResult, Table};
use crate::subjects::server::{Peer, Server};
use crate::workloads::random::KeyLaw;

const VALUE_BYTES: usize = 100;
/// About the bytes that a key takes, by which the number of keys is chosen.
const KEY_BYTES: u64 = 200;

const HITS: ClaimRow = ClaimRow::new("hit rate of a full cache", SOURCE, Bound::AtLeast(0.97))
    .between("ours", "Redis's");
const RATE: ClaimRow = ClaimRow::new("commands/s of a full cache", SOURCE, Bound::AtLeast(1.2))
    .between("ours", "Redis's");
const PIPELINED_MIN: Bound = Bound::AtLeast(2.0);
const REFUSED: ClaimRow =
    ClaimRow::new("error replies of our full cache", SOURCE, Bound::AtMost(0.0)).unit("");

/// Distance of the seeds of the load before the measured time.
const SETTLING: u64 = 1 << 16;

/// What a load has shown.
struct Shown {
    rate: f64,
    hit_rate: f64,
    errors: f64,
    evicted: f64,
}

/// Runs the part and adds its claims and its table.
///
/// # Errors
/// A server fails, or breaks a connection.
pub(super) fn run(
    context: &Context,
    plan: &Plan,
    peers: [&Peer; 2],
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let mut table = Table {
        title: "A full cache under a Zipf law".into(),
        columns: ["pipeline", "server", "commands/s", "hit rate", "evicted", "errors"]
            .map(String::from)
            .into(),
        ..Table::default()
    };
    let mut refused = 0.0;
    for (at, pipeline) in plan.pipelines.into_iter().enumerate() {
        let (mut rates, mut hits) = (Vec::new(), Vec::new());
        for run in 0..plan.runs {
            let mut shown = Vec::new();
            for peer in peers {
                let server = peer.start(&context.fresh_dir("cache")?, PATIENCE)?;
                let of = measure(plan, &server, pipeline, run as u64)?;
                let name = if shown.is_empty() { "ours" } else { "Redis" };
                context.note(format!(
                    "cache: pipeline {pipeline}: {name}: {:.0}/s, hit rate {:.4}, {} errors",
                    of.rate, of.hit_rate, of.errors
                ));
                table.rows.push(vec![
                    pipeline.to_string(),
                    name.into(),
                    format!("{:.0}", of.rate),
                    format!("{:.4}", of.hit_rate),
                    format!("{:.0}", of.evicted),
                    format!("{:.0}", of.errors),
                ]);
                shown.push(of);
            }
            rates.push(shown[0].rate / shown[1].rate);
            hits.push(shown[0].hit_rate / shown[1].hit_rate);
            refused += shown[0].errors;
        }
        let bound = if at == 0 { RATE.bound } else { PIPELINED_MIN };
        let place = format!("pipeline {pipeline}");
        result.claims.push(ClaimRow { bound, ..RATE }.claim(&place).measured_runs(&rates));
        result.claims.push(HITS.claim(&place).measured_runs(&hits));
        result.parameter(&format!("cache_rate_{pipeline}_median"), median(&rates));
    }
    result.claims.push(REFUSED.claim("").measured(refused));
    result.tables.push(table);
    Ok(())
}

/// Fills the cache and measures a load.
fn measure(plan: &Plan, server: &Server, pipeline: usize, seed: u64) -> LabResult<Shown> {
    let mut admin = server.admin()?;
    limit(&mut admin, plan, "allkeys-lru")?;
    let keys = plan.limit_bytes() / KEY_BYTES * plan.keys_per_room;
    let load = LoadPlan {
        law: KeyLaw::ScrambledZipf,
        set_share: plan.set_share,
        pipeline,
        seed: seed + 1,
        ..plan.load(server.address, keys, VALUE_BYTES)
    };
    let fill = LoadPlan {
        keys: keys / plan.keys_per_room,
        law: KeyLaw::Uniform,
        pipeline: 50,
        until: Until::EveryKeyWritten,
        ..load.clone()
    };
    let filled = resp::run(&fill)?;
    let settle = Duration::from_secs_f64(plan.settle_s);
    let settling =
        LoadPlan { until: Until::Elapsed(settle), seed: load.seed + SETTLING, ..load.clone() };
    let settled = resp::run(&settling)?;
    let mut counts = || -> LabResult<[f64; 3]> {
        let mut of = |name| number(server, &mut admin, "stats", name);
        Ok([of("keyspace_hits")?, of("keyspace_misses")?, of("evicted_keys")?])
    };
    let before = counts()?;
    let report = resp::run(&load)?;
    let after = counts()?;
    let [hits, misses, evicted] = [0, 1, 2].map(|at| after[at] - before[at]);
    let errors = filled.errors + settled.errors + report.errors;
    Ok(Shown {
        rate: report.rate(),
        hit_rate: hits / (hits + misses),
        errors: errors as f64,
        evicted,
    })
}
