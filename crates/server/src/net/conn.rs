//! One client's socket and buffers.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;

use mio::net::TcpStream;

use crate::client::Client;
use crate::resp::{Limits, Parser, Reply};
use crate::shared::Shared;

/// A client on its way to its event loop.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) stream: TcpStream,
    pub(crate) address: SocketAddr,
}

/// Replies pending beyond which no more requests of the client are executed.
const OUTPUT_SOFT_BYTES: usize = 1 << 20;
/// Output memory kept between passes.
const OUTPUT_KEEP_BYTES: usize = 64 << 10;
/// Input memory kept between passes.
const INPUT_KEEP_BYTES: usize = 64 << 10;

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
    /// Length of a request that is parsed and waits for its turn.
    pub(crate) held: Option<usize>,
    /// Bytes of `reply` already sent.
    sent: usize,
    /// The socket may have more to read.
    pub(crate) readable: bool,
    /// The poll has said that the end of input is on its way.
    pub(crate) read_closed: bool,
    /// Everything in `input` but an unfinished request is executed.
    pub(crate) wants_input: bool,
    /// The client sends no more.
    pub(crate) end_of_input: bool,
    /// Nothing can be sent to the client any more.
    pub(crate) broken: bool,
    /// Calls in the batch under construction.
    pub(crate) pending: u32,
    /// Monotonic milliseconds of the last request.
    pub(crate) active_ms: u64,
    /// Monotonic milliseconds when the client last took some of its replies.
    pub(crate) progress_ms: u64,
    /// Bytes counted for this client in the total.
    pub(crate) counted_bytes: usize,
    /// The connection is in the list of those to look at after the round.
    pub(crate) touched: bool,
    /// It was to be looked at while it was in that list.
    pub(crate) missed: bool,
}

/// What came of reading.
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
    pub(crate) fn new(stream: TcpStream, client: Client, output_bytes: usize, now_ms: u64) -> Self {
        Self {
            stream,
            client,
            reply: Reply::new(output_bytes),
            parser: Parser::default(),
            input: Vec::new(),
            start: 0,
            held: None,
            sent: 0,
            readable: true,
            read_closed: false,
            wants_input: true,
            end_of_input: false,
            broken: false,
            pending: 0,
            active_ms: now_ms,
            progress_ms: now_ms,
            counted_bytes: 0,
            touched: false,
            missed: false,
        }
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
                    self.input.extend_from_slice(&scratch[..n]);
                    // A short read means that the socket is empty; its next byte is a new event.
                    // The end of input may have come with these bytes, and is no new event then.
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

    /// Sends what the socket takes; returns how many bytes.
    pub(crate) fn write(&mut self, now_ms: u64) -> usize {
        let mut total = 0;
        while self.sent < self.reply.bytes().len() && !self.broken {
            match self.stream.write(&self.reply.bytes()[self.sent..]) {
                Ok(0) => self.broken = true,
                Ok(n) => {
                    self.sent += n;
                    total += n;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.broken = true,
            }
        }
        if self.sent == self.reply.bytes().len() {
            self.reply.clear(OUTPUT_KEEP_BYTES);
            self.sent = 0;
            self.progress_ms = now_ms;
        } else if total > 0 {
            self.progress_ms = now_ms;
            if self.sent > OUTPUT_SOFT_BYTES {
                self.reply.consume(self.sent);
                self.sent = 0;
            }
        }
        total
    }

    /// Bytes of replies not yet sent.
    pub(crate) fn unsent(&self) -> usize {
        self.reply.bytes().len() - self.sent
    }

    /// True while the client has so much to take that it gets no more.
    pub(crate) fn is_blocked(&self) -> bool {
        self.unsent() > OUTPUT_SOFT_BYTES
    }

    /// Forgets executed requests.
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

    /// What the client's requests may ask for now.
    pub(crate) fn limits(&self, shared: &Shared) -> Limits {
        if self.client.authenticated {
            Limits::authenticated(shared.max_bulk_bytes() as i64)
        } else {
            Limits::UNAUTHENTICATED
        }
    }

    /// Bytes of all buffers.
    pub(crate) fn memory(&self) -> usize {
        self.input.capacity()
            + self.reply.capacity()
            + self.parser.memory()
            + self.client.memory()
            + size_of::<Self>()
    }
}
