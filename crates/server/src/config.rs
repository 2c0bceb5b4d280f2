//! Settings of the server at its start.

use std::fmt;
use std::sync::Arc;

use stillpoint_io::{Clock, Rng};

use crate::log::LogLevel;

/// Databases that `SELECT` chooses among; database `n` is table `n`.
pub const DATABASES: u16 = 16;

/// The number of a database.
pub(crate) type Db = u16;

/// The clients that may use `DEBUG`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DebugCommand {
    /// Nobody.
    No,
    /// Clients from the same machine.
    Local,
    /// Every client.
    Yes,
}

impl DebugCommand {
    /// The value of `enable-debug-command`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::No => "no",
            Self::Local => "local",
            Self::Yes => "yes",
        }
    }
}

/// Settings of the server at its start. `CONFIG SET` can change some settings later.
#[derive(Clone)]
pub struct ServerConfig {
    /// Addresses to listen on, or names of this host, separated by spaces or commas. Remote clients
    /// need a password.
    pub bind: String,
    /// Port. 0 lets the system choose (see [`Server::port`](crate::Server::port)).
    pub port: u16,
    /// Number of event loops. Each uses one core.
    pub threads: usize,
    /// Password of the default user.
    pub requirepass: Option<String>,
    /// Whether remote clients need a password.
    pub protected_mode: bool,
    /// The clients that may use `DEBUG`, which is for tests.
    pub debug_command: DebugCommand,
    /// Most clients at once, unless `clients_max` is smaller.
    pub maxclients: usize,
    /// Most clients for which the process has file descriptors. `maxclients` is never set higher.
    pub clients_max: usize,
    /// Seconds after which an idle client is disconnected. 0 means never.
    pub timeout_s: u64,
    /// Seconds between TCP keep-alive probes. 0 means none.
    pub tcp_keepalive_s: u32,
    /// Longest argument and value in bytes, at most 512 MiB.
    pub max_bulk_bytes: u64,
    /// Most bytes of one client's unfinished request.
    pub query_buffer_bytes: usize,
    /// Most bytes of replies that a client may leave unread. A reply beyond this limit ends the
    /// connection. While half of the limit is pending, the client's next requests wait. The
    /// requests also wait while more is pending than half of `client_memory_bytes` leaves free.
    pub output_buffer_bytes: usize,
    /// Most bytes of input and output buffers of all clients together, in addition to the memory
    /// for data. Beyond this limit the server disconnects the client with the largest buffers.
    /// `None`: half of the limit for data, at least 256 MiB and at most 4 GiB.
    pub client_memory_bytes: Option<u64>,
    /// What a full server does: one of Redis's values of `maxmemory-policy`.
    pub max_memory_policy: String,
    /// Seconds without progress after which a client that does not read its replies is
    /// disconnected.
    pub slow_reader_s: u64,
    /// Seconds that clients have to read their last replies at shutdown.
    pub drain_s: u64,
    /// Level of the log.
    pub log_level: LogLevel,
    /// Path of the settings file, for `INFO`. Empty without a file.
    pub config_file: String,
    /// Source of time.
    pub clock: Arc<dyn Clock>,
    /// Source of randomness.
    pub rng: Arc<dyn Rng>,
}

impl fmt::Debug for ServerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerConfig")
            .field("bind", &self.bind)
            .field("port", &self.port)
            .field("threads", &self.threads)
            .field("requirepass", &self.requirepass.as_ref().map(|_| "…"))
            .finish_non_exhaustive()
    }
}

impl ServerConfig {
    /// The defaults of `stillpoint serve`: 127.0.0.1:6379, no password.
    pub fn new(clock: Arc<dyn Clock>, rng: Arc<dyn Rng>) -> Self {
        Self {
            bind: "127.0.0.1".to_owned(),
            port: 6379,
            threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
            requirepass: None,
            protected_mode: true,
            debug_command: DebugCommand::No,
            maxclients: 10_000,
            clients_max: 1 << 20,
            timeout_s: 0,
            tcp_keepalive_s: 300,
            max_bulk_bytes: 512 << 20,
            query_buffer_bytes: 1 << 30,
            output_buffer_bytes: 1 << 30,
            client_memory_bytes: None,
            max_memory_policy: "noeviction".to_owned(),
            slow_reader_s: 60,
            drain_s: 5,
            log_level: LogLevel::default(),
            config_file: String::new(),
            clock,
            rng,
        }
    }
}
