//! Crashes amid a redo that is larger than the pool, so that it places pages on the disk as it goes on.

use stillpoint::{Engine, Error, Kind, TxError};
use stillpoint_io::{Fault, Rng, SeededRng, SimDisk};

use super::{Records, all, configure, fill, open, put};

/// Frames of the pool.
const FRAMES: usize = 16;
/// Starts that are cut off, one after the other.
const DEEP: usize = 3;
/// Places of the first cut, one in each part of the start.
const CUTS: u64 = 24;

/// A store that has stopped with a transaction open behind a checkpoint, and its records.
fn stopped() -> (SimDisk, Records) {
    let disk = SimDisk::new(31);
    let (engine, table) = open(&disk);
    let mut session = engine.session().expect("a session");
    let mut records = fill(&mut session, table, 31);
    // The map that counts names slots that a redo must not take.
    engine.checkpoint().expect("a sound disk");
    for key in (0..2000u64).step_by(3) {
        let (key, value) = (key.to_be_bytes().to_vec(), vec![key as u8; 100]);
        put(&mut session, table, &key, &value);
        records.insert(key, value);
    }
    let in_memory = engine.table_with("in memory", Kind::Memory).expect("a table");
    let (mut image, mut other) = (None, engine.session().expect("a session"));
    let ended = session.transact(|tx| {
        // Far more pages than the pool has.
        for key in (0..2000u64).step_by(9) {
            tx.put(table, &key.to_be_bytes(), &[31; 300])?;
        }
        for key in (0..2000u64).step_by(5) {
            tx.delete(table, &key.to_be_bytes())?;
        }
        // A flush of the log, so that the disk has the operations of the open transaction.
        other.transact(|tx| tx.put(in_memory, b"key", b"value")).expect("commits");
        image = Some(disk.crash_image(31));
        Err::<(), _>(TxError::abandon("as the test wants it"))
    });
    assert!(ended.is_err());
    (image.expect("the body has run"), records)
}

/// Opens the store. Gives the pages that the start has written, and those that it has read.
fn start(disk: &SimDisk) -> Result<(Engine, [u64; 2]), Error> {
    let engine = Engine::open(configure(disk, FRAMES))?;
    let pool = engine.stats().pool.expect("a pool");
    Ok((engine, [pool.writes, pool.reads]))
}

fn judge(disk: &SimDisk, records: &Records, context: &str) {
    for again in ["", ", once more"] {
        let (engine, table) = open(disk);
        let found = all(&mut engine.session().expect("a session"), table);
        assert_eq!(found.len(), records.len(), "{context}{again}");
        assert!(found == *records, "{context}{again}: records differ");
        engine.close().expect("closes");
    }
}

pub(crate) fn a_crash_amid_a_redo_larger_than_the_pool() {
    let (image, records) = stopped();
    let whole = image.crash_image(0);
    let before = whole.call_counts().changes();
    let (engine, [writes, reads]) = start(&whole).expect("opens");
    let changes = whole.call_counts().changes() - before;
    assert!(writes > 3 * FRAMES as u64 && reads > 0, "{writes} written, {reads} read");
    drop(engine);
    judge(&whole.kill(), &records, "not cut off");
    let rng = SeededRng::new(31);
    let mut cut_off = [0; DEEP];
    for cut in 0..CUTS {
        let (mut disk, mut context) = (image.crash_image(rng.next_u64()), String::new());
        for (depth, count) in cut_off.iter_mut().enumerate() {
            let (from, part) = if depth == 0 { (cut, CUTS) } else { (0, 1) };
            let nth = 1 + from * changes / part + rng.below(changes / part);
            disk.fail_at(nth, Fault::PowerLoss);
            let opened = start(&disk);
            *count += u64::from(opened.is_err());
            drop(opened);
            context += &format!("cut off at call {nth}, ");
            disk = disk.crash(rng.next_u64());
        }
        judge(&disk, &records, &context);
    }
    assert!(cut_off.iter().all(|&count| count > CUTS / 4), "{cut_off:?} of {CUTS}");
}
