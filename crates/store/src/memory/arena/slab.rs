//! What the table of slabs says of a slab.

use std::ops::Range;

use super::classes::{CLASS_BYTES, RUN_CELLS, SLAB_BYTES, UNIT_BYTES, UNITS_PER_SLAB, width_of};

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

/// Whose cells a slab has, of which kind and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PoolKey {
    pub(super) owner: u32,
    pub(super) kind: u8,
    pub(super) class: u8,
}

/// Bit of a slab's description: all of its cells are free, and no scan may visit it.
pub(super) const EMPTY: u64 = 1 << 16;
/// Where a description has the place of a narrow slab within a wide one.
const PLACE_SHIFT: u32 = 17;
const PLACE_MASK: u64 = 0x1f;
/// Bit of a slab's description: its cells are to be moved elsewhere, and none is given out.
pub(super) const LEAVING: u64 = 1 << 22;

impl PoolKey {
    /// Most cells that a cache takes and returns at a time.
    pub(super) fn run_cells(self) -> usize {
        RUN_CELLS[usize::from(self.class)]
    }

    pub(super) fn cell_bytes(self) -> usize {
        CLASS_BYTES[usize::from(self.class)]
    }

    /// Whether a capture scans the cells.
    pub(super) fn is_of_records(self) -> bool {
        self.kind == Kind::Record as u8 || self.kind == Kind::Lock as u8
    }

    /// The description of the slab's narrow slab at this place.
    pub(super) fn describe(self, place: usize) -> u64 {
        u64::from(self.class)
            | u64::from(self.kind) << 8
            | (place as u64) << PLACE_SHIFT
            | u64::from(self.owner) << 32
    }

    pub(super) fn of(description: u64) -> Self {
        Self {
            class: description as u8,
            kind: (description >> 8) as u8,
            owner: (description >> 32) as u32,
        }
    }
}

/// The place of a narrow slab within the wide slab that it is a part of. 0 for a slab by itself.
pub(super) fn place_in_wide(description: u64) -> usize {
    (description >> PLACE_SHIFT & PLACE_MASK) as usize
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
    /// The slab that begins at this number in the table.
    pub(super) fn of(index: usize, key: PoolKey) -> Self {
        let bytes = key.cell_bytes();
        Self {
            owner: key.owner,
            kind: key.kind,
            first: index as u64 * UNITS_PER_SLAB,
            cells: width_of(key.class) * SLAB_BYTES / bytes,
            cell_units: bytes / UNIT_BYTES,
        }
    }

    /// The slab of which a description is a part. `None` if it is free or empty.
    pub(crate) fn around(index: usize, description: u64) -> Option<Self> {
        let is_owned = description != 0 && description & EMPTY == 0;
        is_owned.then(|| Self::of(index - place_in_wide(description), PoolKey::of(description)))
    }

    /// As [`around`](Self::around), for the first part of a slab only.
    pub(crate) fn described(index: usize, description: u64) -> Option<Self> {
        Self::around(index, description).filter(|_| place_in_wide(description) == 0)
    }

    /// Whether a capture scans the cells.
    pub(crate) fn is_of_records(&self) -> bool {
        self.kind == Kind::Record as u8 || self.kind == Kind::Lock as u8
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

    /// The number of the cell at a position.
    pub(super) fn number(&self, position: usize) -> u64 {
        self.first + (position * self.cell_units) as u64
    }

    /// The numbers of the cells at the positions in `part`.
    pub(crate) fn numbers(&self, part: Range<usize>) -> impl Iterator<Item = u64> + use<> {
        let at = |position: usize| self.number(position.min(self.cells));
        (at(part.start)..at(part.end)).step_by(self.cell_units)
    }

    /// The position of the cell of a number.
    pub(super) fn position(&self, number: u64) -> usize {
        (number - self.first) as usize / self.cell_units
    }

    /// Whether a cell begins at this number of the slab.
    pub(crate) fn is_cell(&self, number: u64) -> bool {
        let units = (number - self.first) as usize;
        units.is_multiple_of(self.cell_units) && units / self.cell_units < self.cells
    }
}
