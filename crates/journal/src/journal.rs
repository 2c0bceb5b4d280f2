//! The trait that every journal implements, and what goes in and out of it.

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

/// When an append is safe from a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Never: only a checkpoint is.
    Checkpoint,
    /// At most [`Config::interval`] later; commits are acknowledged before.
    Relaxed,
    /// Once its stamp is closed; commits and reads are acknowledged then.
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

    /// True if an acknowledgement, that of a read included, must wait until everything it
    /// rests on [is closed](Journal::is_closed).
    pub fn acknowledges_closed(self) -> bool {
        self == Durability::Strict
    }
}

/// What a journal can do. Callers ask these, never its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// It keeps what is appended; without, [`Journal::append`] gives out stamps of no log.
    pub records_commits: bool,
}

/// How short of space on the disk a journal is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shortage {
    /// Not at all.
    #[default]
    None,
    /// A log has no further segment ahead of the present one, and the disk has no room for one.
    NoSegmentAhead,
    /// The log refuses records because space is short.
    Refuses,
}

/// How a journal is opened. One opening is one incarnation of the store.
#[derive(Clone, Debug)]
pub struct Config {
    /// Identity of the store, which each segment carries.
    pub store: StoreId,
    /// Number of this incarnation; greater than any before.
    pub incarnation: u32,
    /// No gsn up to this one is given out, and all of them are closed. At least as great
    /// as every gsn ever seen in any log of the store.
    pub floor: u64,
    /// Number of logs, 1 to 255.
    pub logs: u8,
    /// When commits are safe. The registry row lists what the scheme offers.
    pub durability: Durability,
    /// Greatest age of an unflushed record in relaxed durability. Flushes start at half of
    /// it. In strict durability, how long a record may wait if nobody asks for a flush.
    pub interval: Duration,
    /// Length of a segment file in bytes; a multiple of 4096, at least 16 KiB. On a small disk
    /// segments are shorter.
    pub segment_bytes: u64,
    /// A batch is handed to the disk when it has grown to this many bytes.
    pub batch_bytes: usize,
    /// Most bytes per log that wait for the disk; beyond, an append finds no room.
    pub buffer_bytes: usize,
    /// Segments per log that are prepared ahead.
    pub spare_segments: usize,
    /// Freed segments per log that are kept for reuse.
    pub recycled_segments: usize,
    /// Threads that flush and prepare in the background. Without them the caller does all
    /// of it, in a fixed order, for simulations.
    pub background: bool,
    /// The segments of earlier incarnations that are still needed, oldest first: released like
    /// its own.
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
    /// The defaults for a store: one second at most, segments of 64 MiB, batches of 1 MiB,
    /// at most 64 MiB of a log waiting for the disk.
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

/// What a journal works with.
#[derive(Clone, Debug)]
pub struct Environment {
    /// The data directory.
    pub disk: Arc<dyn Disk>,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

/// Appends the body of an entry. It may be called more than once for one entry and must then
/// append the same.
pub type EncodeBody<'a> = dyn Fn(&mut Vec<u8>) -> Result<(), EncodeError> + 'a;

/// What becomes one record of a log. A commit is one: it is appended with all of the transaction's
/// locks held. The journal does not look into the body.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    /// What the body holds.
    pub kind: RecordKind,
    /// The checkpoint period to which the record belongs.
    pub epoch: u64,
    /// The stamps of everything that it rests on: of every cell that a transaction read or
    /// overwrites. Its own gsn is greater than theirs.
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
    /// Waits for room because too many bytes waited for the disk.
    pub waits: u64,
    /// Appends that were refused because no space could be prepared.
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

/// Logs of entries. Of each log a crash keeps a prefix.
///
/// All calls take `&self` from any thread. Several sessions may share a log.
///
/// The rule of acknowledgement: a reply, that of a read included, may leave once the
/// stamps that it rests on [are closed](Journal::is_closed): the session's own last commit
/// and everything it has read. Replies of one log leave in log order.
pub trait Journal: Send + Sync + fmt::Debug {
    /// Appends an entry and gives it the gsn 1 + max(last of the log, all stamps touched). Returns
    /// its stamp, which is its place in the logs.
    ///
    /// Calls no disk, so that a caller may stand in a read section.
    ///
    /// # Errors
    /// [`JournalError::NoRoom`]: nothing was appended; [`admit`](Journal::admit) makes room.
    /// [`JournalError::Encode`]: nothing was appended and the transaction must abort.
    /// [`JournalError::Poisoned`]: the process must end.
    fn append(&self, log: u8, entry: &Entry<'_>) -> Result<Stamp, JournalError>;

    /// Waits, outside of any read section, until the log has room in memory and the segment that
    /// a refused [`append`](Journal::append) needs.
    ///
    /// # Errors
    /// [`JournalError::NoSpace`]: the disk has no room for the segment, and the transaction must
    /// abort. Otherwise as `append`.
    fn admit(&self, log: u8) -> Result<(), JournalError>;

    /// Flushes everything that was appended to the log before the call; returns the
    /// greatest flushed gsn. Concurrent callers share flushes.
    ///
    /// # Errors
    /// [`JournalError::Poisoned`].
    fn flush(&self, log: u8) -> Result<u64, JournalError>;

    /// Flushes every log.
    ///
    /// # Errors
    /// As [`flush`](Journal::flush).
    fn flush_all(&self) -> Result<(), JournalError>;

    /// Keeps so many bytes of the disk from further segments: what the next checkpoint needs.
    /// Records that find no segment then are refused with [`JournalError::NoSpace`].
    fn set_reserve(&self, bytes: u64);

    /// Removes segments that hold nothing until so many bytes of the disk are free, or none is left.
    ///
    /// # Errors
    /// An error of the disk.
    fn shed(&self, bytes: u64) -> Result<(), JournalError>;

    /// Bytes of one further segment for each log: what others should leave on the disk.
    fn headroom_bytes(&self) -> u64;

    /// How short of space the worst of the logs is.
    fn shortage(&self) -> Shortage;

    /// Takes no further append, for a failure outside the log after which nothing new may be
    /// acknowledged: they are refused as [`JournalError::Poisoned`]. What was appended before
    /// can still be flushed.
    fn refuse(&self, source: Arc<DiskError>);

    /// The first failure, if a write or a flush has failed: the process must end.
    ///
    /// # Errors
    /// [`JournalError::Poisoned`].
    fn health(&self) -> Result<(), JournalError>;

    /// True if no crash can lose the record of the stamp.
    fn is_closed(&self, stamp: Stamp) -> bool;

    /// Returns once all the stamps are closed, flushing what they wait for.
    ///
    /// # Errors
    /// [`JournalError::Poisoned`], also if the failed log is another one that a stamp
    /// depends on.
    fn make_closed(&self, stamps: &[Stamp]) -> Result<(), JournalError>;

    /// Per log, the gsn up to which all records are of epochs before `epoch`: what a
    /// checkpoint of that epoch contains for certain. (Later records may be of earlier
    /// epochs too, if sessions share the log; their own epoch tells.)
    fn positions_before_epoch(&self, epoch: u64) -> Vec<LogGsn>;

    /// Bytes on disk of records above the positions: what recovery would read.
    /// A log without a position counts as a whole.
    fn bytes_since(&self, positions: &[LogGsn]) -> u64;

    /// Says from where on a holder needs the logs, in place of what that holder said before.
    /// Recycles or removes the segments of which no holder needs a record. As long as nobody holds
    /// anything, every segment stays.
    ///
    /// A holder must not ask for less than some other holder has kept since the journal was
    /// opened: those segments may be gone.
    ///
    /// # Errors
    /// [`JournalError::Disk`]; what is left over is tried again the next time.
    fn hold(&self, hold: Hold) -> Result<(), JournalError>;

    /// The holders of log segments, and what each of them holds.
    fn holders(&self) -> Vec<Holder>;

    /// Counts and sizes.
    fn stats(&self) -> JournalStats;

    /// Flushes everything and ends the background threads; further appends are refused.
    /// Returns, per log, the last gsn: the cut that a clean end records in the manifest.
    ///
    /// # Errors
    /// As [`flush`](Journal::flush).
    fn close(&self) -> Result<Vec<LogGsn>, JournalError>;
}
