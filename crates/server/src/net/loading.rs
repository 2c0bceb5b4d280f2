//! Answers while the data is loaded: one event loop, without an engine.
//!
//! Clients may log in, and ask whether the server lives and how far loading is. Every other command
//! is refused with `-LOADING`. After loading, the listening sockets and the clients go to the event
//! loops that serve, each client with its unanswered input. Clients take turns: in each turn the
//! loop answers the input of a client, or reads from the client once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mio::{Events, Interest, Poll, Token, Waker};
use stillpoint_io::JoinHandle;

use super::conn::{Conn, ReadOutcome};
use super::connections::Connections;
use super::listener::{DENIED, LISTENER, Listener, TOO_MANY, is_local};
use super::worker::MAILBOX;
use crate::config::ServerConfig;
use crate::error::{CmdError, CmdResult, ServerError};
use crate::families::COMMANDS;
use crate::resp::{Args, Limits, Reply};
use crate::session::client::Client;
use crate::session::context::LoadingContext;
use crate::session::route::NO_AUTH;
use crate::session::spec::Flags;
use crate::shared::auth::Auth;
use crate::shared::loading::LoadingProgress;
use crate::shared::mailbox::{Incoming, Said};
use crate::shared::registry::ClientInfo;

/// Longest time between two looks at changes that no event announces.
const TICK: Duration = Duration::from_millis(100);
/// Bytes read in one go.
const READ_BYTES: usize = 64 << 10;
/// A client with more unanswered input than this is refused and disconnected.
const REQUEST_BYTES: usize = 1 << 20;
/// The loop does not read from a client while this many bytes of replies are pending.
const OUTPUT_BYTES: usize = 64 << 10;
/// Most unanswered input of all clients together. Beyond, the client with most input is refused and
/// disconnected.
const ALL_BYTES: usize = 64 << 20;

const LOADING: CmdError = CmdError::fixed("LOADING Stillpoint is loading the dataset in memory");

/// The event loop that answers while data is loaded.
#[derive(Debug)]
pub(crate) struct LoadingLoop {
    thread: Option<JoinHandle<Result<Handover, ServerError>>>,
    ended: Arc<AtomicBool>,
    waker: Waker,
}

/// The sockets and clients that the serving event loops take over.
#[derive(Debug)]
pub(crate) struct Handover {
    pub(crate) listener: Listener,
    pub(crate) clients: Vec<Incoming>,
}

impl LoadingLoop {
    /// Starts to answer.
    ///
    /// # Errors
    /// When the system gives no poll, or no thread.
    pub(crate) fn start(
        config: ServerConfig,
        mut listener: Listener,
        progress: Arc<LoadingProgress>,
    ) -> Result<Self, ServerError> {
        let fail = |what| move |source| ServerError::Loop { what, source };
        let poll = Poll::new().map_err(fail("creating a poll"))?;
        let waker = Waker::new(poll.registry(), MAILBOX).map_err(fail("creating a waker"))?;
        listener.register(poll.registry())?;
        let auth = Auth::default();
        auth.set_password(config.requirepass.as_deref().unwrap_or("").as_bytes());
        let ended = Arc::new(AtomicBool::new(false));
        let mut answering = Answering {
            poll,
            listener,
            conns: Connections::default(),
            auth,
            config,
            progress,
            ended: Arc::clone(&ended),
            scratch: vec![0; READ_BYTES].into_boxed_slice(),
            input_bytes: 0,
            ready: Vec::new(),
        };
        let thread = stillpoint_io::spawn("loading", move || {
            answering.run()?;
            answering.hand_over()
        });
        let thread = thread.map_err(|error| ServerError::Thread(error.to_string()))?;
        Ok(Self { thread: Some(thread), ended, waker })
    }

    /// Ends the loop.
    ///
    /// # Errors
    /// The error that ended the loop before.
    pub(crate) fn end(mut self) -> Result<Handover, ServerError> {
        self.ask_to_end();
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(handover)) => handover,
            Some(Err(error)) => Err(ServerError::Thread(error.to_string())),
            None => Err(ServerError::Thread("the loading loop has ended before".to_owned())),
        }
    }

    fn ask_to_end(&self) {
        // Release: partner of the Acquire in `is_ended`.
        self.ended.store(true, Ordering::Release);
        // A loop that cannot be woken looks at its next tick.
        let _ = self.waker.wake();
    }
}

impl Drop for LoadingLoop {
    fn drop(&mut self) {
        self.ask_to_end();
        if let Some(thread) = self.thread.take() {
            // The caller that drops the loop has an error of its own to report.
            let _ = thread.join();
        }
    }
}

struct Answering {
    poll: Poll,
    listener: Listener,
    conns: Connections,
    auth: Auth,
    config: ServerConfig,
    progress: Arc<LoadingProgress>,
    ended: Arc<AtomicBool>,
    scratch: Box<[u8]>,
    /// Bytes of unanswered input of all clients.
    input_bytes: usize,
    /// Clients that have a turn.
    ready: Vec<usize>,
}

impl Answering {
    fn run(&mut self) -> Result<(), ServerError> {
        let mut events = Events::with_capacity(256);
        while !self.is_ended() {
            let timeout = if self.ready.is_empty() { TICK } else { Duration::ZERO };
            match self.poll.poll(&mut events, Some(timeout)) {
                Err(source) if source.kind() != std::io::ErrorKind::Interrupted => {
                    return Err(ServerError::Loop { what: "waiting for sockets", source });
                }
                Err(_) => events.clear(),
                Ok(()) => {}
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept(),
                    MAILBOX => {}
                    Token(id) => {
                        if let Some(conn) = self.conns.get_mut(id) {
                            conn.readable |= event.is_readable();
                            conn.read_closed |= event.is_read_closed();
                            conn.writable |= event.is_writable();
                        }
                        self.note(id);
                    }
                }
            }
            if self.listener.retry {
                self.accept();
            }
            self.look_at_ready();
        }
        Ok(())
    }

    fn is_ended(&self) -> bool {
        // Acquire: partner of the Release in `ask_to_end`.
        self.ended.load(Ordering::Acquire)
    }

    fn accept(&mut self) {
        let Self { listener, conns, poll, config, auth, .. } = self;
        listener.accept_each(|mut stream, address| {
            if conns.len() >= config.maxclients.min(config.clients_max) {
                // If the socket's buffer is full, the client sees the end of the connection only.
                let _ = std::io::Write::write(&mut stream, TOO_MANY);
                return;
            }
            if config.protected_mode && !auth.is_required() && !is_local(address) {
                let _ = std::io::Write::write(&mut stream, DENIED);
                return;
            }
            conns.insert(|id| {
                let both = Interest::READABLE | Interest::WRITABLE;
                poll.registry().register(&mut stream, Token(id), both).ok()?;
                let info = Arc::new(ClientInfo::blank(address));
                let client = Client::new(info, !auth.is_required());
                let reply = Reply::new(OUTPUT_BYTES + REQUEST_BYTES);
                Some(Conn::new(stream, client, reply, OUTPUT_BYTES, 0))
            });
        });
    }

    /// Gives a client a turn.
    fn note(&mut self, id: usize) {
        if let Some(conn) = self.conns.get_mut(id)
            && !std::mem::replace(&mut conn.touched, true)
        {
            self.ready.push(id);
        }
    }

    /// Gives a turn to each client that was ready when the call began.
    fn look_at_ready(&mut self) {
        for id in std::mem::take(&mut self.ready) {
            if self.is_ended() {
                return;
            }
            self.look_after(id);
        }
    }

    fn look_after(&mut self, id: usize) {
        let Self { conns, scratch, auth, config, progress, .. } = self;
        let Some(conn) = conns.get_mut(id) else {
            return;
        };
        conn.touched = false;
        let before = conn.input.len();
        let look = look(conn, scratch, auth, config, progress);
        let after = conn.input.len();
        self.input_bytes = self.input_bytes - before + after;
        match look {
            Look::Again => self.note(id),
            Look::Wait => {}
            Look::Refuse => self.refuse(id),
            Look::Close => self.close(id),
        }
        while self.input_bytes > ALL_BYTES {
            let size = |id: &usize| self.conns.get(*id).map_or(0, |conn| conn.input.len());
            let Some(largest) = self.conns.ids().max_by_key(size) else {
                return;
            };
            self.refuse(largest);
        }
    }

    /// Refuses a client that sent too much, drops its input, and disconnects it.
    fn refuse(&mut self, id: usize) {
        if let Some(conn) = self.conns.get_mut(id) {
            self.input_bytes -= std::mem::take(&mut conn.input).len();
            conn.start = 0;
            if !std::mem::replace(&mut conn.client.closing, true) {
                conn.reply.error(LOADING.message());
            }
            self.note(id);
        }
    }

    fn close(&mut self, id: usize) {
        if let Some(mut conn) = self.conns.remove(id) {
            self.input_bytes -= conn.input.len();
            // If this fails, the socket leaves the poll when it is closed.
            let _ = self.poll.registry().deregister(&mut conn.stream);
        }
    }

    fn hand_over(&mut self) -> Result<Handover, ServerError> {
        let ids: Vec<usize> = self.conns.ids().collect();
        let mut clients = Vec::new();
        for id in ids {
            let Some(mut conn) = self.conns.remove(id) else {
                continue;
            };
            conn.write(usize::MAX, 0);
            let moved = self.poll.registry().deregister(&mut conn.stream).is_ok();
            let closing = conn.client.closing;
            if !moved || conn.broken || closing && conn.unsent() == 0 {
                continue;
            }
            let resp3 = conn.reply.is_resp3();
            let said = Said {
                input: if closing { Vec::new() } else { std::mem::take(&mut conn.input) },
                replies: conn.reply.into_bytes(),
                closing,
                authenticated: conn.client.authenticated,
                resp3,
                names: conn.client.info.names.lock().clone(),
            };
            let address = conn.client.info.address;
            clients.push(Incoming { stream: conn.stream, address, said: Some(Box::new(said)) });
        }
        let mut listener = std::mem::take(&mut self.listener);
        listener.deregister(self.poll.registry());
        Ok(Handover { listener, clients })
    }
}

/// What happens to a client after its turn.
enum Look {
    /// There may be more to do at once.
    Again,
    /// There is nothing to do until the socket tells of an event.
    Wait,
    /// The client sent too much at once.
    Refuse,
    Close,
}

/// One turn: writes replies, answers the input, or reads once. So no client delays the others, or
/// the end of loading, for long.
fn look(
    conn: &mut Conn,
    scratch: &mut [u8],
    auth: &Auth,
    config: &ServerConfig,
    progress: &LoadingProgress,
) -> Look {
    conn.write(usize::MAX, 0);
    if conn.broken || conn.client.closing && conn.unsent() == 0 {
        return Look::Close;
    }
    if conn.client.closing || conn.unsent() > OUTPUT_BYTES {
        return Look::Wait;
    }
    if answer_all(conn, auth, config, progress) {
        return Look::Again;
    }
    // No whole request is left.
    if conn.input.len() > REQUEST_BYTES {
        return Look::Refuse;
    }
    if !conn.readable {
        return Look::Wait;
    }
    match conn.read(scratch) {
        ReadOutcome::Some(_) => Look::Again,
        ReadOutcome::Nothing => Look::Wait,
        // The client may have closed its side only and still read.
        ReadOutcome::End => {
            conn.client.closing = true;
            Look::Again
        }
    }
}

/// Answers the whole requests of a client until enough replies are pending. False if there was no
/// request.
fn answer_all(
    conn: &mut Conn,
    auth: &Auth,
    config: &ServerConfig,
    progress: &LoadingProgress,
) -> bool {
    let mut is_any = false;
    while !conn.client.closing && conn.unsent() <= OUTPUT_BYTES {
        let limits = if conn.client.authenticated {
            Limits::authenticated(config.max_bulk_bytes as i64)
        } else {
            Limits::UNAUTHENTICATED
        };
        match conn.parser.next(&mut conn.input[conn.start..], &limits) {
            Ok(Some(length)) => {
                is_any = true;
                let spans = conn.parser.spans().to_vec();
                if !spans.is_empty() {
                    let input = std::mem::take(&mut conn.input);
                    let args = Args::new(&input[conn.start..], &spans);
                    if let Err(error) = answer(conn, args, auth, config, progress) {
                        conn.reply.error(error.message());
                    }
                    conn.input = input;
                }
                conn.start += length;
            }
            Ok(None) => break,
            Err(error) => {
                is_any = true;
                conn.reply.error(&format!("ERR {error}"));
                conn.client.closing = true;
            }
        }
    }
    conn.compact();
    is_any
}

/// Runs a request whose row allows it while data is loaded.
fn answer(
    conn: &mut Conn,
    args: Args<'_>,
    auth: &Auth,
    config: &ServerConfig,
    progress: &LoadingProgress,
) -> CmdResult {
    let (client, reply) = (&mut conn.client, &mut conn.reply);
    let spec = match COMMANDS.resolve(args) {
        Ok(spec) => spec,
        Err(_) if client.authenticated => return Err(LOADING),
        Err(_) => return Err(NO_AUTH),
    };
    if !client.authenticated && !spec.flags.has(Flags::NO_AUTH) {
        return Err(NO_AUTH);
    }
    let run = spec.while_loading.ok_or(LOADING)?;
    run(&mut LoadingContext { client, reply, config, auth, progress }, args)
}
