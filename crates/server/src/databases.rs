//! The databases of the protocol, as tables of the engine.

use std::sync::Arc;

use stillpoint::{Engine, TableId};

use crate::config::{DATABASES, Db};
use crate::error::ServerError;

/// Name of a database's table.
fn name_of(db: Db) -> String {
    format!("db{db}")
}

/// True for the name of a database's table.
pub(crate) fn is_database(table: &str) -> bool {
    let db = table.strip_prefix("db").and_then(|number| number.parse::<Db>().ok());
    db.is_some_and(|db| db < DATABASES && name_of(db) == table)
}

/// The engine and the tables of its databases.
#[derive(Debug)]
pub(crate) struct Databases {
    pub(crate) engine: Arc<Engine>,
    tables: [TableId; DATABASES as usize],
}

impl Databases {
    /// Finds the tables, and makes those that are missing. Database `n` is table `dbn`.
    pub(crate) fn open(engine: Arc<Engine>) -> Result<Self, ServerError> {
        let names: Vec<String> = (0..DATABASES).map(name_of).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let ids = engine.tables_named(&names).map_err(ServerError::engine)?;
        let tables = std::array::from_fn(|db| ids[db]);
        Ok(Self { engine, tables })
    }

    /// The table of a database.
    #[inline]
    pub(crate) fn table(&self, db: Db) -> TableId {
        self.tables[usize::from(db)]
    }

    /// Keys of a database, expired ones included that are not yet deleted: a statistic, which
    /// waits for nothing. Answers take `Session::len`.
    pub(crate) fn len(&self, db: Db) -> u64 {
        self.engine.len(self.table(db))
    }
}
