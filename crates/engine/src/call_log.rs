//! How the calls of a session's transactions come to the log.

use std::borrow::Cow;

use stillpoint_format::log::{CallToRepeat, RECORD_BYTES_MAX, WritesDigest};
use stillpoint_store::{KeySet, TxError};
use stillpoint_sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::batch::Batch;
use crate::call::{CALL_ALONE, Call};
use crate::inputs::Inputs;
use crate::procedure::Procedures;
use crate::serials::Serials;
use crate::tx::Tx;

/// Arguments that are longer are logged by their writes. So there is room for the rest of the record.
const ARGUMENTS_BYTES_MAX: usize = RECORD_BYTES_MAX / 2;

/// Runs the transactions of a batch with their inputs.
pub(crate) struct Runner<'s> {
    pub(crate) inputs: &'s mut Inputs,
    pub(crate) serials: &'s mut Serials,
    /// Present if calls are logged.
    pub(crate) log: Option<CallLog<'s>>,
}

impl Runner<'_> {
    /// The same, for a shorter time.
    pub(crate) fn reborrow(&mut self) -> Runner<'_> {
        let Self { inputs, serials, log } = self;
        Runner { inputs, serials, log: log.as_mut().map(CallLog::reborrow) }
    }

    /// Declares the keys of transaction `index` of a batch.
    #[inline]
    pub(crate) fn declare<B: Batch + ?Sized>(
        &self,
        batch: &mut B,
        index: usize,
        keys: &mut KeySet,
    ) {
        let first = keys.declared().len();
        batch.declare(index, keys);
        if let Some(name) = &self.serials.name {
            name.declare(first, keys);
        }
    }

    /// Runs transaction `index` of a batch.
    ///
    /// # Errors
    /// Those of the body, or the call does not fit a record.
    #[inline]
    pub(crate) fn run<B: Batch + ?Sized>(
        &mut self,
        batch: &mut B,
        index: usize,
        tx: &mut Tx<'_>,
    ) -> Result<(), TxError> {
        if let Some(log) = &mut self.log {
            // A call that is made again does not write the serial. So the log gets the writes.
            let may_stand_alone = self.serials.name.is_none();
            log.run(batch, index, (tx, self.inputs), may_stand_alone)?;
        } else {
            self.inputs.begin();
            self.inputs.takes_digest = false;
            batch.run(index, &mut tx.with_inputs(self.inputs))?;
        }
        self.serials.sign(tx)
    }
}

/// What a session needs to log calls.
pub(crate) struct CallLog<'s> {
    pub(crate) call: &'s mut Call,
    /// The procedures of the program.
    pub(crate) procedures: &'s Procedures,
    /// Set when the log gets a call without its writes.
    pub(crate) holds_calls: &'s AtomicBool,
    /// Whether the log may get a call without its writes.
    pub(crate) logs_alone: bool,
    /// Whether the log gets calls beside the writes.
    pub(crate) logs_beside: bool,
    pub(crate) runs_twice: bool,
}

impl CallLog<'_> {
    fn reborrow(&mut self) -> CallLog<'_> {
        let Self { procedures, holds_calls, logs_alone, logs_beside, runs_twice, .. } = *self;
        CallLog { call: self.call, procedures, holds_calls, logs_alone, logs_beside, runs_twice }
    }

    /// Runs a transaction, which carries its call to the log: alone, if it may, or beside its writes.
    #[inline(never)]
    fn run<B: Batch + ?Sized>(
        &mut self,
        batch: &mut B,
        index: usize,
        (tx, inputs): (&mut Tx<'_>, &mut Inputs),
        may_stand_alone: bool,
    ) -> Result<(), TxError> {
        self.call.clear();
        batch.call(index, self.call);
        inputs.begin();
        inputs.takes_digest = self.logs_alone && self.call.is_of_procedure && may_stand_alone;
        batch.run(index, &mut tx.with_inputs(inputs))?;
        let is_repeatable =
            inputs.takes_digest && !inputs.depends_on_more.get() && self.is_repeatable(tx);
        if is_repeatable && self.runs_twice {
            self.run_again(batch, index, (tx, inputs))?;
        }
        if is_repeatable && !inputs.depends_on_more.get() && self.log_alone(tx, inputs) {
            return Ok(());
        }
        if self.logs_beside {
            tx.carry(self.call)?;
        }
        Ok(())
    }

    /// Whether a replay can make the call again.
    fn is_repeatable(&self, tx: &Tx<'_>) -> bool {
        tx.is_in_memory() && self.procedures.has(&self.call.name, self.call.version)
    }

    /// Runs the transaction a second time, with the same inputs, and compares what it writes.
    #[cold]
    fn run_again<B: Batch + ?Sized>(
        &mut self,
        batch: &mut B,
        index: usize,
        (tx, inputs): (&mut Tx<'_>, &mut Inputs),
    ) -> Result<(), TxError> {
        let digest = inputs.digest;
        tx.discard_writes();
        inputs.begin_again();
        batch.run_again(index, self.call, &mut tx.with_inputs(inputs))?;
        if inputs.digest != digest {
            return Err(TxError::NotDeterministic { name: self.call.name.clone() });
        }
        Ok(())
    }

    /// Gives the log the call instead of its writes. False if the call has written nothing, or does not
    /// fit a record.
    fn log_alone(&mut self, tx: &mut Tx<'_>, drawn: &Inputs) -> bool {
        let Call { name, version, arguments, inputs, .. } = &mut *self.call;
        if drawn.digest == WritesDigest::default() || arguments.len() > ARGUMENTS_BYTES_MAX {
            return false;
        }
        inputs.clear();
        drawn.encode(inputs);
        let digest = drawn.digest.value();
        let arguments = Cow::Borrowed(&arguments[..]);
        let call = CallToRepeat { name, version: *version, inputs, digest, arguments };
        let encoded = tx.encoded_call();
        encoded.clear();
        encoded.push(CALL_ALONE);
        if call.encode(encoded).is_err() {
            encoded.clear();
            return false;
        }
        // Relaxed: read when all sessions have ended.
        if !self.holds_calls.load(Relaxed) {
            self.holds_calls.store(true, Relaxed);
        }
        true
    }
}
