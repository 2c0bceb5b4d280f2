//! The file of disk pages: free pages, extents, and the two headers (shadow paging, §3.2).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stillpoint_format::ident::{HEADER_BYTES, StoreId};
use stillpoint_format::names;
use stillpoint_format::siren::{
    CHECKPOINT_HEADER_BYTES, CHECKPOINT_HEADERS, CheckpointHeader, Directory, Extent, ExtentKind,
    PagesHeader, StoredExtent, StoredPage, TupleImage,
};
use stillpoint_io::{Caching, Disk, DiskFile, DiskResult, OpenMode, write_file_durably};

use crate::error::{SirenError, SirenResult};

/// Shortest file whose free end is cut off, in bytes.
const CUT_MIN_BYTES: u64 = 1 << 20;

/// The file of pages.
#[derive(Debug)]
pub(crate) struct DiskPages {
    /// `None` until the first checkpoint of a kind of table makes the file.
    file: Option<Arc<dyn DiskFile>>,
    pub(crate) header: PagesHeader,
    free: FreePages,
}

/// The disk pages that no durable checkpoint needs.
#[derive(Debug)]
struct FreePages {
    /// Length of each free run, by its first page.
    runs: BTreeMap<u32, u32>,
    /// All pages from here on are free.
    end: u32,
}

impl FreePages {
    fn take(&mut self, pages: u32) -> Option<Extent> {
        let fits = self.runs.iter().find(|(_, len)| **len >= pages);
        let Some((&first, &len)) = fits else {
            let first = self.end;
            self.end = first.checked_add(pages)?;
            return Some(Extent { first, pages });
        };
        self.runs.remove(&first);
        if len > pages {
            self.runs.insert(first + pages, len - pages);
        }
        Some(Extent { first, pages })
    }

    fn give_back(&mut self, extent: Extent) {
        let Extent { mut first, mut pages } = extent;
        if let Some((&before, &len)) = self.runs.range(..first).next_back()
            && before + len == first
        {
            self.runs.remove(&before);
            (first, pages) = (before, len + pages);
        }
        if let Some(len) = self.runs.remove(&(first + pages)) {
            pages += len;
        }
        if first + pages == self.end {
            self.end = first;
        } else {
            self.runs.insert(first, pages);
        }
    }
}

/// The newest checkpoint of a file.
#[derive(Debug)]
pub(crate) struct Newest {
    pub(crate) header: CheckpointHeader,
    /// Which of the two headers it is.
    pub(crate) number: u64,
    pub(crate) directory: Directory,
}

impl DiskPages {
    fn path() -> &'static Path {
        Path::new(names::SIREN_PAGES)
    }

    /// The file.
    ///
    /// # Panics
    /// If it was not made yet.
    pub(crate) fn file(&self) -> &Arc<dyn DiskFile> {
        self.file.as_ref().expect("a checkpoint makes the file before it uses it")
    }

    /// Pages of a file that is made by the first checkpoint, in a store of the engine.
    pub(crate) fn absent(store: StoreId, created_ms: u64, page_bytes: u32) -> Self {
        let header = PagesHeader { store, created_ms, page_bytes };
        let free = FreePages { runs: BTreeMap::new(), end: header.first_page() };
        Self { file: None, header, free }
    }

    /// Makes the file if there is none. A file that is there was never named by a MANIFEST.
    pub(crate) fn make(&mut self, disk: &dyn Disk) -> SirenResult<()> {
        if self.file.is_some() {
            return Ok(());
        }
        disk.create_dir_all(names::SIREN_DIR.as_ref())?;
        disk.sync_dir(Path::new(""))?;
        let mut bytes = self.header.encode().to_vec();
        bytes.resize(self.header.page_at(self.header.first_page()) as usize, 0);
        write_file_durably(disk, Self::path(), &bytes)?;
        self.file = Some(disk.open(Self::path(), OpenMode::ReadWrite, Caching::Buffered)?);
        Ok(())
    }

    /// Opens the file of a store of the engine, with the directory that its MANIFEST names. Pages of
    /// tables that do not count are free.
    pub(crate) fn open_named(
        disk: &dyn Disk,
        store: StoreId,
        mode: OpenMode,
        (directory, bytes, level): (Extent, u64, u64),
        counts: impl Fn(u16) -> bool,
    ) -> SirenResult<(Self, Directory)> {
        let file = disk.open(Self::path(), mode, Caching::Buffered).map_err(|error| {
            if !error.is_not_found() {
                return error.into();
            }
            SirenError::missing(
                error.path,
                format!("the MANIFEST names its checkpoint of level {level}"),
            )
        })?;
        let path = file.path().to_owned();
        let mut block = vec![0; HEADER_BYTES];
        let read = file.read_at(&mut block, 0)?;
        let header = PagesHeader::decode(&block[..read])
            .map_err(|cause| SirenError::damaged(path.clone(), cause))?;
        if header.store != store {
            return Err(SirenError::inconsistent(path, "the file belongs to another store"));
        }
        let free = FreePages { runs: BTreeMap::new(), end: header.first_page() };
        let mut pages = Self { file: Some(file), header, free };
        let mut named = pages.read_directory(directory, bytes)?;
        if named.level != level {
            let what = format!("level {level} in the MANIFEST, directory of {}", named.level);
            return Err(SirenError::inconsistent(path, what));
        }
        named.extents.retain(|it| it.kind == ExtentKind::Removes || counts(it.table));
        pages.find_free(&named, directory)?;
        Ok((pages, named))
    }

    fn read_directory(&self, extent: Extent, bytes: u64) -> SirenResult<Directory> {
        let file = self.file();
        let offset = self.header.page_at(extent.first);
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        let file_len = usize::try_from(file.len()?).unwrap_or(usize::MAX);
        let mut bytes = vec![0; len.min(file_len)];
        let read = file.read_at(&mut bytes, offset)?;
        Directory::decode(self.header.identity(), &bytes[..read], offset)
            .map_err(|cause| SirenError::damaged(file.path().to_owned(), cause))
    }

    /// Opens the file of pages. Makes it, with an empty checkpoint of level 0, if there is none.
    pub(crate) fn open(
        disk: &dyn Disk,
        page_bytes: u32,
        created_ms: u64,
        new_store: impl FnOnce() -> StoreId,
    ) -> SirenResult<(Self, Newest)> {
        disk.create_dir_all(names::SIREN_DIR.as_ref())?;
        disk.sync_dir(Path::new(""))?;
        if !disk.exists(Self::path())? {
            // The file is there before the first segment.
            let names = disk.list(names::SIREN_DIR.as_ref())?;
            if let Some(segment) =
                names.iter().find(|name| names::parse_siren_segment_name(name).is_some())
            {
                let needed_by = format!("{segment} of its log is there");
                return Err(SirenError::missing(disk.describe(Self::path()), needed_by));
            }
            let header = PagesHeader { store: new_store(), created_ms, page_bytes };
            write_file_durably(disk, Self::path(), &Self::empty(&header))?;
        }
        let file = disk.open(Self::path(), OpenMode::ReadWrite, Caching::Buffered)?;
        let damaged = |cause| SirenError::damaged(file.path().to_owned(), cause);
        let mut block = vec![0; HEADER_BYTES];
        let read = file.read_at(&mut block, 0)?;
        let header = PagesHeader::decode(&block[..read]).map_err(damaged)?;
        let free = FreePages { runs: BTreeMap::new(), end: header.first_page() };
        let mut pages = Self { file: Some(file), header, free };
        let newest = pages.newest()?;
        pages.find_free(&newest.directory, newest.header.directory)?;
        Ok((pages, newest))
    }

    /// The bytes of a new file.
    fn empty(header: &PagesHeader) -> Vec<u8> {
        let identity = header.identity();
        let first = header.first_page();
        let directory = Directory::default().encode(identity, header.page_at(first));
        let checkpoint = CheckpointHeader {
            level: 0,
            next_transaction: 1,
            first_segment: 0,
            incarnation: 0,
            is_logged: false,
            is_fuzzy: false,
            directory: Extent { first, pages: header.pages_for(directory.len()) },
            directory_bytes: directory.len() as u64,
        };
        let mut bytes = header.encode().to_vec();
        bytes.extend(checkpoint.encode(identity, 0));
        bytes.resize(header.page_at(first) as usize, 0);
        bytes.extend(directory);
        bytes
    }

    /// The valid header of the greatest level, with its directory. A crash may leave the other header
    /// half-written.
    fn newest(&self) -> SirenResult<Newest> {
        let identity = self.header.identity();
        let file = self.file();
        let damaged = |cause| SirenError::damaged(file.path().to_owned(), cause);
        let mut headers = Vec::new();
        let mut last_cause = None;
        for number in 0..CHECKPOINT_HEADERS {
            let mut block = vec![0; CHECKPOINT_HEADER_BYTES];
            let offset = PagesHeader::checkpoint_header_at(number);
            let read = file.read_at(&mut block, offset)?;
            match CheckpointHeader::decode(identity, &block[..read], number) {
                Ok(header) => headers.push((header, number)),
                Err(cause) => last_cause = Some(cause),
            }
        }
        let newest = headers.into_iter().max_by_key(|(header, _)| header.level);
        let Some((header, number)) = newest else {
            return Err(damaged(last_cause.expect("there are two headers")));
        };
        let directory = self.read_directory(header.directory, header.directory_bytes)?;
        if directory.level != header.level {
            let what =
                format!("header of level {}, directory of {}", header.level, directory.level);
            return Err(SirenError::inconsistent(file.path().to_owned(), what));
        }
        Ok(Newest { header, number, directory })
    }

    /// Finds the free pages between those of a checkpoint.
    fn find_free(&mut self, directory: &Directory, at: Extent) -> SirenResult<()> {
        let stored = directory.extents.iter().map(|stored| stored.extent);
        let mut used: Vec<Extent> = stored.chain([at]).collect();
        used.sort_unstable();
        for extent in used {
            if extent.first < self.free.end {
                let what = format!("disk page {} is used twice", extent.first);
                return Err(SirenError::inconsistent(self.path_of_file(), what));
            }
            if extent.first > self.free.end {
                self.free.runs.insert(self.free.end, extent.first - self.free.end);
            }
            self.free.end = extent.first + extent.pages;
        }
        Ok(())
    }

    /// Disk pages for so many bytes.
    ///
    /// # Errors
    /// The file has no number left for a page.
    pub(crate) fn take(&mut self, bytes: usize) -> SirenResult<Extent> {
        let pages = self.header.pages_for(bytes);
        self.free.take(pages).ok_or_else(|| {
            let path = self.path_of_file();
            SirenError::inconsistent(path, "it has 2^32 pages; use larger ones")
        })
    }

    pub(crate) fn give_back(&mut self, extent: Extent) {
        self.free.give_back(extent);
    }

    /// Gives the free end of the file back to the file system, if that is as long as the rest. Call this when no
    /// published checkpoint needs it. An error only leaves the file as long as it was.
    pub(crate) fn cut(&self) {
        let used = self.header.page_at(self.free.end);
        let Some(file) = &self.file else { return };
        if file.len().is_ok_and(|len| len >= CUT_MIN_BYTES.max(2 * used)) {
            let _ = file.set_len(used);
        }
    }

    /// Disk pages of the file, free ones below the last used one included.
    pub(crate) fn len(&self) -> u32 {
        self.free.end
    }

    /// Reads the tuples of an extent.
    pub(crate) fn read<R>(
        &self,
        stored: &StoredExtent,
        with: impl FnOnce(&[TupleImage<'_>]) -> SirenResult<R>,
    ) -> SirenResult<R> {
        let page_bytes = self.header.page_bytes;
        let damaged = |cause| SirenError::DamagedPage {
            path: self.path_of_file(),
            page: stored.extent.first,
            table: (stored.kind == ExtentKind::Tuples).then_some(stored.table),
            cause,
        };
        let needed = stored.extent.pages as usize * page_bytes as usize;
        let offset = self.header.page_at(stored.extent.first);
        // A damaged directory may announce more than memory holds.
        let left = usize::try_from(self.file().len()?.saturating_sub(offset)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; needed.min(left)];
        let read = self.file().read_at(&mut bytes, offset)?;
        let page = StoredPage::decode(self.header.identity(), &bytes[..read], stored, page_bytes);
        with(&page.and_then(|page| page.tuples()).map_err(damaged)?)
    }

    pub(crate) fn path_of_file(&self) -> PathBuf {
        self.file().path().to_owned()
    }

    /// Writes the header of a checkpoint whose pages and directory are durable.
    pub(crate) fn write_header(&self, header: &CheckpointHeader, number: u64) -> DiskResult<()> {
        let block = header.encode(self.header.identity(), number);
        self.file().write_at(&block, PagesHeader::checkpoint_header_at(number))?;
        self.file().sync()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn free_pages_are_used_again_and_join() {
        let mut free = FreePages { runs: BTreeMap::new(), end: 3 };
        let taken: Vec<Extent> = (0..4).filter_map(|_| free.take(1)).collect();
        assert_eq!(taken[3], Extent { first: 6, pages: 1 });
        free.give_back(taken[0]);
        free.give_back(taken[2]);
        assert_eq!(free.take(2), Some(Extent { first: 7, pages: 2 }), "no run is long enough");
        free.give_back(taken[1]);
        assert_eq!(free.take(2), Some(Extent { first: 3, pages: 2 }));
        free.give_back(Extent { first: 7, pages: 2 });
        free.give_back(taken[3]);
        assert_eq!((free.runs.len(), free.end), (0, 5));
    }
}
