use std::time::Duration;

/// The stage of a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Reading the logs to find what is kept.
    Scan,
    /// Loading checkpoints.
    Load,
    /// Replaying the logs.
    Replay,
}

impl Stage {
    /// The stage as a word for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Scan => "scanning logs",
            Self::Load => "loading checkpoint",
            Self::Replay => "replaying logs",
        }
    }
}

/// Progress of a recovery.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The stage of the recovery.
    pub stage: Stage,
    /// Bytes of this stage that are done.
    pub bytes_done: u64,
    /// Bytes of this stage.
    pub bytes_total: u64,
    /// Time since the stage began.
    pub elapsed: Duration,
}

impl Progress {
    /// Bytes per second so far.
    pub fn rate(&self) -> f64 {
        self.bytes_done as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Remaining time of this stage at the rate so far. `None` at its begin.
    pub fn remaining(&self) -> Option<Duration> {
        if self.bytes_done == 0 {
            return None;
        }
        let left = self.bytes_total.saturating_sub(self.bytes_done) as f64;
        Some(Duration::from_secs_f64(left / self.rate()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_remains_follows_the_rate_so_far() {
        let at = |bytes_done| Progress {
            stage: Stage::Load,
            bytes_done,
            bytes_total: 1_000,
            elapsed: Duration::from_secs(2),
        };
        assert_eq!(at(0).remaining(), None, "there is no rate yet");
        assert!((at(200).rate() - 100.0).abs() < 1e-9);
        assert_eq!(at(200).remaining(), Some(Duration::from_secs(8)));
        assert_eq!(at(1_000).remaining(), Some(Duration::ZERO));
        assert_eq!(at(1_200).remaining(), Some(Duration::ZERO), "a file has grown meanwhile");
    }
}
