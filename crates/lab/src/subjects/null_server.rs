//! A server that reads requests and answers each at once, without keys and values: the limit of every
//! server of the Redis protocol.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token, Waker};
use parking_lot::Mutex;

use crate::error::{LabError, LabResult};
use crate::sys;

const NEW: Token = Token(usize::MAX);
const READ_BYTES: usize = 64 * 1024;

/// Serves on a port of the loopback interface until the process is killed. GET is answered by a value of
/// so many bytes, DBSIZE by 0, and everything else by OK.
///
/// # Errors
/// When the port is taken, or a thread cannot be started.
pub(crate) fn serve(port: u16, value_bytes: usize) -> LabResult<()> {
    let failed = |e: io::Error| LabError::server(format!("127.0.0.1:{port}"), e);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(failed)?;
    let mut loops: Vec<(Arc<Mutex<Vec<TcpStream>>>, Waker)> = Vec::new();
    let mut threads = Vec::new();
    for number in 0..stillpoint_io::cpu_count() {
        let accepted = Arc::<Mutex<Vec<TcpStream>>>::default();
        let poll = Poll::new().map_err(failed)?;
        let waker = Waker::new(poll.registry(), NEW).map_err(failed)?;
        loops.push((accepted.clone(), waker));
        let answers = Answers::new(value_bytes);
        let run = move || Loop { poll, accepted, answers }.run();
        threads.push(sys::spawn(&format!("null-{number}"), run)?);
    }
    for (number, stream) in listener.incoming().enumerate() {
        let stream = stream.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_nonblocking(true).map_err(failed)?;
        let (accepted, waker) = &loops[number % loops.len()];
        accepted.lock().push(TcpStream::from_std(stream));
        waker.wake().map_err(failed)?;
    }
    for thread in threads {
        let ended = thread.join().map_err(|e| LabError::process("null server", e))?;
        ended.map_err(failed)?;
    }
    Ok(())
}

/// The replies, ready-made.
struct Answers {
    value: Vec<u8>,
}

impl Answers {
    fn new(value_bytes: usize) -> Answers {
        let mut value = format!("${value_bytes}\r\n").into_bytes();
        value.resize(value.len() + value_bytes, b'x');
        value.extend(b"\r\n");
        Answers { value }
    }

    /// Appends the replies to all whole requests. Returns the bytes of these requests.
    fn answer(&self, input: &[u8], out: &mut Vec<u8>) -> usize {
        let mut used = 0;
        while let Some((name, length)) = request(&input[used..]) {
            match name {
                b"GET" => out.extend_from_slice(&self.value),
                b"DBSIZE" => out.extend_from_slice(b":0\r\n"),
                _ => out.extend_from_slice(b"+OK\r\n"),
            }
            used += length;
        }
        used
    }
}

/// The name of the first request, and the request's length. `None` if it is not whole.
fn request(input: &[u8]) -> Option<(&[u8], usize)> {
    let (arguments, mut at) = number(input, 0, b'*')?;
    let mut name: &[u8] = &[];
    for argument in 0..arguments {
        let (length, begin) = number(input, at, b'$')?;
        at = begin + length + 2;
        if at > input.len() {
            return None;
        }
        if argument == 0 {
            name = &input[begin..begin + length];
        }
    }
    Some((name, at))
}

/// The number of a line with this first byte, and the begin of the next line.
fn number(input: &[u8], at: usize, kind: u8) -> Option<(usize, usize)> {
    let rest = input.get(at..)?;
    let end = rest.iter().position(|&byte| byte == b'\r')?;
    if rest.len() < end + 2 || rest[0] != kind {
        return None;
    }
    let digits = rest[1..end].iter();
    let number = digits.fold(0, |sum, &digit| sum * 10 + usize::from(digit.wrapping_sub(b'0')));
    Some((number, at + end + 2))
}

struct Client {
    stream: TcpStream,
    input: Vec<u8>,
    out: Vec<u8>,
}

struct Loop {
    poll: Poll,
    /// Connections that the loop does not have yet.
    accepted: Arc<Mutex<Vec<TcpStream>>>,
    answers: Answers,
}

impl Loop {
    fn run(mut self) -> io::Result<()> {
        let (mut events, mut clients) = (Events::with_capacity(256), Vec::new());
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match self.poll.poll(&mut events, None) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                polled => polled?,
            }
            for event in events.iter() {
                if event.token() == NEW {
                    self.accept(&mut clients)?;
                } else if let Some(Some(client)) = clients.get_mut(event.token().0)
                    && self.turn(client, &mut buffer).is_err()
                {
                    clients[event.token().0] = None;
                }
            }
        }
    }

    fn accept(&mut self, clients: &mut Vec<Option<Client>>) -> io::Result<()> {
        let accepted = std::mem::take(&mut *self.accepted.lock());
        for mut stream in accepted {
            let interest = Interest::READABLE | Interest::WRITABLE;
            self.poll.registry().register(&mut stream, Token(clients.len()), interest)?;
            clients.push(Some(Client { stream, input: Vec::new(), out: Vec::new() }));
        }
        Ok(())
    }

    /// Reads all that has come, answers it, and writes what the socket takes.
    fn turn(&self, client: &mut Client, buffer: &mut [u8]) -> io::Result<()> {
        loop {
            match client.stream.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    client.input.extend_from_slice(&buffer[..count]);
                    let used = self.answers.answer(&client.input, &mut client.out);
                    client.input.drain(..used);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        let mut sent = 0;
        while sent < client.out.len() {
            match client.stream.write(&client.out[sent..]) {
                Ok(count) => sent += count,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        client.out.drain(..sent);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_requests_are_answered_and_parts_wait() {
        let answers = Answers::new(3);
        let all = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2\r\n\r\n\r\n*1\r\n$6\r\nDBSIZE\r\n";
        let replies = b"$3\r\nxxx\r\n+OK\r\n:0\r\n";
        let mut out = Vec::new();
        assert_eq!(answers.answer(all, &mut out), all.len());
        assert_eq!(out, replies);
        for cut in 0..all.len() {
            let mut out = Vec::new();
            let used = answers.answer(&all[..cut], &mut out);
            answers.answer(&all[used..], &mut out);
            assert_eq!(out, replies, "cut at {cut}");
        }
    }
}
