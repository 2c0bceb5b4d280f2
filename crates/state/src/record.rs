//! Structures and enumerations as cells and as fields of cells: the macros, and what they call.

use stillpoint_mem::Grain;
use stillpoint_sync::atomic::AtomicU64;

/// Reads a cell as bytes: for [`plain_record!`](crate::plain_record).
#[doc(hidden)]
#[inline(always)]
pub fn load_record<const BYTES: usize>(cell: &[AtomicU64]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    crate::grid::load_bytes(cell, &mut bytes);
    bytes
}

/// Writes bytes into a cell: for [`plain_record!`](crate::plain_record).
#[doc(hidden)]
#[inline(always)]
pub fn store_record<const BYTES: usize>(bytes: &[u8; BYTES], cell: &[AtomicU64]) {
    for (bytes, grain) in bytes.as_chunks::<8>().0.iter().zip(cell) {
        grain.set(u64::from_le_bytes(*bytes));
    }
}

/// The part of [`FieldValue`] that needs room of a length that the compiler knows.
#[doc(hidden)]
#[macro_export]
macro_rules! field_value_room {
    ($bytes:expr) => {
        #[inline(always)]
        fn read_with(read: impl FnOnce(&mut [u8])) -> Self {
            let mut bytes = [0u8; $bytes];
            read(&mut bytes);
            <Self as $crate::FieldValue>::from_bytes(&bytes)
        }
        #[inline(always)]
        fn write_with(self, write: impl FnOnce(&[u8])) {
            let mut bytes = [0u8; $bytes];
            $crate::FieldValue::into_bytes(self, &mut bytes);
            write(&bytes);
        }
        #[inline(always)]
        fn read_array<const N: usize>(read: impl FnOnce(&mut [u8])) -> [Self; N] {
            let mut bytes = [[0u8; $bytes]; N];
            read(bytes.as_flattened_mut());
            <[Self; N] as $crate::FieldValue>::from_bytes(bytes.as_flattened())
        }
        #[inline(always)]
        fn write_array<const N: usize>(values: [Self; N], write: impl FnOnce(&[u8])) {
            let mut bytes = [[0u8; $bytes]; N];
            $crate::FieldValue::into_bytes(values, bytes.as_flattened_mut());
            write(bytes.as_flattened());
        }
    };
}

/// A structure as a cell, and as a field of others: its fields follow each other without gaps,
/// little-endian. A field with `=> NAME` gets a constant of that name, by which it is read and
/// written alone. Fields are numbers, `bool`, arrays of what may be a field, other structures of
/// this macro, and enumerations of [`plain_enum!`](crate::plain_enum).
///
/// As a cell it takes a multiple of 8 bytes, with zeros behind the last field; 4096 at most, or the
/// compiler says which structure is too long.
///
/// ```
/// use stillpoint_state::{Arrays, Interleaved, plain_enum, plain_record, schemes::Hourglass};
/// plain_enum! {
///     /// What somebody does.
///     pub enum Mood {
///         Idle,
///         Hunting,
///     }
/// }
/// plain_record! {
///     /// A point of the map.
///     pub struct Point {
///         /// Metres east.
///         pub x: f32,
///         /// Metres north.
///         pub y: f32,
///     }
/// }
/// plain_record! {
///     /// One who walks about.
///     pub struct Walker {
///         /// Where it is.
///         pub at: Point => AT,
///         /// Where it was.
///         pub trail: [Point; 3],
///         /// What is left.
///         pub health: u16 => HEALTH,
///         /// What it does.
///         pub mood: Mood => MOOD,
///         /// False once it is dead.
///         pub lives: bool,
///     }
/// }
/// let mut builder = Arrays::<Hourglass<Interleaved>>::builder();
/// let walkers = builder.array::<Walker>("walkers", 10);
/// let mut arrays = builder.build()?;
/// let at = Point { x: 1.0, y: 2.0 };
/// let walker = Walker { at, trail: [at; 3], health: 100, mood: Mood::Idle, lives: true };
/// arrays.write(walkers, 3, walker);
/// arrays.write_field(walkers, 3, Walker::MOOD, Mood::Hunting);
/// arrays.update(walkers, 3, |walker| walker.health -= 1);
/// assert_eq!(arrays.read(walkers, 3), Walker { health: 99, mood: Mood::Hunting, ..walker });
/// # Ok::<(), stillpoint_state::ArraysError>(())
/// ```
///
/// ```compile_fail
/// stillpoint_state::plain_record! {
///     struct Atlas { pages: [u8; 5000] }
/// }
/// let bytes = <Atlas as stillpoint_state::Plain>::BYTES; // record `Atlas` has more than 4096 bytes
/// ```
#[macro_export]
macro_rules! plain_record {
    (
        $(#[$doc:meta])*
        $visibility:vis struct $name:ident {
            $( $(#[$field_doc:meta])* $field_visibility:vis $field:ident : $type:ty $(=> $constant:ident)? ),+ $(,)?
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        $visibility struct $name {
            $( $(#[$field_doc])* $field_visibility $field: $type, )+
        }

        impl $name {
            $crate::plain_record!(@fields 0usize; $( $field_visibility $type $(=> $constant)?, )+);
        }

        impl $crate::FieldValue for $name {
            const PACKED_BYTES: usize = 0 $( + <$type as $crate::FieldValue>::PACKED_BYTES )+;
            const ZERO: Self = Self { $( $field: <$type as $crate::FieldValue>::ZERO, )+ };
            #[inline(always)]
            fn from_bytes(bytes: &[u8]) -> Self {
                let rest = bytes;
                $(
                    let (head, rest) = rest.split_at(<$type as $crate::FieldValue>::PACKED_BYTES);
                    let $field = <$type as $crate::FieldValue>::from_bytes(head);
                )+
                let _ = rest;
                Self { $( $field, )+ }
            }
            #[inline(always)]
            fn into_bytes(self, bytes: &mut [u8]) {
                let rest = bytes;
                $(
                    let (head, rest) = rest.split_at_mut(<$type as $crate::FieldValue>::PACKED_BYTES);
                    $crate::FieldValue::into_bytes(self.$field, head);
                )+
                let _ = rest;
            }
            $crate::field_value_room!(<$name as $crate::FieldValue>::PACKED_BYTES);
        }

        impl $crate::Plain for $name {
            type Grain = $crate::AtomicU64;
            const BYTES: usize = {
                let bytes = <$name as $crate::FieldValue>::PACKED_BYTES;
                assert!(
                    bytes <= $crate::CELL_BYTES_MAX,
                    concat!("record `", stringify!($name), "` has more than 4096 bytes: divide it among several arrays")
                );
                assert!(bytes > 0, concat!("record `", stringify!($name), "` has no bytes"));
                bytes.next_multiple_of(8)
            };
            #[inline(always)]
            fn load(cell: &[$crate::AtomicU64]) -> Self {
                const BYTES: usize = <$name as $crate::Plain>::BYTES;
                let bytes = $crate::load_record::<BYTES>(cell);
                let fields = &bytes[..<Self as $crate::FieldValue>::PACKED_BYTES];
                <Self as $crate::FieldValue>::from_bytes(fields)
            }
            #[inline(always)]
            fn store(self, cell: &[$crate::AtomicU64]) {
                const BYTES: usize = <$name as $crate::Plain>::BYTES;
                let mut bytes = [0u8; BYTES];
                let fields = &mut bytes[..<Self as $crate::FieldValue>::PACKED_BYTES];
                $crate::FieldValue::into_bytes(self, fields);
                $crate::store_record(&bytes, cell);
            }
        }
    };
    (@fields $offset:expr;) => {};
    (@fields $offset:expr; $visibility:vis $type:ty => $constant:ident, $($rest:tt)*) => {
        /// Where this field lies.
        $visibility const $constant: $crate::Field<Self, $type> = $crate::Field::at($offset);
        $crate::plain_record!(@fields $offset + <$type as $crate::FieldValue>::PACKED_BYTES; $($rest)*);
    };
    (@fields $offset:expr; $visibility:vis $type:ty, $($rest:tt)*) => {
        $crate::plain_record!(@fields $offset + <$type as $crate::FieldValue>::PACKED_BYTES; $($rest)*);
    };
}

/// An enumeration as a field, of one byte, and as a cell, of four. Its values are numbered from 0 in
/// their order, at most 256 of them, so that the cells of a new array hold the first. A number that
/// no value has, left by a program that knew more of them, is read as the first.
///
/// ```
/// use stillpoint_state::{Arrays, Interleaved, plain_enum, schemes::Hourglass};
/// plain_enum! {
///     /// What grows there.
///     pub enum Ground {
///         /// Nothing.
///         Bare,
///         /// Grass.
///         Grass,
///     }
/// }
/// let mut builder = Arrays::<Hourglass<Interleaved>>::builder();
/// let map = builder.array::<Ground>("map", 100);
/// let mut arrays = builder.build()?;
/// arrays.write(map, 5, Ground::Grass);
/// assert_eq!((arrays.read(map, 5), arrays.read(map, 6)), (Ground::Grass, Ground::Bare));
/// # Ok::<(), stillpoint_state::ArraysError>(())
/// ```
#[macro_export]
macro_rules! plain_enum {
    (
        $(#[$doc:meta])*
        $visibility:vis enum $name:ident {
            $(#[$first_doc:meta])* $first:ident
            $( , $(#[$value_doc:meta])* $value:ident )* $(,)?
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        $visibility enum $name {
            $(#[$first_doc])* $first,
            $( $(#[$value_doc])* $value, )*
        }

        impl $crate::FieldValue for $name {
            const PACKED_BYTES: usize = 1;
            const ZERO: Self = Self::$first;
            #[inline(always)]
            fn from_bytes(bytes: &[u8]) -> Self {
                match bytes[0] {
                    $( number if number == Self::$value as u8 => Self::$value, )*
                    _ => Self::$first,
                }
            }
            #[inline(always)]
            fn into_bytes(self, bytes: &mut [u8]) {
                bytes[0] = self as u8;
            }
            $crate::field_value_room!(1);
        }

        impl $crate::Plain for $name {
            type Grain = <u32 as $crate::Plain>::Grain;
            const BYTES: usize = <u32 as $crate::Plain>::BYTES;
            #[inline(always)]
            fn load(cell: &[Self::Grain]) -> Self {
                let number = <u32 as $crate::Plain>::load(cell) as u8;
                <Self as $crate::FieldValue>::from_bytes(&[number])
            }
            #[inline(always)]
            fn store(self, cell: &[Self::Grain]) {
                <u32 as $crate::Plain>::store(u32::from(self as u8), cell);
            }
        }
    };
}
