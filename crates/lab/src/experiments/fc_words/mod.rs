//! `fc-words`: the schemes on words of 4 bytes (SIGMOD 2011, §5.2, §5.3 and §5.6).
//!
//! | part | figures of the paper | how |
//! |---|---|---|
//! | `accesses` | Table 2 | instructions and cache lines of an access, by callgrind's model |
//! | `overhead` | 3, 4, 5 | in memory at full speed, all schemes, 200 MB |
//! | `large` | 5 | the same with 1.6 GB, more than a last-level cache holds |
//! | `sizes` | 6, 7 | 100 MB to 1.6 GB, rates in proportion |
//! | `pages` | 14 | memory pages of 4 KiB and 2 MiB |
//! | `reads` | — | half of the accesses read; the paper has writes only |
//! | `latency` | 8, 9 | ticks of 0.1 s, the writer on the disk at the paper's pace of 60 MB/s, recovery |
//! | `unpaced` | 8, 9 | the same with the writer as fast as the disk |

pub(crate) mod accesses;
mod latency;
mod overhead;

use serde::Serialize;

use crate::context::Context;
use crate::crash::arrays::check_schemes;
use crate::drivers::sweep::{Sweep, run as measure};
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::harness::Harness;
use crate::report::result::ExperimentResult;
use crate::subjects::arrays::{PROCESSES, further_layouts, refusals, schemes_with_copies};
use crate::workloads::zipf::{OBJECT_WORDS, ZipfAccesses};

/// Updates per second at which the paper states its ratios.
pub(crate) const RATE: u64 = 320_000;

/// The amount of work of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Objects of 8 KB.
    pub(crate) objects: usize,
    /// Objects of 8 KB in the large state.
    pub(crate) large_objects: usize,
    /// Objects of 8 KB of Figures 6 and 7.
    pub(crate) sizes: Vec<usize>,
    /// Updates per second.
    pub(crate) rates: Vec<u64>,
    /// Updates per second of the large state, and for pages of memory.
    pub(crate) few_rates: Vec<u64>,
    /// Measured periods at 320,000 updates per second.
    pub(crate) periods: usize,
    /// Ticks of a period.
    pub(crate) period_ticks: u64,
    /// Length of a tick with the disk, in ms.
    pub(crate) tick_ms: u64,
    /// Periods of a run with the disk.
    pub(crate) live_periods: u64,
    /// Accesses in memory.
    pub(crate) pool: usize,
    /// Words of the state whose accesses are counted.
    pub(crate) counted_words: usize,
    /// Schemes of which a process is killed.
    pub(crate) killed: Vec<&'static str>,
}

impl Plan {
    fn sweep(&self, rates: Vec<u64>) -> Sweep {
        Sweep { period_ticks: self.period_ticks, ..Sweep::paper(rates, RATE, self.periods) }
    }

    /// Seconds between two points of consistency.
    fn period_s(&self) -> f64 {
        self.period_ticks as f64 / 10.0
    }
}

/// Bytes of `objects` objects.
fn bytes(objects: usize) -> usize {
    objects * OBJECT_WORDS * 4
}

fn megabytes(objects: usize) -> String {
    let bytes = bytes(objects) as f64;
    if bytes >= 1e9 { format!("{:.1} GB", bytes / 1e9) } else { format!("{:.1} MB", bytes / 1e6) }
}

/// The experiment.
pub(crate) struct FcWords;

impl Experiment for FcWords {
    const ID: &'static str = "fc-words";
    const TITLE: &'static str = "State arrays of words: overhead and latency of the schemes";
    const PAPER: &'static str =
        "Cao et al., SIGMOD 2011, §5.2, §5.3, §5.6, Figures 3–9 and 14, Table 2";
    const PARTS: &'static [&'static str] =
        &["accesses", "overhead", "large", "sizes", "reads", "pages", "latency", "unpaced"];
    const PROCESSES: usize = PROCESSES;
    const EXACT_PART: Option<&'static str> = Some("accesses");
    type Plan = Plan;

    fn full() -> Plan {
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
            counted_words: 2_000_000,
            killed: [schemes_with_copies(), further_layouts()].concat(),
        }
    }

    fn quick() -> Plan {
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
            counted_words: 20_000,
            killed: vec!["ns", "hg"],
        }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        if let Some(runs) = asked.runs {
            plan.periods = runs.max(1);
        }
        if let Some(seconds) = asked.seconds {
            let period_s = (plan.period_ticks * plan.tick_ms) as f64 / 1e3;
            plan.live_periods = (seconds / period_s).ceil().max(1.0) as u64;
        }
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        let context = bench.context;
        result.parameter("object_bytes", OBJECT_WORDS * 4);
        result.parameter("state_bytes", bytes(plan.objects));
        result
            .parameter("state_per_last_level_cache", result.per_cache(bytes(plan.objects) as u64));
        result.parameter("large_state_bytes", bytes(plan.large_objects));
        result.parameter("zipf_exponent", 0.5);
        result.parameter("logs_actions", latency::drive(plan, latency::Speed::Paced).logs_actions);
        result.note(
            "Overhead is the mutator's CPU time beyond that of the baseline, which runs the same ticks \
             on arrays without checkpoints in turn with it. In memory, a capture is open all the time \
             and nobody contends for the cells, as in the paper, whose writer was off: for bacou and \
             bazz these are lower bounds (§5.3). Objects and words are numbered by popularity.",
        );
        refusals().into_iter().for_each(|refusal| result.note(refusal));
        check_schemes(context, &plan.killed, result)?;
        if context.wants("accesses") {
            result.in_part("accesses", |result| accesses::run(bench, plan, result))?;
        }
        overhead::run(context, plan, result)?;
        for pace in latency::Speed::ALL.into_iter().filter(|pace| context.wants(pace.part())) {
            result.in_part(pace.part(), |result| latency::run(context, plan, pace, result))?;
        }
        Ok(())
    }
}

/// The costs of schemes on one size of state, with writes only.
fn costs(
    context: &Context,
    plan: &Plan,
    objects: usize,
    schemes: &[&str],
    sweep: &Sweep,
) -> LabResult<Vec<crate::drivers::sweep::Costs>> {
    costs_of(context, plan, (objects, 0.0), schemes, sweep)
}

/// The costs of schemes on one size of state, with this share of reads among the accesses.
fn costs_of(
    context: &Context,
    plan: &Plan,
    (objects, read_share): (usize, f64),
    schemes: &[&str],
    sweep: &Sweep,
) -> LabResult<Vec<crate::drivers::sweep::Costs>> {
    let zipf = ZipfAccesses { read_share, ..ZipfAccesses::objects(objects, plan.pool, 1) };
    let pool = zipf.make()?;
    let of = |scheme: &&str| {
        let costs = measure(&pool, zipf.words(), scheme, sweep)?;
        context.saw_huge_pages(costs.huge_page_bytes);
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
