//! State that all event loops share: parameters, passwords, clients, counters, logs.

pub(crate) mod auth;
pub(crate) mod client_memory;
pub(crate) mod loading;
pub(crate) mod mailbox;
pub(crate) mod registry;
pub(crate) mod slowlog;
pub(crate) mod stats;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use stillpoint::{Durability, HeldFiles};

use self::auth::Auth;
use self::client_memory::ClientMemory;
use self::mailbox::Mailboxes;
use self::registry::Registry;
use self::slowlog::{LatencyMonitor, SlowLog};
use self::stats::{Rate, WorkerStats};
use crate::config::ServerConfig;
use crate::keyspace::{Keyspace, Policy, SmallLimits};

/// Parameters that `CONFIG SET` may change while the server runs. Every access is Relaxed: an old
/// value does no harm for a moment.
#[derive(Debug)]
pub(crate) struct Params {
    pub(crate) maxclients: AtomicUsize,
    pub(crate) timeout_s: AtomicU64,
    pub(crate) slowlog_slower_us: AtomicI64,
    pub(crate) slowlog_max_len: AtomicUsize,
    pub(crate) latency_threshold_ms: AtomicU64,
    pub(crate) max_bulk_bytes: AtomicU64,
    pub(crate) protected_mode: AtomicBool,
    pub(crate) active_expiry: AtomicBool,
    pub(crate) hash_max_entries: AtomicU64,
    pub(crate) hash_max_value: AtomicU64,
    pub(crate) set_max_entries: AtomicU64,
    pub(crate) zset_max_entries: AtomicU64,
    pub(crate) zset_max_value: AtomicU64,
    /// Kept for clients that set it. Lists are trees of nodes of one size.
    pub(crate) list_max_size: AtomicI64,
    /// Kept for clients that set it. Nodes of lists are not compressed.
    pub(crate) list_compress_depth: AtomicI64,
}

impl Params {
    fn new(config: &ServerConfig) -> Self {
        let small = SmallLimits::DEFAULT;
        Self {
            maxclients: AtomicUsize::new(config.maxclients.min(config.clients_max)),
            timeout_s: AtomicU64::new(config.timeout_s),
            slowlog_slower_us: AtomicI64::new(10_000),
            slowlog_max_len: AtomicUsize::new(128),
            latency_threshold_ms: AtomicU64::new(0),
            max_bulk_bytes: AtomicU64::new(config.max_bulk_bytes),
            protected_mode: AtomicBool::new(config.protected_mode),
            active_expiry: AtomicBool::new(true),
            hash_max_entries: AtomicU64::new(small.hash_max_entries),
            hash_max_value: AtomicU64::new(small.hash_max_value),
            set_max_entries: AtomicU64::new(small.set_max_entries),
            zset_max_entries: AtomicU64::new(small.zset_max_entries),
            zset_max_value: AtomicU64::new(small.zset_max_value),
            list_max_size: AtomicI64::new(-2),
            list_compress_depth: AtomicI64::new(0),
        }
    }

    /// Up to where collections are small.
    pub(crate) fn small_limits(&self) -> SmallLimits {
        let value = |of: &AtomicU64| of.load(Ordering::Relaxed);
        SmallLimits {
            hash_max_entries: value(&self.hash_max_entries),
            hash_max_value: value(&self.hash_max_value),
            set_max_entries: value(&self.set_max_entries),
            zset_max_entries: value(&self.zset_max_entries),
            zset_max_value: value(&self.zset_max_value),
        }
    }
}

/// Counters that all event loops share.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) connections: AtomicU64,
    pub(crate) rejected_connections: AtomicU64,
    pub(crate) accept_errors: AtomicU64,
    pub(crate) output_limit_disconnects: AtomicU64,
    pub(crate) query_limit_disconnects: AtomicU64,
    pub(crate) peak_memory: AtomicU64,
}

/// State that all event loops share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: ServerConfig,
    pub(crate) keyspace: Keyspace,
    pub(crate) params: Params,
    pub(crate) auth: Auth,
    pub(crate) registry: Registry,
    /// Counters of the event loops, then those of the threads for long commands.
    pub(crate) workers: Vec<Arc<WorkerStats>>,
    pub(crate) totals: Totals,
    pub(crate) slowlog: SlowLog,
    pub(crate) latency: LatencyMonitor,
    pub(crate) rates: Mutex<Rates>,
    pub(crate) refusals: Mutex<Refusals>,
    /// Bytes that the program occupied before it served.
    pub(crate) startup_bytes: u64,
    /// Input and output buffers of all clients.
    pub(crate) client_memory: ClientMemory,
    /// Until this moment `CLIENT PAUSE` holds writes back, in monotonic milliseconds; and whether
    /// reads, too.
    pub(crate) paused_until_ms: AtomicU64,
    pub(crate) paused_all: AtomicBool,
    /// Whether the server is to end.
    pub(crate) stopping: Arc<AtomicBool>,
    pub(crate) started_ms: u64,
    pub(crate) run_id: String,
    pub(crate) port: u16,
    pub(crate) mailboxes: Mailboxes,
    /// The holds of `BGSAVE HOLD`.
    pub(crate) held_files: Mutex<Vec<HeldFiles>>,
}

/// Rates of the whole server.
#[derive(Debug, Default)]
pub(crate) struct Rates {
    pub(crate) commands: Rate,
    pub(crate) net_in: Rate,
    pub(crate) net_out: Rate,
}

/// Whether the log takes writes. The first event loop looks ten times a second.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    refused: u64,
    commits: u64,
    /// Whether the log refused a write and has taken none since.
    pub(crate) are_going_on: bool,
}

impl Refusals {
    /// Notes how many writes the log has refused and taken by now.
    pub(crate) fn note(&mut self, refused: u64, commits: u64) {
        if refused != self.refused {
            self.are_going_on = true;
        } else if self.are_going_on && commits != self.commits {
            self.are_going_on = false;
            tracing::info!(refused, "writes are taken again");
        }
        (self.refused, self.commits) = (refused, commits);
    }
}

impl Shared {
    /// The shared state at the start. `threads` execute commands; the ids of these are below
    /// `commands`.
    pub(crate) fn new(
        config: ServerConfig,
        keyspace: Keyspace,
        (threads, commands): (usize, usize),
        port: u16,
        stopping: Arc<AtomicBool>,
        mailboxes: Mailboxes,
    ) -> Self {
        let workers: Vec<_> = (0..threads).map(|_| Arc::new(WorkerStats::new(commands))).collect();
        let auth = Auth::default();
        auth.set_password(config.requirepass.as_deref().unwrap_or("").as_bytes());
        let (memory_bytes, max_memory_bytes) = keyspace.memory_bytes();
        let client_memory_bytes = config
            .client_memory_bytes
            .unwrap_or_else(|| ClientMemory::derived_limit(max_memory_bytes));
        let run_id = (0..3).map(|_| format!("{:016x}", config.rng.next_u64())).collect::<String>();
        Self {
            params: Params::new(&config),
            auth,
            registry: Registry::default(),
            workers,
            totals: Totals::default(),
            slowlog: SlowLog::default(),
            latency: LatencyMonitor::default(),
            rates: Mutex::default(),
            refusals: Mutex::default(),
            startup_bytes: stillpoint_io::resident_bytes().saturating_sub(memory_bytes as u64),
            client_memory: ClientMemory::new(client_memory_bytes),
            paused_until_ms: AtomicU64::new(0),
            paused_all: AtomicBool::new(false),
            stopping,
            started_ms: config.clock.wall_ms(),
            run_id: run_id[..40].to_owned(),
            port,
            held_files: Mutex::default(),
            mailboxes,
            keyspace,
            config,
        }
    }

    /// Longest value in bytes.
    pub(crate) fn max_bulk_bytes(&self) -> u64 {
        // Relaxed: see `Params`.
        self.params.max_bulk_bytes.load(Ordering::Relaxed)
    }

    /// Sum of one counter over the event loops.
    pub(crate) fn sum(&self, counter: impl Fn(&WorkerStats) -> u64) -> u64 {
        self.workers.iter().map(|w| counter(w)).sum()
    }

    /// Bytes held for data.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.keyspace.engine().stats().memory_bytes as u64
    }

    /// The limit of bytes held for data; 0: none.
    pub(crate) fn max_memory_bytes(&self) -> u64 {
        match self.keyspace.engine().stats().max_memory_bytes {
            usize::MAX => 0,
            bytes => bytes as u64,
        }
    }

    /// Has the engine keep marks of accesses, if a policy needs them.
    ///
    /// # Errors
    /// The tables show no keys that could be given up, or the system refuses the address space.
    pub(crate) fn keep_marks(&self, policy: Policy) -> Result<(), String> {
        if policy.evicts() {
            self.keyspace.engine().shows_uses().map_err(|error| error.to_string())?;
        }
        if !policy.needs_marks() {
            return Ok(());
        }
        self.keyspace.engine().keep_accesses().map_err(|error| error.to_string())
    }

    /// Whether a reply waits until its commit, and all that the commit read, is durable.
    pub(crate) fn is_strict(&self) -> bool {
        self.keyspace.engine().config().durability == Durability::Strict && self.has_journal()
    }

    /// Whether commits are logged.
    pub(crate) fn has_journal(&self) -> bool {
        self.keyspace.engine().config().journal != "none"
    }

    /// Bytes held for data and for clients. Notes the peak.
    pub(crate) fn used_memory(&self) -> u64 {
        // Relaxed: a number for people, which orders nothing.
        let used = self.data_bytes() + self.client_memory.total();
        self.totals.peak_memory.fetch_max(used, Ordering::Relaxed);
        used
    }

    /// Makes every event loop look at its mailbox and flags now.
    pub(crate) fn wake_all(&self) {
        self.mailboxes.wake_all();
    }

    /// Asks every event loop to end.
    pub(crate) fn stop(&self) {
        // Relaxed: partner of the load in `is_stopping`. The flag never goes back.
        self.stopping.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        // Relaxed: partner of the store in `stop`.
        self.stopping.load(Ordering::Relaxed)
    }
}
