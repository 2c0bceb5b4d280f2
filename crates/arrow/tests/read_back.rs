//! Exported files are read back by Arrow's own reader.

use std::io::Cursor;

use arrow_array::cast::AsArray;
use arrow_array::types::{TimestampMillisecondType, UInt8Type};
use arrow_array::{Array, RecordBatch};
use arrow_ipc::reader::FileReader;
use stillpoint::{Config, Engine};
use stillpoint_arrow::{ExportError, TABLE, TableFile, export_table};

type Row = (Vec<u8>, u8, Vec<u8>, Option<i64>);

fn rows(batch: &RecordBatch) -> Vec<Row> {
    let keys = batch.column(0).as_binary::<i32>();
    let tags = batch.column(1).as_primitive::<UInt8Type>();
    let values = batch.column(2).as_binary::<i32>();
    let expiries = batch.column(3).as_primitive::<TimestampMillisecondType>();
    (0..batch.num_rows())
        .map(|row| {
            let expires = expiries.is_valid(row).then(|| expiries.value(row));
            (keys.value(row).to_vec(), tags.value(row), values.value(row).to_vec(), expires)
        })
        .collect()
}

/// The number of record batches, and all rows in the order of their keys.
fn read(bytes: Vec<u8>) -> (usize, Vec<Row>) {
    let batches: Vec<RecordBatch> = FileReader::try_new(Cursor::new(bytes), None)
        .expect("a footer")
        .map(|batch| batch.expect("a record batch"))
        .collect();
    let mut all: Vec<Row> = batches.iter().flat_map(rows).collect();
    all.sort_unstable();
    (batches.len(), all)
}

#[test]
fn a_table_is_exported_as_of_one_instant_and_read_back() {
    let directory = tempfile::tempdir().expect("a directory");
    let engine = Engine::open(Config::new(directory.path())).expect("opens");
    let [pets, other] = ["pets", "other"].map(|name| engine.table(name).expect("a table"));
    let mut session = engine.session().expect("a session");
    let mut expected = Vec::new();
    for number in 0..20_000_u32 {
        // Empty values, small ones and some that are larger than a record batch.
        let len = if number % 5_000 == 7 { 5 << 20 } else { number as usize % 300 };
        let (key, value) = (number.to_be_bytes().to_vec(), vec![number as u8; len]);
        session
            .transact(|tx| {
                tx.put(other, &key, b"not this one")?;
                tx.put_tagged(pets, &key, number as u8, &value)
            })
            .expect("commits");
        expected.push((key, number as u8, value, None));
    }
    let (records, bytes) = export_table(&engine, "pets", Vec::new()).expect("exports");
    let (batches, found) = read(bytes);
    assert_eq!(records, 20_000);
    assert!(batches > 4, "{batches} record batches");
    assert!(found == expected, "the rows differ");

    let (records, bytes) = {
        let _empty = engine.table("empty").expect("a table");
        export_table(&engine, "empty", Vec::new()).expect("exports")
    };
    assert_eq!((records, read(bytes)), (0, (0, Vec::new())));
    let refused = export_table(&engine, "cats", Vec::new()).expect_err("no such table");
    assert_eq!(refused.to_string(), "there is no table cats; there are: empty, other, pets");
    drop(session);
    engine.close().expect("closes");
}

#[test]
fn tags_expiries_and_the_table_are_in_the_file() {
    let mut file = TableFile::new(Vec::new(), "db0").expect("begins");
    file.push(b"a", 1, b"first", Some(1_790_000_000_000)).expect("fits");
    file.push(b"b", 255, b"", None).expect("fits");
    file.push(b"c", 0, b"\x00\xff", Some(u64::MAX)).expect("fits");
    let (records, bytes) = file.finish().expect("ends");
    assert_eq!(records, 3);
    let reader = FileReader::try_new(Cursor::new(bytes.clone()), None).expect("a footer");
    assert_eq!(reader.schema().metadata().get(TABLE).map(String::as_str), Some("db0"));
    let expected = [
        (b"a".to_vec(), 1, b"first".to_vec(), Some(1_790_000_000_000)),
        (b"b".to_vec(), 255, Vec::new(), None),
        (b"c".to_vec(), 0, b"\x00\xff".to_vec(), Some(i64::MAX)),
    ];
    assert_eq!(read(bytes.clone()).1, expected);
    // A file that was cut off is none.
    let cut = Cursor::new(&bytes[..bytes.len() - 1]);
    assert!(FileReader::try_new(cut, None).is_err());
}

#[test]
fn a_full_disk_is_told() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let told = TableFile::new(Full, "t").map(drop).expect_err("no space");
    assert!(matches!(told, ExportError::Arrow(_)), "{told}");
}
