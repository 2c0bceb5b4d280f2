use stillpoint_format::log::{PatchRange, Splice, WriteIter, WritesEncoder};

use super::*;

const TABLE: (TableId, u32) = (TableId(3), 7);
const KEY: (u64, &[u8]) = (0xFEED << 48, b"key");

type Encode<'a> = &'a dyn Fn(&mut WritesEncoder<'_>, u16, u32, &[u8]);

/// Waiting writes: hash, gsn, table, key, and what encodes the write.
fn push(
    writes: &mut WaitingWrites,
    (hash, key): (u64, &[u8]),
    gsn: u64,
    table: (TableId, u32),
    encode: Encode<'_>,
) {
    let mut body = Vec::new();
    encode(&mut WritesEncoder::new(&mut body), table.0.0, table.1, key);
    let encoded = if gsn.is_multiple_of(2) { body } else { behind_another(key, table, encode) };
    writes.push_alone(hash, gsn, table, &encoded);
}

/// A write that is not the first one of a body, and does not name its table.
fn behind_another(key: &[u8], table: (TableId, u32), encode: Encode<'_>) -> Vec<u8> {
    let mut body = Vec::new();
    let mut writer = WritesEncoder::new(&mut body);
    writer.delete(table.0.0, table.1, b"first").expect("room");
    encode(&mut writer, table.0.0, table.1, key);
    let mut reader = WriteIter::new(&body, 0);
    reader.next().expect("a write").expect("decodes");
    reader.undecoded().0.to_vec()
}

fn put(value: &[u8]) -> impl Fn(&mut WritesEncoder<'_>, u16, u32, &[u8]) {
    move |writer, table, generation, key| {
        let label = Label { tag: 4, deadline: 0 };
        writer.put(table, generation, key, label, value).expect("room");
    }
}

fn patch(offset: u32, bytes: &[u8]) -> impl Fn(&mut WritesEncoder<'_>, u16, u32, &[u8]) {
    move |writer, table, generation, key| {
        let ranges = [PatchRange { offset, bytes }];
        writer.patch(table, generation, key, &ranges).expect("room");
    }
}

fn delete(writer: &mut WritesEncoder<'_>, table: u16, generation: u32, key: &[u8]) {
    writer.delete(table, generation, key).expect("room");
}

type Outcome = Result<Option<(Resolved, Vec<u8>)>, PatchWithoutBase>;

fn apply(pending: &Pending, key: (u64, &[u8]), base: Option<&[u8]>) -> Outcome {
    let mut out = b"before".to_vec();
    let base = base.map(|value| (Label { tag: 4, deadline: 0 }, value));
    let resolved = pending.of_key(TABLE, key).apply(base, &mut out).map_err(|error| match error {
        WaitingError::Misfit(misfit) => misfit,
        WaitingError::Log(unreadable) => panic!("{unreadable}"),
    });
    assert!(out.starts_with(b"before"));
    resolved.map(|resolved| resolved.map(|resolved| (resolved, out[6..].to_vec())))
}

fn alone(pending: &Pending, key: (u64, &[u8])) -> Option<bool> {
    pending.of_key(TABLE, key).stand_alone().expect("in memory")
}

fn keys_of(pending: &Pending, number: usize) -> Vec<WaitingKey<'_>> {
    pending.keys_of(number, |_| true).expect("in memory")
}

#[test]
fn writes_of_several_threads_are_applied_in_their_order() {
    let mut threads = WaitingWrites::for_threads(2);
    push(&mut threads[1], KEY, 9, TABLE, &patch(5, b"!!"));
    push(&mut threads[1], KEY, 5, TABLE, &patch(2, b"CD"));
    push(&mut threads[0], KEY, 7, TABLE, &|writer, table, generation, key| {
        let splices = [Splice { offset: 1, removed: 2, bytes: b"xyz" }];
        writer.splice(table, generation, key, splices.into_iter()).expect("room");
    });
    push(&mut threads[0], KEY, 8, TABLE, &|writer, table, generation, key| {
        writer.patch_until((table, generation, key), 77, &[]).expect("room");
    });
    // Others, that have a part in common with the key.
    push(&mut threads[0], (KEY.0, b"another"), 6, TABLE, &put(b"another's"));
    push(&mut threads[0], KEY, 6, (TableId(3), 8), &put(b"of a later generation"));
    push(&mut threads[0], (KEY.0 + 1, b"key"), 6, TABLE, &put(b"of another hash"));
    let pending = Pending::new(threads);
    assert!(pending.may_have(KEY.0));
    assert_eq!(alone(&pending, KEY), Some(false));
    // abcde, abCDe, axyzDe, axyzD!!
    for is_sorted in [false, true] {
        if is_sorted {
            pending.sort((0, 1));
        }
        assert_eq!(pending.is_sorted(KEY.0), is_sorted);
        let (resolved, value) =
            apply(&pending, KEY, Some(b"abcde")).expect("they fit").expect("some");
        assert_eq!((&*value, resolved.gsn), (&b"axyzD!!"[..], 9));
        assert_eq!(resolved.label, Some(Label { tag: 4, deadline: 77 }));
    }
    assert_eq!(alone(&pending, (KEY.0, b"another")), Some(true));
    assert_eq!(alone(&pending, (KEY.0, b"none")), None);
    assert_eq!(apply(&pending, (KEY.0, b"none"), Some(b"base")), Ok(None));
    assert!(pending.may_have(KEY.0) && !pending.may_have(KEY.0 + 2) && !pending.may_have(!KEY.0));
    let keys = pending.keys_of(partition_of(KEY.0), |_| true).expect("in memory");
    let keys: Vec<_> = keys.iter().map(|of| (of.hash - KEY.0, of.table.1, of.key)).collect();
    let expected: [(u64, u32, &[u8]); 4] =
        [(0, 7, b"key"), (0, 7, b"another"), (0, 8, b"key"), (1, 7, b"key")];
    assert_eq!(keys, expected);
}

#[test]
fn the_newest_whole_value_needs_no_base() {
    let mut threads = WaitingWrites::for_threads(1);
    let writes = &mut threads[0];
    push(writes, KEY, 1, TABLE, &patch(90, b"fits nowhere"));
    push(writes, KEY, 3, TABLE, &put(b"value"));
    push(writes, KEY, 4, TABLE, &patch(1, b"A"));
    let deleted = (!0, &b"deleted"[..]);
    push(writes, deleted, 5, TABLE, &put(b"value"));
    push(writes, deleted, 6, TABLE, &delete);
    let pending = Pending::new(threads);
    for base in [None, Some(&b"old"[..])] {
        let (resolved, value) = apply(&pending, KEY, base).expect("it fits").expect("some");
        assert_eq!((resolved.gsn, &*value), (4, &b"vAlue"[..]));
        let (resolved, value) = apply(&pending, deleted, base).expect("it fits").expect("some");
        assert_eq!((resolved, &*value), (Resolved { label: None, gsn: 6, writes: 2 }, &b""[..]));
    }
    assert_eq!(alone(&pending, KEY), Some(true));
}

#[test]
fn a_patch_without_a_base_is_an_error() {
    let mut threads = WaitingWrites::for_threads(1);
    let writes = &mut threads[0];
    push(writes, KEY, 5, TABLE, &patch(2, b"CD"));
    let deleted = (!0, &b"deleted"[..]);
    push(writes, deleted, 6, TABLE, &delete);
    push(writes, deleted, 7, TABLE, &patch(0, b"x"));
    let pending = Pending::new(threads);
    let wrong = |offset, len| Err(PatchWithoutBase { offset, len });
    assert_eq!(apply(&pending, KEY, None), wrong(2, 0));
    assert_eq!(apply(&pending, KEY, Some(b"a")), wrong(2, 1));
    assert_eq!(apply(&pending, deleted, Some(b"abc")), wrong(0, 0));
}

#[test]
fn many_writes_are_all_found() {
    const KEYS: u64 = 30_000;
    let hash = |key: u64| key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut threads = WaitingWrites::for_threads(2);
    for gsn in 1..=3 * KEYS {
        let key = gsn * 7 % KEYS;
        let large = if gsn.is_multiple_of(10_000) { 50 << 10 } else { 20 };
        let value = gsn.to_le_bytes().repeat(large / 8);
        let of_thread = &mut threads[(gsn / 5 % 2) as usize];
        push(of_thread, (hash(key), &key.to_le_bytes()), gsn, TABLE, &put(&value));
    }
    let held: usize = threads.iter().map(WaitingWrites::bytes).sum();
    let pending = Pending::new(threads);
    let mut found = 0;
    for number in 0..PARTITIONS {
        for of in keys_of(&pending, number) {
            let (resolved, value) =
                apply(&pending, (of.hash, of.key), None).expect("fits").expect("some");
            assert_eq!(value[..8], resolved.gsn.to_le_bytes());
            let key = u64::from_le_bytes(of.key.try_into().expect("eight bytes"));
            assert_eq!((of.hash, resolved.gsn * 7 % KEYS), (hash(key), key));
            assert!(resolved.gsn > 2 * KEYS, "an older write of key {key}");
            found += 1;
        }
    }
    assert_eq!(found, KEYS);
    for key in (0..KEYS).step_by(2) {
        pending.note_entered(hash(key));
    }
    let left = (0..PARTITIONS).flat_map(|number| keys_of(&pending, number));
    let mut left: Vec<u64> = left.map(|of| of.hash).collect();
    left.sort_unstable();
    let mut expected: Vec<u64> = (1..KEYS).step_by(2).map(hash).collect();
    expected.sort_unstable();
    assert_eq!(left, expected, "the others are entered");
    let orders = 3 * KEYS as usize * WaitingWrites::PLACE_BYTES + PARTITIONS * 64;
    assert!(pending.bytes() <= held + orders, "{} bytes, {held} before", pending.bytes());
}

/// A window that can be read as long as the switch is on.
#[derive(Debug)]
struct Switched(Arc<AtomicBool>, Vec<u8>);

impl WindowSource for Switched {
    fn bytes(&self) -> usize {
        self.1.len()
    }

    fn read(&self, into: &mut [u8]) -> Result<(), UnreadableRecord> {
        if !self.0.load(Relaxed) {
            return Err("switched off".into());
        }
        into.copy_from_slice(&self.1);
        Ok(())
    }

    fn read_part(
        &self,
        wanted: Range<usize>,
        into: &mut AlignedBuf,
    ) -> Result<Range<usize>, UnreadableRecord> {
        if !self.0.load(Relaxed) {
            return Err("switched off".into());
        }
        InMemory(self.1.clone()).read_part(wanted, into)
    }
}

#[test]
fn a_window_is_read_when_somebody_needs_it() {
    let is_on = Arc::new(AtomicBool::new(false));
    let written = || {
        let mut body = Vec::new();
        put(b"value")(&mut WritesEncoder::new(&mut body), TABLE.0.0, TABLE.1, KEY.1);
        let mut threads = WaitingWrites::for_threads(1);
        threads[0].push((KEY.0, 0), 4, TABLE, (0, WriteEffect::Whole));
        threads[0].end_window(|| Box::new(Switched(is_on.clone(), body)));
        Pending::new(threads)
    };
    let apply_to = |pending: &Pending| {
        let mut out = b"before".to_vec();
        let resolved = pending.of_key(TABLE, KEY).apply(None, &mut out);
        resolved.map(|resolved| resolved.map(|_| out.split_off(6)))
    };
    let pending = written();
    assert!(pending.reads_for(KEY.0) && !pending.reads_for(KEY.0 + 1));
    assert!(matches!(apply_to(&pending), Err(WaitingError::Log(_))));
    pending.of_key(TABLE, KEY).stand_alone().expect_err("nobody can read it");
    pending.keys_of(partition_of(KEY.0), |_| true).expect_err("nobody can read it");
    assert!(pending.keys_of(partition_of(KEY.0), |_| false).expect("none counts").is_empty());
    pending.read_windows((0, 1), &|| false).expect_err("nobody can read it");
    assert!(pending.reads_for(KEY.0), "a window that could not be read counts as read");
    pending.of_key(TABLE, KEY).read_apart().expect_err("nobody can read it");
    is_on.store(true, Relaxed);
    let mut apart = pending.of_key(TABLE, KEY);
    apart.read_apart().expect("it can be read now");
    is_on.store(false, Relaxed);
    let mut value = Vec::new();
    assert!(apart.apply(None, &mut value).is_ok_and(|resolved| resolved.is_some()));
    assert_eq!(value, b"value");
    assert!(pending.reads_for(KEY.0), "who reads for one key keeps nothing");
    is_on.store(true, Relaxed);
    pending.read_windows((0, 1), &|| false).expect("it can be read now");
    is_on.store(false, Relaxed);
    assert!(!pending.reads_for(KEY.0));
    assert_eq!(apply_to(&pending).expect("in memory").as_deref(), Some(&b"value"[..]));
    // What a checkpoint has need not be readable, also for a look that was begun before.
    let pending = written();
    let mut begun = pending.of_key(TABLE, KEY);
    pending.note_all_entered();
    assert!(!pending.reads_for(KEY.0));
    assert!(begun.apply(None, &mut Vec::new()).is_ok_and(|resolved| resolved.is_none()));
    assert_eq!(begun.stand_alone().expect("it has a cell"), None);
    begun.read_apart().expect("it has a cell");
    assert_eq!(apply_to(&pending).expect("it has a cell"), None);
    pending.read_windows((0, 1), &|| false).expect("nobody needs it");
}

/// A window that counts the bytes that are read of it in parts.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>, InMemory);

impl WindowSource for Counted {
    fn bytes(&self) -> usize {
        self.1.bytes()
    }

    fn read(&self, _: &mut [u8]) -> Result<(), UnreadableRecord> {
        Err("nobody needs the whole window".into())
    }

    fn read_part(
        &self,
        wanted: Range<usize>,
        into: &mut AlignedBuf,
    ) -> Result<Range<usize>, UnreadableRecord> {
        let range = self.1.read_part(wanted, into)?;
        self.0.fetch_add(range.len(), Relaxed);
        Ok(range)
    }
}

#[test]
fn who_needs_a_key_reads_its_writes_alone() {
    let value = [9; 10_000];
    let (long, begin, end) = (put(&value), patch(0, b"begin"), patch(9_997, b"end"));
    let (other, beside) = ((KEY.0 + 1, &b"other"[..]), put(&[1; 2_000]));
    let mut writes: Vec<((u64, &[u8]), Encode<'_>)> = vec![(other, &beside as Encode<'_>); 100];
    writes.insert(50, (KEY, &long));
    // The last one lies beside the one before, and is read with it.
    writes.extend([(KEY, &begin as Encode<'_>), (KEY, &end)]);
    let (mut threads, mut window) = (WaitingWrites::for_threads(1), Vec::new());
    for (gsn, &((hash, key), encode)) in (1..).zip(&writes) {
        threads[0].push((hash, 0), gsn, TABLE, (window.len(), WriteEffect::Change));
        window.extend(behind_another(key, TABLE, encode));
    }
    let (read, bytes) = (Arc::new(AtomicUsize::new(0)), window.len());
    threads[0].end_window(|| Box::new(Counted(read.clone(), InMemory(window))));
    let pending = Pending::new(threads);
    let mut of_key = pending.of_key(TABLE, KEY);
    of_key.read_apart().expect("in memory");
    let mut found = Vec::new();
    let resolved = of_key.apply(None, &mut found).expect("it fits").expect("some");
    assert_eq!((resolved.gsn, resolved.writes), (103, 3));
    let mut expected = value;
    expected[..5].copy_from_slice(b"begin");
    expected[9_997..].copy_from_slice(b"end");
    assert_eq!(found, expected);
    let read = read.load(Relaxed);
    assert!(read < bytes / 4, "{read} of {bytes} bytes");
}

/// A partition has chunks of two threads, the last ones of which are not full.
#[test]
fn a_partition_of_many_chunks_has_the_same_writes_once_it_is_sorted() {
    let hash = |key: u64| key << 20;
    let table = |key: u64| (TableId(key as u16 % 3), 7);
    let (mut threads, mut expected) = (WaitingWrites::for_threads(2), Vec::new());
    for (gsn, key) in (1..1_000).map(|gsn| (gsn, gsn * 7 % 90)) {
        assert_eq!(partition_of(hash(key)), 0);
        let place = (gsn as usize, WriteEffect::Change);
        threads[usize::from(gsn % 3 == 0)].push((hash(key), 0), gsn, table(key), place);
        expected.push((key, gsn));
    }
    let read = |into: &mut WaitingWrites| into.end_window(|| Box::new(InMemory(vec![0; 1_000])));
    threads.iter_mut().for_each(read);
    expected.sort_unstable();
    let pending = Pending::new(threads);
    for is_sorted in [false, true] {
        assert_eq!((pending.is_sorted(0), pending.knows_any()), (is_sorted, is_sorted));
        let mut found = Vec::new();
        for key in 0..91 {
            for place in pending.of_hash(hash(key)) {
                let of = (hash(key), table(key), place.gsn as u32);
                assert_eq!((place.hash, pending.table_of(&place), place.at), of);
                assert_eq!(place.window, u32::from(place.gsn % 3 == 0));
                found.push((key, place.gsn));
            }
        }
        assert_eq!(found, expected, "sorted: {is_sorted}");
        pending.sort((0, 1));
    }
}

/// Random writes to four keys, two of which have the same hash. What is left out once they are sorted changes
/// no value and no error.
#[test]
fn what_later_writes_leave_nothing_of_is_left_out() {
    let keys: [((u64, &[u8]), u32); 4] = [
        (KEY, 1),
        ((KEY.0, b"same hash"), 2),
        ((KEY.0 + 1, b"beside"), 1),
        ((!KEY.0, b"other"), 1),
    ];
    let (value, begin, middle, end) =
        (put(b"value"), patch(0, b"be"), patch(2, b"mi"), patch(5, b"end"));
    let cut = |writer: &mut WritesEncoder<'_>, table, generation, key: &[u8]| {
        let splices = [Splice { offset: 0, removed: 1, bytes: b"" }];
        writer.splice(table, generation, key, splices.into_iter()).expect("room");
    };
    let writes: [(Encode<'_>, WriteEffect); 6] = [
        (&value, WriteEffect::Whole),
        (&delete, WriteEffect::Whole),
        (&begin, WriteEffect::Range(0, 2)),
        (&middle, WriteEffect::Range(2, 2)),
        (&end, WriteEffect::Range(5, 3)),
        (&cut, WriteEffect::Change),
    ];
    let (mut random, mut left) = (1_u64, 0);
    let mut draw = |below: usize| {
        random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        (random >> 33) as usize % below
    };
    for round in 0..300 {
        let (mut threads, mut window) = (WaitingWrites::for_threads(1), Vec::new());
        for gsn in 1..=40 {
            let ((hash, key), check) = keys[draw(keys.len())];
            // Whole values are rare, so that they do not hide everything else.
            let (encode, effect) = writes[draw(12).min(13 - draw(12)) % 6];
            threads[0].push((hash, check), gsn, TABLE, (window.len(), effect));
            window.extend(behind_another(key, TABLE, encode));
            if draw(10) == 0 {
                let bytes = std::mem::take(&mut window);
                threads[0].end_window(|| Box::new(InMemory(bytes)));
            }
        }
        threads[0].end_window(|| Box::new(InMemory(window)));
        let pending = Pending::new(threads);
        let outcomes = || {
            let of_key = |(key, _)| {
                [None, Some(&b"a base of some bytes"[..]), Some(b"a")].map(|base| {
                    let found = apply(&pending, key, base);
                    found.map(|found| found.map(|(of, value)| (of.label, of.gsn, value)))
                })
            };
            keys.map(of_key)
        };
        let before = outcomes();
        pending.sort((0, 1));
        assert_eq!(outcomes(), before, "round {round}");
        let pending_of = |hash| pending.of_hash(hash).len();
        left += pending_of(KEY.0) + pending_of(KEY.0 + 1) + pending_of(!KEY.0);
        if round % 2 == 0 {
            let pending = &pending;
            pending.read_windows((0, 1), &|| false).expect("in memory");
            assert!(keys.iter().all(|((hash, _), _)| !pending.reads_for(*hash)));
            assert_eq!(outcomes(), before, "round {round}, from memory");
        }
    }
    assert!((300 * 20..300 * 38).contains(&left), "{left} writes are left");
}

/// Of a window whose writes are mostly covered by later ones, the load keeps a part, and of others nothing.
#[test]
fn the_load_keeps_what_counts_of_a_window() {
    let mut threads = WaitingWrites::for_threads(1);
    let (old, new) = (put(&[1; 1_000]), put(&[2; 1_000]));
    let mut gsn = 0;
    for (encode, keys) in [(&old as Encode<'_>, 100), (&old, 100), (&new, 99)] {
        let mut window = Vec::new();
        for key in 0..keys {
            gsn += 1;
            let place = (window.len(), WriteEffect::Whole);
            threads[0].push((key << 50, 0), gsn, TABLE, place);
            window.extend(behind_another(&key.to_le_bytes(), TABLE, encode));
        }
        threads[0].end_window(|| Box::new(InMemory(window)));
    }
    let (pending, whole) = (Pending::new(threads), 300_000);
    assert!(pending.bytes() > whole);
    pending.sort((0, 1));
    pending.read_windows((0, 1), &|| false).expect("in memory");
    assert!(pending.bytes() < whole / 2, "{} bytes", pending.bytes());
    assert!(pending.windows[0].as_ref().is_some_and(|window| window.held.get().is_none()));
    for key in 0..100_u64 {
        let (resolved, value) = apply(&pending, (key << 50, &key.to_le_bytes()), None)
            .expect("it is whole")
            .expect("some");
        let expected = if key < 99 { (200 + key + 1, 2) } else { (200, 1) };
        assert_eq!((resolved.gsn, value[0]), expected);
    }
}
