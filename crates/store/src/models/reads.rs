//! Stamps of reads. Two workers share a word of a line and leave stamps, while a third is about to
//! overwrite a key of the line. The third heeds each read of its key that has ended.

use std::sync::Arc;

use shuttle::thread;
use stillpoint_sync::Mutex;

use super::SCHEDULES;
use crate::read_stamps::ReadStamps;

/// The hash of two keys, which so share a line.
const HASH: u64 = 0;

#[test]
fn a_read_of_the_key_is_heeded() {
    let work = || {
        let stamps = Arc::new(ReadStamps::new());
        // The lock of the key that is overwritten, with the greatest gsn that has read the key.
        let key = Arc::new(Mutex::new(0));
        let others = stamps.clone();
        // Reads the other key of the line.
        let first = thread::spawn(move || others.leave(8, HASH, 100));
        let (left, lock) = (stamps.clone(), key.clone());
        let second = thread::spawn(move || {
            for gsn in [50, 120] {
                let mut read_by = lock.lock();
                left.leave(9, HASH, gsn);
                *read_by = gsn;
            }
        });
        for _ in 0..3 {
            let read_by = key.lock();
            let heeded = if stamps.are_left() { stamps.heed(HASH) } else { 0 };
            assert!(heeded >= *read_by, "{heeded} is below the read of gsn {read_by}");
        }
        first.join().expect("no panic");
        second.join().expect("no panic");
        assert_eq!(stamps.heed(HASH), 120);
    };
    shuttle::check_random(work, SCHEDULES);
    shuttle::check_pct(work, SCHEDULES, 3);
}
