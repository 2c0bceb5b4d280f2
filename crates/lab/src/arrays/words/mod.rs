//! `fc-words`: the schemes on words of 4 bytes (SIGMOD 2011, §5.2, §5.3 and §5.6).
//!
//! | part | figures of the paper | how |
//! |---|---|---|
//! | `overhead` | 3, 4, 5 and Table 2 | in memory at full speed, all schemes, 200 MB |
//! | `large` | 5 | the same with 1.6 GB, more than a last-level cache holds |
//! | `sizes` | 6, 7 | 100 MB to 1.6 GB, rates in proportion |
//! | `pages` | 14 | memory pages of 4 KiB and 2 MiB |
//! | `latency` | 8, 9 | ticks of 0.1 s, the writer on the disk at the paper's pace, recovery |

mod latency;
mod overhead;

use serde_json::json;

use super::killed::check_schemes;
use super::memory::{Sweep, run as measure};
use super::zipf::{OBJECT_WORDS, ZipfAccesses};
use crate::context::Context;
use crate::error::LabResult;
use crate::result::ExperimentResult;
use crate::sys;

/// The registered name.
pub const ID: &str = "fc-words";
/// The headline.
pub const TITLE: &str = "State arrays of words: overhead and latency of the schemes";
/// Where the claims come from.
pub const PAPER: &str = "Cao et al., SIGMOD 2011, §5.2, §5.3, §5.6, Figures 3–9 and 14, Table 2";
/// Parts that can be run alone.
pub const PARTS: &[&str] = &["overhead", "large", "sizes", "pages", "latency"];

/// The schemes of Figure 5, the best layout of each, and those of ICDE 2018.
pub(crate) const SCHEMES: [&str; 6] = ["ns", "bacou", "bazz", "ipp", "hg", "pb"];
/// The layouts of Figures 3 and 4.
const VARIANTS: [&str; 5] = ["cou", "nzz", "izz", "pzz", "npp"];
/// The rate of the paper's ratios.
pub(crate) const RATE: u64 = 320_000;

/// How much is done.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Objects of 8 KB.
    pub objects: usize,
    /// Objects of 8 KB in the large state.
    pub large_objects: usize,
    /// Objects of 8 KB of Figures 6 and 7.
    pub sizes: Vec<usize>,
    /// Updates per second.
    pub rates: Vec<u64>,
    /// Updates per second of the large state, and for pages of memory.
    pub few_rates: Vec<u64>,
    /// Measured periods at 320,000 updates per second.
    pub periods: usize,
    /// Ticks of a period.
    pub period_ticks: u64,
    /// Length of a tick with the disk, in ms.
    pub tick_ms: u64,
    /// Periods of a run with the disk.
    pub live_periods: u64,
    /// Accesses in memory.
    pub pool: usize,
    /// Schemes of which a process is killed.
    pub killed: Vec<&'static str>,
}

impl Plan {
    /// The paper's sizes and rates.
    pub fn full() -> Plan {
        Plan {
            objects: 25_000,
            large_objects: 200_000,
            sizes: vec![12_500, 25_000, 50_000, 100_000, 200_000],
            rates: (0..=10).map(|doublings| 10_000 << doublings).collect(),
            few_rates: vec![40_000, RATE, 1_280_000, 5_120_000],
            periods: 5,
            period_ticks: 40,
            tick_ms: 100,
            live_periods: 5,
            pool: 48_000_000,
            killed: [&SCHEMES[..], &VARIANTS[..]].concat(),
        }
    }

    /// Seconds in all.
    pub fn quick() -> Plan {
        Plan {
            objects: 60,
            large_objects: 200,
            sizes: vec![30, 60],
            rates: vec![10_000, RATE],
            few_rates: vec![RATE],
            periods: 1,
            period_ticks: 4,
            tick_ms: 10,
            live_periods: 2,
            pool: 200_000,
            killed: vec!["ns", "hg"],
        }
    }

    /// The context's mode, with its number of periods and its length of a run.
    pub fn of(context: &Context) -> Plan {
        let mut plan = if context.quick { Plan::quick() } else { Plan::full() };
        if let Some(runs) = context.runs {
            plan.periods = runs.max(1);
        }
        if let Some(seconds) = context.seconds {
            let period_s = (plan.period_ticks * plan.tick_ms) as f64 / 1e3;
            plan.live_periods = (seconds / period_s).ceil().max(1.0) as u64;
        }
        plan
    }

    fn sweep(&self, rates: Vec<u64>) -> Sweep {
        Sweep { period_ticks: self.period_ticks, ..Sweep::paper(rates, RATE, self.periods) }
    }

    /// Seconds between two points of consistency.
    fn period_s(&self) -> f64 {
        self.period_ticks as f64 / 10.0
    }
}

/// Bytes of so many objects.
fn bytes(objects: usize) -> usize {
    objects * OBJECT_WORDS * 4
}

fn megabytes(objects: usize) -> String {
    let bytes = bytes(objects) as f64;
    if bytes >= 1e9 { format!("{:.1} GB", bytes / 1e9) } else { format!("{:.1} MB", bytes / 1e6) }
}

/// Runs the experiment.
///
/// # Errors
/// When a scheme, the memory or the disk fails, or a scheme's image is not what it should be.
pub fn run(context: &Context, plan: &Plan) -> LabResult<ExperimentResult> {
    let mut result = context.result(ID, TITLE, PAPER);
    let parameters = json!({
        "objects": plan.objects,
        "object_bytes": OBJECT_WORDS * 4,
        "state_bytes": bytes(plan.objects),
        "large_state_bytes": bytes(plan.large_objects),
        "zipf_exponent": 0.5,
        "rates_per_s": plan.rates,
        "period_ticks": plan.period_ticks,
        "periods": plan.periods,
        "live_tick_ms": plan.tick_ms,
        "live_periods": plan.live_periods,
        "logs_actions": latency::drive(plan).logs_actions,
        "trace_accesses": plan.pool,
    });
    if let serde_json::Value::Object(fields) = parameters {
        result.parameters.extend(fields);
    }
    result.note(
        "Overhead is the mutator's CPU time beyond that of the raw loop, which runs the same ticks \
         on arrays without checkpoints in turn with it. In memory, a capture is open all the time \
         and nobody contends for the cells, as in the paper, whose writer was off: for bacou and \
         bazz these are lower bounds (§5.3). Objects and words are numbered by popularity.",
    );
    check_schemes(context, &plan.killed, &mut result)?;
    overhead::run(context, plan, &mut result)?;
    if context.wants("latency") {
        result.in_part("latency", |result| latency::run(context, plan, result))?;
    }
    sys::remove_dir_all(&context.work)?;
    Ok(result)
}

/// The costs of schemes on one size of state.
fn costs(
    context: &Context,
    plan: &Plan,
    objects: usize,
    schemes: &[&str],
    sweep: &Sweep,
) -> LabResult<Vec<super::memory::Costs>> {
    let zipf = ZipfAccesses::objects(objects, plan.pool, 1);
    let pool = zipf.make()?;
    let of = |scheme: &&str| {
        let costs = measure(&pool, zipf.words(), scheme, sweep)?;
        let said: Vec<String> =
            costs.points.iter().map(|cost| format!("{:.2}", cost.overhead())).collect();
        let size = megabytes(objects);
        context.note(format!("{scheme}, {size}: overhead per checkpoint, ms: {}", said.join(" ")));
        Ok(costs)
    };
    schemes.iter().map(of).collect()
}

#[cfg(test)]
mod tests;
