//! Records beyond the cut, whose before-images undo what a fuzzy checkpoint holds of them.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use stillpoint_format::DecodeError;
use stillpoint_format::log::{Record, WriteIter};

use super::chain::Chain;
use super::error::ScanError;
use super::walk::WINDOW_BYTES;

/// A record beyond the cut, with what it has overwritten.
#[derive(Clone, Debug)]
pub struct BeyondCut {
    /// The record's gsn.
    pub gsn: u64,
    /// The log that holds the record.
    pub log: u8,
    /// The segment that holds the record.
    pub path: PathBuf,
    body_offset: u64,
    images: Vec<u8>,
}

impl BeyondCut {
    fn of(record: &Record<'_>, log: u8, path: &Path) -> Result<Option<Self>, DecodeError> {
        let Some((images, _)) = record.before_images()? else { return Ok(None) };
        let (bytes, body_offset) = images.undecoded();
        let (images, path) = (bytes.to_vec(), path.to_owned());
        Ok(Some(BeyondCut { gsn: record.gsn, log, path, body_offset, images }))
    }

    /// What the record has overwritten, as writes that bring it back.
    pub fn before_images(&self) -> WriteIter<'_> {
        WriteIter::new(&self.images, self.body_offset)
    }
}

/// The records of the chains that are valid and not kept, up to the last active one of each log. No
/// later record is in the checkpoint.
pub(super) fn beyond_cut(
    chains: &[Chain],
    active: impl Fn(u8) -> u64,
) -> Result<Vec<BeyondCut>, ScanError> {
    let mut beyond = Vec::new();
    for chain in chains {
        let last_gsn = chain.valid_gsn.min(active(chain.log));
        if last_gsn <= chain.kept_gsn {
            continue;
        }
        let is_after = |of: &&super::Walked| of.end.last_gsn > chain.kept_gsn;
        for segment in chain.segments.iter().filter(is_after) {
            segment.file.walk(segment.begin, WINDOW_BYTES, |batch, _| {
                if batch.first_gsn() > last_gsn {
                    return Ok(ControlFlow::Break(()));
                }
                for record in batch.records() {
                    let record = record.map_err(|source| segment.file.malformed(source))?;
                    if record.gsn > chain.kept_gsn && record.gsn <= last_gsn {
                        let of = BeyondCut::of(&record, chain.log, &segment.file.shown);
                        beyond.extend(of.map_err(|source| segment.file.malformed(source))?);
                    }
                }
                Ok(ControlFlow::Continue(()))
            })?;
        }
    }
    beyond.sort_unstable_by_key(|record| std::cmp::Reverse((record.gsn, record.log)));
    Ok(beyond)
}
