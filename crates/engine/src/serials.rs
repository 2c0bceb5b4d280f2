//! The serials of a session: the numbers of its transactions, and which of them survive any crash.
//!
//! ```text
//! transactions  1 … 64 │ 65 … 130 │ 131 … 140
//! groups        ───────┴──────────┴── each: its last serial, what its answers depend on
//!               durable   durable    not yet      ─▶ the durable serial is 130
//! ```
//! With a journal a group is durable once its stamps are closed. Publication closes what the
//! checkpoint holds, so a checkpoint adds nothing. Without a journal a group is durable once a
//! published checkpoint is of a later epoch than the group's end (docs/decisions/0031).

use std::collections::VecDeque;
use std::mem;

use stillpoint_store::TxError;
use stillpoint_sync::{mutant, planted};

use crate::durable::Durable;
use crate::error::Error;
use crate::guards::Inside;
use crate::named::SessionName;
use crate::session::{Session, Unflushed};
use crate::shared::Shared;
use crate::tx::Tx;

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

    #[inline]
    fn is_due(&self) -> bool {
        self.tracked.as_ref().is_some_and(|tracked| self.last - tracked.groups.newest() >= GROUP)
    }

    pub(crate) fn is_tracked(&self) -> bool {
        self.tracked.is_some()
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
/// the more transactions wait, the coarser the steps of the durable serial are.
#[derive(Debug, Default)]
pub(crate) struct DurableSerials {
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
    fn newest(&self) -> u64 {
        self.waiting.back().map_or(self.durable, |group| group.last)
    }

    /// Adds the transactions up to serial `last`, which need `needs`.
    fn add(&mut self, last: u64, needs: Unflushed) {
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

    /// The greatest serial up to which all transactions survive any crash.
    fn durable(&mut self, shared: &Shared) -> u64 {
        while let Some(group) = self.waiting.pop_front_if(|group| shared.is_saved(&group.needs)) {
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

/// The numbers of a session's transactions.
impl Session {
    /// The serial of the session's last transaction. Serials count the session's transactions that
    /// have ended without an error, also those that only read, from 1 on. Each call of
    /// [`read`](Self::read), [`scan`](Self::scan) and [`len`](Self::len) counts as one.
    ///
    /// A [named](crate::Engine::session_named) session begins with the serial of its last commit
    /// that the store has.
    pub fn serial(&self) -> u64 {
        self.serials.last
    }

    /// The greatest serial up to which all the session's transactions survive any crash, with
    /// everything that they have read. Waits for nothing, and never goes back. Greater serials may
    /// survive, too. Writes of [`Durability::Relaxed`](crate::Durability::Relaxed) get there by
    /// themselves. Without a journal a checkpoint brings them there.
    ///
    /// The session notes what its transactions depend on from the first call on. A session that
    /// never asks pays nothing. What came before the first call counts as durable once all logs are,
    /// up to their ends at that call.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// let engine = stillpoint::Engine::open(stillpoint::Config::new(directory.path()))?;
    /// let pets = engine.table("pets")?;
    /// let mut session = engine.session()?;
    /// session.transact(|tx| tx.put(pets, b"rex", b"dog"))?;
    /// session.transact(|tx| tx.put(pets, b"tom", b"cat"))?;
    /// assert_eq!(session.serial(), 2);
    /// assert!(session.durable_serial() <= 2); // the log is flushed within a second
    /// session.wait_durable(2)?; // or now
    /// assert_eq!(session.durable_serial(), 2);
    /// # drop(session);
    /// # engine.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn durable_serial(&mut self) -> u64 {
        self.cut();
        let Self { shared, serials, .. } = self;
        serials.tracked.as_mut().map_or(0, |tracked| tracked.groups.durable(shared))
    }

    /// Waits until all the session's transactions up to `serial` survive any crash. With a journal
    /// this flushes the log at once. Without one it takes a checkpoint, unless a published one has
    /// these transactions. Several callers share flushes and checkpoints.
    ///
    /// # Errors
    /// [`Error::NoSuchSerial`] if the session has no such transaction yet.
    /// [`Error::InsideTransaction`] from inside a transaction. [`Error::Journal`] or
    /// [`Error::Failed`] if the log has failed, [`Error::Ended`] if the engine is gone. Without a
    /// journal, why the checkpoint failed.
    pub fn wait_durable(&mut self, serial: u64) -> Result<(), Error> {
        Inside::refuse("wait_durable")?;
        match self.needs_of(serial)? {
            Some(needs) => self.shared.make_saved(&needs),
            None => Ok(()),
        }
    }

    /// As [`wait_durable`](Self::wait_durable), as a future that borrows nothing and needs no
    /// runtime. A thread of the engine works for all futures that are awaited. Nothing happens
    /// before the future is polled.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// # use std::task::{Context, Waker};
    /// let engine = stillpoint::Engine::open(stillpoint::Config::new(directory.path()))?;
    /// let pets = engine.table("pets")?;
    /// let mut session = engine.session()?;
    /// session.transact(|tx| tx.put(pets, b"rex", b"dog"))?;
    /// let mut safe = session.durable(session.serial())?;
    /// // In an async function: safe.await?;
    /// # let mut context = Context::from_waker(Waker::noop());
    /// # while std::pin::Pin::new(&mut safe).poll(&mut context).is_pending() {}
    /// assert_eq!(session.durable_serial(), 1);
    /// # drop(session);
    /// # engine.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSuchSerial`] at once. The future's errors are those of `wait_durable`.
    pub fn durable(&mut self, serial: u64) -> Result<Durable, Error> {
        let needs = self.needs_of(serial)?.unwrap_or_default();
        Ok(Durable::new(self.shared.clone(), needs))
    }

    fn needs_of(&mut self, serial: u64) -> Result<Option<Unflushed>, Error> {
        let last = self.serials.last;
        if serial > last {
            return Err(Error::NoSuchSerial { serial, last });
        }
        self.cut();
        let tracked = self.serials.tracked.as_ref();
        Ok(tracked.and_then(|tracked| tracked.groups.needs_of(serial)))
    }

    /// Counts a call that was a transaction.
    #[inline]
    pub(crate) fn count(&mut self) {
        self.serials.last += 1;
        self.cut_if_due();
    }

    /// Ends a group of transactions that is large enough.
    #[inline]
    pub(crate) fn cut_if_due(&mut self) {
        if self.serials.is_due() {
            self.cut();
        }
    }

    /// Ends the present group of transactions. The first call begins to track them.
    #[cold]
    fn cut(&mut self) {
        let met = Unflushed::of(self.worker.take_dependencies());
        let Self { shared, serials: Serials { last, tracked, .. }, worker, log, .. } = self;
        let tracked = tracked.get_or_insert_with(|| {
            worker.want_dependencies();
            // Nobody knows any more what earlier transactions have met.
            let gathered = if *last == 0 { Unflushed::default() } else { shared.appended() };
            Box::new(Tracked { gathered, ..Tracked::default() })
        });
        tracked.meet(met);
        if tracked.groups.newest() == *last {
            return;
        }
        let mut needs = mem::take(&mut tracked.gathered);
        // All transactions of the group have ended. So none of them, nor what it has read, is of a
        // later epoch.
        needs.epoch = shared.store.driver().now().epoch();
        mutant!(SerialWithoutReads => needs.stamps.retain(|stamp| stamp.log() == *log));
        tracked.groups.add(*last, needs);
    }

    /// Begins a named session, whose last commit in the store had serial `last`. `self` has read
    /// that.
    pub(crate) fn begin_named(&mut self, name: SessionName, last: u64) {
        self.serials.name = Some(name);
        self.serials.last = last;
    }

    /// Begins to track the session's transactions.
    pub(crate) fn track(&mut self) {
        self.cut();
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
