//! The index of a table: all proxies in clustering order, and by the hashes of their keys. It is transient.

use std::borrow::Borrow;
use std::cmp;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use stillpoint_format::hash::KeyHasher;
use stillpoint_mem::HugeHeap;
use stillpoint_sync::{CachePadded, RwLock, RwLockReadGuard};

use crate::by_hash::ByHash;
use crate::proxy::Proxy;
use crate::slab::Slot;

/// A key in the order of keys. Its first bytes decide most comparisons, without a look at a proxy.
trait InOrder {
    /// The first eight bytes, with zeros behind a shorter key.
    fn prefix(&self) -> u64;
    fn bytes(&self) -> &[u8];
}

pub(crate) fn prefix_of(key: &[u8]) -> u64 {
    if let Some(first) = key.first_chunk() {
        return u64::from_be_bytes(*first);
    }
    let mut first = [0; 8];
    first[..key.len()].copy_from_slice(key);
    u64::from_be_bytes(first)
}

impl PartialEq for dyn InOrder + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.prefix() == other.prefix() && self.bytes() == other.bytes()
    }
}

impl Eq for dyn InOrder + '_ {}

impl PartialOrd for dyn InOrder + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn InOrder + '_ {
    fn cmp(&self, other: &Self) -> cmp::Ordering {
        self.prefix().cmp(&other.prefix()).then_with(|| self.bytes().cmp(other.bytes()))
    }
}

/// A key that is searched.
struct Asked<'k> {
    prefix: u64,
    bytes: &'k [u8],
}

impl<'k> Asked<'k> {
    fn new(bytes: &'k [u8]) -> Self {
        Self { prefix: prefix_of(bytes), bytes }
    }
}

impl InOrder for Asked<'_> {
    fn prefix(&self) -> u64 {
        self.prefix
    }

    fn bytes(&self) -> &[u8] {
        self.bytes
    }
}

/// A proxy in the order of its key.
#[derive(Debug)]
struct ByKey {
    prefix: u64,
    proxy: Arc<Proxy>,
}

impl InOrder for ByKey {
    fn prefix(&self) -> u64 {
        self.prefix
    }

    fn bytes(&self) -> &[u8] {
        &self.proxy.key
    }
}

impl<'k> Borrow<dyn InOrder + 'k> for ByKey {
    fn borrow(&self) -> &(dyn InOrder + 'k) {
        self
    }
}

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
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
        let by_prefix = self.prefix.cmp(&other.prefix);
        by_prefix.then_with(|| self.proxy.key.cmp(&other.proxy.key))
    }
}

/// Proxies in the order of their keys.
#[derive(Debug, Default)]
struct InKeyOrder {
    keys: BTreeSet<ByKey>,
    /// Where proxies and values lie.
    heap: HugeHeap,
}

impl InKeyOrder {
    /// Those between two bounds. No bound lies beyond the other one.
    fn range(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> impl DoubleEndedIterator<Item = &Arc<Proxy>> {
        let (lower, upper) = (lower.map(Asked::new), upper.map(Asked::new));
        let lower = lower.as_ref().map(|asked| asked as &dyn InOrder);
        let upper = upper.as_ref().map(|asked| asked as &dyn InOrder);
        self.keys.range::<dyn InOrder, _>((lower, upper)).map(|of| &of.proxy)
    }
}

/// Parts of the map of keys, each with a lock.
const PARTS: usize = if cfg!(any(loom, shuttle)) { 1 } else { 16 };

/// The map during a search for several keys: each part that the search has met stays locked for reading. Who
/// searches waits for nobody else meanwhile.
pub(crate) struct Search<'i> {
    index: &'i Index,
    locked: [Option<RwLockReadGuard<'i, ByHash>>; PARTS],
}

impl Search<'_> {
    /// The part of the map for a hash.
    pub(crate) fn part(&mut self, hash: u64) -> &ByHash {
        let number = Index::number_of_part(hash);
        self.locked[number].get_or_insert_with(|| self.index.by_hash[number].read())
    }
}

/// The index of a table. Who changes it has the lock of the order first, and then that of a part.
#[derive(Debug)]
pub(crate) struct Index {
    hasher: KeyHasher,
    by_hash: [CachePadded<RwLock<ByHash>>; PARTS],
    in_order: RwLock<InKeyOrder>,
}

impl Index {
    pub(crate) fn new(hash_seed: u64) -> Self {
        let part = |_| CachePadded::new(RwLock::new(ByHash::default()));
        Self {
            hasher: KeyHasher::new(hash_seed),
            by_hash: std::array::from_fn(part),
            in_order: RwLock::new(InKeyOrder::default()),
        }
    }

    /// The hash of a key.
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        self.hasher.hash(0, key)
    }

    /// The part of the map for a hash, whose place there has the low bits.
    fn part(&self, hash: u64) -> &RwLock<ByHash> {
        &self.by_hash[Self::number_of_part(hash)]
    }

    fn number_of_part(hash: u64) -> usize {
        (hash >> 48) as usize % PARTS
    }

    /// The proxy of a key, which may have no version.
    pub(crate) fn find(&self, key: &[u8]) -> Option<Arc<Proxy>> {
        self.with(key, Arc::clone)
    }

    /// Lends the proxy of a key to `with`, which waits for no lock.
    pub(crate) fn with<R>(&self, key: &[u8], with: impl FnOnce(&Arc<Proxy>) -> R) -> Option<R> {
        let hash = self.hash(key);
        self.part(hash).read().find(hash, key).map(with)
    }

    /// The proxy of a key, a new one if there is none.
    pub(crate) fn find_or_insert(&self, key: &[u8]) -> Arc<Proxy> {
        if let Some(found) = self.find(key) {
            return found;
        }
        let mut in_order = self.in_order.write();
        if let Some(found) = self.find(key) {
            return found;
        }
        let (hash, proxy) = (self.hash(key), Proxy::new(key));
        self.part(hash).write().insert(hash, proxy.clone());
        in_order.heap.note(&*proxy);
        in_order.keys.insert(ByKey { prefix: prefix_of(key), proxy: proxy.clone() });
        proxy
    }

    /// As [`find_or_insert`](Self::find_or_insert) for a start, and tells whether the proxy is new. A new one is
    /// in no order before [`fill_order`](Self::fill_order).
    pub(crate) fn find_or_insert_by_hash(&self, key: &[u8]) -> (Arc<Proxy>, bool) {
        let hash = self.hash(key);
        let mut part = self.part(hash).write();
        if let Some(found) = part.find(hash, key) {
            return (found.clone(), false);
        }
        let proxy = Proxy::new(key);
        part.insert(hash, proxy.clone());
        (proxy, true)
    }

    /// Brings all proxies into the order of keys, in which the caller has almost brought them.
    pub(crate) fn fill_order(&self, proxies: Vec<Arc<Proxy>>) {
        let of = |proxy: Arc<Proxy>| ByKey { prefix: prefix_of(&proxy.key), proxy };
        self.in_order.write().keys = proxies.into_iter().map(of).collect();
    }

    /// The map, for a search for several keys.
    pub(crate) fn search(&self) -> Search<'_> {
        Search { index: self, locked: std::array::from_fn(|_| None) }
    }

    /// The last tuple of the greatest key below `key` that has one.
    pub(crate) fn predecessor(&self, key: &[u8]) -> Option<Slot> {
        let in_order = self.in_order.read();
        let mut below = in_order.range(Bound::Unbounded, Bound::Excluded(key)).rev();
        below.find_map(|proxy| proxy.versions.lock().last())
    }

    /// The first proxy above a bound that delimits gaps.
    pub(crate) fn next_delimiter(&self, above: Bound<&[u8]>) -> Option<Arc<Proxy>> {
        let in_order = self.in_order.read();
        in_order.range(above, Bound::Unbounded).find(|proxy| proxy.delimits()).cloned()
    }

    /// The last proxy below a bound that delimits gaps.
    pub(crate) fn last_delimiter(&self, below: Bound<&[u8]>) -> Option<Arc<Proxy>> {
        let in_order = self.in_order.read();
        in_order.range(Bound::Unbounded, below).rev().find(|proxy| proxy.delimits()).cloned()
    }

    /// Removes a proxy without versions. The caller has its lock, so nobody gives it a version.
    pub(crate) fn forget(&self, proxy: &Proxy) {
        let versions = proxy.versions.lock();
        if versions.is_empty() && !proxy.is_dead() {
            proxy.set_dead();
            drop(versions);
            let hash = self.hash(&proxy.key);
            let mut in_order = self.in_order.write();
            self.part(hash).write().remove(hash, proxy);
            in_order.keys.remove(&Asked::new(&proxy.key) as &dyn InOrder);
        }
    }

    /// Appends the next keys above a bound that may have a committed value, `count` at most. True at the end.
    pub(crate) fn keys(&self, above: Bound<&[u8]>, count: usize, out: &mut Vec<Vec<u8>>) -> bool {
        let in_order = self.in_order.read();
        let all = in_order.range(above, Bound::Unbounded);
        let mut all = all.filter(|proxy| proxy.may_have_value());
        out.extend(all.by_ref().take(count).map(|proxy| proxy.key.to_vec()));
        all.next().is_none()
    }

    /// A key at a place of the map, or behind it. `None` at the end of a part.
    pub(crate) fn key_at(&self, place: u64) -> Option<Vec<u8>> {
        let part = self.part(place).read();
        part.from(place).map(|proxy| proxy.key.to_vec())
    }

    /// Calls `visit` with each proxy, in clustering order.
    pub(crate) fn each(&self, mut visit: impl FnMut(&Arc<Proxy>)) {
        self.in_order.read().keys.iter().for_each(|of| visit(&of.proxy));
    }
}
