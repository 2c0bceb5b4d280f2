//! Commands of a log of calls, which a start runs again: the handlers of the clients' commands, on tables
//! without an engine. The form of the calls is that of `session/logged.rs`.

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint::{Arguments, Call, EngineBuilder, KeySet, StoredProcedure, Tables, Tx, TxError};
use stillpoint_io::{ManualClock, SeededRng};

use crate::config::{DATABASES, Db, ServerConfig};
use crate::error::CmdError;
use crate::families::COMMANDS;
use crate::keyspace::{Keyspace, SmallLimits};
use crate::resp::{Args, Reply, Span};
use crate::session::client::{Client, Multi};
use crate::session::context::{Context, Local};
use crate::session::exec::second_run_failed;
use crate::session::logged::{
    LIMIT_BYTES, LIMITED, NAME, QUEUE, TIME_BYTES, USUAL_LIMITS, VERSION, push_head, push_request,
};
use crate::session::spec::Handler;
use crate::shared::Shared;
use crate::shared::mailbox::Mailboxes;
use crate::shared::registry::ClientInfo;

/// Registers the commands over keys, so that a start can make those again that a log of calls holds.
/// Each program that opens the data of a server does so.
pub fn with_commands(builder: EngineBuilder<'_>) -> EngineBuilder<'_> {
    builder.procedure(NAME, Repeated::new)
}

/// The requests of a call in a log, each with its database. `None` if the call is none of commands.
pub fn logged_requests(name: &str, mut arguments: &[u8]) -> Option<Vec<(Db, Vec<Vec<u8>>)>> {
    let requests = (name == NAME).then(|| Requests::decode(&mut arguments))??;
    let queue = requests.queue.borrow();
    let words = |i: usize| queue.command(i).1.from(0).map(<[u8]>::to_vec).collect();
    Some((0..queue.len()).map(|i| (requests.databases[i], words(i))).collect())
}

fn take_number(bytes: &mut &[u8]) -> Option<usize> {
    let mut number = 0;
    for shift in (0..35).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= usize::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn take<'b>(bytes: &mut &'b [u8], len: usize) -> Option<&'b [u8]> {
    let (head, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(head)
}

/// The arguments of a call.
struct Requests {
    /// Bits of the head, but [`LIMITED`].
    kind: u8,
    now_ms: u64,
    max_bulk_bytes: u64,
    /// The requests. The numbers of their keys are noted when the keys are declared.
    queue: RefCell<Multi>,
    /// The database of each.
    databases: Vec<Db>,
}

impl Arguments for Requests {
    fn encode(&self, out: &mut Vec<u8>) {
        push_head(out, self.kind, self.now_ms, self.max_bulk_bytes);
        let queue = self.queue.borrow();
        self.databases
            .iter()
            .enumerate()
            .for_each(|(i, &db)| push_request(out, db, queue.command(i).1));
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let kind = take(bytes, 1)?[0];
        let mut time = [0; 8];
        time[..TIME_BYTES].copy_from_slice(take(bytes, TIME_BYTES)?);
        if kind & !(QUEUE | LIMITED | USUAL_LIMITS) != 0 {
            return None;
        }
        let max_bulk_bytes = match kind & LIMITED {
            0 => LIMIT_BYTES,
            _ => u64::from_le_bytes(take(bytes, 8)?.try_into().ok()?),
        };
        let (mut queue, mut databases, mut spans) = (Multi::default(), Vec::new(), Vec::new());
        while !bytes.is_empty() {
            let db = Db::from(take(bytes, 1)?[0]);
            let words = take_number(bytes)?;
            let request = *bytes;
            spans.clear();
            for _ in 0..words {
                let len = take_number(bytes)?;
                let start = u32::try_from(request.len() - bytes.len()).ok()?;
                take(bytes, len)?;
                spans.push(Span { start, len: u32::try_from(len).ok()? });
            }
            let args = Args::new(request, &spans);
            let spec = (words > 0).then(|| COMMANDS.resolve(args).ok())??;
            if db >= DATABASES || !matches!(spec.handler, Handler::Keyed(_)) {
                return None;
            }
            queue.push(spec, args);
            databases.push(db);
        }
        let kind = kind & !LIMITED;
        let now_ms = u64::from_le_bytes(time);
        let queue = RefCell::new(queue);
        Some(Self { kind, now_ms, max_bulk_bytes, queue, databases })
    }
}

impl Requests {
    fn is_queue(&self) -> bool {
        self.kind & QUEUE != 0
    }
}

/// The commands over keys, as one procedure.
struct Repeated {
    shared: Arc<Shared>,
    spare: Mutex<Vec<Actor>>,
}

/// A client whose commands are made again.
struct Actor {
    client: Client,
    reply: Reply,
    local: Local,
}

impl Repeated {
    fn new(tables: &mut Tables<'_>) -> Result<Self, stillpoint::Error> {
        let keyspace = Keyspace::while_opening(tables)?;
        // Commands take the time and random numbers from their call.
        let (clock, rng) = (Arc::new(ManualClock::new(0)), Arc::new(SeededRng::new(0)));
        let config = ServerConfig::new(clock, rng);
        let (threads, commands) = (1, COMMANDS.rows());
        let mailboxes = Mailboxes::new(Vec::new());
        let shared =
            Shared::new(config, keyspace, (threads, commands), 0, Arc::default(), mailboxes);
        Ok(Self { shared: Arc::new(shared), spare: Mutex::default() })
    }

    fn take_actor(&self) -> Actor {
        let spare = self.spare.lock().pop();
        spare.unwrap_or_else(|| Actor::new(&self.shared, 0))
    }
}

impl Actor {
    /// A client of an event loop.
    fn new(shared: &Arc<Shared>, worker: usize) -> Self {
        let nobody = ClientInfo::blank(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        Self {
            client: Client::new(Arc::new(nobody), true),
            // Nobody reads the replies, so none takes memory.
            reply: Reply::new(0),
            local: Local::new(worker, shared, &COMMANDS),
        }
    }
}

/// Runs the requests of a call once more in their transaction, as a start would, to compare what they
/// write. `slots` holds the first slot of each request of `EXEC`.
pub(crate) fn run_again(
    shared: &Arc<Shared>,
    worker: usize,
    call: &Call,
    slots: &[u32],
    tx: &mut Tx<'_>,
) -> Result<(), TxError> {
    let unreadable = || second_run_failed("its arguments cannot be read");
    let input = Requests::decode(&mut &call.arguments[..]).ok_or_else(unreadable)?;
    let first_of = |i: usize| slots.get(i).copied().unwrap_or(0);
    run(shared, &mut Actor::new(shared, worker), &input, (0..).map(first_of), tx)
        .map_err(|error| second_run_failed(&error.to_string()))
}

impl StoredProcedure for Repeated {
    const VERSION: u32 = VERSION;
    type Input = Requests;
    type Output = ();

    fn declare(&self, input: &Requests, keys: &mut KeySet) {
        let mut queue = input.queue.borrow_mut();
        // Calls on one key have one slot together.
        let declaring = if input.is_queue() { usize::MAX } else { 1 };
        for (i, &db) in input.databases.iter().enumerate().take(declaring) {
            let (spec, args) = queue.command(i);
            let count = spec.declare_keys(args, db, &self.shared.keyspace, keys);
            queue.set_key_count(i, count);
        }
    }

    fn run(&self, input: &Requests, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let mut actor = self.take_actor();
        let count = |i| if input.is_queue() { input.queue.borrow().key_count(i) } else { 0 };
        let slots = (0..).scan(0, |next, i| Some(std::mem::replace(next, *next + count(i))));
        let done = run(&self.shared, &mut actor, input, slots, tx);
        self.spare.lock().push(actor);
        done
    }
}

fn run(
    shared: &Arc<Shared>,
    actor: &mut Actor,
    input: &Requests,
    slots: impl Iterator<Item = u32>,
    tx: &mut Tx<'_>,
) -> Result<(), TxError> {
    let Actor { client, reply, local } = actor;
    local.keys.now_ms = input.now_ms;
    local.max_bulk_bytes = input.max_bulk_bytes;
    let has_usual = input.kind & USUAL_LIMITS != 0;
    local.keys.small = if has_usual { SmallLimits::DEFAULT } else { SmallLimits::EARLIER };
    let queue = input.queue.borrow();
    for ((i, &db), first_slot) in input.databases.iter().enumerate().zip(slots) {
        let (spec, args) = queue.command(i);
        let Handler::Keyed(run) = spec.handler else { continue };
        client.db = db;
        let mut ctx = Context {
            client: &mut *client,
            reply: &mut *reply,
            shared,
            local: &mut *local,
            first_slot,
            may_wait: false,
            may_derive: false,
        };
        let done = run(&mut ctx, args, tx);
        match done {
            // As in the first run, an error of the command itself has changed nothing.
            Ok(()) | Err(CmdError::Reply(_)) => {}
            Err(error) if error.is_not_locked() => return Err(TxError::NotLocked),
            Err(error) => return Err(TxError::abandon(error.message().to_owned())),
        }
    }
    Ok(())
}
