//! Tests with a mutator and a writer on two real threads.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use stillpoint_io::{Rng, SeededRng};
use stillpoint_state::{Array, Arrays, Capture, Content, Scheme, registry};

const PAGES: usize = 500;
const WORDS: usize = 9000;
const IMAGES: u64 = 12;

type Page = [u32; 64];

/// A capture that the mutator gives to the writer, with its expected image.
type Job<S> = (Capture<S>, Vec<u8>);

struct Mailbox<S: Scheme> {
    job: Mutex<Option<Option<Job<S>>>>,
    came: Condvar,
}

struct Side {
    name: String,
    seed: u64,
}

pub(crate) fn run(name: &str, seed: u64) {
    let side = Side { name: name.to_owned(), seed };
    registry::run(name, side).expect("it is in the table");
}

impl registry::Program for Side {
    type Output = ();

    fn run<S: Scheme>(self) {
        if S::CONTENT == Content::Nothing {
            return;
        }
        let mut builder = Arrays::<S>::builder();
        let pages = builder.array::<Page>("pages", PAGES);
        let words = builder.array::<u32>("words", WORDS);
        let mut arrays = builder.build().expect("memory");
        let mailbox: Arc<Mailbox<S>> =
            Arc::new(Mailbox { job: Mutex::new(None), came: Condvar::new() });
        let writer = {
            let (mailbox, name) = (mailbox.clone(), self.name.clone());
            stillpoint_io::spawn("writer", move || write_images(&mailbox, &name)).expect("a thread")
        };
        let rng = SeededRng::new(self.seed);
        let mut model = vec![0u8; PAGES * size_of::<Page>() + WORDS * 4];
        let (mut begun, mut value) = (0, 0u32);
        let mut last = (0, Vec::new());
        while begun < IMAGES && !writer.is_finished() {
            for _ in 0..200 {
                value += 1;
                let index = rng.below(PAGES as u64) as usize;
                let part = rng.below(64) as usize;
                if part == 0 {
                    arrays.write(pages, index, [value; 64]);
                    model[index * 256..][..256].copy_from_slice(&value.to_le_bytes().repeat(64));
                } else {
                    arrays.write_part(pages, index, part * 4, &value.to_le_bytes());
                    model[index * 256 + part * 4..][..4].copy_from_slice(&value.to_le_bytes());
                }
                let index = rng.below(WORDS as u64) as usize;
                let at = PAGES * 256 + index * 4;
                let newest = arrays.read(words, index);
                assert_eq!(newest.to_le_bytes(), model[at..][..4], "{}", self.name);
                arrays.write(words, index, value);
                model[at..][..4].copy_from_slice(&value.to_le_bytes());
            }
            write_in_chunks(&mut arrays, words, value, &mut model[PAGES * 256..]);
            arrays.end_tick();
            if let Some(capture) = arrays.point_of_consistency() {
                begun += 1;
                if capture.tick() == arrays.ticks() {
                    last = (arrays.ticks(), model.clone());
                }
                // A failed capture of changes is taken again.
                assert_eq!(capture.tick(), last.0, "{}", self.name);
                *mailbox.job.lock() = Some(Some((capture, last.1.clone())));
                mailbox.came.notify_one();
            }
        }
        while mailbox.job.lock().is_some() && !writer.is_finished() {
            std::hint::spin_loop();
        }
        *mailbox.job.lock() = Some(None);
        mailbox.came.notify_one();
        let images = writer.join().unwrap_or_else(|error| panic!("{}: {error}", self.name));
        assert!(images > IMAGES / 2, "{}: {images} images", self.name);
        for (index, page) in arrays.iter(pages).enumerate() {
            let bytes: Vec<u8> = page.iter().flat_map(|word| word.to_le_bytes()).collect();
            assert_eq!(bytes, model[index * 256..][..256], "{}: page {index}", self.name);
        }
    }
}

/// Two threads write words of every other chunk each, and read them again.
fn write_in_chunks<S: Scheme>(
    arrays: &mut Arrays<S>,
    words: Array<u32>,
    seed: u32,
    model: &mut [u8],
) {
    let value = |index: usize| seed ^ (index as u32).wrapping_mul(0x9E37_79B9);
    let is_written = |index: usize| value(index).is_multiple_of(7);
    let mut words = arrays.array_mut(words);
    let mut chunks = words.chunks_mut(100);
    let (mut even, mut odd) = (Vec::new(), Vec::new());
    for (number, chunk) in chunks.iter_mut().enumerate() {
        if number % 2 == 0 { &mut even } else { &mut odd }.push(chunk);
    }
    std::thread::scope(|threads| {
        for mine in [even, odd] {
            threads.spawn(move || {
                for mut chunk in mine {
                    for index in chunk.range().filter(|index| is_written(*index)) {
                        chunk.write(index, value(index));
                        assert_eq!(chunk.read(index), value(index));
                    }
                }
            });
        }
    });
    for index in (0..WORDS).filter(|index| is_written(*index)) {
        model[index * 4..][..4].copy_from_slice(&value(index).to_le_bytes());
    }
}

/// Takes every image; every fifth fails. Returns how many were compared.
fn write_images<S: Scheme>(mailbox: &Mailbox<S>, name: &str) -> u64 {
    let mut base = vec![0u8; PAGES * 256 + WORDS * 4];
    let (mut taken, mut compared) = (0u64, 0);
    loop {
        let mut job = mailbox.job.lock();
        while job.is_none() {
            mailbox.came.wait(&mut job);
        }
        let Some(Some((capture, wanted))) = job.take() else {
            return compared;
        };
        drop(job);
        taken += 1;
        let mut image = base.clone();
        let (pages, words) = image.split_at_mut(PAGES * 256);
        for first in (0..PAGES).step_by(50) {
            capture.copy_over_until(0, first + 50);
            let room = &mut pages[first * 256..(first + 50) * 256];
            capture.write_to_stable_storage(0, first..first + 50, room).expect("a child");
        }
        for first in (0..WORDS).step_by(1000) {
            let room = &mut words[first * 4..(first + 1000) * 4];
            capture.write_to_stable_storage(1, first..first + 1000, room).expect("a child");
        }
        if taken.is_multiple_of(5) {
            continue; // dropped: failed
        }
        assert!(image == wanted, "{name}: image {taken} differs");
        capture.durable();
        base = image;
        compared += 1;
    }
}
