//! Reclaiming: absent cells whose deletion is durable, and what waits for a grace period.
//!
//! An absent cell may be reclaimed once its stamp is closed: a key inserted later then need not
//! depend on the deletion. Its gsn raises the floor of its part of the key space, so that a key
//! inserted again never gets a smaller gsn than its deletion had.

use std::collections::VecDeque;

use stillpoint_format::Stamp;
use stillpoint_sync::GraceToken;
use stillpoint_sync::lock_word::{self, Priority};

use crate::blob::{self, Blob};
use crate::stamp::{ABSENT, DEAD};
use crate::table::TableId;
use crate::worker::Worker;

#[derive(Clone, Copy, Debug)]
struct Absent {
    owner: u32,
    table: TableId,
    cell: u64,
    hash: u64,
}

#[derive(Clone, Copy, Debug)]
enum Garbage {
    Cell { owner: u32, number: u64 },
    Blob(Blob),
}

/// Garbage that waits for one grace period together.
const PER_GRACE: usize = 64;
/// Absent cells looked at per round.
const PER_ROUND: usize = 128;

/// What a worker has to reclaim.
#[derive(Debug, Default)]
pub(crate) struct Reclaim {
    absent: VecDeque<Absent>,
    garbage: Vec<Garbage>,
    waiting: VecDeque<(GraceToken, Vec<Garbage>)>,
}

impl Reclaim {
    pub(crate) fn add(&mut self, owner: u32, table: TableId, cell: u64, hash: u64) {
        self.absent.push_back(Absent {
            owner,
            table,
            cell,
            hash,
        });
    }

    pub(crate) fn retire_cell(&mut self, owner: u32, number: u64) {
        self.garbage.push(Garbage::Cell { owner, number });
    }

    pub(crate) fn retire_blob(&mut self, blob: Blob) {
        self.garbage.push(Garbage::Blob(blob));
    }

    /// Cells of an owner that is gone are freed with it. Its large values too: their blocks belong
    /// to the same owner.
    pub(crate) fn forget_owner(&mut self, owner: u32) {
        self.absent.retain(|absent| absent.owner != owner);
        let keep = |garbage: &Garbage| match *garbage {
            Garbage::Cell { owner: of, .. } => of != owner,
            Garbage::Blob(_) => true,
        };
        self.garbage.retain(keep);
        for (_, batch) in &mut self.waiting {
            batch.retain(keep);
        }
    }
}

impl Worker {
    /// Reclaims what can be reclaimed by now. Inside a window.
    #[inline]
    pub(crate) fn collect_garbage(&mut self) {
        if !self.reclaim.absent.is_empty() {
            self.reclaim_absent();
        }
        if self.reclaim.garbage.len() >= PER_GRACE || !self.reclaim.waiting.is_empty() {
            self.pass_grace();
        }
    }

    #[cold]
    fn reclaim_absent(&mut self) {
        for _ in 0..self.reclaim.absent.len().min(PER_ROUND) {
            let Some(absent) = self.reclaim.absent.pop_front() else {
                return;
            };
            if !self.try_reclaim(absent) {
                self.reclaim.absent.push_back(absent);
            }
        }
    }

    /// True if the cell needs no more attention: reclaimed, or not absent any more.
    fn try_reclaim(&mut self, absent: Absent) -> bool {
        let Some(table) = self
            .tables
            .get(absent.table)
            .filter(|table| table.owner == absent.owner)
        else {
            return true;
        };
        let cell = self.store.cell(absent.cell);
        let word = cell.stamp_word();
        if word & ABSENT == 0 || word & DEAD != 0 {
            return true;
        }
        if !self.log.is_closed(Stamp::from_bits(word)) {
            return false;
        }
        if lock_word::try_exclusive(cell.lock(), Priority::DECLARED).is_err() {
            // Whoever holds the lock looks after the cell when releasing it.
            return true;
        }
        let word = cell.stamp_word();
        let stamp = Stamp::from_bits(word);
        let gone = word & (ABSENT | DEAD) == ABSENT
            && self.log.is_closed(stamp)
            && table.index.remove(self.number, absent.hash, absent.cell);
        if gone {
            table.raise_floor(absent.hash, stamp.gsn());
            cell.kill();
            self.reclaim.retire_cell(absent.owner, absent.cell);
        }
        lock_word::release_exclusive(cell.lock());
        gone || word & (ABSENT | DEAD) != ABSENT
    }

    fn pass_grace(&mut self) {
        let windows = self.store.driver().windows();
        if self.reclaim.garbage.len() >= PER_GRACE {
            let batch = std::mem::take(&mut self.reclaim.garbage);
            // The own window is open and counts: the batch waits until it has been left.
            self.reclaim.waiting.push_back((windows.token(), batch));
        }
        while let Some((token, _)) = self.reclaim.waiting.front_mut() {
            if !self.store.driver().windows().has_passed(token) {
                return;
            }
            let (_, batch) = self.reclaim.waiting.pop_front().expect("seen");
            for garbage in batch {
                self.free_garbage(garbage);
            }
        }
    }

    fn free_garbage(&mut self, garbage: Garbage) {
        match garbage {
            Garbage::Cell { number, .. } => {
                let arena = &self.store.memory().arena;
                if let Some(block) = self.store.cell(number).long_key_block() {
                    self.cache.free(arena, block);
                }
                self.cache.free(arena, number);
            }
            Garbage::Blob(blob) => blob::release(self.store.memory(), &mut self.cache, blob),
        }
    }

    /// Frees all garbage; absent cells that are not durably gone are left to whoever touches them
    /// next.
    pub(crate) fn finish_reclaiming(&mut self) {
        self.enter();
        self.reclaim_absent();
        self.exit();
        self.store.driver().windows().wait_grace();
        let waiting = std::mem::take(&mut self.reclaim.waiting);
        let garbage = std::mem::take(&mut self.reclaim.garbage);
        for item in waiting
            .into_iter()
            .flat_map(|(_, batch)| batch)
            .chain(garbage)
        {
            self.free_garbage(item);
        }
    }
}
