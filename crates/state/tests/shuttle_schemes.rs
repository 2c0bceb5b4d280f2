//! Random schedules of a mutator and a writer over a few cells, for every scheme and layout. Each image
//! is the state at its point of consistency, each read the newest value.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p stillpoint-state --release --test shuttle_schemes`; with
//! `--features planted-bugs` the models must catch the bugs of the copier, too.
#![cfg(shuttle)]

use shuttle::sync::{Arc, Mutex};
use shuttle::thread;
use stillpoint_state::{Array, Arrays, Capture, Content, Field, Scheme, registry};

const CELLS: usize = 5;
const PERIODS: usize = 4;
const SCHEDULES: usize = 20_000;
/// Schedules in which a planted bug is sought. The rarest bug shows in one schedule of 2,000.
#[cfg(feature = "planted-bugs")]
const SCHEDULES_FOR_A_BUG: usize = 400_000;

type Page = [u32; 2];

/// A capture that the mutator gives to the writer, with its expected image.
type Job<S> = Mutex<Option<(Capture<S>, Vec<u8>)>>;

/// The number of schedules.
struct Model(usize);

impl registry::Program for Model {
    type Output = ();

    fn run<S: Scheme>(self) {
        if S::CONTENT != Content::Nothing {
            shuttle::check_random(side_by_side::<S>, self.0);
        }
    }
}

fn side_by_side<S: Scheme>() {
    let mut builder = Arrays::<S>::builder();
    let pages = builder.array::<Page>("pages", CELLS);
    let mut arrays = builder.build().expect("memory");
    let job: Arc<Job<S>> = Arc::new(Mutex::new(None));
    let is_over = Arc::new(shuttle::sync::atomic::AtomicBool::new(false));
    let writer = {
        let (job, is_over) = (job.clone(), is_over.clone());
        thread::spawn(move || write_images(&job, &is_over))
    };
    let mut model = [[0u32; 2]; CELLS];
    let mut wanted: Vec<u8> = Vec::new();
    for period in 0..PERIODS as u32 {
        // The threads write first in this period, since the copier has not come to any cell yet.
        if period == 3 {
            write_in_chunks(&mut arrays, pages, &mut model);
        }
        for write in 0..4u32 {
            let (index, value) = ((period * 2 + write) as usize % CELLS, period * 10 + write + 1);
            if write % 2 == 0 {
                arrays.write_part(pages, index, 4, &value.to_le_bytes());
                model[index][1] = value;
            } else {
                arrays.write(pages, index, [value; 2]);
                model[index] = [value; 2];
            }
            assert_eq!(arrays.read(pages, index), model[index]);
        }
        arrays.end_tick();
        if let Some(capture) = arrays.point_of_consistency() {
            // A failed capture of changes is taken again.
            if capture.tick() == arrays.ticks() {
                wanted = model.iter().flatten().flat_map(|word| word.to_le_bytes()).collect();
            }
            *job.lock().expect("no panic") = Some((capture, wanted.clone()));
        }
    }
    is_over.store(true, shuttle::sync::atomic::Ordering::SeqCst);
    writer.join().expect("no panic");
    assert!(arrays.iter(pages).eq(model));
}

/// A thread for each chunk writes a part of its first cell.
fn write_in_chunks<S: Scheme>(
    arrays: &mut Arrays<S>,
    pages: Array<Page>,
    model: &mut [[u32; 2]; CELLS],
) {
    let mut pages = arrays.array_mut(pages);
    let mut chunks = pages.chunks_mut(1);
    let firsts: Vec<usize> = chunks.iter_mut().map(|chunk| chunk.range().start).collect();
    thread::scope(|threads| {
        for mut chunk in chunks.iter_mut() {
            threads.spawn(move || {
                let index = chunk.range().start;
                chunk.write_field(index, Field::at(4), 100 + index as u32);
            });
        }
    });
    for index in firsts {
        model[index][1] = 100 + index as u32;
    }
}

fn write_images<S: Scheme>(job: &Job<S>, is_over: &shuttle::sync::atomic::AtomicBool) {
    let mut image = vec![0; CELLS * 8];
    let mut taken = 0;
    loop {
        let was_over = is_over.load(shuttle::sync::atomic::Ordering::SeqCst);
        let next = job.lock().expect("no panic").take();
        let Some((capture, wanted)) = next else {
            if was_over {
                return;
            }
            thread::yield_now();
            continue;
        };
        taken += 1;
        // The copier and the capture go cell by cell.
        for index in 0..CELLS {
            capture.copy_over_until(0, index + 1);
            let room = &mut image[index * 8..(index + 1) * 8];
            capture.write_to_stable_storage(0, index..index + 1, room).expect("infallible");
        }
        if taken == 2 {
            continue; // dropped: failed
        }
        assert_eq!(image, wanted, "image {taken}");
        capture.durable();
    }
}

#[test]
fn images_and_reads_are_right_in_every_schedule() {
    // A child of this process would hold the model's atomics, not their values.
    for name in registry::REGISTRY.names().filter(|name| *name != "fork") {
        registry::run(name, Model(SCHEDULES)).expect("it is in the table");
    }
    #[cfg(feature = "planted-bugs")]
    planted_bugs_are_caught();
}

/// With the feature `planted-bugs` each bug of the copier must be caught.
#[cfg(feature = "planted-bugs")]
fn planted_bugs_are_caught() {
    use stillpoint_state::planted::{Bug, plant};
    for bug in [
        Bug::PiggybackIgnoresThePieceUnderWay,
        Bug::PiggybackAnnouncesTooLate,
        Bug::PiggybackOverlooksTheWriter,
        Bug::ChunksIgnoreTheCopier,
    ] {
        plant(Some(bug));
        for name in ["pb", "pb-interleaved", "pb-packed"] {
            let run = std::panic::catch_unwind(|| registry::run(name, Model(SCHEDULES_FOR_A_BUG)));
            assert!(run.is_err(), "{bug:?} in {name} is not caught");
        }
    }
    plant(None);
}
