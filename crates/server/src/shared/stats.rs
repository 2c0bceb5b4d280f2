//! Counters: one block for each event loop, which alone writes it.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::counter::Counter;

/// Buckets of the latency histograms: bucket `b` counts calls below 2^b µs.
pub(crate) const LATENCY_BUCKETS: usize = 32;

/// Counters of one command.
#[derive(Debug)]
pub(crate) struct CommandStats {
    pub(crate) calls: Counter,
    pub(crate) nanoseconds: Counter,
    pub(crate) rejected: Counter,
    pub(crate) failed: Counter,
    /// Calls by time. A round that times no single call counts each with the round's mean.
    pub(crate) latency: [Counter; LATENCY_BUCKETS],
}

/// The counters of one event loop.
#[derive(Debug)]
pub(crate) struct WorkerStats {
    pub(crate) commands: Counter,
    pub(crate) net_in: Counter,
    pub(crate) net_out: Counter,
    pub(crate) reads: Counter,
    pub(crate) writes: Counter,
    pub(crate) errors: Counter,
    pub(crate) flushes: Counter,
    pub(crate) flush_nanoseconds: Counter,
    /// Error replies by the first word of their text.
    errors_by_code: Mutex<BTreeMap<Box<str>, u64>>,
    by_command: Box<[CommandStats]>,
}

impl WorkerStats {
    /// Counters for commands with ids below `commands`.
    pub(crate) fn new(commands: usize) -> Self {
        let zero = |_| CommandStats {
            calls: Counter::default(),
            nanoseconds: Counter::default(),
            rejected: Counter::default(),
            failed: Counter::default(),
            latency: Default::default(),
        };
        Self {
            commands: Counter::default(),
            net_in: Counter::default(),
            net_out: Counter::default(),
            reads: Counter::default(),
            writes: Counter::default(),
            errors: Counter::default(),
            flushes: Counter::default(),
            flush_nanoseconds: Counter::default(),
            errors_by_code: Mutex::default(),
            by_command: (0..commands).map(zero).collect(),
        }
    }

    /// The counters of the command with that id.
    pub(crate) fn command(&self, id: u16) -> &CommandStats {
        &self.by_command[usize::from(id)]
    }

    pub(crate) fn count_call(&self, id: u16) {
        self.commands.add(1);
        self.command(id).calls.add(1);
    }

    /// Notes that a counted call will run again.
    pub(crate) fn uncount_call(&self, id: u16) {
        self.commands.take_back();
        self.command(id).calls.take_back();
    }

    /// Notes that calls of a command took `nanoseconds` each.
    pub(crate) fn count_time(&self, id: u16, nanoseconds: u64) {
        let stats = self.command(id);
        stats.nanoseconds.add(nanoseconds);
        let bucket = (64 - (nanoseconds / 1000).leading_zeros()) as usize;
        stats.latency[bucket.min(LATENCY_BUCKETS - 1)].add(1);
    }

    /// Counts an error reply of that text.
    pub(crate) fn count_error(&self, text: &str) {
        self.errors.add(1);
        let code = text.split(' ').next().unwrap_or_default();
        let mut errors = self.errors_by_code.lock();
        match errors.get_mut(code) {
            Some(count) => *count += 1,
            None => drop(errors.insert(code.into(), 1)),
        }
    }

    /// Adds the error replies by code to `sums`.
    pub(crate) fn add_errors(&self, sums: &mut BTreeMap<Box<str>, u64>) {
        for (code, count) in &*self.errors_by_code.lock() {
            *sums.entry(code.clone()).or_default() += count;
        }
    }

    /// Sets the counters that `CONFIG RESETSTAT` resets to zero.
    pub(crate) fn reset(&self) {
        for counter in [
            &self.commands,
            &self.net_in,
            &self.net_out,
            &self.reads,
            &self.writes,
            &self.errors,
            &self.flushes,
            &self.flush_nanoseconds,
        ] {
            counter.clear();
        }
        self.errors_by_code.lock().clear();
        for stats in &self.by_command {
            stats.clear();
        }
    }
}

impl CommandStats {
    fn clear(&self) {
        for counter in [&self.calls, &self.nanoseconds, &self.rejected, &self.failed] {
            counter.clear();
        }
        self.latency.iter().for_each(Counter::clear);
    }
}

/// Commands per second over the last 1.6 seconds, sampled ten times a second.
#[derive(Debug, Default)]
pub(crate) struct Rate {
    samples: [(u64, u64); 16],
    at: usize,
}

impl Rate {
    /// Notes that `total` was reached at `now_ns`.
    pub(crate) fn sample(&mut self, now_ns: u64, total: u64) {
        self.samples[self.at % 16] = (now_ns, total);
        self.at += 1;
    }

    /// Per second, between the oldest and the newest sample.
    pub(crate) fn per_second(&self) -> f64 {
        if self.at < 2 {
            return 0.0;
        }
        let newest = self.samples[(self.at - 1) % 16];
        let oldest = self.samples[if self.at < 16 { 0 } else { self.at % 16 }];
        let seconds = newest.0.saturating_sub(oldest.0) as f64 / 1e9;
        // The total decreases when the counters are reset.
        let count = newest.1.saturating_sub(oldest.1) as f64;
        if seconds > 0.0 { count / seconds } else { 0.0 }
    }
}
