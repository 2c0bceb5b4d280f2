//! One client's socket and buffers.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};

use mio::net::TcpStream;

use crate::resp::{Limits, Parser, Reply, Span};
use crate::session::client::Client;
use crate::session::spec::Spec;
use crate::shared::Shared;
use crate::shared::mailbox::Said;

use super::load::Load;

/// Input memory kept between passes.
const INPUT_KEEP_BYTES: usize = 64 << 10;

/// A request that was planned for a round and did not run in it.
#[derive(Debug)]
pub(crate) struct Postponed {
    /// Bytes of the request and of empty lines after it.
    pub(crate) used: usize,
    pub(crate) spans: Box<[Span]>,
    pub(crate) spec: &'static Spec,
    /// Whether the request must be a transaction of its own.
    pub(crate) is_alone: bool,
}

/// One client: socket, buffers, session.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) stream: TcpStream,
    pub(crate) client: Client,
    pub(crate) reply: Reply,
    pub(crate) parser: Parser,
    pub(crate) input: Vec<u8>,
    /// Where the next request begins in `input`.
    pub(crate) start: usize,
    /// Length of a parsed request that waits for its turn.
    pub(crate) held: Option<usize>,
    /// Requests that run before the one in `held`, from `start` on.
    pub(crate) postponed: VecDeque<Postponed>,
    /// Bytes of pending replies at which no request of the client is executed.
    pause_bytes: usize,
    /// The work that the event loop has lately done for the client. The client with the least is
    /// served first.
    pub(crate) load: Load,
    /// Whether the socket may have more to read.
    pub(crate) readable: bool,
    /// Whether the socket may take more.
    pub(crate) writable: bool,
    /// Whether the poll announced the end of input.
    pub(crate) read_closed: bool,
    /// Whether all whole requests in `input` are executed.
    pub(crate) wants_input: bool,
    /// Whether the client has closed its sending side.
    pub(crate) end_of_input: bool,
    /// Whether nothing can be sent to the client any more.
    pub(crate) broken: bool,
    /// Work of the next request, if a round gave it back because it leaves the event loop; else 0.
    pub(crate) leaves_with: usize,
    /// Whether a call of the round runs again after the round. The calls behind that call wait.
    pub(crate) runs_again: bool,
    /// Whether the next request found no memory while memory is being freed.
    pub(crate) needs_room: bool,
    /// Whether the next request is held back, and may be so for long.
    pub(crate) is_held_back: bool,
    /// Whether the next request needs a record that is on the disk.
    pub(crate) needs_disk: bool,
    /// Whether the next request has met a lock that is held for long.
    pub(crate) met_lock: bool,
    /// What it has met is no lock, but the limit of the log.
    pub(crate) met_log_limit: bool,
    /// Whether a reply was written since replies were last sent.
    pub(crate) replied: bool,
    /// Calls in the batch under construction.
    pub(crate) pending: u32,
    /// Monotonic milliseconds of the last request.
    pub(crate) active_ms: u64,
    /// Monotonic milliseconds when the client last took some of its replies.
    pub(crate) progress_ms: u64,
    /// Whether the event loop looks at the connection after the round.
    pub(crate) touched: bool,
    /// Whether an event arrived while `touched` was set.
    pub(crate) missed: bool,
}

/// The result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadOutcome {
    /// Bytes arrived.
    Some(usize),
    /// Nothing for now.
    Nothing,
    /// The client has closed its side, or the connection broke.
    End,
}

impl Conn {
    /// A client whose requests wait while `pause_bytes` of `reply` are pending.
    pub(crate) fn new(
        stream: TcpStream,
        client: Client,
        reply: Reply,
        pause_bytes: usize,
        now_ms: u64,
    ) -> Self {
        Self {
            stream,
            client,
            reply,
            parser: Parser::default(),
            input: Vec::new(),
            start: 0,
            held: None,
            postponed: VecDeque::new(),
            pause_bytes,
            load: Load::default(),
            readable: true,
            writable: true,
            read_closed: false,
            wants_input: true,
            end_of_input: false,
            broken: false,
            leaves_with: 0,
            runs_again: false,
            needs_room: false,
            is_held_back: false,
            needs_disk: false,
            met_lock: false,
            met_log_limit: false,
            replied: false,
            pending: 0,
            active_ms: now_ms,
            progress_ms: now_ms,
            touched: false,
            missed: false,
        }
    }

    /// Takes over the state that the client had while data was loaded.
    pub(crate) fn resume(&mut self, said: Said) {
        self.input = said.input;
        self.wants_input = self.input.is_empty();
        self.client.authenticated |= said.authenticated;
        self.client.closing |= said.closing;
        self.reply.raw(&said.replies);
        self.reply.set_resp3(said.resp3);
        *self.client.info.names.lock() = said.names;
    }

    /// Reads once, by way of `scratch`.
    pub(crate) fn read(&mut self, scratch: &mut [u8]) -> ReadOutcome {
        loop {
            match self.stream.read(scratch) {
                Ok(0) => {
                    self.end_of_input = true;
                    self.readable = false;
                    return ReadOutcome::End;
                }
                Ok(n) => {
                    self.reserve_input(n, scratch.len());
                    self.input.extend_from_slice(&scratch[..n]);
                    // A short read means that the socket is empty, and its next byte is a new event.
                    // If the end of input came with these bytes, it is no new event.
                    self.readable = n == scratch.len() || self.read_closed;
                    return ReadOutcome::Some(n);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.readable = false;
                    return ReadOutcome::Nothing;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    self.broken = true;
                    self.readable = false;
                    return ReadOutcome::End;
                }
            }
        }
    }

    /// Makes room for `more` bytes of input. The room doubles, in proportion to the bytes received.
    /// But the room ends `beyond` bytes after the argument under way, so that a long argument does
    /// not take twice its length.
    fn reserve_input(&mut self, more: usize, beyond: usize) {
        let needed = self.input.len() + more;
        let end = self.start + self.parser.awaited_end() + beyond;
        if needed > self.input.capacity() && needed <= end {
            let wanted = end.min(2 * self.input.capacity()).max(needed);
            self.input.reserve_exact(wanted - self.input.len());
        }
    }

    /// Drops the request that begins at `base` and ends at `start`.
    pub(crate) fn drop_request(&mut self, base: usize) {
        self.input.drain(base..self.start);
        self.input.shrink_to(INPUT_KEEP_BYTES);
        self.start = base;
    }

    /// Sends as many bytes as the socket takes, `most` or a few more. Returns the number of sent
    /// bytes.
    pub(crate) fn write(&mut self, most: usize, now_ms: u64) -> usize {
        let mut total = 0;
        while self.writable && !self.broken && total < most {
            let front = self.reply.front();
            if front.is_empty() {
                break;
            }
            match self.stream.write(&front[..front.len().min(most)]) {
                Ok(0) => self.broken = true,
                Ok(n) => {
                    self.reply.consume(n);
                    total += n;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.broken = true,
            }
        }
        if total > 0 || self.unsent() == 0 {
            self.progress_ms = now_ms;
        }
        total
    }

    /// Bytes of replies not yet sent.
    pub(crate) fn unsent(&self) -> usize {
        self.reply.pending()
    }

    /// Whether so many replies are pending that no request of the client is executed. `allowance`
    /// is the number of bytes that each client may hold at present.
    pub(crate) fn is_blocked(&self, allowance: usize) -> bool {
        self.unsent() >= self.pause_bytes.min(allowance)
    }

    /// Drops executed requests.
    pub(crate) fn compact(&mut self) {
        if self.start == self.input.len() {
            self.input.clear();
            self.input.shrink_to(INPUT_KEEP_BYTES);
            self.parser.shrink();
        } else if self.start > 0 {
            self.input.drain(..self.start);
        }
        self.start = 0;
    }

    /// The limits of the client's next request.
    pub(crate) fn limits(&self, shared: &Shared) -> Limits {
        if self.client.must_authenticate(&shared.auth) {
            Limits::UNAUTHENTICATED
        } else {
            Limits::authenticated(shared.max_bulk_bytes() as i64)
        }
    }

    /// Bytes of all buffers.
    pub(crate) fn memory(&self) -> usize {
        self.input.capacity()
            + self.reply.capacity()
            + self.parser.memory()
            + self.postponed.capacity() * size_of::<Postponed>()
            + self.client.memory()
            + size_of::<Self>()
    }
}
