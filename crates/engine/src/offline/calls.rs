//! Lists the calls that the logs of a data directory hold.

use std::path::Path;

use stillpoint_io::cpu_count;

use super::look;
use crate::call::FoundCall;
use crate::error::Error;

/// Visits the calls that the logs hold, in the order of their gsns. The logs hold the calls since
/// the newest checkpoint, and earlier ones in segments that are still there. Writes nothing. A
/// store logs calls if [`Config::log_calls`](crate::Config::log_calls) says so.
///
/// # Errors
/// The directory is no store, is damaged, cannot be read, or is open in a process, which appends to
/// the logs. Or `visit` fails.
pub fn calls(
    dir: &Path,
    visit: &mut dyn FnMut(&FoundCall<'_>) -> std::io::Result<()>,
) -> Result<(), Error> {
    let looked = look::open(dir)?;
    if looked.is_open {
        return Err(Error::InUse(dir.to_owned()));
    }
    let plan = super::plan(&looked.directory)?;
    let mut output = Ok(());
    let read = plan.each_call(cpu_count(), &mut |log, gsn, call| {
        let found = FoundCall {
            log,
            gsn,
            name: call.name,
            version: call.version,
            arguments: call.arguments,
            inputs: call.inputs,
        };
        if output.is_ok() {
            output = visit(&found);
        }
    });
    read?;
    output.map_err(Error::Output)
}
