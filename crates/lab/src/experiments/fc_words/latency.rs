//! Figures 8 and 9, and the bounds of a live state: ticks of 0.1 s, the writer on the disk.

use std::time::Duration;

use stillpoint_state::Pace;

use super::{Plan, RATE, bytes, megabytes};
use crate::context::Context;
use crate::drivers::ticks::{self, Drive, Images};
use crate::error::LabResult;
use crate::measure::outcome::{Outcome, Ticks};
use crate::measure::stats::median;
use crate::report::draw::Drawing;
use crate::report::figure::axis::grouped;
use crate::report::result::{Bound, ClaimRow, ExperimentResult, Paper, Table};
use crate::subjects::arrays::{has_constant_tick, is_from_2011, schemes_with_copies};
use crate::sys;
use crate::workloads::trace::{Trace, TraceLoad};
use crate::workloads::zipf::ZipfAccesses;

/// Updates per second of Figure 9.
const FAST: u64 = 1_280_000;

/// The paper's disk wrote 60 MB/s (§5.1).
const PAPER_BYTES_PER_S: u64 = 60_000_000;
const FIGURE_8: &str = "SIGMOD 2011, §5.3, Figure 8";
const FIGURE_9: &str = "SIGMOD 2011, §5.3, Figure 9";

/// How fast the writer writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speed {
    /// At the pace of the paper's disk.
    Paced,
    /// As fast as the disk of this machine.
    Unpaced,
}

impl Speed {
    pub(super) const ALL: [Speed; 2] = [Speed::Paced, Speed::Unpaced];

    /// The part of the experiment.
    pub(super) fn part(self) -> &'static str {
        match self {
            Speed::Paced => "latency",
            Speed::Unpaced => "unpaced",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Speed::Paced => "60 MB/s",
            Speed::Unpaced => "unpaced",
        }
    }
}

const fn peak(subject: &'static str, words: &'static str, ratio: f64) -> ClaimRow {
    ClaimRow::new("worst tick", FIGURE_8, Bound::AtLeast(1.0))
        .between(subject, "ipp")
        .paper(Paper::ratio(words, ratio))
        .goal(Bound::AtLeast(ratio))
}

/// The peaks that §5.3 names at 320,000 updates per second, in ms.
const PAPER_PEAKS_MS: [(&str, f64); 4] =
    [("ns", 29.0), ("bacou", 6.0), ("bazz", 4.0), ("ipp", 0.8)];

/// The values that §5.3 names at 1,280,000 updates per second, in ms. Those of ns are "very little"
/// above Figure 8's.
const PAPER_FAST_MS: [(&str, f64); 2] = [("ns", 29.0), ("bazz", 10.0)];

/// The claims on these peaks.
const PEAKS: [ClaimRow; 3] = [
    peak("ns", "29 ÷ 0.8 ms", 36.0),
    peak("bacou", "6 ÷ 0.8 ms", 7.5),
    peak("bazz", "4 ÷ 0.8 ms", 5.0),
];

const NS_IS_ALIKE: ClaimRow =
    ClaimRow::new("worst tick, 1,280,000 ÷ 320,000 updates/s", FIGURE_9, Bound::AtMost(1.3))
        .between("ns", "")
        .paper(Paper::words("changes very little at the higher rate"));
const BAZZ_IS_FLAT: ClaimRow =
    ClaimRow::new("worst tick ÷ mean tick", FIGURE_9, Bound::AtMost(1.5))
        .between("bazz", "")
        .paper(Paper::words("nearly constant overhead of 10 ms"));
/// The first ticks after a point of consistency of bacou, and the last ticks of the period.
const BACOU_FADES: ClaimRow =
    ClaimRow::new("first ticks ÷ last ticks of a period", FIGURE_9, Bound::AtLeast(1.1))
        .between("bacou", "")
        .paper(Paper::words("the overhead gradually decreases during the checkpoint"));

const FLAT: ClaimRow = ClaimRow::new(
    "worst tick ÷ mean tick",
    "SIGMOD 2011, §5.3, Figures 8 and 9",
    Bound::AtMost(1.5),
)
.paper(Paper::words("nearly constant, 0.8 ms at 320,000 updates/s"));
const OF_CAPTURE: ClaimRow =
    ClaimRow::new("worst tick of a capture", "Stillpoint", Bound::AtMost(1.5));
const BEST: ClaimRow =
    ClaimRow::new("overhead of the best scheme, of the tick", "Stillpoint", Bound::AtMost(0.5))
        .unit("%");

/// Runs the part.
pub(super) fn run(
    context: &Context,
    plan: &Plan,
    speed: Speed,
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let zipf = ZipfAccesses::objects(plan.objects, plan.pool, 1);
    let pool = zipf.make()?;
    let mut ns_worst_ms = Vec::new();
    for (rate, figure) in [(RATE, "Figure 8"), (FAST, "Figure 9")] {
        let per_tick = (rate * plan.tick_ms / 1_000) as usize;
        let trace = Trace::equal(pool.clone(), per_tick);
        let dirty_share = trace.dirty_share(1..=plan.period_ticks, zipf.words(), 1);
        let load = TraceLoad::<u32>::new(trace, zipf.words());
        let mut outcomes = Vec::new();
        for scheme in schemes_with_copies() {
            let dir = context.fresh_dir(scheme)?;
            let outcome = ticks::run(&load, scheme, &drive(plan, speed), &dir)?;
            sys::remove_dir_all(&dir)?;
            context.saw_huge_pages(outcome.huge_page_bytes);
            context.note(format!("{rate} updates/s: {}", said(&outcome)));
            outcomes.push(outcome);
        }
        draw(&outcomes, rate, (figure, speed), result);
        result.tables.push(table(&outcomes, plan, (rate, dirty_share), speed));
        claims(&outcomes, plan, (rate, speed), result);
        ns_worst_ms
            .push(of(&outcomes, "ns").map_or(f64::NAN, |it| median(&it.of_periods(Ticks::max_ms))));
        if rate == FAST {
            of_figure_9(&outcomes, &ns_worst_ms, speed, result);
        }
    }
    Ok(())
}

/// A run with the paper's period, with or without a pace. The pace is that of the paper's disk, or
/// higher if an image would not be done within a period.
pub(super) fn drive(plan: &Plan, speed: Speed) -> Drive {
    let period_s = (plan.period_ticks * plan.tick_ms) as f64 / 1e3;
    let least = bytes(plan.objects) as f64 / (0.8 * period_s);
    Drive {
        ticks: plan.period_ticks * plan.live_periods,
        tick: Some(Duration::from_millis(plan.tick_ms)),
        images: Images::EveryTicks(plan.period_ticks),
        pace: match speed {
            Speed::Paced => Pace::BytesPerSecond(PAPER_BYTES_PER_S.max(least as u64)),
            Speed::Unpaced => Pace::Unpaced,
        },
        ..Drive::paper(plan.live_periods)
    }
}

fn said(outcome: &Outcome) -> String {
    let all = outcome.all();
    format!(
        "{}: mean {:.3} ms, max {:.3} ms (raw {:.3}, {:.3}), boundary {:.1} us, image {:.2} s",
        outcome.scheme,
        all.mean_ms(),
        all.max_ms(),
        all.raw_mean_ms(),
        all.raw_max_ms(),
        median(&all.boundaries_us()),
        median(&outcome.image_s),
    )
}

fn draw(
    outcomes: &[Outcome],
    rate: u64,
    (figure, speed): (&str, Speed),
    result: &mut ExperimentResult,
) {
    let title = format!("Latency of each tick at {} updates/s, {}", grouped(rate), speed.words());
    let caption =
        "Step and end of each tick of 0.1 s, with the writer on the disk and the action log off.";
    let mut drawing = Drawing::new(result, &title, &format!(", {figure}, {}", speed.words()))
        .axes(caption, ("time", "s"), ("latency", "ms"))
        .log_y();
    for outcome in outcomes {
        drawing.curve(&outcome.scheme, outcome.latency_points());
        let of_paper = if rate == RATE { &PAPER_PEAKS_MS[..] } else { &PAPER_FAST_MS };
        let said = of_paper.iter().find(|(scheme, _)| *scheme == outcome.scheme);
        if let Some((scheme, ms)) = said {
            let last_s = outcome.ticks.last().map_or(f64::NAN, |tick| tick.at_s);
            drawing.paper(scheme, [last_s, *ms], &format!("{scheme}: {ms} ms at most"));
        }
    }
    drawing.finish();
}

fn of<'a>(outcomes: &'a [Outcome], scheme: &str) -> Option<&'a Outcome> {
    outcomes.iter().find(|outcome| outcome.scheme == scheme)
}

fn table(
    outcomes: &[Outcome],
    plan: &Plan,
    (rate, dirty_share): (u64, f64),
    speed: Speed,
) -> Table {
    let columns = [
        "scheme",
        "overhead per checkpoint, ms",
        "overhead, % of a tick",
        "mean tick, ms",
        "worst tick, ms",
        "worst, captured, ms",
        "raw worst, ms",
        "boundary, µs",
        "image, s",
        "writer and copier CPU, s",
        "r",
        "dirty share of a period",
        "memory ÷ state",
        "recovery, s",
    ];
    let words = (bytes(plan.objects) / 4) as f64;
    let row = |outcome: &Outcome| {
        let all = outcome.all();
        let recovery = outcome.recovery.map_or("—".into(), |it| format!("{:.2}", it.seconds()));
        vec![
            outcome.scheme.clone(),
            format!("{:.2}", median(&outcome.of_periods(Ticks::overhead_ms))),
            format!("{:.3}", 100.0 * all.overhead_share(plan.tick_ms as f64 / 1e3)),
            format!("{:.3}", all.mean_ms()),
            format!("{:.3}", all.max_ms()),
            format!("{:.3}", all.max_captured_ms()),
            format!("{:.3}", all.raw_max_ms()),
            format!("{:.2}", median(&all.boundaries_us())),
            format!("{:.2}", median(&outcome.image_s)),
            format!("{:.2}", outcome.writer_cpu_s),
            format!("{:.2}", median(&outcome.image_s) * rate as f64 / words),
            format!("{dirty_share:.3}"),
            format!("{:.2}", outcome.held_bytes as f64 / outcome.state_bytes as f64),
            recovery,
        ]
    };
    Table {
        title: format!(
            "With the writer on the disk, {}, {}, {} updates/s",
            speed.words(),
            megabytes(plan.objects),
            grouped(rate)
        ),
        columns: columns.map(String::from).to_vec(),
        rows: outcomes.iter().map(row).collect(),
        ..Table::default()
    }
}

fn claims(
    outcomes: &[Outcome],
    plan: &Plan,
    (rate, speed): (u64, Speed),
    result: &mut ExperimentResult,
) {
    let at = format!("{} updates/s, {}", grouped(rate), speed.words());
    let worst = |scheme: &str| Some(of(outcomes, scheme)?.of_periods(Ticks::max_ms));
    for compared in PEAKS.iter().filter(|_| rate == RATE) {
        if let Some((subject, baseline)) = worst(compared.subject).zip(worst(compared.baseline)) {
            let ratios: Vec<f64> = subject.iter().zip(&baseline).map(|(a, b)| a / b).collect();
            result.claims.push(compared.claim(&at).measured_periods(&ratios));
        }
    }
    for outcome in outcomes {
        let name = &outcome.scheme;
        if has_constant_tick(name) && is_from_2011(name) {
            let flat = outcome.of_periods(|ticks| ticks.max_ms() / ticks.mean_ms());
            let claim = FLAT.claim_of((name, ""), &at);
            result.claims.push(claim.measured_periods(&flat));
        }
        if has_constant_tick(name) {
            let worst = outcome.of_periods(|ticks| ticks.max_captured_ms() / ticks.raw_max_ms());
            let claim = OF_CAPTURE.claim_of((name, "baseline's worst tick"), &at);
            result.claims.push(claim.measured_periods(&worst));
        }
    }
    if rate == RATE {
        let tick_s = plan.tick_ms as f64 / 1e3;
        let share =
            |outcome: &Outcome| outcome.of_periods(|ticks| 100.0 * ticks.overhead_share(tick_s));
        let shares = outcomes.iter().map(|outcome| (outcome, share(outcome)));
        let best = shares.min_by(|a, b| median(&a.1).total_cmp(&median(&b.1)));
        if let Some((outcome, shares)) = best {
            let claim = BEST.claim_of((&outcome.scheme, ""), &at);
            result.claims.push(claim.measured_periods(&shares));
        }
    }
}

/// The statements of §5.3 on Figure 9. `ns_worst_ms` are the worst ticks at both rates.
fn of_figure_9(
    outcomes: &[Outcome],
    ns_worst_ms: &[f64],
    speed: Speed,
    result: &mut ExperimentResult,
) {
    let at = speed.words();
    if let [slow, fast] = ns_worst_ms {
        result.claims.push(NS_IS_ALIKE.claim(at).measured(fast / slow));
    }
    if let Some(bazz) = of(outcomes, BAZZ_IS_FLAT.subject) {
        let flat = bazz.of_periods(|ticks| ticks.max_ms() / ticks.mean_ms());
        result.claims.push(BAZZ_IS_FLAT.claim(at).measured_periods(&flat));
    }
    if let Some(bacou) = of(outcomes, BACOU_FADES.subject) {
        let fades = bacou.of_periods(|ticks| {
            // The tick at which the capture begins saves nothing yet.
            let after = &ticks.0[1.min(ticks.0.len())..];
            let few = (after.len() / 8).max(1);
            let first = Ticks(&after[..few.min(after.len())]);
            let last = Ticks(&after[after.len().saturating_sub(few)..]);
            first.mean_ms() / last.mean_ms()
        });
        result.claims.push(BACOU_FADES.claim(at).measured_periods(&fades));
    }
}
