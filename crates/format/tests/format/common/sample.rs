//! Small correct files, each from one seed.

use stillpoint_format::log::{Continuation, SegmentHeader};
use stillpoint_format::part::Codec;

use super::mutate::Stream;
use super::part::{part_file, part_header};
use super::{Op, batch, segment_header};

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
    if stream.below(2) == 0 {
        let at = segment.len() as u64;
        let mark = Continuation { first_batch: 103, first_gsn: gsn + 1 };
        segment.extend_from_slice(&mark.encode(&header, at));
    }
    segment.resize(segment.len() + 100, 0);
    (header, segment)
}

fn sample_ops(stream: &mut Stream) -> Vec<Op> {
    let (table, generation) = (stream.next() as u16 % 2, 1);
    (0..stream.below(4))
        .map(|_| {
            let key = vec![stream.next() as u8; [3, 8, 300][stream.below(3)]];
            match stream.below(4) {
                0 => Op::Put { table, generation, key, tag: 1, value: vec![7; stream.below(40)] },
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
            let value = (stream.below(4) > 0).then(|| (1, vec![n as u8; stream.below(200)]));
            (n / 4, (n as u16, 1, vec![n as u8; stream.below(12)], value))
        })
        .collect();
    part_file(&part_header(codec), 300, &rows).0
}
