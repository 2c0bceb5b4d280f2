//! Random numbers for workloads: fast, seeded, the same on every machine.
//!
//! - [`Random`]: xoshiro256++ (Blackman, Vigna: *Scrambled linear
//!   pseudorandom number generators*, 2021), seeded through splitmix64.
//! - [`Zipf`]: rejection-inversion (Hörmann, Derflinger: *Rejection-inversion
//!   to generate variates from monotone discrete distributions*, 1996). Exact
//!   for every exponent, no table, no set-up that grows with the key space.

/// A stream of random numbers, given by its seed.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: [u64; 4],
}

/// The next number of splitmix64; also a good mixer of 64 bits.
pub(crate) fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Random {
    /// The stream of this seed.
    pub(crate) fn new(seed: u64) -> Random {
        let mut mix = seed;
        Random { state: std::array::from_fn(|_| splitmix64(&mut mix)) }
    }

    /// An independent stream for the n-th thread of a run.
    pub(crate) fn for_thread(seed: u64, thread: usize) -> Random {
        let mut mix = seed ^ (thread as u64 + 1).wrapping_mul(0xd134_2543_de82_ef95);
        Random::new(splitmix64(&mut mix))
    }

    /// 64 random bits.
    pub(crate) fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform in `0..n`, without bias (Lemire's multiplication).
    ///
    /// # Panics
    /// When `n` is zero.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "there is no number below zero");
        loop {
            let product = u128::from(self.next_u64()) * u128::from(n);
            let low = product as u64;
            if low >= n || low >= n.wrapping_neg() % n {
                return (product >> 64) as u64;
            }
        }
    }

    /// Uniform in `[0, 1)`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True with the given probability.
    pub(crate) fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Time to the next event of a Poisson process with `mean` time between events.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -(1.0 - self.unit()).ln() * mean
    }
}

/// Distribution of drawn keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum KeyLaw {
    /// Every key is equally likely.
    #[default]
    Uniform,
    /// YCSB's scrambled Zipf law: see [`Keys::with`].
    ScrambledZipf,
}

/// A generator of keys in `0..n`.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    n: u64,
    ranks: Option<Zipf>,
}

/// Ranks and exponent of YCSB's Zipf law (its `ScrambledZipfianGenerator`).
const SCRAMBLED_RANKS: u64 = 10_000_000_000;
/// See [`SCRAMBLED_RANKS`].
pub(crate) const YCSB_EXPONENT: f64 = 0.99;

impl Keys {
    /// Keys of `0..n`, all equally likely.
    ///
    /// # Panics
    /// When `n` is zero.
    pub(crate) fn new(n: u64) -> Keys {
        Keys::with(KeyLaw::Uniform, n)
    }

    /// Keys of `0..n` by a law. YCSB's scrambled law draws one of 10^10 ranks by the Zipf law of
    /// exponent 0.99, whatever `n` is. The key is the rank's FNV hash modulo `n`, so the popular
    /// keys lie scattered.
    ///
    /// # Panics
    /// When `n` is zero.
    pub(crate) fn with(law: KeyLaw, n: u64) -> Keys {
        assert!(n > 0, "a key space has at least one key");
        let is_scrambled = law == KeyLaw::ScrambledZipf;
        Keys { n, ranks: is_scrambled.then(|| Zipf::new(SCRAMBLED_RANKS, YCSB_EXPONENT)) }
    }

    /// The next key.
    pub(crate) fn next(&self, random: &mut Random) -> u64 {
        match &self.ranks {
            None => random.below(self.n),
            Some(ranks) => fnv_hash(ranks.next(random) - 1) % self.n,
        }
    }
}

/// YCSB's hash of a number: FNV-1a of its eight bytes from the lowest on, without its sign.
fn fnv_hash(number: u64) -> u64 {
    let hash = number.to_le_bytes().iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    hash.cast_signed().unsigned_abs()
}

/// Ranks `1..=n` with probability proportional to rank^-exponent.
#[derive(Clone, Debug)]
pub(crate) struct Zipf {
    n: u64,
    exponent: f64,
    integral_first: f64,
    integral_last: f64,
    squeeze: f64,
}

impl Zipf {
    /// Ranks `1..=n`.
    ///
    /// # Panics
    /// When `n` is zero or the exponent is negative or no number.
    pub(crate) fn new(n: u64, exponent: f64) -> Zipf {
        assert!(n > 0, "a distribution has at least one rank");
        assert!(exponent >= 0.0, "exponent {exponent} must be at least 0");
        let mut zipf = Zipf { n, exponent, integral_first: 0.0, integral_last: 0.0, squeeze: 0.0 };
        zipf.integral_first = zipf.integral(1.5) - 1.0;
        zipf.integral_last = zipf.integral(n as f64 + 0.5);
        zipf.squeeze = 2.0 - zipf.integral_inverse(zipf.integral(2.5) - zipf.density(2.0));
        zipf
    }

    /// The next rank.
    pub(crate) fn next(&self, random: &mut Random) -> u64 {
        loop {
            let u = self.integral_last + random.unit() * (self.integral_first - self.integral_last);
            let x = self.integral_inverse(u);
            let rank = (x.round()).clamp(1.0, self.n as f64);
            if rank - x <= self.squeeze || u >= self.integral(rank + 0.5) - self.density(rank) {
                return rank as u64;
            }
        }
    }

    fn density(&self, x: f64) -> f64 {
        (-self.exponent * x.ln()).exp()
    }

    /// An integral of the density: (x^(1-e) - 1) / (1-e), ln x for e = 1.
    fn integral(&self, x: f64) -> f64 {
        let log_x = x.ln();
        expm1_over((1.0 - self.exponent) * log_x) * log_x
    }

    fn integral_inverse(&self, y: f64) -> f64 {
        let t = (y * (1.0 - self.exponent)).max(-1.0);
        (ln1p_over(t) * y).exp()
    }
}

/// (e^x - 1) / x, also near 0.
fn expm1_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.exp_m1() / x } else { 1.0 + x / 2.0 }
}

/// ln(1 + x) / x, also near 0.
fn ln1p_over(x: f64) -> f64 {
    if x.abs() > 1e-8 { x.ln_1p() / x } else { 1.0 - x / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chi-square of counts against expected counts, divided by the degrees of freedom.
    fn chi_square(observed: &[f64], expected: &[f64]) -> f64 {
        let sum: f64 = observed.iter().zip(expected).map(|(o, e)| (o - e).powi(2) / e).sum();
        sum / (observed.len() - 1) as f64
    }

    /// The sum of rank^-exponent over all ranks, as YCSB gives it for its 10^10.
    const YCSB_ZETA: f64 = 26.469_028_201_783_02;

    #[test]
    fn scrambled_keys_follow_the_published_law() {
        let (n, draws) = (1_000_u64, 400_000);
        let keys = Keys::with(KeyLaw::ScrambledZipf, n);
        let mut random = Random::new(11);
        let mut counts = vec![0_u32; n as usize];
        (0..draws).for_each(|_| counts[keys.next(&mut random) as usize] += 1);
        // Expected count of each key: the first 10^5 ranks are hashed one by one, the rest are
        // spread evenly over all keys.
        let mut expected = vec![0.0; n as usize];
        let (mut rest, mut rank) = (1.0, 1_u64);
        while rank <= 100_000 {
            let share = (rank as f64).powf(-YCSB_EXPONENT) / YCSB_ZETA;
            expected[(fnv_hash(rank - 1) % n) as usize] += share;
            rest -= share;
            rank += 1;
        }
        for (key, (&count, share)) in counts.iter().zip(&expected).enumerate() {
            let share = (share + rest / n as f64) * f64::from(draws);
            let apart = (f64::from(count) - share).abs();
            // Five standard deviations, plus the unevenness of the remaining ranks.
            assert!(apart < 5.0 * share.sqrt() + 0.02 * share, "key {key}: {count} and {share:.0}");
        }
        let hottest = (fnv_hash(0) % n) as usize;
        assert!(counts.iter().all(|&count| count <= counts[hottest]));
        assert!(f64::from(counts[hottest]) / f64::from(draws) > 0.95 / YCSB_ZETA);
    }

    #[test]
    fn xoshiro_gives_its_published_first_numbers() {
        let mut random = Random { state: [1, 2, 3, 4] };
        let first: [u64; 4] = std::array::from_fn(|_| random.next_u64());
        assert_eq!(first, [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386]);
    }

    #[test]
    fn streams_of_threads_differ_and_repeat() {
        let draw = |thread| Random::for_thread(7, thread).next_u64();
        assert_eq!(draw(0), draw(0));
        assert_ne!(draw(0), draw(1));
    }

    #[test]
    fn below_is_uniform() {
        let (mut random, n, draws) = (Random::new(1), 97_u64, 970_000);
        let mut counts = vec![0.0; n as usize];
        for _ in 0..draws {
            counts[random.below(n) as usize] += 1.0;
        }
        let expected = vec![draws as f64 / n as f64; n as usize];
        let chi = chi_square(&counts, &expected);
        assert!((0.6..1.5).contains(&chi), "chi-square per degree of freedom is {chi}");
    }

    #[test]
    fn zipf_follows_the_theory() {
        for exponent in [0.0, 0.5, 0.99, 1.0, 2.0] {
            let (n, draws) = (50_u64, 400_000);
            let zipf = Zipf::new(n, exponent);
            let mut random = Random::new(42);
            let mut counts = vec![0.0; n as usize];
            for _ in 0..draws {
                counts[zipf.next(&mut random) as usize - 1] += 1.0;
            }
            let weight = |rank: u64| (rank as f64).powf(-exponent);
            let total: f64 = (1..=n).map(weight).sum();
            let expected: Vec<f64> =
                (1..=n).map(|rank| weight(rank) / total * f64::from(draws)).collect();
            let chi = chi_square(&counts, &expected);
            assert!((0.4..1.7).contains(&chi), "exponent {exponent}: chi-square per degree {chi}");
        }
    }

    #[test]
    fn zipf_of_a_large_space_has_the_right_head() {
        let n = 20_000_000_u64;
        let zipf = Zipf::new(n, 0.99);
        let mut random = Random::new(3);
        let draws = 300_000;
        let first = (0..draws).filter(|_| zipf.next(&mut random) == 1).count() as f64;
        // zeta(n, 0.99) by Euler and Maclaurin.
        let zeta =
            ((n as f64).powf(0.01) - 1.0) / 0.01 + 0.5 + 0.5 * (n as f64).powf(-0.99) + 0.99 / 12.0;
        let share = first / f64::from(draws);
        assert!((share * zeta - 1.0).abs() < 0.03, "share {share}, theory {}", 1.0 / zeta);
    }

    #[test]
    fn keys_stay_in_their_space() {
        let mut random = Random::new(5);
        let keys = Keys::new(3);
        assert!((0..10_000).all(|_| keys.next(&mut random) < 3));
        assert_eq!(Keys::new(1).next(&mut random), 0);
    }

    #[test]
    fn exponential_has_its_mean() {
        let mut random = Random::new(9);
        let mean = (0..200_000).map(|_| random.exponential(5.0)).sum::<f64>() / 200_000.0;
        assert!((mean - 5.0).abs() < 0.1, "{mean}");
    }
}
