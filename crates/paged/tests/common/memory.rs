//! A backing in memory. Reads end in an order that a seed chooses, and none before somebody asks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};

use stillpoint_format::Stamp;
use stillpoint_io::{Rng, SeededRng};
use stillpoint_mem::Target;
use stillpoint_sync::atomic::Ordering::Relaxed;
use stillpoint_sync::{Backoff, Mutex};
use stillpoint_txn::TableId;

use super::{Backing, BackingError, DirtyFrames, NewPage, PendingRead, Purpose};

/// First id of pages that are no roots.
const FIRST: u64 = 65_537;

type Pages = BTreeMap<u64, Arc<Vec<u8>>>;

#[derive(Debug, Default)]
struct State {
    pages: Pages,
    next: u64,
    free: Vec<u64>,
    /// The states of all pages that were written, and the one that counts.
    maps: BTreeMap<u64, Pages>,
    published: Option<u64>,
    waiting: Vec<Arc<Waiting>>,
}

/// Pages in memory.
#[derive(Debug)]
pub(crate) struct Memory {
    page_bytes: usize,
    rng: SeededRng,
    state: Mutex<State>,
    /// Reads and writes fail while this is set.
    pub(crate) fails: AtomicBool,
    pub(crate) begun: AtomicU64,
    /// The most reads that were under way at a time.
    pub(crate) most_waiting: AtomicUsize,
    /// Called once, by a write-back that has copied its pages and has not placed them.
    pub(crate) on_copies: Mutex<Option<OnCopies>>,
}

/// What a test does in the middle of a write-back.
pub(crate) struct OnCopies(pub(crate) Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for OnCopies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnCopies")
    }
}

#[derive(Debug)]
struct Waiting {
    page: u64,
    bytes: Arc<Vec<u8>>,
    target: Target,
    is_done: AtomicBool,
}

#[derive(Debug)]
struct Read {
    memory: Arc<Memory>,
    waiting: Arc<Waiting>,
}

fn failure(what: &str) -> BackingError {
    Arc::new(std::io::Error::other(what.to_owned()))
}

impl Memory {
    pub(crate) fn new(page_bytes: usize, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            page_bytes,
            rng: SeededRng::new(seed),
            state: Mutex::new(State { next: FIRST, ..State::default() }),
            fails: AtomicBool::new(false),
            begun: AtomicU64::new(0),
            most_waiting: AtomicUsize::new(0),
            on_copies: Mutex::default(),
        })
    }

    /// What a start finds after a crash: the state that counts.
    pub(crate) fn crash(&self, seed: u64) -> Arc<Self> {
        let after = Self::new(self.page_bytes, seed);
        let state = self.state.lock();
        if let Some(published) = state.published {
            let fresh = &mut *after.state.lock();
            fresh.pages = state.maps[&published].clone();
            fresh.next = fresh.pages.keys().last().map_or(FIRST, |last| last + 1).max(FIRST);
            fresh.maps.insert(published, fresh.pages.clone());
            fresh.published = Some(published);
        }
        after
    }

    /// Ids of all pages, and their bytes.
    pub(crate) fn pages(&self) -> Pages {
        self.state.lock().pages.clone()
    }

    fn end_some(&self, must: Option<&Arc<Waiting>>) {
        let mut ending = Vec::new();
        {
            let mut state = self.state.lock();
            while !state.waiting.is_empty() {
                let at = self.rng.below(state.waiting.len() as u64) as usize;
                let one = state.waiting.swap_remove(at);
                let is_it = must.is_some_and(|must| Arc::ptr_eq(must, &one));
                ending.push(one);
                if is_it || (must.is_none() && self.rng.below(2) == 0) {
                    break;
                }
            }
        }
        for one in ending {
            for (word, bytes) in one.target.words().iter().zip(one.bytes.chunks_exact(8)) {
                // Relaxed: `is_done` publishes the words.
                word.store(u64::from_le_bytes(bytes.try_into().expect("eight bytes")), Relaxed);
            }
            one.is_done.store(true, SeqCst);
        }
    }
}

impl PendingRead for Read {
    fn is_done(&self) -> bool {
        if !self.waiting.is_done.load(SeqCst) {
            self.memory.end_some(None);
        }
        self.waiting.is_done.load(SeqCst)
    }

    fn wait(&self) {
        let mut backoff = Backoff::new();
        while !self.waiting.is_done.load(SeqCst) {
            self.memory.end_some(Some(&self.waiting));
            backoff.wait();
        }
    }

    fn check(&self) -> Result<(), BackingError> {
        assert!(self.waiting.is_done.load(SeqCst), "the read has not ended");
        if self.memory.fails.load(SeqCst) {
            return Err(failure("a read that fails"));
        }
        // Relaxed: the read has ended.
        let id = self.waiting.target.words()[1].load(Relaxed);
        assert_eq!(id, self.waiting.page, "another page was read");
        Ok(())
    }
}

/// The backing that a pool gets.
#[derive(Debug)]
pub(crate) struct InMemory(pub(crate) Arc<Memory>);

impl Backing for InMemory {
    fn begin_read(
        &self,
        page: u64,
        _: Option<TableId>,
        target: Target,
    ) -> Result<Box<dyn PendingRead>, BackingError> {
        let memory = self.0.clone();
        let mut state = memory.state.lock();
        let bytes = state.pages.get(&page).ok_or_else(|| failure("no such page"))?.clone();
        let is_done = AtomicBool::new(false);
        let waiting = Arc::new(Waiting { page, bytes, target, is_done });
        state.waiting.push(waiting.clone());
        memory.begun.fetch_add(1, SeqCst);
        memory.most_waiting.fetch_max(state.waiting.len(), SeqCst);
        drop(state);
        Ok(Box::new(Read { memory, waiting }))
    }

    fn submit(&self) {}

    fn is_placed(&self, page: u64) -> bool {
        self.0.state.lock().pages.contains_key(&page)
    }

    fn allocate(&self) -> Result<NewPage, BackingError> {
        let mut state = self.0.state.lock();
        let page = state.free.pop().unwrap_or_else(|| {
            state.next += 1;
            state.next - 1
        });
        Ok(NewPage { page, above: 0 })
    }

    fn free(&self, page: u64, _: Stamp) {
        // The id is not used again: a replay may still meet the page.
        self.0.state.lock().pages.remove(&page);
    }

    fn free_at_once(&self, pages: &[u64], stamp: Stamp) {
        pages.iter().for_each(|&page| self.free(page, stamp));
    }

    fn note_used(&self, page: u64) {
        let mut state = self.0.state.lock();
        state.next = state.next.max(page + 1);
    }

    fn write_back(
        &self,
        frames: &dyn DirtyFrames,
        candidates: &[u32],
        _: Purpose,
    ) -> Result<(), BackingError> {
        if self.0.fails.load(SeqCst) {
            return Err(failure("a write that fails"));
        }
        for &frame in candidates {
            if !frames.claim(frame) {
                continue;
            }
            let mut bytes = vec![0; self.0.page_bytes];
            if let Some(copied) = frames.copy(frame, &mut bytes) {
                assert_swips(&bytes);
                // The page may change before the copy counts.
                std::thread::yield_now();
                let on_copies = self.0.on_copies.lock().take();
                if let Some(OnCopies(run)) = on_copies {
                    run();
                }
                self.0.state.lock().pages.insert(copied.page, Arc::new(bytes));
                frames.placed(frame, copied.stamp.gsn());
            }
            frames.release(frame);
        }
        Ok(())
    }

    fn write_map(&self) -> Result<u64, BackingError> {
        let mut state = self.0.state.lock();
        let number = state.maps.keys().last().map_or(1, |last| last + 1);
        let pages = state.pages.clone();
        state.maps.insert(number, pages);
        Ok(number)
    }

    fn map_ended(&self, number: u64, counts: bool) {
        let mut state = self.0.state.lock();
        if counts {
            state.published = Some(number);
            state.maps.retain(|&known, _| known == number);
        } else {
            state.maps.remove(&number);
        }
    }
}

/// No inner page on the disk may hold the number of a frame.
fn assert_swips(bytes: &[u8]) {
    use stillpoint_sync::atomic::AtomicU64 as Word;
    let word = |chunk: &[u8]| Word::new(u64::from_le_bytes(chunk.try_into().expect("eight")));
    let words: Vec<Word> = bytes.chunks_exact(8).map(word).collect();
    // Relaxed: nobody else has the copy.
    let kind = words[0].load(Relaxed) >> 32 & 0xff;
    if kind == u64::from(stillpoint_format::large::LARGE_KIND) {
        return;
    }
    let node = stillpoint_node::Node::new(&words);
    node.check().expect("a sound page goes to the disk");
    if node.level() > 0 {
        for position in 0..node.child_count() {
            assert!(node.child(position).at < 1 << 62, "a frame on the disk");
        }
    }
}
