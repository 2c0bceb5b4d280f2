//! Models of read sections and grace periods, in every interleaving. The grace period waits for a
//! worker, or the worker sees the change. The waiting thread sees all effects of the worker's read
//! section.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::thread;
use std::sync::Arc;
use stillpoint_sync::ReadSections;
use stillpoint_sync::atomic::{AtomicU64, Ordering};

struct World {
    read_sections: ReadSections,
    phase: AtomicU64,
    /// A value that belongs to the workers in phase 0, and to the driver after a grace period in
    /// phase 1.
    data: UnsafeCell<u32>,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            read_sections: ReadSections::new(2),
            phase: AtomicU64::new(0),
            data: UnsafeCell::new(0),
        })
    }

    fn add(&self) {
        // SAFETY: the model checker detects and reports a violation.
        self.data.with_mut(|data| unsafe { *data += 1 });
    }

    fn get(&self) -> u32 {
        // SAFETY: as above.
        self.data.with(|data| unsafe { *data })
    }

    fn change_phase(&self) {
        self.phase.store(1, Ordering::SeqCst);
        self.read_sections.wait_grace_period();
    }
}

/// A worker opens two read sections in turn. The thread that waits for the grace period may see the
/// second one open while it waits for the first. The thread must still see all effects of the
/// first.
#[test]
fn a_grace_period_waits_for_whoever_missed_the_change() {
    loom::model(|| {
        let world = World::new();
        let working = world.clone();
        let slot = world.read_sections.claim().expect("room");
        let worker = thread::spawn(move || {
            let mut done = 0;
            for _ in 0..2 {
                let read_section = working.read_sections.read_section(slot);
                // Acquire as in the store. The read sections alone must suffice.
                if working.phase.load(Ordering::Acquire) == 0 {
                    working.add();
                    done += 1;
                }
                drop(read_section);
            }
            done
        });
        world.change_phase();
        let seen = world.get();
        let done = worker.join().unwrap();
        assert_eq!(seen, done, "a worker went on in the old phase");
    });
}

/// Reclamation: a cell is used again only after a wait for workers that found it before it left the
/// index.
#[test]
fn memory_is_used_again_only_when_nobody_can_look_at_it() {
    loom::model(|| {
        let world = World::new();
        let index = Arc::new(AtomicU64::new(1));
        let slot = world.read_sections.claim().expect("room");
        let (reading, lookup) = (world.clone(), index.clone());
        let reader = thread::spawn(move || {
            for _ in 0..2 {
                reading.read_sections.enter(slot);
                if lookup.load(Ordering::Acquire) == 1 {
                    assert_eq!(reading.get(), 0, "the cell was used again");
                }
                reading.read_sections.exit(slot);
            }
        });
        index.store(0, Ordering::Release);
        let mut token = world.read_sections.token();
        if world.read_sections.has_passed(&mut token) {
            world.add();
        }
        reader.join().unwrap();
    });
}

/// Two workers, and a driver that waits for both.
#[test]
fn every_slot_is_waited_for() {
    loom::model(|| {
        let world = World::new();
        let counted = Arc::new(AtomicU64::new(0));
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let (world, counted) = (world.clone(), counted.clone());
                thread::spawn(move || {
                    let slot = world.read_sections.claim().expect("room");
                    world.read_sections.enter(slot);
                    if world.phase.load(Ordering::Relaxed) == 0 {
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                    world.read_sections.exit(slot);
                    world.read_sections.unclaim(slot);
                })
            })
            .collect();
        world.change_phase();
        let before = counted.load(Ordering::Relaxed);
        for worker in workers {
            worker.join().unwrap();
        }
        assert_eq!(counted.load(Ordering::Relaxed), before);
    });
}
