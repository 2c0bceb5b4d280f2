//! How long a transaction waits for another one.

/// The most that a transaction waits for a lock or for the permit of the store.
///
/// A thread with an open transaction may run a further one. The holder of the lock or of the permit
/// may then wait for the open transaction, which goes on only when the thread does. The thread cannot
/// know that, so its waits are short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Patience {
    /// Without a limit, since every holder of a lock ends by itself.
    #[default]
    Endless,
    /// About a sixth of a second.
    Short,
    /// About a millisecond. For event loops, which have other clients.
    Moment,
    /// Some microseconds. For work that may as well be done on other records.
    Brief,
}

/// Turns of a short wait: those that spin and yield, and 1,500 that sleep a tenth of a millisecond.
const SHORT_TURNS: u32 = 128 + 1500;

/// Turns of a wait for a moment: those that spin and yield, and 10 that sleep a tenth of a millisecond.
const MOMENT_TURNS: u32 = 128 + 10;

/// Turns of a brief wait: those that spin.
const BRIEF_TURNS: u32 = 64;

impl Patience {
    /// Whether a wait of this number of turns has been long enough, so that the transaction gives
    /// up. A turn is one call of [`Backoff::wait`](stillpoint_sync::Backoff::wait).
    #[inline]
    pub fn is_over(self, turns: u32) -> bool {
        match self {
            Self::Endless => false,
            Self::Short => turns > SHORT_TURNS,
            Self::Moment => turns >= MOMENT_TURNS,
            Self::Brief => turns >= BRIEF_TURNS,
        }
    }
}
