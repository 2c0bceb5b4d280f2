//! Work that an event loop has lately done for a client.

/// Half-life of the counted work.
const HALF_LIFE_MS: u64 = 16;
/// Differences of less work do not change the order of clients.
const STEP: u64 = 64;

/// Work, which counts less as time passes, in units of about a microsecond.
///
/// The client with the least work is served first. So a client that asks little never waits for a
/// second request of a client that asks much. Clients that ask for the same share the time equally.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    work: u64,
    /// Time for which `work` is correct, in monotonic milliseconds.
    at_ms: u64,
}

impl Load {
    /// Adds `work` done at `now_ms`.
    pub(crate) fn add(&mut self, work: usize, now_ms: u64) {
        let half_lives = now_ms.saturating_sub(self.at_ms) / HALF_LIFE_MS;
        if half_lives > 0 {
            self.work = halved(self.work, half_lives);
            self.at_ms = now_ms;
        }
        self.work += work as u64;
    }

    /// The client's rank at `now_ms`. The client with the smaller rank goes first.
    pub(crate) fn rank(&self, now_ms: u64) -> u64 {
        halved(self.work, now_ms.saturating_sub(self.at_ms) / HALF_LIFE_MS) / STEP
    }
}

fn halved(work: u64, times: u64) -> u64 {
    work >> times.min(63)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_much_waits_behind_who_asks_little_and_is_forgiven() {
        let (mut much, mut little) = (Load::default(), Load::default());
        much.add(100_000, 1000);
        little.add(2, 1000);
        assert!(little.rank(1000) < much.rank(1000));
        // Work counts across rounds, but not for ever.
        much.add(0, 1001);
        assert!(much.rank(1001) > 1000);
        assert_eq!(much.rank(1000 + 20 * HALF_LIFE_MS), little.rank(1000));
    }
}
