//! Loads records of checkpoints into the store.

use stillpoint_checkpoint::{LoadedRecord, Visit};
use stillpoint_store::{KeyImage, Loader, TableId};

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
        for run in batch.chunk_by(|one, next| one.table == next.table) {
            let table = run[0].table;
            let images = run.iter().map(|record| KeyImage {
                hash: record.hash,
                key: record.key,
                tag: record.tag,
                value: record.value,
                gsn: record.gsn,
            });
            self.loader.load(TableId(table), images).map_err(|source| RecoveryError::Apply {
                table,
                gsn: 0,
                source,
            })?;
        }
        Ok(())
    }
}
