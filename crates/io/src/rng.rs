//! Random numbers: the operating system's, or a stream fixed by a seed.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// A source of random numbers: the operating system's, or a fixed stream.
pub trait Rng: Send + Sync + fmt::Debug {
    /// The next 64 random bits.
    fn next_u64(&self) -> u64;

    /// A number below `bound`, or 0 if `bound` is 0. (Lemire's multiplication; the bias is below
    /// `bound` / 2^64.)
    fn below(&self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

/// The operating system's randomness: unpredictable, with a system call for each number.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealRng;

impl Rng for RealRng {
    #[expect(clippy::disallowed_methods, reason = "this is the seed that the lint points to")]
    fn next_u64(&self) -> u64 {
        system_u64().unwrap_or_else(|| {
            // Kernels without getrandom: the standard library's hash keys come from the system too.
            RandomState::new().build_hasher().finish()
        })
    }
}

#[cfg(target_os = "linux")]
fn system_u64() -> Option<u64> {
    use rustix::rand::{GetRandomFlags, getrandom};
    let mut bytes = [0u8; 8];
    // Eight bytes are never split once the system's pool is ready.
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(8) => Some(u64::from_ne_bytes(bytes)),
        _ => None,
    }
}

#[cfg(not(target_os = "linux"))]
fn system_u64() -> Option<u64> {
    None
}

/// A stream fixed by its seed: splitmix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number
/// Generators", OOPSLA 2014, figure 17). Threads that share the stream draw disjoint parts of it,
/// in the order in which they come.
///
/// ```
/// use stillpoint_io::{Rng, SeededRng};
/// assert_eq!(SeededRng::new(0).next_u64(), 0xe220_a839_7b1d_cdaf);
/// ```
#[derive(Debug)]
pub struct SeededRng {
    state: AtomicU64,
}

const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

impl SeededRng {
    /// The stream of this seed, from the beginning.
    pub fn new(seed: u64) -> Self {
        Self { state: AtomicU64::new(seed) }
    }
}

impl Rng for SeededRng {
    fn next_u64(&self) -> u64 {
        // Relaxed: only the counter is shared, and no other memory is published through it.
        let mut z =
            self.state.fetch_add(GOLDEN_GAMMA, Ordering::Relaxed).wrapping_add(GOLDEN_GAMMA);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::Arc;

    #[test]
    fn splitmix_matches_the_published_stream_of_seed_1234567() {
        let rng = SeededRng::new(1_234_567);
        let got: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        let published =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(got, published);
    }

    #[test]
    fn threads_share_one_stream_without_repeats() {
        let rng = Arc::new(SeededRng::new(7));
        let threads: Vec<_> = (0..4)
            .map(|i| {
                let rng = rng.clone();
                crate::spawn(&format!("draw-{i}"), move || {
                    (0..1000).map(|_| rng.next_u64()).collect::<Vec<u64>>()
                })
                .expect("thread starts")
            })
            .collect();
        let drawn: HashSet<u64> =
            threads.into_iter().flat_map(|t| t.join().expect("no panic")).collect();
        let alone = SeededRng::new(7);
        let expected: HashSet<u64> = (0..4000).map(|_| alone.next_u64()).collect();
        assert_eq!(drawn, expected);
    }

    #[test]
    fn below_stays_below_and_reaches_both_ends() {
        let rng = SeededRng::new(3);
        let drawn: HashSet<u64> = (0..200).map(|_| rng.below(5)).collect();
        assert_eq!(drawn, HashSet::from([0, 1, 2, 3, 4]));
        assert_eq!(rng.below(0), 0);
    }

    #[test]
    fn system_randomness_does_not_repeat() {
        let drawn: HashSet<u64> = (0..100).map(|_| RealRng.next_u64()).collect();
        assert_eq!(drawn.len(), 100);
    }
}
