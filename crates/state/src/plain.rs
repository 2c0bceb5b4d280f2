//! The types of cells: words of 4 or 8 bytes, and pages of up to 4 KiB. Structures and enumerations
//! are in [`crate::record`].

use std::fmt::Debug;
use std::marker::PhantomData;

use stillpoint_mem::Grain;
use stillpoint_sync::atomic::{AtomicU32, AtomicU64};

use crate::field_value_room;
use crate::grid::Grid;
use crate::layout::Layout;

/// Longest cell, in bytes.
pub const CELL_BYTES_MAX: usize = 4096;

/// Plain data of a fixed length: a cell of an array.
///
/// Numbers of 4 and 8 bytes are cells, and so are arrays of numbers and of `bool`s. A `bool` takes 4 bytes.
/// Structures and enumerations become cells by `#[derive(Plain)]`: see the [macro](macro@crate::Plain).
/// Arrays and structures take a multiple of 8 bytes, with zeros behind them: `[f32; 3]` takes 16.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a cell of an array",
    label = "no plain data of a fixed length",
    note = "cells are u32, i32, f32, u64, i64, f64, bool, arrays of numbers, and what has `#[derive(Plain)]`"
)]
pub trait Plain: Copy + Debug + Send + Sync + 'static {
    /// The atomics that hold the cell.
    type Grain: CellGrain;
    /// The cell's length in bytes: 4, or a multiple of 8 up to [`CELL_BYTES_MAX`].
    const BYTES: usize;

    /// Reads the value from a cell.
    fn load(cell: &[Self::Grain]) -> Self;
    /// Writes the value into a cell.
    fn store(self, cell: &[Self::Grain]);
}

/// A value inside a cell: a number, a `bool`, an array of values, or a type with
/// `#[derive(Plain)]`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a field of a plain record",
    label = "no plain data of a fixed length",
    note = "fields are numbers, bool, arrays of them, and what has `#[derive(Plain)]`"
)]
pub trait FieldValue: Copy + Debug + Send + Sync + 'static {
    /// The value's length in bytes, without padding.
    const PACKED_BYTES: usize;
    /// The value whose bytes are zero. A new cell holds this value.
    const ZERO: Self;
    /// The value of these little-endian bytes.
    fn from_bytes(bytes: &[u8]) -> Self;
    /// Writes the value as little-endian bytes.
    fn into_bytes(self, bytes: &mut [u8]);
    /// The value of the bytes that `read` puts into a buffer of their length.
    fn read_with(read: impl FnOnce(&mut [u8])) -> Self;
    /// Calls `write` with the value's bytes.
    fn write_with(self, write: impl FnOnce(&[u8]));
    /// As [`read_with`](Self::read_with), for an array of values.
    fn read_array<const N: usize>(read: impl FnOnce(&mut [u8])) -> [Self; N];
    /// As [`write_with`](Self::write_with), for an array of values.
    fn write_array<const N: usize>(values: [Self; N], write: impl FnOnce(&[u8]));
}

/// Where a value of type `F` lies in a cell of type `T`. `#[field(NAME)]` makes one.
#[derive(Debug)]
pub struct Field<T, F> {
    offset: usize,
    types: PhantomData<fn(T) -> F>,
}

impl<T, F> Clone for Field<T, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, F> Copy for Field<T, F> {}

impl<T: Plain, F: FieldValue> Field<T, F> {
    /// The value at an offset in bytes.
    ///
    /// # Panics
    /// If the value reaches beyond the cell.
    pub const fn at(offset: usize) -> Self {
        assert!(offset + F::PACKED_BYTES <= T::BYTES, "a field lies inside its cell");
        Self { offset, types: PhantomData }
    }

    /// The value's offset in bytes.
    pub fn offset(self) -> usize {
        self.offset
    }
}

/// A grain that cells of a state may have.
pub trait CellGrain: Grain {
    /// The grid of an array, if the array consists of these grains.
    fn grid<L: Layout>(grid: &AnyGrid<L>) -> Option<&Grid<Self, L>>
    where
        Self: Sized;
    /// Wraps an array of these grains as an array of any grain.
    fn any<L: Layout>(grid: Grid<Self, L>) -> AnyGrid<L>
    where
        Self: Sized;
}

/// An array of cells of any length.
#[derive(Debug)]
pub enum AnyGrid<L: Layout> {
    /// Cells of 4 bytes.
    Fours(Grid<AtomicU32, L>),
    /// Cells of multiples of 8 bytes.
    Eights(Grid<AtomicU64, L>),
}

/// Runs an expression with the grid, whatever its grain.
macro_rules! with_grid {
    ($any:expr, $grid:ident => $body:expr) => {
        match $any {
            $crate::plain::AnyGrid::Fours($grid) => $body,
            $crate::plain::AnyGrid::Eights($grid) => $body,
        }
    };
}
pub(crate) use with_grid;

macro_rules! cell_grain {
    ($grain:ty, $variant:ident) => {
        impl CellGrain for $grain {
            #[inline(always)]
            fn grid<L: Layout>(grid: &AnyGrid<L>) -> Option<&Grid<Self, L>> {
                match grid {
                    AnyGrid::$variant(grid) => Some(grid),
                    _ => None,
                }
            }
            fn any<L: Layout>(grid: Grid<Self, L>) -> AnyGrid<L> {
                AnyGrid::$variant(grid)
            }
        }
    };
}

cell_grain!(AtomicU32, Fours);
cell_grain!(AtomicU64, Eights);

macro_rules! number {
    ($type:ty) => {
        impl FieldValue for $type {
            const PACKED_BYTES: usize = size_of::<$type>();
            const ZERO: Self = 0 as $type;
            #[inline(always)]
            fn from_bytes(bytes: &[u8]) -> Self {
                let mut array = [0; size_of::<$type>()];
                array.copy_from_slice(bytes);
                <$type>::from_le_bytes(array)
            }
            #[inline(always)]
            fn into_bytes(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
            field_value_room!(size_of::<$type>());
        }
        array_cell!($type);
    };
}

/// An array of numbers as a cell, grain by grain.
macro_rules! array_cell {
    ($type:ty) => {
        impl<const N: usize> Plain for [$type; N] {
            type Grain = AtomicU64;
            const BYTES: usize = {
                let bytes = N * size_of::<$type>();
                assert!(bytes > 0, "an array as a cell has no bytes");
                assert!(bytes <= CELL_BYTES_MAX, "an array as a cell has more than 4096 bytes");
                bytes.next_multiple_of(8)
            };
            #[inline(always)]
            fn load(cell: &[AtomicU64]) -> Self {
                let mut numbers = [<$type>::default(); N];
                let per_grain = 8 / size_of::<$type>();
                for (numbers, grain) in numbers.chunks_mut(per_grain).zip(cell) {
                    let bytes = grain.get().to_le_bytes();
                    let each = bytes.chunks_exact(size_of::<$type>());
                    for (number, bytes) in numbers.iter_mut().zip(each) {
                        *number = <$type as FieldValue>::from_bytes(bytes);
                    }
                }
                numbers
            }
            #[inline(always)]
            fn store(self, cell: &[AtomicU64]) {
                let per_grain = 8 / size_of::<$type>();
                for (numbers, grain) in self.chunks(per_grain).zip(cell) {
                    let mut bytes = [0; 8];
                    let each = bytes.chunks_exact_mut(size_of::<$type>());
                    for (number, bytes) in numbers.iter().zip(each) {
                        FieldValue::into_bytes(*number, bytes);
                    }
                    grain.set(u64::from_le_bytes(bytes));
                }
            }
        }
    };
}

number!(u8);
number!(i8);
number!(u16);
number!(i16);
number!(u32);
number!(i32);
number!(f32);
number!(u64);
number!(i64);
number!(f64);

impl FieldValue for bool {
    const PACKED_BYTES: usize = 1;
    const ZERO: Self = false;
    #[inline(always)]
    fn from_bytes(bytes: &[u8]) -> Self {
        bytes[0] != 0
    }
    #[inline(always)]
    fn into_bytes(self, bytes: &mut [u8]) {
        bytes[0] = u8::from(self);
    }
    field_value_room!(1);
}

array_cell!(bool);

impl Plain for bool {
    type Grain = AtomicU32;
    const BYTES: usize = 4;
    #[inline(always)]
    fn load(cell: &[AtomicU32]) -> Self {
        cell[0].get() != 0
    }
    #[inline(always)]
    fn store(self, cell: &[AtomicU32]) {
        cell[0].set(u32::from(self));
    }
}

impl<F: FieldValue, const N: usize> FieldValue for [F; N] {
    const PACKED_BYTES: usize = N * F::PACKED_BYTES;
    const ZERO: Self = [F::ZERO; N];
    #[inline(always)]
    fn from_bytes(bytes: &[u8]) -> Self {
        let mut values = Self::ZERO;
        for (value, bytes) in values.iter_mut().zip(bytes.chunks_exact(F::PACKED_BYTES.max(1))) {
            *value = F::from_bytes(bytes);
        }
        values
    }
    #[inline(always)]
    fn into_bytes(self, bytes: &mut [u8]) {
        for (value, bytes) in self.iter().zip(bytes.chunks_exact_mut(F::PACKED_BYTES.max(1))) {
            value.into_bytes(bytes);
        }
    }
    #[inline(always)]
    fn read_with(read: impl FnOnce(&mut [u8])) -> Self {
        F::read_array(read)
    }
    #[inline(always)]
    fn write_with(self, write: impl FnOnce(&[u8])) {
        F::write_array(self, write);
    }
    // Arrays of arrays: the compiler cannot name the length of the buffer.
    fn read_array<const M: usize>(read: impl FnOnce(&mut [u8])) -> [Self; M] {
        let mut room = [0; CELL_BYTES_MAX];
        let bytes = &mut room[..M * Self::PACKED_BYTES];
        read(bytes);
        FieldValue::from_bytes(bytes)
    }
    fn write_array<const M: usize>(values: [Self; M], write: impl FnOnce(&[u8])) {
        let mut room = [0; CELL_BYTES_MAX];
        let bytes = &mut room[..M * Self::PACKED_BYTES];
        FieldValue::into_bytes(values, bytes);
        write(bytes);
    }
}

macro_rules! word {
    ($type:ty, $grain:ty, $value:ty) => {
        impl Plain for $type {
            type Grain = $grain;
            const BYTES: usize = size_of::<$type>();
            #[inline(always)]
            fn load(cell: &[$grain]) -> Self {
                <$type>::from_ne_bytes(cell[0].get().to_ne_bytes())
            }
            #[inline(always)]
            fn store(self, cell: &[$grain]) {
                cell[0].set(<$value>::from_ne_bytes(self.to_ne_bytes()));
            }
        }
    };
}

word!(u32, AtomicU32, u32);
word!(i32, AtomicU32, u32);
word!(f32, AtomicU32, u32);
word!(u64, AtomicU64, u64);
word!(i64, AtomicU64, u64);
word!(f64, AtomicU64, u64);
