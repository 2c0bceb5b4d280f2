//! The trait of journals, with its arguments and results.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stillpoint_format::ident::StoreId;
use stillpoint_format::log::RecordKind;
use stillpoint_format::{EncodeError, LogGsn, Stamp};
use stillpoint_io::{Clock, Disk, DiskError};

use crate::error::JournalError;
use crate::holds::{Hold, Holder};

/// Durability of an appended record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// An appended record is never durable by itself, only with a checkpoint.
    Checkpoint,
    /// A record is durable at most [`Config::interval`] later. Commits are acknowledged before.
    Relaxed,
    /// A record is durable once its stamp is closed. Commits and reads are acknowledged then.
    Strict,
}

impl Durability {
    /// `"checkpoint"`, `"relaxed"` or `"strict"`.
    pub fn as_str(self) -> &'static str {
        match self {
            Durability::Checkpoint => "checkpoint",
            Durability::Relaxed => "relaxed",
            Durability::Strict => "strict",
        }
    }

    /// Whether an acknowledgement, also of a read, must wait until everything it depends on [is
    /// closed](Journal::is_closed).
    pub fn acknowledges_closed(self) -> bool {
        self == Durability::Strict
    }
}

/// Capabilities of a journal. Callers ask for capabilities, never for the journal's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether the journal keeps appended records. If not, [`Journal::append`] returns stamps of no
    /// log.
    pub records_commits: bool,
    /// Whether a record may hold the call of a procedure instead of its writes. Replay makes the
    /// calls again, in the order of their gsns. So gsns must be a serial order of all transactions
    /// that write, and a checkpoint must have a point of consistency.
    pub logs_calls_alone: bool,
    /// Whether the record of a commit also has what the commit has overwritten. Then a start can undo
    /// commits that a checkpoint holds and a crash has taken away.
    pub logs_before_images: bool,
}

/// Shortage of disk space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shortage {
    /// No shortage.
    #[default]
    None,
    /// A log has no further segment ahead of the present one, and the disk has no room for one.
    NoSegmentAhead,
    /// The log refuses records because space is short.
    Refuses,
}

/// Settings of a journal. One opening is one incarnation of the store.
#[derive(Clone, Debug)]
pub struct Config {
    /// Identity of the store, which each segment carries.
    pub store: StoreId,
    /// Number of this incarnation, greater than any before.
    pub incarnation: u32,
    /// Floor of gsns: no gsn up to this one is given out, and all of them are closed. At least as
    /// great as every gsn ever seen in any log of the store.
    pub floor: u64,
    /// Number of logs, 1 to 255.
    pub logs: u8,
    /// Durability of commits. The registry's row lists the choices of the scheme.
    pub durability: Durability,
    /// Greatest age of an unflushed record in relaxed durability. Flushes start at half of this
    /// age. In strict durability, how long a record may wait if nobody asks for a flush.
    pub interval: Duration,
    /// Length of a segment file in bytes: a multiple of 4096, at least 16 KiB. On a small disk
    /// segments are shorter.
    pub segment_bytes: u64,
    /// Size in bytes at which a batch goes to the disk.
    pub batch_bytes: usize,
    /// Most bytes per log that wait for the disk. Beyond this limit an append finds no room.
    pub buffer_bytes: usize,
    /// Segments per log that are prepared ahead.
    pub spare_segments: usize,
    /// Freed segments per log that are kept for reuse.
    pub recycled_segments: usize,
    /// Whether threads flush and prepare segments in the background. Without background threads,
    /// for simulations, the caller does this work in a fixed order.
    pub background: bool,
    /// Segments of earlier incarnations that are still needed, oldest first. The journal frees them
    /// like its own.
    pub earlier: Vec<EarlierSegment>,
}

/// A segment of an earlier incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlierSegment {
    /// The log.
    pub log: u8,
    /// The incarnation that wrote the segment.
    pub incarnation: u32,
    /// No record in the segment has a smaller gsn.
    pub first_gsn: u64,
    /// Length of the file.
    pub bytes: u64,
    /// The file, below the data directory.
    pub path: PathBuf,
}

impl Config {
    /// The defaults for a store: an interval of one second, segments of 64 MiB, and batches of 1
    /// MiB. At most 64 MiB of a log wait for the disk.
    pub fn new(store: StoreId, incarnation: u32, floor: u64, logs: u8) -> Self {
        Config {
            store,
            incarnation,
            floor,
            logs,
            durability: Durability::Relaxed,
            interval: Duration::from_secs(1),
            segment_bytes: 64 << 20,
            batch_bytes: 1 << 20,
            buffer_bytes: 64 << 20,
            spare_segments: 2,
            recycled_segments: 8,
            background: true,
            earlier: Vec::new(),
        }
    }
}

/// The environment of a journal.
#[derive(Clone, Debug)]
pub struct Environment {
    /// The data directory.
    pub disk: Arc<dyn Disk>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
}

/// A function that appends the body of an entry. The function may be called more than once for one
/// entry, and must then append the same bytes.
pub type EncodeBody<'a> = dyn Fn(&mut Vec<u8>) -> Result<(), EncodeError> + 'a;

/// An entry, which becomes one record of a log. A commit is an entry, appended with all of the
/// transaction's locks held. The journal does not read the body.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    /// Kind of the body.
    pub kind: RecordKind,
    /// The checkpoint period to which the record belongs.
    pub epoch: u64,
    /// Stamps of everything that the entry depends on: of every cell that the transaction read or
    /// overwrites. The entry's own gsn is greater than the gsns of these stamps.
    pub touched: &'a [Stamp],
    /// Appends the record's body.
    pub body: &'a EncodeBody<'a>,
}

impl fmt::Debug for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("kind", &self.kind)
            .field("epoch", &self.epoch)
            .field("touched", &self.touched)
            .finish_non_exhaustive()
    }
}

/// The operations of a transaction and its end, which are appended together. The first record names no
/// transaction, since it is the first one of its own.
#[derive(Debug)]
pub struct Together<'a> {
    /// The checkpoint period to which the records belong.
    pub epoch: u64,
    /// Stamps of everything that the transaction depends on. The first record has them.
    pub touched: &'a [Stamp],
    /// Of each record: its kind, and where its body ends in `bodies`. There is one at least.
    pub records: &'a [(RecordKind, usize)],
    /// The bodies, in order. The journal writes the [name](stillpoint_format::log::LoggedOperation::name_transaction)
    /// of the transaction into all but the first.
    pub bodies: &'a mut [u8],
}

/// Counts since the journal was opened, all logs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalStats {
    /// Records appended.
    pub records: u64,
    /// Bytes of records appended, heads included.
    pub record_bytes: u64,
    /// Batches written.
    pub batches: u64,
    /// Bytes written, padding included.
    pub written_bytes: u64,
    /// Flushes of the device.
    pub flushes: u64,
    /// Number of waits for room, because too many bytes waited for the disk.
    pub waits: u64,
    /// Appends refused because no space could be prepared.
    pub refusals: u64,
    /// Segments made anew.
    pub segments_made: u64,
    /// Segments reused.
    pub segments_reused: u64,
    /// Bytes of memory that buffers hold now.
    pub buffer_bytes: u64,
    /// Dependencies of flushed records that are not closed yet.
    pub open_dependencies: u64,
}

/// A journal: logs of entries. A crash keeps a prefix of each log.
///
/// All calls take `&self` from any thread. Several sessions may share a log.
///
/// The rule of acknowledgement: a reply, also to a read, may leave once all stamps that it depends
/// on [are closed](Journal::is_closed). A reply depends on the stamps of the session's own last
/// commit and of everything it has read. Replies of one log leave in log order.
pub trait Journal: Send + Sync + fmt::Debug {
    /// Appends an entry with the gsn 1 + max(last gsn of the log, all touched stamps). Returns the
    /// entry's stamp.
    ///
    /// Makes no call of the disk, so a caller may stand in a read section.
    ///
    /// # Errors
    /// [`JournalError::NoRoom`]: nothing was appended, and [`admit`](Journal::admit) makes room.
    /// [`JournalError::AtLimit`]: the same, and [`await_limit`](Journal::await_limit) waits.
    /// [`JournalError::Encode`]: nothing was appended and the transaction must abort.
    /// [`JournalError::Poisoned`]: the process must end.
    fn append(&self, log: u8, entry: &Entry<'_>) -> Result<Stamp, JournalError>;

    /// As [`append`](Journal::append), for a long record whose body was encoded before: from byte
    /// [`BODY_ROOM`](stillpoint_format::log::BODY_ROOM) of `body` on. The journal takes the buffer over and
    /// copies nothing. After an error `body` is as before.
    ///
    /// # Errors
    /// Those of `append`.
    fn append_buffer(
        &self,
        log: u8,
        entry: &Entry<'_>,
        body: &mut Vec<u8>,
    ) -> Result<Stamp, JournalError>;

    /// Appends all records of a transaction in one step, with gsns that follow each other: all of them, or
    /// none. They lie in one batch, so a crash keeps all of them or none. No room is set aside, since nothing
    /// is undone. Returns the stamp of the last one.
    ///
    /// # Errors
    /// Those of `append`.
    fn append_together(&self, log: u8, together: &mut Together<'_>) -> Result<Stamp, JournalError>;

    /// Waits, outside of any read section, until the log has room in memory and the segment that
    /// a refused [`append`](Journal::append) needs.
    ///
    /// # Errors
    /// [`JournalError::NoSpace`]: the disk has no room for the segment, and the transaction must
    /// abort. Otherwise as `append`.
    fn admit(&self, log: u8) -> Result<(), JournalError>;

    /// Sets room aside in the log for a later record whose body has at most this many bytes. No
    /// other record takes that room. A caller does so for the undo of an operation before it
    /// appends the operation.
    ///
    /// # Errors
    /// [`JournalError::NoRoom`]: nothing was set aside; [`admit`](Journal::admit) makes room.
    /// [`JournalError::AtLimit`]: the same; [`await_limit`](Journal::await_limit) waits.
    /// [`JournalError::Encode`]: such a record does not fit in a segment. Otherwise as `append`.
    fn set_aside(&self, log: u8, body_bytes: u64) -> Result<(), JournalError>;

    /// As [`append`](Journal::append), in room that was set aside for a body of this many bytes. The
    /// room is given back. Lack of room is never a reason to refuse the record.
    ///
    /// # Errors
    /// [`JournalError::Encode`], [`JournalError::Poisoned`].
    fn append_aside(
        &self,
        log: u8,
        entry: &Entry<'_>,
        body_bytes: u64,
    ) -> Result<Stamp, JournalError>;

    /// Waits, outside of any read section, until the bytes in memory that wait for the disk are within their
    /// limit. [`append_aside`](Self::append_aside) heeds no limit, so whoever makes many such records waits
    /// between them. Returns at once if the log has failed.
    fn await_memory(&self, log: u8);

    /// Gives room back that was set aside for bodies of this many bytes each.
    fn give_back(&self, log: u8, bodies: &mut dyn Iterator<Item = u64>);

    /// Sets the limit of the bytes that the holders keep, together with room that is set aside.
    /// `u64::MAX` for none, which is the first setting. Appends beyond the limit are refused with
    /// [`JournalError::AtLimit`]. Undos and aborts are not: their room was set aside. The record that
    /// ends a transaction may exceed the limit a little, since it lets a checkpoint free the rest.
    fn set_limit(&self, bytes: u64);

    /// Bytes that the limit leaves. `u64::MAX` without a limit.
    fn limit_left(&self) -> u64;

    /// Waits, outside of any read section, until the limit leaves so many bytes. False after the
    /// timeout. [`hold`](Journal::hold) frees.
    fn await_limit(&self, bytes: u64, timeout: Duration) -> bool;

    /// Bytes of records for which room is set aside in all logs.
    fn set_aside_bytes(&self) -> u64;

    /// Flushes everything that was appended to the log before the call. Returns the greatest
    /// flushed gsn. Concurrent callers share flushes.
    ///
    /// # Errors
    /// [`JournalError::Poisoned`].
    fn flush(&self, log: u8) -> Result<u64, JournalError>;

    /// Flushes every log.
    ///
    /// # Errors
    /// As [`flush`](Journal::flush).
    fn flush_all(&self) -> Result<(), JournalError>;

    /// Reserves bytes of the disk for the next checkpoint, which further segments may not use.
    /// Records that find no segment then are refused with [`JournalError::NoSpace`].
    fn set_reserve(&self, bytes: u64);

    /// Removes unused segments until this number of bytes is free on the disk, or no unused segment
    /// is left.
    ///
    /// # Errors
    /// An error of the disk.
    fn shed(&self, bytes: u64) -> Result<(), JournalError>;

    /// Bytes of one further segment for each log. Other users of the disk should leave them free.
    fn headroom_bytes(&self) -> u64;

    /// Shortage of space of the log that has the least.
    fn shortage(&self) -> Shortage;

    /// Refuses further appends as [`JournalError::Poisoned`]. For a failure outside the log after
    /// which nothing new may be acknowledged. Earlier records can still be flushed.
    fn refuse(&self, source: Arc<DiskError>);

    /// The first failed write or flush, if there is one. Then the process must end.
    ///
    /// # Errors
    /// [`JournalError::Poisoned`].
    fn health(&self) -> Result<(), JournalError>;

    /// Whether the record of the stamp survives any crash.
    fn is_closed(&self, stamp: Stamp) -> bool;

    /// Waits until all the stamps are closed, and flushes the records that they wait for.
    ///
    /// # Errors
    /// [`JournalError::Poisoned`], also if the failed log is another one that a stamp
    /// depends on.
    fn make_closed(&self, stamps: &[Stamp]) -> Result<(), JournalError>;

    /// Waits until the records of all the stamps are flushed, whatever they depend on. So they may be
    /// read after a crash, and perhaps not be kept.
    ///
    /// # Errors
    /// As [`make_closed`](Journal::make_closed).
    fn make_flushed(&self, stamps: &[Stamp]) -> Result<(), JournalError>;

    /// Per log, the gsn up to which all records belong to epochs before `epoch`. A checkpoint of
    /// that epoch contains all these records. (Later records may belong to earlier epochs too, if
    /// sessions share the log. The epoch of such a record tells.)
    fn positions_before_epoch(&self, epoch: u64) -> Vec<LogGsn>;

    /// Bytes on disk of records above the positions, which recovery would read. A log without a
    /// position counts as a whole.
    fn bytes_since(&self, positions: &[LogGsn]) -> u64;

    /// Sets the positions from which a holder needs the logs. Recycles or removes the segments of
    /// which no holder needs a record. As long as nobody holds anything, every segment stays.
    ///
    /// A holder must not set positions before those that some holder has kept since the opening,
    /// since earlier segments may be gone.
    ///
    /// # Errors
    /// [`JournalError::Disk`]. Remaining segments are tried again the next time.
    fn hold(&self, hold: Hold) -> Result<(), JournalError>;

    /// The holders of log segments, and what each of them holds.
    fn holders(&self) -> Vec<Holder>;

    /// Counts and sizes.
    fn stats(&self) -> JournalStats;

    /// Flushes everything, ends the background threads, and refuses further appends. Returns the
    /// last gsn of each log, the cut that a clean end records in the manifest.
    ///
    /// # Errors
    /// As [`flush`](Journal::flush).
    fn close(&self) -> Result<Vec<LogGsn>, JournalError>;
}
