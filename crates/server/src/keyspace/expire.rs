//! The background deletion of expired keys and of expired fields of hashes.
//!
//! While a server serves and loads, the scans see what is in memory. What needs a record on the disk is
//! deleted later.

use stillpoint::Session;
use stillpoint_io::Clock;

use super::databases::Keyspace;
use super::deletions::Deletions;
use super::elements::earliest_expiry;
use crate::config::{DATABASES, Db};

/// Records that one step looks at.
const STEP: usize = 256;
/// Time that an event loop gives to the scan: 1 ms of every 100.
const BUDGET_NS: u64 = 1_000_000;
/// Time while more than a tenth of the records had expired. Redis, too, gives up to a quarter.
const BUSY_BUDGET_NS: u64 = 25_000_000;

/// The scan of one database.
#[derive(Debug, Default, Clone, Copy)]
struct ExpiryScan {
    cursor: u64,
    /// Keys with an expiry met so far.
    met: u64,
    /// Whether the scan has met a hash whose fields expire.
    met_fields: bool,
    /// Whether every record was in memory when this scan began.
    sees_all: bool,
    /// How many keys and fields had got an expiry, ever, when this scan began.
    set_at_start: u64,
    /// The value of `set_at_start` at the last whole scan, if that scan met no key and no field with
    /// an expiry. Until a further one gets an expiry, no scan is needed.
    idle_at: Option<u64>,
}

/// The background scan of one event loop, through every n-th database.
#[derive(Debug)]
pub(crate) struct ExpiryCycle {
    worker: usize,
    workers: usize,
    scans: [ExpiryScan; DATABASES as usize],
    next: usize,
    found: Vec<(Db, Box<[u8]>)>,
    /// Hashes with further fields to delete.
    left: Vec<(Db, Box<[u8]>)>,
}

impl ExpiryCycle {
    /// The scan of event loop `worker` among `workers`.
    pub(crate) fn new(worker: usize, workers: usize) -> Self {
        Self {
            worker,
            workers,
            scans: Default::default(),
            next: 0,
            found: Vec::new(),
            left: Vec::new(),
        }
    }

    /// Scans until the time is spent; true if it deleted a key.
    pub(crate) fn run(
        &mut self,
        session: &mut Session,
        keyspace: &Keyspace,
        clock: &dyn Clock,
        now_ms: u64,
    ) -> bool {
        let start_ns = clock.monotonic_ns();
        let (mut seen, mut expired, mut idle) = (0, 0, 0);
        while !self.left.is_empty() {
            let left = std::mem::take(&mut self.left);
            expired += self.delete(left, (session, keyspace), now_ms);
            if clock.monotonic_ns() - start_ns >= BUSY_BUDGET_NS {
                return true;
            }
        }
        while idle < usize::from(DATABASES) {
            let db = self.next;
            let is_mine = db % self.workers == self.worker;
            if is_mine && let Some(step) = self.step(db as Db, session, keyspace, now_ms) {
                seen += step.0;
                expired += step.1;
                idle = 0;
                if self.scans[db].cursor == 0 {
                    self.next = (db + 1) % usize::from(DATABASES);
                }
            } else {
                idle += 1;
                self.next = (db + 1) % usize::from(DATABASES);
            }
            let budget_ns = if expired * 10 > seen { BUSY_BUDGET_NS } else { BUDGET_NS };
            if clock.monotonic_ns() - start_ns >= budget_ns {
                break;
            }
            // The cycle has passed all databases, and few keys had expired. Further keys wait for
            // the next cycle.
            if self.next == 0 && expired * 10 <= seen {
                break;
            }
        }
        expired > 0
    }

    /// Looks at some records of a database and deletes the expired ones: (seen, expired).
    /// `None`: the database has nothing to look for.
    fn step(
        &mut self,
        db: Db,
        session: &mut Session,
        keyspace: &Keyspace,
        now_ms: u64,
    ) -> Option<(usize, usize)> {
        let scan = &mut self.scans[usize::from(db)];
        let set_so_far = keyspace.counts.expiring_set(db);
        if scan.idle_at == Some(set_so_far) {
            return None;
        }
        if scan.cursor == 0 {
            let sees_all = keyspace.has_all();
            *scan = ExpiryScan { set_at_start: set_so_far, sees_all, ..ExpiryScan::default() };
        }
        let mut found = std::mem::take(&mut self.found);
        let step = keyspace.scan_loaded(session, db, scan.cursor, STEP, &mut |key, entry| {
            let earliest = earliest_expiry(entry);
            scan.met_fields |= earliest.is_some();
            if entry.is_expired(now_ms) {
                found.push((db, key.into()));
                return;
            }
            scan.met += u64::from(entry.expire_at_ms.is_some());
            if earliest.is_some_and(|at| at <= now_ms) {
                found.push((db, key.into()));
            }
        });
        // The only error is that the table is gone, which ends the scan.
        let (next, records) = step.map_or((0, 0), |step| (step.next, step.records));
        scan.cursor = next;
        let expired = self.delete(found, (session, keyspace), now_ms);
        let scan = &mut self.scans[usize::from(db)];
        if scan.cursor == 0 && scan.sees_all {
            keyspace.counts.restart_expiring(db, scan.met);
            let is_idle = scan.met == 0
                && !scan.met_fields
                && scan.set_at_start == keyspace.counts.expiring_set(db);
            scan.idle_at = is_idle.then_some(scan.set_at_start);
        }
        Some((records, expired))
    }

    /// Deletes keys and fields; remembers the keys with further fields. Gives the number of keys of which
    /// something was deleted.
    fn delete(
        &mut self,
        mut keys: Vec<(Db, Box<[u8]>)>,
        (session, keyspace): (&mut Session, &Keyspace),
        now_ms: u64,
    ) -> usize {
        let counters = keyspace.counts.of(self.worker);
        let (more, done) = Deletions::new((keyspace, counters), &keys, now_ms).execute(session);
        let further = keys.drain(..).zip(more).filter_map(|(key, more)| more.then_some(key));
        self.left.extend(further);
        self.found = keys;
        done
    }
}
