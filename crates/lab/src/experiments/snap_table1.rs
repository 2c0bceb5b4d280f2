//! `snap-table1`: Table I of ICDE 2018, measured.
//!
//! The mutator runs at full speed and images are taken as often as possible, of pages of 4 KB. The
//! paper's table has words. Here the words are ranks, and each pair of schemes that the paper ranks
//! differently is a claim on the order of the two.

use std::ops::RangeInclusive;

use serde::Serialize;
use stillpoint_state::{Content, registry};

use crate::context::Context;
use crate::drivers::ticks::{self, Drive, Images};
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::harness::Harness;
use crate::measure::outcome::Outcome;
use crate::measure::stats::median;
use crate::report::result::{Bound, ClaimRow, ExperimentResult, Paper, Table};
use crate::subjects::arrays::{PROCESSES, is_from_2011, refusals, schemes};
use crate::sys;
use crate::workloads::trace::{Trace, TraceLoad};
use crate::workloads::zipf::{PAGE_WORDS, ZipfAccesses};

const SOURCE: &str = "ICDE 2018, §II-C, Table I";
/// The source of the ranks, which the third finding of §III-B sums up.
const RANKS_SOURCE: &str = "ICDE 2018, §II-C, Table I, and §III-B, finding 3";

type Page = [u32; PAGE_WORDS];
const PAGE_BYTES: usize = PAGE_WORDS * 4;

/// The amount of work of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Pages of the smaller and of the larger state.
    pub(crate) pages: [usize; 2],
    /// Updates of a tick.
    pub(crate) updates: usize,
    /// Measured ticks of a run.
    pub(crate) ticks: u64,
    /// Accesses in memory.
    pub(crate) pool: usize,
}

/// A row of the paper's table.
struct Ranked {
    scheme: &'static str,
    /// Average latency: low, middle, high.
    latency: usize,
    /// Maximum throughput: low, middle, high.
    throughput: usize,
    /// Whether taking a snapshot takes longer for a larger state.
    grows: bool,
    is_full: bool,
    /// Memory ÷ state.
    memory: f64,
}

const RANKS: [&str; 3] = ["low", "middle", "high"];

const fn ranked(
    scheme: &'static str,
    (latency, throughput): (usize, usize),
    (grows, is_full, memory): (bool, bool, f64),
) -> Ranked {
    Ranked { scheme, latency, throughput, grows, is_full, memory }
}

/// Table I.
const PAPER: [Ranked; 7] = [
    ranked("ns", (0, 0), (true, true, 2.0)),
    ranked("bacou", (2, 1), (true, true, 2.0)),
    ranked("fork", (0, 2), (true, true, 2.0)),
    ranked("bazz", (1, 1), (true, true, 2.0)),
    ranked("ipp", (2, 0), (false, false, 3.0)),
    ranked("hg", (0, 2), (false, false, 2.0)),
    ranked("pb", (0, 2), (false, true, 2.0)),
];

/// A scheme at both sizes.
struct Measured {
    scheme: &'static str,
    outcomes: Vec<Outcome>,
    /// Share of the larger state's pages that were written while the last image was taken.
    dirty_share: f64,
}

impl Measured {
    fn last(&self) -> &Outcome {
        self.outcomes.last().expect("two sizes")
    }

    fn median_tick_ms(&self) -> f64 {
        let ticks = &self.last().ticks;
        median(&ticks.iter().map(|tick| tick.latency_ns() as f64 / 1e6).collect::<Vec<_>>())
    }

    /// The share of the baseline's speed that is left.
    fn throughput_share(&self) -> f64 {
        let ticks = &self.last().ticks;
        let sum = |of: &dyn Fn(&crate::measure::outcome::Tick) -> u64| {
            ticks.iter().map(of).sum::<u64>() as f64
        };
        sum(&|tick| tick.raw_ns) / sum(&|tick| tick.latency_ns())
    }

    fn updates_per_s(&self, updates: usize) -> f64 {
        updates as f64 * 1e3 / self.last().all().mean_ms()
    }

    /// r: updates while one image is taken, per page of the state.
    fn update_rate(&self, plan: &Plan) -> f64 {
        let image_s = median(&self.last().image_s);
        // Each tick runs on the baseline, too.
        let tick = |tick: &crate::measure::outcome::Tick| tick.latency_ns() + tick.raw_ns;
        let ticks = &self.last().ticks;
        let tick_s = ticks.iter().map(tick).sum::<u64>() as f64 / 1e9 / ticks.len() as f64;
        image_s / tick_s * plan.updates as f64 / plan.pages[1] as f64
    }

    fn boundary_us(outcome: &Outcome) -> f64 {
        median(&outcome.all_boundaries_us())
    }

    /// The tick at which a capture begins, larger ÷ smaller state.
    fn growth(&self) -> f64 {
        Self::boundary_us(self.last()) / Self::boundary_us(&self.outcomes[0])
    }

    fn memory(&self) -> f64 {
        self.last().held_bytes as f64 / self.last().state_bytes as f64
    }
}

/// The experiment.
pub(crate) struct SnapTable1;

impl Experiment for SnapTable1 {
    const ID: &'static str = "snap-table1";
    const TITLE: &'static str = "State arrays of pages: throughput, latency, memory, growth";
    const PAPER: &'static str = "Li et al., ICDE 2018, §II-C, Table I";
    const PROCESSES: usize = PROCESSES;
    type Plan = Plan;

    fn full() -> Plan {
        let mib = (1 << 20) / PAGE_BYTES;
        Plan { pages: [128 * mib, 512 * mib], updates: 16_000, ticks: 1_500, pool: 8_000_000 }
    }

    fn quick() -> Plan {
        Plan { pages: [100, 400], updates: 200, ticks: 400, pool: 20_000 }
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        if let Some(seconds) = asked.seconds {
            // A tick of full length, together with the baseline's, takes some milliseconds.
            plan.ticks = (seconds * 250.0).ceil().max(10.0) as u64;
        }
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        let context = bench.context;
        result.parameter("page_bytes", PAGE_BYTES);
        result.parameter("zipf_exponent", 2.0);
        result.parameter("logs_actions", drive(plan).logs_actions);
        let per_cache = plan.pages.map(|pages| result.per_cache((pages * PAGE_BYTES) as u64));
        result.parameter("state_per_last_level_cache", per_cache.to_vec());
        result.note(
            "The mutator runs at full speed, tick by tick in turn with the baseline, and images are taken as \
             often as possible. The paper ranks the average latency of naive snapshot as low and its \
             throughput as low, so its average leaves the peaks out: the claims here take the median tick.",
        );
        refusals().into_iter().for_each(|refusal| result.note(refusal));
        let mut all = Vec::new();
        for scheme in schemes() {
            all.push(measure(context, plan, scheme)?);
        }
        result.tables.push(table(&all, plan));
        orders(&all, result);
        fork_outperforms(&all, result);
        amounts(&all, result);
        fork_holds_what_is_dirty(&all, result);
        Ok(())
    }
}

fn drive(plan: &Plan) -> Drive {
    Drive {
        ticks: plan.ticks,
        tick: None,
        images: Images::EveryTicks(1),
        logs_actions: true,
        ..Drive::paper(1)
    }
}

fn measure(context: &Context, plan: &Plan, scheme: &'static str) -> LabResult<Measured> {
    let (mut outcomes, mut dirty_share) = (Vec::new(), f64::NAN);
    for pages in plan.pages {
        let zipf = ZipfAccesses::pages(pages, plan.pool, 0.0, 1);
        let trace = Trace::equal(zipf.make()?, plan.updates);
        let load = TraceLoad::<Page>::new(trace.clone(), zipf.words());
        let dir = context.fresh_dir(scheme)?;
        let outcome = ticks::run(&load, scheme, &drive(plan), &dir)?;
        sys::remove_dir_all(&dir)?;
        context.saw_huge_pages(outcome.huge_page_bytes);
        let ticks = ticks_of_last_image(&outcome);
        dirty_share = ticks.map_or(f64::NAN, |ticks| trace.dirty_share(ticks, pages, PAGE_WORDS));
        outcomes.push(outcome);
    }
    let measured = Measured { scheme, outcomes, dirty_share };
    context.note(format!(
        "{scheme}: {:.0} updates/s, {:.3} of the baseline's; median tick {:.3} ms; {} images",
        measured.updates_per_s(plan.updates),
        measured.throughput_share(),
        measured.median_tick_ms(),
        measured.last().all().captures(),
    ));
    Ok(measured)
}

/// The numbers of the ticks that ran while the last image was taken.
fn ticks_of_last_image(outcome: &Outcome) -> Option<RangeInclusive<u64>> {
    let begins = outcome.ticks.iter().rposition(|tick| tick.begins_capture)?;
    let during = outcome.ticks[begins + 1..].iter().take_while(|tick| tick.is_captured).count();
    // The log keeps every tick, so the recovered one is the last.
    let first = outcome.recovery?.tick + 1 - outcome.ticks.len() as u64;
    let next = first + begins as u64 + 1;
    Some(next..=next + during as u64 - 1)
}

fn table(all: &[Measured], plan: &Plan) -> Table {
    let columns = [
        "scheme",
        "median tick, ms",
        "mean tick, ms",
        "worst tick, ms",
        "boundary, µs",
        "boundary, larger ÷ smaller state",
        "updates/s",
        "÷ baseline",
        "images",
        "writer and copier CPU of an image, s",
        "r",
        "dirty share of an image",
        "full images",
        "memory ÷ state",
    ];
    let row = |it: &Measured| {
        let outcome = it.last();
        let content = registry::REGISTRY.find(it.scheme).map(|row| row.content);
        vec![
            it.scheme.to_owned(),
            format!("{:.3}", it.median_tick_ms()),
            format!("{:.3}", outcome.all().mean_ms()),
            format!("{:.3}", outcome.all().max_ms()),
            format!("{:.2}", Measured::boundary_us(outcome)),
            format!("{:.2}", it.growth()),
            format!("{:.0}", it.updates_per_s(plan.updates)),
            format!("{:.3}", it.throughput_share()),
            outcome.all().captures().to_string(),
            format!("{:.3}", outcome.writer_cpu_s / outcome.image_s.len() as f64),
            format!("{:.2}", it.update_rate(plan)),
            format!("{:.3}", it.dirty_share),
            (if content.is_ok_and(|it| it == Content::Full) { "yes" } else { "no" }).to_owned(),
            format!("{:.2}", it.memory()),
        ]
    };
    Table {
        title: "Table I, measured".into(),
        columns: columns.map(String::from).to_vec(),
        rows: all.iter().map(row).collect(),
        ..Table::default()
    }
}

fn find<'a>(all: &'a [Measured], ranked: &Ranked) -> Option<&'a Measured> {
    all.iter().find(|it| it.scheme == ranked.scheme)
}

/// The paper's ranks: every pair of schemes that it ranks differently.
fn orders(all: &[Measured], result: &mut ExperimentResult) {
    type Column = (&'static str, fn(&Ranked) -> usize, fn(&Measured) -> f64);
    let columns: [Column; 2] = [
        ("maximum throughput", |it| it.throughput, Measured::throughput_share),
        ("median tick", |it| it.latency, Measured::median_tick_ms),
    ];
    for (metric, rank, figure) in columns {
        for above in &PAPER {
            for below in PAPER.iter().filter(|below| rank(below) < rank(above)) {
                let Some((one, other)) = find(all, above).zip(find(all, below)) else { continue };
                let words = format!("{} and {}", RANKS[rank(above)], RANKS[rank(below)]);
                let row = ClaimRow::new(metric, RANKS_SOURCE, Bound::AtLeast(1.0));
                let claim = row.claim_of((above.scheme, below.scheme), "").paper(words);
                result.claims.push(claim.measured(figure(one) / figure(other)));
            }
        }
    }
}

/// The scheme that outperforms all older ones in the paper's first finding.
const FORK: &str = "fork";
const OUTPERFORMED: ClaimRow =
    ClaimRow::new("maximum throughput", "ICDE 2018, §III-B, finding 1", Bound::AtLeast(1.0))
        .paper(Paper::words("fork outperforms NS, COU, ZZ and PP in latency and throughput"));

/// The paper's first finding, as to throughput. `snap-fig3` has latency.
fn fork_outperforms(all: &[Measured], result: &mut ExperimentResult) {
    let share =
        |scheme: &str| all.iter().find(|it| it.scheme == scheme).map(Measured::throughput_share);
    for scheme in schemes().into_iter().filter(|name| is_from_2011(name)) {
        let ratio = share(FORK).zip(share(scheme)).map(|(fork, other)| fork / other);
        let claim = OUTPERFORMED.claim_of((FORK, scheme), "");
        result.claims.push(claim.measured(ratio.unwrap_or(f64::NAN)));
    }
}

/// The claim on memory. The paper's figure gives its bound.
const MEMORY: ClaimRow = ClaimRow::new("memory ÷ state", SOURCE, Bound::AtMost(1.0));
const GROWTH: &str = "tick boundary, larger ÷ smaller state";
const GROWS: ClaimRow =
    ClaimRow::new(GROWTH, SOURCE, Bound::AtLeast(1.5)).paper(Paper::words("O(n)"));
const IS_CONSTANT: ClaimRow =
    ClaimRow::new(GROWTH, SOURCE, Bound::AtMost(1.2)).paper(Paper::words("O(1)"));
const FULL: ClaimRow = ClaimRow::new("full snapshot as in the paper", SOURCE, Bound::AtLeast(1.0));
const FORK_HOLDS: ClaimRow = ClaimRow::new(
    "memory: fork, deviation from 1 + the share of the pages written during an image",
    "Stillpoint",
    Bound::AtMost(0.05),
)
.unit("of it");

/// Memory, growth, and whether images are full.
fn amounts(all: &[Measured], result: &mut ExperimentResult) {
    for (row, it) in PAPER.iter().filter_map(|row| Some((row, find(all, row)?))) {
        let memory = ClaimRow { bound: Bound::AtMost(1.1 * row.memory), ..MEMORY };
        let claim = memory.claim_of((row.scheme, ""), "");
        let words = format!("{} ×", row.memory);
        result.claims.push(claim.paper_ratio(words, row.memory).measured(it.memory()));

        let growth = if row.grows { GROWS } else { IS_CONSTANT };
        result.claims.push(growth.claim_of((row.scheme, ""), "").measured(it.growth()));

        let content = registry::REGISTRY.find(row.scheme).map(|row| row.content);
        let is_alike = content.is_ok_and(|it| (it == Content::Full) == row.is_full);
        let full = FULL.paper(Paper::words(if row.is_full { "yes" } else { "no" }));
        let claim = full.claim_of((row.scheme, ""), "");
        result.claims.push(claim.measured(f64::from(u8::from(is_alike))));
    }
}

/// Checks that fork holds only the state and copies of the pages that were written while the image
/// was taken.
fn fork_holds_what_is_dirty(all: &[Measured], result: &mut ExperimentResult) {
    let Some(fork) = all.iter().find(|it| it.scheme == FORK) else { return };
    let wanted = 1.0 + fork.dirty_share;
    result.note(format!(
        "fork: {:.3} of the pages were written while the last image was taken, and it held {:.3} × the state.",
        fork.dirty_share,
        fork.memory(),
    ));
    result.claims.push(FORK_HOLDS.claim("").measured((fork.memory() / wanted - 1.0).abs()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::run_plan;
    use crate::measure::outcome::{Recovery, Tick};
    use crate::subjects;

    #[test]
    fn the_ticks_of_the_last_image_are_those_behind_its_point_of_consistency() {
        let tick =
            |begins_capture, is_captured| Tick { begins_capture, is_captured, ..Tick::default() };
        let ticks = vec![
            tick(true, false),
            tick(false, true),
            tick(true, false),
            tick(false, true),
            tick(false, true),
            tick(false, false),
        ];
        let recovery = Some(Recovery { tick: 105, ..Recovery::default() });
        let mut outcome = Outcome {
            scheme: "fork".into(),
            ticks,
            image_s: Vec::new(),
            writer_cpu_s: 0.0,
            state_bytes: 1,
            held_bytes: 1,
            huge_page_bytes: 0,
            further: Vec::new(),
            recovery,
        };
        assert_eq!(ticks_of_last_image(&outcome), Some(103..=104));
        outcome.ticks.iter_mut().for_each(|tick| tick.begins_capture = false);
        assert_eq!(ticks_of_last_image(&outcome), None);
    }

    #[test]
    fn the_quick_mode_has_a_figure_for_every_cell_of_the_table() -> LabResult<()> {
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let dir = tempfile::tempdir().map_err(|e| crate::LabError::process("tempdir", e))?;
        let context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        let open = &subjects::stillpoint::open;
        let bench = Harness { context: &context, open, children: false };
        let result = run_plan::<SnapTable1>(&bench, &SnapTable1::quick())?;
        assert_eq!(result.tables[0].rows.len(), schemes().len());
        // 12 + 4 pairs of throughput, 4 + 2 + 8 of latency, and three columns of seven rows.
        // Four schemes are older than fork.
        assert_eq!(result.claims.len(), 16 + 14 + 4 + 21 + 1);
        // On a loaded machine such a short run may end before a capture begins.
        let unmeasured = result.claims.iter().filter(|claim| claim.measured.is_none());
        let needs_capture = |it: &str| it.contains("fork") || it.contains("tick boundary");
        assert!(unmeasured.into_iter().all(|it| needs_capture(&it.claim)), "{:#?}", result.claims);
        let full = result.claims.iter().filter(|claim| claim.claim.contains("full snapshot"));
        assert!(full.clone().count() == 7 && full.into_iter().all(|claim| claim.met == Some(true)));
        Ok(())
    }
}
