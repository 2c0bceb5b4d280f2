//! A session, through which one thread uses the store.

mod durability;
mod load;

use std::sync::Arc;

use stillpoint_format::Stamp;
use stillpoint_store::{
    FoundValue, KeySet, Mode, Patience, RecordUse, TableId, TxError, ValueRef, Worker,
};
use stillpoint_sync::{mutant, planted};
use stillpoint_txn::{Arrival, Presence, UnlockedRead};

use crate::batch::{Batch, InMemory, Procedure};
use crate::call::Call;
use crate::call_log::{CallLog, Runner};
use crate::checkpoints::Wish;
use crate::emptying::empty;
use crate::error::Error;
use crate::guards::{Inside, Seat, SessionWorker, patience};
use crate::inputs::Inputs;
use crate::kinds::{self, Absent, MustNotWait, Parts};
use crate::procedure::PreparedCall;
use crate::serials::Serials;
use crate::shared::Shared;
use crate::transaction::Transaction;
use crate::tx::Tx;
use crate::unflushed::Unflushed;

/// A session runs one thread's transactions, one at a time.
/// [`Engine::session`](crate::Engine::session) makes one.
///
/// A checkpoint works at a lower priority, in short slices of the cores' time. A thread that sleeps
/// between its transactions, such as an event loop, calls
/// [`ask_for_short_slices`](crate::ask_for_short_slices) once. On busy cores the thread then runs
/// within a tenth of a millisecond after a wake-up, not milliseconds later.
pub struct Session {
    pub(crate) shared: Arc<Shared>,
    pub(crate) worker: SessionWorker,
    /// The parts of other kinds of tables in the session's transactions, if there are such kinds.
    parts: Option<Box<Parts>>,
    /// A buffer for the calls of transactions, if the log names them.
    call: Option<Call>,
    /// The inputs of the transaction that runs, if its keys are declared.
    inputs: Inputs,
    pub(crate) serials: Serials,
    pub(crate) log: u8,
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
        parts: Option<Box<Parts>>,
        log: u8,
        seat: Seat,
    ) -> Self {
        let logs_calls = shared.config.log_calls && shared.records_commits;
        let call = (logs_calls || shared.logs_calls_alone).then(Call::default);
        let environment = &shared.config.environment;
        let inputs = Inputs::new(environment.clock.clone(), environment.rng.clone());
        let (worker, serials) = (SessionWorker::new(worker, seat), Serials::default());
        Self { shared, worker, parts, call, inputs, serials, log }
    }

    /// Runs and commits a transaction that finds its keys on the way. In strict durability the call
    /// returns once all the transaction's writes and reads survive any crash.
    ///
    /// A transaction that meets another one's lock is rolled back and tried again. So `body` may
    /// run several times: 17 at most, unless tables are flushed meanwhile. An
    /// [open transaction](Self::begin) may hold a lock in a table of another kind than the memory store.
    /// Then the body may run more often. The body must have no effects but through `tx`, and use no other session. If `body` returns an
    /// error, the transaction is rolled back. The error is returned once the transaction's reads survive
    /// any crash.
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
    /// [`Error::Transaction`] if `body` failed or the commit was refused; nothing of the
    /// transaction remains. [`Error::Journal`] or [`Error::Failed`] if the log has failed; nothing
    /// more is acknowledged. [`Error::Ended`] if the engine is gone. After a failed flush only the
    /// next opening decides whether the transaction has happened. [`Error::InsideTransaction`] from
    /// inside a transaction with declared keys. [`TxError::WaitsForItself`] if the transaction
    /// might wait for an [open transaction](Self::begin) of this thread.
    pub fn transact<R>(
        &mut self,
        mut body: impl FnMut(&mut Tx<'_>) -> Result<R, TxError>,
    ) -> Result<R, Error> {
        let inside = Inside::body()?;
        self.admit()?;
        let Self { worker, parts, serials, .. } = self;
        let mut signed = |tx: &mut Tx<'_>| {
            let result = body(tx)?;
            serials.sign(tx)?;
            Ok(result)
        };
        let result = match parts {
            None => worker.run_until_ended(|open| {
                let result = signed(&mut Tx::in_memory(open.tx()))?;
                open.commit()?;
                Ok(result)
            }),
            Some(parts) => kinds::transact(worker, parts, &mut signed),
        };
        drop(inside);
        self.note_failure();
        // An error also reveals something that the transaction read.
        let acknowledged = self.acknowledge();
        if result.is_ok() {
            self.count();
        }
        acknowledged?;
        self.note_full(result)
    }

    /// Asks for a checkpoint if pages found no room on the disk: it frees their older copies.
    fn note_full<R>(&self, result: Result<R, TxError>) -> Result<R, Error> {
        let result = result.map_err(Error::from);
        if result.as_ref().is_err_and(Error::lacks_pages) {
            self.shared.checkpoints.request(Wish::Due);
        }
        result
    }

    /// Begins a transaction that stays open across calls, until it is committed or dropped.
    /// Meanwhile the session does nothing else. Unlike in [`transact`](Self::transact), the
    /// transaction is not tried again after a conflict.
    ///
    /// An open transaction, even an idle one, keeps the memory of tables that
    /// [`flush_tables`](crate::Engine::flush_tables) empties meanwhile. That memory is free when
    /// the transaction has ended. So end the transaction before you empty large tables, or soon
    /// after. [`Stats`](crate::Stats) shows the memory.
    ///
    /// A transaction that is leaked, by [`std::mem::forget`] for example, never ends. Its locks stay
    /// until the engine is closed, and so does the memory of tables that are emptied later. Other
    /// transactions on its keys wait, and in the end the whole store waits.
    ///
    /// # Errors
    /// As [`transact`](Self::transact), before anything has happened.
    ///
    /// # Panics
    /// If an open transaction of the session was leaked. Every call of the session panics then.
    pub fn begin(&mut self) -> Result<Transaction<'_>, Error> {
        Inside::refuse_in_batch("begin")?;
        self.admit()?;
        Transaction::begin(self)
    }

    /// Gives worker and parts to a transaction that stays open.
    pub(crate) fn lend_worker(&mut self) -> (SessionWorker, Option<Box<Parts>>) {
        (std::mem::replace(&mut self.worker, SessionWorker::lent()), self.parts.take())
    }

    /// Takes worker and parts back from a transaction that stayed open and has ended.
    pub(crate) fn take_back(&mut self, worker: SessionWorker, parts: Option<Box<Parts>>) {
        (self.worker, self.parts) = (worker, parts);
        if let Some(parts) = &mut self.parts {
            (parts.bytes_max, parts.stays_open) = (None, false);
            parts.operations.resting = None;
            parts.give_dependencies(&mut self.worker);
        }
        self.note_failure();
    }

    /// Refuses a commit once the store has failed or ended.
    pub(crate) fn refuse_commits(&self) -> Result<(), Error> {
        self.shared.life.check()
    }

    /// Runs transactions with declared keys, one after the other. The index lines and records of
    /// several transactions are prefetched together before the first of these runs. No transaction
    /// is ever aborted for a lock. Does *not* wait for durability: call [`flush`](Self::flush)
    /// before acknowledging.
    pub fn execute<B: Batch + ?Sized>(&mut self, batch: &mut B) {
        let inside = Inside::batch("execute");
        match inside.and_then(|inside| self.admit().map(|()| inside)) {
            Ok(_inside) => self.run_admitted(batch),
            Err(refused) => refuse_all(batch, 0, &refused),
        }
    }

    /// As [`execute`](Self::execute), but a transaction waits for others for a moment only. Then it ends with
    /// [`TxError::WaitsForItself`]. For upkeep that may leave out keys that somebody works on.
    pub fn execute_if_free<B: Batch + ?Sized>(&mut self, batch: &mut B) {
        let inside = Inside::batch("execute_if_free");
        match inside.and_then(|inside| self.admit().map(|()| inside)) {
            Ok(_inside) => {
                self.worker.set_patience(Patience::Brief);
                self.run_admitted(batch);
            }
            Err(refused) => refuse_all(batch, 0, &refused),
        }
    }

    #[inline]
    fn run_admitted<B: Batch + ?Sized>(&mut self, batch: &mut B) {
        let Self { call, inputs, serials, shared, worker, parts, .. } = self;
        run_batch(worker, parts, runner_of(call, inputs, serials, shared), batch);
        self.note_failure();
        self.cut_if_due();
    }

    /// As [`execute`](Self::execute) from transaction `from` on, but never waits for keys that are
    /// not in memory: for event loops, which have other clients. Transactions end in their order.
    /// Before the first transaction with a missing key the call returns with the arrivals. The
    /// caller serves others until a key [has arrived](crate::Arrival::has_arrived), and calls again
    /// with the same batch.
    ///
    /// The batch may be asked again whether a transaction begins, and may run it again. A missing
    /// key may show only in the middle of a run, which is then rolled back.
    ///
    /// Keys that are not in memory are those of other kinds of tables. While a store is
    /// [served and loaded](crate::Config::serve_while_loading), see
    /// [`leave_unloaded`](Self::leave_unloaded).
    pub fn execute_here<B: Batch + ?Sized>(&mut self, batch: &mut B, from: usize) -> Executed {
        let refused =
            Inside::batch("execute_here").and_then(|inside| self.admit().map(|()| inside));
        let _inside = match refused {
            Ok(inside) => inside,
            Err(refused) => {
                refuse_all(batch, from, &refused);
                return Executed::All;
            }
        };
        let runner = runner_of(&mut self.call, &mut self.inputs, &mut self.serials, &self.shared);
        let Some(parts) = &mut self.parts else {
            self.worker.execute(&mut InMemory { batch: &mut Rest { batch, from }, runner });
            self.cut_if_due();
            return Executed::All;
        };
        let executed = {
            let mut here = MustNotWait::begin(parts);
            kinds::execute(&mut self.worker, &mut here, (batch, runner), from)
        };
        self.note_failure();
        self.cut_if_due();
        match executed {
            Ok(()) => Executed::All,
            Err(Absent { next, arrivals }) => Executed::Before { next, arrivals },
        }
    }

    /// Sets whether this session leaves records alone that are to be read from the disk. There are such
    /// while a store is [served and loaded](crate::Config::serve_while_loading). For event loops, which
    /// have other clients. A transaction or read that needs such a record ends with
    /// [`TxError::NotLoaded`]. A session of another thread, or this one later, runs it again.
    pub fn leave_unloaded(&mut self, leaves: bool) {
        self.worker.leave_unloaded(leaves);
    }

    /// Loads the records that transactions of this session have lacked since it began to
    /// [leave such records alone](Self::leave_unloaded). Loads those that they [asked for](Tx::ask_for),
    /// too. Reads the disk, and holds no lock meanwhile. Returns whether there were such records.
    ///
    /// # Errors
    /// [`TxError::Unreadable`] if the first of them cannot be read. [`Error::InsideTransaction`] from
    /// inside a transaction with declared keys.
    pub fn load_missed(&mut self) -> Result<bool, Error> {
        Inside::refuse_in_batch("load_missed")?;
        Ok(self.worker.load_missed()?)
    }

    /// Sets whether this session leaves locks in tables of other kinds alone that others hold for longer than a
    /// moment. The holder may be an [open transaction](Self::begin) that waits for a person. For event loops,
    /// which have other clients. A transaction that meets such a lock ends with [`TxError::Held`]. It may run
    /// again later.
    pub fn leave_held(&mut self, leaves: bool) {
        if let Some(parts) = &mut self.parts {
            parts.limits.leaves_held = leaves;
        }
    }

    /// Whether there are such locks: the engine has tables of other kinds than memory.
    pub fn may_meet_held(&self) -> bool {
        self.parts.is_some() && self.shared.kinds.have_tables()
    }

    /// Sets whether transactions with declared keys leave locks of keys in memory alone that others hold for
    /// longer than a moment. One that reads a million keys holds them so. They also leave the permit of the
    /// store alone, which one transaction has after many failed runs, and some checkpoints at their point of
    /// consistency. For event loops, too. A transaction that meets such a lock ends with [`TxError::Held`], and may run again later.
    pub fn leave_busy_keys(&mut self, leaves: bool) {
        self.worker.leave_held(leaves);
    }

    /// As [`Engine::flush_tables`](crate::Engine::flush_tables), for a session that may
    /// [leave held locks alone](Self::leave_held).
    ///
    /// # Errors
    /// As [`Engine::flush_tables`](crate::Engine::flush_tables). [`TxError::Held`] if the session leaves held
    /// locks alone, and an open transaction uses one of the tables for longer than a moment.
    pub fn flush_tables(&mut self, tables: &[TableId]) -> Result<(), Error> {
        let limits = self.parts.as_ref().map(|parts| parts.limits.clone());
        empty(&self.shared, tables, &limits.unwrap_or_else(|| self.shared.wait_limits()))
    }

    /// Group commit. In strict durability, waits until all reads and writes of this session's
    /// transactions survive any crash. Otherwise returns at once. Replies must not leave before
    /// this call returns.
    ///
    /// # Errors
    /// [`Error::Journal`] or [`Error::Failed`] if the log has failed: nothing more is acknowledged.
    /// [`Error::Ended`] if the engine is gone.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.acknowledge()
    }

    /// The commits that [`flush`](Self::flush) would wait for.
    /// [`Engine::make_durable`](crate::Engine::make_durable) waits for them on any thread, and this
    /// session goes on meanwhile. Replies to transactions executed so far must not leave before.
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
        self.serials.answer(Unflushed::of(stamps))
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
            let named = (name, procedure.version(), input);
            let mut running = Running { named, call: &*call, output: Vec::new(), result: Ok(()) };
            let runner =
                runner_of(&mut self.call, &mut self.inputs, &mut self.serials, &self.shared);
            let batch = std::slice::from_mut(&mut running);
            run_batch(&mut self.worker, &mut self.parts, runner, batch);
            (running.output, running.result)
        };
        drop(inside);
        self.note_failure();
        // As in `transact`.
        let acknowledged = self.acknowledge();
        self.cut_if_due();
        acknowledged?;
        result?;
        Ok(output)
    }

    /// Reads one key without a lock, appending the newest committed value to `out`. In strict
    /// durability the caller may show the value only after [`flush`](Self::flush).
    ///
    /// # Errors
    /// [`Error::Transaction`] if there is no such table. [`Error::Ended`] if the engine is gone,
    /// [`Error::InsideTransaction`] from inside a transaction with declared keys.
    pub fn read(
        &mut self,
        table: TableId,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<FoundValue>, Error> {
        self.shared.life.check_read()?;
        Inside::refuse_in_batch("read")?;
        let found = if self.is_of_other_kind(table) {
            self.read_in_part(table, key, out)?
        } else {
            self.worker.read(table, key, out)?
        };
        self.count();
        Ok(found)
    }

    /// Visits some keys of a table from a cursor on (0 at first). Returns the next cursor, 0 at the
    /// end. A key that has a value during the whole scan is visited exactly once, another key at
    /// most once, unless the table is emptied meanwhile. In strict durability the caller may show
    /// the findings, including missing keys, only after [`flush`](Self::flush).
    ///
    /// The visitor sees copies and blocks nothing, so it may be slow and may use other sessions.
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
        self.shared.load.wait(&self.shared)?;
        let next = if self.is_of_other_kind(table) {
            self.scan_in_part(table, (cursor, count), usize::MAX, visit)?
        } else {
            self.worker.scan(table, cursor, count, visit)?
        };
        self.count();
        Ok(next)
    }

    /// As [`scan`](Self::scan), but the visitor sees only the first `most` bytes of each value, so
    /// a scan for keys copies no long values.
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
        self.shared.load.wait(&self.shared)?;
        let next = if self.is_of_other_kind(table) {
            self.scan_in_part(table, (cursor, count), most, visit)?
        } else {
            self.worker.scan_heads(table, cursor, count, most, visit)?
        };
        self.count();
        Ok(next)
    }

    /// As [`scan_heads`](Self::scan_heads), and shows how each record was used. Shows what is in memory,
    /// and waits for no load. Every number is a cursor, so a random number is a random place to draw some records from. A table of another kind
    /// has no such records to show.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn scan_uses(
        &mut self,
        table: TableId,
        cursor: u64,
        count: usize,
        most: usize,
        visit: &mut dyn FnMut(&[u8], ValueRef<'_>, RecordUse),
    ) -> Result<u64, Error> {
        self.shared.life.check_read()?;
        Inside::refuse_in_batch("scan")?;
        if self.is_of_other_kind(table) {
            return Ok(0);
        }
        Ok(self.worker.scan_uses(table, cursor, count, most, visit)?)
    }

    /// Number of keys of a table that have a value. In strict durability the caller may show the
    /// number only after [`flush`](Self::flush). The flush then waits for every commit so far,
    /// since each may have changed the number. [`Engine::len`](crate::Engine::len) waits for
    /// nothing. While a store is [served and loaded](crate::Config::serve_while_loading), the call waits for
    /// the end of the load.
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
    /// [`Error::Ended`] if the engine is gone. [`Error::NotLoaded`] if the load has stopped. During a load,
    /// [`Error::InsideTransaction`] from inside a transaction with declared keys.
    pub fn len(&mut self, table: TableId) -> Result<u64, Error> {
        self.shared.life.check_read()?;
        if !self.shared.load.is_done() {
            Inside::refuse_in_batch("len")?;
            self.shared.load.wait(&self.shared)?;
        }
        let count = match self.shared.kinds.kind_of(table) {
            Ok(kind) => kind.record_count(table),
            Err(_) => self.shared.store.record_count(table),
        };
        // A commit is appended before it is counted, so these positions cover every counted commit.
        self.depend_on_all();
        self.count();
        Ok(count)
    }

    /// Does pending upkeep, such as the reclaiming of deleted records. Call this while idle. Inside
    /// a transaction with declared keys the call does nothing. Returns true if work is left for a
    /// later call.
    pub fn idle(&mut self) -> bool {
        Inside::is_in_batch() || self.worker.idle()
    }

    /// Moves some records closer together, if much memory is free only in pieces that others cannot use.
    /// One thread does so at a time, so one idle thread is enough. Returns true if a further call may find
    /// more to do at once.
    pub fn relocate(&mut self) -> bool {
        !Inside::is_in_batch() && self.worker.relocate()
    }

    /// Whether the next call of [`idle`](Self::idle) frees memory of deleted records for which a
    /// checkpoint was awaited. A caller with nothing else to do then calls it at once.
    pub fn reclaims(&self) -> bool {
        self.worker.reclaims()
    }

    /// Fails the store if an undo could not be logged.
    #[inline]
    fn note_failure(&mut self) {
        if let Some(reason) = self.parts.as_deref_mut().and_then(Parts::take_failure) {
            self.shared.fail(reason);
        }
    }

    fn is_of_other_kind(&self, table: TableId) -> bool {
        self.parts.is_some() && self.shared.kinds.of(table).is_some()
    }

    /// Reads one key of a table of another kind: without a lock, or in a transaction of its own.
    fn read_in_part(
        &mut self,
        table: TableId,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<FoundValue>, Error> {
        let kind = self.shared.kinds.kind_of(table)?;
        let read = loop {
            match kind.read(table, key, out)? {
                Presence::Here(read) => break read,
                Presence::NotHere(arrival) => arrival.wait()?,
            }
        };
        let Some(UnlockedRead { tag, stamp }) = read else {
            return self.read_in_transaction(table, key, out);
        };
        self.worker.depend_on(stamp);
        Ok(tag.map(|tag| FoundValue { tag, deadline: 0, stamp }))
    }

    /// Reads one key of a table of another kind, in a transaction of its own.
    #[cold]
    fn read_in_transaction(
        &mut self,
        table: TableId,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<FoundValue>, Error> {
        let _inside = Inside::body()?;
        self.worker.set_patience(patience());
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
            // Tables of other kinds keep no deadlines.
            Ok(found.map(|tag| FoundValue { tag, deadline: 0, stamp }))
        };
        Ok(kinds::transact(&mut self.worker, parts, &mut body)?)
    }

    /// The next answer depends on all commits whose records are in the logs by now.
    fn depend_on_all(&mut self) {
        if self.shared.acknowledges_closed || self.serials.is_tracked() {
            for last in self.shared.appended().stamps {
                self.worker.depend_on(last);
            }
        }
    }

    /// Reads some keys of a table of another kind, and then shows them to the visitor.
    #[cold]
    fn scan_in_part(
        &mut self,
        table: TableId,
        range: (u64, usize),
        most: usize,
        visit: &mut dyn FnMut(&[u8], ValueRef<'_>),
    ) -> Result<u64, Error> {
        let inside = Inside::body()?;
        self.worker.set_patience(patience());
        let parts = self.parts.as_mut().expect("there is a table of another kind");
        let (next, found) = kinds::scan(&mut self.worker, parts, table, range)?;
        drop(inside);
        // A key whose deletion may not be durable yet was not met.
        self.depend_on_all();
        for (key, tag, value) in found {
            visit(&key, ValueRef::from_bytes(tag, &value[..value.len().min(most)]));
        }
        Ok(next)
    }

    /// Waits without a lock until the log has room. Refuses when the store has failed. A full disk
    /// refuses only commits that write; readers go on. Bounds the waits of a thread that has an open
    /// transaction.
    #[inline]
    fn admit(&mut self) -> Result<(), Error> {
        self.worker.set_patience(patience());
        self.shared.admit(self.log).or_else(|refused| match self.shared.health() {
            Ok(()) => Ok(()),
            Err(_) => Err(refused),
        })
    }

    #[inline]
    pub(crate) fn acknowledge(&mut self) -> Result<(), Error> {
        self.shared.life.check_read()?;
        let unflushed = self.unflushed();
        self.shared.make_durable(&unflushed.stamps)
    }
}

/// What a session needs to run transactions and log their calls.
#[inline]
fn runner_of<'s>(
    call: &'s mut Option<Call>,
    inputs: &'s mut Inputs,
    serials: &'s mut Serials,
    shared: &'s Shared,
) -> Runner<'s> {
    let log = call.as_mut().map(|call| CallLog {
        call,
        procedures: &shared.procedures,
        holds_calls: &shared.holds_calls,
        logs_alone: shared.logs_calls_alone,
        logs_beside: shared.config.log_calls,
        runs_twice: shared.config.run_calls_twice,
    });
    Runner { inputs, serials, log }
}

#[inline]
fn run_batch<B: Batch + ?Sized>(
    worker: &mut Worker,
    parts: &mut Option<Box<Parts>>,
    runner: Runner<'_>,
    batch: &mut B,
) {
    match parts {
        None => worker.execute(&mut InMemory { batch, runner }),
        Some(parts) => {
            kinds::execute(worker, parts, (batch, runner), 0)
                .expect("who may wait gets all that is asked for");
        }
    }
}

/// Ends the transactions of a batch from number `from` on that the store does not admit.
#[cold]
fn refuse_all<B: Batch + ?Sized>(batch: &mut B, from: usize, refused: &Error) {
    let reason = refused.to_string();
    for index in from..batch.len() {
        batch.ended(index, Err(TxError::abandon(reason.clone())));
    }
}

/// How far [`Session::execute_here`] came.
#[derive(Clone, Debug)]
#[must_use = "the rest of the batch has not run"]
pub enum Executed {
    /// All transactions have ended.
    All,
    /// A transaction lacks a key that is on its way into memory. All transactions before it have
    /// run.
    Before {
        /// Number of the transaction in the batch.
        next: usize,
        /// The arrivals that the caller can wait for.
        arrivals: Vec<Arc<dyn Arrival>>,
    },
}

/// The transactions of a batch, from a given number on.
struct Rest<'b, B: ?Sized> {
    batch: &'b mut B,
    from: usize,
}

impl<B: Batch + ?Sized> Batch for Rest<'_, B> {
    fn len(&self) -> usize {
        self.batch.len() - self.from
    }
    fn declare(&mut self, index: usize, keys: &mut KeySet) {
        self.batch.declare(self.from + index, keys);
    }
    fn begins(&mut self, index: usize, large_bytes: &dyn Fn() -> usize) -> bool {
        self.batch.begins(self.from + index, large_bytes)
    }
    fn call(&mut self, index: usize, call: &mut Call) {
        self.batch.call(self.from + index, call);
    }
    fn run(&mut self, index: usize, tx: &mut Tx<'_>) -> Result<(), TxError> {
        self.batch.run(self.from + index, tx)
    }
    fn ended(&mut self, index: usize, result: Result<Option<Stamp>, TxError>) {
        self.batch.ended(self.from + index, result);
    }
}

struct Running<'a> {
    /// Name, version and encoded arguments.
    named: (&'a str, u32, &'a [u8]),
    call: &'a dyn PreparedCall,
    output: Vec<u8>,
    result: Result<(), TxError>,
}

impl Procedure for Running<'_> {
    fn declare(&mut self, keys: &mut KeySet) {
        self.call.declare(keys);
    }
    fn call(&mut self, call: &mut Call) {
        let (name, version, arguments) = self.named;
        call.set_procedure(name, version);
        call.arguments.extend_from_slice(arguments);
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        // An earlier run may have written a part, and was then tried again.
        self.output.clear();
        self.call.run(tx, &mut self.output)
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        self.result = result.map(|_| ());
    }
}
