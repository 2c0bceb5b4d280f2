//! What the kept records of a batch hold, for a replay and for who receives writes during a scan.

use stillpoint_format::log::{
    Batch, LoggedCall, LoggedOperation, Record, RecordKind, TransactionEnd, Write, WriteIter,
};
use stillpoint_format::{DecodeError, LogGsn};

use crate::reader::error::ScanError;
use crate::reader::segment::{LogWindow, SegmentFile};

/// A kept record that holds more than writes to the memory store.
#[derive(Clone, Debug)]
pub struct ReplayOperation<'a> {
    /// The record's gsn.
    pub gsn: u64,
    /// The log that holds the record.
    pub log: u8,
    /// Content of the record, without its writes.
    pub record: OperationRecord<'a>,
}

/// The content of a record beyond its writes to the memory store.
#[derive(Clone, Debug)]
pub enum OperationRecord<'a> {
    /// An operation, or the undo of one.
    Operation(LoggedOperation<'a>),
    /// The end of the transaction that began with this record.
    End(LogGsn, TransactionEnd),
    /// The call that a transaction was. The transaction's writes are among those of the round.
    Call(LoggedCall<'a>),
}

/// What a kept record holds for a replay.
pub(crate) struct Content<'w> {
    pub(crate) operation: Option<OperationRecord<'w>>,
    /// The writes of a commit to the memory store. `None` if there was no commit, or if a checkpoint has
    /// them.
    pub(crate) writes: Option<WriteIter<'w>>,
}

impl<'w> Content<'w> {
    /// `is_loaded` says that the checkpoint has the writes.
    #[inline]
    pub(crate) fn of(
        record: &Record<'w>,
        is_loaded: bool,
        with_calls: bool,
    ) -> Result<Self, DecodeError> {
        let written = |writes| Some(writes).filter(|_| !is_loaded);
        let (operation, writes) = match record.kind {
            RecordKind::Writes => (None, written(record.writes())),
            RecordKind::End => {
                let end = record.end()?;
                let ended = OperationRecord::End(end.transaction, end.outcome);
                let is_aborted = end.outcome == TransactionEnd::Aborted;
                (Some(ended), written(end.writes).filter(|_| !is_aborted))
            }
            // Calls are read in the order of their batch, and before-images were split off before.
            RecordKind::Scheme
            | RecordKind::Call
            | RecordKind::UndoWrites
            | RecordKind::UndoCommand => (None, None),
            RecordKind::Operation | RecordKind::Undo => {
                (Some(OperationRecord::Operation(record.operation()?)), None)
            }
            RecordKind::Command if is_loaded && !with_calls => (None, None),
            RecordKind::Command => {
                let (call, writes) = record.command()?;
                (with_calls.then_some(OperationRecord::Call(call)), written(writes))
            }
        };
        Ok(Self { operation, writes })
    }
}

/// A kept write, in no order.
#[derive(Clone, Debug)]
pub struct KeptWrite<'a> {
    /// The record's gsn. Of the writes to a key, the one with the greatest gsn is the last.
    pub gsn: u64,
    /// The log that holds the record.
    pub log: u8,
    /// The write.
    pub write: &'a Write<'a>,
    /// The bytes of the write, as [`WriteIter::behind`](stillpoint_format::log::WriteIter::behind) takes
    /// them.
    pub encoded: &'a [u8],
    /// Where in the present window of the log these bytes begin.
    pub at: usize,
}

/// A receiver of kept writes, for one thread.
pub trait ReceiveWrites: Send {
    /// Why a receiver takes no more.
    type Error: From<ScanError> + Send;

    /// Receives a write.
    ///
    /// # Errors
    /// The replay ends with this error.
    fn write(&mut self, write: &KeptWrite<'_>) -> Result<(), Self::Error>;

    /// The present window of a log ends: no further write lies in it. The function describes the window, so
    /// that its writes can be found again.
    fn end_window(&mut self, _describe: &dyn Fn() -> LogWindow) {}

    /// Receives a record on a table of another kind, or the end of a transaction on such tables.
    ///
    /// # Errors
    /// The replay ends with this error.
    fn operation(&mut self, operation: &ReplayOperation<'_>) -> Result<(), Self::Error>;
}

/// The records of a log that count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    pub(crate) log: u8,
    /// Those above the first gsn and up to the second.
    pub(crate) gsns: (u64, u64),
    /// A checkpoint has the writes of earlier epochs.
    pub(crate) start_epoch: u64,
}

impl Kept {
    /// Hands the kept writes of a batch on, whose bytes lie in this window. Returns the number of commits.
    pub(crate) fn hand_on<R: ReceiveWrites>(
        &self,
        file: &SegmentFile,
        (window, batch): (&[u8], &Batch<'_>),
        receiver: &mut R,
    ) -> Result<u64, R::Error> {
        let malformed = |source: &DecodeError| file.malformed(source.clone());
        let (log, mut commits) = (self.log, 0);
        for record in batch.records() {
            // Records and writes stay where they were decoded: a copy takes longer than the rest.
            let record = record.as_ref().map_err(malformed)?;
            let gsn = record.gsn;
            let is_kept = gsn > self.gsns.0 && gsn <= self.gsns.1;
            if !is_kept || record.kind == RecordKind::Call {
                continue;
            }
            let writes = if record.kind == RecordKind::Writes {
                (record.epoch >= self.start_epoch).then(|| record.writes())
            } else {
                self.hand_operation_on(file, record, receiver)?
            };
            let Some(mut writes) = writes else { continue };
            commits += 1;
            loop {
                let (left, _) = writes.undecoded();
                let Some(write) = writes.next() else { break };
                let write = write.as_ref().map_err(malformed)?;
                let encoded = &left[..left.len() - writes.undecoded().0.len()];
                let at = encoded.as_ptr().addr() - window.as_ptr().addr();
                receiver.write(&KeptWrite { gsn, log, write, encoded, at })?;
            }
        }
        Ok(commits)
    }

    /// Hands on what a record has beside its writes. Returns the writes, if they are kept.
    #[cold]
    fn hand_operation_on<'w, R: ReceiveWrites>(
        &self,
        file: &SegmentFile,
        record: &Record<'w>,
        receiver: &mut R,
    ) -> Result<Option<WriteIter<'w>>, R::Error> {
        let malformed = |source| file.malformed(source);
        let split = record.before_images().map_err(malformed)?;
        let record = split.as_ref().map_or(record, |(_, record)| record);
        let is_loaded = record.epoch < self.start_epoch;
        let content = Content::of(record, is_loaded, false).map_err(malformed)?;
        if let Some(operation) = content.operation {
            let (gsn, log) = (record.gsn, self.log);
            receiver.operation(&ReplayOperation { gsn, log, record: operation })?;
        }
        Ok(content.writes)
    }
}
