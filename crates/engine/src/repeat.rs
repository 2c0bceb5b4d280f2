//! Calls that the logs hold, made again by a start.
//!
//! A call must write what it has written: its writes have the digest of its record.

use std::collections::BTreeSet;

use stillpoint_format::log::CallToRepeat;
use stillpoint_recovery::{CallAgain, Calls, ProcedureNeeded, RecoveryError};
use stillpoint_store::{KeySet, TxError};
use stillpoint_sync::{mutant, planted};

use crate::inputs::Inputs;
use crate::procedure::{PreparedCall, Procedures};
use crate::tx::Tx;

/// Checks that the program has the procedures that the logs need. Returns whether they need any.
pub(crate) fn check(
    procedures: &Procedures,
    needed: &BTreeSet<ProcedureNeeded>,
) -> Result<bool, RecoveryError> {
    let is_missing = |of: &&ProcedureNeeded| !procedures.has(&of.name, of.version);
    let missing: Vec<ProcedureNeeded> = needed.iter().filter(is_missing).cloned().collect();
    match missing.is_empty() {
        true => Ok(!needed.is_empty()),
        false => Err(RecoveryError::NeedsProcedures { needed: missing }),
    }
}

impl Calls for Procedures {
    fn prepare<'a>(&'a self, call: &CallToRepeat<'a>) -> Result<Box<dyn CallAgain + 'a>, String> {
        let found = self.find_version(call.name, call.version);
        let found = mutant!(found, VersionMistaken => self.find(call.name).ok());
        let procedure = found.ok_or("it is not registered")?;
        let prepared = procedure.prepare(&call.arguments);
        let prepared = prepared.ok_or("its arguments are not of the procedure's type")?;
        let inputs = Inputs::logged(call.inputs).ok_or("its inputs cannot be read")?;
        Ok(Box::new(Again { call: prepared, inputs, digest: call.digest }))
    }
}

/// A call that is made again.
struct Again<'a> {
    call: Box<dyn PreparedCall + 'a>,
    inputs: Inputs,
    /// The digest of its writes by the record.
    digest: u32,
}

impl CallAgain for Again<'_> {
    fn declare(&self, keys: &mut KeySet) {
        self.call.declare(keys);
    }

    fn run(&mut self, tx: &mut stillpoint_store::Tx<'_>) -> Result<(), TxError> {
        let mut tx = Tx::new(tx.reborrow());
        self.call.run(&mut tx.with_inputs(&mut self.inputs), &mut Vec::new())?;
        if self.inputs.depends_on_more.get() {
            // Such a transaction is logged by its writes. Other threads may replay what it has met.
            return Err(TxError::abandon(
                "it asked for something that its record does not hold, such as a key under another key",
            ));
        }
        let (wrote, now) = (self.digest, self.inputs.digest.value());
        if mutant!(now != wrote, DigestNotCompared => false) {
            return Err(TxError::abandon(format!(
                "the digest of its writes was {wrote:08x} and is {now:08x} now"
            )));
        }
        Ok(())
    }
}
