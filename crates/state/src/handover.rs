//! The hand-over of ended ticks from the mutator to the logger, without a lock.
//!
//! The ticks are a stream of words in a chain of chunks. The mutator writes a tick's words and then
//! publishes the tick's number. The logger reads the words of published ticks.
//!
//! ```text
//! mutator   ── words ──────────────────────────┐
//!                     chunk ──► chunk ──► chunk ──► prepared chunk
//! logger    ── words ───┘
//! ended     the newest tick: Release by the mutator, Acquire by the logger
//! ```
//!
//! A tick is one word of length and the words of its actions, padded with zeros. The highest bit of
//! the length is set if a new segment begins with the tick. Ticks follow each other without gaps.
//! The mutator may write the words of a tick before the tick has ended: nobody reads the words
//! before they are published.
//!
//! A chunk has a mutex for the pointer to the next chunk. The mutator takes that mutex once per chunk:
//! once per [`CHUNK_WORDS`]. The logger prepares the next chunk ahead, so that the mutator allocates
//! only if it fills a whole chunk between two looks of the logger.

use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint_mem::prefetch_to_write;
use stillpoint_sync::CachePadded;
use stillpoint_sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

/// Words of a chunk: 64 KiB.
const CHUNK_WORDS: usize = 8 << 10;
/// In the word of length: a new segment begins with the tick.
const BEGINS_SEGMENT: u64 = 1 << 63;

/// The words lie in the chunk itself: the mutator finds them without another load, which would wait for
/// memory after a long step.
#[derive(Debug)]
struct Chunk<const WORDS: usize> {
    words: [AtomicU64; WORDS],
    next: Mutex<Option<Arc<Chunk<WORDS>>>>,
}

impl<const WORDS: usize> Chunk<WORDS> {
    fn new() -> Arc<Self> {
        let words = std::array::from_fn(|_| AtomicU64::new(0));
        Arc::new(Self { words, next: Mutex::default() })
    }

    /// The next chunk, which is made if it is missing.
    fn next(&self) -> Arc<Self> {
        self.next.lock().get_or_insert_with(Self::new).clone()
    }
}

/// Bytes of the stream that a tick with actions of this length takes.
pub(crate) fn stream_bytes(actions: usize) -> u64 {
    8 + actions.next_multiple_of(8) as u64
}

/// The mutator's end of the stream.
#[derive(Debug)]
pub(crate) struct TickSender<const WORDS: usize = CHUNK_WORDS> {
    chunk: Arc<Chunk<WORDS>>,
    at: usize,
    last: u64,
    begins_segment: bool,
    /// The tick that is written and not published.
    open: Option<OpenTick<WORDS>>,
    ended: Arc<CachePadded<AtomicU64>>,
}

/// A tick that the mutator has begun to write.
#[derive(Debug)]
struct OpenTick<const WORDS: usize> {
    /// The chunk of the length, if the mutator has left that chunk.
    length_chunk: Option<Arc<Chunk<WORDS>>>,
    length_at: usize,
    /// Bytes of the actions that are in the stream, in whole words.
    bytes: usize,
}

/// The logger's end of the stream.
#[derive(Debug)]
pub(crate) struct TickReceiver<const WORDS: usize = CHUNK_WORDS> {
    chunk: Arc<Chunk<WORDS>>,
    at: usize,
    last: u64,
    ended: Arc<CachePadded<AtomicU64>>,
}

/// A tick of the stream, but for its actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceivedTick {
    pub(crate) tick: u64,
    /// True if a new segment begins with the tick.
    pub(crate) begins_segment: bool,
}

/// The two ends of a stream whose first tick is the one after `last`.
pub(crate) fn stream(last: u64) -> (TickSender, TickReceiver) {
    stream_of(last)
}

fn stream_of<const WORDS: usize>(last: u64) -> (TickSender<WORDS>, TickReceiver<WORDS>) {
    let chunk = Chunk::new();
    let ended = Arc::new(CachePadded::new(AtomicU64::new(last)));
    let (at, begins_segment) = (0, false);
    let (open, of_sender) = (None, ended.clone());
    let sender =
        TickSender { chunk: chunk.clone(), at, last, begins_segment, open, ended: of_sender };
    (sender, TickReceiver { chunk, at, last, ended })
}

impl<const WORDS: usize> TickSender<WORDS> {
    /// Writes whole words of the actions that the open tick has so far. The actions may only grow until
    /// the tick is sent.
    #[inline]
    pub(crate) fn write_ahead(&mut self, actions: &[u8]) {
        let mut bytes = match &self.open {
            Some(open) => open.bytes,
            None => self.begin(),
        };
        let (words, _) = actions[bytes..].as_chunks::<8>();
        for word in words {
            self.put(u64::from_le_bytes(*word));
        }
        bytes += size_of_val(words);
        if let Some(open) = &mut self.open {
            open.bytes = bytes;
        }
    }

    /// Prefetches the memory that the end of a tick changes.
    #[inline]
    pub(crate) fn prefetch(&self) {
        if let Some(word) = self.chunk.words.get(self.at) {
            prefetch_to_write(std::slice::from_ref(word));
        }
        prefetch_to_write(std::slice::from_ref(&**self.ended));
    }

    /// Begins a tick: leaves room for its word of length. Returns 0, the bytes of its actions so
    /// far.
    fn begin(&mut self) -> usize {
        let length_at = self.room();
        self.open = Some(OpenTick { length_chunk: None, length_at, bytes: 0 });
        self.at += 1;
        0
    }

    /// Sends an ended tick. The actions begin with those that were written ahead.
    ///
    /// # Panics
    /// If the tick is not the one after the last.
    #[inline]
    pub(crate) fn send(&mut self, tick: u64, actions: &[u8]) {
        assert!(tick == self.last + 1, "ticks come in order");
        if actions.is_empty() && self.open.is_none() && self.at < WORDS {
            self.chunk.words[self.at].store(self.length_word(0), Relaxed); // as in `put`
            self.at += 1;
        } else {
            self.put_tick(actions);
        }
        (self.last, self.begins_segment) = (tick, false);
        self.ended.store(tick, Release); // pairs with the Acquire in `published`
    }

    /// The word that states the length of a tick's actions.
    #[inline]
    fn length_word(&self, bytes: usize) -> u64 {
        bytes as u64 | if self.begins_segment { BEGINS_SEGMENT } else { 0 }
    }

    /// Writes the rest of the actions, and the length.
    #[inline(never)]
    fn put_tick(&mut self, actions: &[u8]) {
        self.write_ahead(actions);
        let rest = actions.as_chunks::<8>().1;
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.put(u64::from_le_bytes(word));
        }
        let open = self.open.take().expect("it was begun");
        let length_chunk = open.length_chunk.as_ref().unwrap_or(&self.chunk);
        // Relaxed: as in `put`.
        length_chunk.words[open.length_at].store(self.length_word(actions.len()), Relaxed);
    }

    /// Lets a new segment of the log begin with the next tick.
    pub(crate) fn begin_segment(&mut self) {
        self.begins_segment = true;
    }

    #[inline]
    fn put(&mut self, word: u64) {
        let at = self.room();
        // Relaxed: the Release of `ended` publishes the word.
        self.chunk.words[at].store(word, Relaxed);
        self.at += 1;
    }

    /// The index of the next free word. Begins a new chunk if the present one is full.
    #[inline]
    fn room(&mut self) -> usize {
        if self.at == WORDS {
            self.begin_chunk();
        }
        self.at
    }

    #[cold]
    #[inline(never)]
    fn begin_chunk(&mut self) {
        let next = self.chunk.next();
        let full = std::mem::replace(&mut self.chunk, next);
        self.at = 0;
        if let Some(open) = &mut self.open {
            open.length_chunk.get_or_insert(full);
        }
    }
}

impl<const WORDS: usize> TickReceiver<WORDS> {
    /// The newest tick that was sent.
    pub(crate) fn published(&self) -> u64 {
        self.ended.load(Acquire) // pairs with the Release in `send`
    }

    /// The next tick, if it is at most `until`, which [`published`](Self::published) has returned.
    /// The actions of the tick replace the contents of `actions`.
    pub(crate) fn receive(&mut self, until: u64, actions: &mut Vec<u8>) -> Option<ReceivedTick> {
        if self.last == until {
            return None;
        }
        let word = self.get();
        let len = (word & !BEGINS_SEGMENT) as usize;
        actions.clear();
        while actions.len() < len {
            let bytes = self.get().to_le_bytes();
            actions.extend_from_slice(&bytes[..(len - actions.len()).min(8)]);
        }
        self.last += 1;
        Some(ReceivedTick { tick: self.last, begins_segment: word & BEGINS_SEGMENT != 0 })
    }

    /// Makes the chunk that the mutator will need next.
    pub(crate) fn prepare(&self) {
        self.chunk.next();
    }

    fn get(&mut self) -> u64 {
        if self.at == WORDS {
            (self.chunk, self.at) = (self.chunk.next(), 0);
        }
        // Relaxed: the Acquire in `published` has made the word visible.
        let word = self.chunk.words[self.at].load(Relaxed);
        self.at += 1;
        word
    }
}

impl<const WORDS: usize> Drop for TickReceiver<WORDS> {
    /// Frees the chain chunk by chunk: a long chain must not recurse.
    fn drop(&mut self) {
        loop {
            let Some(next) = self.chunk.next.lock().take() else { return };
            self.chunk = next;
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use stillpoint_io::{Rng, SeededRng, spawn};

    /// The actions of a tick, as both sides of a test compute them.
    fn actions_of(tick: u64) -> Vec<u8> {
        let rng = SeededRng::new(tick);
        (0..rng.below(60)).map(|_| rng.next_u64() as u8).collect()
    }

    #[test]
    fn ticks_come_whole_and_in_order_across_chunks() {
        in_chunks::<1>();
        in_chunks::<2>();
        in_chunks::<7>();
        in_chunks::<64>();
    }

    fn in_chunks<const WORDS: usize>() {
        let (mut sender, mut receiver) = stream_of::<WORDS>(5);
        let mut actions = Vec::new();
        assert_eq!(receiver.receive(receiver.published(), &mut actions), None);
        let begins = |tick: u64| tick.is_multiple_of(3);
        for round in 0..20 {
            let first = 6 + round * 10;
            for tick in first..first + 10 {
                if begins(tick) {
                    sender.begin_segment();
                }
                let actions = actions_of(tick);
                if tick.is_multiple_of(2) {
                    (0..=actions.len())
                        .step_by(5)
                        .for_each(|to| sender.write_ahead(&actions[..to]));
                    assert_eq!(receiver.published(), tick - 1, "not ended");
                }
                sender.send(tick, &actions);
            }
            let until = receiver.published();
            for tick in first..first + 10 {
                let received = receiver.receive(until, &mut actions);
                let wanted = ReceivedTick { tick, begins_segment: begins(tick) };
                assert_eq!(received, Some(wanted), "chunks of {WORDS}");
                assert_eq!(actions, actions_of(tick), "tick {tick}, {WORDS}");
            }
            assert_eq!(receiver.receive(until, &mut actions), None);
            receiver.prepare();
        }
    }

    #[test]
    fn a_thread_receives_what_another_sends() {
        const TICKS: u64 = 20_000;
        let (mut sender, mut receiver) = stream_of::<64>(0);
        let logger = spawn("receiver", move || {
            let (mut actions, mut last) = (Vec::new(), 0);
            while last < TICKS {
                let until = receiver.published();
                while let Some(received) = receiver.receive(until, &mut actions) {
                    last += 1;
                    assert_eq!((received.tick, &actions), (last, &actions_of(last)));
                }
                receiver.prepare();
                std::thread::yield_now();
            }
        });
        for tick in 1..=TICKS {
            sender.send(tick, &actions_of(tick));
        }
        logger.expect("a thread").join().expect("no panic");
    }

    #[test]
    fn a_long_chain_is_freed_without_recursion() {
        let (mut sender, receiver) = stream_of::<1>(0);
        for tick in 1..=200_000 {
            sender.send(tick, &[]);
        }
        drop(receiver);
        sender.send(200_001, &[]);
    }

    #[test]
    fn a_tick_takes_whole_words() {
        assert_eq!([0, 1, 8, 9].map(stream_bytes), [8, 16, 16, 24]);
    }
}
