//! Calls of several threads at once: gsns are a serial order of them.

use stillpoint_io::{Rng, SeededRng, SimDisk, in_parallel};

use crate::mix::{Asked, RANDOM, TIME, config, key, state, with_mix};

const CALLS: usize = 3_000;
/// Few keys, so that threads meet.
const KEYS: u64 = 6;

#[test]
fn calls_of_several_threads_come_back() {
    let disk = SimDisk::new(1);
    let engine = with_mix(config(&disk, "command", 3)).open().expect("opens");
    let jobs = (0..4).map(|thread| {
        let engine = &engine;
        move || {
            let rng = SeededRng::new(thread);
            let mut session = engine.session().expect("a session");
            for _ in 0..CALLS {
                let flags = [0, TIME, RANDOM][rng.below(3) as usize];
                let reads = vec![key(0, rng.below(KEYS)), key(1, rng.below(KEYS))];
                let mut writes = vec![key(rng.below(2) as u8, rng.below(KEYS))];
                writes.retain(|write| !reads.contains(write));
                let asked = Asked { seed: rng.next_u64(), flags, reads, writes };
                let called = session.call::<_, (u64, u64, u64)>("mix", &asked.input());
                called.expect("commits");
            }
        }
    });
    in_parallel("calls", jobs.collect()).expect("no thread panics");
    let expected = state(&engine);
    drop(engine);
    let engine = with_mix(config(&disk.kill(), "command", 3)).open().expect("recovers");
    assert!(state(&engine) == expected);
}
