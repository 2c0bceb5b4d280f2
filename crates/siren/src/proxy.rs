//! Proxies of tuples ("troxies", §2): one for each key, with the key's versions and its lock. The
//! index of a table holds them in clustering order. Both are transient.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use stillpoint_sync::atomic::AtomicU64;
use stillpoint_sync::{Mutex, RwLock, lock_word};

use crate::slab::Slot;

/// A value. `None` is the delete mark.
pub(crate) type Value = Option<Arc<[u8]>>;

/// A version of a key.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    /// The tuple in the pages.
    pub(crate) tuple: Slot,
    /// The statement that wrote the version.
    pub(crate) statement: u32,
    pub(crate) value: Value,
}

/// The versions of a key. The latch of the table's pages is held while they change.
#[derive(Debug, Default)]
pub(crate) struct Versions {
    /// Whether the proxy has left the index.
    pub(crate) is_dead: bool,
    pub(crate) committed: Option<Version>,
    /// The shadow area of the transaction that holds the lock, in the order of statements.
    pub(crate) open: Vec<Version>,
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
        let earlier = self.open.iter().rfind(|version| version.statement < statement);
        earlier.or(self.committed.as_ref()).map(|version| version.tuple)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.committed.is_none() && self.open.is_empty()
    }
}

/// The proxy of a key.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) key: Box<[u8]>,
    /// The lock of the key.
    pub(crate) lock: AtomicU64,
    pub(crate) versions: Mutex<Versions>,
}

impl Proxy {
    fn new(key: &[u8]) -> Arc<Self> {
        Arc::new(Self {
            key: key.into(),
            lock: AtomicU64::new(lock_word::free(0, 0)),
            versions: Mutex::new(Versions::default()),
        })
    }

    /// The value that a transaction sees: its own newest one if the transaction `writes` the key.
    pub(crate) fn value(&self, writes: bool) -> Value {
        let versions = self.versions.lock();
        let own = versions.open.last().filter(|_| writes);
        own.or(versions.committed.as_ref()).and_then(|version| version.value.clone())
    }
}

/// A proxy in the order of its key.
#[derive(Debug)]
struct ByKey(Arc<Proxy>);

impl Borrow<[u8]> for ByKey {
    fn borrow(&self) -> &[u8] {
        &self.0.key
    }
}

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key == other.0.key
    }
}

impl Eq for ByKey {}

impl PartialOrd for ByKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.key.cmp(&other.0.key)
    }
}

/// The index of a table.
#[derive(Debug)]
pub(crate) struct Index {
    proxies: RwLock<BTreeSet<ByKey>>,
}

impl Index {
    pub(crate) fn new() -> Self {
        Self { proxies: RwLock::new(BTreeSet::new()) }
    }

    /// The proxy of a key, which may have no version.
    pub(crate) fn find(&self, key: &[u8]) -> Option<Arc<Proxy>> {
        self.proxies.read().get(key).map(|found| found.0.clone())
    }

    /// The proxy of a key, a new one if there is none.
    pub(crate) fn find_or_insert(&self, key: &[u8]) -> Arc<Proxy> {
        if let Some(found) = self.find(key) {
            return found;
        }
        let mut proxies = self.proxies.write();
        if let Some(found) = proxies.get(key) {
            return found.0.clone();
        }
        let proxy = Proxy::new(key);
        proxies.insert(ByKey(proxy.clone()));
        proxy
    }

    /// The last tuple of the greatest key below `key` that has one.
    pub(crate) fn predecessor(&self, key: &[u8]) -> Option<Slot> {
        let proxies = self.proxies.read();
        let below = (std::ops::Bound::Unbounded, std::ops::Bound::Excluded(key));
        proxies.range::<[u8], _>(below).rev().find_map(|proxy| proxy.0.versions.lock().last())
    }

    /// Removes a proxy without versions. The caller has its lock, so nobody gives it a version.
    pub(crate) fn forget(&self, proxy: &Proxy) {
        let mut versions = proxy.versions.lock();
        if versions.is_empty() && !versions.is_dead {
            versions.is_dead = true;
            drop(versions);
            self.proxies.write().remove::<[u8]>(&proxy.key);
        }
    }

    /// Calls `visit` with each proxy, in clustering order.
    pub(crate) fn each(&self, mut visit: impl FnMut(&Arc<Proxy>)) {
        self.proxies.read().iter().for_each(|proxy| visit(&proxy.0));
    }
}
