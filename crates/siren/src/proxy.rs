//! Proxies of tuples ("troxies", §2): one for each key, with the key's versions and its lock. They are
//! transient.

use std::sync::Arc;

use stillpoint_format::Stamp;
use stillpoint_sync::atomic::{
    AtomicU8, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use stillpoint_sync::{Mutex, lock_word};

use crate::key_bytes::KeyBytes;
use crate::slab::Slot;

/// Tries of a read without a lock to find nobody at work on the versions of a key.
const COMMITTED_TRIES: usize = 16;

/// A value. `None` is the delete mark.
pub(crate) type Value = Option<Arc<[u8]>>;

/// A value with its tag, as tables of the engine have it.
pub(crate) fn tagged(tag: u8, value: &[u8]) -> Arc<[u8]> {
    let mut bytes = Vec::with_capacity(1 + value.len());
    bytes.push(tag);
    bytes.extend_from_slice(value);
    Arc::from(bytes)
}

/// Tag and bytes of a value that [`tagged`] has made.
pub(crate) fn untagged(value: &[u8]) -> (u8, &[u8]) {
    value.split_first().map_or((0, &[]), |(tag, bytes)| (*tag, bytes))
}

/// A version of a key.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    /// The tuple in the pages.
    pub(crate) tuple: Slot,
    /// The statement that wrote the version.
    pub(crate) statement: u32,
    pub(crate) value: Value,
}

/// The versions of the transaction that holds the lock of a key, in the order of statements. Most
/// transactions write a key once, and that takes no memory of its own.
#[derive(Debug, Default)]
pub(crate) struct OpenVersions {
    last: Option<Version>,
    earlier: Option<Box<Earlier>>,
}

/// Earlier versions, oldest first.
#[derive(Debug, Default)]
struct Earlier(Vec<Version>);

impl OpenVersions {
    pub(crate) fn last(&self) -> Option<&Version> {
        self.last.as_ref()
    }

    pub(crate) fn last_mut(&mut self) -> Option<&mut Version> {
        self.last.as_mut()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.last.is_none()
    }

    pub(crate) fn len(&self) -> usize {
        self.earlier().len() + usize::from(self.last.is_some())
    }

    fn earlier(&self) -> &[Version] {
        self.earlier.as_ref().map_or(&[], |earlier| &earlier.0)
    }

    pub(crate) fn push(&mut self, version: Version) {
        if let Some(last) = self.last.replace(version) {
            self.earlier.get_or_insert_default().0.push(last);
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Version> {
        let before = self.earlier.as_mut().and_then(|earlier| earlier.0.pop());
        std::mem::replace(&mut self.last, before)
    }

    /// Takes all versions out, oldest first.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = Version> + use<> {
        let Self { last, earlier } = std::mem::take(self);
        earlier.map(|earlier| earlier.0).unwrap_or_default().into_iter().chain(last)
    }

    /// The newest version of a statement before this one.
    fn before(&self, statement: u32) -> Option<&Version> {
        let mut newest_first = self.last.iter().chain(self.earlier().iter().rev());
        newest_first.find(|version| version.statement < statement)
    }

    /// Adds a version in its place. `false` if the statement has one already.
    pub(crate) fn insert(&mut self, version: Version) -> bool {
        let mut all: Vec<Version> = self.take().collect();
        let at = all.partition_point(|other| other.statement < version.statement);
        let is_new = all.get(at).is_none_or(|other| other.statement != version.statement);
        if is_new {
            all.insert(at, version);
        }
        all.into_iter().for_each(|version| self.push(version));
        is_new
    }
}

/// The versions of a key. The latch of the table's pages is held while they change.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Versions {
    pub(crate) committed: Option<Version>,
    /// The shadow area of the transaction that holds the lock, in the order of statements.
    pub(crate) open: OpenVersions,
}

impl Versions {
    /// The tuple behind which a new version goes.
    pub(crate) fn last(&self) -> Option<Slot> {
        self.open.last().or(self.committed.as_ref()).map(|version| version.tuple)
    }

    /// The tuple behind which the version of a statement belongs, or the committed one. Tuples of a
    /// key lie in the order of its versions, so the last version's tuple is the last.
    pub(crate) fn before(&self, statement: Option<u32>) -> Option<Slot> {
        let statement = statement?;
        let earlier = self.open.before(statement);
        earlier.or(self.committed.as_ref()).map(|version| version.tuple)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.committed.is_none() && self.open.is_empty()
    }
}

/// The proxy of a key. The order of the fields in memory is that of the source. What a read needs comes
/// first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Proxy {
    pub(crate) key: KeyBytes,
    /// The end of the last transaction that changed the key since the opening.
    stamp: AtomicU64,
    /// The lock of the key.
    pub(crate) lock: AtomicU64,
    pub(crate) versions: Mutex<Versions>,
    /// The lock of the gap below the key, down to the next key that delimits gaps.
    pub(crate) gap: AtomicU64,
    /// What whoever has the lock of the key, or that of its gap, may know without a look at the versions.
    state: AtomicU8,
}

/// The key delimits gaps: it has a version, or had one and is still in the index.
const DELIMITS: u8 = 1;
/// The key has a committed value.
const HAS_VALUE: u8 = 2;
/// The proxy has left the index.
const DEAD: u8 = 4;

impl Proxy {
    pub(crate) fn new(key: &[u8]) -> Arc<Self> {
        Arc::new(Self {
            key: KeyBytes::new(key),
            stamp: AtomicU64::new(Stamp::NONE.to_bits()),
            lock: AtomicU64::new(lock_word::free(0, 0)),
            versions: Mutex::new(Versions::default()),
            gap: AtomicU64::new(lock_word::free(0, 0)),
            state: AtomicU8::new(0),
        })
    }

    /// The end of the last transaction that changed the key. The caller has the key's lock, or that of the
    /// versions.
    pub(crate) fn stamp(&self) -> Stamp {
        // Relaxed: ordered by the lock that the caller has.
        Stamp::from_bits(self.stamp.load(Relaxed))
    }

    /// Notes the end of a transaction that has changed the key. The caller has the key's lock.
    pub(crate) fn set_stamp(&self, end: Stamp) {
        // Relaxed: as in `stamp`.
        self.stamp.store(end.to_bits(), Relaxed);
    }

    fn is(&self, bit: u8) -> bool {
        // Acquire: partner of the Release in `set`. Who holds a lock of the key or of a gap is ordered by it.
        self.state.load(Acquire) & bit != 0
    }

    fn set(&self, bit: u8, is_set: bool) {
        if self.is(bit) != is_set {
            // Release: partner of the Acquire in `is`.
            match is_set {
                true => self.state.fetch_or(bit, Release),
                false => self.state.fetch_and(!bit, Release),
            };
        }
    }

    pub(crate) fn delimits(&self) -> bool {
        self.is(DELIMITS)
    }

    /// The key delimits gaps from here on. The caller has the lock of the gap that the key divides.
    pub(crate) fn set_delimits(&self) {
        self.set(DELIMITS, true);
    }

    /// Whether the key has a committed value. The caller has the lock of the key.
    pub(crate) fn has_value(&self) -> bool {
        self.is(HAS_VALUE)
    }

    /// Notes whether the key has a committed value. The caller has the lock of the versions.
    pub(crate) fn set_has_value(&self, has_value: bool) {
        self.set(HAS_VALUE, has_value);
    }

    /// Whether the proxy has left the index. The caller has the lock of the key.
    pub(crate) fn is_dead(&self) -> bool {
        self.is(DEAD)
    }

    /// The proxy leaves the index. The caller has the lock of the versions.
    pub(crate) fn set_dead(&self) {
        self.set(DEAD, true);
    }

    /// Whether the key has a committed value, as far as can be seen without a wait.
    pub(crate) fn may_have_value(&self) -> bool {
        self.versions.try_lock().is_none_or(|versions| versions.committed.is_some())
    }

    /// The committed value and the stamp of the transaction that wrote it. `None` if the key has no value, or
    /// if somebody works on its versions for longer than an operation takes.
    pub(crate) fn committed(&self) -> Option<(Arc<[u8]>, Stamp)> {
        let versions = (0..COMMITTED_TRIES).find_map(|_| self.versions.try_lock())?;
        let value = versions.committed.as_ref()?.value.clone()?;
        Some((value, self.stamp()))
    }

    /// The value that a transaction sees: its own newest one if the transaction `writes` the key.
    pub(crate) fn value(&self, writes: bool) -> Value {
        self.with_value(writes, |value| value.cloned())
    }

    /// As [`value`](Self::value), lent to `with`.
    pub(crate) fn with_value<R>(
        &self,
        writes: bool,
        with: impl FnOnce(Option<&Arc<[u8]>>) -> R,
    ) -> R {
        let versions = self.versions.lock();
        let own = versions.open.last().filter(|_| writes);
        with(own.or(versions.committed.as_ref()).and_then(|version| version.value.as_ref()))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Beside tuples, proxies are what a store in memory consists of.
    #[test]
    fn proxies_are_small() {
        assert_eq!((size_of::<Option<Version>>(), size_of::<Proxy>()), (24, 120));
    }
}
