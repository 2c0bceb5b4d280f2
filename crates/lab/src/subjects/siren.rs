//! A SIREN store under random updates, and the paper's formulas for what its checkpoints hold twice.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use stillpoint_io::{Clock, RealClock, Rng, SeededRng, in_parallel};
use stillpoint_siren::{Config, Logging, Occupancy, Progress, Removes, SirenError, Store, TableId};

use crate::error::{LabError, LabResult};
use crate::subjects::metered_disk::{DiskMeter, MeteredDisk};

/// Bytes of a value. With its key of 8 bytes a tuple has 300 bytes.
const VALUE_BYTES: usize = 292;
/// Bytes of a tuple.
const TUPLE_BYTES: u64 = 8 + VALUE_BYTES as u64;
/// Bytes of a disk page.
pub(crate) const PAGE_BYTES: u32 = 16 << 10;
/// Tuples of a transaction while the store is loaded.
const LOADED: u64 = 500;

/// What a store is loaded with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored {
    /// Tuples of 300 bytes.
    pub(crate) tuples: u64,
    /// The form of its checkpoints.
    pub(crate) removes: Removes,
    /// Its log.
    pub(crate) logging: Logging,
    /// Bytes per second that the disk writes, log and checkpoints together. The load of the tuples has no
    /// such limit. 0 stands for as fast as it can.
    pub(crate) disk_bytes_per_s: u64,
    /// Log at which the next checkpoint begins.
    pub(crate) checkpoint_log_bytes: u64,
}

/// Clients with transactions, beside checkpoints.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClientRun {
    /// Committed transactions.
    pub(crate) transactions: u64,
    /// Committed transactions per second.
    pub(crate) transactions_per_s: f64,
    /// Bytes of log records.
    pub(crate) log_bytes: u64,
    /// Bytes of tuples in pages of pending removes.
    pub(crate) removes_bytes: u64,
    /// Bytes written: log with headers and padding, and checkpoints.
    pub(crate) device_bytes: u64,
    /// Finished checkpoints, and one that was under way at the end.
    pub(crate) checkpoints: u64,
}

/// Operations of a client's transaction.
const OPERATIONS: u64 = 5;

impl ClientRun {
    /// Pending removes for each update.
    pub(crate) fn removes_per_update(&self) -> f64 {
        let updates = (self.transactions * OPERATIONS).max(1);
        (self.removes_bytes / TUPLE_BYTES) as f64 / updates as f64
    }
}

/// A loaded store.
pub(crate) struct SirenStore {
    store: Store,
    disk: Arc<DiskMeter>,
    disk_bytes_per_s: u64,
    table: TableId,
    tuples: u64,
    logging: Logging,
    checkpoint_log_bytes: u64,
}

/// A checkpoint of all pages beside updates.
#[derive(Clone, Debug)]
pub(crate) struct BesideUpdates {
    /// Updates per second.
    pub(crate) updates_per_s: f64,
    /// Tuples copied per second.
    pub(crate) captured_per_s: f64,
    /// Length of the checkpoint in seconds.
    pub(crate) seconds: f64,
    /// Tuples of a page.
    pub(crate) tuples_per_page: f64,
    /// The most removed tuples that were in memory.
    pub(crate) removed_max: u64,
    /// The most tuples on pages that a copy-on-update of whole pages would have copied.
    pub(crate) touched_max: u64,
    /// Removed tuples, and such tuples on pages, by the time in seconds.
    pub(crate) samples: Vec<(f64, Occupancy)>,
    /// Updates that waited for the pages of removed tuples.
    pub(crate) slowed: u64,
}

fn failed(error: SirenError) -> LabError {
    LabError::Engine { engine: "siren".into(), reason: error.to_string() }
}

/// The tuple that is loaded as number `number`. Pages that are filled in a random order are full to
/// about 69 %, and few updates split them.
fn shuffled(number: u64, tuples: u64) -> u64 {
    // A prime above all numbers of tuples, so each tuple is loaded once.
    number.wrapping_mul(2_654_435_761) % tuples
}

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// Updates a tuple in a transaction of its own.
fn update(
    session: &stillpoint_siren::Session<'_>,
    table: TableId,
    number: u64,
    value: &[u8],
) -> Result<(), SirenError> {
    loop {
        let mut transaction = session.begin();
        match transaction.put(table, &key(number), value) {
            Ok(()) => return transaction.commit().map(drop),
            Err(error) if error.is_retryable() => {}
            Err(error) => return Err(error),
        }
    }
}

impl SirenStore {
    /// Opens a store in an empty directory, loads the tuples, and takes a checkpoint.
    ///
    /// # Errors
    /// When the store fails.
    pub(crate) fn load(dir: &Path, stored: Stored) -> LabResult<Self> {
        let Stored { tuples, removes, logging, disk_bytes_per_s, checkpoint_log_bytes } = stored;
        let meter = Arc::<DiskMeter>::default();
        let disk = MeteredDisk::new(dir, meter.clone()).map_err(|error| failed(error.into()))?;
        let config = Config {
            removes,
            logging,
            checkpoint_log_bytes,
            page_bytes: PAGE_BYTES,
            ..Config::default()
        };
        let store = Store::open(Arc::new(disk), config).map_err(failed)?;
        let table = store.table("benchmark").map_err(failed)?;
        let session = store.session().map_err(failed)?;
        for first in (0..tuples).step_by(LOADED as usize) {
            let mut transaction = session.begin();
            for number in first..(first + LOADED).min(tuples) {
                transaction
                    .put(table, &key(shuffled(number, tuples)), &[1; VALUE_BYTES])
                    .map_err(failed)?;
            }
            transaction.commit().map_err(failed)?;
        }
        drop(session);
        store.checkpoint().map_err(failed)?;
        let disk = meter;
        disk.set_rate(disk_bytes_per_s);
        Ok(Self { store, disk, disk_bytes_per_s, table, tuples, logging, checkpoint_log_bytes })
    }

    /// Makes all pages clean, and then updates a tuple of each. So all are dirty, and the checkpoint copies
    /// them in the order of keys. Otherwise the pages that the last run has updated would come first. They
    /// have more tuples than others, and the capture would not be linear.
    fn make_all_dirty(&self) -> LabResult<()> {
        self.disk.set_rate(0);
        self.store.checkpoint().map_err(failed)?;
        self.disk.set_rate(self.disk_bytes_per_s);
        let occupancy = self.store.occupancy(self.table);
        let step = (occupancy.tuples / occupancy.pages / 2).max(1);
        let session = self.store.session().map_err(failed)?;
        (0..self.tuples)
            .step_by(step as usize)
            .try_for_each(|number| update(&session, self.table, number, &[2; VALUE_BYTES]))
            .map_err(failed)
    }

    /// Takes a checkpoint of all pages beside uniform updates at a rate.
    ///
    /// # Errors
    /// When the store fails.
    pub(crate) fn checkpoint_beside(&self, rate: f64, seed: u64) -> LabResult<BesideUpdates> {
        self.make_all_dirty()?;
        self.store.begin_peaks(self.table);
        let slowed = self.store.slowed_writes();
        let before = self.store.occupancy(self.table);
        let (is_over, updates, begin_ns) =
            (AtomicBool::new(false), AtomicU64::new(0), RealClock.monotonic_ns());
        let seconds = || (RealClock.monotonic_ns() - begin_ns) as f64 / 1e9;
        type Job<'a> = Box<dyn FnOnce() -> Result<Vec<(f64, Occupancy)>, SirenError> + Send + 'a>;
        let writer: Job<'_> = Box::new(|| {
            let result = self.update_at(rate, seed, &is_over, &updates, &seconds);
            result.map(|()| Vec::new())
        });
        let sampler: Job<'_> = Box::new(|| {
            let mut samples = Vec::new();
            // Relaxed: a flag that publishes nothing; its partner is the store below.
            while !is_over.load(Relaxed) {
                samples.push((seconds(), self.store.occupancy(self.table)));
                RealClock.sleep(std::time::Duration::from_millis(50));
            }
            Ok(samples)
        });
        let taken = std::sync::OnceLock::new();
        let checkpointer: Job<'_> = Box::new(|| {
            let copied = self.store.begin_checkpoint().and_then(|mut checkpoint| {
                while checkpoint.step()? == Progress::More {}
                Ok(checkpoint)
            });
            // From here on nothing is held twice.
            let end = (seconds(), updates.load(Relaxed));
            // Relaxed: see the load above.
            is_over.store(true, Relaxed);
            let _ = taken.set((copied?.finish()?, end));
            Ok(Vec::new())
        });
        let results = in_parallel("siren", vec![writer, sampler, checkpointer])
            .map_err(|error| LabError::process("threads of the experiment", error))?;
        let mut samples = Vec::new();
        for result in results {
            samples.extend(result.map_err(failed)?);
        }
        let (done, (end_s, updates)) = taken
            .into_inner()
            .ok_or_else(|| LabError::process("checkpoint", "it has not ended"))?;
        let occupancy = self.store.occupancy(self.table);
        // A tuple that was removed from its page first is in a page of pending removes.
        let copied = done.tuples + done.removes;
        if copied < self.tuples || self.store.records(self.table) != self.tuples {
            let reason = format!("{copied} of {} tuples were copied", self.tuples);
            return Err(LabError::Engine { engine: "siren".into(), reason });
        }
        Ok(BesideUpdates {
            updates_per_s: updates as f64 / end_s,
            captured_per_s: copied as f64 / end_s,
            seconds: end_s,
            tuples_per_page: before.tuples as f64 / before.pages as f64,
            removed_max: occupancy.removed_max,
            touched_max: occupancy.touched_max,
            samples,
            slowed: self.store.slowed_writes() - slowed,
        })
    }

    /// Runs clients with transactions of five reads or updates of uniformly chosen tuples. Checkpoints
    /// begin by the volume of the log, or of what would be logged.
    ///
    /// # Errors
    /// When the store fails.
    pub(crate) fn run_clients(
        &self,
        clients: usize,
        seconds: f64,
        is_update: bool,
        seed: u64,
    ) -> LabResult<ClientRun> {
        let (is_over, committed) = (AtomicBool::new(false), AtomicU64::new(0));
        let begin_ns = RealClock.monotonic_ns();
        let (records, written) = (self.store.log_bytes().0, self.disk.written());
        type Job<'a> = Box<dyn FnOnce() -> Result<ClientRun, SirenError> + Send + 'a>;
        let mut jobs: Vec<Job<'_>> = Vec::new();
        for client in 0..clients as u64 {
            let (is_over, committed) = (&is_over, &committed);
            jobs.push(Box::new(move || {
                let result = self.run_client(seed * 1000 + client, is_update, is_over, committed);
                result.map(|()| ClientRun::default())
            }));
        }
        jobs.push(Box::new(|| self.run_checkpoints(&is_over, &committed)));
        jobs.push(Box::new(|| {
            RealClock.sleep(std::time::Duration::from_secs_f64(seconds));
            let passed_s = (RealClock.monotonic_ns() - begin_ns) as f64 / 1e9;
            // What comes after this moment, such as the end of a write, does not count.
            let transactions = committed.load(Relaxed);
            let run = ClientRun {
                transactions,
                transactions_per_s: transactions as f64 / passed_s,
                log_bytes: self.store.log_bytes().0 - records,
                device_bytes: self.disk.written() - written,
                ..ClientRun::default()
            };
            // Relaxed: a flag that publishes nothing; its partner is the load in `run_client`.
            is_over.store(true, Relaxed);
            Ok(run)
        }));
        let results = in_parallel("siren", jobs)
            .map_err(|error| LabError::process("threads of the experiment", error))?;
        let mut run = ClientRun::default();
        for result in results {
            let of_thread = result.map_err(failed)?;
            run.transactions += of_thread.transactions;
            run.transactions_per_s += of_thread.transactions_per_s;
            run.log_bytes += of_thread.log_bytes;
            run.device_bytes += of_thread.device_bytes;
            run.checkpoints += of_thread.checkpoints;
            run.removes_bytes += of_thread.removes_bytes;
        }
        Ok(run)
    }

    fn run_client(
        &self,
        seed: u64,
        is_update: bool,
        is_over: &AtomicBool,
        committed: &AtomicU64,
    ) -> Result<(), SirenError> {
        let session = self.store.session()?;
        let rng = SeededRng::new(seed);
        // Relaxed: a flag and a count, which publish nothing else.
        while !is_over.load(Relaxed) {
            let mut transaction = session.begin();
            let mut run = || {
                for _ in 0..OPERATIONS {
                    let key = key(rng.below(self.tuples));
                    if is_update {
                        transaction.put(self.table, &key, &[4; VALUE_BYTES])?;
                    } else {
                        transaction.get(self.table, &key)?;
                    }
                }
                Ok::<(), SirenError>(())
            };
            match run() {
                Ok(()) => transaction.commit().map(drop)?,
                Err(error) if error.is_retryable() => continue,
                Err(error) => return Err(error),
            }
            committed.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// Takes checkpoints when they are due, until the run is over. One that is under way then is given up.
    fn run_checkpoints(
        &self,
        is_over: &AtomicBool,
        committed: &AtomicU64,
    ) -> Result<ClientRun, SirenError> {
        let mut run = ClientRun::default();
        let mut counted = 0;
        // Relaxed: a flag and a count, which publish nothing else.
        while !is_over.load(Relaxed) {
            let updates = committed.load(Relaxed) * OPERATIONS - counted;
            let is_due = match self.logging {
                Logging::None => updates * TUPLE_BYTES >= self.checkpoint_log_bytes,
                _ => self.store.is_checkpoint_due(),
            };
            if !is_due {
                RealClock.sleep(std::time::Duration::from_millis(2));
                continue;
            }
            counted += updates;
            let mut checkpoint = self.store.begin_checkpoint()?;
            while !is_over.load(Relaxed) && checkpoint.step()? == Progress::More {}
            run.checkpoints += 1;
            run.removes_bytes += checkpoint.so_far().removes * TUPLE_BYTES;
            if !is_over.load(Relaxed) {
                checkpoint.finish()?;
            }
        }
        Ok(run)
    }

    /// Updates uniformly chosen tuples at a rate, until the checkpoint is over.
    fn update_at(
        &self,
        rate: f64,
        seed: u64,
        is_over: &AtomicBool,
        updates: &AtomicU64,
        seconds: &(dyn Fn() -> f64 + Sync),
    ) -> Result<(), SirenError> {
        let session = self.store.session()?;
        let rng = SeededRng::new(seed);
        let mut done = 0u64;
        // Relaxed: a flag and a count, which publish nothing else.
        while !is_over.load(Relaxed) {
            let due = (seconds() * rate) as u64;
            if done >= due {
                RealClock.sleep(std::time::Duration::from_micros(200));
                continue;
            }
            let batch = (due - done).min(1000);
            for _ in 0..batch {
                update(&session, self.table, rng.below(self.tuples), &[3; VALUE_BYTES])?;
            }
            done += batch;
            updates.store(done, Relaxed);
        }
        Ok(())
    }
}

/// Equation 1 and, with more than one tuple a page, equation 2 of the paper (§4.1): tuples held twice
/// after `seconds` of a checkpoint.
pub(crate) fn duplicates(tuples: f64, per_page: f64, run: &BesideUpdates, seconds: f64) -> f64 {
    let left = (tuples - seconds * run.captured_per_s).max(0.0);
    let untouched = ((tuples - per_page) / tuples).powf(seconds * run.updates_per_s);
    left * (tuples - tuples * untouched) / tuples
}

/// The most tuples held twice, by the formula.
pub(crate) fn duplicates_max(tuples: f64, per_page: f64, run: &BesideUpdates) -> f64 {
    let end_s = tuples / run.captured_per_s;
    let at = |step: u32| duplicates(tuples, per_page, run, end_s * f64::from(step) / 2000.0);
    (0..=2000).map(at).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Table 3 of the paper: 7,000,000 tuples of 300 bytes, 70,000 captured per second, 38 a page.
    #[test]
    fn the_formulas_give_table_3() {
        let table = [(100e3, 92.0, 26.0), (50e3, 85.0, 15.0), (20e3, 71.0, 6.7), (2e3, 19.0, 0.7)];
        for (updates_per_s, of_pages, of_tuples) in table {
            let run = BesideUpdates {
                updates_per_s,
                captured_per_s: 70e3,
                seconds: 100.0,
                tuples_per_page: 38.0,
                removed_max: 0,
                touched_max: 0,
                samples: Vec::new(),
                slowed: 0,
            };
            let percent = |per_page| duplicates_max(7e6, per_page, &run) / 7e6 * 100.0;
            assert!((percent(1.0) - of_tuples).abs() < 0.6, "{} {of_tuples}", percent(1.0));
            assert!((percent(38.0) - of_pages).abs() < 2.5, "{} {of_pages}", percent(38.0));
        }
    }
}
