//! The level of the log. Lines are emitted through `tracing`, and their subscriber asks this level.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tracing::Level;

/// Names of the levels in `CONFIG SET loglevel`, and the least severe event of each.
const LEVELS: [(&str, Level); 4] = [
    ("debug", Level::TRACE),
    ("verbose", Level::DEBUG),
    ("notice", Level::INFO),
    ("warning", Level::WARN),
];
/// Position of `notice`.
const NOTICE: usize = 2;

/// The level of the log, which may change while the server runs. Clones share the level.
#[derive(Clone, Debug)]
pub struct LogLevel(Arc<AtomicUsize>);

impl Default for LogLevel {
    /// `notice`.
    fn default() -> Self {
        Self(Arc::new(AtomicUsize::new(NOTICE)))
    }
}

impl LogLevel {
    /// The level of that name.
    pub fn named(name: &str) -> Option<Self> {
        let level = Self::default();
        level.set(Self::position(name.as_bytes()).ok()?);
        Some(level)
    }

    /// All names, for help texts.
    pub fn names() -> impl Iterator<Item = &'static str> {
        LEVELS.iter().map(|(name, _)| *name)
    }

    /// The position of the level of that name.
    pub(crate) fn position(name: &[u8]) -> Result<usize, String> {
        let at = LEVELS.iter().position(|(known, _)| name.eq_ignore_ascii_case(known.as_bytes()));
        at.ok_or_else(|| {
            let names: Vec<_> = Self::names().collect();
            format!("argument(s) must be one of the following: {}", names.join(", "))
        })
    }

    /// Changes the level to the one at a [position](Self::position).
    pub(crate) fn set(&self, position: usize) {
        // Relaxed: partner of the loads below. An old level for a moment does no harm.
        self.0.store(position, Ordering::Relaxed);
    }

    /// The name of the level.
    pub fn name(&self) -> &'static str {
        // Relaxed: partner of the store in `set`.
        LEVELS[self.0.load(Ordering::Relaxed)].0
    }

    /// The least severe event that the log takes.
    pub fn get(&self) -> Level {
        // Relaxed: partner of the store in `set`.
        LEVELS[self.0.load(Ordering::Relaxed)].1
    }
}
