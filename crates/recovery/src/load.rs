//! Loads records of checkpoints into the store.

use std::sync::Arc;

use stillpoint_checkpoint::{LoadedRecord, Visit};
use stillpoint_store::{KeyImage, Loader, TableId};
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::error::RecoveryError;

/// One loading thread.
pub(crate) struct Loading {
    pub(crate) loader: Loader,
    /// The greatest gsn of a loaded record, of all threads.
    pub(crate) gsn_max: Arc<AtomicU64>,
}

impl Visit for Loading {
    fn records(
        &mut self,
        batch: &[LoadedRecord<'_>],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let gsn_max = batch.iter().map(|record| record.gsn).max().unwrap_or(0);
        if gsn_max > 0 {
            // Relaxed: partner of the load in `load_chain`, which joins the threads first.
            self.gsn_max.fetch_max(gsn_max, Relaxed);
        }
        let of = |record: &LoadedRecord<'_>| (record.table, record.generation);
        for run in batch.chunk_by(|one, next| of(one) == of(next)) {
            let (table, generation) = of(&run[0]);
            let images = run.iter().map(|record| KeyImage {
                hash: record.hash,
                key: record.key,
                label: record.label,
                value: record.value,
                gsn: record.gsn,
            });
            let loaded = self.loader.load_generation(TableId(table), generation, images);
            loaded.map_err(|source| RecoveryError::of_record(TableId(table), source))?;
        }
        Ok(())
    }
}
