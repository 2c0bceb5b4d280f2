//! Transactions: statements with savepoints, strict two-phase locks in the proxies, and the operations
//! of §2.2 under them. A transaction may stay open for minutes and across checkpoints.
//!
//! 1. An operation reads the level, logs its record and changes the pages inside of one read section. So
//!    do a commit, an abort and a rollback, each as a whole.
//! 2. A transaction waits for the lock of a younger one, and never of an older one (wait-die), so no
//!    cycle of waits closes. A wait ends at the lock timeout, since the holder may wait for a person.
//! 3. A strict commit holds its locks until its record is flushed. So nobody reads what a crash takes
//!    away.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;

use stillpoint_format::siren::LogRecord;
use stillpoint_format::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use stillpoint_sync::Backoff;
use stillpoint_sync::atomic::Ordering::SeqCst;
use stillpoint_sync::lock_word::{self, Contended, Priority};

use crate::config::Removes;
use crate::error::{SirenError, SirenResult};
use crate::proxy::{Proxy, Value};
use crate::store::{Store, TableId};
use crate::table::{Author, Table};

/// The place of one thread in a store. A session may have several open transactions, of which the
/// thread runs one operation at a time.
#[derive(Debug)]
pub struct Session<'s> {
    store: &'s Store,
    slot: usize,
    /// Two threads must not be in one read section.
    of_one_thread: PhantomData<Cell<()>>,
}

impl<'s> Session<'s> {
    pub(crate) fn new(store: &'s Store, slot: usize) -> Self {
        Self { store, slot, of_one_thread: PhantomData }
    }

    /// Begins a transaction, with its first statement.
    pub fn begin(&self) -> Transaction<'_> {
        let store = self.store;
        let number = store.next_transaction.fetch_add(1, SeqCst);
        Transaction {
            store,
            session: self,
            number,
            priority: Priority::undeclared(number),
            begin_ns: store.base.config.clock.monotonic_ns(),
            statement: 1,
            locks: Vec::new(),
            by_proxy: BTreeMap::new(),
            written_bytes: 0,
            state: State::Active,
            has_logged: false,
        }
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.store.base.sections.unclaim(self.slot);
    }
}

/// The begin of a statement, to which a transaction can be rolled back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint {
    transaction: u64,
    statement: u32,
}

/// A committed transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Number of the transaction.
    pub transaction: u64,
    /// A checkpoint of this level or a higher one holds the commit.
    pub level: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Active,
    /// Can only be aborted.
    Failed,
    Ended,
}

#[derive(Debug)]
struct LockedKey {
    table: Arc<Table>,
    proxy: Arc<Proxy>,
    is_exclusive: bool,
    is_written: bool,
}

/// An open transaction. Dropped before it is committed, it is aborted.
#[derive(Debug)]
pub struct Transaction<'t> {
    store: &'t Store,
    session: &'t Session<'t>,
    number: u64,
    priority: Priority,
    begin_ns: u64,
    statement: u32,
    locks: Vec<LockedKey>,
    /// Index in `locks`, by the address of the proxy.
    by_proxy: BTreeMap<usize, usize>,
    written_bytes: usize,
    state: State,
    has_logged: bool,
}

impl Transaction<'_> {
    /// Number of the transaction, unique in the store.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Begins a statement. The transaction can be rolled back to this point.
    pub fn savepoint(&mut self) -> Savepoint {
        self.statement += 1;
        Savepoint { transaction: self.number, statement: self.statement }
    }

    /// The value of a key, as of the last commit or of this transaction's last statement. Locks the
    /// key, a missing one too.
    ///
    /// # Errors
    /// A lock that another holds; limits; the transaction has failed.
    pub fn get(&mut self, table: TableId, key: &[u8]) -> SirenResult<Value> {
        self.check()?;
        let at = self.lock(table, key, false)?;
        let locked = &self.locks[at];
        Ok(locked.proxy.value(locked.is_written))
    }

    /// Gives a key a value.
    ///
    /// # Errors
    /// As [`get`](Self::get); a key or a value that is too long; the log.
    pub fn put(&mut self, table: TableId, key: &[u8], value: &[u8]) -> SirenResult<()> {
        if value.len() > VALUE_BYTES_MAX {
            return Err(SirenError::ValueTooLong { bytes: value.len() });
        }
        self.write(table, key, Some(value)).map(drop)
    }

    /// Removes a key. Returns whether it had a value.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn delete(&mut self, table: TableId, key: &[u8]) -> SirenResult<bool> {
        self.write(table, key, None)
    }

    fn write(&mut self, table: TableId, key: &[u8], value: Option<&[u8]>) -> SirenResult<bool> {
        self.check()?;
        let more = key.len() + value.map_or(0, <[u8]>::len);
        let (bytes, limit) =
            (self.written_bytes + more, self.store.base.config.transaction_bytes_max);
        if bytes > limit {
            return Err(SirenError::TooLarge { bytes, limit });
        }
        self.store.base.slow_down();
        let at = self.lock(table, key, true)?;
        let locked = &self.locks[at];
        let before = locked.proxy.value(locked.is_written);
        let had_value = before.is_some();
        if value.is_none() && !had_value {
            return Ok(false);
        }
        let value_owned: Value = value.map(Arc::from);
        let (statement, table) = (self.statement, locked.table.id);
        let record = match value {
            after if self.store.base.config.removes == Removes::AtOnce => {
                LogRecord::Change { statement, table, key, before: before.as_deref(), after }
            }
            Some(value) => LogRecord::Put { statement, table, key, value },
            None => LogRecord::Delete { statement, table, key },
        };
        let author = Author { transaction: self.number, statement };
        self.store.base.operate(self.session.slot, |level| {
            self.store.log.append(level, self.number, &record)?;
            locked.table.write(level, &locked.proxy, value_owned, author);
            Ok::<(), SirenError>(())
        })?;
        self.locks[at].is_written = true;
        (self.has_logged, self.written_bytes) = (true, bytes);
        self.store.log.write_much()?;
        Ok(had_value)
    }

    /// Takes back what was written since the savepoint. The locks stay.
    ///
    /// # Errors
    /// The savepoint is none of this transaction; the log, and then the transaction has failed.
    pub fn roll_back_to(&mut self, savepoint: Savepoint) -> SirenResult<()> {
        self.check()?;
        let Savepoint { transaction, statement } = savepoint;
        if transaction != self.number || statement > self.statement {
            return Err(SirenError::NoSavepoint);
        }
        if self.has_logged {
            let record = LogRecord::Rollback { statement };
            let rolled_back: SirenResult<()> =
                self.store.base.operate(self.session.slot, |level| {
                    self.store.log.append(level, self.number, &record)?;
                    let written = self.locks.iter().filter(|locked| locked.is_written);
                    written.for_each(|it| it.table.roll_back(level, &it.proxy, statement));
                    Ok(())
                });
            if rolled_back.is_err() {
                self.state = State::Failed;
            }
            rolled_back?;
        }
        // Statements have numbers of their own, also after a rollback.
        self.statement += 1;
        Ok(())
    }

    /// Commits. With [`Logging::Strict`](crate::Logging::Strict) the commit survives any crash once this returns.
    ///
    /// # Errors
    /// The log. If its flush fails, nobody knows whether the commit is durable.
    pub fn commit(mut self) -> SirenResult<Committed> {
        if self.state == State::Failed {
            return Err(SirenError::Failed);
        }
        let has_logged = self.has_logged;
        let committed = self.store.base.operate(self.session.slot, |level| {
            if has_logged {
                self.store.log.append(level, self.number, &LogRecord::Commit)?;
            }
            let written = self.locks.iter().filter(|locked| locked.is_written);
            written.for_each(|it| it.table.commit(level, &it.proxy, None));
            Ok::<u64, SirenError>(level)
        });
        let level = committed?;
        // A reader's answer rests on all commits before it.
        let position = self.store.log.end();
        let settled = self.store.log.settle(position);
        self.release();
        settled.map(|()| Committed { transaction: self.number, level })
    }

    /// Aborts: takes back everything that the transaction has written.
    pub fn abort(mut self) {
        self.end_by_abort();
    }

    fn end_by_abort(&mut self) {
        if self.state == State::Ended {
            return;
        }
        self.store.base.operate(self.session.slot, |level| {
            if self.has_logged {
                // Without this record the next opening aborts the transaction as well.
                let _ = self.store.log.append(level, self.number, &LogRecord::Abort);
            }
            let written = self.locks.iter().filter(|locked| locked.is_written);
            written.for_each(|it| it.table.roll_back(level, &it.proxy, 0));
        });
        self.release();
    }

    /// Whether the transaction may go on.
    fn check(&self) -> SirenResult<()> {
        if self.state == State::Failed {
            return Err(SirenError::Failed);
        }
        let age_ns = self.store.base.config.clock.monotonic_ns() - self.begin_ns;
        let limit = self.store.base.config.transaction_age_max;
        if u128::from(age_ns) > limit.as_nanos() {
            let (age_ms, limit_ms) = (age_ns / 1_000_000, limit.as_millis() as u64);
            return Err(SirenError::TooOld { age_ms, limit_ms });
        }
        Ok(())
    }

    /// Locks a key; its index in `locks`.
    fn lock(&mut self, table: TableId, key: &[u8], is_exclusive: bool) -> SirenResult<usize> {
        if key.len() > KEY_BYTES_MAX {
            return Err(SirenError::KeyTooLong { bytes: key.len() });
        }
        let Some(table) = self.store.table_of(table) else {
            return Err(SirenError::NoSuchTable { table: table.0 });
        };
        loop {
            let proxy = table.index.find_or_insert(key);
            let address = Arc::as_ptr(&proxy).addr();
            if let Some(&at) = self.by_proxy.get(&address) {
                if is_exclusive && !self.locks[at].is_exclusive {
                    self.wait_for(&table, || lock_word::try_upgrade(&proxy.lock, self.priority))?;
                    self.locks[at].is_exclusive = true;
                }
                return Ok(at);
            }
            let priority = self.priority;
            match is_exclusive {
                true => self
                    .wait_for(&table, || {
                        lock_word::try_exclusive(&proxy.lock, priority)
                            .inspect_err(|_| lock_word::await_sharers(&proxy.lock, priority))
                    })
                    // Others may share the lock again. Who waits on notes it anew.
                    .inspect_err(|_| lock_word::await_no_longer(&proxy.lock))?,
                false => self.wait_for(&table, || lock_word::try_shared(&proxy.lock, priority))?,
            }
            if proxy.is_dead() {
                release(&proxy, is_exclusive);
                continue;
            }
            self.by_proxy.insert(address, self.locks.len());
            let table = table.clone();
            self.locks.push(LockedKey { table, proxy, is_exclusive, is_written: false });
            return Ok(self.locks.len() - 1);
        }
    }

    /// Tries to lock until it works, an older transaction holds the lock, or the time is over.
    fn wait_for(
        &self,
        table: &Table,
        mut attempt: impl FnMut() -> Result<(), Contended>,
    ) -> SirenResult<()> {
        let clock = &self.store.base.config.clock;
        let mut begin_ns = None;
        let mut backoff = Backoff::new();
        loop {
            let Err(Contended(by)) = attempt() else {
                return Ok(());
            };
            if !self.priority.may_wait_for(by) {
                return Err(SirenError::Conflict { table: table.id });
            }
            let now_ns = clock.monotonic_ns();
            let waited_ns = now_ns - *begin_ns.get_or_insert(now_ns);
            if u128::from(waited_ns) >= self.store.base.config.lock_timeout.as_nanos() {
                let waited_ms = waited_ns / 1_000_000;
                return Err(SirenError::LockTimeout { table: table.id, waited_ms });
            }
            self.store.base.pause(&mut backoff);
        }
    }

    /// Gives all locks back, and forgets keys without versions.
    fn release(&mut self) {
        self.state = State::Ended;
        for locked in self.locks.drain(..) {
            let LockedKey { table, proxy, is_exclusive, .. } = locked;
            let is_empty = proxy.versions.lock().is_empty();
            let is_alone = is_empty
                && (is_exclusive || lock_word::try_upgrade(&proxy.lock, self.priority).is_ok());
            if is_alone {
                table.index.forget(&proxy);
            }
            release(&proxy, is_exclusive || is_alone);
        }
        self.by_proxy.clear();
    }
}

fn release(proxy: &Proxy, is_exclusive: bool) {
    match is_exclusive {
        true => lock_word::release_exclusive(&proxy.lock),
        false => lock_word::release_shared(&proxy.lock),
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        self.end_by_abort();
    }
}
