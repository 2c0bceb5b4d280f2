//! The offline tools on stores with SIREN tables: sound ones, those that a crash has left, damaged ones, and
//! what is refused.

use std::path::Path;

use stillpoint::offline::{self, Extent, Loader};
use stillpoint::{Config, Engine, Error, Kind, TxError};
use stillpoint_format::names;
use stillpoint_io::{Caching, Call, Disk, OpenMode, RealDisk, Rng, SeededRng, SimDisk, read_all};

use super::{Records, all, change, configure, open, put};

/// All records of a table, as `dump` visits them.
fn dumped(disk: &SimDisk, table: &str) -> Result<Records, Error> {
    let mut records = Vec::new();
    let builder = Engine::builder(configure(disk));
    let done = builder.dump(Some(table), &mut |name, key, value| {
        assert_eq!(name, table);
        records.push((key.to_vec(), value.to_vec()));
        Ok(())
    })?;
    assert_eq!(done.extent, Extent::Whole);
    assert!(records.is_sorted(), "in the order of the keys");
    Ok(records.into_iter().collect())
}

/// Calls that change the disk.
fn changes(disk: &SimDisk) -> u64 {
    let counts = disk.call_counts();
    counts.changes() - counts.of(Call::Open)
}

/// After a crash at any moment, with a transaction open, `check` finds no damage, and `dump` and a start
/// find the same records.
#[test]
fn a_sound_store_is_never_called_damaged() {
    let (mut judged, mut with_pages, mut with_losers) = (0, 0, 0);
    for seed in 0..6 {
        let rng = SeededRng::new(seed);
        let disk = SimDisk::new(seed);
        let (engine, table) = open(&disk);
        let memory = engine.table("memory").expect("a table");
        let [mut session, _, mut other] = [0; 3].map(|_| engine.session().expect("a session"));
        let mut images = vec![(disk.crash_image(rng.next_u64()), 0)];
        let mut records = Records::new();
        for round in 0..4 {
            change(&mut session, table, seed * 10 + round, &mut records);
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
            let checked = Engine::builder(configure(&image)).check().expect("readable");
            assert!(checked.damage.is_empty(), "seed {seed}: {:?}", checked.damage);
            let found = dumped(&image, "orders").expect("a sound store");
            assert_eq!(changes(&image), calls, "the tools write nothing");
            let (engine, table) = open(&image);
            assert!(all(&mut engine.session().expect("a session"), table) == found, "seed {seed}");
            let mut tables = checked.siren_tables.iter();
            let checked_table = tables.find(|table| table.name == "orders").expect("checked");
            assert_eq!(checked_table.records as usize, found.len(), "seed {seed}");
            judged += 1;
            with_pages += usize::from(checked.siren.is_some_and(|of| of.pages > 5));
            with_losers += losers;
        }
    }
    assert!(judged >= 40 && with_pages >= 20 && with_losers >= 20, "{judged} {with_pages}");
}

/// Each page and the directory, one flipped bit: the tools name file, disk page and table. The opening is
/// refused.
#[test]
fn damaged_pages_are_told_with_their_place() {
    let disk = SimDisk::new(3);
    let (engine, table) = open(&disk);
    let mut session = engine.session().expect("a session");
    let mut records = Records::new();
    change(&mut session, table, 1, &mut records);
    engine.checkpoint().expect("a sound disk");
    drop(session);
    engine.close().expect("closes");
    let path = Path::new(names::SIREN_PAGES);
    let used = read_all(&disk, path).expect("it is there").len() / 4096;
    let (mut pages, mut others) = (0, 0);
    for page in 0..used {
        let damaged = disk.kill();
        let mut bytes = read_all(&damaged, path).expect("it is there");
        if bytes[page * 4096..][..4096].iter().all(|&byte| byte == 0) {
            continue;
        }
        bytes[page * 4096 + 20] ^= 4;
        let file = damaged.open(path, OpenMode::ReadWrite, Caching::Buffered).expect("there");
        file.write_at(&bytes, 0).expect("written");
        file.sync().expect("flushed");
        let checked = Engine::builder(configure(&damaged)).check().expect("readable");
        let opened = Engine::open(configure(&damaged)).map(drop);
        if checked.damage.is_empty() {
            // A disk page that the newest checkpoint does not name.
            opened.expect("opens");
            others += 1;
            continue;
        }
        let refused = opened.expect_err("damaged");
        assert!(matches!(refused, Error::Siren(_)) && refused.is_damage(), "{refused}");
        assert!(dumped(&damaged, "orders").is_err_and(|error| error.is_damage()));
        assert_eq!(checked.damage.len(), 1, "page {page}: {:?}", checked.damage);
        let said = &checked.damage[0];
        assert!(said.starts_with("/sim/siren/pages: ") && said.contains("restore"), "{said}");
        let named = format!("disk page {page} of table 0: ");
        if said.contains(&named) {
            assert!(said.ends_with("(table \"orders\")"), "{said}");
            pages += 1;
        }
    }
    assert!(pages > 10 && others <= used - pages, "{pages} pages of {used}, {others} free");
}

fn config(dir: &Path) -> Config {
    let mut config = configure(&SimDisk::new(1));
    config.environment.disk = None;
    config.data = dir.to_owned();
    config
}

/// The refusal of a tool, for this reason.
fn is_refused(result: Result<(), Error>, why: &str) {
    let refused = result.expect_err(why);
    let is_it = matches!(
        &refused,
        Error::OtherKinds { kind: "siren", names, .. } if names == &["orders"]
    );
    let text = refused.to_string();
    assert!(is_it && !refused.is_damage(), "{refused}");
    assert!(text.contains("siren tables (orders)") && text.contains(why), "{text}");
}

/// restore, load and repair say why they do not work; merge, inspect and check beside a process do.
#[test]
fn what_does_not_work_is_refused_with_the_reason() {
    let home = tempfile::tempdir().expect("a directory");
    let (dir, to) = (home.path().join("data"), home.path().join("restored"));
    let engine = Engine::open(config(&dir)).expect("opens");
    let table = engine.table_with("orders", Kind::Siren).expect("a table");
    let memory = engine.table("memory").expect("a table");
    let mut session = engine.session().expect("a session");
    let mut records = Records::new();
    for round in 0..3 {
        change(&mut session, table, round, &mut records);
        put(&mut session, memory, &[round as u8], b"value");
        engine.checkpoint().expect("a sound disk");
    }
    // Beside the engine.
    let checked = offline::check(&dir).expect("readable");
    assert!(matches!(checked.extent, Extent::Checkpoint(Some(_))), "{checked:?}");
    assert!(checked.damage.is_empty() && checked.siren.is_some_and(|of| of.pages > 10));
    let inspection = offline::inspect(&dir).expect("a store");
    assert!(inspection.siren.is_some_and(|of| of.level > 0 && of.page_bytes.is_none()));
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
    let siren = inspection.siren.expect("there are some");
    assert_eq!(siren.page_bytes, Some(4096), "{siren:?}");
    assert!(siren.pages[&table.0] > 10 && siren.file_pages > Some(10), "{siren:?}");
    let engine = Engine::open(config(&dir)).expect("opens");
    assert!(all(&mut engine.session().expect("a session"), table) == records);
    put(&mut engine.session().expect("a session"), table, b"later", b"value");
    drop(engine);

    gives_nothing_up(&dir);
}

/// Nothing is given up: neither of a log, nor of pages, nor without the MANIFEST.
fn gives_nothing_up(dir: &Path) {
    let disk = RealDisk::new(dir).expect("a disk");
    let (log, kept) = (Path::new("log"), Path::new("kept"));
    let repaired = |why: &str| {
        for accepts in [false, true] {
            is_refused(offline::repair(dir, accepts).map(drop), why);
        }
    };
    disk.rename(log, kept).expect("it is there");
    repaired("put a copy of the data directory back");
    assert!(offline::check(dir).is_ok_and(|checked| !checked.damage.is_empty()));
    disk.rename(kept, log).expect("it is there");
    assert!(offline::check(dir).is_ok_and(|checked| checked.damage.is_empty()));

    let pages = Path::new(names::SIREN_PAGES);
    let bytes = read_all(&disk, pages).expect("it is there");
    let mut flipped = bytes.clone();
    for page in flipped.chunks_mut(4096).skip(3) {
        page[20] ^= 1;
    }
    let write = |bytes: &[u8]| {
        let file = disk.open(pages, OpenMode::ReadWrite, Caching::Buffered).expect("there");
        file.write_at(bytes, 0).expect("written");
    };
    write(&flipped);
    repaired("put a copy of the data directory back");
    write(&bytes);

    disk.rename(pages, kept).expect("it is there");
    repaired("put a copy of the data directory back");
    let missing = Engine::open(config(dir)).map(drop).expect_err("its pages are gone");
    let said = missing.to_string();
    let is_told =
        ["siren/pages", "MANIFEST", "level", "put"].iter().all(|word| said.contains(word));
    assert!(is_told && missing.is_damage(), "{said}");
    let checked = offline::check(dir).expect("readable");
    assert!(checked.damage.iter().any(|defect| said.ends_with(defect)), "{:?}", checked.damage);
    disk.rename(kept, pages).expect("it is there");
    assert!(offline::check(dir).is_ok_and(|checked| checked.damage.is_empty()));

    disk.rename(Path::new(names::MANIFEST), kept).expect("it is there");
    let refused = offline::repair(dir, true).map(drop).expect_err("refused");
    assert!(refused.to_string().contains("no file but the MANIFEST says"), "{refused}");
    disk.remove(log).expect("it is there");
    disk.remove(Path::new("checkpoint")).expect("it is there");
    let refused = Engine::open(config(dir)).map(drop).expect_err("pages without a MANIFEST");
    assert!(matches!(refused, Error::ManifestMissing { .. }), "{refused}");
}
