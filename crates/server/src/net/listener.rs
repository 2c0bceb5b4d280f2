//! Accepting clients.

use std::io::{ErrorKind, Write};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};

use crate::error::ServerError;
use crate::shared::Shared;
use crate::shared::mailbox::Incoming;

/// The token of the listening sockets.
pub(crate) const LISTENER: Token = Token(usize::MAX);

/// The listening sockets, which share one token, and belong to one event loop at a time.
#[derive(Debug, Default)]
pub(crate) struct Listener {
    sockets: Vec<TcpListener>,
    /// Whether clients may be waiting, because the last attempt ended before the queue was empty.
    pub(crate) retry: bool,
}

pub(super) const DENIED: &[u8] =
    b"-DENIED Stillpoint is running in protected mode because no password is \
set. In this mode connections are only accepted from the loopback interface. To connect from \
elsewhere, set a password with --requirepass (or CONFIG SET requirepass from the loopback \
interface), or disable protected mode with CONFIG SET protected-mode no.\r\n";

/// Most clients accepted at a time, so that a storm of new clients does not starve the others.
const BURST: usize = 256;

pub(super) const TOO_MANY: &[u8] = b"-ERR max number of clients reached\r\n";

impl Listener {
    /// Listens on every address in `bind`: addresses or names of hosts, with spaces or commas between
    /// them. A name stands for all its addresses on this machine, of which there is at least one.
    ///
    /// # Errors
    /// An address cannot be listened on, or a name has none.
    pub(crate) fn bind(bind: &str, port: u16) -> Result<Self, ServerError> {
        let mut listener = Self::default();
        for name in bind.split([' ', ',']).filter(|name| !name.is_empty()) {
            let before = listener.sockets.len();
            let port = listener.port()?.unwrap_or(port);
            let mut absent = None;
            for address in addresses(name, port)? {
                match TcpListener::bind(address) {
                    Ok(socket) => listener.sockets.push(socket),
                    Err(source) if is_absent(&source) => {
                        absent = Some(ServerError::Bind { address, source });
                    }
                    Err(source) => return Err(ServerError::Bind { address, source }),
                }
            }
            match absent {
                Some(error) if listener.sockets.len() == before => return Err(error),
                _ => {}
            }
        }
        if listener.sockets.is_empty() {
            return Err(ServerError::BindAddress {
                name: bind.to_owned(),
                reason: "it names no address".to_owned(),
            });
        }
        Ok(listener)
    }

    /// The port of the first socket.
    fn port(&self) -> Result<Option<u16>, ServerError> {
        let Some(socket) = self.sockets.first() else {
            return Ok(None);
        };
        let address = socket.local_addr();
        let address = address
            .map_err(|source| ServerError::Loop { what: "asking for the own address", source })?;
        Ok(Some(address.port()))
    }

    /// The addresses listened on.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.sockets.iter().filter_map(|socket| socket.local_addr().ok()).collect()
    }

    /// Adds the sockets to the poll of an event loop. Clients may be waiting already.
    ///
    /// # Errors
    /// When the poll takes no more.
    pub(crate) fn register(&mut self, registry: &Registry) -> Result<(), ServerError> {
        self.retry = true;
        for socket in &mut self.sockets {
            registry.register(socket, LISTENER, Interest::READABLE).map_err(|source| {
                ServerError::Loop { what: "registering the listening socket", source }
            })?;
        }
        Ok(())
    }

    /// Takes the sockets out of a poll.
    pub(crate) fn deregister(&mut self, registry: &Registry) {
        for socket in &mut self.sockets {
            // If this fails, the socket leaves the poll when it is closed.
            let _ = registry.deregister(socket);
        }
    }

    /// Accepts the waiting clients. After an error, such as a lack of file descriptors, the next tick
    /// tries again.
    pub(crate) fn accept(&mut self, shared: &Arc<Shared>) {
        let failed = self.accept_each(|stream, address| admit(stream, address, shared));
        if let Some(error) = failed {
            shared.totals.accept_errors.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%error, "clients cannot be accepted; raise the limit on open files if it is reached");
        }
    }

    /// Accepts the waiting clients and calls `admit` with each. Gives the error that ended the loop.
    pub(super) fn accept_each(
        &mut self,
        mut admit: impl FnMut(TcpStream, SocketAddr),
    ) -> Option<std::io::Error> {
        self.retry = false;
        for socket in &self.sockets {
            let mut left = BURST;
            loop {
                if left == 0 {
                    self.retry = true;
                    break;
                }
                left -= 1;
                match socket.accept() {
                    Ok((stream, address)) => admit(stream, address),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => {
                        self.retry = true;
                        return Some(error);
                    }
                }
            }
        }
        None
    }
}

/// The addresses of a host's name, or the address that `name` spells.
fn addresses(name: &str, port: u16) -> Result<Vec<SocketAddr>, ServerError> {
    let refuse = |reason| ServerError::BindAddress { name: name.to_owned(), reason };
    let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let found: Vec<SocketAddr> =
        (bare, port).to_socket_addrs().map_err(|error| refuse(error.to_string()))?.collect();
    if found.is_empty() {
        return Err(refuse("it has no address".to_owned()));
    }
    Ok(found)
}

/// Whether the error says that this machine lacks the address, or the kind of address.
fn is_absent(error: &std::io::Error) -> bool {
    let unsupported = Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error());
    error.kind() == ErrorKind::AddrNotAvailable || error.raw_os_error() == unsupported
}

/// Hands a client to an event loop, or turns it away with a reason.
fn admit(mut stream: TcpStream, address: SocketAddr, shared: &Arc<Shared>) {
    shared.totals.connections.fetch_add(1, Ordering::Relaxed);
    let refuse = |stream: &mut TcpStream, reason: &[u8]| {
        shared.totals.rejected_connections.fetch_add(1, Ordering::Relaxed);
        let why = String::from_utf8_lossy(reason);
        tracing::warn!(client = %address, reason = why.trim_start_matches('-').trim_end(), "client refused");
        // The socket's buffer is empty, so this does not wait. A client that is gone needs no reason.
        let _ = stream.write(reason);
    };
    let protected = shared.params.protected_mode.load(Ordering::Relaxed);
    if protected && !shared.auth.is_required() && !is_local(address) {
        return refuse(&mut stream, DENIED);
    }
    if shared.registry.len() >= shared.params.maxclients.load(Ordering::Relaxed) {
        return refuse(&mut stream, TOO_MANY);
    }
    // If a socket option fails, the client is served all the same.
    let _ = stream.set_nodelay(true);
    if shared.config.tcp_keepalive_s > 0 {
        keep_alive(&stream, shared.config.tcp_keepalive_s);
    }
    shared.mailboxes.send(Incoming { stream, address, said: None });
}

fn keep_alive(stream: &TcpStream, seconds: u32) {
    use rustix::net::sockopt;
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, Duration::from_secs(u64::from(seconds)));
    let interval = Duration::from_secs(u64::from((seconds / 3).max(1)));
    let _ = sockopt::set_tcp_keepintvl(stream, interval);
    let _ = sockopt::set_tcp_keepcnt(stream, 3);
}

pub(super) fn is_local(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_lists_of_addresses_are_listened_on() {
        let one = Listener::bind("localhost", 0).expect("every machine has it");
        assert!(one.addresses().iter().all(|&address| is_local(address)));
        let two = Listener::bind("127.0.0.1, 127.0.0.2", 0).expect("loopback");
        let ports: Vec<u16> = two.addresses().iter().map(SocketAddr::port).collect();
        assert_eq!((ports.len(), ports[0]), (2, ports[1]), "one port for all");
        let taken = Listener::bind("127.0.0.1", ports[0]).expect_err("the port is taken");
        assert!(taken.to_string().contains("is another server running there?"), "{taken}");
        for wrong in ["", "no-such-host.invalid", "127.0.0.1 1.2.3.4.5"] {
            let error = Listener::bind(wrong, 0).expect_err("no address");
            assert!(matches!(error, ServerError::BindAddress { .. }), "{wrong:?}: {error}");
        }
        let absent = Listener::bind("203.0.113.7", 0).expect_err("not of this machine");
        assert!(matches!(absent, ServerError::Bind { .. }), "{absent}");
    }

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
