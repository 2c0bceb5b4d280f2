//! A map of proxies by the hashes of their keys, with open addressing and linear probing. A search meets one
//! cache line in most cases, and the line is known beforehand.
//!
//! At most three quarters of the places are used, so each search ends at a free place.

use std::sync::Arc;

use stillpoint_mem::{prefer_huge_pages, prefetch};

use crate::proxy::Proxy;

/// Least number of places: a power of two.
const PLACES_MIN: usize = 16;

/// A place of the map.
#[derive(Debug, Default)]
struct Bucket {
    hash: u64,
    proxy: Option<Arc<Proxy>>,
}

/// Proxies by hash.
#[derive(Debug, Default)]
pub(crate) struct ByHash {
    places: Vec<Bucket>,
    len: usize,
}

impl ByHash {
    fn mask(&self) -> usize {
        self.places.len() - 1
    }

    /// The place of a key, or the free place at which the search for it ends.
    fn search(&self, hash: u64, key: &[u8]) -> usize {
        let mask = self.mask();
        let mut at = hash as usize & mask;
        loop {
            let Bucket { hash: of, proxy } = &self.places[at];
            match proxy {
                None => return at,
                Some(found) if *of == hash && *found.key == *key => return at,
                Some(_) => at = (at + 1) & mask,
            }
        }
    }

    /// The proxy of a key.
    pub(crate) fn find(&self, hash: u64, key: &[u8]) -> Option<&Arc<Proxy>> {
        if self.places.is_empty() {
            return None;
        }
        self.places[self.search(hash, key)].proxy.as_ref()
    }

    /// Adds a proxy whose key is not in the map.
    pub(crate) fn insert(&mut self, hash: u64, proxy: Arc<Proxy>) {
        if 4 * (self.len + 1) > 3 * self.places.len() {
            self.grow();
        }
        let at = self.search(hash, &proxy.key);
        self.places[at] = Bucket { hash, proxy: Some(proxy) };
        self.len += 1;
    }

    fn grow(&mut self) {
        let places = (2 * self.places.len()).max(PLACES_MIN);
        let mut fresh = Vec::with_capacity(places);
        prefer_huge_pages(&fresh);
        fresh.resize_with(places, Bucket::default);
        let mask = places - 1;
        for place in std::mem::replace(&mut self.places, fresh) {
            if place.proxy.is_some() {
                let mut at = place.hash as usize & mask;
                while self.places[at].proxy.is_some() {
                    at = (at + 1) & mask;
                }
                self.places[at] = place;
            }
        }
    }

    /// Removes a proxy, if it is in the map. Those behind it move up, so that no search ends too early.
    pub(crate) fn remove(&mut self, hash: u64, proxy: &Proxy) {
        if self.places.is_empty() {
            return;
        }
        let mask = self.mask();
        let mut hole = self.search(hash, &proxy.key);
        if !self.places[hole].proxy.as_ref().is_some_and(|found| std::ptr::eq(&**found, proxy)) {
            return;
        }
        self.places[hole].proxy = None;
        self.len -= 1;
        let mut next = (hole + 1) & mask;
        while self.places[next].proxy.is_some() {
            let home = self.places[next].hash as usize & mask;
            // Whether the hole lies between the proxy's home and its place.
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(hole) & mask) {
                self.places.swap(hole, next);
                hole = next;
            }
            next = (next + 1) & mask;
        }
    }

    /// Prefetches the place at which the search for a hash begins.
    pub(crate) fn prefetch(&self, hash: u64) {
        if let Some(place) = self.places.get(hash as usize & self.places.len().wrapping_sub(1)) {
            prefetch(place);
        }
    }

    /// The first proxy at the place of a hash, or behind it.
    pub(crate) fn from(&self, hash: u64) -> Option<&Arc<Proxy>> {
        let at = hash as usize & self.places.len().wrapping_sub(1);
        self.places.get(at..)?.iter().find_map(|place| place.proxy.as_ref())
    }

    /// The first proxy of a hash, most likely that of the key. Looks at no proxy.
    pub(crate) fn likely(&self, hash: u64) -> Option<&Arc<Proxy>> {
        let at = hash as usize & self.places.len().wrapping_sub(1);
        let mut places = self.places.get(at..)?.iter().take_while(|place| place.proxy.is_some());
        places.find(|place| place.hash == hash)?.proxy.as_ref()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::collections::BTreeMap;

    use stillpoint_io::{Rng, SeededRng};

    use super::*;

    /// Random insertions and removals beside a map. Few hashes, so that many proxies are out of their
    /// homes, and some have one hash.
    #[test]
    fn it_is_like_a_map() {
        for seed in 0..20 {
            let rng = SeededRng::new(seed);
            let (mut map, mut known) = (ByHash::default(), BTreeMap::<u64, Arc<Proxy>>::new());
            let hash_of = |key: u64| key.wrapping_mul(seed + 1) % 61;
            for _ in 0..3000 {
                let key = rng.below(200);
                let bytes = key.to_be_bytes();
                match known.remove(&key) {
                    Some(proxy) => map.remove(hash_of(key), &proxy),
                    None => {
                        let proxy = Proxy::new(&bytes);
                        map.insert(hash_of(key), proxy.clone());
                        known.insert(key, proxy);
                    }
                }
                let key = rng.below(200);
                let found = map.find(hash_of(key), &key.to_be_bytes());
                let found = found.map(Arc::as_ptr);
                assert_eq!(found, known.get(&key).map(Arc::as_ptr), "seed {seed}");
                assert_eq!(map.len, known.len());
            }
            for (key, proxy) in &known {
                let found = map.find(hash_of(*key), &key.to_be_bytes());
                assert!(found.is_some_and(|found| Arc::ptr_eq(found, proxy)), "seed {seed}");
            }
        }
    }
}
