//! Test of the cost of a fork. The test has a process of its own, since pages that a child of
//! another test shares would not be counted.
#![cfg(target_os = "linux")]

use stillpoint_io::ForkedMemory;
use stillpoint_state::schemes::{Fork, NoCheckpoints};
use stillpoint_state::{Arrays, Naive, PageSize};

/// Both tests count pages of the whole process.
#[test]
fn forks() {
    cells_kept_from_children_cost_a_fork_nothing();
    for pages in [PageSize::Small, PageSize::Huge] {
        an_image_holds_the_state_and_what_is_dirty(pages);
    }
}

/// The memory is that of the state × (1 + dirty share), ± 5 %, since reading the child copies no
/// pages.
fn an_image_holds_the_state_and_what_is_dirty(pages: PageSize) {
    const CELLS: usize = 16 << 10;
    const CELL_BYTES: usize = 4096;
    let mut builder = Arrays::<Fork<Naive>>::builder();
    builder.pages(pages);
    let cells = builder.array::<[u64; CELL_BYTES / 8]>("pages", CELLS);
    let mut arrays = builder.build().expect("memory");
    arrays.fill(cells, |index| [index as u64; CELL_BYTES / 8]).expect("no tick has ended");
    for dirty_percent in [0, 1, 37, 100] {
        arrays.end_tick();
        let capture = arrays.point_of_consistency().expect("none is under way");
        let dirty = CELLS * dirty_percent / 100;
        for number in 0..dirty {
            // An odd step visits every cell once.
            arrays.write_part(cells, number * 7919 % CELLS, 8, &[7; 8]);
        }
        let mut image = vec![0; 64 * CELL_BYTES];
        for first in (0..CELLS).step_by(64) {
            let read = capture.write_to_stable_storage(0, first..first + 64, &mut image);
            read.expect("the child is there");
        }
        let share = capture.freeze_cost().copied_bytes as f64 / (CELLS * CELL_BYTES) as f64;
        let (held, wanted) = (1.0 + share, 1.0 + dirty as f64 / CELLS as f64);
        assert!(
            (held / wanted - 1.0).abs() < 0.05,
            "{pages:?}, {dirty_percent} %: {held} × the state"
        );
        capture.durable();
    }
}

fn cells_kept_from_children_cost_a_fork_nothing() {
    const WORDS: usize = 8 << 20;
    let filled = || {
        let mut builder = Arrays::<NoCheckpoints<Naive>>::builder();
        let words = builder.array::<u64>("words", WORDS);
        let mut cells = builder.build().expect("memory");
        cells.fill(words, |index| index as u64).expect("no tick has ended");
        (cells, words)
    };
    let mut states = [filled(), filled()];
    states[0].0.keep_from_children();
    let forked = ForkedMemory::fork().expect("fork");
    let copied = states.each_mut().map(|(cells, words)| {
        let before = forked.copied_bytes();
        for index in 0..WORDS {
            cells.write(*words, index, 7);
        }
        (forked.copied_bytes() - before) >> 20
    });
    assert!(copied[0] < 8 && copied[1] > 48, "{copied:?} MiB copied");
}
