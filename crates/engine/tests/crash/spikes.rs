//! Rows of the checkpoint conformance suite that are in no registry yet, opened by an engine.

#[path = "../../../checkpoint/tests/conformance/spikes/fuzzy.rs"]
mod fuzzy;
#[path = "../../../checkpoint/tests/conformance/spikes/piggyback.rs"]
mod piggyback;
#[path = "../../../checkpoint/tests/conformance/spikes/ping_pong.rs"]
mod ping_pong;
#[path = "../../../checkpoint/tests/conformance/spikes/shadow.rs"]
mod shadow;

use stillpoint_checkpoint::Row;

/// The rows.
pub(crate) static SPIKES: &[Row] = &[fuzzy::ROW, piggyback::ROW, ping_pong::ROW, shadow::ROW];
