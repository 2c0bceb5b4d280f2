//! A session: one thread's way into the store.

use std::sync::Arc;

use stillpoint_format::Stamp;
use stillpoint_store::{KeySet, Mode, Seen, TableId, TxError, ValueRef, Worker};
use stillpoint_sync::{mutant, planted};

use crate::batch::{Batch, InMemory, Procedure};
use crate::engine::Shared;
use crate::error::Error;
use crate::guards::{Inside, Seat, SessionWorker};
use crate::kinds::{self, Parts};
use crate::procedure::PreparedCall;
use crate::tx::Tx;

/// One thread's way into the store: runs transactions, one at a time. Make one per thread with
/// [`Engine::session`](crate::Engine::session).
///
/// A checkpoint works at a lower priority, in short slices of the cores' time. A thread that sleeps
/// between its transactions, an event loop say, calls
/// [`ask_for_short_slices`](crate::ask_for_short_slices) once: where all cores are busy it goes on
/// within a tenth of a millisecond after it is woken, not milliseconds later.
pub struct Session {
    shared: Arc<Shared>,
    worker: SessionWorker,
    /// What tables of other kinds have in the session's transactions, if there are any.
    parts: Option<Parts>,
    log: u8,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("worker", &self.worker.number()).finish_non_exhaustive()
    }
}

impl Session {
    pub(crate) fn new(
        shared: Arc<Shared>,
        worker: Worker,
        parts: Option<Parts>,
        log: u8,
        seat: Seat,
    ) -> Self {
        Self { shared, worker: SessionWorker::new(worker, seat), parts, log }
    }

    /// Runs a transaction that finds its keys on the way, and commits it. In strict durability it
    /// returns once whatever it wrote and read survives any crash.
    ///
    /// Meeting the lock of another transaction it is rolled back and tried again by itself, so
    /// `body` may run several times (17 at most, unless tables are flushed meanwhile). It must have
    /// no effects but through `tx`, and use no other session. An error that
    /// `body` returns rolls back. It is told when what the transaction read survives any crash.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// let engine = stillpoint::Engine::open(stillpoint::Config::new(directory.path()))?;
    /// let pets = engine.table("pets")?;
    /// let mut session = engine.session()?;
    /// session.transact(|tx| {
    ///     tx.put(pets, b"rex", b"dog")?;
    ///     tx.put(pets, b"tom", b"cat")
    /// })?;
    /// let tom = session.transact(|tx| Ok(tx.get(pets, b"tom")?.map(|pet| pet.to_vec())))?;
    /// assert_eq!(tom.as_deref(), Some(&b"cat"[..]));
    /// # engine.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Transaction`] if `body` failed or the commit was refused: nothing of the
    /// transaction remains. [`Error::Journal`] or [`Error::Failed`] if the log has failed: nothing
    /// more is acknowledged. [`Error::Ended`] if the engine is gone. After a failed flush only the
    /// next opening says whether the transaction has happened. [`Error::InsideTransaction`] from
    /// inside a transaction with declared keys.
    pub fn transact<R>(
        &mut self,
        mut body: impl FnMut(&mut Tx<'_>) -> Result<R, TxError>,
    ) -> Result<R, Error> {
        let inside = Inside::body()?;
        self.admit()?;
        let result = match &mut self.parts {
            None => self.worker.run_until_ended(|open| {
                let result = body(&mut Tx::new(open.tx()))?;
                open.commit()?;
                Ok(result)
            }),
            Some(parts) => kinds::transact(&mut self.worker, parts, &mut body),
        };
        drop(inside);
        self.note_failure();
        // A failure, too, tells something of what was read.
        self.acknowledge()?;
        Ok(result?)
    }

    /// Runs transactions with declared keys, one after the other: their index lines and records
    /// are fetched together before the first of them runs, and none is ever aborted for a lock.
    /// Does *not* wait for durability: call [`flush`](Self::flush) before acknowledging.
    pub fn execute<B: Batch + ?Sized>(&mut self, batch: &mut B) {
        let inside = Inside::batch("execute");
        match inside.and_then(|inside| self.admit().map(|()| inside)) {
            Ok(_inside) => {
                run_batch(&mut self.worker, &mut self.parts, batch);
                self.note_failure();
            }
            Err(refused) => {
                let reason = refused.to_string();
                for index in 0..batch.len() {
                    batch.ended(index, Err(TxError::abandon(reason.clone())));
                }
            }
        }
    }

    /// Group commit: makes everything that this session's transactions since the last call wrote
    /// and read safe from any crash, if durability is strict; else returns at once. Replies must
    /// not leave before it returns.
    ///
    /// # Errors
    /// [`Error::Journal`] or [`Error::Failed`] if the log has failed: nothing more is acknowledged.
    /// [`Error::Ended`] if the engine is gone.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.acknowledge()
    }

    /// What [`flush`](Self::flush) would wait for, as a thing to wait for elsewhere:
    /// [`Engine::make_durable`](crate::Engine::make_durable) does it on any thread, and this session
    /// goes on meanwhile. Replies to what was executed up to now must not leave before.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// use stillpoint::{Config, Durability, Engine};
    ///
    /// let mut config = Config::new(directory.path());
    /// config.durability = Durability::Strict;
    /// let engine = Engine::open(config)?;
    /// let pets = engine.table("pets")?;
    /// let mut session = engine.session()?;
    /// let mut out = Vec::new();
    /// session.read(pets, b"rex", &mut out)?;
    /// let answer = session.unflushed();
    /// engine.make_durable(&answer)?;
    /// assert!(engine.is_durable(&answer));
    /// # drop(session);
    /// # engine.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn unflushed(&mut self) -> Unflushed {
        if !self.shared.acknowledges_closed {
            return Unflushed::default();
        }
        mutant!(AnswersBeforeFlush => return Unflushed::default());
        let mut stamps = self.worker.take_dependencies();
        mutant!(AnswersReadsAtOnce => stamps.retain(|stamp| stamp.log() == self.log));
        Unflushed { stamps }
    }

    /// Calls a [procedure](crate::EngineBuilder::procedure) as one transaction, acknowledged like
    /// [`transact`](Self::transact).
    ///
    /// # Errors
    /// [`Error::NoSuchProcedure`]. [`Error::Arguments`] if `input` or the result is not of the
    /// procedure's types. Else as [`transact`](Self::transact).
    pub fn call<I: crate::Arguments, O: crate::Arguments>(
        &mut self,
        name: &str,
        input: &I,
    ) -> Result<O, Error> {
        let mut bytes = Vec::new();
        input.encode(&mut bytes);
        let output = self.call_encoded(name, &bytes)?;
        O::decode(&mut &output[..]).ok_or_else(|| Error::Arguments(name.to_owned()))
    }

    /// As [`call`](Self::call), with arguments and result as bytes.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn call_encoded(&mut self, name: &str, input: &[u8]) -> Result<Vec<u8>, Error> {
        let inside = Inside::batch("call")?;
        self.admit()?;
        let (output, result) = {
            let procedure = self.shared.procedures.find(name)?;
            let call = procedure.prepare(input).ok_or_else(|| Error::Arguments(name.to_owned()))?;
            let mut running = Running { call: &*call, output: Vec::new(), result: Ok(()) };
            let batch = std::slice::from_mut(&mut running);
            run_batch(&mut self.worker, &mut self.parts, batch);
            (running.output, running.result)
        };
        drop(inside);
        self.note_failure();
        // As in `transact`.
        self.acknowledge()?;
        result?;
        Ok(output)
    }

    /// Reads one key without a lock, appending the newest committed value to `out`. In strict
    /// durability the caller may show it only after [`flush`](Self::flush).
    ///
    /// # Errors
    /// [`Error::Transaction`] if there is no such table. [`Error::Ended`] if the engine is gone,
    /// [`Error::InsideTransaction`] from inside a transaction with declared keys.
    pub fn read(
        &mut self,
        table: TableId,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Seen>, Error> {
        self.shared.life.check_read()?;
        Inside::refuse_in_batch("read")?;
        if self.is_of_other_kind(table) {
            return self.read_in_part(table, key, out);
        }
        Ok(self.worker.read(table, key, out)?)
    }

    /// Visits some keys of a table, from a cursor on (0 at first); returns the next cursor, 0 at
    /// the end. A key that has a value during the whole walk is visited exactly once, another key
    /// at most once, unless the table is emptied meanwhile. In strict durability the caller may show
    /// what was found, and that a key was not, only after [`flush`](Self::flush).
    ///
    /// The visitor sees copies and holds nothing up: it may take its time and use other sessions.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn scan(
        &mut self,
        table: TableId,
        cursor: u64,
        count: usize,
        visit: &mut dyn FnMut(&[u8], ValueRef<'_>),
    ) -> Result<u64, Error> {
        self.shared.life.check_read()?;
        Inside::refuse_in_batch("scan")?;
        self.refuse_other_kind("scan", table)?;
        Ok(self.worker.scan(table, cursor, count, visit)?)
    }

    /// As [`scan`](Self::scan), but the visitor sees only the first `most` bytes of each value: a walk
    /// for keys copies no long values.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn scan_heads(
        &mut self,
        table: TableId,
        cursor: u64,
        count: usize,
        most: usize,
        visit: &mut dyn FnMut(&[u8], ValueRef<'_>),
    ) -> Result<u64, Error> {
        self.shared.life.check_read()?;
        Inside::refuse_in_batch("scan")?;
        self.refuse_other_kind("scan", table)?;
        Ok(self.worker.scan_heads(table, cursor, count, most, visit)?)
    }

    /// Number of keys of a table that have a value. In strict durability the caller may show it
    /// only after [`flush`](Self::flush), which then waits for every commit up to now: each may
    /// have changed the number. [`Engine::len`](crate::Engine::len) waits for nothing.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// let engine = stillpoint::Engine::open(stillpoint::Config::new(directory.path()))?;
    /// let pets = engine.table("pets")?;
    /// let mut session = engine.session()?;
    /// session.transact(|tx| tx.put(pets, b"rex", b"dog"))?;
    /// let count = session.len(pets)?;
    /// session.flush()?;
    /// assert_eq!(count, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Ended`] if the engine is gone.
    pub fn len(&mut self, table: TableId) -> Result<u64, Error> {
        self.shared.life.check_read()?;
        self.refuse_other_kind("len", table)?;
        let count = self.shared.store.record_count(table);
        if self.shared.acknowledges_closed {
            // A commit is appended before it is counted, so these cover whatever was counted.
            for last in self.shared.journal.positions_before_epoch(u64::MAX) {
                self.worker.depend_on(Stamp::new(last.gsn, last.log));
            }
        }
        Ok(count)
    }

    /// Does what waits to be done, such as reclaiming deleted records. Call it while idle; inside a
    /// transaction with declared keys it does nothing. True if something still waits: call it again
    /// later.
    pub fn idle(&mut self) -> bool {
        Inside::is_in_batch() || self.worker.idle()
    }

    /// Fails the store if an undo could not be logged.
    #[inline]
    fn note_failure(&mut self) {
        if let Some(reason) = self.parts.as_mut().and_then(Parts::take_failure) {
            self.shared.fail(reason);
        }
    }

    fn is_of_other_kind(&self, table: TableId) -> bool {
        self.parts.is_some() && self.shared.kinds.of(table).is_some()
    }

    fn refuse_other_kind(&self, what: &'static str, table: TableId) -> Result<(), Error> {
        if self.is_of_other_kind(table) { Err(Error::OtherKind { what, table }) } else { Ok(()) }
    }

    /// Reads one key of a table of another kind: a transaction of its own.
    #[cold]
    fn read_in_part(
        &mut self,
        table: TableId,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Seen>, Error> {
        let _inside = Inside::body()?;
        let parts = self.parts.as_mut().expect("there is a table of another kind");
        let start = out.len();
        let mut body = |tx: &mut Tx<'_>| {
            out.truncate(start);
            let slot = tx.key(table, key, Mode::Read)?;
            let stamp = tx.stamp(slot);
            let found = tx.value(slot).map(|value| {
                value.copy_to(out);
                value.tag()
            });
            Ok(found.map(|tag| Seen { tag, stamp }))
        };
        Ok(kinds::transact(&mut self.worker, parts, &mut body)?)
    }

    /// Waits, with no lock held, until the log has room; refuses when the store has failed. A full
    /// disk refuses only those that write, when they commit; who reads goes on.
    #[inline]
    fn admit(&self) -> Result<(), Error> {
        self.shared.admit(self.log).or_else(|refused| match self.shared.health() {
            Ok(()) => Ok(()),
            Err(_) => Err(refused),
        })
    }

    #[inline]
    fn acknowledge(&mut self) -> Result<(), Error> {
        self.shared.life.check_read()?;
        let unflushed = self.unflushed();
        self.shared.make_durable(&unflushed)
    }
}

#[inline]
fn run_batch<B: Batch + ?Sized>(worker: &mut Worker, parts: &mut Option<Parts>, batch: &mut B) {
    match parts {
        None => worker.execute(&mut InMemory(batch)),
        Some(parts) => kinds::execute(worker, parts, batch),
    }
}

/// What answers wait for in strict durability: the newest commit of each log that they depend on.
/// From [`Session::unflushed`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unflushed {
    /// One of each log at most.
    pub(crate) stamps: Vec<Stamp>,
}

impl Unflushed {
    /// True if there is nothing to wait for.
    pub fn is_empty(&self) -> bool {
        self.stamps.is_empty()
    }

    /// Waits for the other's commits too.
    pub fn join(&mut self, other: Self) {
        for stamp in other.stamps {
            match self.stamps.iter_mut().find(|known| known.log() == stamp.log()) {
                Some(known) if known.gsn() < stamp.gsn() => *known = stamp,
                Some(_) => {}
                None => self.stamps.push(stamp),
            }
        }
    }
}

struct Running<'a> {
    call: &'a dyn PreparedCall,
    output: Vec<u8>,
    result: Result<(), TxError>,
}

impl Procedure for Running<'_> {
    fn declare(&mut self, keys: &mut KeySet) {
        self.call.declare(keys);
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        self.call.run(tx, &mut self.output)
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        self.result = result.map(|_| ());
    }
}
