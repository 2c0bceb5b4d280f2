//! The builder of an engine: settings, procedures, kinds of tables, a listener of progress, and
//! cancellation.

use std::sync::Arc;

use stillpoint_format::manifest::{TableEntry, TableKind as KindName};
use stillpoint_io::Cancel;
use stillpoint_recovery::Progress;
use stillpoint_store::TableId;
use stillpoint_txn::TableKind;

use crate::config::Config;
use crate::engine::Engine;
use crate::error::Error;
use crate::kinds::check_name;
use crate::offline;
use crate::procedure::{ErasedProcedure, Procedures, StoredProcedure};
use crate::tables;

/// A function that makes a procedure once its tables are known.
type MakeProcedure<'a> =
    Box<dyn FnOnce(&mut Tables<'_>) -> Result<Arc<dyn ErasedProcedure>, Error> + 'a>;

/// A builder that opens an engine. [`Engine::builder`] makes one.
///
/// ```
/// # let directory = tempfile::tempdir()?;
/// use stillpoint::{Config, Engine, KeySet, Mode, Slot, StoredProcedure, TableId, Tx, TxError};
///
/// struct Count {
///     counters: TableId,
/// }
///
/// impl StoredProcedure for Count {
///     type Input = String;
///     type Output = u64;
///
///     fn declare(&self, name: &String, keys: &mut KeySet) {
///         keys.push(self.counters, name.as_bytes(), Mode::Write, 8);
///     }
///
///     fn run(&self, _: &String, tx: &mut Tx<'_>) -> Result<u64, TxError> {
///         let count = 1 + tx.value(Slot(0)).and_then(|value| value.u64_at(0)).unwrap_or(0);
///         tx.put_slot(Slot(0), &count.to_le_bytes())?;
///         Ok(count)
///     }
/// }
///
/// let engine = Engine::builder(Config::new(directory.path()))
///     .procedure("count", |tables| Ok(Count { counters: tables.table("counters")? }))
///     .open()?;
/// let mut session = engine.session()?;
/// let first: u64 = session.call("count", &"visits".to_owned())?;
/// let second: u64 = session.call("count", &"visits".to_owned())?;
/// assert_eq!((first, second), (1, 2));
/// # drop(session);
/// # engine.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a builder does nothing before it is opened"]
pub struct EngineBuilder<'a> {
    config: Config,
    pub(crate) cancel: Cancel,
    progress: Box<dyn FnMut(&Progress) + Send + 'a>,
    procedures: Vec<(String, MakeProcedure<'a>)>,
    kinds: Vec<Arc<dyn TableKind>>,
}

impl std::fmt::Debug for EngineBuilder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.procedures.iter().map(|(name, _)| name).collect();
        f.debug_struct("EngineBuilder")
            .field("data", &self.config.data)
            .field("procedures", &names)
            .finish_non_exhaustive()
    }
}

impl<'a> EngineBuilder<'a> {
    pub(crate) fn new(config: Config) -> Self {
        Self {
            config,
            cancel: Cancel::default(),
            progress: Box::new(|_| {}),
            procedures: Vec::new(),
            kinds: Vec::new(),
        }
    }

    /// Registers a procedure under a name of 1 to 255 bytes, for
    /// [`Session::call`](crate::Session::call). Several versions may have one name: the greatest is
    /// called, and the others serve the calls in a log.
    ///
    /// `make` gets the store's [`Tables`] and returns the procedure. The engine calls `make` while
    /// it opens the store, after the MANIFEST was read and before any log is replayed.
    pub fn procedure<P: StoredProcedure>(
        mut self,
        name: &str,
        make: impl FnOnce(&mut Tables<'_>) -> Result<P, Error> + 'a,
    ) -> Self {
        let make: MakeProcedure<'a> = Box::new(|tables| Ok(Arc::new(make(tables)?)));
        self.procedures.push((name.to_owned(), make));
        self
    }

    /// Adds a kind of table in addition to the memory store. [`Engine::table_of_kind`] makes its
    /// tables. A transaction may touch tables of several kinds.
    ///
    /// A kind logs its operations, so the journal must keep what is appended. The kind's tables are
    /// not in the files of checkpoints: the kind has files of its own, which the same MANIFEST
    /// names. A kind that writes none needs all of the logs.
    pub fn table_kind(mut self, kind: Arc<dyn TableKind>) -> Self {
        self.kinds.push(kind);
        self
    }

    /// Lets another thread cancel the opening through a clone of `cancel`.
    pub fn cancel(mut self, cancel: &Cancel) -> Self {
        self.cancel = cancel.clone();
        self
    }

    /// Reports the progress of recovery to `progress` from time to time.
    pub fn progress(mut self, progress: impl FnMut(&Progress) + Send + 'a) -> Self {
        self.progress = Box::new(progress);
        self
    }

    /// Opens the store, or makes one in an empty directory, and recovers the last run's state.
    ///
    /// # Errors
    /// As [`Engine::open`]. [`Error::Config`] if two procedures have the same name and version, or two
    /// kinds of tables the same name. The same if a kind does not fit the settings. The error that a
    /// procedure's `make` returned. [`Error::Cancelled`] soon after the opening was cancelled, up to the moment at
    /// which the new incarnation is made durable.
    pub fn open(self) -> Result<Engine, Error> {
        Engine::open_built(self)
    }

    /// As [`offline::check`], on the disk of the settings. All other settings count for nothing.
    ///
    /// # Errors
    /// As [`offline::check`].
    pub fn check(self) -> Result<offline::Checked, Error> {
        offline::check_with(&self.config)
    }

    /// As [`offline::dump`], of a store whose log may hold calls of the builder's procedures. The
    /// settings count for nothing but the data directory and the disk.
    ///
    /// # Errors
    /// As [`offline::dump`]. [`Error::Recovery`] if the log holds calls of other procedures.
    pub fn dump(
        self,
        table: Option<&str>,
        visit: &mut offline::DumpVisit<'_>,
    ) -> Result<offline::Dumped, Error> {
        let Parts { config, procedures, .. } = self.into_parts();
        offline::dump_with(&config, table, procedures, visit)
    }

    /// As [`offline::Loader::open`], for a store whose log may hold calls of the builder's procedures.
    ///
    /// # Errors
    /// As [`offline::Loader::open`].
    pub fn loader(self, adds: bool) -> Result<offline::Loader, Error> {
        offline::Loader::over(self, adds)
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn with_config(self, change: impl FnOnce(Config) -> Config) -> Self {
        Self { config: change(self.config), ..self }
    }

    /// The parts that opening uses one after the other.
    pub(crate) fn into_parts(self) -> Parts<'a> {
        let Self { config, cancel, progress, procedures, kinds } = self;
        Parts { config, cancel, progress, procedures: PendingProcedures(procedures), kinds }
    }
}

/// A builder, taken apart.
pub(crate) struct Parts<'a> {
    pub(crate) config: Config,
    pub(crate) cancel: Cancel,
    pub(crate) progress: Box<dyn FnMut(&Progress) + Send + 'a>,
    pub(crate) procedures: PendingProcedures<'a>,
    pub(crate) kinds: Vec<Arc<dyn TableKind>>,
}

/// Procedures that wait for their tables.
pub(crate) struct PendingProcedures<'a>(Vec<(String, MakeProcedure<'a>)>);

impl PendingProcedures<'_> {
    /// Makes the procedures. Adds tables that procedures ask for and that are missing to `entries`.
    /// These tables are of `kind`.
    pub(crate) fn make(
        self,
        entries: &mut Vec<TableEntry>,
        kind: &KindName,
    ) -> Result<Procedures, Error> {
        let mut made = Procedures::default();
        for (name, make) in self.0 {
            check_name("procedure", &name)?;
            let procedure = make(&mut Tables { entries, kind })?;
            if !made.add(name.clone(), procedure) {
                let reason = format!(
                    "{name:?} is given twice: procedures differ in their names or versions"
                );
                return Err(Error::Config { setting: "procedure", reason });
            }
        }
        Ok(made)
    }
}

/// The tables of a store that is being opened.
#[derive(Debug)]
pub struct Tables<'a> {
    entries: &'a mut Vec<TableEntry>,
    /// The kind of tables that are made.
    kind: &'a KindName,
}

impl Tables<'_> {
    /// The table of that name. If there is none, the opening makes one, which exists once the
    /// opening succeeds. Names are 1 to 255 bytes.
    ///
    /// # Errors
    /// [`Error::TableName`] if the name cannot be used.
    pub fn table(&mut self, name: &str) -> Result<TableId, Error> {
        tables::check_table_name(name)?;
        Ok(tables::find_or_add(self.entries, &[name], self.kind)?[0])
    }
}
