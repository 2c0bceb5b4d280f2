//! One worker's free cells, and the memory that it is granted.

use stillpoint_txn::MemoryLimit;

use super::Arena;
use super::classes::{CLASS_BYTES, UNITS_PER_SLAB, class_for};
use super::slab::{Kind, LEAVING, PoolKey};

/// Runs of free cells of a class that a cache keeps. The cache returns further runs.
const CACHE_RUNS_MAX: usize = 4;
/// The reserve beyond the limit is this fraction of the limit, within the two bounds.
const RESERVE_PART: usize = 16;
const RESERVE_BYTES_MIN: usize = 16 << 20;
const RESERVE_BYTES_MAX: usize = 1 << 30;

/// The bound up to which memory is granted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Allowance {
    /// Up to the memory limit.
    #[default]
    Limit,
    /// Up to the end of the reserve beyond the memory limit.
    Reserve,
    /// Whatever the limit: for records that are loaded while the store is served. Memory is kept for them.
    Load,
}

/// Bytes beyond a limit that transactions with the reserve may hold. Locks of keys without a value
/// may take the same amount again.
pub(crate) fn reserve_bytes(limit: usize) -> usize {
    (limit / RESERVE_PART).clamp(RESERVE_BYTES_MIN, RESERVE_BYTES_MAX)
}

/// One worker's free cells.
#[derive(Debug, Default)]
pub(crate) struct CellCache {
    pools: Vec<(PoolKey, Vec<u64>)>,
    /// Memory that the present transaction may use.
    pub(crate) allowance: Allowance,
    /// Whether memory was refused since the worker last returned its spare cells.
    pub(crate) was_refused: bool,
}

impl CellCache {
    fn pool(&mut self, key: PoolKey) -> &mut Vec<u64> {
        let at = match self.pools.iter().position(|(k, _)| *k == key) {
            Some(at) => at,
            None => {
                self.pools.push((key, Vec::new()));
                self.pools.len() - 1
            }
        };
        &mut self.pools[at].1
    }

    /// Allocates a cell of at least `bytes` bytes. The cell's words keep their old contents.
    pub(crate) fn allocate(
        &mut self,
        arena: &Arena,
        owner: u32,
        kind: Kind,
        bytes: usize,
    ) -> Result<u64, MemoryLimit> {
        let class = class_for(bytes);
        assert!(class < CLASS_BYTES.len(), "no cell holds {bytes} bytes");
        let key = PoolKey { owner, kind: kind as u8, class: class as u8 };
        let allowance = self.allowance;
        let pool = self.pool(key);
        if pool.is_empty()
            && let Err(full) = arena.refill(key, pool, allowance)
        {
            self.was_refused = true;
            return Err(full);
        }
        Ok(pool.pop().expect("refilled"))
    }

    /// Frees a cell. Nobody may hold its number any more.
    pub(crate) fn free(&mut self, arena: &Arena, number: u64) {
        let description = arena.description((number / UNITS_PER_SLAB) as usize);
        let key = PoolKey::of(description);
        if key.kind == 0 {
            return;
        }
        if description & LEAVING != 0 {
            arena.give_back(key, std::iter::once(number));
            return;
        }
        let pool = self.pool(key);
        pool.push(number);
        let run = key.run_cells();
        if pool.len() > CACHE_RUNS_MAX * run {
            let keep = pool.len() - run;
            arena.give_back(key, pool.drain(keep..));
        }
    }

    /// Drops cells of an owner that is gone.
    pub(crate) fn forget_owner(&mut self, owner: u32) {
        self.pools.retain(|(key, _)| key.owner != owner);
    }

    /// Returns all cells to the arena.
    pub(crate) fn drain(&mut self, arena: &Arena) {
        self.was_refused = false;
        for (key, pool) in self.pools.drain(..) {
            arena.give_back(key, pool.into_iter());
        }
    }
}
