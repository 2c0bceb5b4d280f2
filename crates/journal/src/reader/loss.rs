//! Losses that a scan accepts instead of a refusal.

use std::path::Path;

use stillpoint_format::{LogGsn, names};
use stillpoint_io::Disk;

use super::error::ScanError;

/// The loss of one log.
#[derive(Clone, Debug)]
pub struct Loss {
    /// The log.
    pub log: u8,
    /// The incarnation.
    pub incarnation: u32,
    /// Records with a greater gsn are given up.
    pub above_gsn: u64,
    /// The last gsn that is known to have existed, if any.
    pub up_to_gsn: Option<u64>,
    /// The reason of the loss.
    pub why: String,
}

/// Whether a scan refuses damaged, missing or unknown records, or gives them up as losses.
#[derive(Debug, Default)]
pub(super) struct Judge {
    /// The losses accepted so far. `None` refuses each loss.
    losses: Option<Vec<Loss>>,
    /// The greatest incarnation seen whose batches no manifest names.
    pub(super) unnamed: u32,
    /// Notes a file of an incarnation after the manifest's latest.
    pub(super) has_later: bool,
}

impl Judge {
    pub(super) fn accepting() -> Self {
        Judge { losses: Some(Vec::new()), ..Judge::default() }
    }

    pub(super) fn accepts(&self) -> bool {
        self.losses.is_some()
    }

    /// Notes damage as a loss, or returns an error that cannot be accepted.
    pub(super) fn give_up(
        &mut self,
        why: ScanError,
        (incarnation, log): (u32, u8),
        above_gsn: u64,
        up_to_gsn: Option<u64>,
    ) -> Result<(), ScanError> {
        let Some(losses) = self.losses.as_mut().filter(|_| why.is_damage()) else {
            return Err(why);
        };
        let up_to_gsn = up_to_gsn.filter(|&up_to| up_to > above_gsn);
        losses.push(Loss { log, incarnation, above_gsn, up_to_gsn, why: why.to_string() });
        Ok(())
    }

    /// The smallest gsn above which a log of an incarnation was given up.
    pub(super) fn lost_above(&self, incarnation: u32) -> Option<u64> {
        let of = self.losses.iter().flatten().filter(|loss| loss.incarnation == incarnation);
        of.map(|loss| loss.above_gsn).min()
    }

    /// Notes the loss of records that depend on lost ones.
    pub(super) fn follow(&mut self, incarnation: u32, log: u8, above_gsn: u64, up_to_gsn: u64) {
        if let Some(losses) = &mut self.losses {
            let why = "it may rest on what is lost elsewhere".to_owned();
            losses.push(Loss { log, incarnation, above_gsn, up_to_gsn: Some(up_to_gsn), why });
        }
    }

    pub(super) fn into_losses(self) -> Vec<Loss> {
        self.losses.unwrap_or_default()
    }
}

/// Notes the loss of records that contradict the manifest.
pub(super) fn unknown(disk: &dyn Disk, from: LogGsn) -> ScanError {
    let dir = disk.describe(Path::new(&names::log_dir(from.log)));
    ScanError::Unknown { dir, log: from.log, gsn: from.gsn }
}
