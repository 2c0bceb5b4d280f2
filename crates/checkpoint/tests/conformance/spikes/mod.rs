//! Rows that are in no registry yet: schemes which show that the frame is enough for them. Each
//! scheme is one file here and one row, and passes the whole suite. A row moves to `src/schemes`
//! and the registry when it is a product.

mod fuzzy;
mod piggyback;
mod ping_pong;
mod shadow;

use stillpoint_checkpoint::Row;

/// The rows.
pub(crate) static SPIKES: &[Row] = &[shadow::ROW, ping_pong::ROW, fuzzy::ROW, piggyback::ROW];
