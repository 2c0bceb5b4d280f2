//! A server on the caller's thread, for clients that the caller simulates.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mio::net::TcpStream;
use mio::{Events, Poll, Waker};
use stillpoint::{Config, Engine};
use stillpoint_io::{ManualClock, SeededRng, SimDisk};

use super::check_replies;
use crate::config::{DATABASES, Db, ServerConfig};
use crate::families::COMMANDS;
use crate::keyspace::Keyspace;
use crate::net::{MAILBOX, Worker};
use crate::repeat::with_commands;
use crate::shared::Shared;
use crate::shared::mailbox::{Incoming, Mailboxes};

/// The byte that separates two clients' turns. UTF-8 text never contains this byte.
const TURN: u8 = 0xFF;
/// Turns of the loop that clients get for their last replies.
const LAST_TURNS: usize = 200;
/// Longest value, and memory for all values.
const VALUE_BYTES: u64 = 1 << 20;
const MEMORY_BYTES: usize = 32 << 20;
/// The time at the beginning, in milliseconds since the Unix epoch.
const STARTED_MS: u64 = 1_790_000_000_000;

/// An engine in memory, used by one server after the other. Each server runs on the caller's
/// thread, with local sockets and a clock that only the caller moves.
#[derive(Debug)]
pub struct Alone {
    pub(super) engine: Arc<Engine>,
    clock: Arc<ManualClock>,
    pub(super) keyspace: Keyspace,
}

impl Alone {
    /// Servers in memory: no journal, no checkpoints, no threads.
    ///
    /// # Panics
    /// If the engine cannot be opened.
    #[expect(clippy::new_without_default, reason = "it makes an engine, and may panic")]
    pub fn new() -> Self {
        let mut config = Config::new("unused");
        config.checkpoint = "none".to_owned();
        config.journal = "none".to_owned();
        Self::over(config, SimDisk::new(1))
    }

    /// A server on a simulated disk, without threads.
    pub(super) fn over(mut config: Config, disk: SimDisk) -> Self {
        let clock = Arc::new(ManualClock::self_advancing(STARTED_MS));
        // One session for the present server, one for the next, one for the caller.
        config.sessions = 3;
        config.environment.disk = Some(Arc::new(disk));
        config.environment.clock = Arc::clone(&clock) as Arc<_>;
        config.environment.rng = Arc::new(SeededRng::new(1));
        config.environment.background = false;
        let engine = with_commands(Engine::builder(config)).open().expect("the engine opens");
        let engine = Arc::new(engine);
        let keyspace = Keyspace::open(Arc::clone(&engine), 1).expect("tables");
        Self { engine, clock, keyspace }
    }

    /// Starts a server without data, and lets two clients send `input` in turns. The byte 0xFF
    /// passes the turn to the other client. Returns the replies of each client.
    ///
    /// # Panics
    /// If the event loop fails, a client is never disconnected, a client receives malformed
    /// replies, or a third client is not served afterwards.
    pub fn serve(&self, input: &[u8]) -> [Vec<u8>; 2] {
        let full: Vec<Db> = (0..DATABASES).filter(|&db| self.keyspace.len(db) > 0).collect();
        if !full.is_empty() {
            let mut session = self.engine.session().expect("a free one");
            self.keyspace.flush(&mut session, &full).expect("emptied");
        }
        self.engine.set_max_memory_bytes(MEMORY_BYTES);
        let mut server = Server::new(self);
        let mut clients = [server.connect(), server.connect()];
        for (turn, bytes) in input.split(|byte| *byte == TURN).enumerate() {
            clients[turn % 2].send(bytes);
            server.turn(&mut clients);
        }
        for client in &clients {
            // A connection that the server has closed needs no further turn.
            let _ = client.stream.shutdown(Shutdown::Write);
        }
        server.until_gone(&mut clients);
        for client in &clients {
            check_replies(&client.replies).expect("replies");
        }
        server.greets_another();
        clients.map(|client| client.replies)
    }
}

/// The caller's side of a connection.
pub(super) struct Client {
    stream: UnixStream,
    pub(super) replies: Vec<u8>,
}

impl Client {
    pub(super) fn send(&mut self, bytes: &[u8]) {
        // The next read shows a connection that the server has closed. The caller's bytes fit into
        // the socket; further bytes are dropped.
        let _ = self.stream.write(bytes);
    }

    fn receive(&mut self) {
        match self.stream.read_to_end(&mut self.replies) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                // The server closed the connection before it had read everything.
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            }
            _ => {}
        }
    }
}

pub(super) struct Server {
    shared: Arc<Shared>,
    worker: Worker,
    events: Events,
    pub(super) clock: Arc<ManualClock>,
    ended: bool,
}

impl Server {
    pub(super) fn new(alone: &Alone) -> Self {
        let mut config =
            ServerConfig::new(Arc::clone(&alone.clock) as Arc<_>, Arc::new(SeededRng::new(1)));
        config.threads = 1;
        config.max_bulk_bytes = VALUE_BYTES;
        config.output_buffer_bytes = 4 * VALUE_BYTES as usize;
        let poll = Poll::new().expect("a poll");
        let waker = Waker::new(poll.registry(), MAILBOX).expect("a waker");
        let keyspace = Keyspace::open(Arc::clone(&alone.engine), 1).expect("tables");
        let stopping = Arc::new(AtomicBool::new(false));
        let mailboxes = Mailboxes::new(vec![waker]);
        let shared = Shared::new(config, keyspace, (1, COMMANDS.rows()), 6379, stopping, mailboxes);
        let shared = Arc::new(shared);
        // A scan over all tables in every server would take most of the time. Clients can ask for
        // such a scan.
        shared.params.active_expiry.store(false, Ordering::Relaxed);
        let session = alone.engine.session().expect("a session");
        let worker = Worker::new(0, poll, None, session, Arc::clone(&shared), None);
        let worker = worker.expect("an event loop");
        let clock = Arc::clone(&alone.clock);
        Self { shared, worker, events: Events::with_capacity(8), clock, ended: false }
    }

    pub(super) fn connect(&self) -> Client {
        let (mine, its) = UnixStream::pair().expect("a pair of sockets");
        mine.set_nonblocking(true).expect("a socket");
        its.set_nonblocking(true).expect("a socket");
        // The loop reads, writes and polls, and does not depend on the kind of socket.
        let its = std::net::TcpStream::from(OwnedFd::from(its));
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        self.shared.mailboxes.send(Incoming {
            stream: TcpStream::from_std(its),
            address,
            said: None,
        });
        Client { stream: mine, replies: Vec::new() }
    }

    /// Runs one turn of the event loop. The turn does not wait, since the loop is woken before.
    pub(super) fn turn(&mut self, clients: &mut [Client]) {
        self.clock.advance(Duration::from_millis(1));
        self.shared.wake_all();
        if !self.ended {
            self.ended = self.worker.turn(&mut self.events).expect("the event loop goes on");
        }
        clients.iter_mut().for_each(Client::receive);
    }

    /// Runs turns until every client has left.
    fn until_gone(&mut self, clients: &mut [Client]) {
        for turn in 0.. {
            if self.ended || self.shared.registry.len() == 0 {
                break;
            }
            if turn > 8 {
                // Remaining clients may wait for the next tick.
                self.clock.advance(Duration::from_millis(100));
            }
            if turn == LAST_TURNS / 2 {
                // A client has asked for a pause that is longer than the test's patience.
                self.shared.paused_until_ms.store(0, Ordering::Release);
            }
            assert!(turn < LAST_TURNS, "a client that has closed its side is still served");
            self.turn(clients);
        }
        clients.iter_mut().for_each(Client::receive);
    }

    /// Checks that a new client is served, unless the server was told to end.
    fn greets_another(&mut self) {
        if self.shared.is_stopping() {
            return;
        }
        self.shared.paused_until_ms.store(0, Ordering::Release);
        let mut clients = [self.connect()];
        clients[0].send(b"PING\r\n");
        self.turn(&mut clients);
        self.turn(&mut clients);
        let expected: &[u8] = if self.shared.auth.is_required() {
            b"-NOAUTH Authentication required.\r\n"
        } else {
            b"+PONG\r\n"
        };
        let replies = &clients[0].replies;
        assert_eq!(replies, expected, "{}", String::from_utf8_lossy(replies));
    }
}
