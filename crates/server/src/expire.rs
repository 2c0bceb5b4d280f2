//! Deletion of expired keys: those that commands met, and those that a background
//! walk finds. Each deletion is a logged transaction like any other, and looks at
//! the key again under its lock.

use std::sync::Arc;

use stillpoint::{Batch, KeySet, Mode, Session, Slot, Stamp, Tx, TxError};

use crate::config::{DATABASES, Db};
use crate::databases::Databases;
use crate::shared::Shared;
use crate::stats::WorkerStats;
use crate::value::Entry;

/// Records looked at in one step.
const STEP: usize = 256;
/// Share of its time that an event loop gives to the walk: 1 ms of every 100, or 25
/// when many of the records seen had expired (Redis gives up to a quarter too).
const BUDGET_NS: u64 = 1_000_000;
const BUSY_BUDGET_NS: u64 = 25_000_000;

/// Deletes keys if they have expired.
struct Deletions<'a> {
    keys: &'a [(Db, Box<[u8]>)],
    now_ms: u64,
    databases: &'a Databases,
    stats: &'a WorkerStats,
}

impl Batch for Deletions<'_> {
    fn len(&self) -> usize {
        self.keys.len()
    }

    fn declare(&mut self, i: usize, keys: &mut KeySet) {
        let (db, key) = &self.keys[i];
        keys.push(self.databases.table(*db), key, Mode::Write, 0);
    }

    fn run(&mut self, _: usize, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let expired = tx.value(Slot(0)).is_some_and(|v| Entry::new(v).is_expired(self.now_ms));
        if expired {
            tx.delete_slot(Slot(0))?;
        }
        Ok(())
    }

    fn ended(&mut self, i: usize, result: Result<Option<Stamp>, TxError>) {
        // A refused deletion is tried again when the key is met again.
        if let Ok(Some(_)) = result {
            self.stats.expired.add(1);
            self.stats.expiring_changed(self.keys[i].0, -1);
        }
    }
}

/// Deletes those of `keys` that have expired by `now_ms`; empties the list.
pub(crate) fn delete_expired(
    session: &mut Session,
    keys: &mut Vec<(Db, Box<[u8]>)>,
    now_ms: u64,
    databases: &Databases,
    stats: &WorkerStats,
) {
    if !keys.is_empty() {
        session.execute(&mut Deletions { keys, now_ms, databases, stats });
        keys.clear();
    }
}

/// The walk through one table.
#[derive(Debug, Default, Clone, Copy)]
struct ExpiryScan {
    cursor: u64,
    /// Keys with an expiry met so far.
    met: u64,
    /// What [`Shared::expiring_set`] was when this walk began.
    set_at_start: u64,
    /// The last whole walk met none, and none was set since it began: nothing to find.
    idle_at: Option<u64>,
}

/// The background walk of one event loop, through every n-th table.
#[derive(Debug)]
pub(crate) struct Cycle {
    worker: usize,
    walks: [ExpiryScan; DATABASES as usize],
    next: usize,
    found: Vec<(Db, Box<[u8]>)>,
}

impl Cycle {
    pub(crate) fn new(worker: usize) -> Self {
        Self { worker, walks: Default::default(), next: 0, found: Vec::new() }
    }

    /// Walks on until the time is spent; true if anything was deleted.
    pub(crate) fn run(&mut self, session: &mut Session, shared: &Arc<Shared>, now_ms: u64) -> bool {
        let clock = &shared.config.clock;
        let start_ns = clock.monotonic_ns();
        let (mut seen, mut expired, mut idle) = (0, 0, 0);
        while idle < usize::from(DATABASES) {
            let table = self.next;
            let mine = table % shared.config.threads == self.worker;
            if mine && let Some(step) = self.step(table as Db, session, shared, now_ms) {
                seen += step.0;
                expired += step.1;
                idle = 0;
                if self.walks[table].cursor == 0 {
                    self.next = (table + 1) % usize::from(DATABASES);
                }
            } else {
                idle += 1;
                self.next = (table + 1) % usize::from(DATABASES);
            }
            let budget = if expired * 10 > seen { BUSY_BUDGET_NS } else { BUDGET_NS };
            if clock.monotonic_ns() - start_ns >= budget {
                break;
            }
            // One whole round of small tables is enough for now.
            if self.next == 0 && expired * 10 <= seen {
                break;
            }
        }
        expired > 0
    }

    /// Looks at some records of a table and deletes the expired ones: (seen, expired).
    /// `None`: there is nothing to look for.
    fn step(
        &mut self,
        table: Db,
        session: &mut Session,
        shared: &Shared,
        now_ms: u64,
    ) -> Option<(usize, usize)> {
        let walk = &mut self.walks[usize::from(table)];
        let set_so_far = shared.expiring_set(table);
        if walk.idle_at == Some(set_so_far) {
            return None;
        }
        if walk.cursor == 0 {
            *walk = ExpiryScan { set_at_start: set_so_far, ..ExpiryScan::default() };
        }
        let (mut seen, mut met) = (0, 0);
        let found = &mut self.found;
        let id = shared.databases.table(table);
        let next = session.scan(id, walk.cursor, STEP, &mut |key, value| {
            seen += 1;
            let entry = Entry::new(value);
            met += u64::from(entry.expire_at_ms.is_some());
            if entry.is_expired(now_ms) {
                found.push((table, key.into()));
            }
        });
        // An error is the table's absence, which ends the walk.
        walk.cursor = next.unwrap_or(0);
        walk.met += met;
        let expired = found.len();
        walk.met -= expired as u64;
        let stats = &shared.workers[self.worker];
        delete_expired(session, found, now_ms, &shared.databases, stats);
        if walk.cursor == 0 {
            shared.expiring_restart(table, walk.met);
            let none = walk.met == 0 && walk.set_at_start == shared.expiring_set(table);
            walk.idle_at = none.then_some(walk.set_at_start);
        }
        Some((seen, expired))
    }
}
