//! A disk that is full in the middle of a transaction: its abort finds room in the log.

use std::collections::BTreeMap;
use std::sync::Arc;

use stillpoint::{Error, TxError};
use stillpoint_io::SimDisk;

use crate::world::{World, configure};

fn open(disk: &SimDisk) -> World {
    World::open_with(configure(disk, 1, 1), 1, 0).expect("opens")
}

/// Others fill the log and the disk while a transaction is open that has changed `operations` values in
/// place. The abort is logged all the same, the store goes on, and a crash changes nothing.
pub(crate) fn an_abort_finds_room_in_a_full_log() {
    for operations in [1, 2, 7, 30] {
        let disk = SimDisk::new(1);
        let world = open(&disk);
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
        let context = format!("{operations} operations, {others} commits of others");
        world.engine.health().unwrap_or_else(|why| panic!("{context}: {why}"));
        assert_eq!(world.kind.state(in_place), before, "{context}");
        // What is set aside for an operation counts, too: the log refuses the operation, not its undo.
        let mut most = 0;
        let stopped = session.transact(|tx| {
            for n in 0..100 {
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
        assert_eq!(open(&image).kind.state(in_place), before, "{context}, after a crash");
        disk.set_capacity(None);
        session.transact(|tx| tx.put(in_place, b"more", b"more")).expect("there is room again");
    }
}
