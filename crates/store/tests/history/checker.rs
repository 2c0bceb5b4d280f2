//! Checks that a history of transactions is strictly serializable, and that each checkpoint holds
//! exactly the commits before its point of consistency.
//!
//! The log yields the versions of every key, in the order of their gsns. The observations say which
//! version each transaction read. From the observations follow the edges of the serialization
//! graph: writer to next writer, writer to reader, reader to next writer (Adya 1999). The clock
//! yields the edges of real time. A serial order exists if and only if there is no cycle.

use crate::common::{Contents, Key, Value};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stillpoint_store::{Change, Commit, CommitLog, Label, LogRefused, Stamp};

/// A logged change.
#[derive(Clone, Debug)]
pub(crate) enum Logged {
    Put(Label, Vec<u8>),
    Delete,
    Patch(Vec<(usize, Vec<u8>)>),
}

/// A logged commit.
#[derive(Clone, Debug)]
pub(crate) struct Committed {
    pub(crate) stamp: Stamp,
    pub(crate) epoch: u64,
    pub(crate) touched: Vec<Stamp>,
    pub(crate) writes: Vec<(Key, Logged)>,
}

/// A log that keeps everything. Deletions up to `closed` may be reclaimed.
#[derive(Debug)]
pub(crate) struct RecordingLog {
    pub(crate) number: u8,
    pub(crate) gsn: u64,
    pub(crate) commits: Arc<Mutex<Vec<Committed>>>,
    pub(crate) closed: Arc<AtomicU64>,
}

impl CommitLog for RecordingLog {
    fn append(&mut self, commit: &Commit<'_>) -> Result<Stamp, LogRefused> {
        let touched = commit.touched.iter().map(|stamp| stamp.gsn()).max();
        self.gsn = self.gsn.max(touched.unwrap_or(0)) + 1;
        let stamp = Stamp::new(self.gsn, self.number);
        let logged = |change| match change {
            Change::Put { label, value } => Logged::Put(label, value.to_vec()),
            Change::Delete => Logged::Delete,
            Change::Patch(patches) => {
                Logged::Patch(patches.map(|(at, bytes)| (at, bytes.to_vec())).collect())
            }
            Change::Until { .. } | Change::Share { .. } => unreachable!("no session does so"),
        };
        let writes = commit
            .writes
            .iter()
            .map(|write| ((write.table, write.key.to_vec()), logged(write.change)))
            .collect();
        self.commits.lock().push(Committed {
            stamp,
            epoch: commit.epoch,
            touched: commit.touched.to_vec(),
            writes,
        });
        // Other threads run between the append and the installation.
        if self.gsn.is_multiple_of(3) {
            std::thread::yield_now();
        }
        Ok(stamp)
    }

    fn wait_for_room(&mut self) -> Result<(), LogRefused> {
        Ok(())
    }

    fn is_closed(&self, stamp: Stamp) -> bool {
        stamp.is_none() || stamp.gsn() <= self.closed.load(Ordering::SeqCst)
    }

    fn wants_dependencies(&self) -> bool {
        true
    }
}

/// A transaction's observation of a key, before its own writes.
#[derive(Clone, Debug)]
pub(crate) struct Read {
    pub(crate) key: Key,
    pub(crate) stamp: Stamp,
    pub(crate) value: Option<Value>,
    /// Whether the read was made under a lock. Then the floor of an absent key tells which version
    /// it follows.
    pub(crate) locked: bool,
}

/// A transaction in its caller's view.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    /// Readings of the logical clock before its begin and after its end.
    pub(crate) began: u64,
    pub(crate) ended: u64,
    pub(crate) stamp: Option<Stamp>,
    pub(crate) reads: Vec<Read>,
}

/// A version of a key.
struct Version {
    stamp: Stamp,
    epoch: u64,
    value: Option<Value>,
}

pub(crate) struct History {
    versions: HashMap<Key, Vec<Version>>,
    observed: Vec<Observed>,
    commits: usize,
}

impl History {
    /// Sorts the versions. Panics if a log breaks its own rules.
    pub(crate) fn new(mut commits: Vec<Committed>, observed: Vec<Observed>) -> Self {
        let mut versions: HashMap<Key, Vec<Version>> = HashMap::new();
        let epochs: HashMap<Stamp, u64> = commits.iter().map(|c| (c.stamp, c.epoch)).collect();
        assert_eq!(epochs.len(), commits.len(), "a stamp given twice");
        for commit in &commits {
            for touched in &commit.touched {
                assert!(*touched < commit.stamp, "the gsn does not grow");
                let before = epochs.get(touched).copied().unwrap_or(0);
                assert!(
                    before <= commit.epoch,
                    "{:?} of epoch {} depends on {touched:?} of {before}",
                    commit.stamp,
                    commit.epoch
                );
            }
        }
        commits.sort_by_key(|commit| commit.stamp);
        let count = commits.len();
        for commit in commits {
            for (key, change) in commit.writes {
                let list = versions.entry(key).or_default();
                let last = list.last();
                assert!(
                    last.is_none_or(|last| last.stamp.gsn() < commit.stamp.gsn()),
                    "two versions of one key at one gsn"
                );
                let value = applied(last.and_then(|last| last.value.clone()), change);
                list.push(Version { stamp: commit.stamp, epoch: commit.epoch, value });
            }
        }
        Self { versions, observed, commits: count }
    }

    /// The state after the commits of the epochs before `epoch`.
    pub(crate) fn before_epoch(&self, epoch: u64) -> Contents {
        let last = |list: &[Version]| {
            // The epochs never decrease along the versions of a key, as checked above.
            let last = list.iter().rev().find(|version| version.epoch < epoch)?;
            last.value.clone()
        };
        let keys = self.versions.iter();
        keys.filter_map(|(key, list)| Some((key.clone(), last(list)?))).collect()
    }

    /// Number of commits and of observed transactions.
    pub(crate) fn len(&self) -> (usize, usize) {
        (self.commits, self.observed.len())
    }

    /// Index of the version that a read saw. `None` for the time before the first version.
    fn version_of(&self, read: &Read) -> Option<usize> {
        let none = Vec::new();
        let list = self.versions.get(&read.key).unwrap_or(&none);
        let at = if read.stamp.is_none() {
            assert!(read.value.is_none(), "a value that nobody wrote: {read:?}");
            // An absent cell has the floor of its part of the key space, which is not below the
            // last deletion.
            let after = list.partition_point(|version| version.stamp.gsn() <= read.stamp.gsn());
            after.checked_sub(1)
        } else {
            let found = list.iter().position(|version| version.stamp == read.stamp);
            Some(found.unwrap_or_else(|| panic!("a version that nobody wrote: {read:?}")))
        };
        let expected = at.and_then(|at| list[at].value.as_ref());
        assert_eq!(
            expected,
            read.value.as_ref(),
            "{:?} at {:?}, read under lock: {}",
            read.key,
            read.stamp,
            read.locked
        );
        at
    }

    /// Panics if no serial order explains all reads and agrees with the clock.
    pub(crate) fn check_strictly_serializable(&self) {
        let turns = 2 + self.observed.iter().map(|t| t.ended).max().unwrap_or(0) as usize;
        // Nodes are the readings of the clock, then the transactions.
        let mut edges: Vec<Vec<u32>> = vec![Vec::new(); turns + self.observed.len()];
        for turn in 1..turns {
            edges[turn - 1].push(turn as u32);
        }
        let by_stamp: HashMap<Stamp, usize> =
            self.observed.iter().enumerate().filter_map(|(at, t)| Some((t.stamp?, at))).collect();
        assert_eq!(by_stamp.len(), self.commits, "a commit that nobody made");
        let node = |transaction: usize| (turns + transaction) as u32;
        for (at, transaction) in self.observed.iter().enumerate() {
            edges[transaction.began as usize].push(node(at));
            edges[turns + at].push(transaction.ended as u32);
            for read in &transaction.reads {
                if read.stamp.is_none() && !read.locked {
                    // The floor was read after the miss of the key, so no version is known.
                    assert!(read.value.is_none());
                    continue;
                }
                let version = self.version_of(read);
                let list = self.versions.get(&read.key);
                if let Some(version) = version {
                    let writer = by_stamp[&list.expect("it has versions")[version].stamp];
                    if writer != at {
                        edges[turns + writer].push(node(at));
                    }
                }
                let next = version.map_or(0, |version| version + 1);
                if let Some(next) = list.and_then(|list| list.get(next)) {
                    let writer = by_stamp[&next.stamp];
                    if writer != at {
                        edges[turns + at].push(node(writer));
                    }
                }
            }
        }
        for list in self.versions.values() {
            for pair in list.windows(2) {
                let (a, b) = (by_stamp[&pair[0].stamp], by_stamp[&pair[1].stamp]);
                edges[turns + a].push(node(b));
            }
        }
        self.assert_acyclic(&edges, turns);
    }

    /// Kahn's algorithm.
    fn assert_acyclic(&self, edges: &[Vec<u32>], turns: usize) {
        let mut waiting = vec![0u32; edges.len()];
        for &to in edges.iter().flatten() {
            waiting[to as usize] += 1;
        }
        let mut ready: Vec<usize> = (0..edges.len()).filter(|&at| waiting[at] == 0).collect();
        let mut done = 0;
        while let Some(at) = ready.pop() {
            done += 1;
            for &to in &edges[at] {
                waiting[to as usize] -= 1;
                if waiting[to as usize] == 0 {
                    ready.push(to as usize);
                }
            }
        }
        if done == edges.len() {
            return;
        }
        // A walk backwards among the remaining nodes reaches a node twice, which shows a cycle.
        let left = |at: usize| waiting[at] > 0;
        let mut before: BTreeMap<usize, usize> = BTreeMap::new();
        for (from, list) in edges.iter().enumerate().filter(|(from, _)| left(*from)) {
            for &to in list.iter().filter(|&&to| left(to as usize)) {
                before.insert(to as usize, from);
            }
        }
        let mut seen = Vec::new();
        let mut at = *before.keys().next().expect("someone waits");
        while !seen.contains(&at) {
            seen.push(at);
            at = before[&at];
        }
        let from = seen.iter().position(|&seen| seen == at).unwrap_or(0);
        let cycle: Vec<String> = seen[from..]
            .iter()
            .map(|&at| match at.checked_sub(turns) {
                None => format!("turn {at}"),
                Some(at) => format!("{:?}", self.observed[at]),
            })
            .collect();
        panic!("no serial order; backwards:\n{}", cycle.join("\n"));
    }
}

fn applied(before: Option<Value>, change: Logged) -> Option<Value> {
    match change {
        Logged::Put(label, value) => Some((label, value)),
        Logged::Delete => {
            assert!(before.is_some(), "deleted what was not there");
            None
        }
        Logged::Patch(patches) => {
            let (label, mut value) = before.expect("patched what was not there");
            for (offset, bytes) in patches {
                let end = offset + bytes.len();
                value.resize(value.len().max(end), 0);
                value[offset..end].copy_from_slice(&bytes);
            }
            Some((label, value))
        }
    }
}

#[test]
fn the_checker_sees_a_write_skew_a_stale_read_and_a_lost_update() {
    let key = |name: &str| (0u16, name.as_bytes().to_vec());
    let write = |gsn, log, name: &str, value: u8| Committed {
        stamp: Stamp::new(gsn, log),
        epoch: 1,
        touched: Vec::new(),
        writes: vec![(key(name), Logged::Put(Label::default(), vec![value]))],
    };
    let read = |name: &str, stamp: Stamp, value: Option<u8>| Read {
        key: key(name),
        stamp,
        value: value.map(|value| (Label::default(), vec![value])),
        locked: true,
    };
    let ran = |began, ended, stamp: Option<Stamp>, reads: Vec<Read>| Observed {
        began,
        ended,
        stamp,
        reads,
    };
    let fails = |commits: Vec<Committed>, observed: Vec<Observed>| {
        let history = History::new(commits, observed);
        std::panic::catch_unwind(|| history.check_strictly_serializable()).is_err()
    };
    let (a, b) = (Stamp::new(1, 0), Stamp::new(1, 1));
    let two = vec![write(1, 0, "x", 1), write(1, 1, "y", 1)];
    let start = Stamp::NONE;
    // Each transaction reads a key before the other writes it.
    let skewed = vec![
        ran(0, 3, Some(a), vec![read("y", start, None)]),
        ran(1, 2, Some(b), vec![read("x", start, None)]),
    ];
    assert!(fails(two.clone(), skewed));
    let serial = vec![
        ran(0, 3, Some(a), vec![read("y", b, Some(1))]),
        ran(1, 2, Some(b), vec![read("x", start, None)]),
    ];
    assert!(!fails(two.clone(), serial));
    // The first ended before the second began, but the second does not see it.
    let stale = vec![ran(0, 1, Some(a), vec![]), ran(2, 3, Some(b), vec![read("x", start, None)])];
    assert!(fails(two, stale));
    let lost = vec![write(1, 0, "x", 1), write(2, 1, "x", 2)];
    let both = vec![
        ran(0, 3, Some(a), vec![read("x", start, None)]),
        ran(1, 2, Some(Stamp::new(2, 1)), vec![read("x", start, None)]),
    ];
    assert!(fails(lost, both));
}
