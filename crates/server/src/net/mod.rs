//! Sockets and event loops.
//!
//! Each event loop is a thread with its own poll, its own clients and its own engine
//! session; they share nothing but the store and some counters. The first one also
//! accepts, and hands each client to the loop with the fewest.
//!
//! One pass of a loop: wait for sockets; read what is there; parse whole pipelines
//! into a batch; execute it; write the replies. In strict durability the replies wait for a
//! flush, and the loop goes on with other clients until a thread of its own has made it.

mod conn;
mod flusher;
mod listener;
mod loading;
mod plan;
mod worker;

use std::sync::atomic::{AtomicUsize, Ordering};

use mio::Waker;
use parking_lot::Mutex;

pub(crate) use conn::{Incoming, Said};
pub(crate) use listener::Listener;
pub(crate) use loading::{Handover, LoadingLoop};
pub(crate) use worker::{LISTENER, MAILBOX, Worker};

/// What other threads leave for an event loop.
#[derive(Debug)]
struct Mailbox {
    waker: Waker,
    incoming: Mutex<Vec<Incoming>>,
    /// Clients of the loop, those on their way included.
    clients: AtomicUsize,
}

/// The mailboxes of all event loops.
#[derive(Debug)]
pub(crate) struct Mailboxes(Vec<Mailbox>);

impl Mailboxes {
    pub(crate) fn new(wakers: Vec<Waker>) -> Self {
        let mailbox =
            |waker| Mailbox { waker, incoming: Mutex::default(), clients: AtomicUsize::new(0) };
        Self(wakers.into_iter().map(mailbox).collect())
    }

    /// The event loop with the fewest clients.
    fn least_loaded(&self) -> usize {
        // Relaxed: only the first event loop adds clients; an old number costs balance only.
        let load = |i: &usize| self.0[*i].clients.load(Ordering::Relaxed);
        (0..self.0.len()).min_by_key(load).unwrap_or(0)
    }

    /// Hands a client over.
    pub(crate) fn send(&self, incoming: Incoming) {
        let mailbox = &self.0[self.least_loaded()];
        mailbox.clients.fetch_add(1, Ordering::Relaxed);
        mailbox.incoming.lock().push(incoming);
        // A loop that cannot be woken looks into its mailbox at its next tick.
        let _ = mailbox.waker.wake();
    }

    /// Takes the clients handed to a loop.
    pub(crate) fn take(&self, worker: usize) -> Vec<Incoming> {
        std::mem::take(&mut *self.0[worker].incoming.lock())
    }

    /// A client of the loop is gone.
    pub(crate) fn forget(&self, worker: usize) {
        self.0[worker].clients.fetch_sub(1, Ordering::Relaxed);
    }

    /// Wakes one event loop.
    pub(crate) fn wake(&self, worker: usize) {
        // As in `send`.
        let _ = self.0[worker].waker.wake();
    }

    /// Wakes every event loop.
    pub(crate) fn wake_all(&self) {
        for mailbox in &self.0 {
            let _ = mailbox.waker.wake();
        }
    }
}
