//! The page store as the pool sees it.

use std::sync::Arc;

use stillpoint_format::Stamp;
use stillpoint_format::pages::PageId;
use stillpoint_mem::Target;
use stillpoint_txn::TableId;

use super::error::PagesError;
use super::read::PageRead;
use super::store::PageStore;
use crate::backing::{
    Backing, BackingError, DirtyFrames, NewPage, OnFailure, PendingRead, Purpose,
};

impl PendingRead for PageRead {
    fn is_done(&self) -> bool {
        if !self.transfer.has_ended() {
            self.store.queue.poll();
        }
        self.transfer.has_ended()
    }

    fn wait(&self) {
        self.store.queue.wait(&self.transfer);
    }

    fn check(&self) -> Result<(), BackingError> {
        self.check_page().map_err(shared)
    }
}

impl Backing for Arc<PageStore> {
    fn begin_read(
        &self,
        page: u64,
        table: Option<TableId>,
        target: Target,
    ) -> Result<Box<dyn PendingRead>, BackingError> {
        let mut read = self.read(PageId(page), target).map_err(shared)?;
        read.table = table.map(|table| table.0);
        Ok(Box::new(read))
    }

    fn submit(&self) {
        self.queue.submit();
    }

    fn is_placed(&self, page: u64) -> bool {
        self.map.entry(PageId(page)).is_some()
    }

    fn allocate(&self) -> Result<NewPage, BackingError> {
        self.allocate_page().map_err(shared)
    }

    fn has_room_for_change(&self) -> bool {
        self.has_reserve()
    }

    fn admit_change(&self) -> Result<(), BackingError> {
        self.have_reserve().map_err(shared)
    }

    fn free(&self, page: u64, stamp: Stamp) {
        self.free_page(PageId(page), stamp);
    }

    fn free_at_once(&self, pages: &[u64], stamp: Stamp) {
        self.free_pages(pages, stamp);
    }

    fn note_used(&self, page: u64) {
        self.take_page(PageId(page));
    }

    fn write_back(
        &self,
        frames: &dyn DirtyFrames,
        candidates: &[u32],
        purpose: Purpose,
    ) -> Result<(), BackingError> {
        self.write_frames(frames, candidates, purpose).map(drop).map_err(shared)
    }

    fn write_map(&self) -> Result<u64, BackingError> {
        self.write_round().map_err(shared)
    }

    fn map_ended(&self, number: u64, counts: bool) {
        // A failure is final, and was told.
        if let Err(error) = self.round_ended(number, counts) {
            debug_assert!(self.check_alive().is_err(), "{error}");
        }
    }

    fn on_failure(&self, tell: OnFailure) {
        PageStore::on_failure(self, tell);
    }
}

fn shared(error: PagesError) -> BackingError {
    Arc::new(error)
}
