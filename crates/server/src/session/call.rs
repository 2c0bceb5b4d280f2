//! Names commands as calls, for logs that name calls.

use stillpoint::Call;

use super::client::Client;
use super::spec::Spec;
use crate::resp::Args;

/// Version of all commands.
const COMMANDS_VERSION: u32 = 1;

/// Names a command as a call. The arguments of the call are the request, in which a word stands for
/// each secret. The inputs of the call are the time and the number of the database.
pub(crate) fn name_command(
    to: &mut Call,
    (spec, args): (&Spec, Args<'_>),
    client: &Client,
    now_ms: u64,
) {
    begin(to, spec.name, client, now_ms);
    args.encode(&mut to.arguments, |i| spec.secrets.hide(args, i));
}

/// Names a transaction of `EXEC` as a call. The arguments of the call are the requests of the queue
/// from `from` on and before `to`.
pub(crate) fn name_exec(call: &mut Call, client: &Client, (from, to): (usize, usize), now_ms: u64) {
    begin(call, "exec", client, now_ms);
    if let Some(multi) = &client.multi {
        let requests = from..to.min(multi.len());
        for (spec, args) in requests.map(|i| multi.command(i)) {
            args.encode(&mut call.arguments, |i| spec.secrets.hide(args, i));
        }
    }
}

fn begin(to: &mut Call, name: &str, client: &Client, now_ms: u64) {
    to.set(name, COMMANDS_VERSION);
    to.inputs.extend_from_slice(&now_ms.to_le_bytes());
    to.inputs.extend_from_slice(&u32::from(client.db).to_le_bytes());
}
