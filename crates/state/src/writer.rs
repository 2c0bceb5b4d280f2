//! The asynchronous writer turns captures into images, in two or three files in turn.
//!
//! ```text
//! void      header of the new image, trailer gone; flushed      the oldest image ceases to exist
//! blocks    one is filled while others are written
//! seal      flushed; trailer; flushed                           the new image begins to exist
//! ```
//!
//! The writer never touches the newest image. A writer that lays changes over the newest image on the
//! disk keeps the image before it, too. The newest may prove damaged while the writer reads it.
//! After such damage the next capture is whole and needs no image ([`Capture::base_is_lost`]).
//!
//! After any failure the writer removes the file under way, and the capture has failed. The writer does
//! not retry a failed flush.

use std::path::Path;
use std::sync::Arc;

use stillpoint_format::state::{
    BLOCK_HEADER_BYTES, BlockPlace, IMAGES, ImageHeader, ImageLayout, ImageTrailer, TRAILER_BYTES,
    open_block, seal_block,
};
use stillpoint_io::{
    AlignedBuf, Caching, DiskError, DiskFile, OpenMode, WriteBehind, thread_cpu_ns,
};
use stillpoint_sync::mutant;

use crate::capture::Capture;
use crate::config::{Config, Merge};
use crate::error::StateError;
use crate::files::{Files, Image};
use crate::planted;
use crate::progress::Progress;
use crate::scheme::{Content, Scheme};

/// Number of blocks that helper threads write at the same time.
pub(crate) const WRITES: usize = 2;

/// Turns captures into images.
#[derive(Debug)]
pub(crate) struct ImageWriter<S: Scheme> {
    files: Arc<Files>,
    progress: Arc<Progress>,
    merge: Merge,
    layout: ImageLayout,
    next_capture: u64,
    newest: Option<Image>,
    /// The image before the newest, if this process has seen it become durable.
    before: Option<Image>,
    /// True while captures of changes need the newest image. False for the first capture of a process,
    /// and after the newest image could not be read.
    has_base: bool,
    /// True if the newest image could not be read.
    base_is_lost: bool,
    /// For [`Merge::Copy`]: the bytes of every array.
    copy: Vec<AlignedBuf>,
    block: AlignedBuf,
    /// Writes blocks while the writer fills the next one. Without these threads the writer writes
    /// each block before it fills the next.
    behind: Option<WriteBehind>,
    under_way: Option<UnderWay<S>>,
}

#[derive(Debug)]
struct UnderWay<S: Scheme> {
    capture: Capture<S>,
    header: ImageHeader,
    started_ns: u64,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The writer has not touched the file yet.
    Void,
    /// The blocks are being written. `checksums` holds those of the blocks so far.
    Blocks { file: Arc<dyn DiskFile>, base: Option<Base>, checksums: Vec<u32> },
}

/// The image over which changes are laid.
#[derive(Debug)]
struct Base {
    image: Image,
    file: Arc<dyn DiskFile>,
}

/// The result of one step of the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advance {
    /// No capture is under way.
    Idle,
    /// The writer wrote a part of the image under way.
    Wrote {
        /// Bytes of the image written so far.
        bytes: u64,
    },
    /// The image is durable.
    Durable {
        /// The tick of the image.
        tick: u64,
    },
}

impl<S: Scheme> ImageWriter<S> {
    pub(crate) fn new(
        files: Arc<Files>,
        progress: Arc<Progress>,
        config: &Config,
        layout: ImageLayout,
        newest: Option<Image>,
        next_capture: u64,
    ) -> Self {
        Self {
            files,
            progress,
            merge: config.merge,
            layout,
            next_capture,
            newest,
            before: None,
            has_base: false,
            base_is_lost: false,
            copy: Vec::new(),
            block: AlignedBuf::new(),
            behind: None,
            under_way: None,
        }
    }

    /// Lets threads of their own write blocks.
    pub(crate) fn set_behind(&mut self, behind: WriteBehind) {
        self.behind = Some(behind);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.under_way.is_none()
    }

    /// Begins the image of a capture.
    pub(crate) fn begin(&mut self, capture: Capture<S>) {
        assert!(self.is_idle(), "captures come one after the other");
        let slot = self.free_slot();
        let header = ImageHeader {
            store: self.files.schema.store,
            created_ms: self.files.environment.clock.wall_ms(),
            capture: self.next_capture,
            tick: capture.tick(),
            schema: self.files.schema.checksum(),
            block_bytes: self.layout.block_bytes(),
            slot: slot as u32,
        };
        self.next_capture += 1;
        let started_ns = self.files.now_ns();
        Progress::set(&self.progress.blocks_done, 0);
        Progress::set(&self.progress.blocks_total, self.layout.blocks());
        self.under_way = Some(UnderWay { capture, header, started_ns, stage: Stage::Void });
    }

    /// True if the writer lays changes over the newest image on the disk.
    fn merges_from_disk(&self) -> bool {
        S::CONTENT == Content::Changes && self.merge == Merge::FromDisk
    }

    /// The file for the next image: the first one whose image nobody needs.
    fn free_slot(&self) -> usize {
        mutant!(OverwritesTheNewest => return 0);
        let keeps_two = mutant!(self.merges_from_disk(), OverwritesTheImageBefore => false);
        let before = self.before.as_ref().filter(|_| keeps_two);
        let is_needed = |slot| self.newest.iter().chain(before).any(|image| image.slot() == slot);
        (0..IMAGES).find(|&slot| !is_needed(slot)).expect("two of three files are needed at most")
    }

    /// Writes the next part of the image under way.
    ///
    /// # Errors
    /// Why the capture has ended. The writer is idle then, and the next capture holds all that this one
    /// should have held.
    pub(crate) fn advance(&mut self) -> Result<Advance, StateError> {
        let Some(mut under_way) = self.under_way.take() else {
            return Ok(Advance::Idle);
        };
        match self.go_on(&mut under_way) {
            Ok(Some(image)) => {
                let UnderWay { capture, started_ns, .. } = under_way;
                let tick = image.header.tick;
                let cost = capture.freeze_cost();
                Progress::set(&self.progress.fork_ns, cost.fork_ns);
                Progress::set(&self.progress.copied_bytes, cost.copied_bytes);
                self.publish(image, started_ns);
                // The end of the capture comes last. So a thread which sees that no capture is
                // under way finds the image in the progress.
                capture.durable();
                Ok(Advance::Durable { tick })
            }
            Ok(None) => {
                let bytes = self.bytes_so_far(&under_way);
                self.under_way = Some(under_way);
                Ok(Advance::Wrote { bytes })
            }
            Err(error) => {
                // Waits until no write of the file is under way. A second failure adds nothing to
                // the first.
                let _ = self.drain();
                // The rest of the file is not needed, and others may need the space.
                let _ =
                    self.files.disk().remove(&Files::image_path(under_way.header.slot as usize));
                self.progress.capture_failed(error.clone());
                if self.base_is_lost {
                    self.has_base = false;
                    under_way.capture.base_is_lost();
                }
                Err(error)
            }
        }
    }

    fn bytes_so_far(&self, under_way: &UnderWay<S>) -> u64 {
        match &under_way.stage {
            Stage::Void => 0,
            Stage::Blocks { checksums, .. } => {
                let next = self.layout.place(checksums.len() as u64);
                next.map_or(self.layout.trailer_at(), |place| place.offset)
            }
        }
    }

    /// Describes the image, once it is durable.
    fn go_on(&mut self, under_way: &mut UnderWay<S>) -> Result<Option<Image>, StateError> {
        match &mut under_way.stage {
            Stage::Void => {
                let base = self.open_base().inspect_err(|_| self.base_is_lost = true)?;
                let file = self.void(&under_way.header)?;
                under_way.capture.copy_over();
                let checksums = Vec::with_capacity(self.layout.blocks() as usize);
                under_way.stage = Stage::Blocks { file, base, checksums };
                Ok(None)
            }
            Stage::Blocks { file, base, checksums } => {
                if (checksums.len() as u64) < self.layout.blocks() {
                    let block = checksums.len() as u64;
                    let place = self.layout.place(block).expect("there are so many blocks");
                    self.fill_block(&under_way.capture, base.as_ref(), &place)?;
                    let identity = under_way.header.identity();
                    checksums.push(seal_block(identity, &place, &mut self.block));
                    self.write_block(file, place.offset)?;
                    Progress::add(&self.progress.written_bytes, place.len as u64);
                    let under_way = self.behind.as_ref().map_or(0, WriteBehind::under_way);
                    Progress::set(&self.progress.blocks_done, block + 1 - under_way as u64);
                    return Ok(None);
                }
                self.drain()?;
                Progress::set(&self.progress.blocks_done, self.layout.blocks());
                Ok(Some(self.seal(under_way.header, file, checksums)?))
            }
        }
    }

    fn write_block(&mut self, file: &Arc<dyn DiskFile>, offset: u64) -> Result<(), DiskError> {
        let Some(behind) = &self.behind else {
            return file.write_at(&self.block, offset);
        };
        self.block = behind.write(file, std::mem::take(&mut self.block), offset)?;
        Ok(())
    }

    /// Waits for the blocks that threads are writing.
    fn drain(&self) -> Result<(), DiskError> {
        self.behind.as_ref().map_or(Ok(()), WriteBehind::drain)
    }

    /// Opens or makes the file, and makes sure that no crash can leave an image in the file.
    fn void(&mut self, header: &ImageHeader) -> Result<Arc<dyn DiskFile>, StateError> {
        let slot = header.slot as usize;
        let (disk, path) = (self.files.disk(), Files::image_path(slot));
        let trailer_path = Files::image_trailer_path(slot);
        if disk.exists(&trailer_path)? {
            disk.remove(&trailer_path)?;
            disk.sync_dir(Path::new(""))?;
        }
        let file = match disk.open(&path, OpenMode::ReadWrite, Caching::Direct) {
            Err(error) if error.is_not_found() => {
                let file = disk.open(&path, OpenMode::CreateNew, Caching::Direct)?;
                disk.sync_dir(Path::new(""))?;
                file
            }
            opened => opened?,
        };
        mutant!(RemovesActionsTooEarly => self.files.remove_segments_up_to(header.tick)?);
        let file_bytes = self.layout.file_bytes();
        if file.len()? > file_bytes {
            file.set_len(file_bytes)?;
        }
        file.allocate(file_bytes)?;
        let mut page = AlignedBuf::zeroed(TRAILER_BYTES);
        file.write_at(&page, self.layout.trailer_at())?;
        page.copy_from_slice(&header.encode());
        file.write_at(&page, 0)?;
        file.sync()?;
        Ok(file)
    }

    /// Puts the cells of a block into `self.block`.
    fn fill_block(
        &mut self,
        capture: &Capture<S>,
        base: Option<&Base>,
        place: &BlockPlace,
    ) -> Result<(), StateError> {
        let array = place.array as usize;
        let cells = place.first_cell as usize..(place.first_cell + place.cells) as usize;
        self.block.resize(place.len, 0);
        let payload = BLOCK_HEADER_BYTES..BLOCK_HEADER_BYTES + place.payload_bytes;
        if S::CONTENT == Content::Changes && self.merge == Merge::Copy {
            self.make_copy(capture);
            let first = cells.start * capture.info(array).cell_bytes;
            let copy = &mut self.copy[array][first..first + place.payload_bytes];
            capture.write_to_stable_storage(array, cells, copy)?;
            self.block[payload.clone()].copy_from_slice(copy);
        } else {
            if let Some(base) = base {
                self.read_base(base, place).inspect_err(|_| self.base_is_lost = true)?;
            }
            let room = &mut self.block[payload.clone()];
            capture.write_to_stable_storage(array, cells, room)?;
        }
        self.block[payload.end..].fill(0);
        Ok(())
    }

    /// Makes room for the copy of the state. The first image will fill all of the copy.
    fn make_copy(&mut self, capture: &Capture<S>) {
        if self.copy.is_empty() {
            let bytes = |info: &crate::ArrayInfo| AlignedBuf::zeroed(info.bytes() as usize);
            self.copy = capture.infos().map(bytes).collect();
        }
    }

    /// The image over which this capture's changes are laid, if that image lies on the disk.
    fn open_base(&self) -> Result<Option<Base>, DiskError> {
        let is_merged = self.merges_from_disk() && self.has_base;
        let Some(image) = self.newest.as_ref().filter(|_| is_merged) else {
            return Ok(None);
        };
        let path = Files::image_path(image.slot());
        let file = self.files.disk().open(&path, OpenMode::Read, Caching::Direct)?;
        Ok(Some(Base { image: image.clone(), file }))
    }

    /// Puts a block of the base into `self.block` and verifies the block.
    fn read_base(&mut self, base: &Base, place: &BlockPlace) -> Result<(), StateError> {
        let read = base.file.read_at(&mut self.block, place.offset)?;
        mutant!(MergesUnverified => return Ok(()));
        let opened = open_block(base.image.header.identity(), place, &self.block[..read]);
        opened.map(drop).map_err(|source| StateError::Damaged {
            path: base.file.path().to_owned(),
            source,
            cure: "check the disk; the next image is written whole from memory",
        })
    }

    fn seal(
        &self,
        header: ImageHeader,
        file: &Arc<dyn DiskFile>,
        checksums: &[u32],
    ) -> Result<Image, DiskError> {
        let trailer = ImageTrailer {
            capture: header.capture,
            tick: header.tick,
            blocks: self.layout.blocks(),
            chain: ImageTrailer::chain_of(checksums),
        };
        let image = Image { header, layout: self.layout.clone(), trailer };
        let mut page = AlignedBuf::new();
        page.extend_from_slice(&image.encoded_trailer());
        mutant!(file.sync()?, TrailerBeforeFlush => ());
        file.write_at(&page, self.layout.trailer_at())?;
        file.sync()?;
        Ok(image)
    }

    /// Makes a durable image known. Removes the actions that neither this image nor the one before
    /// needs.
    fn publish(&mut self, image: Image, started_ns: u64) {
        let progress = &self.progress;
        progress.image_is_durable(image.header.tick);
        Progress::set(&progress.image_ns, self.files.now_ns().saturating_sub(started_ns));
        Progress::set(&progress.writer_cpu_ns, thread_cpu_ns());
        let replaced = self.newest.replace(image);
        if !std::mem::take(&mut self.base_is_lost) {
            self.before = replaced;
        }
        self.has_base = true;
        // If the new image proves damaged one day, the image before it and the actions since lead to
        // the same state. Without an image before it all actions stay. After a failure to remove
        // segments more than needed stays, and the next image tries again.
        if let Some(before) = &self.before {
            let _ = self.files.remove_segments_up_to(before.header.tick);
        }
        if !self.merges_from_disk() {
            let _ = self.remove_images_not_needed();
        }
    }

    /// Removes the third file, which only a merge from the disk needs.
    fn remove_images_not_needed(&self) -> Result<(), DiskError> {
        let kept = || self.newest.iter().chain(&self.before);
        for slot in IMAGES - 1..IMAGES {
            if kept().all(|image| image.slot() != slot) {
                self.files.disk().remove(&Files::image_path(slot))?;
            }
        }
        Ok(())
    }
}
