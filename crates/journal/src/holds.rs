//! Holders of log records. Segments stay while a holder needs them.
//!
//! ```text
//!  log 0   │ segment │ segment │ segment │ segment ▶
//!                    ▲              ▲
//!             "follower" from    "checkpoint" from
//!          └ freed ──┘└ kept ─────────────────────▶
//! ```

use parking_lot::{Mutex, MutexGuard};
use stillpoint_format::LogGsn;

/// A hold: the positions from which a holder needs the logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Name of the holder.
    pub holder: &'static str,
    /// In a log without a position, no record up to this gsn is needed. The number is the floor of
    /// the incarnation in which the positions were taken.
    pub floor: u64,
    /// In these logs, no record up to the gsn is needed.
    pub positions: Vec<LogGsn>,
}

impl Hold {
    /// A hold on every record that there is.
    pub fn everything(holder: &'static str) -> Self {
        Hold { holder, floor: 0, positions: Vec::new() }
    }

    fn is_everything(&self) -> bool {
        self.floor == 0 && self.positions.is_empty()
    }

    /// The last gsn of a log that is not needed.
    pub(crate) fn position(&self, log: u8) -> u64 {
        let position = self.positions.iter().find(|position| position.log == log);
        position.map_or(self.floor, |position| position.gsn)
    }
}

/// A holder of log segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Name of the holder.
    pub name: &'static str,
    /// Bytes of log that the holder needs.
    pub bytes: u64,
}

/// The holds on the logs of one journal.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    /// Locked by the thread that frees segments, so that one thread frees at a time.
    freeing: Mutex<()>,
    holds: Mutex<Vec<Hold>>,
}

impl Holds {
    /// The right to free segments.
    pub(crate) fn lock_freeing(&self) -> MutexGuard<'_, ()> {
        self.freeing.lock()
    }

    /// Sets a hold, in place of the holder's earlier one.
    pub(crate) fn replace(&self, hold: Hold) {
        let mut holds = self.holds.lock();
        match holds.iter_mut().find(|known| known.holder == hold.holder) {
            Some(known) => *known = hold,
            None => holds.push(hold),
        }
    }

    /// The least value of `of` over all holds. `None` if every record is needed: a holder holds
    /// everything, or nobody holds anything yet.
    fn least(&self, of: impl Fn(&Hold) -> u64) -> Option<u64> {
        let holds = self.holds.lock();
        if holds.iter().any(Hold::is_everything) {
            return None;
        }
        holds.iter().map(of).min()
    }

    /// The last gsn of a log that nobody needs; `None` if every record is needed.
    pub(crate) fn position(&self, log: u8) -> Option<u64> {
        self.least(|hold| hold.position(log))
    }

    /// The last gsn that nobody needs of a log that this incarnation does not have; `None` if every
    /// record is needed.
    pub(crate) fn floor(&self) -> Option<u64> {
        self.least(|hold| hold.floor)
    }

    /// All holds.
    pub(crate) fn list(&self) -> Vec<Hold> {
        self.holds.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(holder: &'static str, floor: u64, gsn: u64) -> Hold {
        Hold { holder, floor, positions: vec![LogGsn { log: 1, gsn }] }
    }

    #[test]
    fn what_one_holder_needs_stays() {
        let holds = Holds::default();
        let least = || (holds.position(0), holds.position(1), holds.floor());
        assert_eq!(least(), (None, None, None), "nobody has spoken");
        holds.replace(hold("checkpoint", 10, 50));
        assert_eq!(least(), (Some(10), Some(50), Some(10)));
        holds.replace(hold("follower", 20, 30));
        assert_eq!(least(), (Some(10), Some(30), Some(10)));
        holds.replace(hold("checkpoint", 60, 70));
        assert_eq!(least(), (Some(20), Some(30), Some(20)));
        let names: Vec<_> = holds.list().iter().map(|hold| hold.holder).collect();
        assert_eq!(names, ["checkpoint", "follower"]);
        holds.replace(Hold::everything("third"));
        assert_eq!(least(), (None, None, None));
    }
}
