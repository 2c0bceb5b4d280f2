//! Witnesses: clients that read one small value again and again, and note how long they waited.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{LabError, LabResult};
use crate::measure::stats::quantile;
use crate::subjects::resp::admin::Admin;
use crate::subjects::resp::codec;
use crate::subjects::server::Server;
use crate::sys;

/// Number of witnesses. The event loops share the connections, so each loop has a witness.
const CONNECTIONS: usize = 4;
/// Pause between two requests of a connection.
const PAUSE: Duration = Duration::from_micros(500);
/// The key that witnesses read.
const KEY: &[u8] = b"witness";

/// Waits of the witnesses during one action.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Waits {
    pub(super) longest_ms: f64,
    pub(super) p999_ms: f64,
}

impl Waits {
    fn of(mut waited_ms: Vec<f64>) -> Waits {
        waited_ms.sort_by(f64::total_cmp);
        let longest_ms = waited_ms.last().copied().unwrap_or(f64::NAN);
        Waits { longest_ms, p999_ms: quantile(&waited_ms, 0.999) }
    }
}

/// Calls `act` while witnesses watch the server. Returns the result of `act` and the waits.
///
/// # Errors
/// The error of `act`, or a witness that gets no answer.
pub(super) fn watched<R>(
    server: &Server,
    act: impl FnOnce() -> LabResult<R>,
) -> LabResult<(R, Waits)> {
    server.admin()?.call(&[b"SET", KEY, b"here"])?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    for _ in 0..CONNECTIONS {
        let (mut admin, told) = (server.admin()?, Arc::clone(&stop));
        threads.push(sys::spawn("witness", move || witness(&mut admin, &told))?);
    }
    sys::sleep(Duration::from_millis(100));
    let done = act();
    sys::sleep(Duration::from_millis(200));
    // Release: partner of the Acquire in `witness`.
    stop.store(true, Ordering::Release);
    let mut waited_ms = Vec::new();
    for thread in threads {
        waited_ms.extend(thread.join().map_err(|e| LabError::process("witness", e))??);
    }
    Ok((done?, Waits::of(waited_ms)))
}

fn witness(admin: &mut Admin, stop: &AtomicBool) -> LabResult<Vec<f64>> {
    let mut waited_ms = Vec::new();
    // Acquire: partner of the Release in `watched`.
    while !stop.load(Ordering::Acquire) {
        let began_ns = sys::now_ns();
        admin.call(&[b"GET", KEY])?;
        waited_ms.push((sys::now_ns() - began_ns) as f64 / 1e6);
        sys::sleep(PAUSE);
    }
    Ok(waited_ms)
}

/// A client that writes a whole request, however long, before it reads. The client checks only the
/// last reply.
#[derive(Debug)]
pub(super) struct WritingFirst {
    address: SocketAddr,
    stream: TcpStream,
}

impl WritingFirst {
    pub(super) fn connect(server: &Server) -> LabResult<WritingFirst> {
        let address = server.address;
        let stream = TcpStream::connect(address).map_err(|e| LabError::server(address, e))?;
        stream.set_nodelay(true).map_err(|e| LabError::server(address, e))?;
        Ok(WritingFirst { address, stream })
    }

    /// Sends requests and reads nothing.
    pub(super) fn send(&mut self, requests: &[u8]) -> LabResult<()> {
        self.stream.write_all(requests).map_err(|e| LabError::server(self.address, e))
    }

    /// Sends requests and reads until all are answered. Returns the time in milliseconds.
    ///
    /// # Errors
    /// When the connection breaks, or the first reply is an error.
    pub(super) fn exchange(&mut self, requests: &[u8]) -> LabResult<f64> {
        const END: &[u8] = b"$12\r\nend of reply\r\n";
        let mut end = Vec::new();
        codec::request(&mut end, &[b"ECHO", b"end of reply"]);
        let began_ns = sys::now_ns();
        self.send(requests)?;
        self.send(&end)?;
        let (mut chunk, mut tail, mut first) = (vec![0; 1 << 20], Vec::new(), true);
        while !tail.ends_with(END) {
            let count =
                self.stream.read(&mut chunk).map_err(|e| LabError::server(self.address, e))?;
            if count == 0 {
                return Err(LabError::server(self.address, "closed the connection"));
            }
            if std::mem::take(&mut first) && chunk[0] == b'-' {
                let text = String::from_utf8_lossy(&chunk[..count.min(200)]).into_owned();
                return Err(LabError::server(self.address, text));
            }
            tail.extend_from_slice(&chunk[count.saturating_sub(END.len())..count]);
            let surplus = tail.len().saturating_sub(END.len());
            tail.drain(..surplus);
        }
        Ok((sys::now_ns() - began_ns) as f64 / 1e6)
    }
}
