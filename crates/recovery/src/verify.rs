//! Reading everything that replay would apply, without a store.

use stillpoint_format::manifest::Manifest;
use stillpoint_journal::{ReplayOptions, ReplayWrite};

use crate::error::RecoveryError;
use crate::plan::Plan;
use crate::replay::newer_table;
use crate::run::ROUND_BYTES;

impl Plan {
    /// Reads every record that replay would apply: it decodes, and the manifest knows its tables.
    ///
    /// # Errors
    /// Damage, a record of a table that the manifest does not know, or a disk that refuses.
    pub fn verify_records(&self, threads: usize) -> Result<(), RecoveryError> {
        let options = ReplayOptions { partitions: 1, round_bytes: ROUND_BYTES, threads };
        let mut rounds = self.logs.replay(options, &|_, _| 0);
        while let Some(round) = rounds.next_round()? {
            for write in round.partition(0) {
                if !is_known(&self.manifest, write) {
                    return Err(newer_table(write));
                }
            }
        }
        Ok(())
    }
}

fn is_known(manifest: &Manifest, write: &ReplayWrite<'_>) -> bool {
    let table = manifest.table(write.write.table);
    table.is_some_and(|table| write.write.generation <= table.generation)
}
