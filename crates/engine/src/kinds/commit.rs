//! The one commit of all kinds, and the abort, which undoes the changes of the parts in place.
//!
//! ```text
//! body ─▶ parts prepare ─▶ store prepares ─▶ append ─▶ parts install, store installs ─▶ all release
//!  └ fails: parts undo, newest first ─▶ record of the abort ─▶ parts release, store rolls back
//! ```

use stillpoint_store::{Commit, LogRefused, OpenTransaction, Shortage, Stamp, TxError};

use stillpoint_sync::{mutant, planted};

use crate::kinds::operations::OneCommit;
use crate::kinds::{Parts, PartsOf};
use crate::tx::Tx;

/// Bytes of keys and values that are logged together with a commit, at most. The append of more would keep others
/// from the log for long.
const TOGETHER_BYTES_MAX: usize = 64 << 10;

/// Dropped only when something panics after the log has taken a commit: half a transaction would be
/// seen, so the process ends here.
pub(crate) struct HalfInstalled;

impl Drop for HalfInstalled {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// A run of a transaction in the parts. Unless the run has committed, its drop rolls it back, also
/// after a panic.
struct Run<'p>(&'p mut Parts);

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.0.roll_back();
    }
}

/// Runs a transaction in the store and in the parts, and commits it. `lock` takes the locks that
/// come before the body. Call this outside of any read section.
pub(crate) fn run<R>(
    open: &mut OpenTransaction<'_>,
    parts: &mut Parts,
    lock: impl FnOnce(&mut Parts) -> Result<(), TxError>,
    body: impl FnOnce(&mut Tx<'_>) -> Result<R, TxError>,
) -> Result<(R, Option<Stamp>), TxError> {
    parts.begin(open)?;
    let ended = {
        let running = Run(parts);
        lock(running.0)
            .and_then(|()| body(&mut Tx::on_all(open.tx(), PartsOf::Run(running.0))))
            .and_then(|result| Ok((result, commit(open, running.0)?)))
    };
    if matches!(ended, Err(TxError::Conflict)) {
        parts.remember_run();
        if parts.has_conflicted && parts.absent.is_none() {
            open.note_conflict();
        }
    }
    ended
}

/// Commits a transaction that was begun elsewhere. Rolls the parts of the transaction back after an
/// error.
pub(crate) fn commit_or_roll_back(
    open: &mut OpenTransaction<'_>,
    parts: &mut Parts,
) -> Result<Option<Stamp>, TxError> {
    let running = Run(parts);
    commit(open, running.0)
}

/// Commits; gives the stamp, `None` if nothing was written. After an error the parts are rolled back.
fn commit(open: &mut OpenTransaction<'_>, parts: &mut Parts) -> Result<Option<Stamp>, TxError> {
    if parts.has_conflicted || parts.absent.is_some() {
        return Err(TxError::Conflict);
    }
    let deferring = parts.prepare()?;
    let mut steps = open.begin_commit()?;
    let mut unwinding = None;
    let stamp = loop {
        let shortage = match steps.prepare()? {
            None if !steps.writes() && !parts.operations.has_begun() && deferring.is_none() => {
                break None;
            }
            None => match parts.append_commit(deferring, &steps.entry(), &mut unwinding) {
                Ok(stamp) => break Some(stamp),
                Err(LogRefused::NoRoom) => Shortage::Log,
                Err(refused) => return Err(refused.into()),
            },
            Some(shortage) => shortage,
        };
        steps.wait(shortage)?;
    };
    if let Some(stamp) = stamp {
        parts.install(stamp);
        steps.install(stamp);
        std::mem::forget(unwinding);
    }
    steps.release();
    parts.release(stamp);
    if stamp.is_some() {
        parts.operations.has_ended();
    }
    Ok(stamp)
}

impl Parts {
    /// Does the steps of the parts that can fail, and collects the stamps that the parts have met. Gives the
    /// part whose operations are logged together with the commit, if there is one.
    fn prepare(&mut self) -> Result<Option<usize>, TxError> {
        let deferring = self.log_deferred()?;
        self.touched.clear();
        for part in &mut self.parts {
            part.prepare()?;
            part.touched(&mut self.touched);
        }
        Ok(deferring)
    }

    /// Logs what the parts have deferred, unless it can be logged together with the commit. Then it is of one
    /// part, and nothing was logged before. Gives that part.
    fn log_deferred(&mut self) -> Result<Option<usize>, TxError> {
        let mut bytes = self.parts.iter().map(|part| part.deferred_bytes());
        let Some(first) = bytes.position(|bytes| bytes > 0) else { return Ok(None) };
        let is_alone = bytes.all(|bytes| bytes == 0) && !self.operations.has_begun();
        if is_alone && self.parts[first].deferred_bytes() <= TOGETHER_BYTES_MAX {
            return Ok(Some(first));
        }
        let Self { parts, operations, .. } = self;
        parts.iter_mut().try_for_each(|part| part.log_deferred(operations))?;
        Ok(None)
    }

    /// Appends the record of the commit, and what the part of this number has deferred.
    fn append_commit(
        &mut self,
        deferring: Option<usize>,
        commit: &Commit<'_>,
        taken: &mut Option<HalfInstalled>,
    ) -> Result<Stamp, LogRefused> {
        let Self { parts, operations, touched, .. } = self;
        if let Some(part) = deferring {
            return parts[part]
                .commit_deferred(&mut OneCommit::new(operations, commit, touched, taken));
        }
        let stamp = operations.append_commit(commit, touched)?;
        *taken = Some(HalfInstalled);
        Ok(stamp)
    }

    fn install(&mut self, stamp: Stamp) {
        for part in &mut self.parts {
            part.install(stamp);
        }
    }

    /// Gives the locks of the parts back: the transaction has ended.
    fn release(&mut self, stamp: Option<Stamp>) {
        self.is_open = false;
        if stamp.is_none() {
            self.dependencies.append(&mut self.touched);
        }
        let end = stamp.filter(|_| self.operations.has_begun());
        for part in &mut self.parts {
            part.release(end);
        }
    }

    /// Undoes the changes in place of a run. If that fails, the store fails, and recovery undoes the rest.
    fn undo_all(&mut self) {
        loop {
            let done = match self.operations.undo_next() {
                Ok(Some(done)) => done,
                Ok(None) => return,
                Err(error) => return self.operations.fail_undo(&error),
            };
            let undone = self
                .kinds
                .kind_of(done.table)
                .and_then(|kind| kind.undo(done.table, &done.undo, &mut self.operations));
            if let Err(error) = undone {
                self.operations.fail_undo(&error);
            }
        }
    }

    /// Undoes the changes in place of an open run, and gives its locks back.
    pub(crate) fn roll_back(&mut self) {
        if !std::mem::replace(&mut self.is_open, false) {
            return;
        }
        let mut end = None;
        let changed = self.operations.has_begun();
        if mutant!(changed, AbortKeepsChanges => false) {
            self.undo_all();
            end = Some(self.operations.append_abort());
        }
        for part in &mut self.parts {
            // The failure may tell the caller something about the records that were read, so it
            // depends on them.
            part.touched(&mut self.dependencies);
            part.release(end);
        }
    }
}
