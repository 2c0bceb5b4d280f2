//! Whether a call waits for memory, or for the limit of the log, and runs again.

use stillpoint::{LogFreed, Stamp, TxError};

use super::evictor::asked_bytes;
use super::plan::Plan;
use crate::session::client::Client;
use crate::session::spec::{Flags, Handler, Spec};
use crate::shared::Shared;

/// Whether the command is refused where there is no memory. `EXEC` is if one of its queue is.
pub(super) fn needs_memory(spec: &Spec, client: &Client) -> bool {
    match (&client.multi, spec.handler) {
        (Some(multi), Handler::Exec) => {
            (0..multi.len()).any(|i| multi.command(i).0.flags.has(Flags::DENYOOM))
        }
        _ => spec.flags.has(Flags::DENYOOM),
    }
}

/// Whether `EXEC` should wait for memory before it runs: a queue that somebody sees run cannot run again.
pub(super) fn exec_lacks_room(shared: &Shared, spec: &Spec, client: &Client) -> bool {
    let Some(multi) = &client.multi else { return false };
    let keyspace = &shared.keyspace;
    keyspace.eviction.makes_room() && !multi.dirty && needs_memory(spec, client) && {
        let room = keyspace.engine().memory_room();
        room.spare_bytes < multi.memory() + asked_bytes(room.limit_bytes)
    }
}

/// Whether a commit was refused at the limit of the log, and a checkpoint of the store frees it.
pub(super) fn is_at_limit(result: &Result<Option<Stamp>, TxError>) -> bool {
    matches!(result, Err(TxError::LogFull(full)) if full.freed == LogFreed::InTime)
}

/// Whether a call that has run can run again. `EXEC` can, if its queue is still there.
pub(super) fn can_run_again(spec: &Spec, client: &Client) -> bool {
    match spec.handler {
        Handler::Keyed(_) => true,
        Handler::Exec => client.ran.is_some() || client.multi.is_some(),
        _ => false,
    }
}

/// Whether a call that found no memory is run again a little later.
pub(super) fn waits_for_room(shared: &Shared, plan: &Plan, spec: &Spec, client: &Client) -> bool {
    let is_possible = if shared.keyspace.may_get_room() {
        plan.diverts || plan.waits_for_room
    } else {
        plan.diverts && shared.keyspace.engine().memory_returns()
    };
    is_possible && can_run_again(spec, client)
}
