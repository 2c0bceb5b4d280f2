//! What a cell may be: words of 4 or 8 bytes, and pages of up to 4 KiB.

use std::fmt::Debug;
use std::marker::PhantomData;

use stillpoint_mem::Grain;
use stillpoint_sync::atomic::{AtomicU32, AtomicU64};

use crate::grid::Grid;
use crate::layout::Layout;

/// Longest cell, in bytes.
pub const CELL_BYTES_MAX: usize = 4096;

/// Plain data of a fixed length: a cell of an array.
///
/// Implemented for the numbers of 4 and 8 bytes, for arrays of numbers and bytes whose length is a
/// multiple of 8 bytes up to [`CELL_BYTES_MAX`], and for structures made by
/// [`plain_record!`](crate::plain_record).
pub trait Plain: Copy + Debug + Send + Sync + 'static {
    /// The atomics that hold it.
    type Grain: CellGrain;
    /// Its length in bytes: 4, or a multiple of 8 up to [`CELL_BYTES_MAX`].
    const BYTES: usize;

    /// Reads it from a cell.
    fn load(cell: &[Self::Grain]) -> Self;
    /// Writes it into a cell.
    fn store(self, cell: &[Self::Grain]);
}

/// A value inside a cell: a number, or an array of bytes.
pub trait FieldValue: Copy + Debug + Send + Sync + 'static {
    /// Its length in bytes.
    const BYTES: usize;
    /// Its value from so many little-endian bytes.
    fn from_bytes(bytes: &[u8]) -> Self;
    /// Writes it as so many little-endian bytes.
    fn into_bytes(self, bytes: &mut [u8]);
    /// Its value from the bytes that `read` puts into room of their length.
    fn read_with(read: impl FnOnce(&mut [u8])) -> Self;
    /// Calls `write` with its bytes.
    fn write_with(self, write: impl FnOnce(&[u8]));
}

/// Where a value of type `F` lies in a cell of type `T`; made by
/// [`plain_record!`](crate::plain_record).
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
    /// If it reaches beyond the cell.
    pub const fn at(offset: usize) -> Self {
        assert!(offset + F::BYTES <= T::BYTES, "a field lies inside its cell");
        Self { offset, types: PhantomData }
    }

    /// Its offset in bytes.
    pub fn offset(self) -> usize {
        self.offset
    }
}

/// A grain that cells of a state may have.
pub trait CellGrain: Grain {
    /// The grid of an array, if it consists of these.
    fn grid<L: Layout>(grid: &AnyGrid<L>) -> Option<&Grid<Self, L>>
    where
        Self: Sized;
    /// An array of these as one of any.
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

/// Runs an expression with the grid of whichever grain.
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
            const BYTES: usize = size_of::<$type>();
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
            #[inline(always)]
            fn read_with(read: impl FnOnce(&mut [u8])) -> Self {
                let mut bytes = [0; size_of::<$type>()];
                read(&mut bytes);
                <$type>::from_le_bytes(bytes)
            }
            #[inline(always)]
            fn write_with(self, write: impl FnOnce(&[u8])) {
                write(&self.to_le_bytes());
            }
        }

        impl<const N: usize> FieldValue for [$type; N] {
            const BYTES: usize = N * size_of::<$type>();
            #[inline(always)]
            fn from_bytes(bytes: &[u8]) -> Self {
                let mut numbers = [<$type>::default(); N];
                let each = bytes.chunks_exact(size_of::<$type>());
                for (number, bytes) in numbers.iter_mut().zip(each) {
                    *number = <$type as FieldValue>::from_bytes(bytes);
                }
                numbers
            }
            #[inline(always)]
            fn into_bytes(self, bytes: &mut [u8]) {
                let each = bytes.chunks_exact_mut(size_of::<$type>());
                for (number, bytes) in self.into_iter().zip(each) {
                    FieldValue::into_bytes(number, bytes);
                }
            }
            #[inline(always)]
            fn read_with(read: impl FnOnce(&mut [u8])) -> Self {
                let mut bytes = [[0; size_of::<$type>()]; N];
                read(bytes.as_flattened_mut());
                Self::from_bytes(bytes.as_flattened())
            }
            #[inline(always)]
            fn write_with(self, write: impl FnOnce(&[u8])) {
                let mut bytes = [[0; size_of::<$type>()]; N];
                self.into_bytes(bytes.as_flattened_mut());
                write(bytes.as_flattened());
            }
        }

        impl<const N: usize> Plain for [$type; N] {
            type Grain = AtomicU64;
            const BYTES: usize = {
                let bytes = N * size_of::<$type>();
                assert!(
                    bytes > 0 && bytes.is_multiple_of(8) && bytes <= CELL_BYTES_MAX,
                    "a page has a multiple of 8 bytes, 4096 at most"
                );
                bytes
            };
            #[inline(always)]
            fn load(cell: &[AtomicU64]) -> Self {
                let mut numbers = [<$type>::default(); N];
                let per_grain = 8 / size_of::<$type>();
                for (numbers, grain) in numbers.chunks_exact_mut(per_grain).zip(cell) {
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
                for (numbers, grain) in self.chunks_exact(per_grain).zip(cell) {
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

/// Reads a cell as bytes and makes a value of them: for [`plain_record!`](crate::plain_record).
#[doc(hidden)]
#[inline(always)]
pub fn load_record<const BYTES: usize>(cell: &[AtomicU64]) -> [u8; BYTES] {
    <[u8; BYTES] as FieldValue>::from_bytes(&{
        let mut bytes = [0; BYTES];
        crate::grid::load_bytes(cell, &mut bytes);
        bytes
    })
}

/// Writes bytes into a cell: for [`plain_record!`](crate::plain_record).
#[doc(hidden)]
#[inline(always)]
pub fn store_record<const BYTES: usize>(bytes: &[u8; BYTES], cell: &[AtomicU64]) {
    for (bytes, grain) in bytes.as_chunks::<8>().0.iter().zip(cell) {
        grain.set(u64::from_le_bytes(*bytes));
    }
}

/// A structure of numbers as a cell: its fields follow each other without gaps, little-endian, and
/// each has a constant by which it is read and written alone. Together they must have a multiple of
/// 8 bytes, 4096 at most; the compiler says so if they do not.
///
/// ```
/// use stillpoint_state::{Arrays, Interleaved, schemes::Hourglass};
/// stillpoint_state::plain_record! {
///     /// One who walks about.
///     pub struct Walker {
///         /// Metres east.
///         pub x: f32 => X,
///         /// Metres north.
///         pub y: f32 => Y,
///         /// What is left.
///         pub health: u64 => HEALTH,
///     }
/// }
/// let mut builder = Arrays::<Hourglass<Interleaved>>::builder();
/// let walkers = builder.array::<Walker>("walkers", 10);
/// let mut arrays = builder.build()?;
/// arrays.write(walkers, 3, Walker { x: 1.0, y: 2.0, health: 100 });
/// arrays.write_field(walkers, 3, Walker::HEALTH, 99);
/// assert_eq!(arrays.read(walkers, 3), Walker { x: 1.0, y: 2.0, health: 99 });
/// # Ok::<(), stillpoint_state::ArraysError>(())
/// ```
#[macro_export]
macro_rules! plain_record {
    (
        $(#[$doc:meta])*
        $visibility:vis struct $name:ident {
            $( $(#[$field_doc:meta])* $field_visibility:vis $field:ident : $type:ty => $constant:ident ),+ $(,)?
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        $visibility struct $name {
            $( $(#[$field_doc])* $field_visibility $field: $type, )+
        }

        impl $name {
            $crate::plain_record!(@fields $name, 0usize; $( $field_visibility $type => $constant, )+);
        }

        impl $crate::Plain for $name {
            type Grain = $crate::AtomicU64;
            const BYTES: usize = {
                let bytes = 0 $( + <$type as $crate::FieldValue>::BYTES )+;
                assert!(
                    bytes > 0 && bytes % 8 == 0 && bytes <= $crate::CELL_BYTES_MAX,
                    "the fields of a record have a multiple of 8 bytes, 4096 at most"
                );
                bytes
            };
            #[inline(always)]
            fn load(cell: &[$crate::AtomicU64]) -> Self {
                const BYTES: usize = <$name as $crate::Plain>::BYTES;
                let bytes = $crate::load_record::<BYTES>(cell);
                Self { $(
                    $field: {
                        let at = Self::$constant.offset();
                        let end = at + <$type as $crate::FieldValue>::BYTES;
                        <$type as $crate::FieldValue>::from_bytes(&bytes[at..end])
                    },
                )+ }
            }
            #[inline(always)]
            fn store(self, cell: &[$crate::AtomicU64]) {
                const BYTES: usize = <$name as $crate::Plain>::BYTES;
                let mut bytes = [0u8; BYTES];
                $(
                    let at = Self::$constant.offset();
                    let end = at + <$type as $crate::FieldValue>::BYTES;
                    $crate::FieldValue::into_bytes(self.$field, &mut bytes[at..end]);
                )+
                $crate::store_record(&bytes, cell);
            }
        }
    };
    (@fields $name:ident, $offset:expr;) => {};
    (@fields $name:ident, $offset:expr; $visibility:vis $type:ty => $constant:ident, $($rest:tt)*) => {
        /// Where this field lies.
        $visibility const $constant: $crate::Field<Self, $type> = $crate::Field::at($offset);
        $crate::plain_record!(@fields $name, $offset + <$type as $crate::FieldValue>::BYTES; $($rest)*);
    };
}
