//! Reading the arguments of a request.

use crate::error::CmdError;
use crate::resp::parse_i64;

/// Whether `arg` is `word`, in any case.
pub(crate) fn is(arg: &[u8], word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

/// The integer that `arg` spells.
pub(crate) fn integer(arg: &[u8]) -> Result<i64, CmdError> {
    parse_i64(arg).ok_or(CmdError::NOT_INTEGER)
}
