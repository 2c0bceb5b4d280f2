//! Commands in a log of calls: a record holds the requests of a transaction, and a start runs them
//! again (`repeat.rs`).
//!
//! ```text
//! arguments = kind u8 (0: calls on one key, 1: queue of EXEC; + 2: a limit follows; + 4: see below)
//!           · time u48 in milliseconds · [longest value u64] · request*
//! request   = database u8 · number of words · words
//! word      = length · bytes
//! ```
//! Without the 4, a hash is large from 129 fields on, as in earlier releases. With it, `SmallLimits` are the
//! usual ones.
//!
//! Numbers without a width are of seven bits a byte, the lowest first. Requests that only read are left
//! out.
//!
//! All that a writing command reads beside its keys is here: time, database, longest value. Its random
//! numbers come from [`Context::random_numbers`]. Some transactions are logged by their writes instead.
//! These are long ones, and those of a client that has waited or that watches keys. So are those whose
//! keys follow from values, and those that store distances. While `SWAPDB` has moved a database, all are.
//! So are all while a limit of small collections is not the usual one. So are those that visit nodes of
//! trees: a replay orders calls by the keys that they declare, and nodes are found on the way.

use stillpoint::Call;

use super::client::Client;
use super::context::Local;
use super::exec::selected;
use super::spec::{Flags, Handler, Spec};
use crate::config::Db;
use crate::keyspace::SmallLimits;
use crate::planted::mutant;
use crate::resp::Args;

/// The name of the procedure in the log.
pub(crate) const NAME: &str = "commands";
/// Version of all commands: a change after which a command writes something else from the same keys and
/// arguments makes a greater one.
pub(crate) const VERSION: u32 = 2;

pub(crate) const QUEUE: u8 = 1;
pub(crate) const LIMITED: u8 = 2;
pub(crate) const USUAL_LIMITS: u8 = 4;
/// The longest value that needs no mention.
pub(crate) const LIMIT_BYTES: u64 = 512 << 20;
pub(crate) const TIME_BYTES: usize = 6;

/// Longest requests that are logged as a call. The engine copies them once more.
const REQUESTS_BYTES_MAX: usize = 1 << 20;

/// Writes successive requests of a client on one key into the call of their transaction, if a start can
/// run them again.
pub(crate) fn log_requests<'a>(
    call: &mut Call,
    requests: impl Iterator<Item = (&'static Spec, Args<'a>)> + Clone,
    client: &Client,
    local: &Local,
) {
    let writing = requests.filter(|(spec, _)| spec.flags.has(Flags::WRITE));
    let bytes: usize = writing.clone().map(|(_, args)| args.total_len()).sum();
    // A command that has waited skips values of other kinds. Further keys are none of its arguments.
    let depends_on_more = client.blocked.is_some() || client.derived.is_some();
    let is_inexact = writing.clone().any(|(spec, _)| spec.flags.has(Flags::INEXACT));
    let is_unusual = depends_on_more || is_inexact || has_other_limits(local);
    if bytes == 0 || bytes > REQUESTS_BYTES_MAX || is_unusual {
        return;
    }
    call.set_procedure(NAME, VERSION);
    let out = &mut call.arguments;
    push_head(out, USUAL_LIMITS, logged_time(local), local.max_bulk_bytes);
    let most = mutant!(usize::MAX, GroupCutOff => 1);
    writing.take(most).for_each(|(_, args)| push_request(out, client.db, args));
}

/// As [`log_requests`], for the requests of the queue of `EXEC` from `from` on and before `to`. `slots`
/// gets the first slot of each request in the call.
pub(crate) fn log_queue(
    call: &mut Call,
    client: &Client,
    (from, to): (usize, usize),
    local: &Local,
    slots: &mut Vec<u32>,
) {
    slots.clear();
    let Some(multi) = &client.multi else { return };
    if has_other_limits(local) {
        return;
    }
    if multi.dirty || !client.watched.is_empty() || multi.memory() > REQUESTS_BYTES_MAX {
        return;
    }
    let queued = from..to.min(multi.len());
    if queued.clone().any(|i| multi.command(i).0.flags.has(Flags::INEXACT)) {
        return;
    }
    let (mut db, mut slot) = (client.db, 0);
    for i in queued {
        let (spec, args) = multi.command(i);
        if matches!(spec.handler, Handler::Keyed(_)) && spec.flags.has(Flags::WRITE) {
            if call.arguments.is_empty() {
                call.set_procedure(NAME, VERSION);
                let kind = QUEUE | USUAL_LIMITS;
                push_head(&mut call.arguments, kind, logged_time(local), local.max_bulk_bytes);
            }
            push_request(&mut call.arguments, db, args);
            slots.push(slot);
        }
        slot += multi.key_count(i);
        db = selected(spec, args, db);
    }
}

/// Whether collections become large elsewhere than where a start that runs the commands again makes
/// them large.
fn has_other_limits(local: &Local) -> bool {
    mutant!(local.keys.small != SmallLimits::DEFAULT, SmallLimitsForgotten => false)
}

fn logged_time(local: &Local) -> u64 {
    mutant!(local.keys.now_ms, TimeNotLogged => 0)
}

pub(crate) fn push_head(out: &mut Vec<u8>, kind: u8, now_ms: u64, max_bulk_bytes: u64) {
    let is_limited = max_bulk_bytes != LIMIT_BYTES;
    out.push(kind | if is_limited { LIMITED } else { 0 });
    out.extend_from_slice(&now_ms.to_le_bytes()[..TIME_BYTES]);
    if is_limited {
        out.extend_from_slice(&max_bulk_bytes.to_le_bytes());
    }
}

pub(crate) fn push_request(out: &mut Vec<u8>, db: Db, args: Args<'_>) {
    out.push(db as u8);
    push_number(out, args.len());
    for word in args.from(0) {
        push_number(out, word.len());
        out.extend_from_slice(word);
    }
}

fn push_number(out: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}
