//! One connection of a load: requests on their way, replies coming in.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::SocketAddr;

use mio::net::TcpStream;

use crate::subjects::resp::codec::{self, Reply};

/// A request that was sent, or is in the send buffer, and has no reply yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    /// The time at which the request was due.
    pub(super) scheduled_ns: u64,
    pub(super) key: u64,
    /// The stamp of a write; `None` for a read.
    pub(super) stamp: Option<u64>,
    pub(super) wants: Wants,
}

/// The reply that a request has if all is well.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wants {
    /// `OK`
    Stored,
    /// A value of this many bytes, or none.
    Value(usize),
    /// A number.
    Count,
    /// An array with something in it.
    Members,
}

/// The content of a reply, as far as the load needs it.
#[derive(Debug)]
pub(super) enum Answer {
    Done,
    Miss,
    Failed(String),
}

#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    /// Requests not yet written to the socket, from `sent` on.
    pub(super) out: Vec<u8>,
    sent: usize,
    /// Bytes read and not yet understood: `input[..filled]`.
    input: Vec<u8>,
    filled: usize,
    pub(super) flights: VecDeque<Flight>,
}

const READ_BYTES: usize = 16 * 1024;

impl Connection {
    pub(super) fn open(address: SocketAddr) -> io::Result<Connection> {
        // Connecting blocks, so that a refusal is known at once.
        let stream = std::net::TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Connection {
            stream: TcpStream::from_std(stream),
            out: Vec::new(),
            sent: 0,
            input: vec![0; READ_BYTES],
            filled: 0,
            flights: VecDeque::new(),
        })
    }

    pub(super) fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Writes as much as the socket takes. The rest waits for the next call.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }

    /// Reads all received bytes and passes each reply to `each`, together with its request.
    pub(super) fn receive(&mut self, mut each: impl FnMut(Flight, Answer)) -> io::Result<()> {
        loop {
            if self.filled == self.input.len() {
                self.input.resize(self.input.len() * 2, 0);
            }
            let room = self.input.len() - self.filled;
            match self.stream.read(&mut self.input[self.filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    self.filled += n;
                    self.understand(&mut each)?;
                    // A short read emptied the socket; more bytes raise a new event.
                    if n < room {
                        return Ok(());
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn understand(&mut self, each: &mut impl FnMut(Flight, Answer)) -> io::Result<()> {
        let mut at = 0;
        while let Some((reply, length)) =
            codec::read(&self.input[at..self.filled]).map_err(io::Error::other)?
        {
            let flight = self
                .flights
                .pop_front()
                .ok_or_else(|| io::Error::other("the server sent a reply that nobody asked for"))?;
            each(flight, answer(flight, reply));
            at += length;
        }
        self.input.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(())
    }
}

fn answer(flight: Flight, reply: Reply<'_>) -> Answer {
    match (flight.wants, reply) {
        (Wants::Stored, Reply::Status(b"OK")) | (Wants::Count, Reply::Integer(_)) => Answer::Done,
        (Wants::Value(bytes), Reply::Bulk(value)) if value.len() == bytes => Answer::Done,
        (Wants::Members, Reply::Array { count: 1.., .. }) => Answer::Done,
        (Wants::Value(_), Reply::Nil) => Answer::Miss,
        (_, Reply::Error(text)) => Answer::Failed(String::from_utf8_lossy(text).into_owned()),
        (wants, other) => {
            let key = flight.key;
            Answer::Failed(format!("key {key} was answered {other:?}, and {wants:?} was wanted"))
        }
    }
}
