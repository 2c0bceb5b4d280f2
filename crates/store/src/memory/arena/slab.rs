//! What the table of slabs says of a slab.

use std::ops::Range;

use super::classes::{CLASS_BYTES, RUN_CELLS, SLAB_BYTES, UNIT_BYTES, UNITS_PER_SLAB};

/// The kind of a slab's cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Records, which a capture scans.
    Record = 1,
    /// Chunks and tables of large values, and long keys.
    Block = 2,
    /// Locks of keys without a value, made beyond the memory limit, up to twice the reserve, so
    /// that reads and deletions go on. These cells hold no value.
    Lock = 3,
    /// Long keys of [`Kind::Lock`].
    LockKey = 4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PoolKey {
    pub(super) owner: u32,
    pub(super) kind: u8,
    pub(super) class: u8,
}

/// Bit of a slab's description: all of its cells are free, and no scan may visit it.
pub(super) const EMPTY: u64 = 1 << 16;

impl PoolKey {
    /// Most cells that a cache takes and returns at a time.
    pub(super) fn run_cells(self) -> usize {
        RUN_CELLS[usize::from(self.class)]
    }
    pub(super) fn describe(self) -> u64 {
        u64::from(self.class) | u64::from(self.kind) << 8 | u64::from(self.owner) << 32
    }
    pub(super) fn of(description: u64) -> Self {
        Self {
            class: description as u8,
            kind: (description >> 8) as u8,
            owner: (description >> 32) as u32,
        }
    }
}

/// A slab that has an owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slab {
    pub(crate) owner: u32,
    pub(crate) kind: u8,
    pub(super) first: u64,
    pub(super) cells: usize,
    pub(super) cell_units: usize,
}

impl Slab {
    pub(super) fn of(index: usize, key: PoolKey) -> Self {
        let bytes = CLASS_BYTES[usize::from(key.class)];
        Self {
            owner: key.owner,
            kind: key.kind,
            first: index as u64 * UNITS_PER_SLAB,
            cells: SLAB_BYTES / bytes,
            cell_units: bytes / UNIT_BYTES,
        }
    }

    /// The slab that a description stands for. `None` for a slab that is free or empty.
    pub(crate) fn described(index: usize, description: u64) -> Option<Self> {
        let is_owned = description != 0 && description & EMPTY == 0;
        is_owned.then(|| Self::of(index, PoolKey::of(description)))
    }

    /// Number of cells.
    pub(crate) fn cells(&self) -> usize {
        self.cells
    }

    /// Bytes of all cells.
    pub(super) fn cells_bytes(&self) -> usize {
        self.cells * self.cell_units * UNIT_BYTES
    }

    /// Words of a cell.
    pub(crate) fn cell_words(&self) -> usize {
        self.cell_units * (UNIT_BYTES / 8)
    }

    /// Index in the region of the first word of the cell at a position.
    pub(crate) fn first_word(&self, position: usize) -> usize {
        self.first as usize * (UNIT_BYTES / 8) + position * self.cell_words()
    }

    /// The numbers of the cells at the positions in `part`.
    pub(crate) fn numbers(&self, part: Range<usize>) -> impl Iterator<Item = u64> + use<> {
        let at = |position: usize| self.first + (position.min(self.cells) * self.cell_units) as u64;
        (at(part.start)..at(part.end)).step_by(self.cell_units)
    }

    /// The number of the cell that begins at a unit of the slab, if one does.
    pub(crate) fn number_at(&self, unit: u64) -> Option<u64> {
        let (unit, units) = (unit as usize, self.cell_units);
        let is_cell = unit.is_multiple_of(units) && unit / units < self.cells;
        is_cell.then(|| self.first + unit as u64)
    }
}
