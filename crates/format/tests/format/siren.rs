//! Hostile bytes of a SIREN store: pages, directories, headers, batches, and operations.

use stillpoint_format::ident::{FileKind, HEADER_BYTES, Identity, StoreId};
use stillpoint_format::siren::{
    BATCH_HEADER_BYTES, BatchReader, CheckpointHeader, Directory, Extent, ExtentKind, LogRecord,
    PageBuilder, PagesHeader, SegmentHeader, StoredExtent, StoredPage, StoredTable, TupleChange,
    TupleImage, TupleOperation, seal_batch,
};

use crate::common::mutate::{Stream, mutate};

const STORE: StoreId = StoreId([4; 16]);
const PAGE_BYTES: u32 = 4096;
const STORED: StoredExtent = StoredExtent {
    extent: Extent { first: 5, pages: 1 },
    kind: ExtentKind::Tuples,
    table: 4,
    level: 3,
};
/// The place of the checksum in pages, directories, headers and batches. It counts from behind.
const CRC_AT: usize = 4;
const OFFSET: u64 = 8192;

fn identity() -> Identity {
    Identity::new(FileKind::SirenPages, STORE, &[u64::from(PAGE_BYTES)])
}

fn segment_header() -> SegmentHeader {
    SegmentHeader { store: STORE, created_ms: 1, number: 4, incarnation: 2 }
}

fn page(stream: &mut Stream) -> Vec<u8> {
    let mut builder = PageBuilder::default();
    for number in 0..stream.below(9) as u32 {
        let (key, value) = (vec![7; stream.below(40)], vec![9; stream.below(100)]);
        let open = (stream.below(2) == 0).then_some((u64::from(number), number));
        let is_delete_mark = open.is_some() && value.is_empty();
        builder.push(&TupleImage { table: 4, key: &key, value: &value, is_delete_mark, open });
    }
    builder.seal(identity(), &STORED, PAGE_BYTES).to_vec()
}

fn directory(stream: &mut Stream) -> Vec<u8> {
    let extent = |first| StoredExtent { extent: Extent { first, pages: 2 }, ..STORED };
    let extents = (0..stream.below(20) as u32).map(|at| extent(4 + 2 * at)).collect();
    let tables = vec![StoredTable { id: 4, name: "accounts".into() }];
    Directory { level: 12, tables, extents }.encode(identity(), OFFSET)
}

fn checkpoint_header(stream: &mut Stream) -> Vec<u8> {
    let header = CheckpointHeader {
        level: stream.next(),
        next_transaction: 9,
        first_segment: 1,
        incarnation: 1,
        is_logged: true,
        is_fuzzy: false,
        directory: Extent { first: 4, pages: 1 },
        directory_bytes: 100,
    };
    header.encode(identity(), 1).to_vec()
}

fn batch(stream: &mut Stream) -> Vec<u8> {
    let (key, value) = (vec![7; stream.below(40)], vec![9; stream.below(100)]);
    let (table, statement) = (4, stream.below(9) as u32);
    let records = [
        LogRecord::Table { table, name: "accounts" },
        LogRecord::Put { statement, table, key: &key, value: &value },
        LogRecord::Change { statement, table, key: &key, before: Some(&value), after: None },
        LogRecord::Delete { statement, table, key: &key },
        LogRecord::Rollback { statement },
        LogRecord::Commit,
    ];
    let mut batch = vec![0; BATCH_HEADER_BYTES];
    records.iter().for_each(|record| record.encode(3, 9, &mut batch));
    seal_batch(&mut batch, segment_header().identity(), HEADER_BYTES as u64, (0, 0));
    batch
}

/// The batches and records that a reader finds behind a whole header.
fn read(batch: &[u8]) -> (usize, usize) {
    let mut segment = segment_header().encode().to_vec();
    segment.extend_from_slice(batch);
    let mut reader = BatchReader::new(&segment_header(), &segment);
    let (mut batches, mut records) = (0, Vec::new());
    while reader.read(&mut records).unwrap_or(false) {
        batches += 1;
    }
    let _ = reader.is_damaged();
    (batches, records.len())
}

fn is_page(bytes: &[u8]) -> bool {
    let page = StoredPage::decode(identity(), bytes, &STORED, PAGE_BYTES);
    page.is_ok_and(|page| page.tuples().is_ok())
}

/// Changed bytes are refused.
pub(crate) fn judge_mutation(stream: &mut Stream) {
    let which = stream.below(5);
    let original = match which {
        0 => page(stream),
        1 => directory(stream),
        2 => checkpoint_header(stream),
        3 => batch(stream),
        _ => PagesHeader { store: STORE, created_ms: 1, page_bytes: PAGE_BYTES }.encode().to_vec(),
    };
    let mut bytes = original.clone();
    mutate(stream, &mut bytes);
    let is_accepted = match which {
        0 => is_page(&bytes),
        1 => Directory::decode(identity(), &bytes, OFFSET).is_ok(),
        2 => CheckpointHeader::decode(identity(), &bytes, 1).is_ok(),
        3 => read(&bytes).0 == 1,
        _ => PagesHeader::decode(&bytes).is_ok(),
    };
    // Bytes behind a header or a batch belong to what comes next.
    let is_same = bytes == original || which >= 2 && bytes.starts_with(&original);
    assert!(!is_accepted || is_same, "changed bytes were accepted: {which}");
}

/// Changed bytes with a right checksum never panic. Returns how much was decoded.
pub(crate) fn judge_forgery(stream: &mut Stream) -> usize {
    let forge = |identity: Identity, offset: u64, bytes: &mut [u8]| {
        if bytes.len() >= 2 * CRC_AT {
            let crc = identity.checksum(offset, &bytes[2 * CRC_AT..]);
            bytes[CRC_AT..2 * CRC_AT].copy_from_slice(&crc.to_le_bytes());
        }
    };
    match stream.below(5) {
        0 => {
            let mut bytes = page(stream);
            mutate(stream, &mut bytes);
            bytes.resize(PAGE_BYTES as usize, 0);
            let offset = u64::from(STORED.extent.first) * u64::from(PAGE_BYTES);
            forge(identity(), offset, &mut bytes);
            let page = StoredPage::decode(identity(), &bytes, &STORED, PAGE_BYTES);
            let tuples = page.and_then(|page| page.tuples().map(|tuples| tuples.len()));
            tuples.unwrap_or(0)
        }
        1 => {
            let mut bytes = directory(stream);
            mutate(stream, &mut bytes);
            forge(identity(), OFFSET, &mut bytes);
            let decoded = Directory::decode(identity(), &bytes, OFFSET);
            decoded.map_or(0, |directory| directory.extents.len())
        }
        2 => {
            let mut bytes = checkpoint_header(stream);
            mutate(stream, &mut bytes);
            bytes.resize(4096, 0);
            forge(identity(), PagesHeader::checkpoint_header_at(1), &mut bytes);
            usize::from(CheckpointHeader::decode(identity(), &bytes, 1).is_ok())
        }
        3 => {
            let mut bytes = batch(stream);
            mutate(stream, &mut bytes);
            forge(segment_header().identity(), HEADER_BYTES as u64, &mut bytes);
            read(&bytes).1
        }
        _ => {
            let key = vec![7; stream.below(40)];
            let operation = TupleOperation {
                level: 3,
                transaction: 9,
                statement: 1,
                replaces: stream.below(2) == 0,
                key: &key,
                change: [TupleChange::Put(1, b"value"), TupleChange::Undo][stream.below(2)],
            };
            let mut bytes = Vec::new();
            operation.encode(&mut bytes);
            mutate(stream, &mut bytes);
            usize::from(TupleOperation::decode(&bytes).is_ok())
        }
    }
}
