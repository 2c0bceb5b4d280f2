//! Tests of the number of files that are open at a time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use stillpoint_format::manifest::CheckpointEntry;
use stillpoint_format::part::Codec;
use stillpoint_io::{Caching, Disk, DiskFile, DiskLock, DiskResult, OpenMode, SharedLock, Space};

use crate::merges::{Chain, load_newest_first};
use crate::model::assert_same;

/// A disk that counts its open files.
#[derive(Debug)]
struct CountingDisk {
    disk: Arc<dyn Disk>,
    open: Arc<Open>,
}

#[derive(Debug, Default)]
struct Open {
    now: AtomicUsize,
    most: AtomicUsize,
}

#[derive(Debug)]
struct CountedFile {
    file: Arc<dyn DiskFile>,
    open: Arc<Open>,
}

impl Drop for CountedFile {
    fn drop(&mut self) {
        self.open.now.fetch_sub(1, SeqCst);
    }
}

impl Disk for CountingDisk {
    fn open(&self, path: &Path, mode: OpenMode, caching: Caching) -> DiskResult<Arc<dyn DiskFile>> {
        let file = self.disk.open(path, mode, caching)?;
        let now = self.open.now.fetch_add(1, SeqCst) + 1;
        self.open.most.fetch_max(now, SeqCst);
        Ok(Arc::new(CountedFile { file, open: self.open.clone() }))
    }
    fn create_dir_all(&self, path: &Path) -> DiskResult<()> {
        self.disk.create_dir_all(path)
    }
    fn list(&self, path: &Path) -> DiskResult<Vec<String>> {
        self.disk.list(path)
    }
    fn exists(&self, path: &Path) -> DiskResult<bool> {
        self.disk.exists(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> DiskResult<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> DiskResult<()> {
        self.disk.remove(path)
    }
    fn sync_dir(&self, path: &Path) -> DiskResult<()> {
        self.disk.sync_dir(path)
    }
    fn lock(&self, path: &Path) -> DiskResult<Option<Box<dyn DiskLock>>> {
        self.disk.lock(path)
    }
    fn lock_shared(&self, path: &Path) -> DiskResult<SharedLock> {
        self.disk.lock_shared(path)
    }
    fn space(&self) -> DiskResult<Option<Space>> {
        self.disk.space()
    }
    fn describe(&self, path: &Path) -> PathBuf {
        self.disk.describe(path)
    }
}

impl DiskFile for CountedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> DiskResult<usize> {
        self.file.read_at(buf, offset)
    }
    fn write_at(&self, buf: &[u8], offset: u64) -> DiskResult<()> {
        self.file.write_at(buf, offset)
    }
    fn sync(&self) -> DiskResult<()> {
        self.file.sync()
    }
    fn len(&self) -> DiskResult<u64> {
        self.file.len()
    }
    fn set_len(&self, len: u64) -> DiskResult<()> {
        self.file.set_len(len)
    }
    fn allocate(&self, len: u64) -> DiskResult<()> {
        self.file.allocate(len)
    }
    fn path(&self) -> &Path {
        self.file.path()
    }
}

/// However long a chain is, its load and its merge hold a bounded number of files open.
#[test]
fn a_long_chain_needs_few_descriptors() {
    let chain = Chain::new(11, 120, false);
    let files: usize = chain.entries.iter().map(|entry| entry.parts.len()).sum();
    assert!(files > 110, "{files} files");
    let open = Arc::<Open>::default();
    let disk = CountingDisk { disk: chain.world.disk.clone(), open: open.clone() };
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let newest = chain.states.last().expect("a checkpoint");
    assert_same(&load_newest_first(&disk, &chain.entries), newest, "loaded");
    let run: Vec<&CheckpointEntry> = chain.entries.iter().collect();
    let merged = chain.merge(9_000, Codec::None, 64 << 20).run(&disk, &run).expect("no fault");
    assert_same(&load_newest_first(&disk, &[merged]), newest, "merged");
    let (now, most) = (open.now.load(SeqCst), open.most.load(SeqCst));
    assert_eq!(now, 0, "files are left open");
    assert!(most < 80, "{most} files of {files} are open at a time");
}
