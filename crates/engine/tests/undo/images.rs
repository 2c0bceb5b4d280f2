//! What the records of the journal `undo-redo` say about the values that were overwritten.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stillpoint::{
    Call, Durability, Engine, Error, KeySet, Label, Mode, Procedure, QuiesceFor, Slot, Stamp,
    TableId, Tx, TxError,
};
use stillpoint_format::ident::HEADER_BYTES;
use stillpoint_format::log::{BatchReader, RecordKind, SegmentHeader, Step, WriteOp};
use stillpoint_format::names::log_dir;
use stillpoint_io::{Caching, Clock, Disk, OpenMode, RealClock, SimDisk, spawn};

use crate::config;

/// A before-image: the key, and the label and the value of before, the old bytes of ranges, or splices.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Image {
    Value(Vec<u8>, Label, Vec<u8>),
    Absent(Vec<u8>),
    Ranges(Vec<u8>, Vec<(u32, Vec<u8>)>),
    /// The old deadline, and the old bytes of ranges.
    Until(Vec<u8>, u64, Vec<(u32, Vec<u8>)>),
    /// Offsets, numbers of replaced bytes, and the bytes that replace them.
    Splices(Vec<u8>, Vec<(u32, u32, Vec<u8>)>),
}

/// The kinds and the before-images of all records of log 0, oldest first.
fn records(disk: &SimDisk) -> Vec<(RecordKind, Vec<Image>)> {
    let dir = PathBuf::from(log_dir(0));
    let mut names = disk.list(&dir).expect("a log");
    names.retain(|name| !name.starts_with("spare"));
    names.sort();
    let mut found = Vec::new();
    for name in names {
        let file = disk.open(&dir.join(name), OpenMode::Read, Caching::Buffered).expect("there");
        let mut segment = vec![0; file.len().expect("a length") as usize];
        file.read_at(&mut segment, 0).expect("reads");
        let header = SegmentHeader::decode(&segment[..HEADER_BYTES]).expect("a header");
        let mut reader = BatchReader::new(&header, &segment);
        while let Step::Batch(batch) = reader.next_batch() {
            for record in batch.records() {
                let record = record.expect("legal");
                let split = record.before_images().expect("legal");
                let images = split.into_iter().flat_map(|(images, _)| images);
                let image = |write: Result<stillpoint_format::log::Write<'_>, _>| {
                    let write = write.expect("legal");
                    let key = write.key.to_vec();
                    match write.op {
                        WriteOp::Put { label, value } => Image::Value(key, label, value.to_vec()),
                        WriteOp::Delete => Image::Absent(key),
                        WriteOp::Patch(ranges) => {
                            let owned = ranges.map(|of| (of.offset, of.bytes.to_vec()));
                            Image::Ranges(key, owned.collect())
                        }
                        WriteOp::Until { deadline, ranges } => {
                            let owned = ranges.map(|of| (of.offset, of.bytes.to_vec()));
                            Image::Until(key, deadline, owned.collect())
                        }
                        WriteOp::Splice(splices) => {
                            let owned =
                                splices.map(|of| (of.offset, of.removed, of.bytes.to_vec()));
                            Image::Splices(key, owned.collect())
                        }
                    }
                };
                found.push((record.kind, images.map(image).collect()));
            }
        }
    }
    found
}

fn value(key: &[u8], tag: u8, value: &[u8]) -> Image {
    Image::Value(key.to_vec(), Label::from(tag), value.to_vec())
}

fn until(key: &[u8], deadline: u64, ranges: &[(u32, &[u8])]) -> Image {
    let owned = ranges.iter().map(|&(offset, bytes)| (offset, bytes.to_vec()));
    Image::Until(key.to_vec(), deadline, owned.collect())
}

fn splices(key: &[u8], splices: &[(u32, u32, &[u8])]) -> Image {
    let owned = splices.iter().map(|&(offset, removed, bytes)| (offset, removed, bytes.to_vec()));
    Image::Splices(key.to_vec(), owned.collect())
}

fn absent(key: &[u8]) -> Image {
    Image::Absent(key.to_vec())
}

/// Each kind of write logs what it overwrites: a value, a large value, or that there was none. This
/// holds for cells of several copies, too.
#[test]
fn records_have_what_was_overwritten() {
    for scheme in ["none", "calc:partial", "calc-stored", "cou", "zigzag", "hourglass", "ping-pong"]
    {
        let disk = SimDisk::new(1);
        let mut settings = config(&disk, "undo-redo");
        settings.checkpoint = scheme.to_owned();
        let engine = Engine::open(settings).expect("opens");
        let table = engine.table("things").expect("a table");
        let mut session = engine.session().expect("a session");
        let large = vec![7; 100_000];
        let mut expected = Vec::new();
        let mut expect = |images: Vec<Image>| expected.push((RecordKind::UndoWrites, images));

        session.transact(|tx| tx.put(table, b"a", b"one")).expect("commits");
        expect(vec![absent(b"a")]);
        session.transact(|tx| tx.put_tagged(table, b"a", 3, b"twotwotwotwo")).expect("commits");
        expect(vec![value(b"a", 0, b"one")]);
        session.transact(|tx| tx.patch(table, b"a", 2, b"PATCHED!")).expect("commits");
        expect(vec![Image::Ranges(b"a".to_vec(), vec![(2, b"otwotwot".to_vec())])]);
        session.transact(|tx| tx.patch(table, b"a", 9, b"longer than it was")).expect("commits");
        expect(vec![value(b"a", 3, b"twPATCHED!wo")]);
        session
            .transact(|tx| {
                tx.patch(table, b"a", 0, b"XY")?;
                tx.patch(table, b"a", 20, b"Z")
            })
            .expect("commits");
        expect(vec![Image::Ranges(b"a".to_vec(), vec![(0, b"tw".to_vec()), (20, b" ".to_vec())])]);
        session.transact(|tx| tx.put(table, b"a", &large)).expect("commits");
        expect(vec![value(b"a", 3, b"XYPATCHEDlonger thanZit was")]);
        session.transact(|tx| tx.patch(table, b"a", 70_000, b"inlarge!")).expect("commits");
        expect(vec![Image::Ranges(b"a".to_vec(), vec![(70_000, vec![7; 8])])]);
        session.transact(|tx| tx.put(table, b"a", b"small")).expect("commits");
        let mut patched = large.clone();
        patched[70_000..70_008].copy_from_slice(b"inlarge!");
        expect(vec![value(b"a", 0, &patched)]);
        session
            .transact(|tx| {
                tx.put(table, b"b", b"new")?;
                tx.delete(table, b"a").map(drop)
            })
            .expect("commits");
        expect(vec![absent(b"b"), value(b"a", 0, b"small")]);
        let text: Vec<u8> = (0..100).collect();
        session.transact(|tx| tx.put(table, b"text", &text)).expect("commits");
        expect(vec![absent(b"text")]);
        // What takes an append back is short, however long the value is.
        for len in [100, 150] {
            session.transact(|tx| tx.patch(table, b"text", len, &[1; 50])).expect("commits");
            expect(vec![splices(b"text", &[(len as u32, 50, b"")])]);
        }
        session.transact(|tx| tx.put(table, b"a", b"again")).expect("commits");
        expect(vec![absent(b"a")]);
        // A checkpoint in between changes nothing, though a scheme has its value in another copy then.
        engine.checkpoint().ok();
        session.transact(|tx| tx.put(table, b"a", b"later")).expect("commits");
        expect(vec![value(b"a", 0, b"again")]);
        let found = records(&disk.kill());
        assert_eq!(found.len(), expected.len(), "{scheme}");
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!(found == expected, "{scheme}: record {at}");
        }
    }
}

/// A write that changes a deadline logs the one before.
#[test]
fn records_have_the_deadline_that_was_changed() {
    for scheme in ["none", "calc:partial", "calc-stored", "cou", "zigzag", "hourglass", "ping-pong"]
    {
        let disk = SimDisk::new(1);
        let mut settings = config(&disk, "undo-redo");
        settings.checkpoint = scheme.to_owned();
        let engine = Engine::open(settings).expect("opens");
        let table = engine.table("things").expect("a table");
        let mut session = engine.session().expect("a session");
        let mut expected = Vec::new();
        let mut expect = |image: Image| expected.push((RecordKind::UndoWrites, vec![image]));
        // In a cell and in blocks.
        for (key, len) in [(b"small", 100), (b"large", 100_000)] {
            let bytes = vec![7; len];
            let mut run = |change: &dyn Fn(&mut Tx<'_>) -> Result<(), TxError>| {
                session.transact(|tx| change(tx)).expect("commits");
            };
            run(&|tx| tx.put_until(table, key, &bytes, 500));
            expect(absent(key));
            run(&|tx| tx.set_deadline(table, key, 1_000));
            expect(until(key, 500, &[]));
            run(&|tx| tx.set_deadline(table, key, 2_000));
            expect(until(key, 1_000, &[]));
            run(&|tx| {
                tx.patch(table, key, 3, b"patched")?;
                tx.set_deadline(table, key, 0)
            });
            expect(until(key, 2_000, &[(3, &[7; 7])]));
            run(&|tx| tx.put_until(table, key, &bytes, 3_000));
            let mut patched = bytes.clone();
            patched[3..10].copy_from_slice(b"patched");
            expect(value(key, 0, &patched));
            run(&|tx| tx.put(table, key, b"short"));
            expect(Image::Value(key.to_vec(), Label { tag: 0, deadline: 3_000 }, bytes.clone()));
        }
        let found = records(&disk.kill());
        assert_eq!(found.len(), expected.len(), "{scheme}");
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!(found == expected, "{scheme}: record {at}: {:?}", found.1.first().map(brief));
        }
    }
}

/// An image without the bytes of a value.
fn brief(image: &Image) -> Image {
    match image {
        Image::Value(key, label, value) => {
            Image::Value(key.clone(), *label, value[..value.len().min(12)].to_vec())
        }
        other => other.clone(),
    }
}

/// A scheme without a point of consistency says which journal it needs.
#[test]
fn a_journal_that_does_not_suffice_is_refused_with_the_reason() {
    for (scheme, journal, reasons) in [
        ("fuzzy", "none", ["fuzzy needs a log, since a replay completes its", "journal none"]),
        ("fuzzy:partial", "none", ["fuzzy:partial needs a log", "keeps no commits"]),
        ("fuzzy-undo", "none", ["fuzzy-undo needs a log", "journal none"]),
        ("fuzzy-undo", "redo", ["fuzzy-undo needs before-images", "choose journal undo-redo"]),
        ("pfuzzy", "redo", ["fuzzy-undo:partial needs before-images", "or scheme fuzzy"]),
    ] {
        let mut settings = config(&SimDisk::new(1), journal);
        settings.checkpoint = scheme.to_owned();
        if journal == "none" {
            settings.durability = Durability::Checkpoint;
        }
        let refused = Engine::open(settings).expect_err("it does not suffice");
        assert!(matches!(refused, Error::Config { setting: "checkpoint", .. }), "{refused:?}");
        let said = refused.to_string();
        assert!(reasons.iter().all(|reason| said.contains(reason)), "{scheme}, {journal}: {said}");
    }
}

/// With `--log-calls` a record has the call, the writes, and what they overwrite.
#[test]
fn records_with_calls_have_before_images() {
    let disk = SimDisk::new(1);
    let mut settings = config(&disk, "undo-redo");
    settings.log_calls = true;
    let engine = Engine::open(settings).expect("opens");
    let table = engine.table("things").expect("a table");
    let mut session = engine.session().expect("a session");
    session.transact(|tx| tx.put(table, b"long", &[1; 100])).expect("commits");
    session.execute(&mut [Cut(table)][..]);
    session.flush().expect("flushes");
    let after = disk.kill();
    let before = splices(b"long", &[(50, 0, &[1; 2])]);
    assert_eq!(
        records(&after),
        [(RecordKind::UndoWrites, vec![absent(b"long")]), (RecordKind::UndoCommand, vec![before])]
    );
    drop((session, engine));
    let engine = Engine::open(config(&after, "redo")).expect("recovers");
    let mut found = Vec::new();
    let seen = engine.session().expect("a session").read(table, b"long", &mut found);
    assert!(seen.expect("reads").is_some() && found == [1; 98], "the writes of the call");
}

/// A call that cuts two bytes out of a value.
struct Cut(TableId);

impl Procedure for Cut {
    fn declare(&mut self, keys: &mut KeySet) {
        keys.push(self.0, b"long", Mode::Write, 0);
    }
    fn call(&mut self, call: &mut Call) {
        call.set("cut", 1);
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        tx.splice_slot(Slot(0), 50, 2, b"")
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        result.expect("commits");
    }
}

/// The journal may change between any two starts, also with a crash in between.
#[test]
fn the_journal_may_change_at_each_start() {
    let mut disk = SimDisk::new(1);
    let journals = ["redo", "undo-redo", "command", "undo-redo", "redo", "none", "undo-redo"];
    for (round, journal) in journals.into_iter().enumerate() {
        let engine = Engine::open(config(&disk, journal)).expect("opens");
        let table = engine.table("things").expect("a table");
        let mut session = engine.session().expect("a session");
        let mut found = Vec::new();
        for before in 0..round {
            found.clear();
            let seen = session.read(table, &[before as u8], &mut found).expect("reads");
            assert!(seen.is_some() && found == b"new", "round {round}: commit {before}");
        }
        session
            .transact(|tx| {
                tx.put(table, &[round as u8], b"new")?;
                tx.put(table, b"last", &[round as u8])
            })
            .expect("commits");
        if journal == "none" {
            engine.checkpoint().expect("a checkpoint");
        }
        drop((session, engine));
        disk = disk.crash(round as u64);
    }
}

/// Without a checkpoint the before-images are of no use, and a start leaves them alone.
#[test]
fn commits_survive_and_nothing_is_undone_without_need() {
    let disk = SimDisk::new(1);
    let engine = Engine::open(config(&disk, "undo-redo")).expect("opens");
    let table = engine.table("things").expect("a table");
    let mut session = engine.session().expect("a session");
    session.transact(|tx| tx.put(table, b"a", b"one")).expect("commits");
    session.transact(|tx| tx.put(table, b"a", b"two")).expect("commits");
    drop((session, engine));
    for seed in 0..10 {
        let engine = Engine::open(config(&disk.crash(seed), "undo-redo")).expect("recovers");
        let table = engine.table("things").expect("a table");
        let mut found = Vec::new();
        let seen = engine.session().expect("a session").read(table, b"a", &mut found);
        assert!(seen.expect("reads").is_some() && found == b"two", "crash {seed}");
    }
    let unknown = Engine::open(config(&disk, "undo"));
    assert!(matches!(unknown, Err(Error::Config { setting: "journal", .. })));
}

/// The record of a commit has what it overwrites, so many large values at once are too much for the
/// memory. One key can always be deleted.
#[test]
fn a_commit_that_overwrites_too_much_is_refused() {
    const KEYS: u8 = 4;
    let fill = |journal: &str| {
        let disk = SimDisk::new(1);
        let mut settings = config(&disk, journal);
        settings.max_memory_bytes = 64 << 20;
        let engine = Engine::open(settings).expect("opens");
        let table = engine.table("things").expect("a table");
        let mut session = engine.session().expect("a session");
        let large = vec![7; 14 << 20];
        for key in 0..KEYS {
            session.transact(|tx| tx.put(table, &[key], &large)).expect("commits");
            session.flush().expect("flushes");
        }
        (engine, session, table)
    };
    let delete = |session: &mut stillpoint::Session, table, keys: std::ops::Range<u8>| {
        session.transact(|tx| keys.clone().try_for_each(|key| tx.delete(table, &[key]).map(drop)))
    };
    let (_engine, mut session, table) = fill("redo");
    delete(&mut session, table, 0..KEYS).expect("redo logs no values of before");
    let (engine, mut session, table) = fill("undo-redo");
    let buffers = engine.stats().journal.buffer_bytes;
    let refused = delete(&mut session, table, 0..KEYS).expect_err("42 MiB count");
    assert!(matches!(refused, Error::Transaction(TxError::Memory(_))), "{refused}");
    assert_eq!(engine.stats().journal.buffer_bytes, buffers, "nothing was encoded");
    for key in 0..KEYS {
        // There is less room than its value takes.
        delete(&mut session, table, key..key + 1).expect("one key");
        session.flush().expect("flushes");
    }
}

/// A checkpoint as published waits for open transactions, and a thread with one may wait for a flush of
/// tables. So nobody else waits meanwhile.
#[test]
fn a_flush_beside_an_open_transaction_ends() {
    let disk = SimDisk::new(1);
    let mut settings = config(&disk, "undo-redo");
    settings.checkpoint = "fuzzy-undo".to_owned();
    settings.quiesce_for = QuiesceFor::Transactions;
    let engine = Arc::new(Engine::open(settings).expect("opens"));
    let tables = ["things", "others"].map(|name| engine.table(name).expect("a table"));
    let mut session = engine.session().expect("a session");
    let open = session.begin().expect("begins");
    let (taker, flusher) = (engine.clone(), engine.clone());
    let taking = spawn("checkpoint", move || taker.checkpoint().map(drop)).expect("a thread");
    while engine.stats().checkpoints.running.is_none() {
        RealClock.sleep(Duration::from_millis(1));
    }
    // It reaches its wait.
    RealClock.sleep(Duration::from_millis(20));
    let flushing = spawn("flush", move || flusher.flush_tables(&tables[1..])).expect("a thread");
    let begin_ns = RealClock.monotonic_ns();
    while !flushing.is_finished() {
        assert!(RealClock.monotonic_ns() - begin_ns < 60_000_000_000, "the flush hangs");
        RealClock.sleep(Duration::from_millis(1));
    }
    drop(open);
    flushing.join().expect("no panic").expect("flushes");
    taking.join().expect("no panic").expect("a checkpoint");
}
