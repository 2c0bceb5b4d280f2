//! Undeclared transactions: run, and run again after a conflict, so that each ends.
//!
//! ```text
//! wait-die ──▶ conflicts ──▶ keys of the runs so far locked in order ──▶ permit of the store
//!    8 runs                     8 runs                                      1 run
//! ```
//! 1. *Wait-die* alone starves behind declared transactions: an undeclared one never waits for
//!    them, and its age means nothing to them.
//! 2. So its next runs lock what the earlier ones have met as declared transactions do, before they
//!    begin: in the order of cells, waiting for anybody. A further key is taken if it is free, and
//!    is never waited for. So no cycle of waits can close.
//! 3. A transaction whose keys differ from run to run may meet a busy one each time. It takes the
//!    permit: nobody begins, declared transactions that would have to wait give their locks back
//!    first, and undeclared ones never wait for it. So everybody whom it waits for ends.

use stillpoint_format::Stamp;
use stillpoint_format::hash::KeyHasher;
use stillpoint_sync::Backoff;
use stillpoint_sync::atomic::Ordering::Relaxed;
use stillpoint_sync::lock_word::Priority;

use crate::error::TxError;
use crate::table::TableId;
use crate::txn::keys::{KeySet, Mode};
use crate::txn::locking::Discipline;
use crate::txn::lookup::Lookup;
use crate::txn::tx::Tx;
use crate::worker::Worker;

/// Runs under wait-die. Models are small, and come to the next stages soon.
const RUNS_WAIT_DIE: u32 = if cfg!(shuttle) { 1 } else { 8 };
/// Runs with the keys of the earlier runs locked first.
const RUNS_REMEMBERED: u32 = if cfg!(shuttle) { 1 } else { 8 };

/// Most runs of the body of an undeclared transaction, unless tables are flushed meanwhile.
pub const RUNS_MAX: u32 = RUNS_WAIT_DIE + RUNS_REMEMBERED + 1;

/// What an undeclared transaction gives, with its stamp, or why it did not commit.
type Ended<R> = Result<(R, Option<Stamp>), TxError>;

/// The keys that the runs of one transaction have met.
#[derive(Debug)]
pub(crate) struct Remembered {
    keys: KeySet,
    slots: Lookup,
}

impl Remembered {
    pub(crate) fn new(hasher: KeyHasher) -> Self {
        Self { keys: KeySet::new(hasher), slots: Lookup::default() }
    }

    /// Adds a key, or makes the mode of a known one the stronger.
    pub(crate) fn add(&mut self, table: TableId, key: &[u8], mode: Mode) {
        let Self { keys, slots } = self;
        let hash = keys.hash(table, key);
        match slots.find(hash, |slot| keys.keys[slot].table == table && keys.key(slot) == key) {
            Some(slot) => keys.keys[slot].mode = keys.keys[slot].mode.max(mode),
            None => {
                keys.push(table, key, mode, 0);
                slots.cover(Some(hash), |slot| keys.keys[slot].hash);
            }
        }
    }

    fn clear(&mut self) {
        if !self.keys.keys.is_empty() {
            self.keys.clear();
            self.slots.clear();
        }
    }
}

impl Worker {
    pub(crate) fn transact_until_ended<R>(
        &mut self,
        mut body: impl FnMut(&mut Tx<'_>) -> Result<R, TxError>,
    ) -> Ended<R> {
        // Relaxed: only the number counts.
        let age = self.store.ages.fetch_add(1, Relaxed);
        self.remembered.clear();
        let mut backoff = Backoff::new();
        for runs in 0..RUNS_MAX - 1 {
            let ended = if runs < RUNS_WAIT_DIE {
                self.priority = Priority::undeclared(age);
                self.discipline = Discipline::WaitDie;
                self.run_undeclared(&mut body)
            } else {
                self.run_remembered(&mut body)
            };
            match ended {
                Err(TxError::Conflict) => self.remember(),
                ended => return ended,
            }
            if runs + 1 < RUNS_WAIT_DIE {
                backoff.wait();
            }
        }
        self.run_permitted(&mut body)
    }

    /// Adds the keys of the run that has just been rolled back.
    #[cold]
    fn remember(&mut self) {
        for index in 0..self.keys.keys.len() {
            let key = self.keys.keys[index];
            self.remembered.add(key.table, self.keys.key(index), key.mode);
        }
    }

    #[cold]
    fn run_remembered<R>(
        &mut self,
        body: &mut impl FnMut(&mut Tx<'_>) -> Result<R, TxError>,
    ) -> Ended<R> {
        self.priority = Priority::DECLARED;
        self.discipline = Discipline::Remembered;
        self.run_undeclared(body)
    }

    /// Runs while nobody else begins. A conflict then only says that a table was flushed.
    #[cold]
    fn run_permitted<R>(
        &mut self,
        body: &mut impl FnMut(&mut Tx<'_>) -> Result<R, TxError>,
    ) -> Ended<R> {
        let store = self.store.clone();
        let _permit = store.driver().take_permit();
        self.priority = Priority::DECLARED;
        self.discipline = Discipline::Permitted;
        loop {
            match self.run_undeclared(body) {
                Err(TxError::Conflict) => {}
                ended => return ended,
            }
        }
    }

    /// One run.
    fn run_undeclared<R>(
        &mut self,
        body: &mut impl FnMut(&mut Tx<'_>) -> Result<R, TxError>,
    ) -> Ended<R> {
        self.keys.clear();
        self.first_key = 0;
        self.note_phase();
        self.store.catalog().begin_transaction(self.number, self.tables.version);
        let locked = match self.discipline {
            Discipline::Remembered => self.lock_remembered(),
            _ => Ok(()),
        };
        let ran = locked.and_then(|()| body(&mut Tx::new(self)));
        let ended = ran.and_then(|result| {
            self.enter();
            let committed = self.commit();
            self.exit();
            Ok((result, committed?))
        });
        if ended.is_err() {
            self.roll_back();
        }
        self.store.catalog().end_transaction(self.number);
        self.enter();
        self.collect_garbage();
        self.exit();
        ended
    }

    /// Locks the keys that were met so far, like declared ones.
    fn lock_remembered(&mut self) -> Result<(), TxError> {
        let Self { keys, remembered, .. } = self;
        remembered.keys.check(0..remembered.keys.keys.len())?;
        for (index, key) in remembered.keys.keys.iter().enumerate() {
            keys.push(key.table, remembered.keys.key(index), key.mode, 0);
        }
        self.enter_to_begin();
        let locked = self.lock_declared(0..self.keys.keys.len());
        self.exit();
        locked
    }
}
