//! The offline tools on stores with paged tables: sound ones, those that a crash has left, and what is
//! refused.

use std::path::Path;

use stillpoint::offline::{self, Extent, Loader};
use stillpoint::{Config, Engine, Error, Kind, TxError};
use stillpoint_io::{Call, Disk, RealDisk, Rng, SeededRng, SimDisk};

use super::{PAGE_BYTES, Records, all, configure, fill, open, put};

/// All records of a table, as `dump` visits them.
fn dumped(disk: &SimDisk, table: &str) -> Records {
    let mut records = Vec::new();
    let builder = Engine::builder(configure(disk, 16));
    let done = builder.dump(Some(table), &mut |name, key, value| {
        assert_eq!(name, table);
        records.push((key.to_vec(), value.to_vec()));
        Ok(())
    });
    assert_eq!(done.expect("a sound store").extent, Extent::Whole);
    assert!(records.is_sorted(), "in the order of the keys");
    records.into_iter().collect()
}

/// Calls that change the disk.
fn changes(disk: &SimDisk) -> u64 {
    let counts = disk.call_counts();
    counts.changes() - counts.of(Call::Open)
}

/// After a crash at any moment, with a transaction open, `check` finds no damage, and `dump` and a start
/// find the same records.
pub(crate) fn a_sound_store_is_never_called_damaged() {
    let (mut judged, mut with_pages, mut with_losers) = (0, 0, 0);
    for seed in 0..6 {
        let rng = SeededRng::new(seed);
        let disk = SimDisk::new(seed);
        let (engine, table) = open(&disk);
        let memory = engine.table("memory").expect("a table");
        let [mut session, _, mut other] = [0; 3].map(|_| engine.session().expect("a session"));
        let mut images = vec![(disk.crash_image(rng.next_u64()), 0)];
        for round in 0..4 {
            for _ in 0..150 {
                let key = rng.below(600).to_be_bytes();
                let value = vec![rng.below(256) as u8; rng.below(900) as usize];
                let ended = session.transact(|tx| {
                    if rng.below(4) == 0 {
                        tx.delete(table, &key)?;
                    } else {
                        tx.put(table, &key, &value)?;
                    }
                    tx.put(memory, &key, b"memory")?;
                    if rng.below(10) == 0 { Err(TxError::abandon("as wanted")) } else { Ok(()) }
                });
                drop(ended);
            }
            let stopped = session.transact(|tx| {
                for number in 0..rng.below(40) {
                    tx.put(table, &(number * 17).to_be_bytes(), &[7; 300])?;
                }
                // The flush of another session of the same log makes the open changes durable.
                other.transact(|tx| tx.put(memory, b"other", b"other")).expect("a sound disk");
                other.flush().expect("a sound disk");
                images.push((disk.crash_image(rng.next_u64()), 1));
                Err::<(), _>(TxError::abandon("as the test wants it"))
            });
            assert!(stopped.is_err());
            if round % 2 == 0 {
                engine.checkpoint().expect("a sound disk");
                images.push((disk.crash_image(rng.next_u64()), 0));
            }
        }
        session.flush().expect("a sound disk");
        images.push((disk.crash_image(rng.next_u64()), 0));
        drop((session, other, engine));
        for (image, losers) in images {
            let calls = changes(&image);
            let checked = Engine::builder(configure(&image, 16)).check().expect("readable");
            assert!(checked.damage.is_empty(), "seed {seed}: {:?}", checked.damage);
            let found = dumped(&image, "orders");
            assert_eq!(changes(&image), calls, "the tools write nothing");
            let (engine, table) = open(&image);
            assert!(all(&mut engine.session().expect("a session"), table) == found, "seed {seed}");
            let tree = checked.trees.iter().find(|tree| tree.name == "orders").expect("checked");
            assert_eq!(tree.records as usize, found.len(), "seed {seed}");
            judged += 1;
            with_pages += usize::from(checked.pages.is_some_and(|of| of.pages > 20));
            with_losers += losers;
        }
    }
    assert!(judged >= 40 && with_pages >= 20 && with_losers >= 20, "{judged} {with_pages}");
}

/// One table is emptied, and another one never filled. Their pages have another size than the usual one,
/// which only the MANIFEST tells.
pub(crate) fn the_store_tells_the_size_of_its_pages() {
    let disk = SimDisk::new(5);
    let (engine, table) = open(&disk);
    engine.table_with("empty", Kind::Paged).expect("a table");
    let mut session = engine.session().expect("a session");
    fill(&mut session, table, 1);
    session.flush().expect("a sound disk");
    let before = disk.crash_image(1);
    engine.checkpoint().expect("a sound disk");
    engine.flush_tables(&[table]).expect("a sound disk");
    put(&mut session, table, b"key", b"value");
    session.flush().expect("a sound disk");
    let emptied = disk.crash_image(2);
    drop((session, engine));
    for disk in [before, emptied] {
        let mut unset = configure(&disk, 16);
        unset.page_bytes = None;
        let checked = Engine::builder(unset.clone()).check().expect("readable");
        assert!(checked.damage.is_empty(), "{:?}", checked.damage);
        assert_eq!(checked.trees.len(), 2);
        let mut other = configure(&disk, 16);
        other.page_bytes = Some(2 * PAGE_BYTES);
        other.pool_bytes = Some(64 * PAGE_BYTES);
        let refused = Engine::open(other).map(drop).expect_err("another size");
        let is_it = matches!(&refused, Error::Config { setting: "page_size", .. });
        assert!(is_it && refused.to_string().contains("have pages of 4096 bytes"), "{refused}");
        let engine = Engine::open(unset).expect("the store tells it");
        let table = engine.table_with("orders", Kind::Paged).expect("a table");
        let found = all(&mut engine.session().expect("a session"), table);
        assert_eq!(found.len() as u64, engine.len(table));
    }
}

fn config(dir: &Path) -> Config {
    let mut config = configure(&SimDisk::new(1), 16);
    config.environment.disk = None;
    config.data = dir.to_owned();
    config
}

/// The refusal of a tool, for this reason.
fn is_refused(result: Result<(), Error>, why: &str) {
    let refused = result.expect_err(why);
    let is_it = matches!(
        &refused,
        Error::OtherKinds { kind: "paged", names, .. } if names == &["orders"]
    );
    let text = refused.to_string();
    assert!(is_it && !refused.is_damage(), "{refused}");
    assert!(text.contains("paged tables (orders)") && text.contains(why), "{text}");
}

/// restore, load and repair say why they do not work; merge and check beside a process do.
pub(crate) fn what_does_not_work_is_refused_with_the_reason() {
    let home = tempfile::tempdir().expect("a directory");
    let (dir, to) = (home.path().join("data"), home.path().join("restored"));
    let engine = Engine::open(config(&dir)).expect("opens");
    let table = engine.table_with("orders", Kind::Paged).expect("a table");
    let memory = engine.table("memory").expect("a table");
    let mut session = engine.session().expect("a session");
    for round in 0..3 {
        fill(&mut session, table, round);
        put(&mut session, memory, &[round as u8], b"value");
        engine.checkpoint().expect("a sound disk");
    }
    // Beside the engine.
    let checked = offline::check(&dir).expect("readable");
    assert!(matches!(checked.extent, Extent::Checkpoint(Some(_))), "{checked:?}");
    assert!(checked.damage.is_empty() && checked.pages.is_some_and(|of| of.pages > 50));
    is_refused(offline::dump(&dir, None, &mut |_, _, _| Ok(())).map(drop), "end the process");
    let mut found = 0;
    let dumped = offline::dump(&dir, Some("memory"), &mut |_, _, _| {
        found += 1;
        Ok(())
    });
    assert_eq!((dumped.map(drop).ok(), found), (Some(()), 3));
    drop(session);
    engine.close().expect("closes");

    let epoch = offline::inspect(&dir).expect("a store").manifest.checkpoints[0].epoch;
    is_refused(offline::restore(&dir, epoch, &to).map(drop), "copy the whole directory");
    assert!(!to.exists(), "nothing was made");
    for adds in [false, true] {
        let loader = Loader::open(Config::new(&dir), adds);
        is_refused(loader.map(drop), "such tables need the log");
    }
    let merged = offline::merge(&dir, 1);
    assert!(merged.is_ok(), "{merged:?}");
    let repair = offline::repair(&dir, true).expect("it is sound");
    assert!(repair.gives_up.is_empty() && !repair.done, "{repair:?}");
    let inspection = offline::inspect(&dir).expect("a store");
    let pages = inspection.pages.expect("there are some");
    assert_eq!((pages.page_bytes, pages.records.len()), (PAGE_BYTES, 1), "{pages:?}");
    assert!(pages.pages.is_some_and(|count| count > 50) && pages.slots >= pages.pages);
    let engine = Engine::open(config(&dir)).expect("opens");
    let records = all(&mut engine.session().expect("a session"), table);
    assert_eq!(pages.records[&table.0], records.len() as u64);
    put(&mut engine.session().expect("a session"), table, b"later", b"value");
    drop(engine);

    gives_nothing_up(&dir);
}

/// Nothing is given up, neither of a log nor without the MANIFEST.
fn gives_nothing_up(dir: &Path) {
    let disk = RealDisk::new(dir).expect("a disk");
    let (log, kept) = (Path::new("log"), Path::new("kept"));
    disk.rename(log, kept).expect("it is there");
    for accepts in [false, true] {
        let repaired = offline::repair(dir, accepts).map(drop);
        is_refused(repaired, "put a copy of the data directory back");
    }
    assert!(offline::check(dir).is_ok_and(|checked| !checked.damage.is_empty()));
    disk.rename(kept, log).expect("it is there");
    assert!(offline::check(dir).is_ok_and(|checked| checked.damage.is_empty()));
    disk.rename(Path::new("MANIFEST"), kept).expect("it is there");
    let refused = offline::repair(dir, true).map(drop).expect_err("refused");
    assert!(refused.to_string().contains("no file but the MANIFEST says"), "{refused}");
    disk.remove(log).expect("it is there");
    disk.remove(Path::new("checkpoint")).expect("it is there");
    let refused = Engine::open(config(dir)).map(drop).expect_err("pages without a MANIFEST");
    assert!(matches!(refused, Error::ManifestMissing { .. }), "{refused}");
}
