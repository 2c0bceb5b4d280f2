//! Errors that end the server, and errors that a command replies.

use std::borrow::Cow;
use std::net::SocketAddr;

use stillpoint::{Error as EngineError, LogFreed, TxError};

/// The reason why the server did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The server cannot listen on the address.
    #[error(
        "cannot listen on {address}: {source}; is another server running there? choose another with --port or --bind"
    )]
    Bind {
        /// The address in the settings.
        address: SocketAddr,
        /// The operating system's reason.
        #[source]
        source: std::io::Error,
    },
    /// The name to listen on has no address.
    #[error(
        "--bind {name:?}: {reason}; give addresses such as 127.0.0.1 or ::1, or names of this host, with spaces or commas between them"
    )]
    BindAddress {
        /// The name.
        name: String,
        /// The reason why the name has no address.
        reason: String,
    },
    /// The event loop could not be set up or broke.
    #[error("{what}: {source}")]
    Loop {
        /// The operation that failed.
        what: &'static str,
        /// The operating system's reason.
        #[source]
        source: std::io::Error,
    },
    /// Commits could not be made durable: nothing more is acknowledged.
    #[error(
        "the log could not be flushed ({0}); commits that were not acknowledged may be lost; restart after the disk is repaired"
    )]
    Flush(String),
    /// A thread could not be started or panicked.
    #[error("{0}")]
    Thread(String),
    /// The engine gives no table or session.
    #[error(transparent)]
    Engine(Box<EngineError>),
    /// A value of the configuration is out of range.
    #[error("{0}")]
    Config(String),
}

impl ServerError {
    pub(crate) fn engine(error: EngineError) -> Self {
        Self::Engine(Box::new(error))
    }
}

/// The error reply of a command. The text begins with a code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CmdError {
    /// An error reply, as text.
    Reply(Cow<'static, str>),
    /// The store refused, with the reason as text. A transaction is rolled back as a whole.
    Store(Cow<'static, str>),
}

/// Result of a command's handler.
pub(crate) type CmdResult = Result<(), CmdError>;

impl CmdError {
    pub(crate) const WRONG_TYPE: Self =
        Self::fixed("WRONGTYPE Operation against a key holding the wrong kind of value");
    pub(crate) const SYNTAX: Self = Self::fixed("ERR syntax error");
    pub(crate) const NOT_INTEGER: Self = Self::fixed("ERR value is not an integer or out of range");
    pub(crate) const NOT_FLOAT: Self = Self::fixed("ERR value is not a valid float");
    pub(crate) const NO_KEY: Self = Self::fixed("ERR no such key");
    pub(crate) const OVERFLOW: Self = Self::fixed("ERR increment or decrement would overflow");
    pub(crate) const OFFSET: Self = Self::fixed("ERR offset is out of range");
    pub(crate) const TOO_LONG: Self =
        Self::fixed("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
    pub(crate) const DB_INDEX: Self = Self::fixed("ERR DB index is out of range");
    pub(crate) const UNBLOCKED: Self = Self::fixed("UNBLOCKED client unblocked via CLIENT UNBLOCK");
    pub(crate) const PATTERN: Self =
        Self::fixed("ERR pattern needs too many steps; use fewer stars");

    pub(crate) const HEAP: Self = Self::fixed(
        "OOM the command needs more memory for copies of what it reads than one command may take",
    );

    pub(crate) const DAMAGED: Self = Self::fixed(
        "ERR the value at this key is damaged: run `stillpoint check`, or delete the key",
    );

    /// The error of a transaction whose replies nobody gets.
    pub(crate) const REPLY_TOO_LONG: Self =
        Self::Store(Cow::Borrowed("ERR the reply is longer than the client may have"));

    /// The transaction runs again, where it may wait for the disk.
    const NOT_LOADED: Self = Self::Store(Cow::Borrowed("ERR a record is not loaded yet"));

    /// The transaction runs again, when a lock may be free.
    const HELD: Self = Self::Store(Cow::Borrowed(
        "ERR another transaction holds a lock for long: run the command again later",
    ));

    /// The transaction runs again, when a checkpoint may have freed the log.
    const AT_LIMIT: Self = Self::Store(Cow::Borrowed(
        "MISCONF writes are refused: the logs have reached log-limit, and too little was freed in time: \
         run the command again later, end long transactions, or raise log-limit",
    ));

    /// The transaction runs again, with the locks of its keys.
    const NOT_LOCKED: Self = Self::Store(Cow::Borrowed("ERR the transaction needs a lock"));

    /// The command runs again, with further keys.
    pub(crate) const NEEDS_KEYS: Self =
        Self::Store(Cow::Borrowed("ERR the command needs further keys"));

    /// The command runs again beside the event loops.
    pub(crate) const LEAVES: Self =
        Self::Store(Cow::Borrowed("ERR the command leaves its event loop"));

    /// The command has made a draft. It runs again once the nodes of the draft are written.
    pub(crate) const DRAFTED: Self = Self::Store(Cow::Borrowed("ERR the command has made a draft"));

    /// The error of a write that finds no memory.
    const FULL: Self =
        Self::Store(Cow::Borrowed("OOM command not allowed when used memory > 'maxmemory'."));

    /// True if there is no memory for a write.
    pub(crate) fn is_full(&self) -> bool {
        *self == Self::FULL
    }

    /// True if the transaction is to run again where it may wait for the disk.
    pub(crate) fn is_not_loaded(&self) -> bool {
        *self == Self::NOT_LOADED
    }

    /// True if another transaction holds a lock for long.
    pub(crate) fn is_held(&self) -> bool {
        *self == Self::HELD
    }

    /// True if a checkpoint has to free the log first.
    pub(crate) fn is_at_limit(&self) -> bool {
        *self == Self::AT_LIMIT
    }

    /// Warns of a refusal for which a client has waited in vain.
    pub(crate) fn warn(&self) {
        if self.is_at_limit() {
            tracing::warn!(reason = self.message(), "writes are refused");
        }
    }

    /// True if the transaction is to run again, with the locks of its keys.
    pub(crate) fn is_not_locked(&self) -> bool {
        *self == Self::NOT_LOCKED
    }

    /// True if the transaction is to run again as it is.
    pub(crate) fn runs_again(&self) -> bool {
        self.is_not_locked() || self.is_not_loaded()
    }

    /// The error with which a transaction ends that is to run again as it is.
    pub(crate) fn as_another_run(&self) -> Option<TxError> {
        match () {
            () if self.is_not_locked() => Some(TxError::NotLocked),
            () if self.is_not_loaded() => Some(TxError::NotLoaded),
            () => None,
        }
    }

    /// True if the command is to run again, with further keys.
    pub(crate) fn needs_keys(&self) -> bool {
        *self == Self::NEEDS_KEYS
    }

    /// True if the command is to run again beside the event loops.
    pub(crate) fn leaves(&self) -> bool {
        *self == Self::LEAVES
    }

    /// True if the command has made a draft, whose nodes are to be written before it runs again.
    pub(crate) fn has_drafted(&self) -> bool {
        *self == Self::DRAFTED
    }

    /// Whether this is no reply, but asks for another run of the command.
    pub(crate) fn asks_for_a_run(&self) -> bool {
        self.is_not_locked() || self.needs_keys() || self.leaves() || self.has_drafted()
    }

    /// An error whose text is known when compiling.
    pub(crate) const fn fixed(text: &'static str) -> Self {
        Self::Reply(Cow::Borrowed(text))
    }

    /// An error with a text made at run time. The caller passes bytes of the client through
    /// [`quoted`] first.
    pub(crate) fn text(text: String) -> Self {
        Self::Reply(Cow::Owned(text))
    }

    /// The text of the error reply.
    pub(crate) fn message(&self) -> &str {
        match self {
            Self::Reply(text) | Self::Store(text) => text,
        }
    }
}

impl From<TxError> for CmdError {
    fn from(error: TxError) -> Self {
        match &error {
            TxError::Memory(limit) => {
                tracing::warn!(reason = %limit, "writes are refused: memory is full; delete keys, or raise maxmemory")
            }
            TxError::Log(refused) => tracing::warn!(reason = %refused, "writes are refused"),
            // Of the others, whoever replies warns.
            TxError::LogFull(full) if full.freed != LogFreed::InTime => {
                tracing::warn!(reason = %full, "writes are refused");
            }
            _ => {}
        }
        Self::Store(match error {
            TxError::Memory(_) => return Self::FULL,
            TxError::NotLocked => return Self::NOT_LOCKED,
            TxError::NotLoaded => return Self::NOT_LOADED,
            TxError::Held => return Self::HELD,
            TxError::Log(refused) => format!("MISCONF writes are refused: {refused}").into(),
            TxError::LogFull(full) if full.freed == LogFreed::InTime => return Self::AT_LIMIT,
            TxError::LogFull(full) => format!("MISCONF writes are refused: {full}").into(),
            error => format!("ERR {error}").into(),
        })
    }
}

impl From<EngineError> for CmdError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Transaction(TxError::Held) => Self::HELD,
            error => Self::Store(format!("MISCONF {error}").into()),
        }
    }
}

/// Bytes of a client as they may appear in an error: at most `max` of them,
/// everything but printable ASCII escaped.
pub(crate) fn quoted(raw: &[u8], max: usize) -> String {
    let mut out = String::with_capacity(raw.len().min(max));
    for &byte in &raw[..raw.len().min(max)] {
        match byte {
            b' '..=b'~' => out.push(byte as char),
            _ => out.push_str(&format!("\\x{byte:02x}")),
        }
    }
    out
}
