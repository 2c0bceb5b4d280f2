//! Values that have pages of their own, in a store on the simulated disk.

use stillpoint::{Engine, TxError};
use stillpoint_io::{Rng, SeededRng, SimDisk};

use super::{Records, all, configure, open, put};

/// A value that is told from all others.
fn value(seed: u64, bytes: usize) -> Vec<u8> {
    let rng = SeededRng::new(seed);
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        out.extend_from_slice(&rng.next_u64().to_le_bytes());
    }
    out.truncate(bytes);
    out
}

/// The tools find a directory sound, and no page in it without a table.
fn check(disk: &SimDisk, expected: &Records) {
    let builder = || Engine::builder(configure(disk, 16));
    let checked = builder().check().expect("readable");
    assert!(checked.damage.is_empty(), "{:?}", checked.damage);
    let lost: Vec<_> = checked.harmless.iter().filter(|line| line.contains("no table")).collect();
    assert!(lost.is_empty(), "{lost:?}");
    let mut found = Records::new();
    let mut visit = |_: &str, key: &[u8], value: stillpoint::ValueRef<'_>| {
        found.insert(key.to_vec(), value.to_vec());
        Ok(())
    };
    builder().dump(Some("orders"), &mut visit).expect("a sound store");
    assert!(found == *expected, "the dump");
}

/// Random values, most of them large, with rollbacks, checkpoints and crashes.
pub(crate) fn large_values_survive_crashes_and_leave_nothing_behind() {
    let mut judged = 0;
    for seed in 0..4 {
        let rng = SeededRng::new(seed);
        let (mut disk, mut records) = (SimDisk::new(seed), Records::new());
        for _ in 0..3 {
            let (engine, table) = open(&disk);
            let mut session = engine.session().expect("a session");
            assert!(all(&mut session, table) == records, "seed {seed}");
            for turn in 0..40 {
                let (mut after, fails) = (records.clone(), rng.below(4) == 0);
                let ended = session.transact(|tx| {
                    for _ in 0..1 + rng.below(3) {
                        let key = vec![rng.below(12) as u8];
                        if rng.below(5) == 0 {
                            tx.delete(table, &key)?;
                            after.remove(&key);
                        } else {
                            let value = value(rng.next_u64(), rng.below(40_000) as usize);
                            tx.put(table, &key, &value)?;
                            assert_eq!(tx.get(table, &key)?.expect("just put").to_vec(), value);
                            after.insert(key, value);
                        }
                    }
                    if fails { Err(TxError::abandon("as the test wants it")) } else { Ok(()) }
                });
                assert_eq!(ended.is_err(), fails, "{ended:?}");
                if !fails {
                    records = after;
                }
                if rng.below(10) == 0 {
                    engine.checkpoint().expect("a sound disk");
                }
                if turn % 13 == 0 {
                    session.flush().expect("a sound disk");
                    let image = disk.crash_image(rng.next_u64());
                    let (engine, table) = open(&image);
                    let mut found = engine.session().expect("a session");
                    assert!(all(&mut found, table) == records, "seed {seed}, turn {turn}");
                    drop(found);
                    // A start frees what the crash has left without a reference.
                    engine.checkpoint().expect("a sound disk");
                    engine.close().expect("closes");
                    check(&image, &records);
                    judged += 1;
                }
            }
            session.flush().expect("a sound disk");
            drop((session, engine));
            disk = disk.crash(rng.next_u64());
        }
    }
    assert!(judged >= 40, "{judged}");
}

/// A value is five times as long as the pool. It is read, patched, and deleted.
pub(crate) fn a_value_is_patched_and_longer_than_the_pool() {
    let disk = SimDisk::new(9);
    let (engine, table) = open(&disk);
    let mut session = engine.session().expect("a session");
    let mut expected = value(1, 330_000);
    put(&mut session, table, b"long", &expected);
    put(&mut session, table, b"short", b"short");
    session.transact(|tx| tx.patch(table, b"long", 200_000, b"patched")).expect("commits");
    expected[200_000..200_007].copy_from_slice(b"patched");
    let mut out = Vec::new();
    session.read(table, b"long", &mut out).expect("reads").expect("a value");
    assert!(out == expected);
    let records =
        Records::from([(b"long".to_vec(), expected), (b"short".to_vec(), b"short".to_vec())]);
    assert!(all(&mut session, table) == records);
    session.transact(|tx| tx.put(table, b"long", b"short now")).expect("commits");
    session.transact(|tx| tx.delete(table, b"long")).expect("commits");
    assert_eq!(all(&mut session, table).len(), 1);
    engine.checkpoint().expect("a sound disk");
    let used = engine.stats().pool.expect("a pool");
    assert!(used.reads > 100, "{used:?}");
    drop(session);
    engine.close().expect("closes");
    check(&disk, &Records::from([(b"short".to_vec(), b"short".to_vec())]));
}
