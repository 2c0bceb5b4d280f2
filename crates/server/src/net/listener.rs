//! Accepting clients.

use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};

use super::Incoming;
use crate::shared::Shared;

/// The listening socket, in the first event loop.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: TcpListener,
    /// Clients may be waiting: the last attempt ended by an error, not by an empty queue.
    pub(crate) retry: bool,
}

const DENIED: &[u8] = b"-DENIED Stillpoint is running in protected mode because no password is \
set. In this mode connections are only accepted from the loopback interface. To connect from \
elsewhere, set a password with --requirepass (or CONFIG SET requirepass from the loopback \
interface), or disable protected mode with CONFIG SET protected-mode no.\r\n";

/// Clients accepted in one go, so that a storm of them does not starve those there are.
const BURST: usize = 256;

impl Listener {
    pub(crate) fn new(socket: TcpListener) -> Self {
        Self { socket, retry: false }
    }

    pub(crate) fn socket(&mut self) -> &mut TcpListener {
        &mut self.socket
    }

    /// Accepts the clients that wait. An error (no more file descriptors, a client
    /// already gone) ends nothing: the next tick tries again.
    pub(crate) fn accept(&mut self, shared: &Arc<Shared>) {
        self.retry = false;
        for _ in 0..BURST {
            match self.socket.accept() {
                Ok((stream, address)) => admit(stream, address, shared),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    shared.totals.accept_errors.fetch_add(1, Ordering::Relaxed);
                    break;
                }
            }
        }
        self.retry = true;
    }
}

/// Hands a client to an event loop, or turns it away with a reason.
fn admit(mut stream: TcpStream, address: SocketAddr, shared: &Arc<Shared>) {
    shared.totals.connections.fetch_add(1, Ordering::Relaxed);
    let refuse = |stream: &mut TcpStream, reason: &[u8]| {
        shared.totals.rejected_connections.fetch_add(1, Ordering::Relaxed);
        // The socket's buffer is empty, so this does not wait; a client that is gone already
        // does not need the reason.
        let _ = stream.write(reason);
    };
    let protected = shared.params.protected_mode.load(Ordering::Relaxed);
    if protected && !shared.auth.is_required() && !is_local(address) {
        return refuse(&mut stream, DENIED);
    }
    if shared.registry.len() >= shared.params.maxclients.load(Ordering::Relaxed) {
        return refuse(&mut stream, b"-ERR max number of clients reached\r\n");
    }
    // Without these the client is served all the same.
    let _ = stream.set_nodelay(true);
    if shared.config.tcp_keepalive_s > 0 {
        keep_alive(&stream, shared.config.tcp_keepalive_s);
    }
    shared.mailboxes.send(Incoming { stream, address });
}

fn keep_alive(stream: &TcpStream, seconds: u32) {
    use rustix::net::sockopt;
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, Duration::from_secs(u64::from(seconds)));
    let interval = Duration::from_secs(u64::from((seconds / 3).max(1)));
    let _ = sockopt::set_tcp_keepintvl(stream, interval);
    let _ = sockopt::set_tcp_keepcnt(stream, 3);
}

fn is_local(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_local() {
        for (address, local) in [
            ("127.0.0.1:1", true),
            ("127.8.8.8:1", true),
            ("[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("10.0.0.1:1", false),
            ("[::ffff:10.0.0.1]:1", false),
            ("0.0.0.0:1", false),
        ] {
            let parsed: SocketAddr = address.parse().expect("an address");
            assert_eq!(is_local(parsed), local, "{address}");
        }
    }
}
