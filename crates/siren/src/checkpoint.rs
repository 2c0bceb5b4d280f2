//! The checkpoint of a store: what [`Copier`] has written, and the header that publishes it.
//!
//! ```text
//! level n → n + 1 ─▶ segment of the log ends ─▶ copies ─▶ directory ─▶ header ─▶ flush
//!   ─▶ old disk pages and segments are free
//! ```
//! The header goes to the place that the newest durable checkpoint has not. Half-written, it leaves that
//! checkpoint in force. After an error of the header nobody knows what is durable, and no further
//! checkpoint is taken.

use stillpoint_format::siren::CheckpointHeader;
use stillpoint_sync::atomic::Ordering::SeqCst;

use crate::config::{Logging, Removes};
use crate::copier::{CheckpointDone, Copier, Progress};
use crate::error::SirenResult;
use crate::store::Store;

/// What the header of the newest durable checkpoint says.
#[derive(Debug)]
pub(crate) struct Published {
    /// Which header it is.
    pub(crate) header_number: u64,
    pub(crate) first_segment: u64,
}

/// A checkpoint under way. Dropped before it is finished, it is given up.
#[derive(Debug)]
pub struct Checkpoint<'s> {
    store: &'s Store,
    copier: Copier<'s>,
    next_transaction: u64,
    first_segment: u64,
}

impl<'s> Checkpoint<'s> {
    /// BEGIN-CHECKPOINT: changes the level, and waits for the operations of the old one.
    pub(crate) fn begin(store: &'s Store) -> SirenResult<Self> {
        let on_disk = store.base.lock_disk()?;
        let first_segment = store.log.segment();
        let level = store.base.change_level();
        store.log.checkpoint_began();
        let rotated = store.log.rotate();
        let copier = Copier::begin(&store.base, on_disk, level);
        let next_transaction = store.next_transaction.load(SeqCst);
        // If the log has failed, the drop gives the checkpoint up.
        let begun = Self { store, copier, next_transaction, first_segment };
        rotated.map(|()| begun)
    }

    /// The level: the checkpoint holds all operations up to it.
    pub fn level(&self) -> u64 {
        self.copier.level()
    }

    /// What the checkpoint has written so far, or is about to write.
    pub fn so_far(&self) -> CheckpointDone {
        self.copier.done
    }

    /// Copies the next tuple, or does as much. Writes buffers when the ring is full.
    ///
    /// # Errors
    /// The disk, and then the checkpoint is given up.
    pub fn step(&mut self) -> SirenResult<Progress> {
        self.copier.step()
    }

    /// Makes the checkpoint durable: pages, directory, header. Then the old disk pages are free.
    ///
    /// # Errors
    /// The disk. The checkpoint is given up, or in doubt.
    pub fn finish(self) -> SirenResult<CheckpointDone> {
        let Self { store, mut copier, next_transaction, first_segment } = self;
        let prepared = copier.prepare()?;
        let (directory, directory_bytes) = prepared.directory();
        let header = CheckpointHeader {
            level: copier.level(),
            next_transaction,
            first_segment,
            incarnation: store.log.incarnation(),
            is_logged: store.base.config.logging != Logging::None,
            is_fuzzy: store.base.config.removes == Removes::AtOnce,
            directory: directory.extent,
            directory_bytes,
        };
        let mut published = store.published.lock();
        let number = published.header_number ^ 1;
        let on_disk = &mut *copier.on_disk;
        if let Err(error) = on_disk.pages.write_header(&header, number) {
            on_disk.in_doubt = Some(error.to_string());
            prepared.give_up(&store.base, on_disk);
            return Err(error.into());
        }
        prepared.publish(&store.base, on_disk);
        published.header_number = number;
        store.log.remove(published.first_segment, first_segment);
        published.first_segment = first_segment;
        copier.done.file_pages = u64::from(copier.on_disk.pages.len());
        Ok(copier.done)
    }
}
