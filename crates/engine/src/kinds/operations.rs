//! The operations of one transaction: logged one by one, and remembered so that they can be undone.

use std::sync::{Arc, Weak};

use stillpoint_format::log::{
    LoggedEnd, LoggedOperation, RECORD_HEAD_BYTES, RecordKind, TransactionEnd, WritesEncoder,
};
use stillpoint_format::{EncodeError, LogGsn, Stamp};
use stillpoint_io::{DiskError, DiskResult};
use stillpoint_journal::{Entry, Journal, JournalError, Together};
use stillpoint_store::{Commit, LogRefused, TableId};
use stillpoint_sync::atomic::Ordering::Relaxed;
use stillpoint_sync::{mutant, planted};
use stillpoint_txn::{DeferredLog, LogPinned, Operation, OperationLog, UndoLost};

use crate::kinds::commit::HalfInstalled;
use crate::kinds::done::{Done, DoneList};
use crate::kinds::open::{Lack, OpenTransactions};
use crate::kinds::resting::Resting;
use crate::log::{CommitCounter, encode_writes, refused};

/// Bytes of a buffer that are kept from one transaction to the next.
const KEPT_BYTES: usize = 1 << 20;

/// The sort of record that the next append writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Doing,
    /// The undo of the operation with the first gsn. The operation with the second gsn is undone
    /// next.
    Undoing(u64, Option<u64>),
}

/// The log of one session's transactions on tables of other kinds than the memory store.
pub(crate) struct Operations {
    journal: Arc<dyn Journal>,
    log: u8,
    commits: CommitCounter,
    open: Arc<OpenTransactions>,
    /// The epoch of the records: that of the store when the transaction began.
    epoch: u64,
    mode: Mode,
    /// The first record of the transaction.
    first: Option<LogGsn>,
    /// The last record of the transaction. The next record depends on the last one.
    last: Stamp,
    done: DoneList,
    /// Bytes of the transaction's operations in the log.
    logged_bytes: u64,
    /// Why the transaction cannot commit any more.
    pinned: Option<LogPinned>,
    /// Where a transaction that stays open across calls has its parts.
    pub(crate) resting: Option<Weak<Resting>>,
    /// Bytes that an operation lacked at the limit of the logs. 0 for none.
    lacking: u64,
    /// When the wait for them began.
    waits_since_ns: Option<u64>,
    /// What the record of the commit lacked there.
    lack: Arc<Lack>,
    /// Bytes of the room that was set aside for the undo under way.
    undoing_bytes: u64,
    /// Whether room was set aside for the undo of each operation. False while a start undoes
    /// transactions.
    has_aside: bool,
    touched: Vec<Stamp>,
    /// Records that are appended together, and their bodies.
    records: Vec<(RecordKind, usize)>,
    bodies: Vec<u8>,
    /// Why an undo could not be logged: the store has failed.
    unlogged: Option<String>,
}

impl Operations {
    pub(crate) fn new(
        journal: Arc<dyn Journal>,
        log: u8,
        commits: CommitCounter,
        (open, lack): (Arc<OpenTransactions>, Arc<Lack>),
    ) -> Self {
        Self {
            journal,
            log,
            commits,
            open,
            epoch: 0,
            mode: Mode::Doing,
            first: None,
            last: Stamp::NONE,
            done: DoneList::default(),
            logged_bytes: 0,
            pinned: None,
            resting: None,
            lacking: 0,
            lack,
            waits_since_ns: None,
            undoing_bytes: 0,
            has_aside: true,
            touched: Vec::new(),
            records: Vec::new(),
            bodies: Vec::new(),
            unlogged: None,
        }
    }

    /// Begins a transaction, whose operations are of this epoch.
    pub(crate) fn begin(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.mode = Mode::Doing;
        self.first = None;
        self.last = Stamp::NONE;
        self.done.clear();
        self.logged_bytes = 0;
        self.pinned = None;
        self.lacking = 0;
        self.waits_since_ns = None;
    }

    /// Goes on with a transaction that a crash has cut off.
    pub(crate) fn resume(&mut self, first: LogGsn, done: DoneList, epoch: u64) {
        self.begin(epoch);
        self.has_aside = false;
        self.first = Some(first);
        self.done = done;
    }

    /// The open transactions of all sessions.
    pub(crate) fn open(&self) -> &Arc<OpenTransactions> {
        &self.open
    }

    /// True if the transaction has changed anything in place.
    pub(crate) fn has_begun(&self) -> bool {
        self.first.is_some()
    }

    /// The place of the transaction's first record, which names the transaction. `None` before the
    /// first record.
    pub(crate) fn first_record(&self) -> Option<LogGsn> {
        self.first
    }

    /// Lets the transaction not commit any more.
    pub(crate) fn pin(&mut self, why: LogPinned) {
        self.pinned = Some(why);
    }

    /// Why the transaction cannot commit any more.
    pub(crate) fn pinned(&self) -> Option<LogPinned> {
        self.pinned
    }

    /// Whether the transaction has to wait for the logs, without its locks, before it runs again.
    pub(crate) fn lacks_log(&self) -> bool {
        self.lacking > 0
    }

    /// Waits until a run may begin to change tables in place. The wait began at `begun_ns`.
    ///
    /// # Errors
    /// [`LogRefused::Full`] after the longest wait.
    pub(crate) fn wait_to_begin(&self, begun_ns: &mut Option<u64>) -> Result<(), LogRefused> {
        let begun_ns = *begun_ns.get_or_insert_with(|| self.open.begin_wait());
        self.open.wait_to_begin(self.lacking, begun_ns)
    }

    /// Refuses an append. At the limit of the logs a run that has changed nothing in place ends, and waits
    /// without its locks. Any other one waits where it is.
    #[cold]
    fn refused(&mut self, error: JournalError) -> LogRefused {
        let JournalError::AtLimit { bytes, .. } = error else { return refused(error) };
        self.lacking = bytes;
        match self.first.is_none() && self.resting.is_none() {
            true => refused(error),
            false => LogRefused::NoRoom,
        }
    }

    /// Takes the operation that is to be undone next. The next append is its undo. Waits while too many bytes
    /// of the log are in memory.
    ///
    /// # Errors
    /// It lies in a file that cannot be read.
    pub(crate) fn undo_next(&mut self) -> DiskResult<Option<Done>> {
        self.journal.await_memory(self.log);
        mutant!(UndoesOldestFirst => self.done.reverse());
        let Some(done) = self.done.pop()? else { return Ok(None) };
        self.undoing_bytes = body_bytes(done.undo_bytes);
        self.mode = Mode::Undoing(done.gsn, self.done.last_gsn());
        Ok(Some(done))
    }

    /// Refuses what is no undo, once an undo could not be logged. Recovery knows nothing of that undo, and an
    /// abort would not know of what is refused here.
    fn check_undos(&self) -> Result<(), LogRefused> {
        match &self.unlogged {
            None => Ok(()),
            Some(reason) => Err(UndoLost { reason: reason.clone() }.into()),
        }
    }

    /// The operations that an abort would undo.
    pub(crate) fn done(&self) -> &DoneList {
        &self.done
    }

    /// Goes on with the transaction after an undo of its last operations.
    pub(crate) fn go_on(&mut self) {
        self.mode = Mode::Doing;
    }

    /// Appends the record of the commit, which holds the writes to records in memory, too.
    ///
    /// # Errors
    /// As those of a commit.
    pub(crate) fn append_commit(
        &mut self,
        commit: &Commit<'_>,
        touched: &[Stamp],
    ) -> Result<Stamp, LogRefused> {
        if let Some(pinned) = self.pinned {
            return Err(pinned.into());
        }
        self.check_undos()?;
        self.note_touched(commit, touched);
        let first = self.first;
        let body = |body: &mut Vec<u8>| match first {
            Some(first) => encode_end(first, commit, body),
            None => {
                body.extend_from_slice(commit.call);
                encode_memory(commit, body)
            }
        };
        let kind = match first {
            Some(_) => RecordKind::End,
            None if commit.call.is_empty() => RecordKind::Writes,
            None => RecordKind::Command,
        };
        let entry = Entry { kind, epoch: commit.epoch, touched: &self.touched, body: &body };
        let stamp = match self.journal.append(self.log, &entry) {
            Err(JournalError::AtLimit { bytes, .. }) => {
                self.lack.note(bytes, first);
                return Err(LogRefused::NoRoom);
            }
            appended => appended.map_err(refused)?,
        };
        if first.is_some() {
            self.give_back_all();
        }
        self.count_commit();
        Ok(stamp)
    }

    fn count_commit(&self) {
        // Relaxed: a statistic with one writer.
        self.commits.store(self.commits.load(Relaxed) + 1, Relaxed);
    }

    /// Collects what the record of a commit depends on.
    fn note_touched(&mut self, commit: &Commit<'_>, touched: &[Stamp]) {
        self.touched.clear();
        self.touched.extend_from_slice(commit.touched);
        mutant!(self.touched.extend_from_slice(touched), PartStampsForgotten => ());
        self.touched.push(self.last);
    }

    /// Appends the collected records of operations, and that of the commit, in one step.
    fn append_together(
        &mut self,
        commit: &Commit<'_>,
        touched: &[Stamp],
    ) -> Result<Stamp, LogRefused> {
        self.check_undos()?;
        if self.resting.is_none() && !self.open.admits_new() {
            self.lacking = 1;
            return Err(self.open.full().into());
        }
        self.note_touched(commit, touched);
        // The journal writes the name of the transaction.
        let unnamed = LogGsn { log: self.log, gsn: 0 };
        let encoded = encode_end(unnamed, commit, &mut self.bodies);
        encoded.map_err(|source| refused(JournalError::Encode { log: self.log, source }))?;
        self.records.push((RecordKind::End, self.bodies.len()));
        let (touched, records) = (&self.touched[..], &self.records[..]);
        let bodies = &mut self.bodies[..];
        let together = &mut Together { epoch: commit.epoch, touched, records, bodies };
        let appended = self.journal.append_together(self.log, together);
        let stamp = appended.map_err(|error| self.refused(error))?;
        let gsn = stamp.gsn() - (self.records.len() as u64 - 1);
        (self.first, self.last) = (Some(LogGsn { log: stamp.log(), gsn }), stamp);
        self.count_commit();
        Ok(stamp)
    }

    /// Appends the record of an abort, after all operations were undone. Waits for room. A log that
    /// refuses the record has failed the store: nothing more is acknowledged.
    pub(crate) fn append_abort(&mut self) -> Stamp {
        let first = self.first.expect("an abort without an operation is not logged");
        let body = |body: &mut Vec<u8>| {
            LoggedEnd::encode_head(first, TransactionEnd::Aborted, body);
            Ok(())
        };
        let touched = [self.last];
        let entry =
            Entry { kind: RecordKind::End, epoch: self.epoch, touched: &touched, body: &body };
        while self.unlogged.is_none() {
            match self.append_undo(&entry, LoggedEnd::ABORT_BYTES) {
                Ok(stamp) => {
                    self.has_ended();
                    return stamp;
                }
                Err(JournalError::NoRoom { .. }) if self.journal.admit(self.log).is_ok() => {}
                Err(error) => self.go_on_unlogged(&error),
            }
        }
        self.last
    }

    /// Notes that the record that ends the transaction is in the log, and that all kinds know it. Until then
    /// a checkpoint leaves the records of the transaction in the log.
    pub(crate) fn has_ended(&mut self) {
        if let Some(first) = self.first {
            self.open.remove(first);
        }
        self.done.end();
    }

    /// Appends an undo or an abort, in the room that was set aside for a body of `body_bytes`
    /// bytes.
    fn append_undo(&self, entry: &Entry<'_>, body_bytes: u64) -> Result<Stamp, JournalError> {
        match self.has_aside {
            true => self.journal.append_aside(self.log, entry, body_bytes),
            false => self.journal.append(self.log, entry),
        }
    }

    /// Admits a further operation, after which the transaction has logged so many bytes.
    fn admit(&mut self, logged_bytes: u64) -> Result<(), LogRefused> {
        let needed = (logged_bytes, self.done.undo_record_bytes());
        if let Err(why) = self.open.admit(self.first, needed) {
            self.pinned = Some(why);
            return Err(why.into());
        }
        let begins = self.first.is_none() && self.resting.is_none();
        if begins && !self.open.admits_new() {
            self.lacking = 1;
            return Err(self.open.full().into());
        }
        Ok(())
    }

    /// Sets room aside for the undo of an operation, and for the abort if it is the first one.
    fn set_aside(&self, undo_bytes: usize) -> Result<(), JournalError> {
        self.journal.set_aside(self.log, body_bytes(undo_bytes))?;
        if self.first.is_some() {
            return Ok(());
        }
        let aside = self.journal.set_aside(self.log, LoggedEnd::ABORT_BYTES);
        aside.inspect_err(|_| {
            self.journal.give_back(self.log, &mut std::iter::once(body_bytes(undo_bytes)));
        })
    }

    /// Gives the room back that was set aside for an operation which the log refused.
    fn give_back(&self, undo_bytes: usize) {
        let abort = self.first.is_none().then_some(LoggedEnd::ABORT_BYTES);
        let mut all = std::iter::once(body_bytes(undo_bytes)).chain(abort);
        self.journal.give_back(self.log, &mut all);
    }

    /// Gives all room of the transaction back, which has committed.
    fn give_back_all(&self) {
        let undos = self.done.undo_bytes().map(body_bytes);
        let mut all = undos.chain([LoggedEnd::ABORT_BYTES]);
        self.journal.give_back(self.log, &mut all);
    }

    /// Appends an entry: the first one of a transaction, which is open from there on, or a later one.
    fn append_entry(&self, entry: &Entry<'_>) -> Result<Stamp, JournalError> {
        let append = || self.journal.append(self.log, entry);
        match self.first {
            Some(_) => append(),
            None => self.open.begin(self.log, self.resting.as_ref(), append),
        }
    }

    /// Why the store has failed, if an undo could not be logged.
    pub(crate) fn take_failure(&mut self) -> Option<String> {
        self.unlogged.take()
    }

    /// Goes on after an undo that could not be logged. Recovery repeats such an undo, and would
    /// undo later commits on the same keys too, so the journal refuses further commits.
    #[cold]
    fn go_on_unlogged(&mut self, error: &JournalError) {
        self.refuse(format!("the undo of a transaction cannot be logged: {error}"));
    }

    /// Goes on after an undo that its kind could not make. The change stays until recovery undoes it, so
    /// the journal refuses further commits.
    #[cold]
    pub(crate) fn fail_undo(&mut self, error: &dyn std::fmt::Display) {
        self.refuse(format!("a change of a transaction cannot be undone: {error}"));
    }

    fn refuse(&mut self, reason: String) {
        self.open.note_lost_undo(&reason);
        let source = std::io::Error::other(reason.clone());
        self.journal.refuse(Arc::new(DiskError::new("undo in", "log", source)));
        self.unlogged = Some(reason);
    }
}

/// A commit, as the log of what a part has deferred.
pub(crate) struct OneCommit<'o> {
    pub(crate) operations: &'o mut Operations,
    pub(crate) commit: &'o Commit<'o>,
    /// The stamps that the parts have met.
    pub(crate) touched: &'o [Stamp],
    /// Set once the log has taken the commit.
    pub(crate) taken: &'o mut Option<HalfInstalled>,
}

impl<'o> OneCommit<'o> {
    pub(crate) fn new(
        operations: &'o mut Operations,
        commit: &'o Commit<'o>,
        touched: &'o [Stamp],
        taken: &'o mut Option<HalfInstalled>,
    ) -> Self {
        operations.records.clear();
        operations.bodies.clear();
        operations.bodies.shrink_to(KEPT_BYTES);
        Self { operations, commit, touched, taken }
    }
}

impl DeferredLog for OneCommit<'_> {
    fn add(&mut self, table: TableId, generation: u32, encode: &mut dyn FnMut(&mut Vec<u8>)) {
        let Operations { records, bodies, .. } = &mut *self.operations;
        let head = LoggedOperation {
            transaction: None,
            undoes: None,
            table: table.0,
            generation,
            body: &[],
        };
        head.encode(bodies);
        encode(bodies);
        records.push((RecordKind::Operation, bodies.len()));
    }

    fn commit(&mut self) -> Result<Stamp, LogRefused> {
        let stamp = self.operations.append_together(self.commit, self.touched)?;
        *self.taken = Some(HalfInstalled);
        Ok(stamp)
    }
}

impl OperationLog for Operations {
    fn append(&mut self, operation: &Operation<'_>) -> Result<Stamp, LogRefused> {
        let Operation { table, generation, touched, body, undo, undo_bytes } = *operation;
        self.touched.clear();
        self.touched.extend_from_slice(touched);
        self.touched.push(self.last);
        let undoes = match self.mode {
            Mode::Doing => {
                self.check_undos()?;
                None
            }
            // The undo goes on in memory.
            Mode::Undoing(..) if self.unlogged.is_some() => return Ok(self.last),
            Mode::Undoing(undone, next) => Some((undone, next)),
        };
        let logged_bytes = self.logged_bytes + (RECORD_HEAD_BYTES + body.len()) as u64;
        if undoes.is_none() {
            if self.done.is_full() {
                // The caller has a latch, and waits for the file without it.
                return Err(LogRefused::NoRoom);
            }
            self.admit(logged_bytes)?;
            if let Err(error) = self.set_aside(undo_bytes) {
                return Err(self.refused(error));
            }
        }
        let logged =
            LoggedOperation { transaction: self.first, undoes, table: table.0, generation, body };
        let encode = |body: &mut Vec<u8>| {
            logged.encode(body);
            Ok(())
        };
        let kind = if undoes.is_some() { RecordKind::Undo } else { RecordKind::Operation };
        let entry = Entry { kind, epoch: self.epoch, touched: &self.touched, body: &encode };
        let appended = match undoes {
            None => self.append_entry(&entry).inspect_err(|_| self.give_back(undo_bytes)),
            Some(_) => self.append_undo(&entry, self.undoing_bytes),
        };
        let stamp = match appended {
            Ok(stamp) => stamp,
            Err(error) if undoes.is_some() && !matches!(error, JournalError::NoRoom { .. }) => {
                self.go_on_unlogged(&error);
                return Ok(self.last);
            }
            Err(error) => return Err(self.refused(error)),
        };
        self.last = stamp;
        if undoes.is_none() {
            self.first.get_or_insert(LogGsn { log: stamp.log(), gsn: stamp.gsn() });
            self.logged_bytes = logged_bytes;
            self.waits_since_ns = None;
            self.done.push((stamp.gsn(), table), undo, (undo_bytes, body.len()));
        }
        Ok(stamp)
    }

    fn wait_for_room(&mut self) -> Result<(), LogRefused> {
        if self.mode == Mode::Doing && self.done.is_full() {
            let filed = self.done.file_away(self.open.undo_files());
            filed.map_err(|error| LogRefused::Refused(Box::new(error)))?;
        }
        let lacking = std::mem::take(&mut self.lacking);
        if lacking > 0 {
            let begun_ns = *self.waits_since_ns.get_or_insert_with(|| self.open.begin_wait());
            let waited = self.open.wait_for_log(lacking, begun_ns, self.first);
            if let Err(LogRefused::Pinned(why)) = waited {
                self.pinned = Some(why);
            }
            waited?;
        }
        match (self.mode, self.journal.admit(self.log)) {
            (Mode::Doing, Err(error)) => Err(refused(error)),
            (Mode::Undoing(..), Err(error)) => {
                self.go_on_unlogged(&error);
                Ok(())
            }
            (_, Ok(())) => Ok(()),
        }
    }
}

/// Encodes the body of the record that ends a transaction by a commit.
fn encode_end(first: LogGsn, commit: &Commit<'_>, body: &mut Vec<u8>) -> Result<(), EncodeError> {
    LoggedEnd::encode_head(first, TransactionEnd::Committed, body);
    encode_memory(commit, body)
}

/// Encodes the writes of a commit to records in memory.
fn encode_memory(commit: &Commit<'_>, body: &mut Vec<u8>) -> Result<(), EncodeError> {
    mutant!(MemoryWritesLeftOut => return Ok(()));
    encode_writes(&mut WritesEncoder::new(body), &commit.writes)
}

/// Bytes of the body of an undo's record, of which the kind writes so many.
fn body_bytes(undo_bytes: usize) -> u64 {
    LoggedOperation::UNDO_HEAD_BYTES + undo_bytes as u64
}
