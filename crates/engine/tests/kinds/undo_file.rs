//! Transactions whose undo does not stay in memory. They see what they have done, and end either way.

use std::collections::BTreeMap;
use std::path::Path;

use stillpoint::{Error, Mode, Session, Slot, TableId, Tx, TxError};
use stillpoint_io::{
    Caching, Call, Disk, Fault, FaultPlan, Lasts, OpenMode, Rng, SeededRng, SimDisk,
};

use crate::world::{World, configure_all};

/// Keys of each table, and steps of a transaction. Its undo has about two megabytes.
const KEYS: u64 = 300;
const STEPS: u32 = 3800;

type Records = BTreeMap<(TableId, Vec<u8>), Vec<u8>>;

/// A table, and bytes behind the number in each of its keys. The undo in a SIREN table has the key alone, so its
/// keys are long.
type Keyed = (TableId, usize);

fn keyed(world: &World, kind: usize) -> Keyed {
    (world.table_of(kind), if kind == 3 { 900 } else { 0 })
}

fn key_of((_, more): Keyed, number: u64) -> Vec<u8> {
    let mut key = number.to_be_bytes().to_vec();
    key.resize(8 + more, 7);
    key
}

fn open(disk: &SimDisk) -> Result<World, Error> {
    let mut config = configure_all(disk, 1, 2);
    config.log_segment_bytes = 256 << 10;
    World::open_with(config, 1, 0)
}

/// The files that hold undos.
fn files(disk: &SimDisk) -> Vec<String> {
    let dir = Path::new("undo");
    if disk.exists(dir).expect("a sound disk") {
        disk.list(dir).expect("a directory")
    } else {
        Vec::new()
    }
}

fn is_of_test(error: &Error) -> bool {
    matches!(error, Error::Transaction(TxError::Abandoned(why)) if why.to_string() == "as the test wants it")
}

/// Slots that a transaction has, each with its key.
type Slots = Vec<(Slot, TableId, Vec<u8>)>;

/// A random step of a transaction, which compares what it reads with the map.
fn step(
    tx: &mut Tx<'_>,
    tables: &[Keyed],
    rng: &SeededRng,
    (records, slots): (&mut Records, &mut Slots),
) -> Result<(), TxError> {
    let keyed @ (table, _) = tables[rng.below(tables.len() as u64) as usize];
    let key = key_of(keyed, rng.below(KEYS));
    let at = (table, key.clone());
    match rng.below(12) {
        0 => {
            let existed = tx.delete(table, &key)?;
            assert_eq!(existed, records.remove(&at).is_some(), "{at:?}");
        }
        1 => {
            let found = tx.get(table, &key)?.map(|value| value.to_vec());
            assert_eq!(found.as_ref(), records.get(&at), "{at:?}");
        }
        2 if records.contains_key(&at) => {
            tx.patch(table, &key, 7, b"patched")?;
            records.get_mut(&at).expect("there")[7..14].copy_from_slice(b"patched");
        }
        3 => slots.push((tx.key(table, &key, Mode::Write)?, table, key)),
        4 if !slots.is_empty() => {
            let (slot, table, key) = slots[rng.below(slots.len() as u64) as usize].clone();
            let found = tx.value(slot).map(|value| value.to_vec());
            assert_eq!(found.as_ref(), records.get(&(table, key)), "{slot:?}");
        }
        _ => {
            let value = vec![rng.below(256) as u8; 300 + rng.below(600) as usize];
            tx.put(table, &key, &value)?;
            records.insert(at, value);
        }
    }
    Ok(())
}

/// Compares all records.
fn check(world: &World, tables: &[Keyed], records: &Records, context: &str) {
    let mut session = world.engine.session().expect("a session");
    for &keyed @ (table, _) in tables {
        let of_table = records.keys().filter(|(of, _)| *of == table).count();
        assert_eq!(world.engine.len(table), of_table as u64, "{context}, {table:?}");
        for number in 0..KEYS {
            let key = key_of(keyed, number);
            let mut out = Vec::new();
            let found = session.read(table, &key, &mut out).expect("reads").map(|_| out);
            let expected = records.get(&(table, key));
            assert!(found.as_ref() == expected, "{context}, {table:?}, key {number}");
        }
    }
}

/// Runs one such transaction. `near_end` is called when most is done.
fn run(
    session: &mut Session,
    tables: &[Keyed],
    (seed, fails): (u64, bool),
    records: &mut Records,
    mut near_end: impl FnMut(),
) -> Result<(), Error> {
    let rng = SeededRng::new(seed);
    let mut changed = Records::new();
    let ended = session.transact(|tx| {
        changed.clone_from(records);
        let mut slots = Vec::new();
        for _ in 0..STEPS {
            step(tx, tables, &rng, (&mut changed, &mut slots))?;
        }
        near_end();
        if fails { Err(TxError::abandon("as the test wants it")) } else { Ok(()) }
    });
    if ended.is_ok() {
        *records = changed;
    }
    ended
}

/// Transactions on tables of all kinds commit and roll back in turn. The machine stops near the end of each, and
/// sometimes again amid the start.
pub(crate) fn a_large_transaction_ends_either_way() {
    let disk = SimDisk::new(1);
    let world = open(&disk).expect("opens");
    let tables = [0, 2, 2, 2, 3, 3].map(|kind| keyed(&world, kind));
    let noise = world.engine.table("noise").expect("a table");
    let [mut session, mut other] = [(); 2].map(|()| world.engine.session().expect("a session"));
    let (mut records, mut images) = (Records::new(), Vec::new());
    for seed in 0..4 {
        let (before, mut most) = (records.clone(), 0);
        let ended = run(&mut session, &tables, (seed, seed % 2 == 1), &mut records, || {
            most = files(&disk).len();
            // Makes the log durable, the open operations included.
            other.transact(|tx| tx.put(noise, b"noise", b"noise")).expect("a sound disk");
            images.push((disk.crash_image(seed), before.clone()));
        });
        assert!(ended.as_ref().map_or_else(is_of_test, |()| seed % 2 == 0), "{ended:?}");
        assert_eq!((most, files(&disk).len()), (1, 0), "files near the end, and behind it");
        check(&world, &tables, &records, &format!("transaction {seed}"));
    }
    images.push((disk.crash_image(9), records));
    for (number, (image, records)) in images.into_iter().enumerate() {
        let image = if number % 2 == 0 { image } else { stopped_while_opening(&image) };
        let again = open(&image).expect("opens");
        assert_eq!(files(&image).len(), 0, "a start removes them");
        check(&again, &tables, &records, &format!("image {number}"));
    }
}

fn stopped_while_opening(image: &SimDisk) -> SimDisk {
    let mut image = image.crash_image(1);
    for nth in [3, 12, 40] {
        image.fail_at(nth, Fault::PowerLoss);
        drop(open(&image));
        image = image.crash(nth);
    }
    image
}

/// Savepoints before and behind what a file has.
pub(crate) fn a_savepoint_is_found_in_the_file() {
    let world = open(&SimDisk::new(1)).expect("opens");
    let (paged, siren) = (world.table_of(2), keyed(&world, 3));
    let mut session = world.engine.session().expect("a session");
    let mut transaction = session.begin().expect("begins");
    let put = |transaction: &mut stillpoint::Transaction<'_>, value: u8| {
        let mut tx = transaction.tx().expect("open");
        (0..KEYS).for_each(|number| {
            tx.put(siren.0, &key_of(siren, number), &[value; 30]).expect("room");
        });
    };
    transaction.tx().expect("open").put(paged, b"first", b"first").expect("room");
    put(&mut transaction, 0);
    put(&mut transaction, 1);
    let mut savepoint = transaction.savepoint().expect("begins a statement");
    for value in 2..5 {
        put(&mut transaction, value);
        put(&mut transaction, value + 10);
        transaction.roll_back_to(savepoint).expect("SIREN takes it back");
        put(&mut transaction, value);
        savepoint = transaction.savepoint().expect("begins a statement");
    }
    put(&mut transaction, 20);
    transaction.tx().expect("open").put(paged, b"second", b"second").expect("room");
    put(&mut transaction, 21);
    let refused = transaction.roll_back_to(savepoint);
    let is_it =
        matches!(refused, Err(Error::Transaction(TxError::NoSavepoints(kind))) if kind == "paged");
    assert!(is_it, "{refused:?}");
    let last = transaction.savepoint().expect("begins a statement");
    put(&mut transaction, 22);
    put(&mut transaction, 23);
    transaction.roll_back_to(last).expect("SIREN takes it back");
    transaction.commit().expect("commits");
    let records = (0..KEYS).map(|number| ((siren.0, key_of(siren, number)), vec![21; 30]));
    check(&world, &[siren], &records.collect(), "behind the savepoints");
    assert_eq!(world.engine.len(paged), 2);
}

/// A file cannot be made: the transaction gets the error and is rolled back, and others go on.
pub(crate) fn a_refused_file_of_undos_ends_its_transaction_alone() {
    let disk = SimDisk::new(1);
    let world = open(&disk).expect("opens");
    let tables = [2, 3].map(|kind| keyed(&world, kind));
    let mut session = world.engine.session().expect("a session");
    let mut records = Records::new();
    for fault in [Fault::DiskFull, Fault::InputOutput] {
        disk.inject(FaultPlan {
            calls: vec![Call::CreateDir],
            nth: 1,
            fault,
            lasts: Lasts::UntilCleared,
        });
        let refused = run(&mut session, &tables, (1, false), &mut records, || ());
        let refused = refused.expect_err("the file cannot be made");
        assert!(matches!(refused, Error::Transaction(TxError::Log(_))), "{refused}");
        assert!(refused.to_string().contains("undo"), "{refused}");
        assert_eq!(refused.is_disk_full(), fault == Fault::DiskFull, "{refused}");
        world.engine.health().expect("the store goes on");
        check(&world, &tables, &records, "refused");
        session.transact(|tx| tx.put(tables[0].0, b"more", b"more")).expect("a small one");
        session.transact(|tx| tx.delete(tables[0].0, b"more")).expect("a small one");
        disk.clear_faults();
    }
    run(&mut session, &tables, (1, false), &mut records, || ()).expect("it is made");
    check(&world, &tables, &records, "behind the faults");
}

/// What was brought to a file cannot be read back, or is not what was written. The store fails, and the next
/// start undoes the transaction.
pub(crate) fn a_lost_file_of_undos_fails_the_store() {
    for is_damaged in [false, true] {
        let disk = SimDisk::new(1);
        let world = open(&disk).expect("opens");
        // The undo of SIREN reads nothing else.
        let tables = [keyed(&world, 3)];
        let mut session = world.engine.session().expect("a session");
        let mut records = Records::new();
        run(&mut session, &tables, (1, false), &mut records, || ()).expect("commits");
        let ended = run(&mut session, &tables, (2, true), &mut records, || {
            let path = Path::new("undo").join(&files(&disk)[0]);
            if is_damaged {
                let file = disk.open(&path, OpenMode::ReadWrite, Caching::Buffered);
                let file = file.expect("it is there");
                file.write_at(b"x", 100_000).expect("written");
            } else {
                let (calls, fault) = (vec![Call::Read], Fault::InputOutput);
                disk.inject(FaultPlan { calls, nth: 1, fault, lasts: Lasts::UntilCleared });
            }
        });
        assert!(ended.is_err());
        disk.clear_faults();
        let why = world.engine.health().expect_err("it cannot go on").to_string();
        assert!(why.contains("cannot be undone") && why.contains("undo/"), "{why}");
        assert!(session.transact(|tx| tx.put(tables[0].0, b"more", b"more")).is_err());
        let again = open(&disk.crash_image(1)).expect("opens");
        check(&again, &tables, &records, "started again");
    }
}
