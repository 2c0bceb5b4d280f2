//! Loads single records into a data directory: all of them, or none.

use std::collections::HashMap;
use std::mem;
use std::path::Path;

use stillpoint_format::{KEY_BYTES_MAX, Label, VALUE_BYTES_MAX, names};
use stillpoint_store::{TableId, TxError};

use super::kinds;
use crate::builder::EngineBuilder;
use crate::catalog;
use crate::config::Config;
use crate::engine::Engine;
use crate::error::Error;
use crate::session::Session;
use crate::tables::check_name_length;

/// Records of a transaction. A longer transaction would lock more keys without a gain.
const BATCH_RECORDS: usize = 256;
/// Bytes of keys and values that a transaction of several records may hold.
const BATCH_BYTES: usize = 1 << 20;

#[derive(Debug)]
struct Record {
    table: TableId,
    key: Vec<u8>,
    label: Label,
    value: Vec<u8>,
}

/// A loader of records into a data directory, new or existing.
///
/// Records are in memory only, until [`finish`](Self::finish) writes a checkpoint of them all.
/// After a drop without `finish`, or after a crash, nothing is loaded. Only the names of tables are
/// durable at once.
///
/// ```
/// # let directory = tempfile::tempdir()?;
/// use stillpoint::{Config, Engine, offline::Loader};
///
/// let config = Config::new(directory.path());
/// let mut loader = Loader::open(config.clone(), false)?;
/// loader.put("pets", b"rex".to_vec(), 0, b"dog".to_vec())?;
/// assert_eq!(loader.finish()?, 1);
/// let engine = Engine::open(config)?;
/// assert_eq!(engine.len(engine.table("pets")?), 1);
/// # engine.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Loader {
    // Declared before the engine, so that the session is dropped first.
    session: Session,
    engine: Engine,
    tables: HashMap<String, TableId>,
    batch: Vec<Record>,
    batch_bytes: usize,
    records: u64,
}

impl Loader {
    /// Opens the data directory of `config`, or makes it. The settings of journal and checkpoint
    /// are ignored. Unless `adds` is true, the directory must hold no record. With `adds`, new
    /// records are added, and replace existing ones with the same key. The serial of a named
    /// session is such a record: after the load the session goes on from the loaded serial.
    ///
    /// # Errors
    /// [`Error::HoldsRecords`] if `adds` is false and there are records. [`Error::OtherKinds`] if the
    /// store has paged tables or SIREN tables, which need a log. Otherwise as [`Engine::open`].
    pub fn open(config: Config, adds: bool) -> Result<Self, Error> {
        Engine::builder(config).loader(adds)
    }

    /// As [`open`](Self::open), with the settings and procedures of a builder.
    pub(crate) fn over(builder: EngineBuilder<'_>, adds: bool) -> Result<Self, Error> {
        let dir = builder.config().data.clone();
        let disk = builder.config().disk()?;
        if disk.exists(Path::new(names::MANIFEST))?
            && let Some(manifest) = catalog::read(&*disk)?
        {
            let reason = "a load makes its records durable by a checkpoint in place of the log, while \
                 such tables need the log: let a program write the records";
            kinds::refuse(&dir, &manifest, reason)?;
        }
        let builder = builder.with_config(|config| Config {
            // A store with the default settings goes on from the checkpoint at the end.
            checkpoint: crate::CHECKPOINT_SCHEME_DEFAULT.to_owned(),
            checkpoint_every: None,
            checkpoint_pace: None,
            log_limit_bytes: u64::MAX,
            // The checkpoint at the end is what makes the load durable, all at once.
            journal: "none".to_owned(),
            ..config
        });
        let engine = builder.open()?;
        let records: u64 = engine.all_tables().iter().map(|(_, table)| engine.len(*table)).sum();
        if records > 0 && !adds {
            return Err(Error::HoldsRecords { dir, records });
        }
        Ok(Self {
            session: engine.session()?,
            engine,
            tables: HashMap::new(),
            batch: Vec::new(),
            batch_bytes: 0,
            records: 0,
        })
    }

    /// Makes missing tables.
    ///
    /// # Errors
    /// As [`Engine::tables_named`].
    pub fn make_tables(&mut self, names: &[&str]) -> Result<(), Error> {
        // A dump has the engine's own tables, too.
        names.iter().try_for_each(|name| check_name_length(name))?;
        let ids = self.engine.find_or_make_tables(names)?;
        self.tables.extend(names.iter().map(|&name| name.to_owned()).zip(ids));
        Ok(())
    }

    /// Puts a record with its label, a tag or a tag and a deadline, into a table. Makes the table if it is
    /// missing.
    ///
    /// # Errors
    /// The table's name, the key or the value cannot be used, or memory does not suffice. The
    /// transaction may be that of an earlier record: up to 256 records share a transaction.
    pub fn put(
        &mut self,
        table: &str,
        key: Vec<u8>,
        label: impl Into<Label>,
        value: Vec<u8>,
    ) -> Result<(), Error> {
        // A record that can never be put is refused at once, before others share its transaction.
        if key.len() > KEY_BYTES_MAX {
            return Err(TxError::KeyTooLong { len: key.len() }.into());
        }
        if value.len() > VALUE_BYTES_MAX {
            return Err(TxError::ValueTooLong { len: value.len() }.into());
        }
        if !self.tables.contains_key(table) {
            self.make_tables(&[table])?;
        }
        let table = self.tables[table];
        let bytes = key.len() + value.len();
        if self.batch.len() == BATCH_RECORDS || self.batch_bytes + bytes > BATCH_BYTES {
            self.commit()?;
        }
        self.batch_bytes += bytes;
        self.batch.push(Record { table, key, label: label.into(), value });
        Ok(())
    }

    /// Makes all records durable and closes the data directory. Returns the number of records.
    ///
    /// # Errors
    /// Memory or the disk does not suffice. Then nothing was loaded.
    pub fn finish(mut self) -> Result<u64, Error> {
        self.commit()?;
        let Self { session, engine, records, .. } = self;
        drop(session);
        engine.close()?;
        Ok(records)
    }

    fn commit(&mut self) -> Result<(), Error> {
        let batch = mem::take(&mut self.batch);
        self.batch_bytes = 0;
        if batch.is_empty() {
            return Ok(());
        }
        self.session.transact(|tx| {
            for record in &batch {
                tx.put_labelled(record.table, &record.key, record.label, &record.value)?;
            }
            Ok(())
        })?;
        self.records += batch.len() as u64;
        Ok(())
    }
}
