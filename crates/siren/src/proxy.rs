//! Proxies of tuples ("troxies", §2): one for each key, with the key's versions and its lock. The
//! index of a table holds them in clustering order. Both are transient.

use std::borrow::Borrow;
use std::cmp;
use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Bound;
use std::sync::Arc;

use stillpoint_format::Stamp;
use stillpoint_format::hash::KeyHasher;
use stillpoint_sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use stillpoint_sync::{CachePadded, Mutex, RwLock, lock_word};

use crate::slab::Slot;

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
    earlier: Vec<Version>,
}

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
        self.earlier.len() + usize::from(self.last.is_some())
    }

    pub(crate) fn push(&mut self, version: Version) {
        self.earlier.extend(self.last.replace(version));
    }

    pub(crate) fn pop(&mut self) -> Option<Version> {
        std::mem::replace(&mut self.last, self.earlier.pop())
    }

    /// Takes all versions out, oldest first.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = Version> + use<> {
        let Self { last, earlier } = std::mem::take(self);
        earlier.into_iter().chain(last)
    }

    /// The newest version of a statement before this one.
    fn before(&self, statement: u32) -> Option<&Version> {
        let mut newest_first = self.last.iter().chain(self.earlier.iter().rev());
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
pub(crate) struct Versions {
    /// Whether the proxy has left the index.
    pub(crate) is_dead: bool,
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

/// The proxy of a key.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) key: Box<[u8]>,
    /// The lock of the key.
    pub(crate) lock: AtomicU64,
    /// The lock of the gap below the key, down to the next key that delimits gaps.
    pub(crate) gap: AtomicU64,
    /// The end of the last transaction that changed the key since the opening.
    stamp: AtomicU64,
    /// Whether the key delimits gaps: it has a version, or had one and is still in the index.
    delimits: AtomicBool,
    pub(crate) versions: Mutex<Versions>,
}

impl Proxy {
    fn new(key: &[u8]) -> Arc<Self> {
        Arc::new(Self {
            key: key.into(),
            lock: AtomicU64::new(lock_word::free(0, 0)),
            gap: AtomicU64::new(lock_word::free(0, 0)),
            stamp: AtomicU64::new(Stamp::NONE.to_bits()),
            delimits: AtomicBool::new(false),
            versions: Mutex::new(Versions::default()),
        })
    }

    /// The end of the last transaction that changed the key. The caller has the key's lock.
    pub(crate) fn stamp(&self) -> Stamp {
        // Relaxed: ordered by the lock, which the caller has.
        Stamp::from_bits(self.stamp.load(Relaxed))
    }

    /// Notes the end of a transaction that has changed the key. The caller has the key's lock.
    pub(crate) fn set_stamp(&self, end: Stamp) {
        // Relaxed: as in `stamp`.
        self.stamp.store(end.to_bits(), Relaxed);
    }

    pub(crate) fn delimits(&self) -> bool {
        // Acquire: partner of the Release in `set_delimits`. Who holds a lock of a gap is ordered by it.
        self.delimits.load(Acquire)
    }

    /// The key delimits gaps from here on. The caller has the lock of the gap that the key divides.
    pub(crate) fn set_delimits(&self) {
        // Release: partner of the Acquire in `delimits`.
        self.delimits.store(true, Release);
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
    fn partial_cmp(&self, other: &Self) -> Option<cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ByKey {
    fn cmp(&self, other: &Self) -> cmp::Ordering {
        self.0.key.cmp(&other.0.key)
    }
}

/// Parts of the map of keys, each with a lock.
const PARTS: usize = if cfg!(any(loom, shuttle)) { 1 } else { 16 };

/// The hasher of a map whose keys are hashes.
#[derive(Debug, Default)]
struct IsHash(u64);

impl Hasher for IsHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("the keys are numbers")
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// Proxies by the hashes of their keys.
type ByHash = HashMap<u64, Arc<Proxy>, BuildHasherDefault<IsHash>>;

/// The index of a table: all proxies in order, and most of them by hash. Of several keys with one hash, only
/// one is in the map.
#[derive(Debug)]
pub(crate) struct Index {
    hasher: KeyHasher,
    by_hash: [CachePadded<RwLock<ByHash>>; PARTS],
    proxies: RwLock<BTreeSet<ByKey>>,
}

impl Index {
    pub(crate) fn new(hash_seed: u64) -> Self {
        let part = |_| CachePadded::new(RwLock::new(ByHash::default()));
        Self {
            hasher: KeyHasher::new(hash_seed),
            by_hash: std::array::from_fn(part),
            proxies: RwLock::new(BTreeSet::new()),
        }
    }

    /// The hash of a key, and its part of the map.
    fn hash(&self, key: &[u8]) -> (u64, &RwLock<ByHash>) {
        let hash = self.hasher.hash(0, key);
        // The map takes the low and the highest bits.
        (hash, &self.by_hash[(hash >> 48) as usize % PARTS])
    }

    /// The proxy of a key, which may have no version.
    pub(crate) fn find(&self, key: &[u8]) -> Option<Arc<Proxy>> {
        let (hash, part) = self.hash(key);
        if let Some(found) = part.read().get(&hash)
            && *found.key == *key
        {
            return Some(found.clone());
        }
        self.proxies.read().get(key).map(|found| found.0.clone())
    }

    /// The proxy of a key, a new one if there is none.
    pub(crate) fn find_or_insert(&self, key: &[u8]) -> Arc<Proxy> {
        if let Some(found) = self.find(key) {
            return found;
        }
        let (hash, part) = self.hash(key);
        let mut proxies = self.proxies.write();
        if let Some(found) = proxies.get(key) {
            return found.0.clone();
        }
        let proxy = Proxy::new(key);
        part.write().entry(hash).or_insert_with(|| proxy.clone());
        proxies.insert(ByKey(proxy.clone()));
        proxy
    }

    /// The last tuple of the greatest key below `key` that has one.
    pub(crate) fn predecessor(&self, key: &[u8]) -> Option<Slot> {
        let proxies = self.proxies.read();
        let below = (Bound::Unbounded, Bound::Excluded(key));
        proxies.range::<[u8], _>(below).rev().find_map(|proxy| proxy.0.versions.lock().last())
    }

    /// The first proxy above a bound that delimits gaps.
    pub(crate) fn next_delimiter(&self, above: Bound<&[u8]>) -> Option<Arc<Proxy>> {
        let proxies = self.proxies.read();
        let mut next = proxies.range::<[u8], _>((above, Bound::Unbounded));
        next.find(|proxy| proxy.0.delimits()).map(|proxy| proxy.0.clone())
    }

    /// The last proxy below a bound that delimits gaps.
    pub(crate) fn last_delimiter(&self, below: Bound<&[u8]>) -> Option<Arc<Proxy>> {
        let proxies = self.proxies.read();
        let mut all = proxies.range::<[u8], _>((Bound::Unbounded, below)).rev();
        all.find(|proxy| proxy.0.delimits()).map(|proxy| proxy.0.clone())
    }

    /// Removes a proxy without versions. The caller has its lock, so nobody gives it a version.
    pub(crate) fn forget(&self, proxy: &Proxy) {
        let mut versions = proxy.versions.lock();
        if versions.is_empty() && !versions.is_dead {
            versions.is_dead = true;
            drop(versions);
            let (hash, part) = self.hash(&proxy.key);
            let mut proxies = self.proxies.write();
            let mut by_hash = part.write();
            if by_hash.get(&hash).is_some_and(|found| std::ptr::eq(&**found, proxy)) {
                by_hash.remove(&hash);
            }
            proxies.remove::<[u8]>(&proxy.key);
        }
    }

    /// Appends the next keys above a bound that may have a value, `count` at most. True at the end.
    pub(crate) fn keys(&self, above: Bound<&[u8]>, count: usize, out: &mut Vec<Vec<u8>>) -> bool {
        let proxies = self.proxies.read();
        let all = proxies.range::<[u8], _>((above, Bound::Unbounded));
        let mut all = all.filter(|proxy| proxy.0.delimits());
        out.extend(all.by_ref().take(count).map(|proxy| proxy.0.key.to_vec()));
        all.next().is_none()
    }

    /// Calls `visit` with each proxy, in clustering order.
    pub(crate) fn each(&self, mut visit: impl FnMut(&Arc<Proxy>)) {
        self.proxies.read().iter().for_each(|proxy| visit(&proxy.0));
    }
}
