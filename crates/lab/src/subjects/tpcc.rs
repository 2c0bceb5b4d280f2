//! TPC-C on a state of each scheme and on the competitor. Each of these has its own writer and
//! logger on the real disk.
//!
//! A tick is a batch of transactions, and each transaction is an action of the log. The logger
//! flushes a batch as one (group commit) while the next batch runs. The next batch waits for that
//! flush at its end (SIGMOD 2011, §5.1).

use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use stillpoint_io::{RealClock, RealDisk, RealRng};
use stillpoint_mem::PageSize;
use stillpoint_state::{
    Actions, Arrays, Cells, Config, Content, Environment, Every, Merge, Scheme, State, StateError,
    registry,
};

use crate::error::LabResult;
use crate::measure::outcome::Recovery;
use crate::subjects::aries::Aries;
use crate::subjects::arrays::{Raw, failed, is_from_2011, schemes_with_copies};
use crate::workloads::tpcc::input::{Trace, Transaction};
use crate::workloads::tpcc::load::{Population, digest};
use crate::workloads::tpcc::memory::{InCells, Memory, Rows};
use crate::workloads::tpcc::schema::{Counters, Tables};
use crate::workloads::tpcc::transactions::{Kind, announce, run};
use crate::workloads::tpcc::written::{Noting, Written};

/// Transactions of a batch.
pub(crate) const BATCH: u64 = 500;

/// Counts of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// New orders taken.
    pub(crate) new_orders: u64,
    /// Transactions in all.
    pub(crate) transactions: u64,
    /// Checksum of all answers to clients.
    pub(crate) answers: u64,
}

impl Counted {
    /// Runs transactions, one after the other. Before each transaction the rows of the next one are
    /// prefetched.
    pub(crate) fn run<'a>(
        memory: &mut impl Memory,
        population: &Population,
        actions: impl IntoIterator<Item = &'a [u8]>,
    ) -> Counted {
        // Every logged action can be decoded, since a damaged log is not read at all.
        let mut transactions = actions.into_iter().filter_map(Transaction::decode);
        let (mut counted, mut next) = (Counted::default(), transactions.next());
        while let Some(transaction) = next {
            next = transactions.next();
            if let Some(next) = &next {
                announce(memory, population, next);
            }
            let done = run(memory, population, &transaction);
            counted.transactions += 1;
            counted.new_orders += u64::from(done.kind == Kind::NewOrder);
            counted.answers = counted.answers.rotate_left(1) ^ done.answer;
        }
        counted
    }
}

/// A database that runs batches.
pub(crate) trait Engine {
    /// Runs the next batch of the trace. The batch before it is durable afterwards.
    ///
    /// # Errors
    /// An error of the disk.
    fn batch(&mut self, trace: &Trace) -> LabResult<Counted>;
    /// Asks for a checkpoint, if none is under way.
    ///
    /// # Errors
    /// The error that has ended the checkpoints.
    fn checkpoint(&mut self) -> LabResult<()>;
    /// The engine's status.
    ///
    /// # Errors
    /// The error of a failed checkpoint.
    fn status(&self) -> LabResult<Status>;
    /// Batches that have ended.
    fn batches(&self) -> u64;
}

/// Status of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Status {
    /// True while a checkpoint is under way.
    pub(crate) is_capturing: bool,
    /// Checkpoints that are complete.
    pub(crate) images: u64,
    /// Seconds of the last checkpoint.
    pub(crate) image_s: f64,
    /// Bytes of checkpoints written.
    pub(crate) written_bytes: u64,
    /// Bytes of the log written.
    pub(crate) logged_bytes: u64,
    /// Bytes of memory: copies, marks, and the writer's buffers.
    pub(crate) held_bytes: u64,
    /// CPU seconds of the writer, which copies and writes checkpoints.
    pub(crate) writer_cpu_s: f64,
    /// New orders that found no room.
    pub(crate) refused: u64,
}

/// Backend of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// A state, under a registered scheme.
    State {
        /// The scheme's registered name.
        scheme: &'static str,
        /// How the writer makes images of changes full.
        merge: Merge,
    },
    /// Physical redo and fuzzy checkpoints.
    Aries,
}

/// A database and its name in figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// The row's name in figures.
    pub(crate) name: &'static str,
    /// Backend of the database.
    pub(crate) backend: Backend,
    /// Whether the row takes checkpoints.
    pub(crate) has_images: bool,
    /// Whether Figures 12 and 13 of SIGMOD 2011 have the row.
    pub(crate) is_of_the_paper: bool,
}

fn state(name: String, scheme: &'static str, merge: Merge) -> Row {
    let backend = Backend::State { scheme, merge };
    // The table is made once, and its names stay for the whole run.
    Row { name: name.leak(), backend, has_images: true, is_of_the_paper: is_from_2011(scheme) }
}

/// All compared rows: the baseline, each scheme of the registry that keeps copies, and the
/// competitor. A scheme whose images hold changes has a row for each way to make them full. The
/// first of these schemes also has a row without captures.
pub(crate) static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let (mut idle, mut rows) = (None, Vec::new());
    for scheme in schemes_with_copies() {
        let row = registry::REGISTRY.find(scheme).expect("a name of the registry");
        if row.content == Content::Changes {
            let merge = Merge::FromDisk;
            let without = Row { is_of_the_paper: false, ..state(idle_name(scheme), scheme, merge) };
            idle.get_or_insert(Row { has_images: false, ..without });
            rows.push(state(format!("{scheme}, copy"), scheme, Merge::Copy));
            rows.push(state(format!("{scheme}, merge"), scheme, merge));
        } else {
            rows.push(state(scheme.to_owned(), scheme, Merge::Copy));
        }
    }
    let baseline = registry::REGISTRY.iter().filter(|row| row.content == Content::Nothing);
    let baseline = baseline
        .map(|row| row.layouts[0].name)
        .map(|name| Row { has_images: false, ..state(name.to_owned(), name, Merge::Copy) });
    let aries =
        Row { name: "aries", backend: Backend::Aries, has_images: true, is_of_the_paper: true };
    baseline.chain(idle).chain(rows).chain([aries]).collect()
});

fn idle_name(scheme: &str) -> String {
    format!("{scheme}, idle")
}

impl Row {
    /// Whether the row has a scheme's writes and no captures, so that it shows the cost of the
    /// writes alone.
    pub(crate) fn is_idle(&self) -> bool {
        let takes_images = |scheme| {
            registry::REGISTRY.find(scheme).is_ok_and(|row| row.content != Content::Nothing)
        };
        match self.backend {
            Backend::State { scheme, .. } => !self.has_images && takes_images(scheme),
            Backend::Aries => false,
        }
    }

    /// Whether a checkpoint of the row reads the one before from the disk.
    pub(crate) fn reads_images(&self) -> bool {
        self.has_images && matches!(self.backend, Backend::State { merge: Merge::FromDisk, .. })
    }

    /// Copies of the database that the row holds in memory.
    pub(crate) fn copies(&self) -> usize {
        match self.backend {
            Backend::Aries => 1,
            Backend::State { scheme, merge } => registry::REGISTRY.find(scheme).map_or(1, |row| {
                let keeps_one = row.content == Content::Changes && merge == Merge::Copy;
                row.needs(8).copies + usize::from(keeps_one)
            }),
        }
    }
}

/// A job that needs an open engine.
pub(crate) trait Job {
    /// Result of the job.
    type Output;
    /// Does the job on an open engine.
    ///
    /// # Errors
    /// An error of the engine.
    fn with(&mut self, engine: &mut dyn Engine) -> LabResult<Self::Output>;
}

/// Opens a row's database in a directory and does a job on it. Afterwards the database is dropped,
/// even if a checkpoint is under way.
///
/// # Errors
/// An error of the engine.
pub(crate) fn with<U: Job>(
    row: Row,
    population: &Population,
    dir: &Path,
    what: &mut U,
) -> LabResult<(U::Output, u64)> {
    match row.backend {
        Backend::State { scheme, merge } => {
            let job = OnState { row, merge, population, dir, what };
            registry::run(scheme, job).map_err(|e| failed(scheme, e))?
        }
        Backend::Aries => {
            let disk = Arc::new(RealDisk::new(dir).map_err(|e| failed(row.name, e))?);
            let mut engine = OnPages { aries: Aries::open(disk, population)?, population };
            let output = what.with(&mut engine)?;
            Ok((output, engine.batches()))
        }
    }
}

/// Opens a database whose process has ended, and compares the recovered tables with an oracle.
///
/// # Errors
/// When the database cannot be recovered, has fewer batches than `least`, or differs.
pub(crate) fn recovers(
    row: Row,
    population: &Population,
    trace: &Trace,
    dir: &Path,
    least: u64,
) -> LabResult<Recovery> {
    let recovered = match row.backend {
        Backend::State { scheme, merge } => {
            let reopen = Reopen { row, merge, population, dir };
            registry::run(scheme, reopen).map_err(|e| failed(scheme, e))??
        }
        Backend::Aries => reopen_pages(row, population, dir)?,
    };
    let batches = recovered.recovery.tick;
    if batches < least {
        return Err(failed(row.name, format!("batch {least} was durable, {batches} came back")));
    }
    let expected = oracle(population, trace, batches)?;
    let differs = expected.iter().zip(&recovered.digest).find(|(one, other)| one != other);
    if let Some(((table, _), _)) = differs {
        let reason = format!("what came back after batch {batches} differs in table {table}");
        return Err(failed(row.name, reason));
    }
    Ok(recovered.recovery)
}

/// Digest of a recovered database, with figures of the recovery.
struct Recovered {
    recovery: Recovery,
    digest: Vec<(&'static str, u64)>,
}

/// Contents of the tables after this number of batches, computed without log and checkpoint.
fn oracle(
    population: &Population,
    trace: &Trace,
    batches: u64,
) -> LabResult<Vec<(&'static str, u64)>> {
    let (mut arrays, tables) = raw(population)?;
    let mut memory = InCells { cells: &mut arrays, tables: &tables };
    Counted::run(&mut memory, population, (0..batches * BATCH).map(|number| trace.get(number)));
    Ok(digest(&arrays, &tables))
}

/// The tables without any scheme, filled with the first rows.
fn raw(population: &Population) -> LabResult<(Arrays<Raw>, Tables)> {
    let mut builder = Arrays::<Raw>::builder();
    let tables = Tables::declare(&mut builder, &population.scale);
    let mut arrays = builder.build().map_err(|e| failed("none", e))?;
    population.fill(&mut arrays, &tables).map_err(|e| failed("none", e))?;
    Ok((arrays, tables))
}

/// What has been written after each number of transactions. The numbers must ascend.
///
/// # Errors
/// When there is no memory for the tables.
pub(crate) fn written(
    population: &Population,
    trace: &Trace,
    transactions: &[u64],
) -> LabResult<Vec<Written>> {
    let (mut arrays, tables) = raw(population)?;
    let memory = InCells { cells: &mut arrays, tables: &tables };
    let (mut noting, mut from) = (Noting::new(memory), 0);
    let after = |&to: &u64| {
        Counted::run(&mut noting, population, (from..to).map(|number| trace.get(number)));
        from = from.max(to);
        noting.written
    };
    Ok(transactions.iter().map(after).collect())
}

/// A state that holds the tables.
struct OnCells<'a, S: Scheme> {
    name: &'static str,
    state: State<S>,
    tables: Tables,
    population: &'a Population,
    merge: Merge,
}

fn open<'a, S: Scheme>(
    row: Row,
    merge: Merge,
    population: &'a Population,
    dir: &Path,
) -> Result<(OnCells<'a, S>, stillpoint_state::Recovered), StateError> {
    let mut builder = State::<S>::builder();
    builder.pages(PageSize::Huge);
    let tables = Tables::declare(&mut builder, &population.scale);
    let environment = Environment {
        disk: Arc::new(RealDisk::new(dir)?),
        clock: Arc::new(RealClock),
        rng: Arc::new(RealRng),
    };
    let config = Config {
        merge,
        every: Every::OnRequest,
        flush_interval: Duration::from_micros(500),
        segment_bytes: 64 << 20,
        ..Config::default()
    };
    let first = |cells: &mut Cells<S>| {
        population.fill(cells, &tables).expect("no tick has ended");
    };
    let (state, recovered) = builder.open(environment, &config, first, |cells, _, actions| {
        run_actions(cells, &tables, population, actions);
    })?;
    Ok((OnCells { name: row.name, state, tables, population, merge }, recovered))
}

fn run_actions<S: Scheme>(
    cells: &mut Cells<S>,
    tables: &Tables,
    population: &Population,
    actions: Actions<'_>,
) -> Counted {
    Counted::run(&mut InCells { cells, tables }, population, actions)
}

impl<S: Scheme> Engine for OnCells<'_, S> {
    fn batch(&mut self, trace: &Trace) -> LabResult<Counted> {
        let OnCells { name, state, tables, population, .. } = self;
        let refused = |e: StateError| failed(name, e);
        let first = state.ticks() * BATCH;
        for number in first..first + BATCH {
            state.log(trace.get(number)).map_err(refused)?;
        }
        let mut counted = Counted::default();
        let ran = state.step(|cells, _, actions| {
            counted = run_actions(cells, tables, population, actions);
        });
        let tick = ran.map_err(refused)?;
        state.wait_durable(tick - 1).map_err(refused)?;
        Ok(counted)
    }

    fn checkpoint(&mut self) -> LabResult<()> {
        self.state.checkpoint();
        Ok(())
    }

    fn status(&self) -> LabResult<Status> {
        let progress = self.state.progress().snapshot();
        if let Some(error) = progress.last_failure {
            return Err(failed(self.name, error));
        }
        let keeps_one = S::CONTENT == Content::Changes && self.merge == Merge::Copy;
        let kept = if keeps_one { self.state.state_bytes() } else { 0 };
        Ok(Status {
            is_capturing: S::CONTENT != Content::Nothing && self.state.last_capture().is_none(),
            images: progress.images,
            image_s: progress.image_ns as f64 / 1e9,
            written_bytes: progress.written_bytes,
            logged_bytes: progress.logged_bytes,
            held_bytes: self.state.len_bytes() as u64 + kept,
            writer_cpu_s: progress.writer_cpu_ns as f64 / 1e9,
            refused: (0..self.population.scale.warehouses)
                .map(|warehouse| self.state.read(self.tables.counters, warehouse).refused)
                .sum(),
        })
    }

    fn batches(&self) -> u64 {
        self.state.ticks()
    }
}

struct OnState<'a, U> {
    row: Row,
    merge: Merge,
    population: &'a Population,
    dir: &'a Path,
    what: &'a mut U,
}

impl<U: Job> registry::Program for OnState<'_, U> {
    type Output = LabResult<(U::Output, u64)>;

    fn run<S: Scheme>(self) -> Self::Output {
        let OnState { row, merge, population, dir, what } = self;
        let opened = open::<S>(row, merge, population, dir);
        let (mut engine, _) = opened.map_err(|e| failed(row.name, e))?;
        let output = what.with(&mut engine)?;
        Ok((output, engine.batches()))
    }
}

struct Reopen<'a> {
    row: Row,
    merge: Merge,
    population: &'a Population,
    dir: &'a Path,
}

impl registry::Program for Reopen<'_> {
    type Output = LabResult<Recovered>;

    fn run<S: Scheme>(self) -> LabResult<Recovered> {
        let Reopen { row, merge, population, dir } = self;
        let opened = open::<S>(row, merge, population, dir);
        let (engine, it) = opened.map_err(|e| failed(row.name, e))?;
        let recovery = Recovery {
            tick: it.tick,
            image_bytes: it.image_bytes,
            image_s: it.image_ns as f64 / 1e9,
            replayed_ticks: it.replayed_ticks,
            replay_s: it.replay_ns as f64 / 1e9,
        };
        Ok(Recovered { recovery, digest: digest(&engine.state, &engine.tables) })
    }
}

/// The competitor, with the first rows of the database.
struct OnPages<'a> {
    aries: Aries,
    population: &'a Population,
}

impl Engine for OnPages<'_> {
    fn batch(&mut self, trace: &Trace) -> LabResult<Counted> {
        let (mut counted, first) = (Counted::default(), self.aries.batches() * BATCH);
        self.aries.batch(|aries| {
            let actions = (first..first + BATCH).map(|number| trace.get(number));
            counted = Counted::run(aries, self.population, actions);
        })?;
        Ok(counted)
    }

    fn checkpoint(&mut self) -> LabResult<()> {
        self.aries.checkpoint().map(drop)
    }

    fn status(&self) -> LabResult<Status> {
        let taken = self.aries.taken();
        Ok(Status {
            is_capturing: self.aries.cells().last_capture().is_none(),
            images: taken.checkpoints,
            image_s: taken.last_ns as f64 / 1e9,
            written_bytes: taken.bytes,
            logged_bytes: self.aries.logged_bytes(),
            held_bytes: self.aries.cells().len_bytes() as u64,
            writer_cpu_s: taken.cpu_ns as f64 / 1e9,
            refused: (0..self.population.scale.warehouses)
                .map(|warehouse| self.aries.get(warehouse, Counters::REFUSED))
                .sum(),
        })
    }

    fn batches(&self) -> u64 {
        self.aries.batches()
    }
}

fn reopen_pages(row: Row, population: &Population, dir: &Path) -> LabResult<Recovered> {
    let disk = Arc::new(RealDisk::new(dir).map_err(|e| failed(row.name, e))?);
    let began_ns = crate::sys::now_ns();
    let aries = Aries::open(disk, population)?;
    // The competitor reads pages and log in one go, so all of the time counts as loading of the
    // image.
    let image_s = (crate::sys::now_ns() - began_ns) as f64 / 1e9;
    let digest = digest(aries.cells(), aries.tables());
    let recovery = Recovery { tick: aries.batches(), image_s, ..Recovery::default() };
    Ok(Recovered { recovery, digest })
}
