//! What checkpoints and commits leave behind: the records of a capture, and the history of all commits.

use std::collections::BTreeMap;
use std::sync::Arc;

use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;
use stillpoint_format::{Label, Stamp};
use stillpoint_sync::Mutex;

use crate::{Change, Commit, CommitLog, DeletedKey, Lane, LogRefused, RecordImage, Sink};

pub(super) type Value = (Label, Vec<u8>);
pub(super) type State = BTreeMap<Vec<u8>, Value>;
/// The keys of a checkpoint, each with its value, or `None` for a deletion, and with a gsn.
pub(super) type Changes = Vec<(Vec<u8>, Option<Value>, u64)>;

/// A sink that keeps its records, in the order in which they come.
#[derive(Default)]
pub(super) struct Paper(Mutex<Changes>);

impl Sink for Paper {
    fn with_lane(&self, _: usize, with: &mut dyn FnMut(&mut dyn Lane)) {
        let mut lines = Lines(Vec::new());
        with(&mut lines);
        self.0.lock().append(&mut lines.0);
    }
    fn has_room(&self) -> bool {
        thread_rng().gen_range(0..4) != 0
    }
    fn wait_for_room(&self, _: usize) {
        thread::yield_now();
    }
}

/// The records that one lane takes in one call.
struct Lines(Changes);

impl Lane for Lines {
    fn emit(&mut self, record: &RecordImage<'_>) {
        // The value is read word by word, so that other threads may write between two words.
        let value = (record.value.label(), record.value.to_vec());
        self.0.push((record.key.to_vec(), Some(value), record.gsn));
    }
    fn emit_deletion(&mut self, deleted: &DeletedKey<'_>) {
        self.0.push((deleted.key.to_vec(), None, deleted.gsn));
    }
    fn take_back(&mut self) {
        assert!(self.0.pop().is_some(), "nothing to take back");
    }
}

impl Paper {
    /// The state `state` after these changes, and the gsns of the changes.
    pub(super) fn state_after(&self, mut state: State) -> (State, BTreeMap<Vec<u8>, u64>) {
        let mut gsns = BTreeMap::new();
        for (key, value, gsn) in self.0.lock().drain(..) {
            assert!(gsns.insert(key.clone(), gsn).is_none(), "key {key:?} was emitted twice");
            match value {
                Some(value) => drop(state.insert(key, value)),
                None => drop(state.remove(&key)),
            }
        }
        (state, gsns)
    }

    /// What the scan has taken for an unpublished checkpoint is of its point of consistency, too. No commit
    /// overwrites a record that the scan may still read.
    pub(super) fn assert_part_of(&self, state: &State) {
        for (key, value, _) in self.0.lock().drain(..) {
            assert_eq!(state.get(&key), value.as_ref(), "key {key:?} of an unpublished checkpoint");
        }
    }
}

/// A commit: stamp, epoch, and what it wrote.
type Committed = (Stamp, u64, Vec<(Vec<u8>, Op)>);

enum Op {
    Put(Value),
    Delete,
    Patch(usize, Vec<u8>),
    Until(u64),
}

/// All commits, in no order.
#[derive(Default)]
pub(super) struct History(Mutex<Vec<Committed>>);

impl History {
    /// The state after the commits of epochs below `epoch`.
    pub(super) fn state_before(&self, epoch: u64) -> State {
        let mut commits = self.0.lock();
        Self::replay(&mut commits, State::new(), &|of, _| of.1 < epoch)
    }

    /// The last gsn of each log.
    pub(super) fn positions(&self) -> BTreeMap<u8, u64> {
        let commits = self.0.lock();
        let mut positions = BTreeMap::new();
        for (stamp, _, _) in commits.iter() {
            let last: &mut u64 = positions.entry(stamp.log()).or_default();
            *last = stamp.gsn().max(*last);
        }
        positions
    }

    /// The state after all commits so far, and the state that a checkpoint and a replay from these
    /// positions give.
    pub(super) fn replayed(&self, paper: &Paper, positions: &BTreeMap<u8, u64>) -> (State, State) {
        let mut commits = self.0.lock();
        let (state, gsns) = paper.state_after(State::new());
        let is_newer = |of: &Committed, key: &Vec<u8>| {
            let position = positions.get(&of.0.log()).copied().unwrap_or(0);
            of.0.gsn() > position.max(gsns.get(key).copied().unwrap_or(0))
        };
        let all = Self::replay(&mut commits, State::new(), &|_, _| true);
        (all, Self::replay(&mut commits, state, &is_newer))
    }

    /// Applies the wanted changes of commits to a state, by gsn.
    fn replay(
        commits: &mut [Committed],
        mut state: State,
        is_wanted: &dyn Fn(&Committed, &Vec<u8>) -> bool,
    ) -> State {
        commits.sort_by_key(|(stamp, _, _)| (stamp.gsn(), stamp.log()));
        let all = commits.iter().flat_map(|of| of.2.iter().map(move |change| (of, change)));
        for (_, (key, op)) in all.filter(|(of, (key, _))| is_wanted(of, key)) {
            match op {
                Op::Put(value) => {
                    state.insert(key.clone(), value.clone());
                }
                Op::Delete => {
                    state.remove(key);
                }
                Op::Patch(offset, bytes) => {
                    let (_, value) = state.get_mut(key).expect("a patch needs a value");
                    value[*offset..offset + bytes.len()].copy_from_slice(bytes);
                }
                Op::Until(deadline) => {
                    let (label, _) = state.get_mut(key).expect("a deadline needs a value");
                    label.deadline = *deadline;
                }
            }
        }
        state
    }
}

/// A log that records its commits in the history.
pub(super) struct Recorder {
    pub(super) number: u8,
    pub(super) gsn: u64,
    pub(super) history: Arc<History>,
}

impl CommitLog for Recorder {
    fn append(&mut self, commit: &Commit<'_>) -> Result<Stamp, LogRefused> {
        // The commit waits outside of its read section, and phases pass meanwhile.
        if thread_rng().gen_range(0..4) == 0 {
            return Err(LogRefused::NoRoom);
        }
        let touched = commit.touched.iter().map(|stamp| stamp.gsn()).max().unwrap_or(0);
        self.gsn = self.gsn.max(touched) + 1;
        let stamp = Stamp::new(self.gsn, self.number);
        let op = |change| match change {
            Change::Put { label, value } => Op::Put((label, value.to_vec())),
            Change::Delete => Op::Delete,
            Change::Patch(ranges) => {
                let (offset, bytes) = ranges.only().expect("one range");
                Op::Patch(offset, bytes.to_vec())
            }
            Change::Until { deadline, ranges } => {
                assert_eq!(ranges.count(), 0, "no transaction also changes the value");
                Op::Until(deadline)
            }
            Change::Share { .. } => unreachable!("no transaction does so"),
        };
        let writes = commit.writes.iter().map(|write| (write.key.to_vec(), op(write.change)));
        self.history.0.lock().push((stamp, commit.epoch, writes.collect()));
        Ok(stamp)
    }

    fn wait_for_room(&mut self) -> Result<(), LogRefused> {
        thread::yield_now();
        Ok(())
    }

    /// True for every stamp, so that absent cells are reclaimed and used again as early as
    /// possible.
    fn is_closed(&self, _: Stamp) -> bool {
        true
    }
}
