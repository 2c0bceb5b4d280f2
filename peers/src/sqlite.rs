//! SQLite in WAL mode: each session has a connection of its own, and one of them writes at a time.

use std::path::PathBuf;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use stillpoint_lab::peers::{Embedded, EmbeddedSession, Setup};

use crate::{absent, said};

const GET: &str = "SELECT value FROM records WHERE key = ?1";
const PUT: &str = "INSERT INTO records (key, value) VALUES (?1, ?2)";
const CHANGE: &str = "UPDATE records SET value = ?2 WHERE key = ?1";
/// How long a session waits for the writer.
const PATIENCE: Duration = Duration::from_secs(60);

struct Store {
    file: PathBuf,
    synchronous: &'static str,
    cache_kib: u64,
}

pub(crate) fn open(setup: &Setup) -> Result<Box<dyn Embedded>, String> {
    let store = Store {
        file: setup.dir.join("sqlite"),
        synchronous: if setup.is_durable { "FULL" } else { "OFF" },
        cache_kib: (setup.data_bytes * 2 / 1024).max(64 << 10),
    };
    let connection = store.connect()?;
    connection
        .execute_batch("CREATE TABLE records (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")
        .map_err(said)?;
    Ok(Box::new(store))
}

impl Store {
    fn connect(&self) -> Result<Connection, String> {
        let connection = Connection::open(&self.file).map_err(said)?;
        connection.busy_timeout(PATIENCE).map_err(said)?;
        connection.pragma_update(None, "journal_mode", "WAL").map_err(said)?;
        connection.pragma_update(None, "synchronous", self.synchronous).map_err(said)?;
        let cache = -i64::try_from(self.cache_kib).map_err(said)?;
        connection.pragma_update(None, "cache_size", cache).map_err(said)?;
        Ok(connection)
    }
}

impl Embedded for Store {
    fn session(&self) -> Result<Box<dyn EmbeddedSession + '_>, String> {
        Ok(Box::new(Session(self.connect()?)))
    }
}

struct Session(Connection);

impl Session {
    /// A transaction that writes: it waits for the writer before it reads.
    fn begin(&mut self) -> Result<Transaction<'_>, String> {
        self.0.transaction_with_behavior(TransactionBehavior::Immediate).map_err(said)
    }
}

impl EmbeddedSession for Session {
    fn load(&mut self, records: &[([u8; 8], Vec<u8>)]) -> Result<(), String> {
        let transaction = self.begin()?;
        {
            let mut put = transaction.prepare_cached(PUT).map_err(said)?;
            for (key, value) in records {
                put.execute(params![key, value]).map_err(said)?;
            }
        }
        transaction.commit().map_err(said)
    }

    fn update(
        &mut self,
        keys: &[[u8; 8]],
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), String> {
        let transaction = self.begin()?;
        {
            let mut get = transaction.prepare_cached(GET).map_err(said)?;
            let mut put = transaction.prepare_cached(CHANGE).map_err(said)?;
            for key in keys {
                let found = get.query_row([key], |row| row.get::<_, Vec<u8>>(0)).optional();
                let mut value = found.map_err(said)?.ok_or_else(|| absent(*key))?;
                change(&mut value);
                put.execute(params![key, value]).map_err(said)?;
            }
        }
        transaction.commit().map_err(said)
    }

    fn read(&mut self, key: [u8; 8], see: &mut dyn FnMut(&[u8])) -> Result<(), String> {
        let mut get = self.0.prepare_cached(GET).map_err(said)?;
        let found = get.query_row([key], |row| {
            see(row.get_ref(0)?.as_blob()?);
            Ok(())
        });
        found.optional().map_err(said)?.ok_or_else(|| absent(key))
    }
}
