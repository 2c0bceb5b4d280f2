//! A collection that grows from nothing, and the longest command on the way.
//!
//! One client sends pipelines of commands with one element each. It spins until all are answered, so it is
//! the spinning thread that tells how long the machine has taken the core away from it.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use crate::error::{LabError, LabResult};
use crate::subjects::resp::codec::{self, Reply};
use crate::subjects::server::Server;
use crate::sys;
use crate::workloads::elements::Command;

/// Commands of a pipeline.
const PIPELINE: u64 = 64;

/// How a collection has grown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Growth {
    pub(super) seconds: f64,
    /// The longest time from sending a pipeline until all of it is answered.
    pub(super) longest_ms: f64,
    /// The longest time in which the spinning client did not run.
    pub(super) stall_ms: f64,
}

/// A thread that looks at the clock again and again.
struct Spin {
    last_ns: u64,
    longest_ns: u64,
}

impl Spin {
    /// Looks at the clock.
    fn look(&mut self) -> u64 {
        let now_ns = sys::now_ns();
        self.longest_ns = self.longest_ns.max(now_ns - self.last_ns);
        self.last_ns = now_ns;
        now_ns
    }
}

/// Has a collection grow to this many elements.
///
/// # Errors
/// The server refuses a command, or the connection breaks.
pub(super) fn grow(server: &Server, command: Command, elements: u64) -> LabResult<Growth> {
    let failed = |e: io::Error| LabError::server(server.address, e);
    let mut client = Client::connect(server).map_err(failed)?;
    let began_ns = sys::now_ns();
    let mut spin = Spin { last_ns: began_ns, longest_ns: 0 };
    let mut longest_ns = 0;
    let mut out = Vec::new();
    let mut sent = 0;
    while sent < elements {
        let count = PIPELINE.min(elements - sent);
        out.clear();
        (sent..sent + count).for_each(|number| command.request(&mut out, number, number));
        let sent_ns = spin.look();
        client.exchange(&out, count, &mut spin).map_err(failed)?;
        longest_ns = longest_ns.max(spin.look() - sent_ns);
        sent += count;
    }
    Ok(Growth {
        seconds: (sys::now_ns() - began_ns) as f64 / 1e9,
        longest_ms: longest_ns as f64 / 1e6,
        stall_ms: spin.longest_ns as f64 / 1e6,
    })
}

/// A connection that never blocks.
struct Client {
    stream: TcpStream,
    input: Vec<u8>,
}

impl Client {
    fn connect(server: &Server) -> io::Result<Client> {
        let stream = TcpStream::connect(server.address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Client { stream, input: Vec::new() })
    }

    /// Sends requests and spins until this many replies have come.
    fn exchange(&mut self, mut out: &[u8], mut replies: u64, spin: &mut Spin) -> io::Result<()> {
        let mut chunk = [0; 4096];
        while replies > 0 {
            spin.look();
            if !out.is_empty() {
                match self.stream.write(out) {
                    Ok(count) => out = &out[count..],
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    Err(e) => return Err(e),
                }
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.input.extend_from_slice(&chunk[..count]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
            replies -= self.understand()?;
        }
        Ok(())
    }

    /// Takes the replies that have come. Returns how many.
    fn understand(&mut self) -> io::Result<u64> {
        let (mut at, mut count) = (0, 0);
        while let Some((reply, length)) =
            codec::read(&self.input[at..]).map_err(io::Error::other)?
        {
            let Reply::Integer(_) = reply else {
                return Err(io::Error::other(format!("the server answered {reply:?}")));
            };
            (at, count) = (at + length, count + 1);
        }
        self.input.drain(..at);
        Ok(count)
    }
}
