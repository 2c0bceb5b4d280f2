//! Costs of encoding and decoding: key hash, log records, checkpoint blocks, checksums.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput};
use stillpoint_format::LogGsn;
use stillpoint_format::hash::KeyHasher;
use stillpoint_format::ident::{Identity, StoreId};
use stillpoint_format::log::{
    BatchBuilder, BatchPlace, BatchReader, PatchRange, RecordHead, RecordKind, SegmentHeader, Step,
    WritesEncoder,
};
use stillpoint_format::part::{
    BLOCK_TARGET_BYTES, BlockBuilder, BlockReader, Codec, Compressor, KeyRef,
};

const SEGMENT: SegmentHeader = SegmentHeader {
    store: StoreId([7; 16]),
    created_ms: 0,
    incarnation: 1,
    log: 0,
    first_gsn: 1,
    first_batch: 1,
    file_bytes: 0,
};

fn identity() -> Identity {
    SEGMENT.identity()
}

fn hashes(c: &mut Criterion) {
    let hasher = KeyHasher::new(42);
    let mut group = c.benchmark_group("key hash");
    for len in [8, 16, 24, 64] {
        let key = vec![3u8; len];
        group.bench_function(format!("{len} bytes"), |b| {
            b.iter(|| hasher.hash(black_box(1), black_box(&key)));
        });
    }
    let (key8, key16) = ([3u8; 8], [3u8; 16]);
    group.bench_function("8 bytes, length known", |b| {
        b.iter(|| hasher.hash(black_box(1), black_box(&key8)));
    });
    group.bench_function("16 bytes, length known", |b| {
        b.iter(|| hasher.hash(black_box(1), black_box(&key16)));
    });
}

/// Ten patches of eight bytes under eight-byte keys.
fn encode_patches(body: &mut Vec<u8>, keys: &[[u8; 8]; 10], value: &[u8; 8]) {
    let mut writes = WritesEncoder::new(body);
    for key in keys {
        let range = [PatchRange { offset: 16, bytes: value }];
        writes.patch(1, 1, key, &range).expect("legal");
    }
}

/// Ten values of a hundred bytes.
fn encode_puts(body: &mut Vec<u8>, keys: &[[u8; 8]; 10], value: &[u8]) {
    let mut writes = WritesEncoder::new(body);
    for key in keys {
        writes.put(1, 1, key, 0, value).expect("legal");
    }
}

/// A segment with one batch of records.
fn segment_of(records: u64, body: &[u8]) -> Vec<u8> {
    let mut builder = BatchBuilder::default();
    for gsn in 1..=records {
        let head = RecordHead { gsn, epoch: 1, deps: &[] };
        builder.append(head, RecordKind::Writes, body).expect("legal");
    }
    let place = BatchPlace {
        segment: &SEGMENT,
        offset: 4096,
        number: 1,
        flushed_below: 1,
        align: 8,
        closed: &[],
    };
    [&SEGMENT.encode()[..], builder.seal(&place)].concat()
}

fn records(c: &mut Criterion) {
    let keys: [[u8; 8]; 10] = std::array::from_fn(|n| [n as u8; 8]);
    let mut group = c.benchmark_group("log record, 10 writes");
    let mut body = Vec::with_capacity(4096);
    group.bench_function("encode 8-byte patches", |b| {
        b.iter(|| {
            body.clear();
            encode_patches(&mut body, black_box(&keys), black_box(&[1; 8]));
            body.len()
        });
    });
    group.bench_function("encode 100-byte puts", |b| {
        b.iter(|| {
            body.clear();
            encode_puts(&mut body, black_box(&keys), black_box(&[1; 100]));
            body.len()
        });
    });
    body.clear();
    encode_patches(&mut body, &keys, &[1; 8]);
    let deps = [LogGsn { log: 3, gsn: 17 }];
    let mut builder = BatchBuilder::with_capacity(1 << 20);
    let mut gsn = 0;
    group.bench_function("append to batch", |b| {
        b.iter(|| {
            if builder.bytes() > 1 << 19 {
                builder.clear();
            }
            gsn += 1;
            let head = RecordHead { gsn, epoch: 5, deps: black_box(&deps) };
            builder.append(head, RecordKind::Writes, black_box(&body)).expect("legal");
        });
    });
    let segment = segment_of(1000, &body);
    group.throughput(Throughput::Elements(1000));
    group.bench_function("decode", |b| {
        b.iter(|| {
            let mut reader = BatchReader::new(&SEGMENT, black_box(&segment));
            let mut sum = 0;
            while let Step::Batch(batch) = reader.next_batch() {
                for record in batch.records() {
                    for write in record.expect("valid").writes() {
                        sum += write.expect("valid").key.len();
                    }
                }
            }
            sum
        });
    });
}

fn seals(c: &mut Criterion) {
    let mut group = c.benchmark_group("64 KiB");
    group.throughput(Throughput::Bytes(64 << 10));
    let bytes = vec![7; 64 << 10];
    group.bench_function("checksum", |b| {
        b.iter(|| identity().checksum(4096, black_box(&bytes)));
    });
    let body = [7; 240];
    group.bench_function("seal a batch", |b| {
        b.iter_batched_ref(
            || {
                let mut builder = BatchBuilder::with_capacity(68 << 10);
                for gsn in 1..=256 {
                    let head = RecordHead { gsn, epoch: 5, deps: &[] };
                    builder.append(head, RecordKind::Command, &body).expect("legal");
                }
                builder
            },
            |builder| {
                let place = BatchPlace {
                    segment: &SEGMENT,
                    offset: 4096,
                    number: 1,
                    flushed_below: 1,
                    align: 4096,
                    closed: &[],
                };
                builder.seal(&place).len()
            },
            BatchSize::SmallInput,
        );
    });
}

/// A full block of 8-byte keys and 100-byte values.
fn fill(block: &mut BlockBuilder) -> u32 {
    let value = [9; 100];
    for n in 0u64.. {
        let key = KeyRef { table: 1, generation: 1, key: &n.to_le_bytes() };
        if block.push_value(key, 0, &value).is_err() {
            break;
        }
    }
    block.entry_count()
}

fn blocks(c: &mut Criterion) {
    let mut group = c.benchmark_group("checkpoint block, 8 + 100 bytes");
    let mut block = BlockBuilder::new(0);
    let count = fill(&mut block);
    let value = [9; 100];
    group.bench_function("append", |b| {
        b.iter(|| {
            let key = KeyRef { table: 1, generation: 1, key: black_box(&[1; 8]) };
            if block.push_value(key, 0, black_box(&value)).is_err() {
                block.reset(0);
            }
        });
    });
    block.reset(0);
    fill(&mut block);
    group.throughput(Throughput::Bytes(BLOCK_TARGET_BYTES as u64));
    for codec in [Codec::None, Codec::Lz4, Codec::Zstd] {
        let mut compressor = Compressor::new(codec, 1).expect("codec");
        let mut out = Vec::with_capacity(128 << 10);
        group.bench_function(format!("seal, {}", codec.as_str()), |b| {
            b.iter(|| {
                out.clear();
                block.seal(&mut compressor, identity(), 4096, &mut out).expect("codec")
            });
        });
        let mut reader = BlockReader::new(identity());
        group.bench_function(format!("open and iterate, {}", codec.as_str()), |b| {
            b.iter(|| {
                let block = reader.open(black_box(&out), 4096).expect("valid");
                let entries = block.entries().filter(|entry| entry.is_ok()).count();
                assert_eq!(entries, count as usize);
            });
        });
    }
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    hashes(&mut criterion);
    records(&mut criterion);
    seals(&mut criterion);
    blocks(&mut criterion);
    criterion.final_summary();
}
