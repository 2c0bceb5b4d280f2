use stillpoint_io::{Rng, SeededRng};

use super::*;

/// A dump of three records, and the bytes of their keys.
fn dump() -> Vec<u8> {
    let mut out = Vec::new();
    let mut dump = Dump::new(&mut out).expect("memory");
    for (key, expires_ms) in [(&b"plain"[..], None), (b"\x00\xff", Some(7)), (b"\"\n\x01", None)] {
        let value = Bytes(b"value"[..].into());
        let record =
            Record { table: "db0".into(), key: Bytes(key.into()), tag: 0, value, expires_ms };
        dump.record(&record).expect("memory");
    }
    dump.end(&["db0".to_owned(), "t".to_owned()]).expect("memory");
    out
}

/// Reads a text to its end: the number of records, or the error.
fn read(text: &[u8]) -> Result<u64, DumpError> {
    let mut lines = Lines::new(text);
    let mut records = 0;
    while let Some(found) = lines.next()? {
        records += u64::from(matches!(found, Found::Record(_)));
    }
    Ok(records)
}

#[test]
fn every_cut_is_noticed() {
    let dump = dump();
    assert_eq!(read(&dump).expect("whole"), 3);
    for len in 0..dump.len() - 1 {
        let error = read(&dump[..len]).expect_err("cut off");
        assert!(error.to_string().starts_with("line "), "{len}: {error}");
    }
    assert_eq!(read(&dump[..dump.len() - 1]).expect("the last newline is no matter"), 3);
    assert_eq!(read(&[&dump[..], b"\n  \n", &dump].concat()).expect("two dumps"), 6);
}

#[test]
fn spoilt_dumps_end_in_an_error_or_in_records() {
    let (dump, rng) = (dump(), SeededRng::new(5));
    for _ in 0..20_000 {
        let mut spoilt = dump.clone();
        let at = rng.next_u64() as usize % spoilt.len();
        match rng.next_u64() % 3 {
            0 => spoilt[at] ^= 1 << (rng.next_u64() % 8),
            1 => drop(spoilt.remove(at)),
            _ => spoilt.insert(at, rng.next_u64() as u8),
        }
        // Damage may change a record, but not the number of records, which the last line states.
        if let Ok(records) = read(&spoilt) {
            assert_eq!(records, 3, "{}", String::from_utf8_lossy(&spoilt));
        }
    }
}
