//! Which of a session's transactions survive any crash.

use stillpoint_sync::{mutant, planted};

use super::Session;
use crate::durable::Durable;
use crate::error::Error;
use crate::guards::Inside;
use crate::named::SessionName;
use crate::unflushed::Unflushed;

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
        serials.durable(|needs| shared.is_saved(needs))
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
        let needs = self.needs_of(serial)?;
        Ok(Durable::new(self.shared.clone(), needs))
    }

    /// As [`unflushed`](Self::unflushed), in every durability: what the session's answers since the
    /// last call depend on. The first call begins to note that, and returns all commits so far.
    pub fn dependencies(&mut self) -> Unflushed {
        let mut met = Unflushed::of(self.worker.take_dependencies());
        if !self.serials.is_noting {
            self.serials.is_noting = true;
            self.worker.want_dependencies();
            met.join(self.shared.appended());
        }
        let epoch = self.shared.store.driver().now().epoch();
        Unflushed { epoch, ..self.serials.answer(met) }
    }

    fn needs_of(&mut self, serial: u64) -> Result<Option<Unflushed>, Error> {
        let last = self.serials.last;
        if serial > last {
            return Err(Error::NoSuchSerial { serial, last });
        }
        self.cut();
        Ok(self.serials.needs_of(serial))
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
        let Self { shared, worker, serials, log, .. } = self;
        let mut met = Unflushed::of(worker.take_dependencies());
        if !serials.is_tracked() {
            worker.want_dependencies();
            serials.is_noting = true;
            serials.track(shared.appended());
        }
        mutant!(SerialWithoutReads => met.stamps.retain(|stamp| stamp.log() == *log));
        // All transactions of the group have ended. So none of them, nor what it has read, is of a
        // later epoch.
        serials.cut(met, shared.store.driver().now().epoch());
    }

    /// Begins the session of this name, whose last commit in the store is in `table`.
    pub(crate) fn begin_named(&mut self, name: SessionName) -> Result<(), Error> {
        self.cut();
        let mut last = Vec::new();
        let found = self.read(name.table(), name.as_bytes(), &mut last)?;
        let serial = match (found, <[u8; 8]>::try_from(&last[..])) {
            (Some(_), Ok(serial)) => u64::from_le_bytes(serial),
            (Some(_), Err(_)) => return Err(name.is_damaged()),
            (None, _) => {
                // The commits of the session then overwrite 8 bytes, for which there is always memory.
                self.transact(|tx| tx.put(name.table(), name.as_bytes(), &0_u64.to_le_bytes()))?;
                0
            }
        };
        self.serials.last = serial;
        self.serials.name = Some(name);
        Ok(())
    }
}
