//! How the calls of a session's transactions come to the log.

use stillpoint_format::log::CallToRepeat;
use stillpoint_store::TxError;
use stillpoint_sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::batch::Batch;
use crate::call::{CALL_ALONE, Call, refused_call};
use crate::inputs::Inputs;
use crate::tx::Tx;

/// What a session needs to log calls.
pub(crate) struct CallLog<'s> {
    pub(crate) call: &'s mut Call,
    pub(crate) inputs: &'s mut Inputs,
    /// Whether the program has a procedure of this name and version.
    pub(crate) knows: &'s dyn Knows,
    /// Set when the log gets a call without its writes.
    pub(crate) holds_calls: &'s AtomicBool,
    /// Whether the log may get a call without its writes.
    pub(crate) logs_alone: bool,
    /// Whether the log gets calls beside the writes.
    pub(crate) logs_beside: bool,
    pub(crate) runs_twice: bool,
}

/// The procedures of a program.
pub(crate) trait Knows: Sync {
    /// Whether there is a procedure of this name and version.
    fn knows(&self, name: &str, version: u32) -> bool;
}

impl CallLog<'_> {
    /// The same, for a shorter time.
    pub(crate) fn reborrow(&mut self) -> CallLog<'_> {
        let Self { knows, holds_calls, logs_alone, logs_beside, runs_twice, .. } = *self;
        let (call, inputs) = (&mut *self.call, &mut *self.inputs);
        CallLog { call, inputs, knows, holds_calls, logs_alone, logs_beside, runs_twice }
    }

    /// Runs transaction `index` of a batch, which carries its call to the log.
    ///
    /// # Errors
    /// Those of the body, or the call does not fit a record.
    #[inline(never)]
    pub(crate) fn run<B: Batch + ?Sized>(
        &mut self,
        batch: &mut B,
        index: usize,
        tx: &mut Tx<'_>,
    ) -> Result<(), TxError> {
        self.call.clear();
        batch.call(index, self.call);
        self.inputs.begin();
        batch.run(index, &mut tx.with_inputs(self.inputs))?;
        if self.is_repeatable(tx) {
            if self.runs_twice {
                self.run_again(batch, index, tx)?;
            }
            if !self.inputs.depends_on_more.get() {
                return self.log_alone(tx);
            }
        }
        if self.logs_beside {
            tx.carry(self.call)?;
        }
        Ok(())
    }

    /// Whether a replay can make the call again.
    fn is_repeatable(&self, tx: &Tx<'_>) -> bool {
        let Call { name, version, is_of_procedure, .. } = &*self.call;
        *is_of_procedure && self.logs_alone && tx.is_in_memory() && self.knows.knows(name, *version)
    }

    /// Runs the transaction a second time, with the same inputs, and compares what it writes.
    #[cold]
    fn run_again<B: Batch + ?Sized>(
        &mut self,
        batch: &mut B,
        index: usize,
        tx: &mut Tx<'_>,
    ) -> Result<(), TxError> {
        let digest = self.inputs.digest;
        tx.discard_writes();
        self.inputs.begin_again();
        batch.run(index, &mut tx.with_inputs(self.inputs))?;
        if self.inputs.digest != digest {
            return Err(TxError::NotDeterministic { name: self.call.name.clone() });
        }
        Ok(())
    }

    /// Gives the log the call instead of its writes.
    fn log_alone(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let Call { name, version, arguments, inputs, .. } = &mut *self.call;
        inputs.clear();
        self.inputs.encode(inputs);
        let digest = self.inputs.digest.value();
        let call = CallToRepeat { name, version: *version, inputs, digest, arguments };
        let encoded = tx.encoded_call();
        encoded.clear();
        encoded.push(CALL_ALONE);
        call.encode(encoded).map_err(refused_call)?;
        // Relaxed: read when all sessions have ended.
        if !self.holds_calls.load(Relaxed) {
            self.holds_calls.store(true, Relaxed);
        }
        Ok(())
    }
}
