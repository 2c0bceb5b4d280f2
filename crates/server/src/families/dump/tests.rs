use stillpoint_io::{Rng, SeededRng};

use super::crc::crc64;
use super::*;
use crate::families::sorted_sets::score::{content, parts};
use crate::heap::Heap;
use crate::keyspace::Field;

fn texts(value: &Value) -> (Option<Kind>, Vec<Vec<u8>>) {
    match value {
        Value::String(string) => (None, vec![string.clone()]),
        Value::Collection(kind, contents) => {
            (Some(*kind), contents.iter().map(<[u8]>::to_vec).collect())
        }
    }
}

/// Reads a body within a heap of 64 MiB.
fn value_of(body: &[u8]) -> Option<Value> {
    match read::read(body, &mut Heap::of(64 << 20), false) {
        Read::Value(value) => Some(value),
        _ => None,
    }
}

fn read_body(kind: u8, bytes: &[u8]) -> Option<(Option<Kind>, Vec<Vec<u8>>)> {
    value_of(&[&[kind], bytes].concat()).map(|value| texts(&value))
}

/// LZF of zeros: one literal, and copies of 264 bytes each.
fn packed_zeros(copies: usize) -> Vec<u8> {
    let mut packed = vec![0, 0];
    packed.extend([0xe0, 0xff, 0].repeat(copies));
    let (packed_len, len) = (packed.len() as u32, 1 + 264 * copies as u32);
    let lengths = [&[0xc3, 0x80][..], &packed_len.to_be_bytes(), &[0x80], &len.to_be_bytes()];
    [&lengths.concat()[..], &packed].concat()
}

/// A payload that unpacks to more than the heap has, or than an event loop should unpack.
#[test]
fn long_packed_strings_are_told_before_they_are_unpacked() {
    let body = [&[types::STRING][..], &packed_zeros(5_000)].concat();
    let mut heap = Heap::of(1 << 20);
    assert!(matches!(read::read(&body, &mut heap, true), Read::Long(1_320_001)));
    assert!(heap.check().is_ok());
    assert!(matches!(read::read(&body, &mut heap, false), Read::Nothing));
    assert!(heap.check().is_err());
    let mut heap = Heap::of(2 << 20);
    let read = read::read(&body, &mut heap, false);
    assert!(matches!(read, Read::Value(Value::String(zeros)) if zeros.len() == 1_320_001));
    // Each element takes more heap than a packed one takes bytes.
    let listpack =
        [&60_007_u32.to_le_bytes()[..], &[0, 0], &[7, 1].repeat(30_000), &[0xff]].concat();
    let string = [&[0x80][..], &60_007_u32.to_be_bytes(), &listpack].concat();
    let body = [&[types::LIST_QUICKLIST_2, 1, 2][..], &string].concat();
    let mut heap = Heap::of(1 << 20);
    assert!(matches!(read::read(&body, &mut heap, true), Read::Nothing) && heap.check().is_err());
    let mut heap = Heap::of(4 << 20);
    assert!(matches!(read::read(&body, &mut heap, true), Read::Value(_)));
}

/// Redis takes no expiry of a field that `HPEXPIREAT` would not take.
#[test]
fn expiries_beyond_the_latest_are_refused() {
    for (at, is_read) in [((1 << 46) - 1, true), (1 << 46, false), (u64::MAX, false)] {
        let field = [&string(b"a")[..], &string(b"x")].concat();
        let early = [&[1, 0x81][..], &at.to_be_bytes(), &field].concat();
        assert_eq!(read_body(types::HASH_TIMED_EARLY, &early).is_some(), is_read, "{at}");
        let timed = [&at.to_le_bytes()[..], &[1, 1], &field].concat();
        assert_eq!(read_body(types::HASH_TIMED, &timed).is_some(), is_read, "{at}");
    }
}

/// A string of an RDB file, below 64 bytes.
fn string(bytes: &[u8]) -> Vec<u8> {
    assert!(bytes.len() < 64);
    [&[bytes.len() as u8], bytes].concat()
}

fn owned(all: &[&str]) -> Vec<Vec<u8>> {
    all.iter().map(|text| text.as_bytes().to_vec()).collect()
}

#[test]
fn what_is_written_is_read() {
    let rng = SeededRng::new(1);
    let text = || match rng.below(5) {
        0 => (rng.next_u64() as i64 >> rng.below(64)).to_string().into_bytes(),
        1 => vec![rng.below(256) as u8; rng.below(20_000) as usize],
        2 => b"007".to_vec(),
        _ => rng.next_u64().to_be_bytes().to_vec(),
    };
    for round in 0..200 {
        let kind = [Kind::LIST, Kind::SET, Kind::SORTED_SET, Kind::HASH][round % 4];
        let mut contents = Contents::default();
        let mut names = std::collections::HashSet::new();
        for number in 0..=rng.below(100) {
            let name = text();
            if kind == Kind::LIST {
                contents.push(&name);
            } else if names.insert(name.clone()) {
                let score = [f64::INFINITY, -0.1, 5e-324, number as f64][number as usize % 4];
                match kind {
                    Kind::SORTED_SET => contents.push(&content(score, &name)),
                    Kind::SET => contents.push(&name),
                    _ => {
                        let expires = round % 8 > 3 && rng.below(2) == 0;
                        let expire_at_ms = expires.then(|| rng.below(1 << 46));
                        let field = Field { name: &name, value: &text(), expire_at_ms };
                        contents.push(&field.content());
                    }
                }
            }
        }
        let value = Value::Collection(kind, contents);
        let payload = write::payload(&value);
        let read = value_of(read::checked(&payload).expect("checksum")).expect("a value");
        assert_eq!(texts(&read), texts(&value));
        let value = Value::String(text());
        let payload = write::payload(&value);
        let read = value_of(read::checked(&payload).expect("checksum")).expect("a value");
        assert_eq!(texts(&read), texts(&value));
    }
}

#[test]
fn packed_forms_are_read() {
    let listpack =
        b"\x1c\0\0\0\x05\0\x05\x01\x81a\x02\xdf\xff\x02\xf1\x00\x80\x03\xe0\x02bc\x04\xff";
    let mut listpack = listpack.to_vec();
    listpack[0] = listpack.len() as u8;
    let elements = owned(&["5", "a", "-1", "-32768", "bc"]);
    let quick = [&[1, 2][..], &string(&listpack)].concat();
    assert_eq!(
        read_body(types::LIST_QUICKLIST_2, &quick),
        Some((Some(Kind::LIST), elements.clone()))
    );
    assert_eq!(
        read_body(types::SET_LISTPACK, &string(&listpack)),
        Some((Some(Kind::SET), elements))
    );
    let plain = [&[1, 1][..], &string(b"plain")].concat();
    assert_eq!(
        read_body(types::LIST_QUICKLIST_2, &plain),
        Some((Some(Kind::LIST), owned(&["plain"])))
    );
    let mut ziplist =
        b"\0\0\0\0\0\0\0\0\x04\0\0\x01a\x03\xf4\x02\xfe\xf8\x03\xc0\x00\x80\xff".to_vec();
    ziplist[0] = ziplist.len() as u8;
    let elements = owned(&["a", "3", "-8", "-32768"]);
    assert_eq!(
        read_body(types::LIST_ZIPLIST, &string(&ziplist)),
        Some((Some(Kind::LIST), elements.clone()))
    );
    let quick = [&[1][..], &string(&ziplist)].concat();
    assert_eq!(read_body(types::LIST_QUICKLIST, &quick), Some((Some(Kind::LIST), elements)));
    let fields = read_body(types::HASH_ZIPLIST, &string(&ziplist)).expect("a hash");
    assert_eq!(fields, (Some(Kind::HASH), owned(&["\x01a3", "\x02-8-32768"])));
    let intset = b"\x02\0\0\0\x02\0\0\0\xff\xff\x05\0";
    assert_eq!(
        read_body(types::SET_INTSET, &string(intset)),
        Some((Some(Kind::SET), owned(&["-1", "5"])))
    );
    let zipmap = b"\x02\x03foo\x03\x00bar\x01k\x02\x01vvx\xff";
    assert_eq!(
        read_body(types::HASH_ZIPMAP, &string(zipmap)),
        Some((Some(Kind::HASH), owned(&["\x03foobar", "\x01kvv"])))
    );
    // "aaaaaaaaaa": a literal, and nine copies of it.
    let lzf = [&[0xc3, 5, 10][..], b"\x00a\xe0\x00\x00"].concat();
    assert_eq!(read_body(types::STRING, &lzf), Some((None, owned(&["aaaaaaaaaa"]))));
    let binary = [&[1][..], &string(b"m"), &1.5f64.to_le_bytes()].concat();
    let (kind, pairs) = read_body(types::SORTED_SET_BINARY, &binary).expect("a sorted set");
    assert_eq!((kind, parts(&pairs[0])), (Some(Kind::SORTED_SET), (1.5, &b"m"[..])));
}

#[test]
fn what_is_no_value_is_refused() {
    // Among the refused payloads are an empty collection, an element that comes twice, bytes behind
    // the value, NaN, and an unknown type.
    for (kind, bytes) in [
        (types::LIST, &b"\0"[..]),
        (types::SET, b"\x02\x01a\x01a"),
        (types::HASH, b"\x02\x01a\x01x\x01a\x01y"),
        (types::STRING, b"\x01ab"),
        (types::SORTED_SET, b"\x01\x01a\xfd"),
        (types::LIST, b"\x81\xff\xff\xff\xff\xff\xff\xff\xff"),
        (types::STRING, b"\xc3\x01\x81\x00\x00\x00\x7f\xff\xff\xff\xff\x00"),
        (19, b"\x00"),
    ] {
        assert!(read_body(kind, bytes).is_none(), "{kind} {bytes:?}");
    }
    let mut payload = write::payload(&Value::String(b"x".to_vec()));
    assert!(read::checked(&payload).is_some() && read::checked(&payload[..9]).is_none());
    payload[1] ^= 1;
    assert!(read::checked(&payload).is_none());
    let mut newer = b"\0\x01x\x0d\0".to_vec();
    newer.extend_from_slice(&crc64(&newer).to_le_bytes());
    assert!(read::checked(&newer).is_none(), "version 13 is unknown");
}

/// Random bytes with every type, some of them almost right.
#[test]
fn hostile_bytes_end_in_a_value_or_none() {
    let rng = SeededRng::new(3);
    for _ in 0..200_000 {
        let mut body: Vec<u8> = (0..rng.below(40)).map(|_| rng.below(256) as u8).collect();
        if rng.below(2) == 0 && body.len() > 12 {
            // A packed form with its right length.
            body[0] = body.len() as u8 - 1;
            let len = body.len() as u32 - 1;
            body[1..5].copy_from_slice(&len.to_le_bytes());
            let last = body.len() - 1;
            body[last] = 0xff;
        }
        for kind in 0..=types::HASH_TIMED_LISTPACK {
            let _ = read_body(kind, &body);
        }
    }
}
