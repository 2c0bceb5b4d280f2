//! Bytes of memory for each key, by the servers' own account, and by what the system has given them.

use super::super::peers_redis::PATIENCE;
use super::{Plan, SOURCE, number};
use crate::context::Context;
use crate::drivers::resp::{self, LoadPlan, Until};
use crate::error::LabResult;
use crate::measure::process::anonymous_bytes;
use crate::report::result::{Bound, ClaimRow, ExperimentResult, Table};
use crate::subjects::server::Peer;

/// Values up to this length are short.
const SHORT_BYTES_MAX: usize = 100;
/// Bytes of a key.
const KEY_BYTES: usize = 16;

const CLAIM: ClaimRow =
    ClaimRow::new("bytes of a key", SOURCE, Bound::AtMost(1.0)).between("ours", "Redis's");
const SHORT_MAX: Bound = Bound::AtMost(0.85);

/// Runs the part and adds its claims and its table.
///
/// # Errors
/// A server fails, or answers wrongly.
pub(super) fn run(
    context: &Context,
    plan: &Plan,
    peers: [&Peer; 2],
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let mut table = Table {
        title: "Bytes for each key of 16 B".into(),
        columns: ["value", "ours", "Redis", "ours, resident", "Redis, resident"]
            .map(String::from)
            .into(),
        ..Table::default()
    };
    for &len in &plan.value_lengths {
        let filled = (plan.filled_mib << 20) / (len + KEY_BYTES) as u64;
        let keys = filled.clamp(100, plan.keys_max);
        let mut bytes = [[0.0; 2]; 2];
        for (peer, bytes) in peers.iter().zip(&mut bytes) {
            let server = peer.start(&context.fresh_dir("bytes")?, PATIENCE)?;
            let mut admin = server.admin()?;
            let resident = || anonymous_bytes(server.pid()).map_or(f64::NAN, |bytes| bytes as f64);
            let before = [number(&server, &mut admin, "memory", "used_memory")?, resident()];
            let load = LoadPlan {
                pipeline: 50,
                connections: 10,
                until: Until::EveryKeyWritten,
                ..plan.load(server.address, keys, len)
            };
            resp::run(&load)?.expect_no_errors(server.address)?;
            let after = [number(&server, &mut admin, "memory", "used_memory")?, resident()];
            *bytes = [0, 1].map(|at| (after[at] - before[at]) / keys as f64);
        }
        let [ours, theirs] = bytes;
        let ratio = ours[0] / theirs[0];
        context.note(format!("bytes: {len} B: {:.1} and {:.1}, {ratio:.3}", ours[0], theirs[0]));
        let bound = if len <= SHORT_BYTES_MAX { SHORT_MAX } else { CLAIM.bound };
        let row = ClaimRow { bound, ..CLAIM };
        result.claims.push(row.claim(&format!("values of {len} B")).measured(ratio));
        let mut row = vec![len.to_string()];
        row.extend([ours[0], theirs[0], ours[1], theirs[1]].map(|bytes| format!("{bytes:.1}")));
        table.rows.push(row);
    }
    result.tables.push(table);
    Ok(())
}
