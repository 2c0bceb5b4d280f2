//! Small correct files, each from one seed.

use stillpoint_format::Label;
use stillpoint_format::log::{
    BatchBuilder, BatchPlace, Continuation, LoggedCall, RecordHead, RecordKind, SegmentHeader,
};
use stillpoint_format::part::Codec;

use super::mutate::Stream;
use super::part::{part_file, part_header};
use super::{Op, batch, encode_ops, segment_header};

/// A segment of three batches.
pub(crate) fn sample_segment(stream: &mut Stream) -> (SegmentHeader, Vec<u8>) {
    let header = segment_header();
    let mut segment = header.encode().to_vec();
    let mut gsn = header.first_gsn;
    for number in 0..3 {
        let records: Vec<_> = (0..1 + stream.below(3))
            .map(|_| {
                gsn += 1 + stream.next() % 9;
                let deps = vec![stillpoint_format::LogGsn { log: stream.next() as u8 % 9, gsn: 7 }];
                (gsn, 5 + stream.next() % 2, deps, sample_ops(stream))
            })
            .collect();
        let at = segment.len() as u64;
        let align = [8, 256][stream.below(2)];
        segment.extend_from_slice(&batch(&header, at, 100 + number, 100 + number, align, &records));
    }
    gsn += 1;
    let batch = batch_with_before_images(&header, segment.len() as u64, gsn, stream);
    segment.extend_from_slice(&batch);
    if stream.below(2) == 0 {
        let at = segment.len() as u64;
        let mark = Continuation { first_batch: 104, first_gsn: gsn + 1 };
        segment.extend_from_slice(&mark.encode(&header, at));
    }
    segment.resize(segment.len() + 100, 0);
    (header, segment)
}

/// The fourth batch: one record with before-images.
fn batch_with_before_images(
    segment: &SegmentHeader,
    offset: u64,
    gsn: u64,
    stream: &mut Stream,
) -> Vec<u8> {
    let mut builder = BatchBuilder::with_capacity(4096);
    let (images, writes) = (sample_ops(stream), sample_ops(stream));
    let call = LoggedCall { name: "move", version: 1, arguments: b"1 2", inputs: b"" };
    let is_call = stream.below(2) == 0;
    let kind = if is_call { RecordKind::UndoCommand } else { RecordKind::UndoWrites };
    let head = RecordHead { gsn, epoch: 6, deps: &[] };
    let body = |body: &mut Vec<u8>| {
        let mut encoded = Vec::new();
        encode_ops(&mut encoded, &images);
        body.extend_from_slice(&(encoded.len() as u32).to_le_bytes());
        body.extend_from_slice(&encoded);
        if is_call {
            call.encode_head(body)?;
        }
        encode_ops(body, &writes);
        Ok(())
    };
    builder.append_with(head, kind, body).expect("legal record");
    let (number, align, closed) = (103, 8, &[][..]);
    builder
        .seal(&BatchPlace { segment, offset, number, flushed_below: number, align, closed })
        .to_vec()
}

fn sample_ops(stream: &mut Stream) -> Vec<Op> {
    let (table, generation) = (stream.next() as u16 % 2, 1);
    (0..stream.below(4))
        .map(|_| {
            let key = vec![stream.next() as u8; [3, 8, 300][stream.below(3)]];
            match stream.below(5) {
                0 => {
                    let label = Label { tag: 1, deadline: stream.below(3) as u64 };
                    Op::Put { table, generation, key, label, value: vec![7; stream.below(40)] }
                }
                4 => {
                    let ranges = vec![(4, vec![9; 8]); stream.below(2)];
                    Op::Until { table, key, deadline: stream.below(3) as u64, ranges }
                }
                1 => Op::Delete { table, generation, key },
                2 => {
                    let offset = [4, 100_000][stream.below(2)];
                    let splices = vec![(offset, 3, vec![9; 8]), (0, 0, vec![])];
                    Op::Splice { table, generation, key, splices }
                }
                _ => {
                    let offset = [4, 100_000][stream.below(2)];
                    let ranges = vec![(offset, vec![9; 8]), (0, vec![])];
                    Op::Patch { table, generation, key, ranges }
                }
            }
        })
        .collect()
}

/// A part of up to twenty rows.
pub(crate) fn sample_part(stream: &mut Stream) -> Vec<u8> {
    let codec = [Codec::None, Codec::Lz4, Codec::Zstd][stream.below(3)];
    let rows: Vec<_> = (0..stream.below(20) as u32)
        .map(|n| {
            let label = Label { tag: 1, deadline: stream.below(3) as u64 };
            let value = (stream.below(4) > 0).then(|| (label, vec![n as u8; stream.below(200)]));
            (n / 4, (n as u16, 1, vec![n as u8; stream.below(12)], value))
        })
        .collect();
    part_file(&part_header(codec), 300, &rows).0
}
