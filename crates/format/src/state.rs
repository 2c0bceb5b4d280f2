//! State arrays: their schema, their images, and the log of actions between images.
//!
//! ```text
//! STATE                    schema: names, cell sizes and lengths of the arrays
//! image-0 to image-2       images: written in turn, each valid with its trailer only
//! image-<n>.trailer        a second copy of an image's trailer, which recovery writes
//! actions/<first tick>     segments of the log of actions
//! ```

mod actions;
mod image;
mod schema;

pub use actions::{
    ACTIONS_ALIGN, ActionBatch, ActionBatchBuilder, ActionSegmentHeader, ActionStep,
    BATCH_PAYLOAD_BYTES_MAX, FRAME_BYTES, announced_batch_bytes, read_action_batch,
    valid_batch_behind,
};
pub use image::{
    BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, BLOCK_HEADER_BYTES, BlockPlace, ImageHeader, ImageLayout,
    ImageTrailer, TRAILER_BYTES, open_block, seal_block,
};
pub use schema::{ARRAYS_MAX, ArraySchema, NAME_BYTES_MAX, StateSchema};

/// The schema's file.
pub const SCHEMA: &str = "STATE";
/// Directory of the segments of the log of actions.
pub const ACTIONS_DIR: &str = "actions";
/// Number of image files. Two are in use. The third is used while an image is made from the one
/// before.
pub const IMAGES: usize = 3;

/// `image-0`: the file of an image.
pub fn image_name(slot: usize) -> String {
    format!("image-{slot}")
}

/// `image-0.trailer`: the file of the second copy of an image's trailer.
pub fn image_trailer_name(slot: usize) -> String {
    format!("image-{slot}.trailer")
}

/// `00000000000000004711`: a segment's file name inside [`ACTIONS_DIR`].
pub fn actions_name(first_tick: u64) -> String {
    format!("{first_tick:020}")
}

/// Reads a name of [`actions_name`]; `None` for any other text.
pub fn parse_actions_name(name: &str) -> Option<u64> {
    let first_tick = name.parse().ok()?;
    (actions_name(first_tick) == name).then_some(first_tick)
}
