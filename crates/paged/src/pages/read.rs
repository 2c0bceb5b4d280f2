//! Reads of pages, and the check of what the device has brought.

use std::sync::Arc;

use stillpoint_format::node::NODE_HEADER_BYTES;
use stillpoint_format::pages::{MapEntry, PageChecksum, PageHeader, PageId};
use stillpoint_format::{DecodeCause, DecodeError};
use stillpoint_io::Transfer;
use stillpoint_mem::{Frames, Target, words};
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};
use stillpoint_sync::mutant;

use super::error::PagesError;
use super::planted;
use super::store::PageStore;

/// Bytes that the check copies at a time.
const PIECE_BYTES: usize = 512;

/// A read of a page on its way into a frame.
#[derive(Debug)]
pub struct PageRead {
    pub(super) store: Arc<PageStore>,
    page: PageId,
    /// The table, as far as the reader knows it.
    pub(super) table: Option<u16>,
    entry: MapEntry,
    target: Target,
    pub(super) transfer: Transfer,
}

impl PageStore {
    /// Queues the read of a page into a frame that nobody else uses.
    ///
    /// # Errors
    /// [`PagesError::NoSuchPage`].
    pub fn read(self: &Arc<Self>, page: PageId, target: Target) -> Result<PageRead, PagesError> {
        assert_eq!(target.bytes(), self.config.page_bytes, "a frame has the size of a page");
        let Some(entry) = self.map.entry(page) else {
            return Err(self.no_such_page(page));
        };
        let offset = entry.slot * self.config.page_bytes as u64;
        let transfer = self.queue.read(&self.data, target.clone(), offset);
        // Relaxed: a count.
        self.reads.fetch_add(1, Relaxed);
        Ok(PageRead { store: self.clone(), page, table: None, entry, target, transfer })
    }

    /// Numbers of all pages that have a slot.
    pub fn placed(&self) -> impl Iterator<Item = u64> {
        self.map.pages().map(|(page, _)| page.0)
    }

    /// The error of a page that has no slot.
    pub(crate) fn no_such_page(&self, page: PageId) -> PagesError {
        PagesError::NoSuchPage { file: self.map_path.clone(), page }
    }

    /// Reads and checks every page that has a slot, and tells each defect, also those of map blocks
    /// whose other copy is whole. `inspect` checks the words of a whole page. Returns the number of
    /// pages.
    ///
    /// # Errors
    /// No memory for a frame.
    pub fn check_pages(
        self: &Arc<Self>,
        inspect: impl Fn(&[AtomicU64]) -> Result<(), DecodeError>,
        mut tell: impl FnMut(PagesError),
    ) -> Result<u64, PagesError> {
        const AT_ONCE: usize = 64;
        for cause in &self.unused_copies {
            tell(PagesError::MapCopy { file: self.map_path.clone(), cause: cause.clone() });
        }
        let frames = Frames::new(AT_ONCE, self.config.page_bytes)?;
        let mut count = 0;
        let mut pages = self.map.pages();
        loop {
            let batch: Vec<(PageId, MapEntry)> = pages.by_ref().take(AT_ONCE).collect();
            if batch.is_empty() {
                return Ok(count);
            }
            count += batch.len() as u64;
            let reads: Vec<_> = (batch.iter().enumerate())
                .map(|(frame, (page, _))| self.read(*page, frames.target(frame)))
                .collect();
            self.queue.submit();
            for read in reads {
                let checked = read.and_then(|read| {
                    self.queue.wait(&read.transfer);
                    read.check_page()?;
                    let words = read.target.words();
                    inspect(words).map_err(|cause| read.defect(&read.header(words), cause))
                });
                checked.unwrap_or_else(&mut tell);
            }
        }
    }
}

impl PageRead {
    /// Checks the page in the frame, after the end of the read. The frame is then as in memory: its
    /// checksum is zero.
    ///
    /// # Errors
    /// The device's, or [`PagesError::Page`].
    pub fn check_page(&self) -> Result<(), PagesError> {
        let Some(ended) = self.transfer.take() else { panic!("the read has not ended") };
        let found = ended.result?;
        let words = self.target.words();
        let header = self.header(words);
        let page_bytes = self.store.config.page_bytes;
        let checked = if found < page_bytes {
            let (needed, available) = (page_bytes as u64, found as u64);
            Err(DecodeError {
                what: "page",
                offset: 0,
                cause: DecodeCause::Truncated { needed, available },
            })
        } else {
            let entry = mutant!(self.entry, StaleNotSeen => MapEntry::new(0, header.gsn));
            header.expect(self.page, entry, self.checksum(words))
        };
        checked.map_err(|cause| self.defect(&header, cause))?;
        // Relaxed: nobody else uses the frame yet.
        words[0].store(words[0].load(Relaxed) >> 32 << 32, Relaxed);
        Ok(())
    }

    fn defect(&self, header: &PageHeader, cause: DecodeError) -> PagesError {
        PagesError::Page {
            file: self.store.data.path().to_owned(),
            slot: self.entry.slot,
            page: self.page,
            table: self.table.or((header.page == self.page).then_some(header.table)),
            cause,
        }
    }

    fn header(&self, words: &[AtomicU64]) -> PageHeader {
        let mut header = [0; NODE_HEADER_BYTES / 8];
        for (out, word) in header.iter_mut().zip(words) {
            // Relaxed: the end of the transfer has ordered the device's writes.
            *out = word.load(Relaxed);
        }
        PageHeader::unpack(&header)
    }

    fn checksum(&self, all: &[AtomicU64]) -> u32 {
        let mut checksum = PageChecksum::new(self.store.config.store, self.page);
        let mut piece = [0; PIECE_BYTES];
        for part in all.chunks(PIECE_BYTES / 8) {
            let bytes = &mut piece[..part.len() * 8];
            words::read_into(part, 0, bytes);
            checksum.add(bytes);
        }
        checksum.value()
    }
}
