//! A transaction as an object that stays open across calls.

use std::sync::Arc;
use std::time::Duration;

use stillpoint_format::LogGsn;
use stillpoint_store::TxError;

use crate::error::Error;
use crate::guards::{Inside, OpenOnThread, SessionWorker};
use crate::kinds::{self, PartsInUse, PartsOf, Resting, Savepoint};
use crate::session::Session;
use crate::tx::Tx;

/// A transaction that stays open across calls. [`Session::begin`] makes one. A transaction that is
/// dropped without [`commit`](Self::commit) is rolled back.
///
/// Until its end a transaction holds the locks of the keys that it has read and written, so end it
/// soon. Other transactions on these keys wait for the locks or are tried again. After some
/// conflicts another transaction takes the permit of the store and waits for the locks. No further
/// transaction begins until that transaction has ended. Locks of tables of other kinds than memory are no
/// such burden. Whoever waits for one of them holds no other lock and no permit meanwhile. The wait ends
/// after [`Config::lock_timeout`](crate::Config::lock_timeout).
///
/// The thread that has used this transaction last may begin or run transactions of other sessions
/// meanwhile. Those might wait for this transaction, or for the permit, whose holder waits for the
/// locks of this transaction. So such a wait takes a sixth of a second at most, and then ends with
/// [`WaitsForItself`](stillpoint_store::TxError::WaitsForItself). The same holds for this
/// transaction while the thread has another open one.
///
/// An open transaction that has changed tables of other kinds keeps the log from its first record on. If it
/// is the oldest one, and keeps too much of [`Config::log_limit_bytes`](crate::Config::log_limit_bytes), the
/// engine rolls it back, also while nobody uses it. Its next call ends with
/// [`PinsLog`](stillpoint_store::TxError::PinsLog).
///
/// ```
/// # let directory = tempfile::tempdir()?;
/// let engine = stillpoint::Engine::open(stillpoint::Config::new(directory.path()))?;
/// let pets = engine.table("pets")?;
/// let mut session = engine.session()?;
///
/// let mut transaction = session.begin()?;
/// transaction.tx()?.put(pets, b"rex", b"dog")?;
/// // Other calls of the program may come here.
/// transaction.tx()?.put(pets, b"tom", b"cat")?;
/// transaction.commit()?;
///
/// let mut dropped = session.begin()?;
/// dropped.tx()?.delete(pets, b"rex")?;
/// drop(dropped);
/// let rex = session.transact(|tx| Ok(tx.get(pets, b"rex")?.map(|pet| pet.to_vec())))?;
/// assert_eq!(rex.as_deref(), Some(&b"dog"[..]));
/// # drop(session);
/// # engine.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a transaction that is dropped is rolled back"]
pub struct Transaction<'s> {
    session: &'s mut Session,
    /// The session's worker, which has the transaction. The worker is not in the session until the
    /// end, so a leaked transaction leaves a session that cannot be used.
    worker: SessionWorker,
    /// The parts of other kinds of tables, if there are such kinds.
    parts: Option<Arc<Resting>>,
    thread: OpenOnThread,
    begun_ns: u64,
}

impl std::fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction")
            .field("first_record", &self.first_record())
            .finish_non_exhaustive()
    }
}

impl<'s> Transaction<'s> {
    pub(crate) fn begin(session: &'s mut Session) -> Result<Self, Error> {
        let (mut worker, parts) = session.lend_worker();
        worker.begin();
        let parts = parts.map(|parts| Arc::new(Resting::new(parts)));
        let begun_ns = session.shared.config.environment.clock.monotonic_ns();
        let bytes_max = session.shared.config.transaction_bytes_max;
        let mut begun = Self { session, worker, parts, thread: OpenOnThread::new(), begun_ns };
        if let Some(resting) = &begun.parts {
            let mut parts = resting.take();
            parts.forget_keys();
            (parts.bytes_max, parts.stays_open) = (bytes_max, true);
            parts.operations.resting = Some(Arc::downgrade(resting));
            // The drop gives the worker back.
            parts.begin(&begun.worker.open())?;
        }
        Ok(begun)
    }

    /// The transaction in its body's view. A [conflict](stillpoint_store::TxError::Conflict) ends
    /// the transaction: it cannot commit any more, and is not tried again.
    ///
    /// # Errors
    /// [`Error::InsideTransaction`] from inside a transaction with declared keys. A flush of
    /// tables might wait for that transaction, and the open transaction for the flush.
    /// [`TooOld`](stillpoint_store::TxError::TooOld) beyond the age that the settings allow.
    /// [`PinsLog`](stillpoint_store::TxError::PinsLog) if it kept too much of the log and is rolled back.
    ///
    /// # Panics
    /// If an earlier view of the transaction was leaked, by [`std::mem::forget`] for example.
    pub fn tx(&mut self) -> Result<Tx<'_>, Error> {
        self.admit_use()?;
        let parts = usable(&self.parts)?;
        let open = self.worker.open();
        Ok(match parts {
            None => Tx::new(open.into_tx()),
            Some(mut parts) => {
                parts.patience = open.patience();
                Tx::on_all(open.into_tx(), PartsOf::Open(parts))
            }
        })
    }

    fn admit_use(&mut self) -> Result<(), Error> {
        Inside::refuse_in_batch("the use of an open transaction")?;
        self.check_age()?;
        self.thread.note_use();
        self.worker.set_patience(self.thread.patience());
        Ok(())
    }

    /// Time since the transaction began.
    pub fn age(&self) -> Duration {
        let now_ns = self.session.shared.config.environment.clock.monotonic_ns();
        Duration::from_nanos(now_ns - self.begun_ns)
    }

    fn check_age(&self) -> Result<(), Error> {
        let Some(limit) = self.session.shared.config.transaction_age_max else { return Ok(()) };
        let age = self.age();
        if age <= limit {
            return Ok(());
        }
        let (age_ms, limit_ms) = (age.as_millis() as u64, limit.as_millis() as u64);
        Err(TxError::TooOld { age_ms, limit_ms }.into())
    }

    /// Begins a statement, and returns the savepoint before it.
    ///
    /// # Errors
    /// As [`tx`](Self::tx). [`NoSavepoints`](stillpoint_store::TxError::NoSavepoints) if the engine has
    /// tables in memory alone.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// use stillpoint::{Config, Engine, Kind};
    /// let mut config = Config::new(directory.path());
    /// config.siren_bytes = Some(16 << 20);
    /// let engine = Engine::open(config)?;
    /// let pets = engine.table_with("pets", Kind::Siren)?;
    /// let mut session = engine.session()?;
    ///
    /// let mut transaction = session.begin()?;
    /// transaction.tx()?.put(pets, b"rex", b"dog")?;
    /// let savepoint = transaction.savepoint()?;
    /// transaction.tx()?.put(pets, b"rex", b"cat")?;
    /// transaction.tx()?.put(pets, b"tom", b"cat")?;
    /// transaction.roll_back_to(savepoint)?;
    /// transaction.commit()?;
    ///
    /// let found = session.transact(|tx| Ok(tx.get(pets, b"rex")?.map(|pet| pet.to_vec())))?;
    /// assert_eq!(found.as_deref(), Some(&b"dog"[..]));
    /// assert_eq!(engine.len(pets), 1);
    /// # drop(session);
    /// # engine.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn savepoint(&mut self) -> Result<Savepoint, Error> {
        self.admit_use()?;
        let mut parts = usable(&self.parts)?.ok_or(TxError::NoSavepoints("memory"))?;
        Ok(parts.savepoint())
    }

    /// Takes back what the transaction has written since a savepoint. Its locks stay, and later savepoints
    /// are void. The savepoint itself may be used again.
    ///
    /// # Errors
    /// As [`tx`](Self::tx). [`UnknownSavepoint`](stillpoint_store::TxError::UnknownSavepoint).
    /// [`NoSavepoints`](stillpoint_store::TxError::NoSavepoints) if a write since then was to a table of
    /// another kind than [`Siren`](crate::Kind::Siren): then nothing is taken back.
    ///
    /// If the log has failed, the writes are taken back in memory, and the transaction reads on. Its further
    /// writes and its commit end with [`UndoLost`](crate::UndoLost), and it can only be rolled back.
    pub fn roll_back_to(&mut self, savepoint: Savepoint) -> Result<(), Error> {
        self.admit_use()?;
        let mut parts = usable(&self.parts)?.ok_or(TxError::UnknownSavepoint)?;
        Ok(parts.roll_back_to(savepoint)?)
    }

    /// Log and gsn of the transaction's first record, by which the log and the table of open
    /// transactions name it. `None` until the transaction changes a table in place. Writes to
    /// memory are logged at the commit.
    pub fn first_record(&self) -> Option<(u8, u64)> {
        let first = self.parts.as_ref()?.look(|parts| parts.operations.first_record());
        first.map(|LogGsn { log, gsn }| (log, gsn))
    }

    /// Commits. In strict durability the call returns once all the transaction's writes and reads
    /// survive any crash.
    ///
    /// # Errors
    /// As [`Session::transact`]. [`Conflict`](stillpoint_store::TxError::Conflict) if the transaction
    /// has met a lock for which it may not wait, or if a table was emptied meanwhile. Nothing of
    /// the transaction remains then, and the caller may begin again. [`Error::InsideTransaction`]
    /// from inside a transaction with declared keys; this one is rolled back.
    pub fn commit(mut self) -> Result<(), Error> {
        // The drop rolls back.
        Inside::refuse_in_batch("the commit of an open transaction")?;
        self.check_age()?;
        self.session.refuse_commits()?;
        let Self { session, worker, parts, .. } = &mut self;
        let committed = match usable(parts)? {
            None => {
                let signed = session.serials.sign(&mut Tx::new(worker.open().into_tx()));
                signed.and_then(|()| worker.open().commit())
            }
            Some(mut parts) => {
                let open = worker.open();
                parts.patience = open.patience();
                let signed =
                    session.serials.sign(&mut Tx::on_all(open.into_tx(), PartsOf::Run(&mut parts)));
                let committed = signed
                    .and_then(|()| kinds::commit_or_roll_back(&mut worker.open(), &mut parts));
                // A transaction that could not be signed is still open.
                parts.roll_back();
                committed
            }
        };
        let ended = self.worker.end(committed);
        let session = self.give_back();
        let acknowledged = session.acknowledge();
        // As in `Session::transact`.
        if ended.is_ok() {
            session.count();
        }
        acknowledged?;
        ended?;
        Ok(())
    }

    /// Gives the worker back to the session. The transaction has ended.
    fn give_back(&mut self) -> &mut Session {
        let worker = std::mem::replace(&mut self.worker, SessionWorker::lent());
        let parts = self.parts.take().map(|resting| resting.end());
        match parts {
            // As if the transaction itself was leaked.
            Some(None) => std::mem::forget(worker),
            parts => self.session.take_back(worker, parts.flatten()),
        }
        self.session
    }
}

/// The parts of a transaction that may go on.
///
/// # Errors
/// [`TxError::PinsLog`].
fn usable(parts: &Option<Arc<Resting>>) -> Result<Option<PartsInUse<'_>>, TxError> {
    let Some(resting) = parts else { return Ok(None) };
    let parts = resting.take();
    match parts.operations.pinned() {
        Some(why) => Err(why.into()),
        None => Ok(Some(parts)),
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if self.worker.is_lent() {
            return;
        }
        if let Some(mut parts) = self.parts.as_ref().and_then(|resting| resting.end()) {
            parts.roll_back();
            self.parts = Some(Arc::new(Resting::new(parts)));
        }
        self.worker.abandon();
        self.give_back();
    }
}
