//! Room in the log that is set aside for undos: an abort finds it on a full disk, and a commit gives
//! it back.

use std::collections::BTreeMap;
use std::sync::Arc;

use stillpoint::{Error, TxError};
use stillpoint_io::SimDisk;

use crate::world::{World, configure};

fn open(disk: &SimDisk, segment_bytes: u64) -> World {
    let mut config = configure(disk, 1, 1);
    config.log_segment_bytes = segment_bytes;
    World::open_with(config, 1, 0).expect("opens")
}

/// A transaction that has changed `operations` values in place is open while others fill the log
/// and the disk. The abort is still logged, the store goes on, and a crash changes nothing. With
/// long segments all room of the transaction lies in the present segment, with short ones in
/// prepared segments.
pub(crate) fn an_abort_finds_room_in_a_full_log() {
    let cases = [(1, 16 << 10), (2, 16 << 10), (7, 16 << 10), (30, 16 << 10)];
    for (operations, segment_bytes) in cases.into_iter().chain([(1, 64 << 10), (3, 64 << 10)]) {
        let disk = SimDisk::new(1);
        let world = open(&disk, segment_bytes);
        let [memory, in_place] = world.tables;
        let mut session = world.engine.session().expect("a session");
        let mut other = world.engine.session().expect("a session");
        let before: BTreeMap<_, _> = (0..operations).map(|n| (vec![n], (0, vec![n; 20]))).collect();
        let filled = session.transact(|tx| {
            before.iter().try_for_each(|(key, (_, value))| tx.put(in_place, key, value))
        });
        filled.expect("commits");
        let mut others = 0;
        let stopped = session.transact(|tx| {
            for key in before.keys() {
                tx.put(in_place, key, &[99; 30])?;
            }
            disk.set_capacity(Some(disk.used_bytes()));
            let refused = loop {
                match other.transact(|tx| tx.put(memory, b"other", &[1; 700])) {
                    Ok(()) => others += 1,
                    Err(error) => break error,
                }
                assert!(others < 1000, "the disk is full");
            };
            assert!(matches!(refused, Error::Transaction(TxError::Log(_))), "{refused}");
            Err::<(), _>(TxError::abandon("as the test wants it"))
        });
        assert!(matches!(stopped, Err(Error::Transaction(TxError::Abandoned(_)))), "{stopped:?}");
        let context = format!(
            "{operations} operations, segments of {segment_bytes}, {others} commits of others"
        );
        world.engine.health().unwrap_or_else(|why| panic!("{context}: {why}"));
        assert_eq!(world.kind.state(in_place), before, "{context}");
        // The room that is set aside for an operation counts, too. So the log refuses the
        // operation, and never its undo.
        let mut most = 0;
        let stopped = session.transact(|tx| {
            for n in 0..250 {
                tx.put(in_place, b"more", &[n; 100])?;
                most = most.max(n);
            }
            Ok(())
        });
        assert!(matches!(stopped, Err(Error::Transaction(TxError::Log(_)))), "{stopped:?}");
        world.engine.health().unwrap_or_else(|why| panic!("{context}, {most} more: {why}"));
        assert_eq!(world.kind.state(in_place), before, "{context}, {most} more");
        let image = Arc::new(disk.crash_image(1));
        image.set_capacity(None);
        assert_eq!(
            open(&image, segment_bytes).kind.state(in_place),
            before,
            "{context}, after a crash"
        );
        disk.set_capacity(None);
        session.transact(|tx| tx.put(in_place, b"more", b"more")).expect("there is room again");
    }
}

/// Transactions commit on a small disk, more than it could set room aside for at once. So each commit
/// gives back the room of its undo.
pub(crate) fn a_commit_gives_the_room_of_its_undo_back() {
    let disk = SimDisk::new(1);
    let world = Arc::new(open(&disk, 16 << 10));
    let in_place = world.tables[1];
    let mut session = world.engine.session().expect("a session");
    disk.set_capacity(Some(disk.used_bytes() + (512 << 10)));
    for n in 0..1_000u16 {
        let put = session.transact(|tx| tx.put(in_place, b"key", &[n as u8; 1_000]));
        put.unwrap_or_else(|error| panic!("commit {n}: {error}"));
        if n % 20 == 19 {
            world.engine.checkpoint().unwrap_or_else(|error| panic!("after commit {n}: {error}"));
        }
    }
}

/// A transaction of very many small changes takes a log and a disk that follow their bytes, not a block for
/// the undo of each. It rolls back and commits, with commits of others between.
pub(crate) fn very_many_small_changes_take_little_log() {
    const CHANGES: u32 = 8_000;
    let disk = SimDisk::new(1);
    let mut config = configure(&disk, 1, 1);
    config.log_segment_bytes = 64 << 10;
    config.log_limit_bytes = 8 << 20;
    let world = World::open_with(config, 1, 0).expect("opens");
    let [memory, in_place] = world.tables;
    let mut session = world.engine.session().expect("a session");
    let mut other = world.engine.session().expect("a session");
    disk.set_capacity(Some(disk.used_bytes() + (16 << 20)));
    for (value, commits) in [(1, true), (2, false), (3, true)] {
        let ended = session.transact(|tx| {
            for n in 0..CHANGES {
                tx.put(in_place, &n.to_be_bytes(), &[value; 20])?;
                if n % 1000 == 0 {
                    other.transact(|tx| tx.put(memory, b"other", &[value])).expect("room");
                }
            }
            if commits { Ok(()) } else { Err(TxError::abandon("as the test wants it")) }
        });
        let is_abandoned = matches!(ended, Err(Error::Transaction(TxError::Abandoned(_))));
        assert!(if commits { ended.is_ok() } else { is_abandoned }, "{value}: {ended:?}");
        world.engine.health().unwrap_or_else(|why| panic!("{value}: {why}"));
        let state = world.kind.state(in_place);
        let found =
            state.values().filter(|(_, of)| of[..] == [if commits { value } else { 1 }; 20]);
        assert_eq!(found.count(), CHANGES as usize, "{value}");
        world.engine.checkpoint().expect("room");
    }
}
