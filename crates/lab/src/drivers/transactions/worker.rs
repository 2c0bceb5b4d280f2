//! The threads that run transactions.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Drive, Part, Run};
use crate::error::LabResult;
use crate::subjects::adapter::{Client, LabEngine, LabSession};
use crate::sys;
use crate::workloads::calc::{CalcTransaction, Change, Partition, Transactions};
use crate::workloads::random::Random;

/// Shortest sleep of a worker without a due transaction.
const NAP_NS: u64 = 20_000;

/// Transactions of a client, until the run ends.
pub(super) fn work(run: &Run<'_>, number: usize, client: &mut dyn Client) -> LabResult<Part> {
    let mut worker = Worker { run, number, part: Part::default() };
    match run.drive.rate_per_s {
        None => worker.saturate(client)?,
        Some(rate_per_s) => worker.keep_rate(client, rate_per_s)?,
    }
    worker.part.cpu_s = sys::thread_cpu_ns() as f64 / 1e9;
    Ok(worker.part)
}

/// The short transactions of the microbenchmark.
pub(super) struct Short<'a> {
    session: Box<dyn LabSession + 'a>,
    transactions: Transactions,
    change: Change,
    batch: Vec<CalcTransaction>,
}

impl<'a> Short<'a> {
    /// A client whose transactions touch the first so many records.
    pub(super) fn new(
        engine: &'a dyn LabEngine,
        drive: &Drive,
        records: u64,
        number: usize,
    ) -> LabResult<Self> {
        Ok(Short {
            session: engine.session()?,
            transactions: Transactions::of_hot(records, drive.hot_share, drive.seed, number)
                .of_mix(drive.mix),
            change: drive.change,
            batch: Vec::with_capacity(drive.batch),
        })
    }
}

impl Client for Short<'_> {
    fn run(&mut self, count: usize) -> LabResult<usize> {
        self.batch.clear();
        self.batch.extend((0..count).map(|_| self.transactions.draw()));
        self.session.run(&self.batch, self.change)?;
        Ok(count)
    }

    fn idle(&mut self) {
        self.session.idle();
    }
}

struct Worker<'a> {
    run: &'a Run<'a>,
    number: usize,
    part: Part,
}

impl Worker<'_> {
    fn saturate(&mut self, client: &mut dyn Client) -> LabResult<()> {
        let count = self.run.drive.batch;
        let mut now_ns = sys::now_ns();
        while !self.run.ended(now_ns) {
            let committed = client.run(count)?;
            now_ns = sys::now_ns();
            self.count(now_ns, committed);
        }
        Ok(())
    }

    fn keep_rate(&mut self, client: &mut dyn Client, rate_per_s: f64) -> LabResult<()> {
        let drive = self.run.drive;
        stillpoint::ask_for_short_slices();
        let gap_ns = 1e9 * drive.workers as f64 / rate_per_s;
        let mut arrivals = Random::for_thread(!drive.seed, self.number);
        let mut due_ns = sys::now_ns() as f64 + arrivals.exponential(gap_ns);
        let mut scheduled = Vec::with_capacity(drive.batch);
        loop {
            let now_ns = sys::now_ns();
            if self.run.ended(now_ns) {
                break;
            }
            scheduled.clear();
            while due_ns <= now_ns as f64 && scheduled.len() < drive.batch {
                scheduled.push(due_ns as u64);
                due_ns += arrivals.exponential(gap_ns);
            }
            if scheduled.is_empty() {
                client.idle();
                let nap_ns = (due_ns as u64).saturating_sub(now_ns).max(NAP_NS);
                sys::sleep(Duration::from_nanos(nap_ns));
                continue;
            }
            let committed = client.run(scheduled.len())?;
            let now_ns = sys::now_ns();
            self.count(now_ns, committed);
            for &at_ns in &scheduled {
                self.latency(at_ns, now_ns);
            }
        }
        // Transactions that were due and never begun have waited until now.
        let now_ns = sys::now_ns();
        while due_ns < self.run.end_ns as f64 {
            self.latency(due_ns as u64, now_ns);
            due_ns += arrivals.exponential(gap_ns);
        }
        Ok(())
    }

    fn latency(&mut self, scheduled_ns: u64, now_ns: u64) {
        if scheduled_ns >= self.run.start_ns {
            let since = now_ns.min(self.run.end_ns - 1) - self.run.start_ns;
            self.part.latencies.record(since, now_ns - scheduled_ns);
        }
    }

    fn count(&mut self, now_ns: u64, committed: usize) {
        let committed = committed as u64;
        self.part.transactions += committed;
        // Relaxed: a statistic with one writer, read by the long transactions' threads.
        self.run.done[self.number].0.store(self.part.transactions, Ordering::Relaxed);
        if (self.run.start_ns..self.run.end_ns).contains(&now_ns) {
            self.part.windows.add(now_ns - self.run.start_ns, committed);
        }
    }
}

/// Batch writes, one after the other, as long as their share allows.
pub(super) fn long(
    engine: &dyn LabEngine,
    run: &Run<'_>,
    partition: &Partition,
    number: usize,
) -> LabResult<Part> {
    let mut part = Part::default();
    let Some(long) = &run.drive.long else {
        return Ok(part);
    };
    let mut session = engine.session()?;
    let own_share = long.share / long.open_max as f64;
    while !run.ended(sys::now_ns()) {
        // Relaxed: statistics.
        let done: u64 = run.done.iter().map(|n| n.0.load(Ordering::Relaxed)).sum();
        if (part.long_transactions as f64) > done as f64 * own_share {
            session.idle();
            sys::sleep(Duration::from_millis(1));
            continue;
        }
        let transaction = partition.long(long, number, part.long_transactions);
        let writes = transaction.keys.len();
        let step_ns = long.seconds * 1e9 / writes as f64;
        let began_ns = sys::now_ns();
        let mut written = 0;
        let mut pause = || {
            written += 1;
            let due_ns = began_ns + (step_ns * f64::from(written)) as u64;
            let now_ns = sys::now_ns();
            if due_ns > now_ns + 1_000_000 && !run.ended(now_ns) {
                sys::sleep(Duration::from_nanos(due_ns - now_ns));
            }
        };
        session.run_long(&transaction, run.drive.change, &mut pause)?;
        part.long_transactions += 1;
        part.updates += writes as u64;
    }
    part.cpu_s = sys::thread_cpu_ns() as f64 / 1e9;
    Ok(part)
}
