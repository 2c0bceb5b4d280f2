//! Tests of the redo log: round trips, limits, torn tails and damage.

use crate::common::{Op, batch, segment_header, writes_of};
use proptest::prelude::*;
use stillpoint_format::ident::HEADER_BYTES;
use stillpoint_format::log::{
    BODY_ROOM, Batch, BatchBuilder, BatchPlace, BatchReader, Continuation, EndCause, PatchRange,
    RecordHead, RecordKind, SegmentEnd, SegmentHeader, Splice, Step, Tail, TailSearch, WriteIter,
    WritesEncoder, classify_tail,
};
use stillpoint_format::{
    DecodeCause, EncodeError, GSN_MAX, KEY_BYTES_MAX, Label, LogGsn, VALUE_BYTES_MAX,
};

/// Writes of a transaction: few tables, short and longer keys.
fn ops() -> impl Strategy<Value = Vec<Op>> {
    let key = prop_oneof![
        prop::collection::vec(any::<u8>(), 8..=8),
        prop::collection::vec(any::<u8>(), 0..300)
    ];
    let value = prop::collection::vec(any::<u8>(), 0..200);
    let range = (0u32..100_000, prop::collection::vec(any::<u8>(), 0..20));
    let deadline = prop_oneof![Just(0), any::<u64>()];
    let label = (any::<u8>(), deadline).prop_map(|(tag, deadline)| Label { tag, deadline });
    let op = (0u16..3, 0u32..2, key, label, value, prop::collection::vec(range, 0..4), 0..5)
        .prop_map(|(table, generation, key, label, value, ranges, op)| match op {
            0 => Op::Put { table, generation, key, label, value },
            4 => Op::Until { table, key, deadline: label.deadline, ranges },
            1 => Op::Delete { table, generation, key },
            2 => Op::Patch { table, generation, key, ranges },
            _ => {
                let splice = |(at, bytes): (u32, Vec<u8>)| (at, at / 3, bytes);
                let splices = ranges.into_iter().map(splice).collect();
                Op::Splice { table, generation, key, splices }
            }
        });
    prop::collection::vec(op, 0..12)
}

/// All valid batches of a segment, and its end.
pub(crate) fn read_all<'a>(
    header: &SegmentHeader,
    segment: &'a [u8],
) -> (Vec<Batch<'a>>, SegmentEnd) {
    let mut reader = BatchReader::new(header, segment);
    let mut batches = Vec::new();
    loop {
        match reader.next_batch() {
            Step::Batch(batch) => batches.push(batch),
            Step::End(end) => return (batches, end),
        }
    }
}

/// A segment of batches 100, 101, …, of one record each. All but the last `unflushed` predecessors
/// of each batch were flushed before it.
fn segment_of(header: &SegmentHeader, count: u64, unflushed: u64, align: usize) -> Vec<u8> {
    let mut segment = header.encode().to_vec();
    for n in 0..count {
        let body = Op::Put {
            table: 1,
            generation: 2,
            key: b"key".into(),
            label: 3u8.into(),
            value: vec![n as u8; 40],
        };
        let records = [(header.first_gsn + n, 7, vec![], vec![body])];
        let number = header.first_batch + n;
        let flushed_below = number.saturating_sub(unflushed);
        let bytes = batch(header, segment.len() as u64, number, flushed_below, align, &records);
        segment.extend_from_slice(&bytes);
    }
    segment
}

#[test]
fn segment_header_round_trip_and_expectations() {
    let header = segment_header();
    let block = header.encode();
    assert_eq!(SegmentHeader::decode(&block), Ok(header));
    assert_eq!(
        header.expect(header.store, header.incarnation, header.log, header.first_gsn),
        Ok(())
    );
    let error = header.expect(header.store, header.incarnation + 1, header.log, header.first_gsn);
    let error = error.expect_err("another incarnation");
    assert!(matches!(error.cause, DecodeCause::WrongFile { field: "incarnation", .. }), "{error}");
    let other = stillpoint_format::ident::StoreId([1; 16]);
    let error = header.expect(other, header.incarnation, header.log, header.first_gsn);
    assert!(matches!(error.expect_err("another store").cause, DecodeCause::WrongStore { .. }));
}

#[test]
fn segment_header_detects_every_bit_flip_and_every_truncation() {
    let block = segment_header().encode();
    for bit in 0..block.len() * 8 {
        let mut flipped = block;
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(SegmentHeader::decode(&flipped).is_err(), "bit {bit}");
    }
    for len in 0..HEADER_BYTES {
        assert!(SegmentHeader::decode(&block[..len]).is_err(), "{len} bytes");
    }
}

proptest! {
    #[test]
    fn batches_round_trip(
        records in prop::collection::vec(
            (1u64..1 << 40, 0u64..10, prop::collection::btree_map(0u8..255, 1..=GSN_MAX, 0..5), ops()),
            1..8,
        ),
        align in prop::sample::select(vec![8usize, 16, 512, 4096]),
    ) {
        let header = segment_header();
        let mut gsn = header.first_gsn;
        let records: Vec<_> = records
            .into_iter()
            .map(|(step, epoch, deps, ops)| {
                gsn += step;
                let deps = deps.into_iter().map(|(log, gsn)| LogGsn { log, gsn }).collect();
                (gsn, 1000 - epoch, deps, ops)
            })
            .collect();
        let mut segment = header.encode().to_vec();
        for number in [100, 101] {
            let at = segment.len() as u64;
            let mut records = records.clone();
            if number == 101 {
                records.iter_mut().for_each(|record| record.0 += gsn);
            }
            segment.extend_from_slice(&batch(&header, at, number, number, align, &records));
            prop_assert!(segment.len().is_multiple_of(align));
        }
        let (batches, end) = read_all(&header, &segment);
        prop_assert_eq!(batches.len(), 2);
        prop_assert_eq!(end.cause, EndCause::Exhausted);
        prop_assert_eq!((end.offset, end.next_number), (segment.len() as u64, 102));
        let first = &batches[0];
        prop_assert_eq!((first.number(), first.flushed_below()), (100, 100));
        prop_assert_eq!(first.first_gsn(), records[0].0);
        prop_assert_eq!(first.last_gsn(), gsn);
        prop_assert_eq!(first.record_count() as usize, records.len());
        let epochs = records.iter().map(|record| record.1);
        prop_assert_eq!(first.epochs(), (epochs.clone().min().unwrap(), epochs.max().unwrap()));
        let mut summary = std::collections::BTreeMap::<u8, u64>::new();
        for (record, (gsn, epoch, deps, ops)) in first.records().zip(&records) {
            let record = record.unwrap();
            prop_assert_eq!((record.gsn, record.epoch, record.kind), (*gsn, *epoch, RecordKind::Writes));
            prop_assert_eq!(&record.deps().collect::<Vec<_>>(), deps);
            prop_assert_eq!(&writes_of(&record), ops);
            for dep in deps {
                let greatest = summary.entry(dep.log).or_default();
                *greatest = dep.gsn.max(*greatest);
            }
        }
        let named: std::collections::BTreeMap<_, _> = first.deps().map(|d| (d.log, d.gsn)).collect();
        prop_assert_eq!(named, summary);
    }
}

#[test]
fn wide_keys_values_and_ranges_round_trip() {
    let (long_key, long_value) = (vec![7; KEY_BYTES_MAX], vec![9; 70_000]);
    let ops = vec![
        Op::Put {
            table: 9,
            generation: 1,
            key: long_key.clone(),
            label: Label { tag: 1, deadline: u64::MAX },
            value: long_value.clone(),
        },
        Op::Delete { table: 9, generation: 1, key: long_key[..256].into() },
        Op::Patch { table: 9, generation: 2, key: b"".into(), ranges: vec![(70_000, b"x".into())] },
        Op::Patch {
            table: 9,
            generation: 2,
            key: b"k".into(),
            ranges: vec![(0, long_value.clone())],
        },
        Op::Until {
            table: 9,
            key: long_key.clone(),
            deadline: 7,
            ranges: vec![(70_000, long_value), (0, b"x".into())],
        },
        Op::Until { table: 9, key: b"k".into(), deadline: 0, ranges: vec![] },
        Op::Patch { table: 0, generation: 0, key: b"k".into(), ranges: vec![(5, vec![]); 300] },
        Op::Patch { table: 0, generation: 0, key: b"k".into(), ranges: vec![] },
        Op::Splice { table: 0, generation: 0, key: b"k".into(), splices: vec![] },
        Op::Splice {
            table: 0,
            generation: 0,
            key: b"k".into(),
            splices: vec![(5, 1, vec![]); 300],
        },
        Op::Splice {
            table: 9,
            generation: 0,
            key: b"k".into(),
            splices: vec![(70_000, 0, b"x".into()), (0, 70_000, vec![3; 66_000])],
        },
        Op::Put {
            table: u16::MAX,
            generation: u32::MAX,
            key: vec![1; 255],
            label: 255u8.into(),
            value: vec![2; 65_535],
        },
    ];
    let header = segment_header();
    let bytes = batch(&header, 4096, 100, 0, 8, &[(header.first_gsn, 1, vec![], ops.clone())]);
    let segment = [header.encode().to_vec(), bytes].concat();
    let (batches, _) = read_all(&header, &segment);
    let record = batches[0].records().next().expect("one record").expect("valid");
    assert_eq!(writes_of(&record), ops);
}

#[test]
fn a_small_patch_takes_23_bytes() {
    let mut body = Vec::new();
    let mut writes = WritesEncoder::new(&mut body);
    let range = [PatchRange { offset: 8, bytes: &[0; 8] }];
    for key in 0u64..10 {
        writes.patch(1, 1, &key.to_le_bytes(), &range).expect("legal");
    }
    assert_eq!(body.len(), 10 * 23 + 6);
}

/// A batch that takes over the buffer of its record has the bytes of one that copies the record.
#[test]
fn a_buffer_is_appended_as_its_bytes_are() {
    let header = segment_header();
    let mut body = Vec::new();
    WritesEncoder::new(&mut body).put(1, 1, b"key", 5, &[7; 70_000]).expect("legal");
    for count in [0u8, 1, 200] {
        let deps: Vec<_> = (0..count).map(|log| LogGsn { log, gsn: 9 }).collect();
        let head = RecordHead { gsn: header.first_gsn, epoch: 3, deps: &deps };
        let mut buffer = [vec![0; BODY_ROOM], body.clone()].concat();
        let mut builders = [BatchBuilder::default(), BatchBuilder::default()];
        builders[0].append(head, RecordKind::Writes, &body).expect("legal");
        builders[1].append_buffer(head, RecordKind::Writes, &mut buffer).expect("legal");
        let (segment, number, closed) = (&header, header.first_batch, &[][..]);
        let place =
            BatchPlace { segment, offset: 4096, number, flushed_below: 0, align: 4096, closed };
        let sealed = builders.each_mut().map(|builder| builder.seal(&place).to_vec());
        assert!(sealed[0] == sealed[1], "{count} dependencies");
        builders[1].clear();
        builders[1].append(head, RecordKind::Writes, b"again").expect("legal");
        assert_eq!(builders[1].record_count(), 1);
    }
}

/// A deadline is eight bytes of a put, and alone it takes no more than a header.
#[test]
fn deadlines_take_eight_bytes_and_no_value() {
    let bytes = |encode: &dyn Fn(&mut WritesEncoder<'_>)| {
        let mut body = Vec::new();
        encode(&mut WritesEncoder::new(&mut body));
        body
    };
    let plain = bytes(&|writes| writes.put(1, 1, b"key", 5, b"value").expect("legal"));
    let until = |deadline| {
        let label = Label { tag: 5, deadline };
        bytes(&|writes| writes.put(1, 1, b"key", label, b"value").expect("legal"))
    };
    assert_eq!(until(0), plain);
    assert_eq!(until(9).len(), plain.len() + 8);
    let alone = bytes(&|writes| writes.patch_until((1, 1, b"key"), 9, &[]).expect("legal"));
    assert_eq!(alone.len(), 8 + b"key".len() + 8 + 1);
    // A put never has the deadline 0, and deletions and splices have none.
    let decoded = |body: &[u8]| WriteIter::new(body, 0).next().expect("a write").map(drop);
    let mut forged = until(9);
    let at = forged.len() - 5 - 8;
    forged[at] = 0;
    assert!(decoded(&forged).expect_err("refused").to_string().contains("deadline 0"));
    let deleted = bytes(&|writes| writes.delete(1, 1, b"key").expect("legal"));
    let spliced = bytes(&|writes| writes.splice(1, 1, b"key", [].into_iter()).expect("legal"));
    for mut body in [deleted, spliced] {
        body[0] |= 1 << 5;
        assert!(decoded(&body).is_err());
    }
}

#[test]
fn encoder_refuses_what_the_format_cannot_hold() {
    let mut body = b"before".to_vec();
    let mut writes = WritesEncoder::new(&mut body);
    let long_key = vec![0; KEY_BYTES_MAX + 1];
    let bytes = KEY_BYTES_MAX + 1;
    assert_eq!(writes.delete(0, 0, &long_key), Err(EncodeError::KeyTooLong { bytes }));
    assert_eq!(writes.put(0, 0, &long_key, 0, b""), Err(EncodeError::KeyTooLong { bytes }));
    let range = PatchRange { offset: VALUE_BYTES_MAX as u32, bytes: b"x" };
    let bytes = VALUE_BYTES_MAX + 1;
    assert_eq!(writes.patch(0, 0, b"k", &[range]), Err(EncodeError::ValueTooLong { bytes }));
    let splice = Splice { offset: 1, removed: VALUE_BYTES_MAX as u32, bytes: b"" };
    let refused = Err(EncodeError::ValueTooLong { bytes });
    assert_eq!(writes.splice(0, 0, b"k", [splice].into_iter()), refused);
    assert_eq!(body, b"before");

    let mut batch = BatchBuilder::default();
    let head = |gsn, epoch| RecordHead { gsn, epoch, deps: &[] };
    let mut append = |head| batch.append(head, RecordKind::Command, b"call");
    assert_eq!(append(head(0, 5)), Err(EncodeError::GsnOrder { gsn: 0, last: 0 }));
    assert_eq!(append(head(9, 50_000)), Ok(()));
    assert_eq!(append(head(9, 50_000)), Err(EncodeError::GsnOrder { gsn: 9, last: 9 }));
    let gsn = GSN_MAX + 1;
    assert_eq!(append(head(gsn, 50_000)), Err(EncodeError::GsnOrder { gsn, last: 9 }));
    let (epoch, base) = (50_000 - 32_769, 50_000);
    assert_eq!(append(head(10, epoch)), Err(EncodeError::EpochSpan { epoch, base }));
    assert_eq!(append(head(10, epoch + 1)), Ok(()));
    assert_eq!(append(head(11, 50_000 + 32_767)), Ok(()));
    let deps = [LogGsn { log: 255, gsn: 1 }];
    let error = append(RecordHead { gsn: 12, epoch: base, deps: &deps });
    assert_eq!(error, Err(EncodeError::Dependency { log: 255, gsn: 1 }));
    assert_eq!((batch.record_count(), batch.last_gsn()), (3, Some(11)));
}

#[test]
fn a_failed_append_leaves_no_trace() {
    let header = segment_header();
    let mut builder = BatchBuilder::with_capacity(0);
    let head = |gsn| RecordHead { gsn, epoch: 1, deps: &[LogGsn { log: 3, gsn: 8 }] };
    let gsn = header.first_gsn;
    builder.append(head(gsn), RecordKind::Command, b"one").expect("legal");
    let failed = builder.append_with(head(gsn + 1), RecordKind::Writes, |body| {
        let mut writes = WritesEncoder::new(body);
        writes.put(1, 1, b"key", 0, b"value")?;
        writes.delete(1, 1, &[0; KEY_BYTES_MAX + 1])
    });
    assert_eq!(failed, Err(EncodeError::KeyTooLong { bytes: KEY_BYTES_MAX + 1 }));
    builder
        .append_with(head(gsn + 1), RecordKind::Command, |body| {
            body.extend_from_slice(b"two");
            Ok(())
        })
        .expect("legal");
    let place = BatchPlace {
        segment: &header,
        offset: 4096,
        number: 100,
        flushed_below: 0,
        align: 8,
        closed: &[],
    };
    let segment = [&header.encode()[..], builder.seal(&place)].concat();
    let (batches, _) = read_all(&header, &segment);
    let bodies: Vec<_> = batches[0].records().map(|record| record.expect("valid").body).collect();
    assert_eq!(bodies, [b"one", b"two"]);
    builder.clear();
    assert!(builder.is_empty() && builder.deps().next().is_none());
}

#[test]
fn a_batch_begins_at_a_page_in_memory_again_after_it_has_grown() {
    let header = segment_header();
    let mut builder = BatchBuilder::with_capacity(8192);
    for round in 0..20 {
        let body = vec![round as u8; round * 30_000];
        let head = RecordHead { gsn: header.first_gsn, epoch: 1, deps: &[] };
        builder.append(head, RecordKind::Command, &body).expect("legal");
        let before = builder.bytes();
        let place = BatchPlace {
            segment: &header,
            offset: 4096,
            number: 100,
            flushed_below: 0,
            align: 4096,
            closed: &[],
        };
        let sealed = builder.seal(&place);
        assert_eq!(sealed.len(), before.next_multiple_of(4096));
        let aligned = sealed.as_ptr().addr().is_multiple_of(4096);
        // Growth moves the buffer, and `clear` aligns the batch anew.
        assert!(aligned || round > 0);
        let segment = [&header.encode()[..], sealed].concat();
        assert_eq!(read_all(&header, &segment).0.len(), 1);
        builder.clear();
        builder.append(head, RecordKind::Command, b"small").expect("legal");
        let sealed = builder.seal(&place);
        assert!(sealed.as_ptr().addr().is_multiple_of(4096), "round {round}");
        builder.clear();
    }
}

#[test]
fn a_checksum_computed_ahead_is_the_same() {
    let header = segment_header();
    let place = BatchPlace {
        segment: &header,
        offset: 8192,
        number: 101,
        flushed_below: 0,
        align: 4096,
        closed: &[],
    };
    let build = |ahead: &[usize]| {
        let mut builder = BatchBuilder::with_capacity(1 << 16);
        for n in 0..20 {
            let head = RecordHead {
                gsn: header.first_gsn + n as u64,
                epoch: 1,
                deps: &[LogGsn { log: 3, gsn: 8 }],
            };
            let body = vec![n as u8; n * 100];
            builder.append(head, RecordKind::Command, &body).expect("legal");
            if ahead.contains(&n) {
                builder.checksum_ahead(header.identity(), place.offset);
                assert_eq!(builder.unsummed_bytes(), 0);
            }
        }
        let first = builder.seal(&place).to_vec();
        // A cleared builder has dropped its partial checksum.
        builder.clear();
        first
    };
    let plain = build(&[]);
    for ahead in [&[0][..], &[19], &[3, 4, 17], &[0, 1, 2, 3, 4, 5, 18, 19]] {
        assert!(build(ahead) == plain, "{ahead:?}");
    }
}

/// Judges the end of a segment at once, and in pieces of several lengths.
fn judge(header: &SegmentHeader, bytes: &[u8], offset: u64, end: &SegmentEnd) -> Tail {
    let tail = classify_tail(header, bytes, offset, end);
    for piece in [0, 300] {
        let mut search = TailSearch::new(header, offset, end);
        loop {
            let from = usize::try_from(search.offset() - offset).expect("short").min(bytes.len());
            let to = (from + search.needed().max(piece)).min(bytes.len());
            if !search.look(&bytes[from..to], to == bytes.len()) {
                break;
            }
        }
        assert_eq!(search.judge(), tail, "in pieces of {piece} bytes");
    }
    tail
}

#[test]
fn preallocated_zeros_end_a_segment() {
    let header = segment_header();
    let mut segment = segment_of(&header, 3, 0, 8);
    let len = segment.len() as u64;
    segment.resize(1 << 16, 0);
    let (batches, end) = read_all(&header, &segment);
    assert_eq!((batches.len(), end.offset, &end.cause), (3, len, &EndCause::Zero));
    assert_eq!(judge(&header, &segment, 0, &end), Tail::End);
}

#[test]
fn a_recycled_segment_never_shows_its_older_batches() {
    let old = segment_header();
    for (incarnation, log, first_gsn, first_batch) in
        [(3, 4, 5000, 100), (2, 5, 5000, 100), (2, 4, 5001, 100), (2, 4, 5000, 99)]
    {
        let new = SegmentHeader { incarnation, log, first_gsn, first_batch, ..old };
        let mut segment = segment_of(&old, 9, 0, 8);
        segment[..HEADER_BYTES].copy_from_slice(&new.encode());
        let (batches, end) = read_all(&new, &segment);
        assert!(batches.is_empty(), "{new:?}");
        assert!(matches!(end.cause, EndCause::HeaderChecksum { .. }), "{end}");
        assert_eq!(judge(&new, &segment, 0, &end), Tail::End);
    }
}

/// A cut at any offset keeps exactly the whole batches.
#[test]
fn truncation_at_every_byte() {
    let header = segment_header();
    let segment = segment_of(&header, 5, 0, 8);
    let each = (segment.len() - HEADER_BYTES) / 5;
    for len in HEADER_BYTES..segment.len() {
        let (batches, end) = read_all(&header, &segment[..len]);
        let whole = (len - HEADER_BYTES) / each;
        assert_eq!(batches.len(), whole, "{len} bytes");
        assert_eq!(end.offset as usize, HEADER_BYTES + whole * each);
        assert_eq!(judge(&header, &segment[..len], 0, &end), Tail::End);
    }
}

/// Every flipped bit is detected. If batches were flushed one by one, a flip in any but the last
/// counts as damage.
#[test]
fn every_bit_flip_is_detected() {
    let header = segment_header();
    let segment = segment_of(&header, 4, 0, 8);
    let each = (segment.len() - HEADER_BYTES) / 4;
    for bit in HEADER_BYTES * 8..segment.len() * 8 {
        let mut flipped = segment.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let hit = (bit / 8 - HEADER_BYTES) / each;
        let (batches, end) = read_all(&header, &flipped);
        assert_eq!(batches.len(), hit, "bit {bit}: {end}");
        assert_eq!(end.next_number, 100 + hit as u64);
        let tail = judge(&header, &flipped, 0, &end);
        // The next batch proves that the damaged one was flushed.
        let damaged =
            matches!(tail, Tail::Damaged(Some(later)) if later.number == 101 + hit as u64);
        assert!(if hit < 3 { damaged } else { tail == Tail::End }, "bit {bit}: {tail:?}");
    }
}

#[test]
fn writes_that_overtook_each_other_are_not_damage() {
    let header = segment_header();
    let mut segment = segment_of(&header, 4, 2, 8);
    let each = (segment.len() - HEADER_BYTES) / 4;
    segment[HEADER_BYTES + each..HEADER_BYTES + 2 * each].fill(0);
    let (batches, end) = read_all(&header, &segment);
    assert_eq!((batches.len(), &end.cause), (1, &EndCause::Zero));
    // Batch 102 was written while 100 and 101 were in flight; 103 while 101 and 102 were.
    let tail = judge(&header, &segment, 0, &end);
    assert!(matches!(tail, Tail::OutOfOrder(later) if later.number == 102), "{tail:?}");

    let mut segment = segment_of(&header, 5, 2, 8);
    segment[HEADER_BYTES + each..HEADER_BYTES + 2 * each].fill(0);
    let (_, end) = read_all(&header, &segment);
    let tail = judge(&header, &segment, 0, &end);
    assert!(matches!(tail, Tail::Damaged(Some(later)) if later.number == 104), "{tail:?}");
}

/// The proof may come from a batch behind one that proves nothing.
#[test]
fn the_scan_looks_at_every_later_batch() {
    let header = segment_header();
    let mut segment = header.encode().to_vec();
    for (number, flushed_below) in [(100, 100), (101, 100), (102, 100), (103, 102)] {
        let records = [(header.first_gsn + number, 1, vec![], vec![])];
        let at = segment.len() as u64;
        segment.extend_from_slice(&batch(&header, at, number, flushed_below, 8, &records));
    }
    segment[HEADER_BYTES + 70] ^= 1;
    let each = (segment.len() - HEADER_BYTES) / 4;
    segment[HEADER_BYTES + each..HEADER_BYTES + 2 * each].fill(0);
    let (batches, end) = read_all(&header, &segment);
    assert!(batches.is_empty());
    let tail = judge(&header, &segment, 0, &end);
    assert!(matches!(tail, Tail::Damaged(Some(later)) if later.number == 103), "{tail:?}");
    // Batch 100 is intact and batch 101 is missing. Batch 103 proves that batch 101 was flushed,
    // and no other batch does.
    segment[HEADER_BYTES + 70] ^= 1;
    let (batches, end) = read_all(&header, &segment);
    assert_eq!((batches.len(), end.next_number), (1, 101));
    let tail = judge(&header, &segment, 0, &end);
    assert!(matches!(tail, Tail::Damaged(Some(later)) if later.number == 103), "{tail:?}");
    let tail = judge(&header, &segment[..segment.len() - 8], 0, &end);
    assert!(matches!(tail, Tail::OutOfOrder(later) if later.number == 102), "{tail:?}");
}

/// Changes some bytes of a batch of two command records, and corrects its checksums. Returns the
/// result of reading the batch.
fn read_forged(change: impl FnOnce(&mut Vec<u8>)) -> Result<usize, String> {
    let header = segment_header();
    let mut builder = BatchBuilder::with_capacity(0);
    for gsn in [header.first_gsn, header.first_gsn + 5] {
        let deps = &[LogGsn { log: 3, gsn: 8 }];
        let head = RecordHead { gsn, epoch: 40, deps };
        builder.append(head, RecordKind::Command, b"call").expect("legal");
    }
    let place = BatchPlace {
        segment: &header,
        offset: 4096,
        number: 100,
        flushed_below: 0,
        align: 8,
        closed: &[],
    };
    let mut batch = builder.seal(&place).to_vec();
    change(&mut batch);
    let crc = header.identity().checksum(4096, &batch[64..]).to_le_bytes();
    batch[8..12].copy_from_slice(&crc);
    let crc = header.identity().checksum(4096, &batch[8..64]).to_le_bytes();
    batch[4..8].copy_from_slice(&crc);
    let segment = [&header.encode()[..], &batch].concat();
    match BatchReader::new(&header, &segment).next_batch() {
        Step::Batch(batch) => {
            let mut records = batch.records();
            let read = records.by_ref().collect::<Result<Vec<_>, _>>();
            assert!(records.next().is_none(), "the iterator goes on after its end");
            read.map(|records| records.len()).map_err(|error| error.to_string())
        }
        Step::End(end) => {
            assert_eq!(judge(&header, &segment, 0, &end), Tail::Damaged(None));
            Err(end.to_string())
        }
    }
}

/// Batches with right checksums and contradicting fields are refused.
#[test]
fn forged_batches_are_refused() {
    assert_eq!(read_forged(|_| {}), Ok(2));
    // Header: length, records' length, count, first and last gsn, epochs. The records are 28
    // bytes each, at 64 and 92; the summary is at 120.
    let cases: &[(usize, &[u8], &str)] = &[
        (12, &[0x78], "does not hold its records"),
        (12, &[0x7C], "does not hold its records"),
        (16, &[0xFF], "does not hold its records"),
        (16, &[40], "truncated"),
        (20, &[0, 0], "record count"),
        (20, &[4, 0], "record count"),
        (20, &[1, 0], "do not fill"),
        (20, &[3, 0], "truncated"),
        (24, &[101], "batch number 101, expected 100"),
        (32, &[0x87, 0x13], "not above"),
        (32, &[0x8E, 0x13], "gsn range"),
        (32, &[0x89, 0x13], "record gsn outside"),
        (40, &[0x8C, 0x13], "record gsn outside"),
        (40, &[0x8E, 0x13], "do not fill"),
        (46, &[0x10], "gsn range"),
        (56, &[1], "epoch range"),
        (58, &[0xFF, 0xFF], "epoch range"),
        (64, &[23], "does not hold its dependencies"),
        (64, &[60], "truncated"),
        (68, &[0], "unknown record kind 0"),
        (68, &[5], "unknown record kind 5"),
        (69, &[2], "does not hold its dependencies"),
        (70, &[1], "epoch outside"),
        (70, &[0xFF, 0xFF], "epoch outside"),
        (72, &[0x8D, 0x13], "record gsn outside"),
        (80, &[0], "impossible dependency"),
        (87, &[255], "impossible dependency"),
        (100, &[0x88, 0x13], "record gsn outside"),
        (120, &[0], "impossible dependency in the summary"),
        (127, &[255], "impossible dependency in the summary"),
    ];
    for (at, bytes, message) in cases {
        let read = read_forged(|batch| batch[*at..at + bytes.len()].copy_from_slice(bytes));
        let error = read.expect_err(message);
        assert!(error.contains(message), "{at}: {error}");
    }
}

/// Bodies that no encoder writes are refused.
#[test]
fn forged_writes_are_refused() {
    let long = (KEY_BYTES_MAX as u32 + 1).to_le_bytes();
    let end = (VALUE_BYTES_MAX as u32).to_le_bytes();
    let too_long = (VALUE_BYTES_MAX as u32 + 1).to_le_bytes();
    let table = [1, 0, 1, 0, 0, 0];
    for (body, message) in [
        (vec![&[3][..], &table, b"\x01k"], "truncated: 1 bytes needed, 0 there"),
        (vec![&[3][..], &table, b"\x01k", &[1, 0, 0, 0, 0, 5, 0, b'x']], "truncated: 5 bytes"),
        (vec![&[0x13][..], &table, b"\x01k", &[1, 0, 0, 0], &end, &end, &[0; 4]], "splice end"),
        (vec![&[0x40][..], &table, b"\x01k"], "unknown op 64"),
        (vec![&[0x21][..], &table, b"\x01k"], "unknown op 33"),
        (vec![&[0x20][..], &table, b"\x01k", &[0; 11]], "deadline 0"),
        (vec![&[0x05][..], b"\x01k"], "names no table"),
        (vec![&[0x01][..], &table, b"\x02k"], "truncated: 2 bytes needed, 1 there"),
        (vec![&[0x09][..], &table, &long], "key length is 65537, allowed is 0..=65536"),
        (vec![&[0x10][..], &table, b"\x01k", &[0], &too_long], "value length is 536870913"),
        (vec![&[0x12][..], &table, b"\x01k", &[1, 0, 0, 0], &end, &[1, 0, 0, 0, 9]], "range end"),
        (vec![&[0x12][..], &table, b"\x01k", &[0xFF; 4]], "truncated"),
    ] {
        let body = body.concat();
        let mut writes = WriteIter::new(&body, 5000);
        let error = writes.next().expect("one write").expect_err(message);
        assert!(error.to_string().contains(message), "{error}");
        assert!((5000..5030).contains(&error.offset), "{error:?}");
        assert!(writes.next().is_none(), "{message}: the iterator goes on after an error");
    }
}

#[test]
fn the_next_segment_can_prove_damage() {
    let header = segment_header();
    let segment = segment_of(&header, 3, 0, 8);
    let (_, end) = read_all(&header, &segment[..segment.len() - 8]);
    assert_eq!(end.next_number, 102);
    let torn = &segment[..segment.len() - 8];
    assert_eq!(judge(&header, torn, 0, &end), Tail::End);
    let next = SegmentHeader { first_gsn: 6000, first_batch: 103, ..header };
    let later = segment_of(&next, 1, 0, 8);
    let tail = judge(&next, &later[HEADER_BYTES..], HEADER_BYTES as u64, &end);
    assert!(matches!(tail, Tail::Damaged(Some(later)) if later.number == 103), "{tail:?}");
}

#[test]
fn an_intact_batch_out_of_sequence_is_damage() {
    let header = segment_header();
    let records = [(header.first_gsn, 1, vec![], vec![])];
    let bytes = batch(&header, 4096, 105, 0, 8, &records);
    let segment = [&header.encode()[..], &bytes].concat();
    let (_, end) = read_all(&header, &segment);
    assert_eq!(end.cause, EndCause::Sequence { found: 105, expected: 100 });
    assert_eq!(judge(&header, &segment, 0, &end), Tail::Damaged(None));
}

#[test]
fn windows_continue_where_the_last_ended() {
    let header = segment_header();
    let segment = segment_of(&header, 6, 0, 8);
    let cut = HEADER_BYTES + (segment.len() - HEADER_BYTES) / 2 + 20;
    let mut reader = BatchReader::new(&header, &segment[..cut]);
    let mut last_gsn = 0;
    let mut seen = 0;
    let end = loop {
        match reader.next_batch() {
            Step::Batch(batch) => (last_gsn, seen) = (batch.last_gsn(), seen + 1),
            Step::End(end) => break end,
        }
    };
    assert_eq!((seen, &end.cause), (3, &EndCause::Exhausted));
    let rest = &segment[end.offset as usize..];
    let mut reader = BatchReader::window(&header, rest, end.offset, end.next_number, last_gsn);
    for number in 103..106 {
        let Step::Batch(batch) = reader.next_batch() else { panic!("batch {number}") };
        assert_eq!(batch.number(), number);
        assert_eq!(batch.bytes(), reader.offset() - batch.offset());
    }
    assert!(matches!(reader.next_batch(), Step::End(end) if end.cause == EndCause::Exhausted));
}

/// The padding holds as many watermarks as fit. A batch that is copied to another segment stays the
/// same.
#[test]
fn watermarks_fill_the_padding_and_copies_are_the_same() {
    let header = segment_header();
    let other = SegmentHeader { first_gsn: header.first_gsn - 7, ..header };
    let closed: Vec<LogGsn> =
        (1..200).map(|log| LogGsn { log, gsn: 1000 + u64::from(log) }).collect();
    for (align, body, fits) in [(8, 8, 0), (512, 8, 51), (4096, 8, 199), (4096, 3000, 125)] {
        let mut builder = BatchBuilder::with_capacity(1 << 13);
        let deps = [LogGsn { log: 3, gsn: 8 }];
        let head = RecordHead { gsn: header.first_gsn, epoch: 1, deps: &deps };
        builder.append(head, RecordKind::Command, &vec![7; body]).expect("appends");
        let place = BatchPlace {
            segment: &header,
            offset: 4096,
            number: 100,
            flushed_below: 99,
            align,
            closed: &closed,
        };
        let sealed = builder.seal(&place).to_vec();
        let segment = [&header.encode()[..], &sealed].concat();
        let (batches, _) = read_all(&header, &segment);
        let found: Vec<LogGsn> = batches[0].closed().collect();
        assert_eq!(found, closed[..fits], "{align}, {body}");
        assert_eq!(batches[0].deps().collect::<Vec<_>>(), deps);

        let mut copy = other.encode().to_vec();
        batches[0].copy_to(&other, 4096, &mut copy);
        assert!(read_all(&header, &copy).0.is_empty(), "it has another identity");
        let (copied, _) = read_all(&other, &copy);
        assert_eq!(copied[0].closed().collect::<Vec<_>>(), found);
        assert_eq!((copied[0].number(), copied[0].flushed_below()), (100, 99));
        let bodies = |batch: &Batch<'_>| -> Vec<Vec<u8>> {
            batch.records().map(|record| record.expect("valid").body.to_vec()).collect()
        };
        assert_eq!(bodies(&copied[0]), bodies(&batches[0]));
    }
}

/// Every flipped bit of a mark is detected, and no crash explains a mark with another number.
#[test]
fn continuation_marks_are_read_or_refused() {
    let header = segment_header();
    let end = |mark: &[u8]| {
        let segment = [&header.encode()[..], mark].concat();
        let Step::End(end) = BatchReader::new(&header, &segment).next_batch() else {
            panic!("a mark is no batch")
        };
        end.cause
    };
    let mark = Continuation { first_batch: header.first_batch, first_gsn: 7000 };
    let bytes = mark.encode(&header, 4096);
    assert_eq!(end(&bytes), EndCause::Continued { first_gsn: 7000 });
    for at in (0..80).chain(4000..4096) {
        for bit in 0..8 {
            let mut flipped = bytes;
            flipped[at] ^= 1 << bit;
            let cause = end(&flipped);
            assert!(!matches!(cause, EndCause::Continued { .. }), "byte {at}, bit {bit}");
        }
    }
    let later = Continuation { first_batch: header.first_batch + 1, first_gsn: 7000 };
    let cause = end(&later.encode(&header, 4096));
    assert!(matches!(cause, EndCause::Sequence { .. }), "{cause}");
    let cut = end(&bytes[..4095]);
    assert!(matches!(cut, EndCause::Truncated { needed: 4096, .. }), "{cut}");
}
