//! A store whose checkpoints are taken on request, without transactions beside them.

use std::ops::Range;
use std::path::{Path, PathBuf};

use stillpoint::{Engine, Session, TableId};
use stillpoint_format::names::CheckpointKind;

use super::{BATCH, SCHEME};
use crate::error::LabResult;
use crate::subjects::stillpoint::{failed, measured};
use crate::sys;
use crate::workloads::calc::{VALUE_BYTES, initial_value, key};

pub(super) const NAME: &str = "stillpoint, calc:partial";
pub(super) const TABLE: &str = "records";

/// The store.
pub(super) struct Bed {
    engine: Engine,
    session: Session,
    table: TableId,
    dir: PathBuf,
}

/// A checkpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) kind: &'static str,
    pub(super) records: f64,
    pub(super) bytes: f64,
    /// Processor time of the process meanwhile, in seconds.
    pub(super) cpu_s: f64,
    pub(super) seconds: f64,
}

fn engine(dir: &Path) -> LabResult<Engine> {
    Engine::open(measured(dir, SCHEME, "none")).map_err(|error| failed(NAME, error))
}

/// Opens a store. Returns the seconds that the load took, and the bytes of the loaded files.
pub(super) fn load(dir: &Path) -> LabResult<(f64, f64)> {
    let recovered = engine(dir)?.stats().recovered;
    Ok((recovered.load_time.as_secs_f64(), recovered.checkpoint_bytes as f64))
}

impl Bed {
    pub(super) fn open(dir: PathBuf) -> LabResult<Bed> {
        let engine = engine(&dir)?;
        let table = engine.table(TABLE).map_err(|error| failed(NAME, error))?;
        let session = engine.session().map_err(|error| failed(NAME, error))?;
        Ok(Bed { engine, session, table, dir })
    }

    /// Writes every `step`th record of a range.
    pub(super) fn put(&mut self, records: Range<u64>, step: u64, version: u64) -> LabResult<()> {
        let value = |record: u64| -> [u8; VALUE_BYTES] { initial_value(record ^ version << 40) };
        let table = self.table;
        self.each(records, step, &|tx, record| tx.put(table, &key(record), &value(record)))
    }

    /// Deletes every `step`th record of a range.
    pub(super) fn delete(&mut self, records: Range<u64>, step: u64) -> LabResult<()> {
        let table = self.table;
        self.each(records, step, &|tx, record| tx.delete(table, &key(record)).map(|_| ()))
    }

    fn each(
        &mut self,
        records: Range<u64>,
        step: u64,
        change: &dyn Fn(&mut stillpoint::Tx<'_>, u64) -> Result<(), stillpoint::TxError>,
    ) -> LabResult<()> {
        let all: Vec<u64> = records.step_by(step as usize).collect();
        for batch in all.chunks(BATCH as usize) {
            let done = self.session.transact(|tx| batch.iter().try_for_each(|&r| change(tx, r)));
            done.map_err(|error| failed(NAME, error))?;
        }
        Ok(())
    }

    /// Takes a checkpoint of the kind that is due.
    pub(super) fn take(&self) -> LabResult<Taken> {
        self.timed(|engine| engine.checkpoint().map(|_| ()).map_err(|error| failed(NAME, error)))
    }

    /// Takes a full checkpoint.
    pub(super) fn take_full(&self) -> LabResult<Taken> {
        self.timed(|engine| {
            let before = engine.stats().checkpoints.published;
            while engine.full_checkpoint_in_background().is_none() {
                sys::sleep(std::time::Duration::from_millis(1));
            }
            loop {
                let status = engine.stats().checkpoints;
                if status.published > before {
                    return Ok(());
                }
                if let Some(error) = status.last_error {
                    return Err(failed(NAME, error));
                }
                sys::sleep(std::time::Duration::from_millis(1));
            }
        })
    }

    fn timed(&self, take: impl FnOnce(&Engine) -> LabResult<()>) -> LabResult<Taken> {
        let (from_ns, cpu_ns) = (sys::now_ns(), stillpoint_io::process_cpu_ns());
        take(&self.engine)?;
        let cpu_s = (stillpoint_io::process_cpu_ns() - cpu_ns) as f64 / 1e9;
        let seconds = (sys::now_ns() - from_ns) as f64 / 1e9;
        let done = self.engine.stats().checkpoints.last.expect("it was published");
        Ok(Taken {
            kind: if done.kind == CheckpointKind::Full { "full" } else { "changes" },
            records: done.records as f64,
            bytes: done.bytes as f64,
            cpu_s,
            seconds,
        })
    }

    /// Ends the store without a further checkpoint. Returns its directory.
    pub(super) fn close(self) -> PathBuf {
        let Bed { engine, session, dir, .. } = self;
        drop((session, engine));
        dir
    }

    /// Removes the store.
    pub(super) fn clear(self) -> LabResult<()> {
        sys::remove_dir_all(&self.close())
    }
}
