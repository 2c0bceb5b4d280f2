//! The history of one life of the store, and the judge of the state after a crash.
//!
//! The sessions take turns on one thread, so the order of commits is known. So is, for every
//! commit, the set of commits whose results it read or overwrote. The judge replays sets of commits
//! by brute force. Of logs the judge knows only their numbers and gsns.

use std::collections::{BTreeMap, BTreeSet};

use stillpoint::Stamp;

/// Table and key.
pub(crate) type Key = (u16, Vec<u8>);
/// Tag and bytes.
pub(crate) type Value = (u8, Vec<u8>);
/// All records.
pub(crate) type State = BTreeMap<Key, Value>;

/// The table in which every commit leaves its number, under the key of its session.
pub(crate) const MARKS: u16 = 0;

/// An event in the store's history.
#[derive(Debug)]
pub(crate) struct Event {
    /// Number of the event, unique over all lives.
    pub(crate) id: u64,
    /// Log and gsn of the event. `None` for a flush of tables.
    pub(crate) stamp: Option<Stamp>,
    /// The epoch of the event.
    pub(crate) epoch: u64,
    /// Numbers of the events whose results the event read or overwrote.
    pub(crate) needs: BTreeSet<usize>,
    /// New values. `None` for a deleted key.
    pub(crate) writes: Vec<(Key, Option<Value>)>,
    /// Tables that the event emptied.
    pub(crate) emptied: Vec<u16>,
}

/// One life of the store, between two crashes.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// Records that recovery served at the begin of the life.
    pub(crate) base: State,
    pub(crate) events: Vec<Event>,
    /// The present records.
    pub(crate) now: State,
    /// The event that wrote or removed a key last.
    writers: BTreeMap<Key, usize>,
    /// Events that no crash may lose.
    pub(crate) acknowledged: BTreeSet<usize>,
    /// Epochs of all begun checkpoints, and the newest published one.
    pub(crate) checkpoints_begun: BTreeSet<u64>,
    pub(crate) published: Option<u64>,
    /// A flush of tables after the last event, whose outcome is in doubt.
    pub(crate) uncertain_flush: Option<Event>,
}

impl History {
    pub(crate) fn new(base: State) -> Self {
        Self { now: base.clone(), base, ..Self::default() }
    }

    pub(crate) fn value(&self, key: &Key) -> Option<&Value> {
        self.now.get(key)
    }

    /// The event of this life that gave a key its present state.
    pub(crate) fn writer(&self, key: &Key) -> Option<usize> {
        self.writers.get(key).copied()
    }

    /// The events of this life that gave a table its present state: writers of present keys, and
    /// removers of absent ones.
    pub(crate) fn writers_of(&self, table: u16) -> impl Iterator<Item = usize> {
        self.writers.iter().filter(move |(key, _)| key.0 == table).map(|(_, &event)| event)
    }

    /// Records an event, which is visible from now on. Returns the event's number.
    pub(crate) fn happened(&mut self, event: Event) -> usize {
        let number = self.events.len();
        apply(&mut self.now, &event);
        for (key, _) in &event.writes {
            self.writers.insert(key.clone(), number);
        }
        self.writers.retain(|key, _| !event.emptied.contains(&key.0));
        self.events.push(event);
        number
    }

    /// Notes that everything so far survives any crash.
    pub(crate) fn acknowledge_all(&mut self) {
        self.acknowledged = (0..self.events.len()).collect();
    }

    /// Judges the recovered state of a store with a redo journal.
    pub(crate) fn judge_redo(&self, found: &State) -> Result<(), String> {
        let mut cut: BTreeMap<u8, u64> = BTreeMap::new();
        for (key, (_, mark)) in found.range((MARKS, Vec::new())..(MARKS + 1, Vec::new())) {
            if self.base.get(key).is_some_and(|(_, at_begin)| at_begin == mark) {
                continue;
            }
            let id = mark.get(..8).map(|id| u64::from_le_bytes(id.try_into().expect("eight")));
            let event = self.events.iter().find(|event| Some(event.id) == id);
            let stamp = event.and_then(|event| event.stamp);
            let stamp =
                stamp.ok_or_else(|| format!("mark {key:?} = {id:?} was never committed"))?;
            let last = cut.entry(stamp.log()).or_default();
            *last = stamp.gsn().max(*last);
        }
        let is_kept = |at: usize| match self.events[at].stamp {
            Some(stamp) => cut.get(&stamp.log()).is_some_and(|&last| stamp.gsn() <= last),
            None => self.acknowledged.contains(&at),
        };
        let kept: BTreeSet<usize> = (0..self.events.len()).filter(|&at| is_kept(at)).collect();
        self.judge_set(&kept)?;
        let without = self.judge_state(&kept, found, None);
        match &self.uncertain_flush {
            // All earlier events were flushed first.
            Some(flush) if without.is_err() && kept.len() == self.events.len() => {
                self.judge_state(&kept, found, Some(flush))
            }
            _ => without,
        }
    }

    /// Judges the recovered state of a store without a journal, which has loaded the checkpoint of
    /// an epoch.
    pub(crate) fn judge_none(&self, found: &State, loaded: Option<u64>) -> Result<(), String> {
        if loaded < self.published {
            return Err(format!("loaded checkpoint {loaded:?}, published {:?}", self.published));
        }
        let of_this_life = loaded.filter(|epoch| self.checkpoints_begun.contains(epoch));
        let is_kept = |at: &usize| of_this_life.is_some_and(|epoch| self.events[*at].epoch < epoch);
        let kept: BTreeSet<usize> = (0..self.events.len()).filter(is_kept).collect();
        self.judge_set(&kept)?;
        self.judge_state(&kept, found, None)
    }

    fn judge_set(&self, kept: &BTreeSet<usize>) -> Result<(), String> {
        if let Some(lost) = self.acknowledged.iter().find(|&at| !kept.contains(at)) {
            return Err(format!("lost, though acknowledged: {:?}", self.outline(*lost)));
        }
        for &at in kept {
            if let Some(&lost) = self.events[at].needs.iter().find(|&need| !kept.contains(need)) {
                let (hanging, lost) = (self.outline(at), self.outline(lost));
                return Err(format!("{hanging} is there, but not {lost}, which it rests on"));
            }
        }
        Ok(())
    }

    fn judge_state(
        &self,
        kept: &BTreeSet<usize>,
        found: &State,
        last: Option<&Event>,
    ) -> Result<(), String> {
        let mut expected = self.base.clone();
        kept.iter()
            .map(|&at| &self.events[at])
            .chain(last)
            .for_each(|event| apply(&mut expected, event));
        if expected == *found {
            return Ok(());
        }
        let keys: BTreeSet<&Key> = expected.keys().chain(found.keys()).collect();
        let differs = keys.into_iter().find(|&key| expected.get(key) != found.get(key));
        let key = differs.expect("they differ");
        let brief = |state: &State| {
            state
                .get(key)
                .map(|(tag, value)| (*tag, value.len(), value[..value.len().min(16)].to_vec()))
        };
        let last =
            kept.iter().rev().find(|&&at| self.events[at].writes.iter().any(|w| w.0 == *key));
        Err(format!(
            "{key:?} is {:?}, expected {:?} of {}",
            brief(found),
            brief(&expected),
            last.map_or("the last life".to_owned(), |&at| self.outline(at))
        ))
    }

    fn outline(&self, at: usize) -> String {
        let event = &self.events[at];
        let keys: Vec<_> = event.writes.iter().map(|(key, _)| key).collect();
        let (stamp, epoch, emptied) = (event.stamp, event.epoch, &event.emptied);
        format!("event {at} ({stamp:?}, epoch {epoch}, writes {keys:?}, empties {emptied:?})")
    }
}

fn apply(state: &mut State, event: &Event) {
    state.retain(|key, _| !event.emptied.contains(&key.0));
    for (key, value) in &event.writes {
        match value {
            Some(value) => state.insert(key.clone(), value.clone()),
            None => state.remove(key),
        };
    }
}
