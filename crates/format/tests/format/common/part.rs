//! A sample checkpoint part.

use stillpoint_format::Label;
use stillpoint_format::hash::{KeyHasher, partition_of};
use stillpoint_format::names::CheckpointKind;
use stillpoint_format::part::{
    BlockBuilder, Codec, Compressor, Content, Entry, FragmentJoiner, IndexBuilder, KeyRef,
    PartHeader, PartIndex, fragments,
};

use super::STORE;

/// What a checkpoint says about a key; `None` is a tombstone.
pub(crate) type KeyAndValue = (u16, u32, Vec<u8>, Option<(Label, Vec<u8>)>);

/// The header of the sample part.
pub(crate) fn part_header(codec: Codec) -> PartHeader {
    PartHeader {
        store: STORE,
        created_ms: 1_790_000_000_000,
        epoch: 7,
        part: 3,
        kind: CheckpointKind::Partial,
        partitions_log2: 4,
        codec,
        hash_seed: 0x5EED,
        base: None,
    }
}

/// Writes rows, each with its partition, as one part; blocks are full at `target` bytes.
/// Returns the file and the checksum of its index.
pub(crate) fn part_file(
    header: &PartHeader,
    target: usize,
    rows: &[(u32, KeyAndValue)],
) -> (Vec<u8>, u32) {
    write_part(header, target, rows, IndexBuilder::default())
}

/// As [`part_file`], with a map of the keys. Each key goes to the partition of its hash.
pub(crate) fn keyed_part_file(
    header: &PartHeader,
    target: usize,
    rows: impl IntoIterator<Item = KeyAndValue>,
) -> (Vec<u8>, u32) {
    let hasher = KeyHasher::new(header.hash_seed);
    let partition =
        |row: &KeyAndValue| partition_of(hasher.hash(row.0, &row.2), header.partitions_log2);
    let mut rows: Vec<_> = rows.into_iter().map(|row| (partition(&row), row)).collect();
    rows.sort_by_key(|row| row.0);
    write_part(header, target, &rows, IndexBuilder::with_keys(hasher, header.partitions_log2))
}

fn write_part(
    header: &PartHeader,
    target: usize,
    rows: &[(u32, KeyAndValue)],
    index: IndexBuilder,
) -> (Vec<u8>, u32) {
    let mut writer = PartWriter {
        file: header.encode().to_vec(),
        index,
        header: *header,
        compressor: Compressor::new(header.codec, 3).expect("compressor"),
    };
    let mut block = BlockBuilder::with_target(0, target);
    for (partition, (table, generation, key, value)) in rows {
        if block.partition() != *partition {
            writer.flush(&mut block, *partition);
        }
        let key = KeyRef { table: *table, generation: *generation, key };
        let push = |block: &mut BlockBuilder| match value {
            Some((label, value)) => block.push_value(key, *label, value),
            None => block.push_tombstone(key),
        };
        match value {
            Some((label, value)) if value.len() > stillpoint_format::part::FRAGMENT_BYTES => {
                let mut at = 0;
                for (fragment, len) in fragments(value.len() as u32) {
                    writer.flush(&mut block, *partition);
                    let bytes = &value[at..at + len];
                    block.push_fragment(key, (*label, 0), fragment, bytes).expect("empty block");
                    at += len;
                }
                assert_eq!(at, value.len());
                writer.flush(&mut block, *partition);
            }
            _ => {
                if push(&mut block).is_err() {
                    writer.flush(&mut block, *partition);
                    push(&mut block).expect("an empty block takes any entry");
                }
            }
        }
    }
    writer.flush(&mut block, 0);
    let offset = writer.file.len() as u64;
    let (tail, crc) = writer.index.finish(header.identity(), offset);
    writer.file.extend_from_slice(&tail);
    (writer.file, crc)
}

struct PartWriter {
    file: Vec<u8>,
    index: IndexBuilder,
    header: PartHeader,
    compressor: Compressor,
}

impl PartWriter {
    fn flush(&mut self, block: &mut BlockBuilder, next_partition: u32) {
        if !block.is_empty() {
            let at = self.file.len();
            let identity = self.header.identity();
            self.index.note_keys(block);
            let entry = block.seal(&mut self.compressor, identity, at as u64, &mut self.file);
            self.index.push(entry.expect("compressible"));
        }
        block.reset(next_partition);
    }
}

/// Reads a whole part back, in index order.
pub(crate) fn read_part(
    file: &[u8],
) -> Result<Vec<(u32, KeyAndValue)>, stillpoint_format::DecodeError> {
    let header = PartHeader::decode(file)?;
    let index = PartIndex::of_file(header.identity(), file, header.partitions_log2)?;
    let mut reader = stillpoint_format::part::BlockReader::new(header.identity());
    let mut rows = Vec::new();
    let mut joiner = FragmentJoiner::default();
    let fail = |offset, cause| stillpoint_format::DecodeError { what: "value", offset, cause };
    for entry in index.blocks() {
        let block = reader.open_indexed(entry, &file[entry.offset as usize..])?;
        assert_eq!(block.partition(), entry.partition);
        assert_eq!(block.stored_bytes(), entry.bytes as usize);
        for record in block.entries() {
            let record = record?;
            let joined = joiner.push(&record).map_err(|cause| fail(entry.offset, cause))?;
            if let Some(joined) = joined {
                let value = Some((joined.label, joined.value.to_vec()));
                rows.push((entry.partition, row(&Entry { key: joined.key, ..record }, value)));
            } else if let Content::Value(value) = record.content {
                rows.push((entry.partition, row(&record, Some((record.label, value.to_vec())))));
            } else if record.content == Content::Tombstone {
                rows.push((entry.partition, row(&record, None)));
            }
        }
    }
    joiner.finish().map_err(|cause| fail(0, cause))?;
    Ok(rows)
}

fn row(entry: &Entry<'_>, value: Option<(Label, Vec<u8>)>) -> KeyAndValue {
    (entry.key.table, entry.key.generation, entry.key.key.to_vec(), value)
}
