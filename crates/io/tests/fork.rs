//! Test of the pages that the system copies after a fork. The test has a process of its own, since
//! pages that a child of another test shares would not be counted.
#![cfg(target_os = "linux")]

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use stillpoint_io::ForkedMemory;

#[test]
fn pages_that_are_written_to_are_counted() {
    const WORDS: usize = 4 << 20;
    let cells: Vec<AtomicU32> = (0..WORDS as u32).map(AtomicU32::new).collect();
    let forked = ForkedMemory::fork().expect("fork");
    let before = forked.copied_bytes();
    for cell in &cells[..WORDS / 2] {
        cell.store(7, Relaxed);
    }
    let copied = forked.copied_bytes() - before;
    assert!((7 << 20..12 << 20).contains(&copied), "8 MiB were written, {copied} bytes copied");
}
