//! The effect of a power loss on everything unflushed.
//!
//! First one outcome is drawn for the whole machine. So orderly outcomes (all, nothing, a prefix in
//! the order of writing) are as likely as disorderly ones. Then the fates of each file and sector
//! are drawn within the outcome.

use super::pages::SECTOR;
use crate::rng::{Rng, SeededRng};

/// Possible bytes of a sector that was being written when the power failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tearing {
    /// The whole sector may be garbage, including bytes that were flushed before.
    #[default]
    Garbage,
    /// Bytes that the writes did not change survive. The others may be anything (SQLite's
    /// "powersafe overwrite").
    ChangedBytes,
    /// A sector is old or new, never torn.
    Never,
}

/// Fate of one sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Old,
    New,
    /// A value between the two, if the sector was written more than once.
    Between,
    Torn,
}

/// Outcome drawn for the machine.
#[derive(Debug)]
pub(super) struct Outcome {
    tearing: Tearing,
    shape: Shape,
}

#[derive(Debug)]
enum Shape {
    /// Nothing unflushed arrived.
    Nothing,
    /// Everything unflushed arrived.
    Everything,
    /// Writes before this moment arrived, in the order of writing.
    Prefix { until: u64 },
    /// Each sector survives or is lost independently.
    Scatter,
}

/// The chances of each sector of one file, in percent.
#[derive(Debug)]
pub(super) struct Odds {
    new: u64,
    torn: u64,
}

impl Outcome {
    /// Draws an outcome. Pages in doubt were last written within `oldest..=latest`.
    pub(super) fn draw(tearing: Tearing, oldest: u64, latest: u64, rng: &SeededRng) -> Self {
        let shape = match rng.below(10) {
            0 => Shape::Nothing,
            1 => Shape::Everything,
            2..=4 => {
                Shape::Prefix { until: oldest + rng.below((latest + 2).saturating_sub(oldest)) }
            }
            _ => Shape::Scatter,
        };
        Self { tearing, shape }
    }

    pub(super) fn odds_of_file(&self, rng: &SeededRng) -> Odds {
        Odds {
            new: [0, 10, 50, 90, 100][rng.below(5) as usize],
            torn: [0, 0, 2, 20][rng.below(4) as usize],
        }
    }

    pub(super) fn fate_of_sector(
        &self,
        odds: &Odds,
        order: u64,
        may_tear: bool,
        between: bool,
        rng: &SeededRng,
    ) -> Fate {
        let scatter = || {
            if may_tear && self.tearing != Tearing::Never && rng.below(100) < odds.torn {
                Fate::Torn
            } else if between && rng.below(4) == 0 {
                Fate::Between
            } else if rng.below(100) < odds.new {
                Fate::New
            } else {
                Fate::Old
            }
        };
        match self.shape {
            Shape::Nothing => Fate::Old,
            Shape::Everything => Fate::New,
            Shape::Prefix { until } if order < until => Fate::New,
            Shape::Prefix { until } if order > until => Fate::Old,
            Shape::Prefix { .. } | Shape::Scatter => scatter(),
        }
    }

    /// Draws one of the lengths that the file has had since its flush.
    pub(super) fn pick_len(&self, old: u64, new: u64, all: &[u64], rng: &SeededRng) -> u64 {
        match self.shape {
            Shape::Nothing => old,
            Shape::Everything => new,
            // The first, the last, and all between are equally likely.
            Shape::Prefix { .. } | Shape::Scatter => match rng.below(3) {
                0 => old,
                1 => new,
                _ => all[rng.below(all.len() as u64) as usize],
            },
        }
    }

    /// How many of a directory's `changes` unflushed changes arrived.
    pub(super) fn pick_prefix(&self, changes: u64, rng: &SeededRng) -> u64 {
        match self.shape {
            Shape::Nothing => 0,
            Shape::Everything => changes,
            Shape::Prefix { .. } | Shape::Scatter => rng.below(changes + 1),
        }
    }

    /// A torn sector: a mixture of old, new, zeros and noise.
    pub(super) fn tear(
        &self,
        old: &[u8; SECTOR],
        new: &[u8; SECTOR],
        rng: &SeededRng,
    ) -> [u8; SECTOR] {
        let mut torn = [0u8; SECTOR];
        let at = rng.below(SECTOR as u64) as usize;
        match rng.below(4) {
            0 => {
                for (place, noise) in
                    torn.as_chunks_mut().0.iter_mut().zip(std::iter::repeat_with(|| rng.next_u64()))
                {
                    *place = noise.to_le_bytes();
                }
            }
            1 => {
                torn[..at].copy_from_slice(&new[..at]);
                torn[at..].copy_from_slice(&old[at..]);
            }
            2 => {
                torn[..at].copy_from_slice(&old[..at]);
                torn[at..].copy_from_slice(&new[at..]);
            }
            _ => torn[..at].copy_from_slice(&new[..at]),
        }
        if self.tearing == Tearing::ChangedBytes {
            for (place, (old, new)) in torn.iter_mut().zip(old.iter().zip(new)) {
                if old == new {
                    *place = *old;
                }
            }
        }
        torn
    }
}
