//! The databases of the protocol, as tables of the engine.

use std::sync::Arc;

use stillpoint::{Engine, TableId};

use crate::config::{DATABASES, Db};
use crate::error::ServerError;

/// The engine and the tables of its databases.
#[derive(Debug)]
pub(crate) struct Databases {
    pub(crate) engine: Arc<Engine>,
    tables: [TableId; DATABASES as usize],
}

impl Databases {
    /// Finds the tables, and makes those that are missing. Database `n` is table `dbn`.
    pub(crate) fn open(engine: Arc<Engine>) -> Result<Self, ServerError> {
        let mut tables = [TableId(0); DATABASES as usize];
        for (db, table) in tables.iter_mut().enumerate() {
            *table = engine.table(&format!("db{db}")).map_err(ServerError::engine)?;
        }
        Ok(Self { engine, tables })
    }

    /// The table of a database.
    #[inline]
    pub(crate) fn table(&self, db: Db) -> TableId {
        self.tables[usize::from(db)]
    }

    /// Keys of a database, expired ones included that are not yet deleted.
    pub(crate) fn len(&self, db: Db) -> u64 {
        self.engine.len(self.table(db))
    }
}
