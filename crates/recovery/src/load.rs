//! Records of checkpoints into the store.

use stillpoint_checkpoint::{LoadedRecord, Visit};
use stillpoint_store::{Loader, Replayed, TableId};

use crate::error::RecoveryError;

/// One loading thread.
pub(crate) struct Loading {
    pub(crate) loader: Loader,
}

impl Visit for Loading {
    fn records(
        &mut self,
        batch: &[LoadedRecord<'_>],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        for record in batch {
            self.loader.prefetch(TableId(record.table), record.hash);
        }
        for record in batch {
            let change = match record.value {
                Some(value) => Replayed::Put { tag: record.tag, value },
                None => Replayed::Delete,
            };
            self.loader
                .apply(TableId(record.table), record.hash, record.key, 0, change)
                .map_err(|source| RecoveryError::Apply { table: record.table, gsn: 0, source })?;
        }
        Ok(())
    }
}
