//! One log: records in memory, batches on disk, and the group that flushes them.
//!
//! A log has three locks. `append` is held by one commit at a time. The group chooses the leader.
//! `writer` belongs to the leader and is uncontended. The leader takes the sealed batches under
//! `append`, and writes and flushes them without it. The leader advances [`Closing`] before the
//! group lets the next thread lead.

mod append;
mod aside;
mod handoff;
mod marks;
mod write;

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use stillpoint_format::log::{RECORD_HEAD_BYTES, RecordKind, SegmentHeader};
use stillpoint_format::{EncodeError, Stamp, names};
use stillpoint_io::{Disk, DiskError};
use stillpoint_sync::CachePadded;
use stillpoint_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use stillpoint_sync::{mutant, planted};

use crate::closing::Closing;
use crate::error::JournalError;
use crate::group::GroupCommit;
use crate::journal::{Config, Entry, Environment, JournalStats, Shortage, Together};
use crate::limit::Limit;
use crate::room::{Room, first_segment};
use crate::segments::{Kept, Segment, Spare, Stock, Taker};
use append::{Appender, Obstacle, Unused};
use handoff::Handoff;
use write::{Writer, create_dir, name_segment};

/// Interval at which a thread that waits for room checks again, in case a wake-up was missed.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How often a flush on a full disk looks again whether an abort has written more. A flush that waits for
/// ever could keep what the abort waits for.
const LOOKS_AT_ABORT: u32 = 50;

/// Extent of a leader's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Full batches are handed to the disk.
    Write,
    /// Everything appended is handed to the disk and flushed.
    Flush,
}

/// Counts of a leader's work. Relaxed: statistics that order nothing.
#[derive(Debug, Default)]
struct Counts {
    batches: AtomicU64,
    written_bytes: AtomicU64,
    flushes: AtomicU64,
}

/// State shared by the logs of a journal.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) clock: Arc<dyn stillpoint_io::Clock>,
    pub(crate) config: Config,
    pub(crate) closing: Closing,
    pub(crate) room: Arc<Room>,
    pub(crate) limit: Limit,
}

/// One log.
#[derive(Debug)]
pub(crate) struct Log {
    id: u8,
    shared: Arc<Shared>,
    append: CachePadded<Mutex<Appender>>,
    /// Set while an append may have to wait or be refused, so that other appends need no check.
    hindered: CachePadded<AtomicBool>,
    handoff: Arc<Handoff>,
    group: GroupCommit,
    writer: Mutex<Writer>,
    failed: OnceLock<JournalError>,
    counts: CachePadded<Counts>,
    stock: Stock,
    /// Held by the thread that prepares a segment for a refused append.
    providing: Mutex<()>,
    /// The segments with records, oldest first.
    kept: Mutex<Vec<Kept>>,
}

impl Log {
    /// Opens a log for this incarnation: makes its first segment durable.
    pub(crate) fn open(
        id: u8,
        env: &Environment,
        shared: &Arc<Shared>,
        spares: Vec<Spare>,
    ) -> Result<Self, JournalError> {
        let config = &shared.config;
        let dir = PathBuf::from(names::log_dir(id));
        create_dir(&*env.disk, &dir)?;
        let (spares, odd): (Vec<Spare>, Vec<Spare>) =
            spares.into_iter().partition(|spare| spare.bytes == config.segment_bytes);
        odd.iter().try_for_each(|spare| env.disk.remove(&spare.path))?;
        let stock = Stock::new(env, config, id, spares, Arc::clone(&shared.room));
        let header = SegmentHeader {
            store: config.store,
            created_ms: env.clock.wall_ms(),
            incarnation: config.incarnation,
            log: id,
            first_gsn: config.floor + 1,
            first_batch: 1,
            file_bytes: 0,
        };
        let segment =
            Arc::new(place_segment(header, stock.first(first_segment(config.segment_bytes))?));
        let file = name_segment(&*env.disk, &segment)?;
        mutant!(env.disk.sync_dir(&dir)?, DirectoryNotFlushed => ());
        let of_log = config.earlier.iter().filter(|of| of.log == id);
        let mut kept: Vec<Kept> = of_log.map(Kept::from).collect();
        kept.push(keep(&segment));
        let floor = config.floor;
        let handoff = Arc::new(Handoff::default());
        let appender = Appender::new(
            id,
            config.logs,
            config.batch_bytes,
            floor,
            Arc::clone(&segment),
            Arc::clone(&handoff),
            config.segment_bytes,
        );
        Ok(Log {
            id,
            shared: Arc::clone(shared),
            append: CachePadded::new(Mutex::new(appender)),
            hindered: CachePadded::new(AtomicBool::new(false)),
            handoff,
            group: GroupCommit::new(),
            writer: Mutex::new(Writer::new(dir, segment, file, floor, config.logs)),
            failed: OnceLock::new(),
            counts: CachePadded::new(Counts::default()),
            stock,
            providing: Mutex::new(()),
            kept: Mutex::new(kept),
        })
    }

    /// Appends a record.
    #[inline]
    pub(crate) fn append(
        &self,
        entry: &Entry<'_>,
        background: &Background<'_>,
    ) -> Result<Stamp, JournalError> {
        let append = |state: &mut Appender| state.append(entry, &self.shared.closing);
        self.append_by(background, entry.kind, append)
    }

    /// As [`append`](Self::append), with a body that was encoded before.
    pub(crate) fn append_buffer(
        &self,
        entry: &Entry<'_>,
        body: &mut Vec<u8>,
        background: &Background<'_>,
    ) -> Result<Stamp, JournalError> {
        let append = |state: &mut Appender| state.append_buffer(entry, body, &self.shared.closing);
        self.append_by(background, entry.kind, append)
    }

    /// Appends all records of a transaction.
    pub(crate) fn append_together(
        &self,
        together: &mut Together<'_>,
        background: &Background<'_>,
    ) -> Result<Stamp, JournalError> {
        let append = |state: &mut Appender| state.append_together(together, &self.shared.closing);
        self.append_by(background, RecordKind::Operation, append)
    }

    #[inline]
    fn append_by(
        &self,
        background: &Background<'_>,
        kind: RecordKind,
        mut append: impl FnMut(&mut Appender) -> Result<u64, Obstacle>,
    ) -> Result<Stamp, JournalError> {
        let mut state = self.append.lock();
        loop {
            if let Some(refused) = &state.refused {
                return Err(refused.clone());
            }
            if self.handoff.sealed_bytes() > self.shared.config.buffer_bytes {
                // Relaxed: a hint for `Log::admit`, which looks at the bytes themselves.
                self.hindered.store(true, Ordering::Relaxed);
                return Err(JournalError::NoRoom { log: self.id });
            }
            let batch = state.next_number;
            match append(&mut state) {
                Ok(gsn) => {
                    let full = state.next_number != batch;
                    let first = full && state.begins_use();
                    drop(state);
                    if full {
                        (background.batch_full)();
                    }
                    if first {
                        self.stock.begin_use();
                        (background.segment_taken)();
                    }
                    return Ok(Stamp::new(gsn, self.id));
                }
                Err(Obstacle::Error(error)) => return Err(error),
                Err(Obstacle::Segment(_)) if state.aside.kept_back() > 0 => {
                    self.pin_all(&mut state)?;
                }
                Err(Obstacle::Segment(bytes)) => {
                    self.next_segment(&mut state, bytes, Taker::Any, background)?
                }
                Err(Obstacle::Limit(bytes)) => self.take_share(&mut state, bytes, kind)?,
            }
        }
    }

    /// Takes a share of what the limit of all logs leaves, for a record of so many bytes.
    #[cold]
    fn take_share(
        &self,
        state: &mut Appender,
        bytes: u64,
        kind: RecordKind,
    ) -> Result<(), JournalError> {
        let limit = &self.shared.limit;
        let mut taken = limit.take(bytes);
        // These let a checkpoint end, or let it free what a transaction keeps.
        if taken.is_none() && matches!(kind, RecordKind::End | RecordKind::Scheme) {
            taken = state.exceed(bytes, limit.excess());
        }
        let limit = limit.bytes();
        let taken = taken.ok_or(JournalError::AtLimit { log: self.id, bytes, limit })?;
        state.add_share(taken);
        Ok(())
    }

    /// Takes the share of this log back. Returns the bytes that are kept from a position on, and those
    /// of records for which room is set aside.
    pub(crate) fn end_share(&self, is_limited: bool, position: u64) -> u64 {
        let earlier = self.earlier_above(position);
        let mut state = self.append.lock();
        state.end_share(is_limited);
        earlier + state.bytes_above(position) + state.set_aside_bytes()
    }

    /// Gives back what a share has too much since room is set aside no more.
    fn give_surplus(&self, state: &mut Appender) {
        let share = self.shared.limit.share();
        if state.share_left().is_some_and(|left| left > 3 * share) {
            let surplus = state.share_left().unwrap_or(0) - share;
            if self.shared.limit.give(surplus) {
                state.give_share(surplus);
            }
        }
    }

    /// Bytes of records for which room is set aside.
    pub(crate) fn set_aside_bytes(&self) -> u64 {
        self.append.lock().set_aside_bytes()
    }

    /// Pins enough prepared segments for all room that is set aside. Then no bytes of the present
    /// segment are reserved, and a record can use them.
    #[cold]
    fn pin_all(&self, state: &mut Appender) -> Result<(), JournalError> {
        let pinned = state.aside.pinned_for_all();
        if !self.stock.pin(pinned) {
            // One more segment for the record itself.
            state.wanted_spares = state.wanted_spares.max(pinned + 1);
            // Relaxed: a hint for `Log::admit`, which looks under the lock.
            self.hindered.store(true, Ordering::Relaxed);
            return Err(JournalError::NoRoom { log: self.id });
        }
        state.aside.pinned = pinned;
        Ok(())
    }

    /// Sets room aside for a record whose body has at most this many bytes.
    pub(crate) fn set_aside(&self, body_bytes: u64) -> Result<(), JournalError> {
        let mut state = self.append.lock();
        if let Some(refused) = &state.refused {
            return Err(refused.clone());
        }
        let left = state.room_left();
        let Some(pinned) = state.aside.pinned_with(body_bytes, left) else {
            let source = EncodeError::BatchFull;
            return Err(JournalError::Encode { log: self.id, source });
        };
        if pinned > state.aside.pinned && !self.stock.pin(pinned) {
            state.wanted_spares = state.wanted_spares.max(pinned);
            // Relaxed: a hint for `Log::admit`, which looks under the lock.
            self.hindered.store(true, Ordering::Relaxed);
            return Err(JournalError::NoRoom { log: self.id });
        }
        let bytes = aside_bytes(body_bytes);
        while state.share_left().is_some_and(|left| left < bytes) {
            self.take_share(&mut state, bytes, RecordKind::Undo)?;
        }
        state.aside.add(body_bytes, pinned);
        state.set_aside(bytes);
        Ok(())
    }

    /// Appends a record in room that was set aside for it. The bytes in memory that wait for the
    /// disk may exceed their limit by the room that is set aside.
    pub(crate) fn append_aside(
        &self,
        entry: &Entry<'_>,
        body_bytes: u64,
        background: &Background<'_>,
    ) -> Result<Stamp, JournalError> {
        let mut state = self.append.lock();
        loop {
            if let Some(refused) = &state.refused {
                return Err(refused.clone());
            }
            match state.append_aside(entry, &self.shared.closing) {
                Ok(gsn) => {
                    self.unpin_after(&mut state, body_bytes);
                    self.give_surplus(&mut state);
                    drop(state);
                    (background.batch_full)();
                    return Ok(Stamp::new(gsn, self.id));
                }
                Err(Obstacle::Error(error)) => return Err(error),
                Err(Obstacle::Segment(bytes)) => {
                    self.next_segment(&mut state, bytes, Taker::Undo, background)?;
                }
                Err(Obstacle::Limit(_)) => unreachable!("no limit refuses what was set aside"),
            }
        }
    }

    /// Gives room back that was set aside for records with such bodies, and is not needed.
    pub(crate) fn give_back(&self, bodies: &mut dyn Iterator<Item = u64>) {
        let mut state = self.append.lock();
        bodies.for_each(|body_bytes| self.unpin_after(&mut state, body_bytes));
        self.give_surplus(&mut state);
    }

    fn unpin_after(&self, state: &mut Appender, body_bytes: u64) {
        state.end_aside(aside_bytes(body_bytes));
        if state.aside.give_back(body_bytes) {
            self.stock.unpin();
        }
    }

    /// Rolls to a prepared segment. If there is none, notes how large the segment must be:
    /// [`admit`](Self::admit) prepares the segment, since the caller may stand in a read section.
    #[cold]
    fn next_segment(
        &self,
        state: &mut Appender,
        bytes: u64,
        taker: Taker,
        background: &Background<'_>,
    ) -> Result<(), JournalError> {
        let needed = bytes.max(self.shared.config.segment_bytes);
        let Some(spare) = self.stock.take(needed, taker) else {
            state.wanted_bytes = state.wanted_bytes.max(needed);
            if state.aside.pinned > 0 {
                // The caller gives its room back, waits for the segment, and sets the same room
                // aside again.
                state.wanted_spares = state.wanted_spares.max(state.aside.pinned + 1);
            }
            // Relaxed: a hint for `Log::admit`, which looks under the lock.
            self.hindered.store(true, Ordering::Relaxed);
            return Err(JournalError::NoRoom { log: self.id });
        };
        if taker == Taker::Undo {
            state.aside.pinned = state.aside.pinned.saturating_sub(1);
        }
        state.segments_reused += u64::from(spare.reused);
        let header =
            SegmentHeader { created_ms: self.shared.clock.wall_ms(), ..state.next_header() };
        let segment = place_segment(header, spare);
        let kept = keep(&segment);
        let unused = state.roll(segment);
        {
            let mut all = self.kept.lock();
            // A segment without a record has the same name as the new one, which replaces it.
            if unused.is_some() {
                all.pop();
            }
            all.push(kept);
        }
        if let Some(Unused::Spare(segment)) = unused {
            self.stock.put_back(&segment);
        }
        (background.segment_taken)();
        Ok(())
    }

    /// Prepares the segment that a refused append has asked for. One thread at a time prepares.
    #[cold]
    fn provide_segment(&self, hurry: &dyn Fn()) -> Result<(), JournalError> {
        let _one = self.providing.lock();
        let wanted = self.append.lock().wanted_bytes;
        if wanted == 0 {
            return Ok(());
        }
        let provided = self.stock.provide(wanted, hurry);
        let mut state = self.append.lock();
        // A larger segment requested meanwhile is still wanted.
        if state.wanted_bytes == wanted {
            state.wanted_bytes = 0;
        }
        state.refusals += u64::from(provided.is_err());
        provided
    }

    /// Prepares the segments that a refused call of [`set_aside`](Self::set_aside) has asked for.
    #[cold]
    fn provide_spares(&self) -> Result<(), JournalError> {
        let _one = self.providing.lock();
        let wanted = std::mem::take(&mut self.append.lock().wanted_spares);
        let provided = self.stock.provide_spares(wanted);
        self.append.lock().refusals += u64::from(provided.is_err());
        provided
    }

    /// Waits until batches have been written. If no other thread writes the batches, this call
    /// does.
    #[cold]
    fn await_room(&self) -> Result<(), JournalError> {
        let limit = self.shared.config.buffer_bytes;
        while self.handoff.sealed_bytes() > limit {
            self.health()?;
            if !self.group.try_lead(|| self.lead(Reach::Write))? {
                self.handoff.wait_for_room(limit, LOOK_AGAIN);
            }
        }
        Ok(())
    }

    /// Waits until no more bytes wait for the disk than may. Returns if the log has failed.
    #[inline]
    pub(crate) fn await_memory(&self) {
        if self.handoff.sealed_bytes() > self.shared.config.buffer_bytes {
            // Who appends next gets the error.
            let _ = self.await_room();
        }
    }

    /// Waits until the log has room in memory and the segment that an append has asked for.
    /// Refuses what an append would refuse. `hurry` wakes the thread that prepares segments.
    #[inline]
    pub(crate) fn admit(&self, hurry: &dyn Fn()) -> Result<(), JournalError> {
        // Relaxed: a hint; the append itself looks under the lock.
        if self.hindered.load(Ordering::Relaxed) { self.admit_hindered(hurry) } else { Ok(()) }
    }

    #[cold]
    fn admit_hindered(&self, hurry: &dyn Fn()) -> Result<(), JournalError> {
        if self.handoff.sealed_bytes() > self.shared.config.buffer_bytes {
            self.append.lock().waits += 1;
            self.await_room()?;
        }
        self.provide_segment(hurry)?;
        self.provide_spares()?;
        let mut state = self.append.lock();
        if let Some(refused) = &state.refused {
            return Err(refused.clone());
        }
        if let Some(refusal) = self.stock.refusal() {
            state.refusals += 1;
            return Err(refusal);
        }
        self.hindered.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Gsn of the last record appended.
    pub(crate) fn last_gsn(&self) -> u64 {
        self.append.lock().last_gsn
    }

    /// Flushes everything up to a gsn that was given out.
    pub(crate) fn flush_to(&self, gsn: u64) -> Result<(), JournalError> {
        let closing = &self.shared.closing;
        let led = Cell::new(false);
        self.group.until(
            || match self.failed.get() {
                _ if closing.flushed(self.id) >= gsn => Ok(true),
                Some(failed) => Err(failed.clone()),
                // Everything appended is flushed, so this gsn was never given out.
                None if led.get() => Err(JournalError::UnknownStamp {
                    stamp: Stamp::new(gsn, self.id),
                    logs: closing.logs(),
                }),
                None => Ok(false),
            },
            || {
                self.await_end_of_batch()?;
                self.lead(Reach::Flush)?;
                led.set(true);
                Ok(())
            },
        )
    }

    /// Waits until the open batch may be sealed: its padding must not take the room that was set aside. Pins
    /// further segments for that room. On a full disk, it waits for the records of the abort that has used
    /// its room for padding.
    fn await_end_of_batch(&self) -> Result<(), JournalError> {
        for _ in 0..LOOKS_AT_ABORT {
            {
                let mut state = self.append.lock();
                if state.may_seal() || self.pin_all(&mut state).is_ok() {
                    break;
                }
            }
            if self.provide_spares().is_err() {
                self.lead(Reach::Write)?;
                self.shared.clock.sleep(LOOK_AGAIN);
            }
        }
        Ok(())
    }

    /// True if full batches wait to be written.
    pub(crate) fn has_work(&self) -> bool {
        self.handoff.sealed_bytes() > 0 && self.failed.get().is_none()
    }

    /// Writes full batches, if no other thread does.
    pub(crate) fn write_out(&self) -> Result<(), JournalError> {
        self.group.try_lead(|| self.lead(Reach::Write)).map(|_| ())
    }

    /// Frees buffers that a burst has left.
    pub(crate) fn trim(&self) {
        self.handoff.trim();
    }

    /// The first failure, if there was one.
    pub(crate) fn health(&self) -> Result<(), JournalError> {
        self.failed.get().map_or(Ok(()), |failed| Err(failed.clone()))
    }

    /// Notes that the thread that flushes or prepares has ended, so nothing more becomes durable.
    pub(crate) fn fail(&self, error: JournalError) {
        let error = self.failed.get_or_init(|| error).clone();
        self.stock.end(error.clone());
        self.refuse(error);
    }

    /// Shortage of space of the log.
    pub(crate) fn shortage(&self) -> Shortage {
        match self.stock.refusal() {
            None => Shortage::None,
            // Relaxed: a hint, which is read repeatedly.
            Some(_) if self.hindered.load(Ordering::Relaxed) => Shortage::Refuses,
            Some(_) => Shortage::NoSegmentAhead,
        }
    }

    /// Refuses further appends.
    pub(crate) fn refuse(&self, error: JournalError) {
        self.append.lock().refused.get_or_insert(error);
        self.hindered.store(true, Ordering::Relaxed);
        self.handoff.wake_all();
    }

    /// One turn of the leader. A failure is final for this log.
    fn lead(&self, reach: Reach) -> Result<(), JournalError> {
        self.health()?;
        let mut writer = self.writer.lock();
        let done = if writer.busy {
            let panicked = std::io::Error::other("an earlier flush of this log panicked");
            let path = self.shared.disk.describe(names::log_dir(self.id).as_ref());
            Err(DiskError::new("flush", path, panicked))
        } else {
            writer.busy = true;
            self.write_and_flush(&mut writer, reach)
        };
        match done {
            Ok(()) => {
                writer.busy = false;
                Ok(())
            }
            Err(error) => {
                let poisoned = JournalError::Poisoned { log: self.id, source: Arc::new(error) };
                let poisoned = self.failed.get_or_init(|| poisoned).clone();
                self.refuse(poisoned.clone());
                Err(poisoned)
            }
        }
    }

    fn write_and_flush(&self, writer: &mut Writer, reach: Reach) -> Result<(), DiskError> {
        let disk = &*self.shared.disk;
        let free_max = self.shared.config.buffer_bytes / self.shared.config.batch_bytes + 2;
        if reach == Reach::Flush {
            let mut state = self.append.lock();
            state.seal();
            if state.begins_use() {
                self.stock.begin_use();
            }
        }
        self.handoff.take_sealed(&mut writer.queue);
        while !writer.queue.is_empty() {
            let bytes = writer.write_next(disk, &self.shared.closing)?;
            self.counts.batches.fetch_add(writer.written.len() as u64, Ordering::Relaxed);
            self.counts.written_bytes.fetch_add(bytes, Ordering::Relaxed);
            for batch in writer.written.drain(..) {
                self.handoff.recycle(batch, free_max);
            }
        }
        if reach == Reach::Flush && writer.is_dirty() {
            writer.flush(disk)?;
            self.counts.flushes.fetch_add(1, Ordering::Relaxed);
            let named = writer.named.drain(..);
            self.shared.closing.record_flushed(self.id, writer.written_gsn, named);
        }
        Ok(())
    }

    /// The prepared segments.
    pub(crate) fn stock(&self) -> &Stock {
        &self.stock
    }

    /// The greatest gsn up to which all records are of epochs before `epoch`.
    pub(crate) fn last_gsn_before(&self, epoch: u64) -> u64 {
        self.append.lock().last_gsn_before(epoch)
    }

    /// Bytes on disk above a gsn, including those of earlier incarnations.
    pub(crate) fn bytes_above(&self, gsn: u64) -> u64 {
        self.earlier_above(gsn) + self.append.lock().bytes_above(gsn)
    }

    /// Bytes of earlier incarnations above a gsn.
    fn earlier_above(&self, gsn: u64) -> u64 {
        let incarnation = self.shared.config.incarnation;
        let mut earlier = 0;
        for pair in self.kept.lock().windows(2) {
            if pair[0].incarnation != incarnation && pair[1].first_gsn > gsn.saturating_add(1) {
                earlier += pair[0].bytes;
            }
        }
        earlier
    }

    /// Frees the segments without a gsn above `position`, but never the newest segment that a crash
    /// leaves. One caller at a time.
    pub(crate) fn release_below(&self, position: u64) -> Result<(), JournalError> {
        self.append.lock().marks.forget_below(position);
        loop {
            // Appends only add at the end, so the oldest stays the oldest meanwhile.
            let (oldest, next) = match &self.kept.lock()[..] {
                [oldest, next, ..] if next.first_gsn <= position.saturating_add(1) => {
                    (oldest.clone(), next.first_gsn)
                }
                _ => return Ok(()),
            };
            if !self.is_named(next) {
                self.flush_to(self.last_gsn())?;
                if !self.is_named(next) {
                    return Ok(());
                }
            }
            self.stock.give_back(&oldest)?;
            self.kept.lock().remove(0);
        }
    }

    /// True if the name of the segment that begins at `first_gsn` is durable. The first segment has
    /// its name from the opening. Other segments get their names by the flush of their first
    /// records.
    fn is_named(&self, first_gsn: u64) -> bool {
        first_gsn <= (self.shared.config.floor + 1).max(self.shared.closing.flushed(self.id))
    }

    /// Adds this log's counts.
    pub(crate) fn count(&self, stats: &mut JournalStats) {
        let counts = &self.counts;
        stats.batches += counts.batches.load(Ordering::Relaxed);
        stats.written_bytes += counts.written_bytes.load(Ordering::Relaxed);
        stats.flushes += counts.flushes.load(Ordering::Relaxed);
        stats.segments_made += self.stock.made();
        let state = self.append.lock();
        stats.records += state.records;
        stats.record_bytes += state.record_bytes;
        stats.waits += state.waits;
        stats.refusals += state.refusals;
        stats.segments_reused += state.segments_reused;
        stats.buffer_bytes += state.buffer_bytes();
    }
}

/// Bytes of a record whose body has so many.
fn aside_bytes(body_bytes: u64) -> u64 {
    RECORD_HEAD_BYTES as u64 + body_bytes
}

/// Signals of an append to the background threads. Both are cheap and may be called often.
pub(crate) struct Background<'a> {
    /// Tells that a batch is full and may be written.
    pub(crate) batch_full: &'a dyn Fn(),
    /// Tells that a prepared segment was taken, or is missing.
    pub(crate) segment_taken: &'a dyn Fn(),
}

fn place_segment(header: SegmentHeader, spare: Spare) -> Segment {
    let header = SegmentHeader { file_bytes: spare.bytes, ..header };
    let name = names::segment_name(header.incarnation, header.first_gsn);
    let path = PathBuf::from(names::log_dir(header.log)).join(name);
    Segment { identity: header.identity(), header, bytes: spare.bytes, spare: spare.path, path }
}

fn keep(segment: &Segment) -> Kept {
    Kept {
        incarnation: segment.header.incarnation,
        first_gsn: segment.header.first_gsn,
        bytes: segment.bytes,
        path: segment.path.clone(),
    }
}
