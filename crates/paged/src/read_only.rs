//! Pages of a store that is only read. What a replay changes lies in memory.
//!
//! `check` and `dump` bring the tables of a directory to the end of its logs, and change no file.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use stillpoint_format::Stamp;
use stillpoint_format::pages::{PageId, pages_map_path};
use stillpoint_mem::{Target, words};
use stillpoint_sync::Mutex;
use stillpoint_txn::TableId;

use crate::backing::{Backing, BackingError, DirtyFrames, NewPage, PendingRead, Purpose};
use crate::pages::{PageStore, PagesError};

/// A call that changes files came to pages that are only read.
#[derive(Debug, thiserror::Error)]
#[error("the pages are only read, and {0}")]
struct OnlyRead(&'static str);

/// The pages of a page store, and those that were written since, in memory.
pub(crate) struct ReadOnly {
    /// The pages of the state that the MANIFEST names. `None` if it names none yet.
    pages: Option<Arc<PageStore>>,
    page_bytes: usize,
    written: Mutex<HashMap<u64, Arc<[u8]>>>,
}

impl fmt::Debug for ReadOnly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadOnly").field("pages", &self.pages).finish_non_exhaustive()
    }
}

impl ReadOnly {
    pub(crate) fn over(pages: Option<Arc<PageStore>>, page_bytes: usize) -> Self {
        Self { pages, page_bytes, written: Mutex::default() }
    }
}

/// A page that has come from memory.
#[derive(Debug)]
struct Copied;

impl PendingRead for Copied {
    fn is_done(&self) -> bool {
        true
    }

    fn wait(&self) {}

    fn check(&self) -> Result<(), BackingError> {
        Ok(())
    }
}

impl Backing for ReadOnly {
    fn begin_read(
        &self,
        page: u64,
        table: Option<TableId>,
        target: Target,
    ) -> Result<Box<dyn PendingRead>, BackingError> {
        if let Some(bytes) = self.written.lock().get(&page) {
            words::write(target.words(), 0, bytes);
            return Ok(Box::new(Copied));
        }
        match &self.pages {
            Some(pages) => pages.begin_read(page, table, target),
            None => {
                let (file, page) = (pages_map_path().into(), PageId(page));
                Err(Arc::new(PagesError::NoSuchPage { file, page }))
            }
        }
    }

    fn submit(&self) {
        self.pages.iter().for_each(Backing::submit);
    }

    fn is_placed(&self, page: u64) -> bool {
        self.written.lock().contains_key(&page)
            || self.pages.as_ref().is_some_and(|pages| pages.is_placed(page))
    }

    fn allocate(&self) -> Result<NewPage, BackingError> {
        Err(Arc::new(OnlyRead("a page is to be added")))
    }

    fn free(&self, _: u64, _: Stamp) {}

    fn free_at_once(&self, _: &[u64], _: Stamp) {}

    fn note_used(&self, _: u64) {}

    fn write_back(
        &self,
        frames: &dyn DirtyFrames,
        candidates: &[u32],
        _: Purpose,
    ) -> Result<(), BackingError> {
        for &frame in candidates {
            if !frames.claim(frame) {
                continue;
            }
            let mut bytes = vec![0; self.page_bytes];
            if let Some(copied) = frames.copy(frame, &mut bytes) {
                self.written.lock().insert(copied.page, bytes.into());
                frames.placed(frame, copied.stamp.gsn());
            }
            frames.release(frame);
        }
        Ok(())
    }

    fn write_map(&self) -> Result<u64, BackingError> {
        Err(Arc::new(OnlyRead("a state of all pages is to be written")))
    }

    fn map_ended(&self, _: u64, _: bool) {}
}
