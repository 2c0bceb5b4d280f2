//! The records of a replay in the order of gsns.

use stillpoint_journal::{ReplayCall, ReplayWrite, Round};

use crate::error::RecoveryError;

/// A record to replay.
#[derive(Clone, Debug)]
pub(super) enum InOrder<'m, 'r> {
    /// A call.
    Call(&'m ReplayCall<'r>),
    /// The writes of a transaction.
    Writes(Vec<&'m ReplayWrite<'r>>),
}

impl<'m, 'r> InOrder<'m, 'r> {
    /// Gsn and log of the record.
    fn place(&self) -> (u64, u8) {
        match self {
            Self::Call(call) => (call.gsn, call.log),
            Self::Writes(writes) => writes.first().map_or((0, 0), |first| (first.gsn, first.log)),
        }
    }

    pub(super) fn gsn(&self) -> u64 {
        self.place().0
    }

    pub(super) fn log(&self) -> u8 {
        self.place().1
    }

    /// Drops the writes for which `keep` says so.
    pub(super) fn retain_writes(
        &mut self,
        mut keep: impl FnMut(&ReplayWrite<'_>) -> Result<bool, RecoveryError>,
    ) -> Result<(), RecoveryError> {
        let Self::Writes(writes) = self else { return Ok(()) };
        let mut kept = Vec::with_capacity(writes.len());
        for write in writes.drain(..) {
            if keep(write)? {
                kept.push(write);
            }
        }
        *writes = kept;
        Ok(())
    }

    pub(super) fn writes(&self) -> &[&'m ReplayWrite<'r>] {
        match self {
            Self::Call(_) => &[],
            Self::Writes(writes) => writes,
        }
    }
}

/// The records of a round in the order of gsns.
pub(super) fn records_in_order<'m, 'r>(round: &'m Round<'r>) -> Vec<InOrder<'m, 'r>> {
    let mut records: Vec<InOrder<'m, 'r>> = Vec::new();
    let mut calls = round.calls().iter().peekable();
    for write in round.partition(0) {
        while let Some(call) = calls.next_if(|call| (call.gsn, call.log) < (write.gsn, write.log)) {
            records.push(InOrder::Call(call));
        }
        match records.last_mut() {
            Some(InOrder::Writes(writes))
                if writes.first().is_some_and(|of| (of.gsn, of.log) == (write.gsn, write.log)) =>
            {
                writes.push(write);
            }
            _ => records.push(InOrder::Writes(vec![write])),
        }
    }
    records.extend(calls.map(InOrder::Call));
    records
}

/// The error of a call that does something else than it has done.
pub(super) fn diverged(call: &ReplayCall<'_>, why: String) -> RecoveryError {
    RecoveryError::Diverged {
        log: call.log,
        gsn: call.gsn,
        name: call.call.name.to_owned(),
        version: call.call.version,
        why,
    }
}
