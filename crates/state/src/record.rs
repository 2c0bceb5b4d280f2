//! The functions that code of the derive macro [`Plain`](macro@crate::Plain) calls.

use stillpoint_mem::Grain;
use stillpoint_sync::atomic::AtomicU64;

/// Reads a cell as bytes: for the derive macro.
#[doc(hidden)]
#[inline(always)]
pub fn load_record<const BYTES: usize>(cell: &[AtomicU64]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    crate::grid::load_bytes(cell, &mut bytes);
    bytes
}

/// Writes bytes into a cell: for the derive macro.
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
