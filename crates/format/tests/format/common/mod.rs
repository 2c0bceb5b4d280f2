//! Code shared by the tests of this crate.

#[expect(dead_code, reason = "the fuzzers and the tests of the engine use more of it")]
pub(crate) mod forge;
pub(crate) mod judge;
pub(crate) mod manifest;
pub(crate) mod mutate;
pub(crate) mod part;
pub(crate) mod sample;

use stillpoint_format::ident::StoreId;
use stillpoint_format::log::{
    BatchBuilder, BatchPlace, PatchRange, Record, RecordHead, RecordKind, SegmentHeader, Splice,
    WriteOp, WritesEncoder,
};
use stillpoint_format::{Label, LogGsn};

/// The store of all tests.
pub(crate) const STORE: StoreId = StoreId(*b"\x00\x11stillpoint\xfe\xff!\n");

/// A write that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Put { table: u16, generation: u32, key: Vec<u8>, label: Label, value: Vec<u8> },
    Delete { table: u16, generation: u32, key: Vec<u8> },
    Patch { table: u16, generation: u32, key: Vec<u8>, ranges: Vec<(u32, Vec<u8>)> },
    Until { table: u16, key: Vec<u8>, deadline: u64, ranges: Vec<(u32, Vec<u8>)> },
    Splice { table: u16, generation: u32, key: Vec<u8>, splices: Vec<(u32, u32, Vec<u8>)> },
}

/// The header of the sample segment.
pub(crate) fn segment_header() -> SegmentHeader {
    SegmentHeader {
        store: STORE,
        created_ms: 1_790_000_000_000,
        incarnation: 2,
        log: 4,
        first_gsn: 5000,
        first_batch: 100,
        file_bytes: 3 * 4096,
    }
}

/// A record to encode: gsn, epoch, dependencies, writes.
pub(crate) type Transaction = (u64, u64, Vec<LogGsn>, Vec<Op>);

/// Appends the writes to a body.
pub(crate) fn encode_ops(body: &mut Vec<u8>, ops: &[Op]) {
    let mut writes = WritesEncoder::new(body);
    for op in ops {
        match op {
            Op::Put { table, generation, key, label, value } => {
                writes.put(*table, *generation, key, *label, value)
            }
            Op::Until { table, key, deadline, ranges } => {
                let ranges: Vec<_> = ranges
                    .iter()
                    .map(|(offset, bytes)| PatchRange { offset: *offset, bytes })
                    .collect();
                writes.patch_until((*table, 1, key), *deadline, &ranges)
            }
            Op::Delete { table, generation, key } => writes.delete(*table, *generation, key),
            Op::Patch { table, generation, key, ranges } => {
                let ranges: Vec<_> = ranges
                    .iter()
                    .map(|(offset, bytes)| PatchRange { offset: *offset, bytes })
                    .collect();
                writes.patch(*table, *generation, key, &ranges)
            }
            Op::Splice { table, generation, key, splices } => {
                let splices = splices.iter().map(|(offset, removed, bytes)| Splice {
                    offset: *offset,
                    removed: *removed,
                    bytes,
                });
                writes.splice(*table, *generation, key, splices)
            }
        }
        .expect("legal write");
    }
}

/// A sealed batch.
pub(crate) fn batch(
    segment: &SegmentHeader,
    offset: u64,
    number: u64,
    flushed_below: u64,
    align: usize,
    records: &[Transaction],
) -> Vec<u8> {
    let mut builder = BatchBuilder::with_capacity(4096);
    for (n, (gsn, epoch, deps, ops)) in records.iter().enumerate() {
        let head = RecordHead { gsn: *gsn, epoch: *epoch, deps };
        // Both ways to append must produce the same bytes.
        if n % 2 == 0 {
            let mut body = Vec::new();
            encode_ops(&mut body, ops);
            builder.append(head, RecordKind::Writes, &body).expect("legal record");
        } else {
            builder
                .append_with(head, RecordKind::Writes, |body| {
                    encode_ops(body, ops);
                    Ok(())
                })
                .expect("legal record");
        }
    }
    let closed = &[LogGsn { log: 200, gsn: 5 }, LogGsn { log: 201, gsn: 6 }];
    builder.seal(&BatchPlace { segment, offset, number, flushed_below, align, closed }).to_vec()
}

/// The writes of a record, owned.
pub(crate) fn writes_of(record: &Record<'_>) -> Vec<Op> {
    record
        .writes()
        .map(|write| {
            let write = write.expect("valid write");
            let (table, generation, key) = (write.table, write.generation, write.key.to_vec());
            match write.op {
                WriteOp::Put { label, value } => {
                    Op::Put { table, generation, key, label, value: value.to_vec() }
                }
                WriteOp::Until { deadline, ranges } => Op::Until {
                    table,
                    key,
                    deadline,
                    ranges: ranges.map(|range| (range.offset, range.bytes.to_vec())).collect(),
                },
                WriteOp::Delete => Op::Delete { table, generation, key },
                WriteOp::Patch(ranges) => Op::Patch {
                    table,
                    generation,
                    key,
                    ranges: ranges.map(|range| (range.offset, range.bytes.to_vec())).collect(),
                },
                WriteOp::Splice(splices) => {
                    let owned = |of: Splice<'_>| (of.offset, of.removed, of.bytes.to_vec());
                    Op::Splice { table, generation, key, splices: splices.map(owned).collect() }
                }
            }
        })
        .collect()
}
