//! Commits as they happened, and the state that a serial execution of them gives.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use parking_lot::Mutex;
use stillpoint_format::{Label, Stamp};
use stillpoint_store::{Change, Commit, CommitLog, LogRefused};

/// Table and key.
pub(crate) type Key = (u16, Vec<u8>);
/// Label and value of every key that has one.
pub(crate) type State = BTreeMap<Key, (Label, Vec<u8>)>;

/// The content of a checkpoint: for each key its label and value, or `None` for a deletion.
pub(crate) type Changes = BTreeMap<Key, Option<(Label, Vec<u8>)>>;

/// A label with this tag, and in some cases with a deadline.
pub(crate) fn labelled(tag: u8) -> Label {
    let deadline = if tag.is_multiple_of(3) { u64::from(tag) << 48 | 1 } else { 0 };
    Label { tag, deadline }
}

/// The state after a chain of checkpoints of changes, the oldest first.
pub(crate) fn state_of<'a>(chain: impl Iterator<Item = &'a Changes>) -> State {
    let mut state = State::new();
    for (key, value) in chain.flatten() {
        match value {
            Some(value) => drop(state.insert(key.clone(), value.clone())),
            None => drop(state.remove(key)),
        }
    }
    state
}

/// A change of one key.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Put(Label, Vec<u8>),
    Delete,
    Patch(Vec<(usize, Vec<u8>)>),
    Until(u64, Vec<(usize, Vec<u8>)>),
}

/// A commit.
#[derive(Clone, Debug)]
pub(crate) struct Committed {
    pub(crate) stamp: Stamp,
    pub(crate) epoch: u64,
    pub(crate) touched: Vec<Stamp>,
    pub(crate) writes: Vec<(Key, Op)>,
}

/// All commits of a run, in no order.
#[derive(Default)]
pub(crate) struct History {
    commits: Mutex<Vec<Committed>>,
    /// Last gsn of each log.
    last: Mutex<BTreeMap<u8, u64>>,
    /// The first gsn that is not closed. 0 if each commit is closed at once.
    open_from: AtomicU64,
}

impl History {
    /// A log that records its commits in this history.
    pub(crate) fn log(self: &Arc<Self>, number: u8) -> RecordingLog {
        let gsn = self.last.lock().get(&number).copied().unwrap_or(0);
        RecordingLog { number, gsn, history: self.clone(), before_append: None }
    }

    /// Closes the commits so far. From now on commits are closed by further calls only.
    pub(crate) fn close_all(&self) {
        let last = self.last.lock().values().copied().max();
        self.open_from.store(last.unwrap_or(0) + 1, SeqCst);
    }

    pub(crate) fn commits(&self) -> Vec<Committed> {
        let mut commits = self.commits.lock().clone();
        commits.sort_by_key(|commit| (commit.stamp.gsn(), commit.stamp.log()));
        commits
    }

    /// The state after exactly the commits of epochs below `epoch`.
    pub(crate) fn state_before(&self, epoch: u64) -> State {
        replay(self.commits().iter().filter(|commit| commit.epoch < epoch))
    }

    /// Commits so far.
    pub(crate) fn count(&self) -> usize {
        self.commits.lock().len()
    }

    /// Of each log, a gsn up to which all commits have been appended.
    pub(crate) fn positions(&self) -> BTreeMap<u8, u64> {
        self.last.lock().clone()
    }

    /// The first commits that were appended, by gsn.
    pub(crate) fn first(&self, count: usize) -> Vec<Committed> {
        let mut commits = self.commits.lock()[..count].to_vec();
        commits.sort_by_key(|commit| (commit.stamp.gsn(), commit.stamp.log()));
        commits
    }

    /// The state after the first commits that were appended.
    pub(crate) fn state_after(&self, count: usize) -> State {
        replay(self.first(count).iter())
    }

    /// The state after all commits.
    pub(crate) fn state(&self) -> State {
        replay(self.commits().iter())
    }

    /// Checks that a commit has no earlier epoch and a greater gsn than each commit that it saw.
    ///
    /// # Panics
    /// If the epoch or the gsn is wrong.
    pub(crate) fn check_epochs_follow_dependencies(&self, seed: u64) {
        let commits = self.commits();
        let epochs: BTreeMap<(u64, u8), u64> = commits
            .iter()
            .map(|commit| ((commit.stamp.gsn(), commit.stamp.log()), commit.epoch))
            .collect();
        for commit in &commits {
            for seen in &commit.touched {
                if let Some(&epoch) = epochs.get(&(seen.gsn(), seen.log())) {
                    let (gsn, at) = (commit.stamp, commit.epoch);
                    assert!(
                        epoch <= at && seen.gsn() < gsn.gsn(),
                        "seed {seed}: {gsn:?} of epoch {at} saw {seen:?} of epoch {epoch}"
                    );
                }
            }
        }
    }
}

/// Applies commits, which are sorted by gsn.
fn replay<'a>(commits: impl Iterator<Item = &'a Committed>) -> State {
    let mut state = State::new();
    for commit in commits {
        for (key, op) in &commit.writes {
            apply(&mut state, key, op);
        }
    }
    state
}

/// Applies one change.
pub(crate) fn apply(state: &mut State, key: &Key, op: &Op) {
    match op {
        Op::Put(label, value) => {
            state.insert(key.clone(), (*label, value.clone()));
        }
        Op::Delete => {
            state.remove(key);
        }
        Op::Patch(ranges) | Op::Until(_, ranges) => {
            let (label, value) = state.get_mut(key).expect("a patch needs a value");
            if let Op::Until(deadline, _) = op {
                label.deadline = *deadline;
            }
            for (offset, bytes) in ranges {
                let end = offset + bytes.len();
                value.resize(value.len().max(end), 0);
                value[*offset..end].copy_from_slice(bytes);
            }
        }
    }
}

/// Fails with the first difference of two states, without printing megabytes.
pub(crate) fn assert_same(found: &State, expected: &State, context: &str) {
    let brief = |entry: Option<&(Label, Vec<u8>)>| match entry {
        None => "nothing".to_owned(),
        Some((label, value)) => {
            let head = &value[..value.len().min(24)];
            format!("{label:?}, {} bytes {head:02x?}…", value.len())
        }
    };
    let keys = found.keys().chain(expected.keys());
    let differing: Vec<&Key> = keys.filter(|key| found.get(*key) != expected.get(*key)).collect();
    if let Some(key) = differing.first() {
        panic!(
            "{context}: {} of {} keys differ, first {:?}: found {}, expected {}",
            differing.len(),
            expected.len(),
            (key.0, String::from_utf8_lossy(&key.1)),
            brief(found.get(*key)),
            brief(expected.get(*key)),
        );
    }
}

/// A log that remembers its commits in a [`History`].
pub(crate) struct RecordingLog {
    number: u8,
    gsn: u64,
    history: Arc<History>,
    /// Called in the middle of each commit, with all locks held and the phase read.
    pub(crate) before_append: Option<Box<dyn FnMut() + Send>>,
}

impl CommitLog for RecordingLog {
    fn append(&mut self, commit: &Commit<'_>) -> Result<Stamp, LogRefused> {
        if let Some(before) = &mut self.before_append {
            before();
        }
        let seen = commit.touched.iter().map(|stamp| stamp.gsn()).max();
        self.gsn = self.gsn.max(seen.unwrap_or(0)) + 1;
        let stamp = Stamp::new(self.gsn, self.number);
        let writes = commit.writes.iter().map(|write| {
            let op = match write.change {
                Change::Put { label, value } => Op::Put(label, value.to_vec()),
                Change::Share { label, value } => Op::Put(label, value.to_vec()),
                Change::Delete => Op::Delete,
                Change::Patch(ranges) => {
                    Op::Patch(ranges.map(|(at, bytes)| (at, bytes.to_vec())).collect())
                }
                Change::Until { deadline, ranges } => {
                    let ranges = ranges.map(|(at, bytes)| (at, bytes.to_vec()));
                    Op::Until(deadline, ranges.collect())
                }
            };
            ((write.table, write.key.to_vec()), op)
        });
        let committed = Committed {
            stamp,
            epoch: commit.epoch,
            touched: commit.touched.to_vec(),
            writes: writes.collect(),
        };
        self.history.commits.lock().push(committed);
        self.history.last.lock().insert(self.number, self.gsn);
        Ok(stamp)
    }

    fn wait_for_room(&mut self) -> Result<(), LogRefused> {
        Ok(())
    }

    fn is_closed(&self, stamp: Stamp) -> bool {
        let open_from = self.history.open_from.load(SeqCst);
        open_from == 0 || stamp.gsn() < open_from
    }
}
