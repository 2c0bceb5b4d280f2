//! `fc-fig10` and `fc-fig11`: the game of SIGMOD 2011, §5.4, under each scheme.

use std::time::Duration;

use serde::Serialize;

use crate::context::Context;
use crate::crash::game::{Killed, KilledGame, Match};
use crate::crash::kill_and_check;
use crate::drivers::ticks::{self, Drive, Images};
use crate::error::LabResult;
use crate::experiments::Experiment;
use crate::harness::Harness;
use crate::measure::outcome::Outcome;
use crate::measure::stats::{Spread, cost_ratio, median, spread_of};
use crate::report::result::{
    Bar, Bound, ClaimRow, ExperimentResult, Figure, Paper, PaperPoint, Scale, Series, Table,
};
use crate::subjects::arrays::{
    PROCESSES, flat_schemes, further_interleaved, has_constant_tick, is_from_2011,
    schemes_with_copies,
};
use crate::sys;
use crate::workloads::game::Game;
use crate::workloads::game::model::{PLAYERS, TICKS_PER_S, UPDATES_PER_S};

/// Source of the claims.
const PAPER: &str = "Cao et al., SIGMOD 2011 (wait-free zigzag and ping-pong), §5.4";

/// The schemes that keep copies of their own, and the paper's interleaved layout of zigzag.
fn compared_schemes() -> Vec<&'static str> {
    [schemes_with_copies(), further_interleaved()].concat()
}

/// The amount of work of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Players.
    pub(crate) players: usize,
    /// Ticks of the trace.
    pub(crate) trace_ticks: usize,
    /// Ticks from one image to the next: 4.2 s in the paper.
    pub(crate) image_ticks: u64,
    /// Images of a run.
    pub(crate) images: u64,
    /// Runs of each scheme.
    pub(crate) runs: usize,
    /// Length of a tick, in ms: 100 in the paper.
    pub(crate) tick_ms: u64,
    /// Seed of the trace.
    pub(crate) seed: u64,
}

impl Plan {
    /// The paper's game.
    fn full() -> Plan {
        Plan {
            players: PLAYERS,
            trace_ticks: 256,
            image_ticks: 42,
            images: 3,
            runs: 1,
            tick_ms: 100,
            seed: 1,
        }
    }

    /// A plan of a few seconds.
    fn quick() -> Plan {
        let (players, trace_ticks, image_ticks, images) = (50, 30, 5, 2);
        Plan { players, trace_ticks, image_ticks, images, runs: 1, tick_ms: 20, ..Plan::full() }
    }

    fn adjust(&mut self, asked: &Context) {
        self.runs = asked.runs.unwrap_or(self.runs).max(1);
        if let Some(seconds) = asked.seconds {
            let image_s = self.image_ticks as f64 / TICKS_PER_S;
            self.images = (seconds / image_s).ceil().max(1.0) as u64;
        }
    }

    fn drive(&self) -> Drive {
        Drive {
            ticks: self.image_ticks * self.images,
            tick: Some(Duration::from_millis(self.tick_ms)),
            images: Images::EveryTicks(self.image_ticks),
            logs_actions: true,
            ..Drive::paper(1)
        }
    }
}

/// Makes the game and writes its sizes into the result.
fn begin(context: &Context, plan: &Plan, result: &mut ExperimentResult) -> Game {
    context.note(format!("a game of {} players, {} ticks", plan.players, plan.trace_ticks));
    let game = Game::new(plan.players, plan.trace_ticks, plan.seed);
    let updates = game.totals.simulated + game.totals.acted;
    let per_s = |count: u64| count as f64 / game.totals.ticks as f64 * TICKS_PER_S;
    result.parameter("state_bytes", game.words * 4);
    result.parameter("state_per_last_level_cache", result.per_cache(game.words as u64 * 4));
    result.parameter("updates_per_s", per_s(updates).round());
    result.parameter("paper_updates_per_s", UPDATES_PER_S);
    result.parameter("dirty_share_of_a_period", game.dirty_share(plan.image_ticks));
    result.parameter("updates_by_actions_share", game.totals.acted as f64 / updates as f64);
    result.parameter("actions_per_s", per_s(game.totals.actions));
    result.parameter("logs_actions", plan.drive().logs_actions);
    game
}

fn run_scheme(context: &Context, plan: &Plan, game: &Game, scheme: &str) -> LabResult<Outcome> {
    let dir = context.fresh_dir(&format!("game-{scheme}"))?;
    let outcome = ticks::run(game, scheme, &plan.drive(), &dir)?;
    sys::remove_dir_all(&dir)?;
    context.saw_huge_pages(outcome.huge_page_bytes);
    context.note(format!(
        "{scheme}: overhead {:.2} ms per checkpoint; tick mean {:.2} ms, worst {:.2} ms (raw \
         {:.2}); recovered in {:.2} s",
        outcome.all().overhead_ms(),
        outcome.all().mean_ms(),
        outcome.all().max_ms(),
        outcome.all().raw_max_ms(),
        outcome.recovery.map_or(f64::NAN, |it| it.seconds()),
    ));
    Ok(outcome)
}

/// The scheme whose process is killed: the first of the paper whose tick is constant.
fn killed_scheme() -> &'static str {
    let mut flat = flat_schemes().into_iter();
    flat.find(|name| is_from_2011(name)).expect("the paper's ping-pong is registered")
}

fn rows_without_runs() -> Vec<SchemeRuns> {
    let schemes = compared_schemes().into_iter();
    schemes.map(|scheme| SchemeRuns { scheme, outcomes: Vec::new() }).collect()
}

/// The runs of a scheme.
struct SchemeRuns {
    scheme: &'static str,
    outcomes: Vec<Outcome>,
}

impl SchemeRuns {
    fn all(&self, figure: impl Fn(&Outcome) -> f64) -> Vec<f64> {
        self.outcomes.iter().map(figure).collect()
    }

    fn median(&self, figure: impl Fn(&Outcome) -> f64) -> f64 {
        median(&self.all(figure))
    }
}

fn row<'a>(rows: &'a [SchemeRuns], scheme: &str) -> Option<&'a SchemeRuns> {
    rows.iter().find(|row| row.scheme == scheme)
}

/// Overhead, and recovery after a kill.
pub(crate) struct FcFig10;

impl Experiment for FcFig10 {
    const ID: &'static str = "fc-fig10";
    const TITLE: &'static str = "A game's checkpoints: overhead, and downtime after a crash";
    const PAPER: &'static str = PAPER;
    const PROCESSES: usize = PROCESSES;
    type Plan = Plan;

    fn full() -> Plan {
        Plan::full()
    }

    fn quick() -> Plan {
        Plan::quick()
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        plan.adjust(asked);
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        let context = bench.context;
        let game = begin(context, plan, result);
        let mut rows = rows_without_runs();
        for _ in 0..plan.runs {
            for row in &mut rows {
                row.outcomes.push(run_scheme(context, plan, &game, row.scheme)?);
            }
        }
        overhead_claims(&rows, result);
        let updates = (game.totals.simulated + game.totals.acted) as f64 / game.totals.ticks as f64;
        let ticks_per_s = 1e3 / plan.tick_ms as f64;
        overhead_figures(&rows, updates * ticks_per_s / game.words as f64, result);
        if bench.children {
            let Plan { players, trace_ticks, image_ticks, seed, .. } = *plan;
            let plan = Match { players, trace_ticks, image_ticks, seed };
            let scheme = killed_scheme();
            let killed = kill_and_check(context, &KilledGame { game: &game, plan, scheme })?;
            context.note(&killed);
            recovery_claims(&killed, result);
        } else {
            result.note("No process was killed in this run.");
        }
        Ok(())
    }
}

/// The overhead of one scheme ÷ another's, run by run.
fn ratios(rows: &[SchemeRuns], scheme: &str, baseline: &str) -> Vec<f64> {
    let (Some(one), Some(other)) = (row(rows, scheme), row(rows, baseline)) else {
        return Vec::new();
    };
    let pairs = one.outcomes.iter().zip(&other.outcomes);
    pairs
        .map(|(one, other)| cost_ratio(one.all().overhead_ms(), other.all().overhead_ms()))
        .collect()
}

const fn overhead(
    subject: &'static str,
    baseline: &'static str,
    paper: Paper,
    goal: f64,
) -> ClaimRow {
    let (metric, source) = ("overhead", "SIGMOD 2011, §5.4, Figure 10");
    ClaimRow::new(metric, source, Bound::AtLeast(1.0))
        .between(subject, baseline)
        .paper(paper)
        .goal(Bound::AtLeast(goal))
}

/// The claims of §5.4 on Figure 10.
const FIGURE_10: [ClaimRow; 4] = [
    overhead("ns", "ipp", Paper::ratio("nearly 7 ×", 7.0), 7.0),
    overhead("bacou", "ipp", Paper::words("more"), 2.0),
    overhead("bazz", "ipp", Paper::ratio("about that of ns, nearly 7 ×", 7.0), 2.0),
    overhead("bacou", "bazz", Paper::words("more"), 1.5),
];

fn overhead_claims(rows: &[SchemeRuns], result: &mut ExperimentResult) {
    for compared in &FIGURE_10 {
        let ratios = ratios(rows, compared.subject, compared.baseline);
        result.claims.push(compared.claim("").measured_runs(&ratios));
    }
}

/// `updates_per_word_s` × the seconds of an image is r: updates while one image is taken, per word.
fn overhead_figures(rows: &[SchemeRuns], updates_per_word_s: f64, result: &mut ExperimentResult) {
    let bar = |row: &SchemeRuns| {
        let value = Spread::of(&row.all(|it| it.all().overhead_ms()))?;
        Some(Bar { group: String::new(), name: row.scheme.to_owned(), value })
    };
    let base_ms =
        |scheme: &str| row(rows, scheme).map(|row| row.median(|it| it.all().overhead_ms()));
    let ring = |compared: &ClaimRow| {
        let ratio = compared.paper.and_then(Paper::ratio_of)?;
        let ms = base_ms(compared.baseline).filter(|ms| ms.is_finite())?;
        let text = format!("{}: {ratio} × {}", compared.subject, compared.baseline);
        Some(PaperPoint { label: compared.subject.into(), at: [0.0, ratio * ms], text })
    };
    result.figures.push(Figure {
        title: "Overhead per checkpoint".into(),
        caption: format!(
            "CPU time of the mutator beyond the baseline's, per image; {}. The paper's rings stand \
             at seven times our overhead of ipp.",
            spread_of(rows.first().map_or(0, |row| row.outcomes.len()))
        ),
        y_label: "overhead per checkpoint, ms".into(),
        bars: rows.iter().filter_map(bar).collect(),
        paper: FIGURE_10.iter().filter_map(ring).collect(),
        ..Figure::default()
    });
    let columns = [
        "scheme",
        "overhead ms",
        "mean tick ms",
        "worst tick ms",
        "worst raw ms",
        "image s",
        "writer and copier CPU s",
        "r",
        "bytes held ÷ state",
        "recovery s",
    ];
    let mut table = Table {
        title: "The game under each scheme".into(),
        columns: columns.map(String::from).to_vec(),
        rows: Vec::new(),
        ..Table::default()
    };
    for row in rows {
        let held = |it: &Outcome| it.held_bytes as f64 / it.state_bytes as f64;
        let recovery = |it: &Outcome| it.recovery.map_or(f64::NAN, |it| it.seconds());
        let figures = [
            row.median(|it| it.all().overhead_ms()),
            row.median(|it| it.all().mean_ms()),
            row.median(|it| it.all().max_ms()),
            row.median(|it| it.all().raw_max_ms()),
            row.median(|it| median(&it.image_s)),
            row.median(|it| it.writer_cpu_s),
            row.median(|it| median(&it.image_s) * updates_per_word_s),
            row.median(held),
            row.median(recovery),
        ];
        let cells = figures.iter().map(|figure| format!("{figure:.2}"));
        table.rows.push(std::iter::once(row.scheme.to_owned()).chain(cells).collect());
    }
    result.tables.push(table);
}

const OF_RECOVERY: &str = "SIGMOD 2011, §5.4, recovery; the project's own bound";

const READ_RATE: ClaimRow = ClaimRow::new(
    "recovery: rate of reading the image ÷ the disk's read rate",
    OF_RECOVERY,
    Bound::AtLeast(0.8),
);
const DOWNTIME: ClaimRow = ClaimRow::new(
    "downtime after kill -9: from the call that opens to its return",
    OF_RECOVERY,
    Bound::AtMost(8.1),
)
.paper(Paper::words("8.1 s: 3.9 s and at most 4.2 s"))
.goal(Bound::AtMost(2.0))
.unit("s");

fn recovery_claims(killed: &Killed, result: &mut ExperimentResult) {
    let read_rate = killed.image_bytes_per_s() / killed.disk_bytes_per_s;
    result.claims.push(READ_RATE.claim("").measured(read_rate));
    result.claims.push(DOWNTIME.claim("").measured(killed.open_s));
    result.note(killed.to_string());
}

/// Latency tick by tick.
pub(crate) struct FcFig11;

impl Experiment for FcFig11 {
    const ID: &'static str = "fc-fig11";
    const TITLE: &'static str = "A game's checkpoints: latency tick by tick";
    const PAPER: &'static str = PAPER;
    const PROCESSES: usize = PROCESSES;
    type Plan = Plan;

    fn full() -> Plan {
        Plan::full()
    }

    fn quick() -> Plan {
        Plan::quick()
    }

    fn adjust(plan: &mut Plan, asked: &Context) {
        plan.adjust(asked);
    }

    fn run(bench: &Harness<'_>, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
        let game = begin(bench.context, plan, result);
        let mut rows = rows_without_runs();
        for _ in 0..plan.runs {
            for row in &mut rows {
                row.outcomes.push(run_scheme(bench.context, plan, &game, row.scheme)?);
            }
        }
        latency_claims(&rows, result);
        latency_figures(&rows, result);
        Ok(())
    }
}

const FIGURE_11: &str = "SIGMOD 2011, §5.4, Figure 11";

const UNIFORM: ClaimRow = ClaimRow::new("worst tick ÷ mean tick", FIGURE_11, Bound::AtMost(1.5))
    .paper(Paper::words("almost uniform, at most 0.9 ms"));
const OF_CAPTURE: ClaimRow =
    ClaimRow::new("worst tick of a capture", "Stillpoint", Bound::AtMost(1.5));
const RAW_TICK: &str = "baseline's worst tick";

/// The claims of §5.4 on Figure 11: each scheme of the paper whose tick is constant, by itself.
fn latency_claims(rows: &[SchemeRuns], result: &mut ExperimentResult) {
    let is_flat = |row: &&SchemeRuns| has_constant_tick(row.scheme) && is_from_2011(row.scheme);
    for row in rows.iter().filter(is_flat) {
        let uniform = row.all(|it| it.all().max_ms() / it.all().mean_ms());
        result.claims.push(UNIFORM.claim_of((row.scheme, ""), "").measured_runs(&uniform));
        let raw = row.all(|it| it.all().max_captured_ms() / it.all().raw_max_ms());
        result.claims.push(OF_CAPTURE.claim_of((row.scheme, RAW_TICK), "").measured_runs(&raw));
    }
    let Some((one, other)) = row(rows, PEAKS.subject).zip(row(rows, PEAKS.baseline)) else {
        return;
    };
    let peaks = [one.median(|it| it.all().max_ms()) / other.median(|it| it.all().max_ms())];
    result.claims.push(PEAKS.claim("").measured_runs(&peaks));
}

/// The claim of §5.4 on the peaks of Figure 11.
const PEAKS: ClaimRow = ClaimRow::new("worst tick", FIGURE_11, Bound::AtLeast(2.0))
    .between("ns", "ipp")
    .paper(Paper::ratio("29 ms and 0.9 ms: 32 ×", 32.0))
    .goal(Bound::AtLeast(10.0));

/// The worst ticks of Figure 11 that §5.4 names.
const PAPER_PEAKS_MS: [(&str, f64); 2] = [("ns", 29.0), ("ipp", 0.9)];

fn latency_figures(rows: &[SchemeRuns], result: &mut ExperimentResult) {
    let mut figure = Figure {
        title: "Latency of ticks".into(),
        caption: "Time of the mutator in each tick of 0.1 s: updates, and the tick's end.".into(),
        x_label: "time, s".into(),
        y_label: "latency of the tick, ms".into(),
        y_scale: Scale::Log,
        ..Figure::default()
    };
    let mut add = |name: &str, points: Vec<[f64; 2]>| {
        figure.series.push(name.to_owned());
        let (x_unit, y_unit) = ("s".into(), "ms".into());
        result.series.push(Series {
            name: name.to_owned(),
            x_unit,
            y_unit,
            points,
            ..Series::default()
        });
    };
    let drawn = schemes_with_copies();
    for row in rows.iter().filter(|row| drawn.contains(&row.scheme)) {
        add(row.scheme, row.outcomes[0].latency_points());
    }
    if let Some(row) = row(rows, killed_scheme()) {
        add("baseline", row.outcomes[0].raw_points());
    }
    for (scheme, ms) in PAPER_PEAKS_MS {
        let ticks = row(rows, scheme).map(|row| &row.outcomes[0].ticks);
        if let Some(tick) = ticks.and_then(|ticks| ticks.last()) {
            let text = format!("{scheme}: {ms} ms at most");
            figure.paper.push(PaperPoint { label: scheme.into(), at: [tick.at_s, ms], text });
        }
    }
    result.figures.push(figure);
    let columns = [
        "scheme",
        "mean ms",
        "worst ms",
        "worst ÷ mean",
        "raw mean ms",
        "raw worst ms",
        "longest end of a tick us",
    ];
    let mut table = Table {
        title: "Peaks".into(),
        columns: columns.map(String::from).to_vec(),
        rows: Vec::new(),
        ..Table::default()
    };
    for row in rows {
        let longest = |it: &Outcome| it.all().boundaries_us().into_iter().fold(f64::NAN, f64::max);
        let figures = [
            row.median(|it| it.all().mean_ms()),
            row.median(|it| it.all().max_ms()),
            row.median(|it| it.all().max_ms() / it.all().mean_ms()),
            row.median(|it| it.all().raw_mean_ms()),
            row.median(|it| it.all().raw_max_ms()),
            row.median(longest),
        ];
        let cells = figures.iter().map(|figure| format!("{figure:.2}"));
        table.rows.push(std::iter::once(row.scheme.to_owned()).chain(cells).collect());
    }
    result.tables.push(table);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::run_plan;
    use crate::subjects;

    fn quick_run<E: Experiment<Plan = Plan>>() -> LabResult<ExperimentResult> {
        let dir = tempfile::tempdir().map_err(|e| crate::LabError::process("tempdir", e))?;
        let context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        let open = &subjects::stillpoint::open;
        let bench = Harness { context: &context, open, children: false };
        run_plan::<E>(&bench, &E::quick())
    }

    #[test]
    fn the_quick_mode_of_figure_10_judges_every_claim_but_the_killed_process() -> LabResult<()> {
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let result = quick_run::<FcFig10>()?;
        assert_eq!(result.claims.len(), 4);
        assert_eq!(result.tables[0].rows.len(), compared_schemes().len());
        assert!(result.tables[0].rows.iter().flatten().all(|cell| cell != "NaN"));
        assert_eq!(result.parameters["logs_actions"], true);
        Ok(())
    }

    #[test]
    fn the_quick_mode_of_figure_11_has_a_point_for_each_tick() -> LabResult<()> {
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let result = quick_run::<FcFig11>()?;
        assert_eq!(result.claims.len(), 3);
        assert!(result.claims.iter().all(|claim| claim.met.is_some()));
        assert_eq!(result.series.len(), compared_schemes().len());
        assert!(result.series.iter().all(|series| series.points.len() == 10));
        Ok(())
    }
}
