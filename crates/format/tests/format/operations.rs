//! Tests of records of transactions that change tables in place.

use stillpoint_format::log::{
    BatchBuilder, BatchPlace, CALL_NAME_BYTES_MAX, CallReader, CallToRepeat, LoggedCall, LoggedEnd,
    LoggedOperation, RecordHead, RecordKind, TransactionEnd, WriteOp, WritesEncoder,
    encode_before_images,
};
use stillpoint_format::{DecodeError, EncodeError, Label, LogGsn};

use crate::common::segment_header;
use crate::log::read_all;

/// Puts a body into a record of a log, and reads it back.
fn with_record<T>(
    kind: RecordKind,
    body: &[u8],
    look: impl Fn(&stillpoint_format::log::Record<'_>) -> T,
) -> T {
    let header = segment_header();
    let mut builder = BatchBuilder::with_capacity(0);
    let head = RecordHead { gsn: header.first_gsn, epoch: 1, deps: &[] };
    builder.append(head, kind, body).expect("legal");
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
    let record = batches[0].records().next().expect("one record").expect("valid");
    assert_eq!((record.kind, record.body), (kind, body));
    look(&record)
}

fn operation(undoes: Option<(u64, Option<u64>)>) -> LoggedOperation<'static> {
    let transaction = undoes.map(|_| LogGsn { log: 3, gsn: 70 });
    LoggedOperation { transaction, undoes, table: 9, generation: 4, body: b"what the kind wrote" }
}

#[test]
fn operations_and_undos_are_read_as_they_were_written() {
    for undoes in [None, Some((80, Some(70))), Some((70, None))] {
        let written = operation(undoes);
        let kind = if undoes.is_some() { RecordKind::Undo } else { RecordKind::Operation };
        let mut body = Vec::new();
        written.encode(&mut body);
        with_record(kind, &body, |record| assert_eq!(record.operation(), Ok(written)));
        // Only the bytes of the kind of table may be cut off.
        let head = body.len() - written.body.len();
        for len in 0..body.len() {
            let read = with_record(kind, &body[..len], |record| record.operation().map(|_| ()));
            assert_eq!(read.is_ok(), len >= head, "{len} bytes");
        }
    }
}

#[test]
fn ends_are_read_as_they_were_written() {
    let transaction = LogGsn { log: 254, gsn: 1 };
    let mut body = Vec::new();
    LoggedEnd::encode_head(transaction, TransactionEnd::Committed, &mut body);
    WritesEncoder::new(&mut body).put(1, 2, b"key", 3, b"value").expect("legal");
    with_record(RecordKind::End, &body, |record| {
        let end = record.end().expect("an end");
        assert_eq!((end.transaction, end.outcome), (transaction, TransactionEnd::Committed));
        let writes: Vec<_> = end.writes.map(|write| write.expect("legal")).collect();
        let write = &writes[0];
        assert_eq!(
            (writes.len(), write.table, write.generation, write.key),
            (1, 1, 2, &b"key"[..])
        );
        assert!(matches!(
            write.op,
            WriteOp::Put { label: Label { tag: 3, deadline: 0 }, value: b"value" }
        ));
    });
}

#[test]
fn calls_are_read_as_they_were_written() {
    let call = LoggedCall { name: "transfer", version: 7, arguments: b"1 2 30", inputs: b"" };
    let mut body = Vec::new();
    call.encode_head(&mut body).expect("it fits");
    let head = body.len();
    WritesEncoder::new(&mut body).put(1, 2, b"key", 3, b"value").expect("legal");
    with_record(RecordKind::Command, &body, |record| {
        let (found, writes) = record.command().expect("a call");
        assert_eq!(found, call);
        let keys: Vec<_> = writes.map(|write| write.expect("legal").key).collect();
        assert_eq!(keys, [b"key"]);
    });
    for len in 0..head {
        let read =
            with_record(RecordKind::Command, &body[..len], |record| record.command().is_ok());
        assert!(!read, "{len} bytes of {head}");
    }
    // Calls are refused whose name is missing or is no text.
    body[1] = 0xff;
    for body in [&body[..head], &[&[0][..], &body[9..head]].concat()] {
        with_record(RecordKind::Command, body, |record| {
            record.command().map(drop).expect_err("refused");
        });
    }
    let mut out = Vec::new();
    for name in ["", &*"n".repeat(CALL_NAME_BYTES_MAX + 1)] {
        let refused = LoggedCall { name, ..call }.encode_head(&mut out);
        let bytes = name.len() + call.arguments.len();
        assert_eq!((refused, out.len()), (Err(EncodeError::CallTooLong { bytes }), 0));
    }
    let name = &*"n".repeat(CALL_NAME_BYTES_MAX);
    LoggedCall { name, ..call }.encode_head(&mut out).expect("the longest name");
}

#[test]
fn before_images_are_split_from_the_writes() {
    let call = LoggedCall { name: "transfer", version: 7, arguments: b"1 2 30", inputs: b"" };
    for is_call in [false, true] {
        let mut body = Vec::new();
        encode_before_images(&mut body, |images| {
            images.put_with(1, 2, b"key", (3.into(), 3), |out| out.extend_from_slice(b"old"))?;
            images.delete(1, 2, b"new")
        })
        .expect("legal");
        let images_len = body.len();
        if is_call {
            call.encode_head(&mut body).expect("it fits");
        }
        WritesEncoder::new(&mut body).put(1, 2, b"key", 4, b"value").expect("legal");
        let kind = if is_call { RecordKind::UndoCommand } else { RecordKind::UndoWrites };
        with_record(kind, &body, |record| {
            let (images, rest) = record.before_images().expect("legal").expect("images");
            let images: Vec<_> = images.map(|image| image.expect("legal")).collect();
            assert_eq!(images.iter().map(|image| image.key).collect::<Vec<_>>(), [b"key", b"new"]);
            assert!(matches!(
                images[0].op,
                WriteOp::Put { label: Label { tag: 3, deadline: 0 }, value: b"old" }
            ));
            assert!(matches!(images[1].op, WriteOp::Delete));
            let writes = if is_call {
                assert_eq!(rest.kind, RecordKind::Command);
                let (found, writes) = rest.command().expect("a call");
                assert_eq!(found, call);
                writes
            } else {
                assert_eq!(rest.kind, RecordKind::Writes);
                rest.writes()
            };
            let writes: Vec<_> = writes.map(|write| write.expect("legal")).collect();
            assert!(matches!(
                writes[0].op,
                WriteOp::Put { label: Label { tag: 4, deadline: 0 }, value: b"value" }
            ));
            assert_eq!(writes.len(), 1);
        });
        // The images must be there as a whole.
        for len in 0..images_len {
            let split = |record: &stillpoint_format::log::Record<'_>| {
                record.before_images().map(drop).expect_err("refused")
            };
            with_record(kind, &body[..len], split);
        }
    }
    with_record(RecordKind::Writes, &[], |record| {
        assert!(record.before_images().expect("legal").is_none());
    });
}

#[test]
fn before_images_that_fail_are_an_error() {
    let mut out = Vec::new();
    let failed = encode_before_images(&mut out, |images| images.delete(1, 2, &[0; 65_537]));
    assert_eq!(failed, Err(EncodeError::KeyTooLong { bytes: 65_537 }));
}

/// A batch of calls in a segment, and the bytes of its records.
fn batch_of_calls(calls: &[CallToRepeat<'_>]) -> (Vec<u8>, usize) {
    let header = segment_header();
    let mut builder = BatchBuilder::with_capacity(0);
    for (gsn, call) in (header.first_gsn..).zip(calls) {
        let head = RecordHead { gsn, epoch: 1, deps: &[] };
        builder.append_with(head, RecordKind::Call, |body| call.encode(body)).expect("legal");
    }
    let bytes = builder.bytes();
    let (offset, number) = (4096, 100);
    let segment = &header;
    let place = BatchPlace { segment, offset, number, flushed_below: 0, align: 8, closed: &[] };
    ([&header.encode()[..], builder.seal(&place)].concat(), bytes)
}

#[test]
fn calls_leave_out_what_the_call_before_them_has() {
    let long = vec![7; 600];
    let one = |name, version, arguments: &'static [u8]| {
        let arguments = arguments.into();
        CallToRepeat { name, version, inputs: b"in", digest: 9, arguments }
    };
    let calls = [
        one("move", 1, b"a long prefix, then 1"),
        one("move", 1, b"a long prefix, then 2"),
        one("move", 1, b"a long prefix, then 2"),
        one("move", 1, b"a long"),
        one("move", 1, b"a long prefix, then 3"),
        one("move", 2, b"a long prefix, then 3"),
        one("other", 2, b""),
        one("other", 2, b"short"),
        one("other", 2, b"shorT"),
        CallToRepeat { arguments: long[..].into(), ..one("other", 2, b"") },
        CallToRepeat { arguments: long[..500].into(), ..one("other", 2, b"") },
    ];
    let (segment, bytes) = batch_of_calls(&calls);
    let (batches, _) = read_all(&segment_header(), &segment);
    let mut reader = CallReader::default();
    let read = batches[0].records().map(|record| reader.decode(&record.expect("valid")));
    let read: Vec<_> = read.map(|call| call.expect("a call")).collect();
    assert_eq!(read, calls);
    let whole: usize =
        calls.iter().map(|call| batch_of_calls(std::slice::from_ref(call)).1 - 64).sum();
    // The second call leaves out a name of four bytes, a version, and 20 bytes of arguments.
    let two = batch_of_calls(&calls[..2]).1;
    assert_eq!(two, 64 + 2 * (batch_of_calls(&calls[..1]).1 - 64) - 4 - 4 - 20);
    assert!(bytes < 64 + whole - 255 - 7 * 8, "{bytes} of {whole}");
    // The second batch does not know the first.
    let mut reader = CallReader::default();
    let second = batches[0].records().nth(1).expect("two").expect("valid");
    reader.decode(&second).expect_err("it needs the call before it");
}

#[test]
fn calls_that_are_cut_off_are_refused() {
    let call =
        CallToRepeat { name: "move", version: 7, inputs: b"in", digest: 9, arguments: b"x".into() };
    let mut body = Vec::new();
    call.encode(&mut body).expect("it fits");
    for len in 0..body.len() - 1 {
        with_record(RecordKind::Call, &body[..len], |record| {
            CallReader::default().decode(record).expect_err("refused");
        });
    }
    // A call that has its own name shares nothing with the one before it.
    let shared = body.len() - 2;
    body[shared] = 9;
    with_record(RecordKind::Call, &body, |record| {
        CallReader::default().decode(record).expect_err("refused");
    });
}

#[test]
fn contradictions_are_refused() {
    let refuse = |kind, body: &[u8]| -> DecodeError {
        with_record(kind, body, |record| match kind {
            RecordKind::End => record.end().map(drop).expect_err("refused"),
            _ => record.operation().map(drop).expect_err("refused"),
        })
    };
    let encode = |operation: LoggedOperation<'_>| {
        let mut body = Vec::new();
        operation.encode(&mut body);
        body
    };
    // An undo of no operation, of a later operation, and of no transaction.
    for undoes in [(0, None), (70, Some(70)), (70, Some(71))] {
        refuse(RecordKind::Undo, &encode(operation(Some(undoes))));
    }
    let without = LoggedOperation { transaction: None, ..operation(Some((70, None))) };
    refuse(RecordKind::Undo, &encode(without));
    // Impossible transactions: log 255, or a log without a gsn.
    refuse(RecordKind::Operation, &[&[0xff; 8][..], &[0; 6]].concat());
    refuse(RecordKind::Operation, &[&[0, 0, 0, 0, 0, 0, 0, 1][..], &[0; 6]].concat());
    // Ends of no transaction, with an unknown outcome, and with writes of an aborted transaction.
    let place = (3u64 << 56 | 70).to_le_bytes();
    refuse(RecordKind::End, &[0, 0, 0, 0, 0, 0, 0, 0, 1]);
    refuse(RecordKind::End, &[&place[..], &[3]].concat());
    refuse(RecordKind::End, &[&place[..], &[2, 1, 0, 0, 0, 0, 0, 0]].concat());
    refuse(RecordKind::End, &place);
}
