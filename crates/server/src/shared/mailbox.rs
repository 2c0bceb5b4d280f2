//! Clients on their way to an event loop.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use mio::Waker;
use mio::net::TcpStream;
use parking_lot::Mutex;

use super::registry::Names;

/// A client on its way to its event loop.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) stream: TcpStream,
    pub(crate) address: SocketAddr,
    /// The input that the client sent while data was loaded, if it was connected then.
    pub(crate) said: Option<Box<Said>>,
}

/// The state of a client that was connected while data was loaded.
#[derive(Debug)]
pub(crate) struct Said {
    /// Bytes of requests that are not answered.
    pub(crate) input: Vec<u8>,
    /// Replies that the client has not taken.
    pub(crate) replies: Vec<u8>,
    /// Whether the connection is closed once the client has its replies.
    pub(crate) closing: bool,
    pub(crate) authenticated: bool,
    pub(crate) resp3: bool,
    pub(crate) names: Names,
}

/// New clients of one event loop, left there by other threads.
#[derive(Debug)]
struct Mailbox {
    waker: Waker,
    /// `None` once the loop has ended.
    incoming: Mutex<Option<Vec<Incoming>>>,
    /// Clients of the loop, those in `incoming` included.
    clients: AtomicUsize,
}

/// The mailboxes of all event loops.
#[derive(Debug)]
pub(crate) struct Mailboxes(Vec<Mailbox>);

impl Mailboxes {
    pub(crate) fn new(wakers: Vec<Waker>) -> Self {
        let mailbox = |waker| Mailbox {
            waker,
            incoming: Mutex::new(Some(Vec::new())),
            clients: AtomicUsize::new(0),
        };
        Self(wakers.into_iter().map(mailbox).collect())
    }

    /// The event loop with the fewest clients.
    fn least_loaded(&self) -> usize {
        // Relaxed: only the first event loop adds clients. An old number costs balance only.
        let load = |i: &usize| self.0[*i].clients.load(Ordering::Relaxed);
        (0..self.0.len()).min_by_key(load).unwrap_or(0)
    }

    /// Hands a client to the event loop with the fewest clients. A loop that has ended closes it.
    pub(crate) fn send(&self, incoming: Incoming) {
        let mailbox = &self.0[self.least_loaded()];
        mailbox.clients.fetch_add(1, Ordering::Relaxed);
        if let Some(others) = &mut *mailbox.incoming.lock() {
            others.push(incoming);
        }
        // A loop that cannot be woken looks into its mailbox at its next tick.
        let _ = mailbox.waker.wake();
    }

    /// Takes the clients handed to a loop.
    pub(crate) fn take(&self, worker: usize) -> Vec<Incoming> {
        self.0[worker].incoming.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Closes the clients handed to a loop that has ended.
    pub(crate) fn close(&self, worker: usize) {
        let incoming = self.0[worker].incoming.lock().take();
        drop(incoming);
    }

    /// Notes that a client of the loop is gone.
    pub(crate) fn forget(&self, worker: usize) {
        self.0[worker].clients.fetch_sub(1, Ordering::Relaxed);
    }

    /// Wakes one event loop.
    pub(crate) fn wake(&self, worker: usize) {
        // A loop that cannot be woken looks into its mailbox at its next tick.
        let _ = self.0[worker].waker.wake();
    }

    /// Wakes every event loop.
    pub(crate) fn wake_all(&self) {
        for mailbox in &self.0 {
            let _ = mailbox.waker.wake();
        }
    }
}
