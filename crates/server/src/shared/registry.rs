//! The clients of all event loops, as `CLIENT LIST` and `CLIENT KILL` see them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

/// Names that a client gave itself and its library.
#[derive(Debug, Default, Clone)]
pub(crate) struct Names {
    pub(crate) name: String,
    pub(crate) lib_name: String,
    pub(crate) lib_ver: String,
}

/// The data of a client that other threads see. The client's event loop writes the data once per
/// pass.
#[derive(Debug)]
pub(crate) struct ClientInfo {
    pub(crate) id: u64,
    pub(crate) address: SocketAddr,
    pub(crate) local_address: SocketAddr,
    pub(crate) worker: usize,
    pub(crate) created_ms: u64,
    pub(crate) names: Mutex<Names>,
    /// Whether another client asked for the end of this client.
    pub(crate) killed: AtomicBool,
    /// The client's bytes when it was chosen to be disconnected for memory; 0 before.
    pub(crate) evicted_bytes: AtomicUsize,
    pub(crate) last_ms: AtomicU64,
    pub(crate) db: AtomicU32,
    /// Commands queued by `MULTI`, plus one; 0 outside of `MULTI`.
    pub(crate) multi: AtomicU32,
    pub(crate) watched: AtomicU32,
    pub(crate) input_bytes: AtomicUsize,
    pub(crate) output_bytes: AtomicUsize,
    pub(crate) memory_bytes: AtomicUsize,
    /// Id of the last command's row, plus one.
    pub(crate) last_command: AtomicU32,
    pub(crate) resp3: AtomicBool,
    /// Whether replies wait until they are durable.
    pub(crate) strict: AtomicBool,
    pub(crate) flush_wait: FlushWait,
    pub(crate) no_evict: AtomicBool,
    pub(crate) no_touch: AtomicBool,
}

// Every atomic here is Relaxed. Each has one writer, or is a flag that never goes back, or changes
// by exchanges. Readers want a recent value, not an order.
pub(crate) const RELAXED: Ordering = Ordering::Relaxed;

/// Whether a `WAITAOF` of a client waits, and whether another client has ended the wait.
#[derive(Debug, Default)]
pub(crate) struct FlushWait(AtomicU8);

impl FlushWait {
    const OFF: u8 = 0;
    const ON: u8 = 1;
    const UNBLOCKED: u8 = 2;
    pub(crate) const UNBLOCKED_WITH_ERROR: u8 = 3;

    pub(crate) fn begin(&self) {
        self.0.store(Self::ON, RELAXED);
    }

    /// Ends the wait and returns its state.
    pub(crate) fn end(&self) -> u8 {
        self.0.swap(Self::OFF, RELAXED)
    }

    /// Asks for the end of the wait. False if nothing waits, or if somebody has asked before.
    pub(crate) fn unblock(&self, with_error: bool) -> bool {
        let to = if with_error { Self::UNBLOCKED_WITH_ERROR } else { Self::UNBLOCKED };
        self.0.compare_exchange(Self::ON, to, RELAXED, RELAXED).is_ok()
    }

    pub(crate) fn is_on(&self) -> bool {
        self.0.load(RELAXED) != Self::OFF
    }

    pub(crate) fn is_unblocked(&self) -> bool {
        self.0.load(RELAXED) > Self::ON
    }
}

impl ClientInfo {
    /// A client of which only the address is known.
    pub(crate) fn blank(address: SocketAddr) -> Self {
        Self {
            id: 0,
            address,
            local_address: address,
            worker: 0,
            created_ms: 0,
            names: Mutex::default(),
            killed: AtomicBool::new(false),
            evicted_bytes: AtomicUsize::new(0),
            last_ms: AtomicU64::new(0),
            db: AtomicU32::new(0),
            multi: AtomicU32::new(0),
            watched: AtomicU32::new(0),
            input_bytes: AtomicUsize::new(0),
            output_bytes: AtomicUsize::new(0),
            memory_bytes: AtomicUsize::new(0),
            last_command: AtomicU32::new(0),
            resp3: AtomicBool::new(false),
            strict: AtomicBool::new(false),
            flush_wait: FlushWait::default(),
            no_evict: AtomicBool::new(false),
            no_touch: AtomicBool::new(false),
        }
    }

    /// Whether the client was killed, and has not been disconnected yet.
    fn is_killed(&self) -> bool {
        // Acquire: partner of the Release in `CLIENT KILL`.
        self.killed.load(Ordering::Acquire)
    }

    /// The line of `CLIENT LIST`.
    pub(crate) fn line(&self, now_ms: u64, command: &str) -> String {
        let names = self.names.lock().clone();
        let age = now_ms.saturating_sub(self.created_ms) / 1000;
        let idle = now_ms.saturating_sub(self.last_ms.load(RELAXED)) / 1000;
        let multi = i64::from(self.multi.load(RELAXED)) - 1;
        let mut flags = String::new();
        for (on, letter) in [
            (multi >= 0, 'x'),
            (self.no_evict.load(RELAXED), 'e'),
            (self.no_touch.load(RELAXED), 'T'),
        ] {
            if on {
                flags.push(letter);
            }
        }
        if flags.is_empty() {
            flags.push('N');
        }
        format!(
            "id={} addr={} laddr={} fd=-1 name={} age={age} idle={idle} flags={flags} db={} sub=0 \
             psub=0 ssub=0 multi={multi} watch={} qbuf={} qbuf-free=0 argv-mem=0 multi-mem=0 \
             rbs=0 rbp=0 obl=0 oll=0 omem={} tot-mem={} events=r cmd={command} user=default \
             redir=-1 resp={} lib-name={} lib-ver={} io-thread={} \
             durability={}",
            self.id,
            self.address,
            self.local_address,
            names.name,
            self.db.load(RELAXED),
            self.watched.load(RELAXED),
            self.input_bytes.load(RELAXED),
            self.output_bytes.load(RELAXED),
            self.memory_bytes.load(RELAXED),
            if self.resp3.load(RELAXED) { 3 } else { 2 },
            names.lib_name,
            names.lib_ver,
            self.worker,
            if self.strict.load(RELAXED) { "strict" } else { "relaxed" },
        )
    }
}

/// All clients by id.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    clients: Mutex<BTreeMap<u64, Arc<ClientInfo>>>,
    next_id: AtomicU64,
}

impl Registry {
    /// A new client id, greater than all before.
    pub(crate) fn next_id(&self) -> u64 {
        // Relaxed: ids need to be unique only.
        self.next_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn insert(&self, info: Arc<ClientInfo>) {
        self.clients.lock().insert(info.id, info);
    }

    pub(crate) fn remove(&self, id: u64) {
        self.clients.lock().remove(&id);
    }

    pub(crate) fn len(&self) -> usize {
        self.clients.lock().len()
    }

    /// The clients by id. While the guard lives, no client comes or goes.
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<ClientInfo>>> {
        self.clients.lock()
    }

    /// The clients among `ids`, oldest first, but for killed ones.
    pub(crate) fn some(&self, ids: BTreeSet<u64>) -> Vec<Arc<ClientInfo>> {
        let clients = self.clients.lock();
        let found = ids.iter().filter_map(|id| clients.get(id));
        found.filter(|info| !info.is_killed()).cloned().collect()
    }

    /// The clients at this moment, oldest first. A killed client may still be here until its event loop sees
    /// that, and does not count.
    pub(crate) fn all(&self) -> Vec<Arc<ClientInfo>> {
        self.clients.lock().values().filter(|info| !info.is_killed()).cloned().collect()
    }
}
