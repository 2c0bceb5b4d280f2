//! The call that a transaction is: what a log names beside the writes.

use stillpoint_format::EncodeError;
use stillpoint_format::log::LoggedCall;
use stillpoint_store::TxError;
use stillpoint_txn::LogRefused;

/// The call of a procedure or of a command, with all that its result depends on beside the records.
/// [`Batch::call`](crate::Batch::call) fills the call.
#[derive(Debug, Default)]
pub struct Call {
    pub(crate) name: String,
    pub(crate) version: u32,
    /// Whether the call is one of a registered procedure.
    pub(crate) is_of_procedure: bool,
    /// Arguments of the call, in the encoding of the procedure or command.
    pub arguments: Vec<u8>,
    /// What the call reads of its surroundings, such as the time, in an encoding of its own.
    pub inputs: Vec<u8>,
}

impl Call {
    /// Names the procedure or command, and its version. A name has at most 255 bytes.
    pub fn set(&mut self, name: &str, version: u32) {
        self.clear();
        self.name.push_str(name);
        self.version = version;
    }

    /// As [`set`](Self::set), for a transaction that is the call of a registered procedure: it declares
    /// and does what the procedure does with these arguments. A journal that logs calls gets the call
    /// without its writes. The inputs of the call are those of [`Tx`](crate::Tx).
    pub fn set_procedure(&mut self, name: &str, version: u32) {
        self.set(name, version);
        self.is_of_procedure = true;
    }

    /// Forgets the call. The buffer of a long call is freed.
    pub(crate) fn clear(&mut self) {
        const KEEP_BYTES: usize = 1 << 20;
        self.name.clear();
        self.is_of_procedure = false;
        for buffer in [&mut self.arguments, &mut self.inputs] {
            buffer.clear();
            buffer.shrink_to(KEEP_BYTES);
        }
    }

    /// Encodes the call for the log. Nothing for a call without a name.
    ///
    /// # Errors
    /// The name or the arguments are too long for a record.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) -> Result<(), TxError> {
        let Call { name, version, arguments, inputs, .. } = self;
        if name.is_empty() {
            return Ok(());
        }
        let call = LoggedCall { name, version: *version, arguments, inputs };
        Ok(call.encode_head(out).map_err(refused_call)?)
    }
}

/// The first byte of an encoded call that the log gets instead of its writes. An encoded call that the
/// log gets beside its writes begins with the length of its name, which is not zero.
pub(crate) const CALL_ALONE: u8 = 0;

/// Why a call cannot be logged.
fn refused_call(error: EncodeError) -> LogRefused {
    LogRefused::Refused(Box::new(error))
}

/// A call that the logs hold. [`offline::calls`](crate::offline::calls) finds such calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundCall<'a> {
    /// Log that holds the record.
    pub log: u8,
    /// Gsn of the commit. Calls come in its order.
    pub gsn: u64,
    /// Name of the procedure or command.
    pub name: &'a str,
    /// Version of the procedure or command.
    pub version: u32,
    /// Encoded arguments.
    pub arguments: &'a [u8],
    /// Encoded inputs.
    pub inputs: &'a [u8],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_without_a_name_is_no_call() {
        let (mut call, mut out) = (Call::default(), Vec::new());
        call.set("add", 2);
        call.arguments.push(1);
        call.encode(&mut out).expect("short");
        assert!(out.starts_with(b"\x03add\x02"), "{out:?}");
        call.clear();
        out.clear();
        call.encode(&mut out).expect("none");
        assert_eq!(out, b"");
        call.set(&"n".repeat(256), 1);
        assert!(call.encode(&mut out).is_err_and(|e| e.to_string().contains("call of 256 bytes")));
    }

    #[test]
    fn a_long_call_leaves_no_long_buffer_behind() {
        let mut call = Call::default();
        call.arguments.resize(8 << 20, 1);
        call.inputs.resize(8 << 20, 1);
        call.clear();
        assert!(call.arguments.capacity().max(call.inputs.capacity()) <= 1 << 20);
    }
}
