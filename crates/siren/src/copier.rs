//! The copying of a checkpoint (SIREN, ICDE 2006, §3): MAKE-CHECKPOINT in steps, each of which holds the
//! latch of a table for the copy of one tuple at most.
//!
//! ```text
//! level n → n + 1 ─▶ grace period ─▶ dirty lists of level n
//!   each page: copy tuple by tuple ─▶ ring of buffers ─▶ new disk pages
//!              pending operations made permanent, one by one ─▶ split, join
//!   ─▶ directory ─▶ flush ─▶ [published by the owner] ─▶ old disk pages are free
//! ```
//! 1. The checkpoint of level n holds exactly the operations of levels up to n. An operation reads
//!    the level inside its read section, and so does the append of its record. All operations of level
//!    n have ended when the grace period has.
//! 2. New disk pages are those that no published checkpoint names. The old ones become free when the
//!    new checkpoint is published, and not before. Then a long free end of the file is cut off.
//! 3. A checkpoint that is given up marks as dirty again what it has copied, so the next one holds
//!    it. After an error of a flush nobody knows what is durable: no further checkpoint is taken.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use stillpoint_format::siren::{
    Directory, Extent, ExtentKind, PageBuilder, StoredExtent, StoredTable,
};
use stillpoint_io::{DiskError, Meter};
use stillpoint_sync::atomic::Ordering::{Relaxed, SeqCst};
use stillpoint_sync::{MutexGuard, mutant};

use crate::base::Base;
use crate::config::Removes;
use crate::disk_pages::DiskPages;
use crate::error::SirenResult;
use crate::pages::{Copied, Frozen, Removed, Split};
use crate::planted;
use crate::slab::Slot;
use crate::table::Table;

/// What the newest published checkpoint has, and the file.
#[derive(Debug)]
pub(crate) struct OnDisk {
    pub(crate) pages: DiskPages,
    /// Extents of stored pages, by table and number of the page.
    pub(crate) extents: HashMap<(u16, u64), StoredExtent>,
    /// Extents without a page: pending removes.
    pub(crate) others: Vec<StoredExtent>,
    pub(crate) directory: Option<StoredExtent>,
    /// Why no further checkpoint is taken.
    pub(crate) in_doubt: Option<String>,
}

impl OnDisk {
    /// A file without a checkpoint.
    pub(crate) fn empty(pages: DiskPages) -> Self {
        Self { pages, extents: HashMap::new(), others: Vec::new(), directory: None, in_doubt: None }
    }

    /// A file, with its newest checkpoint. The extents of pages are known once they are loaded.
    pub(crate) fn of(pages: DiskPages, directory: &Directory, at: Extent) -> Self {
        let removes = directory.extents.iter().filter(|it| it.kind == ExtentKind::Removes);
        let (kind, level) = (ExtentKind::Removes, directory.level);
        Self {
            others: removes.copied().collect(),
            directory: Some(StoredExtent { extent: at, kind, table: 0, level }),
            ..Self::empty(pages)
        }
    }
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
    /// Everything is copied; [`finish`](crate::Checkpoint::finish) it.
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
    /// A split of the page that is under way.
    split: Option<Split>,
}

/// A page that the checkpoint has copied.
#[derive(Debug)]
struct Written {
    table: Arc<Table>,
    page: Slot,
    number: u64,
    stored: StoredExtent,
}

/// A checkpoint whose pages and directory are durable, and that is not published yet.
#[derive(Debug)]
pub(crate) struct Prepared {
    level: u64,
    /// Numbers of the pages of each table that are no more.
    gone: Vec<(Arc<Table>, Vec<u64>)>,
    written: Vec<Written>,
    removes: Vec<StoredExtent>,
    /// Place of the directory. `None` of a checkpoint that is given up.
    directory: Option<StoredExtent>,
    directory_bytes: u64,
}

/// A checkpoint whose pages are being copied. Dropped before it is prepared, it is given up.
#[derive(Debug)]
pub(crate) struct Copier<'b> {
    base: &'b Base,
    pub(crate) on_disk: MutexGuard<'b, OnDisk>,
    level: u64,
    walks: Vec<TableWalk>,
    at: usize,
    current: Option<Current>,
    builder: PageBuilder,
    ring: Vec<(PageBuilder, StoredExtent)>,
    /// Bytes of the buffers in the ring.
    ring_bytes: usize,
    spare: Vec<PageBuilder>,
    written: Vec<Written>,
    removed: Vec<Removed>,
    removed_bytes: usize,
    removes: Vec<StoredExtent>,
    meter: Meter,
    pub(crate) done: CheckpointDone,
    is_over: bool,
}

impl<'b> Copier<'b> {
    /// Begins to copy what a checkpoint concerns. All operations of its level have ended.
    pub(crate) fn begin(base: &'b Base, on_disk: MutexGuard<'b, OnDisk>, level: u64) -> Self {
        let tables: Vec<Arc<Table>> = base.tables.read().clone();
        let walks = tables.into_iter().map(|table| {
            let Frozen { dirty, gone } = table.pages.turn(|pages| pages.settle(level + 1));
            TableWalk { table, dirty: dirty.into_iter(), gone }
        });
        Self {
            base,
            level,
            walks: walks.collect(),
            at: 0,
            current: None,
            builder: PageBuilder::default(),
            ring: Vec::new(),
            ring_bytes: 0,
            spare: Vec::new(),
            written: Vec::new(),
            removed: Vec::new(),
            removed_bytes: 0,
            removes: Vec::new(),
            meter: Meter::new(base.config.pace, base.config.clock.clone()),
            done: CheckpointDone { level, ..CheckpointDone::default() },
            is_over: false,
            on_disk,
        }
    }

    /// The level: the checkpoint holds all operations up to it.
    pub(crate) fn level(&self) -> u64 {
        self.level
    }

    /// Numbers of the tables that the checkpoint concerns.
    pub(crate) fn tables(&self) -> impl Iterator<Item = u16> + '_ {
        self.walks.iter().map(|walk| walk.table.id)
    }

    /// Copies the next tuple, or does as much. Writes buffers when the ring is full.
    ///
    /// # Errors
    /// The disk, and then the checkpoint is given up.
    pub(crate) fn step(&mut self) -> SirenResult<Progress> {
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
        let Current { page, number, stage, mut split } = current;
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
                let goes_on = table
                    .pages
                    .turn(|pages| pages.rebalance((page, number), level + 1, &mut split));
                self.current = goes_on.then_some(Current { split, ..current });
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
                    self.current = Some(Current { page, number, stage: Stage::Copy, split: None });
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
        self.ring_bytes += builder.bytes();
        self.ring.push((builder, stored));
        // A tuple may be larger than a page, and then so is its buffer.
        let page_bytes = self.on_disk.pages.header.page_bytes as usize;
        if self.ring_bytes >= self.base.config.page_buffers.max(1) * page_bytes
            || self.ring.len() >= self.base.config.page_buffers.max(1)
        {
            self.write_ring()?;
        }
        Ok(())
    }

    /// Writes the queued buffers, with no latch held.
    fn write_ring(&mut self) -> SirenResult<()> {
        let on_disk = &*self.on_disk;
        let (header, file) = (&on_disk.pages.header, on_disk.pages.file());
        for (mut builder, stored) in self.ring.drain(..) {
            let bytes = builder.seal(header.identity(), &stored, header.page_bytes);
            file.write_at(bytes, header.page_at(stored.extent.first))?;
            self.done.bytes += bytes.len() as u64;
            let is_usual = bytes.len() == header.page_bytes as usize;
            builder.clear();
            self.spare.extend(is_usual.then_some(builder));
        }
        self.ring_bytes = 0;
        let (bytes, base) = (self.done.bytes, self.base);
        // Relaxed: a wish, which orders nothing.
        self.meter.wait(|| bytes, || base.hurries.load(Relaxed));
        Ok(())
    }

    /// FLUSH-PENDING-REMOVES: makes pages of the tuples that were removed from frozen pages. With
    /// `all`, also of those that fill no page.
    fn take_removes(&mut self, all: bool) -> SirenResult<()> {
        if self.base.config.removes != Removes::ToPages {
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
            self.base.held.removes.fetch_sub(bytes, SeqCst);
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

    /// Copies what is left, and makes pages and directory durable. Returns the place of the directory
    /// and its bytes, too.
    ///
    /// # Errors
    /// The disk, and then the checkpoint is given up.
    pub(crate) fn prepare(&mut self) -> SirenResult<Prepared> {
        while self.step()? == Progress::More {}
        match self.write_directory() {
            Ok((directory, directory_bytes)) => {
                self.is_over = true;
                let prepared = self.take_prepared();
                Ok(Prepared { directory: Some(directory), directory_bytes, ..prepared })
            }
            Err(error) => {
                self.give_up();
                Err(error)
            }
        }
    }

    /// Takes over what the checkpoint has written, without a directory.
    fn take_prepared(&mut self) -> Prepared {
        let take = |walk: &mut TableWalk| (walk.table.clone(), std::mem::take(&mut walk.gone));
        Prepared {
            level: self.level,
            gone: self.walks.iter_mut().map(take).collect(),
            written: std::mem::take(&mut self.written),
            removes: std::mem::take(&mut self.removes),
            directory: None,
            directory_bytes: 0,
        }
    }

    /// The pages of the checkpoint: those that it has copied, and the others of the one before. Pages that
    /// are no more and those of emptied tables are not among them.
    fn directory(&self) -> Directory {
        let current = self.base.current_numbers();
        let is_current = |&(table, number): &(u16, u64)| current.is_current(table, number);
        let mut replaced: HashSet<(u16, u64)> = HashSet::new();
        for walk in &self.walks {
            replaced.extend(walk.gone.iter().map(|number| (walk.table.id, *number)));
        }
        let written = || self.written.iter().map(|it| ((it.table.id, it.number), it.stored));
        replaced.extend(written().map(|(page, _)| page));
        let stored = self.on_disk.extents.iter().map(|(page, stored)| (*page, *stored));
        let kept = stored.filter(|(page, _)| !replaced.contains(page));
        let all = kept.chain(written()).filter(|(page, _)| is_current(page));
        let mut extents: Vec<StoredExtent> = all.map(|(_, stored)| stored).collect();
        extents.extend(&self.removes);
        extents.sort_unstable_by_key(|stored| stored.extent);
        let table =
            |walk: &TableWalk| StoredTable { id: walk.table.id, name: walk.table.name.clone() };
        Directory { level: self.level, tables: self.walks.iter().map(table).collect(), extents }
    }

    /// Writes the directory and flushes all. Returns the directory's place and bytes.
    fn write_directory(&mut self) -> SirenResult<(StoredExtent, u64)> {
        let directory = self.directory();
        let on_disk = &mut *self.on_disk;
        let identity = on_disk.pages.header.identity();
        let len = directory.encode(identity, 0).len();
        let extent = on_disk.pages.take(len)?;
        let stored =
            StoredExtent { extent, kind: ExtentKind::Removes, table: 0, level: self.level };
        self.removes.push(stored);
        let offset = on_disk.pages.header.page_at(extent.first);
        let bytes = directory.encode(identity, offset);
        let file = on_disk.pages.file().clone();
        // Until it is flushed, the directory is one of the extents that a failure frees.
        file.write_at(&bytes, offset)?;
        mutant!(file.sync(), HeaderBeforePages => Ok(())).inspect_err(|error: &DiskError| {
            on_disk.in_doubt = Some(error.to_string());
        })?;
        self.done.bytes += len as u64 + 4096;
        self.removes.pop();
        Ok((stored, len as u64))
    }

    /// Frees what was written, and marks as dirty again what was copied.
    pub(crate) fn give_up(&mut self) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        let level = self.level;
        if let Some(Current { page, number, .. }) = self.current.take() {
            unfreeze(&self.walks[self.at].table, page, number, level);
        }
        for walk in &mut self.walks {
            for (page, number) in walk.dirty.by_ref() {
                unfreeze(&walk.table, page, number, level);
            }
        }
        self.take_prepared().give_up(self.base, &mut self.on_disk);
    }
}

impl Drop for Copier<'_> {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl Prepared {
    /// Place of the directory.
    ///
    /// # Panics
    /// If the checkpoint was given up.
    pub(crate) fn directory(&self) -> (StoredExtent, u64) {
        (self.directory.expect("a prepared checkpoint has its directory"), self.directory_bytes)
    }

    /// The checkpoint is published: frees what only the checkpoint before had.
    pub(crate) fn publish(self, base: &Base, on_disk: &mut OnDisk) {
        let mut freed = std::mem::replace(&mut on_disk.others, self.removes);
        freed.extend(std::mem::replace(&mut on_disk.directory, self.directory));
        for (table, gone) in &self.gone {
            let of_table = gone.iter().map(|number| (table.id, *number));
            freed.extend(of_table.filter_map(|page| on_disk.extents.remove(&page)));
        }
        for written in self.written {
            let page = (written.table.id, written.number);
            freed.extend(on_disk.extents.insert(page, written.stored));
        }
        let current = base.current_numbers();
        on_disk.extents.retain(|&(table, number), stored| {
            let is_current = current.is_current(table, number);
            if !is_current {
                freed.push(*stored);
            }
            is_current
        });
        freed.into_iter().for_each(|stored| on_disk.pages.give_back(stored.extent));
        on_disk.pages.cut();
    }

    /// The checkpoint is not published: frees its extents, and marks as dirty again what it has copied.
    pub(crate) fn give_up(self, base: &Base, on_disk: &mut OnDisk) {
        let next = self.level + 1;
        for (table, gone) in self.gone {
            let removed = table.pages.turn(|pages| {
                pages.gone_again(gone, next);
                pages.take_removed()
            });
            // Nobody waits for the latch while they are freed.
            drop(removed);
        }
        for Written { table, page, number, stored } in self.written {
            mutant!(
                table.pages.turn(|pages| pages.dirty_again(page, number, next)),
                ForgetsWrittenPages => ()
            );
            on_disk.pages.give_back(stored.extent);
        }
        for stored in self.removes.into_iter().chain(self.directory) {
            on_disk.pages.give_back(stored.extent);
        }
        // No page is frozen any more, so nothing is added.
        base.held.removes.store(0, SeqCst);
    }
}

/// Makes everything permanent that is pending on a frozen page, which stays dirty.
fn unfreeze(table: &Table, page: Slot, number: u64, level: u64) {
    if !table.pages.turn(|pages| pages.begin_copy(page, number, level)) {
        return;
    }
    while table.pages.turn(|pages| pages.make_permanent(page, level + 1)) {}
    table.pages.turn(|pages| pages.dirty_again(page, number, level + 1));
    let mut split = None;
    while table.pages.turn(|pages| pages.rebalance((page, number), level + 1, &mut split)) {}
}

/// For each table, the greatest number that its pages had before the table was emptied.
pub(crate) struct CurrentNumbers(HashMap<u16, u64>);

impl CurrentNumbers {
    /// Whether the page belongs to the present generation of its table.
    fn is_current(&self, table: u16, number: u64) -> bool {
        self.0.get(&table).is_some_and(|&before| number > before)
    }
}

impl Base {
    fn current_numbers(&self) -> CurrentNumbers {
        let tables = self.tables.read();
        CurrentNumbers(tables.iter().map(|table| (table.id, table.numbers_before)).collect())
    }
}
