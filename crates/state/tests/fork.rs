//! Cells beside a state that forks. Alone in its process: pages that a child of another test shares
//! would not be counted.
#![cfg(target_os = "linux")]

use stillpoint_io::ForkedMemory;
use stillpoint_state::schemes::NoCheckpoints;
use stillpoint_state::{Arrays, Naive};

#[test]
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
