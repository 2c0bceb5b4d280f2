//! Grains: the atomics through which cells are accessed.

use std::fmt::Debug;

use stillpoint_sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The unit of access to a cell: an atomic of 4 or 8 bytes.
///
/// All accesses are Relaxed. The algorithm that passes a copy from one thread to another orders the
/// accesses by other atomics.
pub trait Grain: sealed::Sealed + Debug + Send + Sync + 'static {
    /// The plain value of a grain.
    type Value: Copy + Eq + Debug + Send + Sync + 'static;
    /// Size in bytes.
    const BYTES: usize;

    /// A grain that holds zero.
    fn zero() -> Self;
    /// Loads the value.
    fn get(&self) -> Self::Value;
    /// Stores a value.
    fn set(&self, value: Self::Value);
    /// The value of [`BYTES`](Self::BYTES) little-endian bytes.
    ///
    /// # Panics
    /// If `bytes` is not that long.
    fn from_le(bytes: &[u8]) -> Self::Value;
    /// Writes a value as [`BYTES`](Self::BYTES) little-endian bytes.
    ///
    /// # Panics
    /// If `bytes` is not that long.
    fn to_le(value: Self::Value, bytes: &mut [u8]);
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! grain {
    ($atomic:ty, $value:ty) => {
        impl sealed::Sealed for $atomic {}
        impl Grain for $atomic {
            type Value = $value;
            const BYTES: usize = size_of::<$value>();

            fn zero() -> Self {
                <$atomic>::new(0)
            }
            #[inline(always)]
            fn get(&self) -> $value {
                // Relaxed: see the trait.
                self.load(Relaxed)
            }
            #[inline(always)]
            fn set(&self, value: $value) {
                // Relaxed: see the trait.
                self.store(value, Relaxed);
            }
            #[inline(always)]
            fn from_le(bytes: &[u8]) -> $value {
                let mut array = [0; size_of::<$value>()];
                array.copy_from_slice(bytes);
                <$value>::from_le_bytes(array)
            }
            #[inline(always)]
            fn to_le(value: $value, bytes: &mut [u8]) {
                bytes.copy_from_slice(&value.to_le_bytes());
            }
        }
    };
}

grain!(AtomicU32, u32);
grain!(AtomicU64, u64);
