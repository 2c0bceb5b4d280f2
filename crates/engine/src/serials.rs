//! The serials of a session: the numbers of its transactions, and which of them survive any crash.
//!
//! ```text
//! transactions  1 … 64 │ 65 … 130 │ 131 … 140
//! groups        ───────┴──────────┴── each: its last serial, what its answers depend on
//!               durable   durable    not yet      ─▶ the durable serial is 130
//! ```
//! With a journal a group is durable once its stamps are closed. Publication closes what the
//! checkpoint holds, so a checkpoint adds nothing. Without a journal a group is durable once a
//! published checkpoint is of a later epoch than the group's end (docs/decisions/0032).

use std::collections::VecDeque;
use std::mem;

use stillpoint_store::TxError;

use crate::named::SessionName;
use crate::tx::Tx;
use crate::unflushed::Unflushed;

/// Transactions of a group.
const GROUP: u64 = 64;
/// Most groups that wait to be durable. Beyond that, neighbours become one.
const GROUPS_MAX: usize = 64;

/// The serials of one session.
#[derive(Debug, Default)]
pub(crate) struct Serials {
    /// The number of transactions that have ended well.
    pub(crate) last: u64,
    /// Present in a named session.
    pub(crate) name: Option<SessionName>,
    /// Whether the worker notes what transactions depend on.
    pub(crate) is_noting: bool,
    /// Present once somebody has asked which transactions are durable.
    tracked: Option<Box<Tracked>>,
}

/// What a session notes for its durable serial.
#[derive(Debug, Default)]
struct Tracked {
    groups: DurableSerials,
    /// What the transactions since the last group depend on.
    gathered: Unflushed,
    /// What answers depend on that nobody has waited for yet.
    unanswered: Unflushed,
}

impl Serials {
    /// Counts a transaction, unless it has failed.
    #[inline]
    pub(crate) fn ended<T>(&mut self, result: &Result<T, TxError>) {
        self.last += u64::from(result.is_ok());
    }

    /// Adds the serial of this transaction to its writes, if it has any and the session has a name.
    ///
    /// # Errors
    /// As a put.
    #[inline]
    pub(crate) fn sign(&self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        match &self.name {
            None => Ok(()),
            Some(name) => name.sign(tx, self.last + 1),
        }
    }

    /// Whether the present group of transactions is large enough.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.tracked.as_ref().is_some_and(|tracked| self.last - tracked.groups.newest() >= GROUP)
    }

    /// Whether somebody has asked which transactions are durable.
    pub(crate) fn is_tracked(&self) -> bool {
        self.tracked.is_some()
    }

    /// Begins to note what transactions depend on. `earlier` is what those so far may depend on.
    pub(crate) fn track(&mut self, earlier: Unflushed) {
        // Without a transaction nothing was met.
        let gathered = if self.last == 0 { Unflushed::default() } else { earlier };
        self.tracked = Some(Box::new(Tracked { gathered, ..Tracked::default() }));
    }

    /// Ends the present group of transactions, which have met `met` and what was gathered before.
    /// None of them, nor what they have met, is of a later epoch than `epoch`.
    pub(crate) fn cut(&mut self, met: Unflushed, epoch: u64) {
        let Some(tracked) = &mut self.tracked else { return };
        tracked.meet(met);
        if tracked.groups.newest() < self.last {
            let needs = Unflushed { epoch, ..mem::take(&mut tracked.gathered) };
            tracked.groups.add(self.last, needs);
        }
    }

    /// The greatest serial up to which all transactions survive any crash. `is_saved` tells whether
    /// what was met does. 0 if nobody tracks the transactions.
    pub(crate) fn durable(&mut self, is_saved: impl Fn(&Unflushed) -> bool) -> u64 {
        self.tracked.as_mut().map_or(0, |tracked| tracked.groups.durable(is_saved))
    }

    /// What the transactions up to `serial` need. `None` if they were found durable.
    pub(crate) fn needs_of(&self, serial: u64) -> Option<Unflushed> {
        self.tracked.as_ref()?.groups.needs_of(serial)
    }

    /// What answers since the last call depend on, of which `met` was just met.
    #[inline]
    pub(crate) fn answer(&mut self, met: Unflushed) -> Unflushed {
        match &mut self.tracked {
            None => met,
            Some(tracked) => tracked.answer(met),
        }
    }
}

impl Tracked {
    fn meet(&mut self, met: Unflushed) {
        self.gathered.join(met.clone());
        self.unanswered.join(met);
    }

    fn answer(&mut self, met: Unflushed) -> Unflushed {
        self.meet(met);
        mem::take(&mut self.unanswered)
    }
}

/// Numbered transactions of one caller, and what each of them needs to survive any crash. Bounded:
/// the more transactions wait, the coarser the steps of the durable serial are. A session has its
/// own; a program that serves several callers by one session keeps one for each of them.
#[derive(Debug, Default)]
pub struct DurableSerials {
    /// The greatest serial up to which all transactions were found durable.
    durable: u64,
    /// What transactions beyond need, oldest first.
    waiting: VecDeque<Group>,
}

#[derive(Debug)]
struct Group {
    last: u64,
    needs: Unflushed,
}

impl DurableSerials {
    /// The last serial that was added.
    #[inline]
    pub fn newest(&self) -> u64 {
        self.waiting.back().map_or(self.durable, |group| group.last)
    }

    /// Adds the transactions up to serial `last`, which need `needs`. Serials ascend.
    pub fn add(&mut self, last: u64, needs: Unflushed) {
        if self.waiting.len() >= GROUPS_MAX {
            self.merge();
        }
        self.waiting.push_back(Group { last, needs });
    }

    /// Makes one group of each two.
    fn merge(&mut self) {
        let mut groups = mem::take(&mut self.waiting).into_iter();
        while let Some(mut group) = groups.next() {
            if let Some(Group { last, needs }) = groups.next() {
                group.last = last;
                group.needs.join(needs);
            }
            self.waiting.push_back(group);
        }
    }

    /// The greatest serial up to which all transactions survive any crash. `is_saved` is
    /// [`Engine::is_saved`](crate::Engine::is_saved).
    pub fn durable(&mut self, is_saved: impl Fn(&Unflushed) -> bool) -> u64 {
        while let Some(group) = self.waiting.pop_front_if(|group| is_saved(&group.needs)) {
            self.durable = group.last;
        }
        self.durable
    }

    /// What the transactions up to `serial` need. `None` if they were found durable.
    fn needs_of(&self, serial: u64) -> Option<Unflushed> {
        if serial <= self.durable {
            return None;
        }
        let mut needs = Unflushed::default();
        for group in &self.waiting {
            needs.join(group.needs.clone());
            if group.last >= serial {
                break;
            }
        }
        Some(needs)
    }
}

#[cfg(test)]
mod tests {
    use stillpoint_format::Stamp;

    use super::*;

    fn needs(gsn: u64) -> Unflushed {
        Unflushed::of(vec![Stamp::new(gsn, 0)])
    }

    #[test]
    fn groups_are_bounded_and_never_ahead() {
        let mut serials = DurableSerials::default();
        for last in 1..=10_000 {
            serials.add(last, needs(last));
            assert!(serials.waiting.len() <= GROUPS_MAX);
            assert_eq!(serials.newest(), last);
        }
        let lasts: Vec<u64> = serials.waiting.iter().map(|group| group.last).collect();
        assert!(lasts.is_sorted());
        for group in &serials.waiting {
            assert_eq!(group.needs, needs(group.last), "a group needs what its last one needs");
        }
        assert_eq!(serials.needs_of(0), None);
        let wanted = serials.needs_of(5_000).expect("not durable");
        assert!(wanted.stamps[0].gsn() >= 5_000);
        assert_eq!(serials.needs_of(10_000), Some(needs(10_000)));
    }
}
