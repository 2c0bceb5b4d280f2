//! `fc-fig12` and `fc-fig13`: TPC-C with a log and with checkpoints as often as possible, at an
//! interval that is equal for all (SIGMOD 2011, §5.5).

use serde::Serialize;

use crate::context::Context;
use crate::crash::tpcc;
use crate::error::{LabError, LabResult};
use crate::experiments::{Experiment, tpcc_instructions};
use crate::harness::Harness;
use crate::measure::machine::Machine;
use crate::measure::outcome::Recovery;
use crate::measure::stats::{counted, ends, median, quantile};
use crate::report::figure::axis::grouped;
use crate::report::result::{
    Bound, ClaimRow, ExperimentResult, Figure, Paper, PaperPoint, Scale as AxisScale, Series, Table,
};
use crate::subjects::arrays::PROCESSES;
use crate::subjects::tpcc::{BATCH, Engine, Job, ROWS, Row, Status, recovers, with, written};
use crate::sys;
use crate::workloads::tpcc::input::Trace;
use crate::workloads::tpcc::load::Population;
use crate::workloads::tpcc::schema::{Scale, data_bytes, row_count};
use crate::workloads::tpcc::written::Written;

/// Source of the claims.
const PAPER: &str = "Cao et al., SIGMOD 2011 (wait-free zigzag and ping-pong), §5.5";
/// Warehouses, one part each.
pub(crate) const PARTS: &[&str] = &["5", "10", "20", "40"];
/// The part of `fc-fig12` that counts instructions.
const COUNTED: &str = "instructions";
/// The part that runs only when asked for.
const LARGEST: &str = "40";

/// The amount of work of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Plan {
    /// Sizes of the databases.
    pub(crate) scales: Vec<Scale>,
    /// Measured seconds of each run.
    pub(crate) run_s: f64,
    /// Runs of each row.
    pub(crate) runs: usize,
    /// Transactions of the trace.
    pub(crate) trace: usize,
    /// Seed of the first rows and of the trace.
    pub(crate) seed: u64,
    /// Size of the database in the crash check.
    pub(crate) killed: Scale,
    /// Size of the database on which instructions are counted.
    pub(crate) counted: Scale,
}

impl Plan {
    /// 5 to 40 of the paper's 60 warehouses.
    fn full() -> Plan {
        let scales = [5, 10, 20, 40].map(Scale::full).to_vec();
        let (killed, counted) = (Scale::full(1), Scale::full(1));
        Plan { scales, run_s: 10.0, runs: 1, trace: 500_000, seed: 1, killed, counted }
    }

    /// A plan of a few seconds.
    fn quick() -> Plan {
        let scales = [1, 2].map(Scale::small).to_vec();
        let (killed, counted) = (Scale::small(1), Scale::small(1));
        Plan { scales, run_s: 0.3, trace: 20_000, killed, counted, ..Plan::full() }
    }

    /// Applies the asked number and length of runs. Applies the asked part to a full plan only,
    /// since the databases of a quick plan are smaller than any part.
    fn adjust(&mut self, asked: &Context) {
        self.runs = asked.runs.unwrap_or(self.runs).max(1);
        self.run_s = asked.seconds.unwrap_or(self.run_s);
        if !asked.quick {
            self.scales.retain(|scale| {
                let part = scale.warehouses.to_string();
                asked.wants(&part) && (part != LARGEST || asked.part.is_some())
            });
        }
    }
}

/// Times of one batch.
#[derive(Clone, Copy, Debug, PartialEq)]
struct BatchTime {
    /// Begin of the batch, in seconds of the measured time.
    at_s: f64,
    /// Seconds to the begin of the next batch.
    ms: f64,
}

/// Outcome of a run.
#[derive(Clone, Debug)]
struct Outcome {
    new_orders_per_s: f64,
    transactions: u64,
    batches: Vec<BatchTime>,
    before: Status,
    after: Status,
    /// Seconds of the checkpoints that were completed, the warm-up's last included.
    image_s: Vec<f64>,
    recovery: Recovery,
}

impl Outcome {
    fn quantile_ms(&self, q: f64) -> f64 {
        let mut sorted: Vec<f64> = self.batches.iter().map(|batch| batch.ms).collect();
        sorted.sort_by(f64::total_cmp);
        if sorted.is_empty() { f64::NAN } else { quantile(&sorted, q) }
    }

    /// Seconds from the first batch's begin to the last one's end.
    fn seconds(&self) -> f64 {
        self.batches.last().map_or(f64::NAN, |last| last.at_s + last.ms / 1e3)
    }

    fn logged_per_transaction(&self) -> f64 {
        (self.after.logged_bytes - self.before.logged_bytes) as f64 / self.transactions as f64
    }
}

/// A run: warm-up, then the measured time.
struct Drive<'a> {
    row: Row,
    trace: &'a Trace,
    seconds: f64,
    /// From the beginning of one checkpoint to the next; 0 for as often as possible.
    interval_s: f64,
    /// Checkpoints before the measured time, so that both files have been written once.
    warm_up_images: u64,
}

/// Longest wait for a checkpoint.
const PATIENCE_S: f64 = 600.0;

impl Drive<'_> {
    fn warm_up(&self, engine: &mut dyn Engine) -> LabResult<Vec<f64>> {
        let (began_ns, mut images, mut image_s) = (sys::now_ns(), 0, Vec::new());
        let passed_s = || (sys::now_ns() - began_ns) as f64 / 1e9;
        loop {
            engine.batch(self.trace)?;
            let status = engine.status()?;
            if status.images > images {
                images = status.images;
                image_s.push(status.image_s);
            }
            let is_done = if self.row.has_images {
                images >= self.warm_up_images
            } else {
                passed_s() >= self.seconds / 4.0
            };
            if is_done {
                return Ok(image_s);
            }
            if self.row.has_images && !status.is_capturing {
                engine.checkpoint()?;
            }
            if passed_s() > PATIENCE_S {
                let reason = "a checkpoint has taken ten minutes".into();
                return Err(LabError::Engine { engine: self.row.name.into(), reason });
            }
        }
    }
}

impl Job for Drive<'_> {
    type Output = Outcome;

    fn with(&mut self, engine: &mut dyn Engine) -> LabResult<Outcome> {
        let mut image_s = self.warm_up(engine)?;
        image_s = image_s.split_off(image_s.len().saturating_sub(1));
        let before = engine.status()?;
        let (mut images, mut batches, mut new_orders, mut transactions) =
            (before.images, Vec::new(), 0, 0);
        let began_ns = sys::now_ns();
        let at_s = |ns: u64| (ns - began_ns) as f64 / 1e9;
        let mut next_s = 0.0;
        let mut start_ns = began_ns;
        // The measured time holds at least one whole checkpoint.
        while at_s(start_ns) < self.seconds
            || (self.row.has_images && images == before.images && at_s(start_ns) < PATIENCE_S)
        {
            if self.row.has_images && at_s(start_ns) >= next_s {
                let status = engine.status()?;
                if status.images > images {
                    images = status.images;
                    image_s.push(status.image_s);
                }
                if !status.is_capturing {
                    engine.checkpoint()?;
                    next_s = at_s(start_ns) + self.interval_s;
                }
            }
            let counted = engine.batch(self.trace)?;
            let end_ns = sys::now_ns();
            batches.push(BatchTime { at_s: at_s(start_ns), ms: (end_ns - start_ns) as f64 / 1e6 });
            new_orders += counted.new_orders;
            transactions += counted.transactions;
            start_ns = end_ns;
        }
        let new_orders_per_s = new_orders as f64 / at_s(start_ns);
        let (after, recovery) = (engine.status()?, Recovery::default());
        Ok(Outcome { new_orders_per_s, transactions, batches, before, after, image_s, recovery })
    }
}

/// The runs of one size under every row.
struct Size {
    scale: Scale,
    interval_s: f64,
    /// Outcomes: `[row][run]`.
    outcomes: Vec<Vec<Outcome>>,
    /// How much each row's transactions write from one checkpoint to the next.
    written: Vec<Written>,
}

/// Transactions of a row from one checkpoint to the next.
fn transactions_of_period(outcomes: &[Outcome], interval_s: f64) -> u64 {
    let of = |it: &Outcome| it.transactions as f64 / it.seconds() * interval_s;
    median(&outcomes.iter().map(of).collect::<Vec<_>>()) as u64
}

/// What the transactions of a period write, for each row.
fn written_by_rows(
    (population, trace): (&Population, &Trace),
    outcomes: &[Vec<Outcome>],
    interval_s: f64,
) -> LabResult<Vec<Written>> {
    let periods: Vec<u64> =
        outcomes.iter().map(|it| transactions_of_period(it, interval_s)).collect();
    let mut ascending = periods.clone();
    ascending.sort_unstable();
    let written = written(population, trace, &ascending)?;
    let of = |count: &u64| written[ascending.partition_point(|it| it < count)];
    Ok(periods.iter().map(of).collect())
}

impl Size {
    fn rates(&self, name: &str) -> Vec<f64> {
        let at = ROWS.iter().position(|row| row.name == name);
        let outcomes = at.map_or(&[][..], |at| &self.outcomes[at]);
        outcomes.iter().map(|it| it.new_orders_per_s).collect()
    }

    fn ratios(&self, name: &str, baseline: &str) -> Vec<f64> {
        let (one, other) = (self.rates(name), self.rates(baseline));
        one.iter().zip(&other).map(|(one, other)| one / other).collect()
    }

    fn first(&self, name: &str) -> Option<&Outcome> {
        let at = ROWS.iter().position(|row| row.name == name)?;
        self.outcomes[at].first()
    }
}

fn measure(context: &Context, plan: &Plan, scale: Scale) -> LabResult<Size> {
    let mb = data_bytes(&scale) / 1_000_000;
    context.note(format!("{}, {mb} MB", counted(scale.warehouses, "warehouse")));
    let population = Population::new(scale, plan.seed);
    let trace = Trace::new(&scale, plan.seed, plan.trace);
    let run = |row: Row, seconds: f64, interval_s: f64, warm_up_images: u64| {
        let dir = context.fresh_dir("tpcc")?;
        let mut drive = Drive { row, trace: &trace, seconds, interval_s, warm_up_images };
        let (outcome, batches) = with(row, &population, &dir, &mut drive)?;
        let recovery = recovers(row, &population, &trace, &dir, batches)?;
        sys::remove_dir_all(&dir)?;
        Ok::<_, LabError>(Outcome { recovery, ..outcome })
    };
    // A checkpoint that reads and writes the whole database is the slowest and sets the interval.
    let slowest = ROWS.iter().find(|row| row.reads_images()).expect("some scheme writes changes");
    let probe = run(*slowest, plan.run_s / 10.0, 0.0, 3)?;
    let interval_s = 1.1 * median(&probe.image_s);
    context.note(format!("a checkpoint every {interval_s:.2} s"));
    let mut outcomes = vec![Vec::new(); ROWS.len()];
    for _ in 0..plan.runs {
        for (row, outcomes) in ROWS.iter().zip(&mut outcomes) {
            let outcome = run(*row, plan.run_s, interval_s, 2)?;
            context.note(format!(
                "{}: {:.0} new orders/s; batch p50 {:.2} ms, worst {:.1} ms; {} checkpoints",
                row.name,
                outcome.new_orders_per_s,
                outcome.quantile_ms(0.5),
                outcome.quantile_ms(1.0),
                outcome.after.images - outcome.before.images,
            ));
            outcomes.push(outcome);
        }
    }
    let written = written_by_rows((&population, &trace), &outcomes, interval_s)?;
    Ok(Size { scale, interval_s, outcomes, written })
}

/// The sizes for which the memory suffices. The others become a note.
fn fitting(plan: &Plan, result: &mut ExperimentResult) -> Vec<Scale> {
    let memory = Machine::here().memory_bytes;
    let copies = ROWS.iter().map(Row::copies).max().unwrap_or(1) as u64;
    let mut scales = plan.scales.clone();
    scales.retain(|scale| {
        let needed = data_bytes(scale) * copies;
        let fits = memory == 0 || needed < memory / 4 * 3;
        if !fits {
            let (at, gb) = (counted(scale.warehouses, "warehouse"), needed as f64 / 1e9);
            result.note(format!("{at}: left out: {gb:.1} GB of copies would not fit."));
        }
        fits
    });
    scales
}

fn parameters(plan: &Plan, result: &mut ExperimentResult) {
    let bytes: Vec<u64> = plan.scales.iter().map(data_bytes).collect();
    let per_cache: Vec<f64> = bytes.iter().map(|&bytes| result.per_cache(bytes)).collect();
    result.parameter("data_bytes", bytes);
    result.parameter("data_per_last_level_cache", per_cache);
    result.parameter("batch_transactions", BATCH);
    result.parameter("logs_actions", true);
    result.note(
        "After each run the database was closed with a checkpoint under way, opened again, and \
         found equal to an oracle that ran the same transactions without log and checkpoints.",
    );
}

/// New orders per second.
pub(crate) struct FcFig12;

impl Experiment for FcFig12 {
    const ID: &'static str = "fc-fig12";
    const TITLE: &'static str = "TPC-C with frequent checkpoints: new orders per second";
    const PAPER: &'static str = PAPER;
    const PARTS: &'static [&'static str] = &["5", "10", "20", "40", COUNTED];
    const PROCESSES: usize = PROCESSES;
    const EXACT_PART: Option<&'static str> = Some(COUNTED);
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
        parameters(plan, result);
        if context.wants(COUNTED) {
            let counts = tpcc_instructions::run(bench, plan.counted, plan.seed, result)?;
            result.in_part(COUNTED, |result| {
                result.tables.extend(instructions(plan, &counts));
                Ok(())
            })?;
        }
        if context.part.as_deref() == Some(COUNTED) {
            return Ok(());
        }
        if bench.children {
            let Plan { killed: scale, trace, seed, .. } = *plan;
            tpcc::check_rows(context, &tpcc::Database { scale, trace, seed }, result)?;
        } else {
            result.note("No process was killed in this run.");
        }
        let mut sizes = Vec::new();
        for scale in fitting(plan, result) {
            sizes.push(measure(context, plan, scale)?);
        }
        if let Some(largest) = sizes.last() {
            result.in_part(&largest.part(), |result| {
                throughput_claims(largest, result);
                largest.notes().into_iter().for_each(|note| result.note(note));
                Ok(())
            })?;
        }
        throughput_figure(&sizes, result);
        for size in &sizes {
            result.in_part(&size.part(), |result| {
                result.tables.push(table(size));
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Instructions of a transaction under each scheme; no table if nothing was counted.
fn instructions(plan: &Plan, counts: &tpcc_instructions::PerScheme) -> Option<Table> {
    let none = counts.get(ROWS[0].name)?;
    let row = |(scheme, count): (&&str, &f64)| {
        vec![(*scheme).to_owned(), format!("{count:.0}"), format!("{:.3}", count / none)]
    };
    Some(Table {
        title: format!(
            "Instructions of a transaction, {}, by callgrind",
            counted(plan.counted.warehouses, "warehouse")
        ),
        columns: ["", "instructions", "÷ none"].map(String::from).to_vec(),
        rows: counts.iter().map(row).collect(),
        ..Table::default()
    })
}

const fn throughput(
    subject: &'static str,
    baseline: &'static str,
    paper: Option<Paper>,
    (bound, goal): (f64, f64),
) -> ClaimRow {
    let metric = "new orders per second";
    let source = if paper.is_some() { "SIGMOD 2011, §5.5, Figure 12" } else { "Stillpoint" };
    let (bound, goal) = (Bound::AtLeast(bound), Bound::AtLeast(goal));
    ClaimRow { paper, ..ClaimRow::new(metric, source, bound) }.between(subject, baseline).goal(goal)
}

const NEARLY_NONE: Paper = Paper::ratio("0.899 at 60 warehouses", 0.899);

const NS_AT_60: Paper = Paper::ratio("0.721 at 60 warehouses", 0.7208);
const ARIES_AT_60: Paper = Paper::ratio("0.658 at 60 warehouses", 0.6579);

/// The claims of §5.5 on Figure 12, and the bounds of the schemes with two copies.
const FIGURE_12: [ClaimRow; 9] = [
    throughput("ipp, copy", "none", Some(NEARLY_NONE), (0.8, 0.9)),
    throughput("ipp, copy", "ipp, merge", Some(Paper::words("slightly better")), (1.0, 1.0)),
    throughput("ipp, merge", "ns", Some(Paper::words("better")), (1.0, 1.1)),
    throughput("ipp, copy", "ns", Some(Paper::ratio("1.25 ×", 1.25)), (1.0, 1.25)),
    throughput("ns", "none", Some(NS_AT_60), (0.5, 0.72)),
    throughput("aries", "none", Some(ARIES_AT_60), (0.5, 0.66)),
    throughput("ns", "aries", Some(Paper::ratio("1.095 ×", 1.095)), (1.0, 1.1)),
    throughput("hg, copy", "ipp, copy", None, (0.9, 1.0)),
    throughput("pb", "none", None, (0.9, 1.0)),
];

fn throughput_claims(size: &Size, result: &mut ExperimentResult) {
    let at = counted(size.scale.warehouses, "warehouse");
    for compared in &FIGURE_12 {
        let ratios = size.ratios(compared.subject, compared.baseline);
        result.claims.push(compared.claim(&at).measured_runs(&ratios));
    }
}

impl Size {
    /// The part of the experiment to which this size belongs.
    fn part(&self) -> String {
        self.scale.warehouses.to_string()
    }

    /// Notes on the reasons why ipp loses, and on the trust that the figures deserve.
    fn notes(&self) -> Vec<String> {
        let at = counted(self.scale.warehouses, "warehouse");
        let idle = ROWS.iter().find(|row| row.is_idle()).map_or("", |row| row.name);
        let (idle, copy) = (self.ratios(idle, "none"), self.ratios("ipp, copy", "none"));
        let mut notes = vec![what_writes_cost(&at, &idle, &copy)];
        let above = |row: &&Row| median(&self.ratios(row.name, "none")) > 1.0;
        let faster: Vec<&str> = ROWS[1..].iter().filter(above).map(|row| row.name).collect();
        if !faster.is_empty() {
            notes.push(format!(
                "{at}: {} came out faster than none, which does less. The noise of these runs is \
                 at least as large as that difference, and no smaller one means anything.",
                faster.join("; "),
            ));
        }
        notes
    }
}

/// A note on the speed of ipp without and with checkpoints. The note names a cause only if every
/// run shows it.
fn what_writes_cost(at: &str, idle: &[f64], copy: &[f64]) -> String {
    let (idle_median, copy_median) = (median(idle), median(copy));
    let measured = format!(
        "{at}: ipp runs at {idle_median:.2} of none while no checkpoint is taken, and at \
         {copy_median:.2} while checkpoints are."
    );
    let is_slower_idle = idle.len() > 1 && idle.iter().all(|&ratio| ratio < 1.0);
    if is_slower_idle {
        measured + " Every write is stored twice and marked, also while no checkpoint is taken."
    } else {
        measured
    }
}

fn throughput_figure(sizes: &[Size], result: &mut ExperimentResult) {
    let mut figure = Figure {
        title: "New orders per second".into(),
        caption:
            "One thread, group commit of 500, checkpoints as often as possible at an interval \
                  that is equal for all. The paper's rings are its shares of the rate without \
                  checkpoints at 60 warehouses."
                .into(),
        x_label: "warehouses".into(),
        y_label: "new orders/s".into(),
        ..Figure::default()
    };
    for row in ROWS.iter() {
        let point = |size: &Size| [size.scale.warehouses as f64, median(&size.rates(row.name))];
        let spreads = sizes.iter().map(|size| ends(&size.rates(row.name))).collect();
        figure.series.push(row.name.into());
        result.series.push(Series {
            name: row.name.into(),
            x_unit: "warehouses".into(),
            y_unit: "1/s".into(),
            points: sizes.iter().map(point).collect(),
            spreads,
            ..Series::default()
        });
    }
    // The paper says shares of the rate without checkpoints, at 60 warehouses.
    if let Some(largest) = sizes.last() {
        let (at, none) = (largest.scale.warehouses as f64, median(&largest.rates("none")));
        for row in FIGURE_12.iter().filter(|row| row.baseline == "none") {
            let Some(ratio) = row.paper.and_then(Paper::ratio_of) else { continue };
            let text = format!("{}: {ratio} × none, at 60 warehouses", row.subject);
            let at = [at, ratio * none];
            figure.paper.push(PaperPoint { label: row.subject.into(), at, text });
        }
    }
    result.figures.push(figure);
}

/// Median CPU seconds of a checkpoint; a dash if there was none.
fn writer_cpu_s(outcomes: &[Outcome]) -> String {
    let of_image = |it: &Outcome| {
        let images = it.after.images - it.before.images;
        let seconds = it.after.writer_cpu_s - it.before.writer_cpu_s;
        (images > 0).then(|| seconds / images as f64)
    };
    let seconds: Vec<f64> = outcomes.iter().filter_map(of_image).collect();
    if seconds.is_empty() { "—".into() } else { format!("{:.2}", median(&seconds)) }
}

fn table(size: &Size) -> Table {
    let columns = [
        "",
        "new orders/s",
        "÷ none",
        "batch p50 ms",
        "p99 ms",
        "worst ms",
        "checkpoints",
        "checkpoint s",
        "r",
        "dirty share of a period",
        "writer and copier CPU of a checkpoint, s",
        "log B/txn",
        "GB held",
        "recovery s",
    ];
    let mut table = Table {
        title: format!(
            "{}, {} MB, a checkpoint every {:.2} s",
            counted(size.scale.warehouses, "warehouse"),
            data_bytes(&size.scale) / 1_000_000,
            size.interval_s
        ),
        columns: columns.map(String::from).to_vec(),
        rows: Vec::new(),
        ..Table::default()
    };
    for ((row, outcomes), written) in ROWS.iter().zip(&size.outcomes).zip(&size.written) {
        let of = |figure: &dyn Fn(&Outcome) -> f64| {
            median(&outcomes.iter().map(figure).collect::<Vec<_>>())
        };
        let image_s = of(&|it| median(&it.image_s));
        let of_image = |figure: f64, digits: usize| match row.has_images {
            true => format!("{figure:.digits$}"),
            false => "—".into(),
        };
        // Writes during a checkpoint, for each row that the checkpoint captures.
        let writes = written.writes as f64 * image_s / size.interval_s;
        let r = writes / row_count(&size.scale) as f64;
        let dirty_share = written.bytes as f64 / data_bytes(&size.scale) as f64;
        table.rows.push(vec![
            row.name.to_owned(),
            grouped(of(&|it| it.new_orders_per_s) as u64),
            format!("{:.3}", median(&size.ratios(row.name, ROWS[0].name))),
            format!("{:.2}", of(&|it| it.quantile_ms(0.5))),
            format!("{:.2}", of(&|it| it.quantile_ms(0.99))),
            format!("{:.1}", of(&|it| it.quantile_ms(1.0))),
            format!("{:.0}", of(&|it| (it.after.images - it.before.images) as f64)),
            of_image(image_s, 2),
            of_image(r, 3),
            of_image(dirty_share, 3),
            writer_cpu_s(outcomes),
            format!("{:.0}", of(&Outcome::logged_per_transaction)),
            format!("{:.2}", of(&|it| it.after.held_bytes as f64 / 1e9)),
            format!("{:.2}", of(&|it| it.recovery.seconds())),
        ]);
    }
    table
}

/// Time of each batch at one size: the largest that `fc-fig12` runs by default.
pub(crate) struct FcFig13;

impl Experiment for FcFig13 {
    const ID: &'static str = "fc-fig13";
    const TITLE: &'static str = "TPC-C with frequent checkpoints: time of each batch";
    const PAPER: &'static str = PAPER;
    const PARTS: &'static [&'static str] = PARTS;
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
        let scales = fitting(plan, result);
        let plan = Plan { scales: scales.last().copied().into_iter().collect(), ..plan.clone() };
        parameters(&plan, result);
        for &scale in &plan.scales {
            let size = measure(bench.context, &plan, scale)?;
            result.in_part(&size.part(), |result| {
                latency_claims(&size, result);
                latency_figure(&size, result);
                result.tables.push(table(&size));
                Ok(())
            })?;
        }
        Ok(())
    }
}

const FIGURE_13: &str = "SIGMOD 2011, §5.5, Figure 13";

const WORST_BATCH: ClaimRow = ClaimRow::new("worst batch", FIGURE_13, Bound::AtLeast(1.0))
    .between("ns", "ipp, copy")
    .paper(Paper::words("large peaks at the end of each checkpoint period"))
    .goal(Bound::AtLeast(2.0));
const BYTES_LOGGED: ClaimRow = ClaimRow::new("bytes logged", FIGURE_13, Bound::AtLeast(2.0))
    .between("aries", "ipp, copy")
    .paper(Paper::words("it must write more data to disk"));
const MEDIAN_BATCH: ClaimRow = ClaimRow::new("median batch", FIGURE_13, Bound::AtLeast(1.0))
    .between("aries", "ipp, copy")
    .paper(Paper::words("larger and more frequent peaks"));

fn latency_claims(size: &Size, result: &mut ExperimentResult) {
    type OfRun = fn(&Outcome) -> f64;
    let rows: [(ClaimRow, OfRun); 3] = [
        (WORST_BATCH, |it| it.quantile_ms(1.0)),
        (BYTES_LOGGED, Outcome::logged_per_transaction),
        (MEDIAN_BATCH, |it| it.quantile_ms(0.5)),
    ];
    for (row, figure) in rows {
        let both = size.first(row.subject).zip(size.first(row.baseline));
        if let Some((subject, baseline)) = both {
            result.claims.push(row.claim("").measured(figure(subject) / figure(baseline)));
        }
    }
}

fn latency_figure(size: &Size, result: &mut ExperimentResult) {
    let at = counted(size.scale.warehouses, "warehouse");
    let mut figure = Figure {
        title: format!("Time of each batch, {at}"),
        caption: "From the beginning of one batch of 500 transactions to that of the next.".into(),
        x_label: "time, s".into(),
        y_label: "time of a batch, ms".into(),
        y_scale: AxisScale::Log,
        ..Figure::default()
    };
    for (row, outcomes) in ROWS.iter().zip(&size.outcomes) {
        let Some(outcome) = outcomes.first() else {
            continue;
        };
        let name = format!("{}, {at}", row.name);
        if row.is_of_the_paper {
            figure.series.push(name.clone());
        }
        result.series.push(Series {
            name,
            label: row.name.into(),
            x_unit: "s".into(),
            y_unit: "ms".into(),
            points: outcome.batches.iter().map(|batch| [batch.at_s, batch.ms]).collect(),
            ..Series::default()
        });
    }
    result.figures.push(figure);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::{plan, run_plan};
    use crate::subjects;

    fn quick_run<E: Experiment<Plan = Plan>>() -> LabResult<ExperimentResult> {
        let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
        let context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        let open = &subjects::stillpoint::open;
        let bench = Harness { context: &context, open, children: false };
        run_plan::<E>(&bench, &Plan { run_s: 0.25, ..E::quick() })
    }

    #[test]
    fn the_quick_modes_judge_every_claim() -> LabResult<()> {
        if !crate::experiments::has_turn(module_path!()) {
            return Ok(());
        }
        let result = quick_run::<FcFig12>()?;
        assert_eq!(result.claims.len(), 9);
        assert_eq!(result.figures[0].paper.len(), 3, "ipp, ns and ARIES at 60 warehouses");
        assert!(result.claims.iter().all(|claim| claim.met.is_some()));
        assert_eq!((result.tables.len(), result.series.len()), (2, ROWS.len()));
        assert!(result.series.iter().all(|series| series.points.len() == 2));
        let table = &result.tables[0];
        for name in ["r", "dirty share of a period", "writer and copier CPU of a checkpoint, s"] {
            let at = table.columns.iter().position(|it| it == name).expect(name);
            for (row, cells) in ROWS.iter().zip(&table.rows) {
                let is_number = cells[at].parse::<f64>().is_ok_and(|it| it >= 0.0);
                assert_eq!(is_number, row.has_images, "{name} of {}: {}", row.name, cells[at]);
            }
        }
        let own = result.claims.iter().filter(|claim| claim.source == "Stillpoint");
        assert!(own.clone().count() == 2 && own.into_iter().all(|claim| claim.paper.is_none()));
        let result = quick_run::<FcFig13>()?;
        assert!(result.claims.iter().all(|claim| claim.met.is_some()));
        assert_eq!((result.claims.len(), result.figures[0].series.len()), (3, 7));
        let logged = &result.claims[1];
        assert_eq!(logged.met, Some(true), "physical records are longer: {logged:?}");
        Ok(())
    }

    #[test]
    fn a_cause_is_named_only_where_every_run_shows_it() {
        let said = |idle: &[f64]| what_writes_cost("5 warehouses", idle, &[0.7, 0.7]);
        assert!(said(&[0.9, 0.95]).contains("stored twice"));
        for idle in [&[1.42][..], &[0.9], &[0.9, 1.01], &[]] {
            assert!(!said(idle).contains("stored twice"), "{idle:?}");
        }
    }

    #[test]
    fn a_part_is_a_size_and_the_largest_is_run_only_when_asked_for() {
        let mut context =
            Context::new("out".as_ref(), false, "none".into(), Box::new(std::io::sink()));
        let sizes = |context: &Context| {
            plan::<FcFig12>(context).scales.iter().map(|it| it.warehouses).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&context), [5, 10, 20]);
        context.part = Some("40".into());
        assert_eq!(sizes(&context), [40]);
        assert!(PARTS.contains(&LARGEST));
    }

    #[test]
    fn rows_hold_as_many_copies_as_the_paper_says() {
        let of = |name: &str| ROWS.iter().find(|row| row.name == name).map(Row::copies);
        let rows =
            ["none", "ipp, idle", "ns", "ipp, copy", "ipp, merge", "hg, copy", "pb", "aries"];
        assert_eq!(rows.map(of), [1, 3, 2, 4, 3, 3, 2, 1].map(Some));
        let idle: Vec<&str> =
            ROWS.iter().filter(|row| !row.has_images).map(|row| row.name).collect();
        assert_eq!(idle, ["none", "ipp, idle"]);
        assert!(ROWS[1].is_idle() && ROWS.iter().filter(|row| row.is_idle()).count() == 1);
    }
}
