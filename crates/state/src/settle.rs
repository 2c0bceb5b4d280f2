//! Everything that recovery has read becomes durable before the state is used.
//!
//! After the death of a process its writes may be in a cache only. A flush of these writes may have
//! failed already, and then no later flush reaches them. So recovery writes these parts again, into
//! fresh files:
//!
//! 1. The last batch of the log becomes a segment of its own. All other batches are durable, since
//!    each batch is written after the flush of the one before it.
//! 2. The image's trailer gets a second copy. All blocks are durable, since the trailer is written
//!    after their flush.
//!
//! Nothing is rewritten in place: the old bytes may be durable, and a crash may tear the new ones.

use std::path::Path;

use stillpoint_format::ident::HEADER_BYTES;
use stillpoint_format::state::{
    ACTIONS_DIR, ActionBatchBuilder, ActionSegmentHeader, parse_actions_name,
};
use stillpoint_io::{DiskError, write_file_durably};

use crate::files::{Files, Image};

/// Makes the recovered state durable: the image that was loaded, and the last batch that was read.
///
/// # Errors
/// An error of the disk. The old files are untouched.
pub(crate) fn settle(
    files: &Files,
    image: Option<&Image>,
    last_batch: Option<ActionBatchBuilder>,
) -> Result<(), DiskError> {
    let disk = files.disk();
    remove_strays(files)?;
    if let Some(image) = image {
        let path = Files::image_trailer_path(image.slot());
        write_file_durably(disk, &path, &image.encoded_trailer())?;
    }
    if let Some(batch) = last_batch {
        write_segment(files, batch)?;
    }
    disk.sync_dir(Path::new(ACTIONS_DIR))?;
    disk.sync_dir(Path::new(""))
}

/// Writes a segment of one batch. A batch that was the first of its segment replaces that segment.
fn write_segment(files: &Files, mut batch: ActionBatchBuilder) -> Result<(), DiskError> {
    let first_tick = batch.first_tick().expect("a batch has ticks");
    let header = ActionSegmentHeader {
        store: files.schema.store,
        created_ms: files.environment.clock.wall_ms(),
        first_tick,
        nonce: files.environment.rng.next_u64(),
    };
    let mut bytes = header.encode().to_vec();
    bytes.extend_from_slice(batch.seal(header.identity(), HEADER_BYTES as u64, 0));
    write_file_durably(files.disk(), &Files::segment_path(first_tick), &bytes)
}

/// Removes the segments that an earlier recovery has begun and not named.
fn remove_strays(files: &Files) -> Result<(), DiskError> {
    let dir = Path::new(ACTIONS_DIR);
    for name in files.disk().list(dir)? {
        let stem = name.strip_suffix(".tmp");
        if stem.and_then(parse_actions_name).is_some() {
            files.disk().remove(&dir.join(name))?;
        }
    }
    Ok(())
}
