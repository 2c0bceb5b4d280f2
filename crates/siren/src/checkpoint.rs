//! The checkpointer (SIREN, ICDE 2006, §3): MAKE-CHECKPOINT in steps, each of which holds the latch
//! of a table for the copy of one tuple at most.
//!
//! ```text
//! level n → n + 1 ─▶ grace period ─▶ segment of the log ends ─▶ dirty lists of level n
//!   each page: copy tuple by tuple ─▶ ring of buffers ─▶ new disk pages
//!              pending operations made permanent, one by one ─▶ split, join
//!   ─▶ flush ─▶ directory ─▶ flush ─▶ header ─▶ flush ─▶ old disk pages and segments are free
//! ```
//! 1. The checkpoint of level n holds exactly the operations of levels up to n. An operation reads
//!    the level inside its read section, and so does the append of its record. All operations of level
//!    n have ended when the grace period has.
//! 2. New disk pages are those that no durable checkpoint names. The old ones become free when the
//!    new header is durable, and not before.
//! 3. The header goes to the place that the newest durable checkpoint has not. Half-written, it
//!    leaves that checkpoint in force.
//! 4. A checkpoint that is given up marks as dirty again what it has copied, so the next one holds
//!    it. After an error of the header or of a flush nobody knows what is durable: no further
//!    checkpoint is taken.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use stillpoint_format::siren::{
    CheckpointHeader, Directory, ExtentKind, PageBuilder, StoredExtent, StoredTable,
};
use stillpoint_io::{DiskError, Meter};
use stillpoint_sync::atomic::Ordering::SeqCst;
use stillpoint_sync::{MutexGuard, mutant};

use crate::config::{Logging, Removes};
use crate::disk_pages::DiskPages;
use crate::error::{SirenError, SirenResult};
use crate::pages::{Copied, Frozen, Removed};
use crate::planted;
use crate::slab::Slot;
use crate::store::Store;
use crate::table::Table;

/// What the newest durable checkpoint has, and the file.
#[derive(Debug)]
pub(crate) struct OnDisk {
    pub(crate) pages: DiskPages,
    /// Extents of stored pages, by table and number of the page.
    pub(crate) extents: HashMap<(u16, u64), StoredExtent>,
    /// Extents without a page: pending removes, and the directory.
    pub(crate) others: Vec<StoredExtent>,
    pub(crate) directory: Option<StoredExtent>,
    /// Which header the newest checkpoint has.
    pub(crate) header_number: u64,
    pub(crate) first_segment: u64,
    /// Why no further checkpoint is taken.
    pub(crate) in_doubt: Option<String>,
}

/// What a checkpoint has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointDone {
    /// The checkpoint holds all operations up to this level.
    pub level: u64,
    /// Pages copied.
    pub pages: u64,
    /// Tuples in these pages.
    pub tuples: u64,
    /// Pages of pending removes.
    pub removes_pages: u64,
    /// Tuples in these.
    pub removes: u64,
    /// Bytes written: pages, directory and header.
    pub bytes: u64,
    /// Disk pages of the file afterwards.
    pub file_pages: u64,
}

/// How a step left a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There is more to copy.
    More,
    /// Everything is copied; [`finish`](Checkpoint::finish) it.
    Copied,
}

/// The table's pages that are still to be copied.
#[derive(Debug)]
struct TableWalk {
    table: Arc<Table>,
    dirty: std::vec::IntoIter<(Slot, u64)>,
    gone: Vec<u64>,
}

/// What happens to the page that the checkpoint is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Copy,
    MakePermanent,
    Rebalance,
}

/// The page that the checkpoint is at.
#[derive(Clone, Copy, Debug)]
struct Current {
    page: Slot,
    number: u64,
    stage: Stage,
}

/// A page that the checkpoint has copied.
#[derive(Debug)]
struct Written {
    table: Arc<Table>,
    page: Slot,
    number: u64,
    stored: StoredExtent,
}

/// A checkpoint under way. Dropped before it is finished, it is given up.
#[derive(Debug)]
pub struct Checkpoint<'s> {
    store: &'s Store,
    on_disk: MutexGuard<'s, OnDisk>,
    level: u64,
    next_transaction: u64,
    first_segment: u64,
    walks: Vec<TableWalk>,
    at: usize,
    current: Option<Current>,
    builder: PageBuilder,
    ring: Vec<(PageBuilder, StoredExtent)>,
    spare: Vec<PageBuilder>,
    written: Vec<Written>,
    removed: Vec<Removed>,
    removed_bytes: usize,
    removes: Vec<StoredExtent>,
    meter: Meter,
    done: CheckpointDone,
    is_over: bool,
}

impl<'s> Checkpoint<'s> {
    /// BEGIN-CHECKPOINT: changes the level, and waits for the operations of the old one.
    pub(crate) fn begin(store: &'s Store) -> SirenResult<Self> {
        let on_disk = store.on_disk.lock();
        if let Some(reason) = &on_disk.in_doubt {
            return Err(SirenError::InDoubt { reason: reason.clone() });
        }
        let first_segment = store.log.segment();
        // SeqCst: the grace period orders it after; pairs with the load in `Store::operate`.
        let level = store.level.fetch_add(1, SeqCst);
        mutant!(store.sections.wait_grace_period(), TakenBeforeSettled => ());
        store.log.checkpoint_began();
        let rotated = store.log.rotate();
        let tables: Vec<Arc<Table>> = store.tables.read().clone();
        let walks = tables.into_iter().map(|table| {
            let Frozen { dirty, gone } = table.pages.turn(|pages| pages.settle(level + 1));
            TableWalk { table, dirty: dirty.into_iter(), gone }
        });
        let mut checkpoint = Self {
            store,
            level,
            next_transaction: store.next_transaction.load(SeqCst),
            first_segment,
            walks: walks.collect(),
            at: 0,
            current: None,
            builder: PageBuilder::default(),
            ring: Vec::new(),
            spare: Vec::new(),
            written: Vec::new(),
            removed: Vec::new(),
            removed_bytes: 0,
            removes: Vec::new(),
            meter: Meter::new(store.config.pace, store.config.clock.clone()),
            done: CheckpointDone { level, ..CheckpointDone::default() },
            is_over: false,
            on_disk,
        };
        match rotated {
            Ok(()) => Ok(checkpoint),
            Err(error) => {
                checkpoint.give_up();
                Err(error)
            }
        }
    }

    /// The level: the checkpoint holds all operations up to it.
    pub fn level(&self) -> u64 {
        self.level
    }

    /// Copies the next tuple, or does as much. Writes buffers when the ring is full.
    ///
    /// # Errors
    /// The disk, and then the checkpoint is given up.
    pub fn step(&mut self) -> SirenResult<Progress> {
        let result = self.try_step();
        if result.is_err() {
            self.give_up();
        }
        result
    }

    fn try_step(&mut self) -> SirenResult<Progress> {
        let Some(current) = self.current else {
            self.take_removes(false)?;
            return self.next_page();
        };
        let Current { page, number, stage } = current;
        let (level, table) = (self.level, self.walks[self.at].table.clone());
        match stage {
            Stage::Copy => {
                let builder = &mut self.builder;
                let copied = table.pages.turn(|pages| pages.copy_next(page, level, builder));
                if copied == Copied::Whole {
                    self.queue_page(&table, page, number)?;
                    self.current = Some(Current { stage: Stage::MakePermanent, ..current });
                }
            }
            Stage::MakePermanent => {
                if !table.pages.turn(|pages| pages.make_permanent(page, level + 1)) {
                    self.current = Some(Current { stage: Stage::Rebalance, ..current });
                }
            }
            Stage::Rebalance => {
                if !table.pages.turn(|pages| pages.rebalance(page, number, level + 1)) {
                    self.current = None;
                }
            }
        }
        Ok(Progress::More)
    }

    /// Goes on with the next frozen page.
    fn next_page(&mut self) -> SirenResult<Progress> {
        while let Some(walk) = self.walks.get_mut(self.at) {
            let level = self.level;
            for (page, number) in walk.dirty.by_ref() {
                if walk.table.pages.turn(|pages| pages.begin_copy(page, number, level)) {
                    self.builder.clear();
                    self.current = Some(Current { page, number, stage: Stage::Copy });
                    return Ok(Progress::More);
                }
            }
            self.at += 1;
        }
        self.take_removes(true)?;
        self.write_ring()?;
        Ok(Progress::Copied)
    }

    /// Gives the copied page disk pages of its own, and queues its buffer.
    fn queue_page(&mut self, table: &Arc<Table>, page: Slot, number: u64) -> SirenResult<()> {
        let builder = std::mem::replace(&mut self.builder, self.spare.pop().unwrap_or_default());
        self.done.pages += 1;
        self.done.tuples += u64::from(builder.tuples());
        let id = table.id;
        let extent = self.on_disk.pages.take(builder.bytes())?;
        let stored =
            StoredExtent { extent, kind: ExtentKind::Tuples, table: id, level: self.level };
        mutant!(FreedBeforeHeader => {
            if let Some(old) = self.on_disk.extents.remove(&(id, number)) {
                self.on_disk.pages.give_back(old.extent);
            }
        });
        self.written.push(Written { table: table.clone(), page, number, stored });
        self.queue(builder, stored)
    }

    fn queue(&mut self, builder: PageBuilder, stored: StoredExtent) -> SirenResult<()> {
        self.ring.push((builder, stored));
        if self.ring.len() >= self.store.config.page_buffers.max(1) {
            self.write_ring()?;
        }
        Ok(())
    }

    /// Writes the queued buffers, with no latch held.
    fn write_ring(&mut self) -> SirenResult<()> {
        let on_disk = &*self.on_disk;
        let (header, file) = (&on_disk.pages.header, &on_disk.pages.file);
        for (mut builder, stored) in self.ring.drain(..) {
            let bytes = builder.seal(header.identity(), &stored, header.page_bytes);
            file.write_at(bytes, header.page_at(stored.extent.first))?;
            self.done.bytes += bytes.len() as u64;
            builder.clear();
            self.spare.push(builder);
        }
        let bytes = self.done.bytes;
        self.meter.wait(|| bytes, || false);
        Ok(())
    }

    /// FLUSH-PENDING-REMOVES: makes pages of the tuples that were removed from frozen pages. With
    /// `all`, also of those that fill no page.
    fn take_removes(&mut self, all: bool) -> SirenResult<()> {
        if self.store.config.removes != Removes::ToPages {
            return Ok(());
        }
        for walk in &self.walks {
            let taken = walk.table.pages.turn(|pages| pages.take_removed());
            let bytes = taken.iter().map(|removed| removed.image().bytes());
            self.removed_bytes += bytes.sum::<usize>();
            self.removed.extend(taken);
        }
        let page_bytes = self.on_disk.pages.header.page_bytes as usize;
        while !self.removed.is_empty() && (all || self.removed_bytes >= page_bytes) {
            let mut builder = self.spare.pop().unwrap_or_default();
            let (mut taken, mut bytes) = (0, 0);
            for removed in &self.removed {
                let image = removed.image();
                if taken > 0 && builder.bytes() + image.bytes() > page_bytes {
                    break;
                }
                builder.push(&image);
                bytes += image.bytes();
                taken += 1;
            }
            self.removed.drain(..taken);
            self.removed_bytes -= bytes;
            self.store.removes_bytes.fetch_sub(bytes, SeqCst);
            self.done.removes_pages += 1;
            self.done.removes += taken as u64;
            let extent = self.on_disk.pages.take(builder.bytes())?;
            let kind = ExtentKind::Removes;
            let stored = StoredExtent { extent, kind, table: 0, level: self.level };
            self.removes.push(stored);
            self.queue(builder, stored)?;
        }
        Ok(())
    }

    /// Makes the checkpoint durable: pages, directory, header. Then the old disk pages are free.
    ///
    /// # Errors
    /// The disk. The checkpoint is given up, or in doubt.
    pub fn finish(mut self) -> SirenResult<CheckpointDone> {
        while self.step()? == Progress::More {}
        let result = self.publish();
        if result.is_err() {
            self.give_up();
        }
        result
    }

    fn publish(&mut self) -> SirenResult<CheckpointDone> {
        let directory = self.directory();
        let (header, directory) = self.write_directory(&directory)?;
        let number = self.on_disk.header_number ^ 1;
        if let Err(error) = self.on_disk.pages.write_header(&header, number) {
            self.on_disk.in_doubt = Some(error.to_string());
            return Err(error.into());
        }
        self.is_over = true;
        self.replace_extents(directory);
        let on_disk = &mut *self.on_disk;
        on_disk.header_number = number;
        self.store.log.remove(on_disk.first_segment, header.first_segment);
        on_disk.first_segment = header.first_segment;
        self.done.file_pages = u64::from(on_disk.pages.len());
        Ok(self.done)
    }

    /// The pages of the checkpoint: those of the one before, but for those that are no more and
    /// those that were copied.
    fn directory(&self) -> Directory {
        let mut replaced: HashSet<(u16, u64)> = HashSet::new();
        for walk in &self.walks {
            replaced.extend(walk.gone.iter().map(|number| (walk.table.id, *number)));
        }
        replaced.extend(self.written.iter().map(|it| (it.table.id, it.number)));
        let kept = self.on_disk.extents.iter().filter(|(page, _)| !replaced.contains(page));
        let mut extents: Vec<StoredExtent> = kept.map(|(_, stored)| *stored).collect();
        extents.extend(self.written.iter().map(|written| written.stored));
        extents.extend(&self.removes);
        extents.sort_unstable_by_key(|stored| stored.extent);
        let table =
            |walk: &TableWalk| StoredTable { id: walk.table.id, name: walk.table.name.clone() };
        Directory { level: self.level, tables: self.walks.iter().map(table).collect(), extents }
    }

    /// Flushes the pages, and writes and flushes the directory.
    fn write_directory(
        &mut self,
        directory: &Directory,
    ) -> SirenResult<(CheckpointHeader, StoredExtent)> {
        let on_disk = &mut *self.on_disk;
        let identity = on_disk.pages.header.identity();
        let len = directory.encode(identity, 0).len();
        let extent = on_disk.pages.take(len)?;
        let stored =
            StoredExtent { extent, kind: ExtentKind::Removes, table: 0, level: self.level };
        self.removes.push(stored);
        let offset = on_disk.pages.header.page_at(extent.first);
        let bytes = directory.encode(identity, offset);
        let file = on_disk.pages.file.clone();
        file.write_at(&bytes, offset)?;
        mutant!(file.sync(), HeaderBeforePages => Ok(())).inspect_err(|error: &DiskError| {
            on_disk.in_doubt = Some(error.to_string());
        })?;
        self.done.bytes += len as u64 + 4096;
        let directory = self.removes.pop().expect("it was pushed");
        let header = CheckpointHeader {
            level: self.level,
            next_transaction: self.next_transaction,
            first_segment: self.first_segment,
            incarnation: self.store.log.incarnation(),
            is_logged: self.store.config.logging != Logging::None,
            is_fuzzy: self.store.config.removes == Removes::AtOnce,
            directory: extent,
            directory_bytes: len as u64,
        };
        Ok((header, directory))
    }

    /// The header is durable: frees what only the checkpoint before had.
    fn replace_extents(&mut self, directory: StoredExtent) {
        let on_disk = &mut *self.on_disk;
        let mut freed = std::mem::replace(&mut on_disk.others, std::mem::take(&mut self.removes));
        freed.extend(on_disk.directory.replace(directory));
        for walk in &self.walks {
            let gone = walk.gone.iter();
            freed.extend(
                gone.filter_map(|number| on_disk.extents.remove(&(walk.table.id, *number))),
            );
        }
        for written in self.written.drain(..) {
            let page = (written.table.id, written.number);
            freed.extend(on_disk.extents.insert(page, written.stored));
        }
        freed.into_iter().for_each(|stored| on_disk.pages.give_back(stored.extent));
    }

    /// Frees what was written, and marks as dirty again what was copied.
    fn give_up(&mut self) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        let (level, next) = (self.level, self.level + 1);
        if let Some(Current { page, number, .. }) = self.current.take() {
            unfreeze(&self.walks[self.at].table, page, number, level);
        }
        for walk in &mut self.walks {
            let gone = std::mem::take(&mut walk.gone);
            walk.table.pages.turn(|pages| pages.gone_again(gone, next));
            for (page, number) in walk.dirty.by_ref() {
                unfreeze(&walk.table, page, number, level);
            }
        }
        for Written { table, page, number, stored } in std::mem::take(&mut self.written) {
            mutant!(
                table.pages.turn(|pages| pages.dirty_again(page, number, next)),
                ForgetsWrittenPages => ()
            );
            self.on_disk.pages.give_back(stored.extent);
        }
        for stored in std::mem::take(&mut self.removes) {
            self.on_disk.pages.give_back(stored.extent);
        }
        self.walks.iter().for_each(|walk| drop(walk.table.pages.turn(|it| it.take_removed())));
        // No page is frozen any more, so nothing is added.
        self.store.removes_bytes.store(0, SeqCst);
    }
}

/// Makes everything permanent that is pending on a frozen page, which stays dirty.
fn unfreeze(table: &Table, page: Slot, number: u64, level: u64) {
    if !table.pages.turn(|pages| pages.begin_copy(page, number, level)) {
        return;
    }
    while table.pages.turn(|pages| pages.make_permanent(page, level + 1)) {}
    table.pages.turn(|pages| pages.dirty_again(page, number, level + 1));
    while table.pages.turn(|pages| pages.rebalance(page, number, level + 1)) {}
}

impl Drop for Checkpoint<'_> {
    fn drop(&mut self) {
        self.give_up();
    }
}
