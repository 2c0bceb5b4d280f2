//! Checks of decoders that hold for any bytes.

use stillpoint_format::log::{BatchReader, SegmentHeader, Step, WriteOp, classify_tail};
use stillpoint_format::manifest::Manifest;

use super::forge::forge_manifest;

/// Reads a whole segment and returns the number of writes.
pub(crate) fn read_segment(header: &SegmentHeader, segment: &[u8]) -> usize {
    let mut reader = BatchReader::new(header, segment);
    let mut writes = 0;
    loop {
        match reader.next_batch() {
            Step::Batch(batch) => {
                assert!(batch.offset() + batch.bytes() <= segment.len() as u64);
                let _ = batch.deps().count();
                let _ = batch.closed().count();
                let mut copy = header.encode().to_vec();
                batch.copy_to(header, 4096, &mut copy);
                let mut copied =
                    BatchReader::window(header, &copy[4096..], 4096, batch.number(), 0);
                assert!(matches!(copied.next_batch(), Step::Batch(_)));
                for record in batch.records() {
                    let Ok(record) = record else { break };
                    let _ = record.deps().count();
                    let _ = record.operation();
                    let called = record.command().ok().map(|(_, writes)| writes);
                    let ended = record.end().ok().map(|end| end.writes);
                    let (images, rest) = record.before_images().ok().flatten().unzip();
                    let undone = rest.as_ref().map(|rest| {
                        assert!(rest.body_offset + rest.body.len() as u64 <= segment.len() as u64);
                        rest.command().map_or(rest.writes(), |(_, writes)| writes)
                    });
                    let bodies = [called, ended, images, undone].into_iter().flatten();
                    for write in bodies.flatten().chain(record.writes()) {
                        let Ok(write) = write else { break };
                        if let WriteOp::Patch(ranges) | WriteOp::Until { ranges, .. } = &write.op {
                            assert_eq!(ranges.clone().count(), ranges.len());
                        }
                        if let WriteOp::Splice(splices) = &write.op {
                            assert_eq!(splices.clone().count(), splices.len());
                        }
                        writes += 1;
                    }
                }
            }
            Step::End(end) => {
                let at = (end.offset as usize).min(segment.len());
                let _ = classify_tail(header, &segment[at..], end.offset, &end);
                return writes;
            }
        }
    }
}

/// Checks that a document with a right checksum is refused, or means the same after it is written
/// and read again. Returns whether the document was accepted.
pub(crate) fn judge_document(document: &[u8]) -> bool {
    let Ok(manifest) = Manifest::decode(&forge_manifest(document)) else {
        return false;
    };
    let again = manifest.encode().expect("was validated");
    assert_eq!(Manifest::decode(&again), Ok(manifest));
    true
}
