//! Snapshots: a consistent view of all tables, read while commits go on.

use std::collections::BTreeMap;
use std::sync::Arc;

use stillpoint_checkpoint::{ViewBatch, ViewNext, ViewRecord, ViewSink};
use stillpoint_format::Label;
use stillpoint_io::{JoinHandle, go_behind, spawn};
use stillpoint_store::{PointOfConsistency, TableId};

use crate::checkpoints::view::{self, Generations, OpenView, Opening};
use crate::engine::Engine;
use crate::error::{Error, SnapshotEnd};
use crate::guards::Inside;

/// A consistent view of the memory tables: exactly the commits from before its point of consistency.
/// [`Engine::snapshot`] makes one.
///
/// The view is read once, in batches, while commits go on. What commits overwrite meanwhile is kept for
/// the reader, up to [`Config::snapshot_memory_bytes`](crate::Config::snapshot_memory_bytes). Large
/// values stay in the store's memory, and the snapshot ends when half of the store's memory is used that
/// was free at the begin. No commit ever waits for the reader.
///
/// A checkpoint that is due waits while a snapshot is open, up to
/// [`Config::snapshot_max_age`](crate::Config::snapshot_max_age) or until the log has reached its limit.
/// Then the snapshot ends with an error at its reader. So read fast, and drop the snapshot soon. A thread
/// that does nothing else may [go behind](crate::go_behind) the threads with transactions. A drop waits
/// for the end of the capture, which passes over all records once.
pub struct Snapshot {
    view: Arc<OpenView>,
    sink: Arc<ViewSink>,
    capture: Option<JoinHandle<()>>,
    /// Names of the tables at the point of consistency.
    tables: BTreeMap<TableId, String>,
    generations: Generations,
    batch: Option<ViewBatch>,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("tables", &self.tables).finish_non_exhaustive()
    }
}

/// Some records of a snapshot.
#[derive(Debug)]
pub struct SnapshotBatch<'a> {
    batch: &'a ViewBatch,
    generations: &'a Generations,
}

/// A record of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotRecord<'a> {
    /// Table.
    pub table: TableId,
    /// Key.
    pub key: &'a [u8],
    /// Tag of the value.
    pub tag: u8,
    /// [Deadline](crate::Tx::put_slot_labelled) of the value, if it has one.
    pub deadline: Option<u64>,
    /// Value.
    pub value: &'a [u8],
}

impl SnapshotBatch<'_> {
    /// The records. Each key of a snapshot comes once, in no order.
    pub fn records(&self) -> impl Iterator<Item = SnapshotRecord<'_>> {
        self.batch.records().filter_map(|record| {
            let table = TableId(record.table);
            let is_current = self.generations.get(&table) == Some(&record.generation);
            let ViewRecord { key, label: Label { tag, deadline }, value, .. } = record;
            let deadline = (deadline != 0).then_some(deadline);
            is_current.then_some(SnapshotRecord { table, key, tag, deadline, value })
        })
    }
}

impl Snapshot {
    /// Numbers and names of the tables of the view.
    pub fn tables(&self) -> impl Iterator<Item = (TableId, &str)> {
        self.tables.iter().map(|(&id, name)| (id, &**name))
    }

    /// Waits for the next records. `None` after the last.
    ///
    /// # Errors
    /// [`Error::SnapshotEnded`]: what was read so far is no whole view. Every later call returns an error,
    /// too. [`Error::InsideTransaction`] from inside a transaction with declared keys.
    pub fn next_batch(&mut self) -> Result<Option<SnapshotBatch<'_>>, Error> {
        // The capture may wait for the batch's read section.
        Inside::refuse_in_batch("next_batch")?;
        match self.sink.next(self.batch.take()) {
            ViewNext::Batch(batch) => {
                let batch = self.batch.insert(batch);
                Ok(Some(SnapshotBatch { batch, generations: &self.generations }))
            }
            ViewNext::Complete => Ok(None),
            ViewNext::Ended => Err(Error::SnapshotEnded(self.view.reason())),
        }
    }

    /// Most bytes of records that waited for the reader.
    pub fn waiting_bytes_peak(&self) -> usize {
        self.sink.bytes_peak()
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.view.end(SnapshotEnd::Closed);
        // In a batch the capture may wait for this thread's read section. It ends by itself later.
        if let Some(capture) = self.capture.take().filter(|_| !Inside::is_in_batch()) {
            // A panic has failed the store already.
            let _ = capture.join();
        }
        // Sessions keep the sink until they save another before-image.
        self.sink.discard();
    }
}

impl Engine {
    /// A consistent view of all memory tables as of now: every commit that has returned is in it, and
    /// none that begins later. Commits go on while the view is read. During a checkpoint the call waits
    /// for its end. In relaxed durability, a crash may still undo commits that the view holds.
    ///
    /// ```
    /// # let directory = tempfile::tempdir()?;
    /// let engine = stillpoint::Engine::open(stillpoint::Config::new(directory.path()))?;
    /// let pets = engine.table("pets")?;
    /// let mut session = engine.session()?;
    /// session.transact(|tx| tx.put(pets, b"rex", b"dog"))?;
    /// let mut snapshot = engine.snapshot()?;
    /// session.transact(|tx| tx.put(pets, b"rex", b"wolf"))?;
    /// let mut found = Vec::new();
    /// while let Some(batch) = snapshot.next_batch()? {
    ///     found.extend(batch.records().map(|it| (it.key.to_vec(), it.value.to_vec())));
    /// }
    /// assert_eq!(found, [(b"rex".to_vec(), b"dog".to_vec())]);
    /// # drop(snapshot);
    /// # drop(session);
    /// # engine.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSnapshots`] if the checkpoint scheme has none. [`Error::SnapshotOpen`] while another
    /// snapshot is open. [`Error::InsideTransaction`] from inside a transaction with declared keys.
    /// Otherwise the reason of the failure.
    pub fn snapshot(&self) -> Result<Snapshot, Error> {
        Inside::refuse("snapshot")?;
        let shared = &self.shared;
        shared.health()?;
        let point = shared.scheme.as_ref().map(|scheme| scheme.point_of_consistency());
        let has_point =
            matches!(point, Some(PointOfConsistency::Virtual | PointOfConsistency::Physical));
        // The tables of such a store are not in memory, so a view would show none of them.
        if !has_point || shared.config.siren_row().is_some() {
            return Err(Error::NoSnapshots { scheme: shared.config.checkpoint.clone() });
        }
        shared.load.wait(shared)?;
        let limit_bytes = shared.config.snapshot_memory_bytes;
        let sink = Arc::new(ViewSink::new(shared.store.clone(), limit_bytes));
        let opening = Arc::new(Opening::default());
        let capture = spawn("snapshot", {
            let (shared, sink, opening) = (shared.clone(), sink.clone(), opening.clone());
            move || {
                go_behind();
                view::take(&shared, &sink, &opening);
            }
        })?;
        let (view, generations) = opening.wait()?;
        let tables = self.tables();
        let tables = tables.into_iter().map(|(name, id)| (id, name));
        let tables = tables.filter(|(id, _)| generations.contains_key(id)).collect();
        Ok(Snapshot { view, sink, capture: Some(capture), tables, generations, batch: None })
    }
}
