//! The blocking locks of the build: `parking_lot`'s, or those of a model checker under the same
//! names. A lock whose holder panicked is free again.

#[cfg(not(any(loom, shuttle)))]
pub use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};

#[cfg(any(loom, shuttle))]
pub use model::{Mutex, MutexGuard, RwLock, RwLockReadGuard};

#[cfg(any(loom, shuttle))]
mod model {
    #[cfg(loom)]
    use loom::sync as checked;
    #[cfg(shuttle)]
    use shuttle::sync as checked;

    use checked::RwLockWriteGuard;
    pub use checked::{MutexGuard, RwLockReadGuard};
    use std::sync::{PoisonError, TryLockError};

    /// A mutual exclusion lock.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(checked::Mutex<T>);

    impl<T> Mutex<T> {
        /// A free lock around a value.
        pub fn new(value: T) -> Self {
            Self(checked::Mutex::new(value))
        }

        /// Waits for the lock.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        /// Takes the lock if it is free.
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            match self.0.try_lock() {
                Ok(guard) => Some(guard),
                Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            }
        }
    }

    /// A lock for one writer or several readers.
    #[derive(Debug, Default)]
    pub struct RwLock<T>(checked::RwLock<T>);

    impl<T> RwLock<T> {
        /// A free lock around a value.
        pub fn new(value: T) -> Self {
            Self(checked::RwLock::new(value))
        }

        /// Waits until nobody writes, and takes a share.
        pub fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().unwrap_or_else(PoisonError::into_inner)
        }

        /// Waits until nobody reads or writes, and takes the lock exclusively.
        pub fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().unwrap_or_else(PoisonError::into_inner)
        }
    }
}
