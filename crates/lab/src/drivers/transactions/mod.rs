//! Drives an engine inside this process with workers, long transactions and checkpoints at given
//! times. The driver counts everything in windows of 100 ms.
//!
//! Saturated workers run batch after batch. At a fixed rate each transaction
//! has a time at which it is due, and its latency counts from there.

mod worker;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{LabError, LabResult};
use crate::measure::stats::{Latencies, Windows};
use crate::subjects::adapter::{Checkpointed, Client, LabEngine};
use crate::sys;
use crate::workloads::calc::{Change, LongTransactions, Mix, Partition};

/// A load of transactions on an engine, with its checkpoints.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Drive {
    /// Threads that run transactions.
    pub(crate) workers: usize,
    /// Length of the measured time.
    pub(crate) seconds: f64,
    /// Uncounted warm-up before the measured time.
    pub(crate) warm_up_s: f64,
    /// Records of the table.
    pub(crate) records: u64,
    /// How much of a value an update changes.
    pub(crate) change: Change,
    /// What transactions do with their records.
    pub(crate) mix: Mix,
    /// Share of the records that transactions touch.
    pub(crate) hot_share: f64,
    /// Transactions that a worker hands over as one batch.
    pub(crate) batch: usize,
    /// Transactions per second over all workers. Without a number the workers are saturated.
    pub(crate) rate_per_s: Option<f64>,
    /// Batch writes beside the short transactions.
    pub(crate) long: Option<LongTransactions>,
    /// Times at which checkpoints begin, in seconds of the measured time.
    pub(crate) checkpoints_at_s: Vec<f64>,
    /// Time from the end of the last of these checkpoints to the begin of a merge. `None` for no
    /// merge.
    pub(crate) merge_delay_s: Option<f64>,
    /// Seed of keys and arrival times.
    pub(crate) seed: u64,
}

impl Drive {
    /// Two saturated workers for ten seconds on so many records, no checkpoint.
    pub(crate) fn new(records: u64) -> Drive {
        Drive {
            workers: 2,
            seconds: 10.0,
            warm_up_s: 0.5,
            records,
            change: Change::Counter,
            mix: Mix::OF_THE_PAPER,
            hot_share: 1.0,
            batch: 4,
            rate_per_s: None,
            long: None,
            checkpoints_at_s: Vec::new(),
            merge_delay_s: None,
            seed: 1,
        }
    }
}

/// One checkpoint of a run, or one merge.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Capture {
    /// Time of the request, in seconds of the measured time.
    pub(crate) from_s: f64,
    /// Time of the publication, in seconds of the measured time.
    pub(crate) to_s: f64,
    /// Bytes of the checkpoint's files. 0 for a merge.
    pub(crate) bytes: u64,
    /// How often a commit waited for room in the checkpoint's output, and the sum of these waits in
    /// seconds.
    pub(crate) waits: u64,
    pub(crate) waited_s: f64,
    /// Seconds in which no commit could begin.
    pub(crate) stopped_s: f64,
    /// Seconds of the capture scan. 0 if the engine does not tell it.
    pub(crate) scan_s: f64,
    /// Seconds from the begin until the next checkpoint may begin. Not-a-number if the engine does not say.
    pub(crate) ready_s: f64,
    /// The most bytes that the checkpoint had in use in the pool of stable versions.
    pub(crate) stable_bytes_max: u64,
}

impl Capture {
    /// The duration in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.to_s - self.from_s
    }

    /// Seconds in which records were captured. The request, the last writes and the publication are left out.
    /// Where the engine does not tell these seconds, the whole [`seconds`](Self::seconds) stand for them.
    pub(crate) fn captured_s(&self) -> f64 {
        if self.scan_s > 0.0 { self.scan_s } else { self.seconds() }
    }
}

/// Bytes held at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MemoryAt {
    /// Seconds of the measured time.
    pub(crate) at_s: f64,
    /// Bytes held by the engine, by its own account.
    pub(crate) engine_bytes: u64,
    /// Bytes of them in buffers of the log.
    pub(crate) log_buffer_bytes: u64,
    /// Anonymous resident bytes of this process.
    pub(crate) process_bytes: u64,
}

/// Outcome of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Short transactions per window.
    pub(crate) windows: Windows,
    /// Latencies of short transactions from their scheduled times, in runs with a rate.
    pub(crate) latencies: Latencies,
    /// Short transactions, the warm-up included.
    pub(crate) transactions: u64,
    /// Number of finished batch writes.
    pub(crate) long_transactions: u64,
    /// Updates of all transactions, the warm-up included.
    pub(crate) updates: u64,
    /// Checkpoints, in order.
    pub(crate) captures: Vec<Capture>,
    /// Merges of checkpoints.
    pub(crate) merges: Vec<Capture>,
    /// Memory every 100 ms.
    pub(crate) held: Vec<MemoryAt>,
    /// Length of the measured time.
    pub(crate) seconds: f64,
    /// CPU seconds of the process outside of the workers: checkpoints, flushes, upkeep.
    pub(crate) background_cpu_s: f64,
    /// Bytes that the journal wrote in the measured time.
    pub(crate) journal_bytes: u64,
}

impl Outcome {
    /// Short transactions per second.
    pub(crate) fn rate(&self) -> f64 {
        self.windows.total() as f64 / self.windows.covered_s()
    }

    fn merge(&mut self, part: Part) {
        self.windows.merge(&part.windows);
        self.latencies.merge(&part.latencies);
        self.transactions += part.transactions;
        self.long_transactions += part.long_transactions;
        self.updates += part.updates;
        self.merges.extend(part.merges);
        self.background_cpu_s -= part.cpu_s;
    }
}

/// Counts of one thread.
#[derive(Debug, Default)]
struct Part {
    windows: Windows,
    latencies: Latencies,
    transactions: u64,
    long_transactions: u64,
    updates: u64,
    merges: Vec<Capture>,
    /// CPU seconds that are no background work.
    cpu_s: f64,
}

/// State that the threads of one run share.
#[derive(Debug)]
struct Run<'a> {
    drive: &'a Drive,
    start_ns: u64,
    end_ns: u64,
    /// Set when a thread has failed, so that the others end too.
    stop: AtomicBool,
    /// Short transactions so far, one counter per worker.
    done: Vec<Padded>,
}

/// A counter on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded(AtomicU64);

impl<'a> Run<'a> {
    /// A run whose threads wait for the common start.
    fn new(drive: &'a Drive) -> Self {
        let start_ns = sys::now_ns() + 20_000_000 + (drive.warm_up_s * 1e9) as u64;
        Run {
            drive,
            start_ns,
            end_ns: start_ns + (drive.seconds * 1e9) as u64,
            stop: AtomicBool::new(false),
            done: (0..drive.workers).map(|_| Padded::default()).collect(),
        }
    }

    fn ended(&self, now_ns: u64) -> bool {
        // Relaxed: the flag guards no other memory.
        now_ns >= self.end_ns || self.stop.load(Ordering::Relaxed)
    }

    fn since_start(&self, now_ns: u64) -> f64 {
        (now_ns as f64 - self.start_ns as f64) / 1e9
    }
}

enum Done {
    Part(Part),
    Control(Control),
}

#[derive(Debug, Default)]
struct Control {
    captures: Vec<Capture>,
    held: Vec<MemoryAt>,
    journal_bytes: u64,
    cpu_s: f64,
}

/// Runs the load to its end.
///
/// # Errors
/// When a transaction or a checkpoint fails, or a checkpoint does not end.
pub(crate) fn run(engine: &dyn LabEngine, drive: &Drive) -> LabResult<Outcome> {
    let run = &Run::new(drive);
    let partition = &Partition::new(drive.records, drive.long.is_some());
    let mut jobs: Vec<Job<'_>> = Vec::new();
    for number in 0..drive.workers {
        jobs.push(Box::new(move || {
            let mut client = worker::Short::new(engine, drive, partition.short, number)?;
            let mut part = worker::work(run, number, &mut client)?;
            part.updates = part.transactions * drive.mix.writes as u64;
            Ok(part)
        }));
    }
    if let Some(delay_s) = drive.merge_delay_s {
        jobs.push(Box::new(move || merge(engine, run, delay_s)));
    }
    for number in 0..drive.long.map_or(0, |long| long.open_max) {
        jobs.push(Box::new(move || worker::long(engine, run, partition, number)));
    }
    run_jobs(engine, run, jobs)
}

/// Makes the client of a worker's number, in the worker's own thread.
pub(crate) type MakeClient<'a> = dyn Fn(usize) -> LabResult<Box<dyn Client + 'a>> + Sync + 'a;

/// Runs clients of any kind of load to the end. The drive's records, changes and long transactions
/// are not used.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_clients(
    engine: &dyn Checkpointed,
    drive: &Drive,
    make: &MakeClient<'_>,
) -> LabResult<Outcome> {
    let run = &Run::new(drive);
    let mut jobs: Vec<Job<'_>> = Vec::new();
    for number in 0..drive.workers {
        jobs.push(Box::new(move || worker::work(run, number, &mut *make(number)?)));
    }
    run_jobs(engine, run, jobs)
}

/// The work of one thread in a run.
type Job<'a> = Box<dyn FnOnce() -> LabResult<Part> + Send + 'a>;

fn run_jobs(engine: &dyn Checkpointed, run: &Run<'_>, jobs: Vec<Job<'_>>) -> LabResult<Outcome> {
    let drive = run.drive;
    let mut guarded: Vec<Box<dyn FnOnce() -> LabResult<Done> + Send + '_>> = Vec::new();
    for job in jobs {
        guarded.push(Box::new(move || guard(run, job).map(Done::Part)));
    }
    guarded.push(Box::new(move || guard(run, || control(engine, run)).map(Done::Control)));

    let cpu_before_ns = stillpoint_io::process_cpu_ns();
    let done = stillpoint_io::in_parallel("drive", guarded)
        .map_err(|e| LabError::process("threads of a run", e))?;
    let cpu_s = (stillpoint_io::process_cpu_ns() - cpu_before_ns) as f64 / 1e9;
    let mut outcome =
        Outcome { seconds: drive.seconds, background_cpu_s: cpu_s, ..Outcome::default() };
    for done in done {
        match done? {
            Done::Part(part) => outcome.merge(part),
            Done::Control(control) => {
                outcome.captures = control.captures;
                outcome.held = control.held;
                outcome.journal_bytes = control.journal_bytes;
                outcome.background_cpu_s -= control.cpu_s;
            }
        }
    }
    outcome.windows.fit((drive.seconds * 1e9) as u64);
    Ok(outcome)
}

/// Tells the other threads to end when this one fails.
fn guard<T>(run: &Run<'_>, body: impl FnOnce() -> LabResult<T>) -> LabResult<T> {
    let result = body();
    if result.is_err() {
        // Relaxed: see `Run::ended`.
        run.stop.store(true, Ordering::Relaxed);
    }
    result
}

/// Merges the checkpoints once, some time after the last one of the run.
fn merge(engine: &dyn Checkpointed, run: &Run<'_>, delay_s: f64) -> LabResult<Part> {
    let last = engine.status().checkpoints + run.drive.checkpoints_at_s.len() as u64;
    while engine.status().checkpoints < last {
        if run.ended(sys::now_ns()) {
            return Ok(Part::default());
        }
        sys::sleep(CONTROL_TICK);
    }
    let from_ns = sys::now_ns() + (delay_s * 1e9) as u64;
    if run.ended(from_ns) {
        return Ok(Part::default());
    }
    sys::sleep_until(from_ns);
    let merged = engine.merge()?;
    let (from_s, to_s) = (run.since_start(from_ns), run.since_start(sys::now_ns()));
    let merges = merged.then_some(Capture { from_s, to_s, ..Capture::default() });
    Ok(Part { merges: merges.into_iter().collect(), ..Part::default() })
}

/// Longest wait for a checkpoint that outlasts its run.
const CHECKPOINT_PATIENCE_NS: u64 = 300_000_000_000;
const CONTROL_TICK: Duration = Duration::from_millis(4);

/// Begins checkpoints when they are due, notes when they end, and samples memory.
fn control(engine: &dyn Checkpointed, run: &Run<'_>) -> LabResult<Control> {
    let cpu_before_ns = sys::thread_cpu_ns();
    let mut control = Control::default();
    let mut due = run.drive.checkpoints_at_s.iter();
    let mut next = due.next();
    let mut begun: Option<(u64, u64)> = None;
    sys::sleep_until(run.start_ns);
    let journal_before = engine.status().journal_bytes;
    let mut next_sample_ns = run.start_ns;
    loop {
        let now_ns = sys::now_ns();
        let ended = run.ended(now_ns);
        if let (Some(&at_s), None, false) = (next, begun, ended)
            && run.since_start(now_ns) >= at_s
        {
            begun = Some((now_ns, engine.status().checkpoints));
            engine.start_checkpoint()?;
            next = due.next();
        }
        if let Some((from_ns, finished_before)) = begun {
            let status = engine.status();
            if let Some(reason) = status.failed {
                return Err(LabError::Engine { engine: "checkpoint".into(), reason });
            }
            if status.checkpoints > finished_before {
                let (from_s, to_s) = (run.since_start(from_ns), run.since_start(sys::now_ns()));
                control.captures.push(Capture {
                    from_s,
                    to_s,
                    bytes: status.last_bytes,
                    waits: status.last_waits,
                    waited_s: status.last_waited_s,
                    stopped_s: status.last_stopped_s,
                    scan_s: status.last_scan_s,
                    ready_s: status.last_ready_s,
                    stable_bytes_max: status.stable_bytes_max,
                });
                begun = None;
            } else if now_ns > run.end_ns + CHECKPOINT_PATIENCE_NS {
                let reason = "a checkpoint does not end".into();
                return Err(LabError::Engine { engine: "checkpoint".into(), reason });
            }
        }
        if now_ns >= next_sample_ns && !ended {
            let status = engine.status();
            control.held.push(MemoryAt {
                at_s: run.since_start(now_ns),
                engine_bytes: status.held_bytes,
                log_buffer_bytes: status.log_buffer_bytes,
                process_bytes: crate::measure::process::own_bytes(),
            });
            next_sample_ns += crate::measure::stats::WINDOW_NS;
        }
        if ended && begun.is_none() {
            break;
        }
        sys::sleep(CONTROL_TICK);
    }
    control.journal_bytes = engine.status().journal_bytes - journal_before;
    control.cpu_s = (sys::thread_cpu_ns() - cpu_before_ns) as f64 / 1e9;
    Ok(control)
}

#[cfg(test)]
pub(crate) mod tests;
