//! Commands that took long, and the latency events of `LATENCY`.

use std::collections::{BTreeMap, VecDeque};

use parking_lot::Mutex;

use crate::resp::{Args, REDACTED};

/// Arguments kept of one command.
const ARGS_MAX: usize = 32;
/// Bytes kept of one argument.
const ARG_BYTES_MAX: usize = 128;

/// One slow command.
#[derive(Debug, Clone)]
pub(crate) struct SlowEntry {
    pub(crate) id: u64,
    pub(crate) unix_s: u64,
    pub(crate) duration_us: u64,
    pub(crate) args: Vec<Vec<u8>>,
    pub(crate) client: String,
    pub(crate) client_name: String,
}

/// The last slow commands, newest first.
#[derive(Debug, Default)]
pub(crate) struct SlowLog {
    inner: Mutex<(u64, VecDeque<SlowEntry>)>,
}

/// Arguments for the slow log, shortened as in Redis. `is_secret` says which are hidden.
pub(crate) fn shortened(args: Args<'_>, is_secret: impl Fn(usize) -> bool) -> Vec<Vec<u8>> {
    let kept = if args.len() > ARGS_MAX { ARGS_MAX - 1 } else { args.len() };
    let mut out: Vec<Vec<u8>> = args
        .from(0)
        .take(kept)
        .enumerate()
        .map(|(i, arg)| {
            if is_secret(i) {
                return REDACTED.to_vec();
            }
            if arg.len() <= ARG_BYTES_MAX {
                return arg.to_vec();
            }
            let mut cut = arg[..ARG_BYTES_MAX].to_vec();
            let more = arg.len() - ARG_BYTES_MAX;
            cut.extend_from_slice(format!("... ({more} more bytes)").as_bytes());
            cut
        })
        .collect();
    if kept < args.len() {
        out.push(format!("... ({} more arguments)", args.len() - kept).into_bytes());
    }
    out
}

impl SlowLog {
    /// Adds a command and forgets the oldest beyond `max_len`. `args` come from [`shortened`].
    pub(crate) fn push(
        &self,
        max_len: usize,
        unix_s: u64,
        duration_us: u64,
        args: Vec<Vec<u8>>,
        client: String,
        client_name: String,
    ) {
        let mut inner = self.inner.lock();
        let (next_id, entries) = &mut *inner;
        let id = *next_id;
        *next_id += 1;
        entries.push_front(SlowEntry { id, unix_s, duration_us, args, client, client_name });
        entries.truncate(max_len);
    }

    /// The newest `count` entries.
    pub(crate) fn newest(&self, count: usize) -> Vec<SlowEntry> {
        self.inner.lock().1.iter().take(count).cloned().collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.inner.lock().1.len()
    }

    pub(crate) fn clear(&self) {
        self.inner.lock().1.clear();
    }
}

/// Samples kept of one latency event.
const SAMPLES_MAX: usize = 160;

/// Latency events by name: (unix seconds, milliseconds).
#[derive(Debug, Default)]
pub(crate) struct LatencyMonitor {
    events: Mutex<BTreeMap<&'static str, VecDeque<(u64, u64)>>>,
}

impl LatencyMonitor {
    /// Notes that `event` took `ms`.
    pub(crate) fn note(&self, event: &'static str, unix_s: u64, ms: u64) {
        let mut events = self.events.lock();
        let samples = events.entry(event).or_default();
        match samples.back_mut() {
            Some(last) if last.0 == unix_s => last.1 = last.1.max(ms),
            _ => samples.push_back((unix_s, ms)),
        }
        if samples.len() > SAMPLES_MAX {
            samples.pop_front();
        }
    }

    /// The samples of one event, oldest first.
    pub(crate) fn history(&self, event: &str) -> Vec<(u64, u64)> {
        self.events.lock().get(event).map_or_else(Vec::new, |s| s.iter().copied().collect())
    }

    /// For each event, its name, last sample and greatest milliseconds.
    pub(crate) fn latest(&self) -> Vec<(&'static str, (u64, u64), u64)> {
        let events = self.events.lock();
        let row = |(name, samples): (&&'static str, &VecDeque<(u64, u64)>)| {
            let last = *samples.back()?;
            let max = samples.iter().map(|s| s.1).max()?;
            Some((*name, last, max))
        };
        events.iter().filter_map(row).collect()
    }

    /// Forgets the named events, or all events if none is named. Returns the number forgotten.
    pub(crate) fn reset(&self, names: &[&[u8]]) -> usize {
        let mut events = self.events.lock();
        let before = events.len();
        events.retain(|name, _| {
            !names.is_empty() && !names.iter().any(|n| n.eq_ignore_ascii_case(name.as_bytes()))
        });
        before - events.len()
    }
}
