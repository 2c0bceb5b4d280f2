//! Tests of golden vectors, avalanche and distribution. An independent program computed the vectors
//! from the text of docs/formats.md.

use super::*;

/// (seed, table, n, hash of the bytes 0, 1, … n−1).
const GOLDEN_VECTORS: &[(u64, u16, usize, u64)] = &[
    (0x0000000000000000, 0, 0, 0xca7752919f058d20),
    (0x0000000000000000, 0, 1, 0xc132f1b91f3e47f3),
    (0x0000000000000000, 0, 3, 0x04b162716702883f),
    (0x0000000000000000, 0, 4, 0x62d4d0f4d50eff3c),
    (0x0000000000000000, 0, 7, 0x84e2daf3069274ad),
    (0x0000000000000000, 0, 8, 0xc740a902166df4fa),
    (0x0000000000000000, 0, 15, 0xae7f392ebd9a6bdc),
    (0x0000000000000000, 0, 16, 0x85ad2f16fe86de83),
    (0x0000000000000000, 0, 17, 0x3d20c6ee4776b26e),
    (0x0000000000000000, 0, 33, 0xc2d29e00b503a6d5),
    (0x0000000000000000, 0, 64, 0x248af302478e4ad8),
    (0x0000000000000000, 0, 256, 0x90af3e924dc073bc),
    (0x0000000000000000, 7, 8, 0x0cf6c1926e2b0ce2),
    (0x0000000000000000, 65535, 8, 0xd5352b8bdbc2070d),
    (0x5715190120260001, 7, 0, 0x0e8d665c7a6aec0b),
    (0x5715190120260001, 7, 1, 0xd703fdada2541889),
    (0x5715190120260001, 7, 3, 0x0a041c894b1228a6),
    (0x5715190120260001, 7, 4, 0x3ae54abac209b4a5),
    (0x5715190120260001, 7, 7, 0x184caf38740fd9ea),
    (0x5715190120260001, 7, 8, 0x095dc4213d5aa168),
    (0x5715190120260001, 7, 15, 0xe1c2e8bfee187c88),
    (0x5715190120260001, 7, 16, 0x915374cf8e1daf89),
    (0x5715190120260001, 7, 17, 0xb14aac41caff0243),
    (0x5715190120260001, 7, 33, 0x4d0edf0f9608defd),
    (0x5715190120260001, 7, 64, 0xebc932696a3f1020),
    (0x5715190120260001, 7, 256, 0x2112923a9e2d3ff2),
    (0x5715190120260001, 65535, 0, 0x5f9786e2bea63448),
    (0x5715190120260001, 65535, 1, 0x861a3092d57cd93d),
    (0x5715190120260001, 65535, 3, 0x9f4a292c344fa42e),
    (0x5715190120260001, 65535, 4, 0x428ba1609af5b418),
    (0x5715190120260001, 65535, 7, 0x42434d52bb4f8ec1),
    (0x5715190120260001, 65535, 8, 0x08c42ea30c747b7b),
    (0x5715190120260001, 65535, 15, 0xa8becdc8f6ee6c6f),
    (0x5715190120260001, 65535, 16, 0xb4e19922892af98b),
    (0x5715190120260001, 65535, 17, 0x87e7b74eaba31f12),
    (0x5715190120260001, 65535, 33, 0x56535c9008d8a8ce),
    (0x5715190120260001, 65535, 64, 0x0d02cf05ec8d991d),
    (0x5715190120260001, 65535, 256, 0x6077dbf3dc607a32),
];

#[test]
fn golden_vectors() {
    let bytes: Vec<u8> = (0..=255).collect();
    for &(seed, table, len, expected) in GOLDEN_VECTORS {
        let hash = KeyHasher::new(seed).hash(table, &bytes[..len]);
        assert_eq!(hash, expected, "seed {seed:#x}, table {table}, {len} bytes: {hash:#018x}");
    }
}

#[test]
fn partitions_are_the_top_bits() {
    for log2 in 0..=16 {
        assert_eq!(partition_of(0, log2), 0);
        assert_eq!(partition_of(u64::MAX, log2), (1 << log2) - 1);
        assert_eq!(partition_of(1 << 63, log2), (1 << log2) >> 1);
    }
    assert_eq!(partition_of(u64::MAX, 200), 65_535);
}

/// A stream for tests.
struct Stream(u64);

impl Stream {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        split_mix(self.0)
    }
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// Flipping any input bit flips every output bit in half of the cases.
#[test]
fn avalanche() {
    const KEYS: usize = 4096;
    let mut stream = Stream(1);
    // Short keys have few values, so the sample also runs over seeds.
    let hashers: Vec<KeyHasher> = (0..KEYS).map(|_| KeyHasher::new(stream.next())).collect();
    for len in [1, 2, 3, 4, 7, 8, 9, 16, 17, 32, 40] {
        let keys: Vec<Vec<u8>> = (0..KEYS).map(|_| stream.bytes(len)).collect();
        for bit in 0..len * 8 {
            let mut flips = [0usize; 64];
            for (key, hasher) in keys.iter().zip(&hashers) {
                let mut other = key.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                let difference = hasher.hash(3, key) ^ hasher.hash(3, &other);
                for (out, count) in flips.iter_mut().enumerate() {
                    *count += (difference >> out & 1) as usize;
                }
            }
            for (out, count) in flips.iter().enumerate() {
                let share = *count as f64 / KEYS as f64;
                // Six standard deviations of a fair coin are 0.047.
                assert!(
                    (0.45..0.55).contains(&share),
                    "{len}-byte key, bit {bit} → {out}: {share:.3}"
                );
            }
        }
    }
}

/// Chi-squared of the counts of 1024 buckets, in standard deviations.
fn chi_squared_deviation(counts: &[u32]) -> f64 {
    let total: f64 = counts.iter().map(|&count| f64::from(count)).sum();
    let mean = total / counts.len() as f64;
    let sum: f64 = counts.iter().map(|&count| (f64::from(count) - mean).powi(2) / mean).sum();
    let freedom = (counts.len() - 1) as f64;
    (sum - freedom) / (2.0 * freedom).sqrt()
}

fn check_distribution(name: &str, keys: impl Fn(u64) -> Vec<u8>) {
    const KEYS: u64 = 200_000;
    let hasher = KeyHasher::new(0x5EED);
    let mut hashes: Vec<u64> = (0..KEYS).map(|n| hasher.hash(0, &keys(n))).collect();
    for shift in [0, 10, 27, 44, 54] {
        let mut counts = [0u32; 1024];
        for hash in &hashes {
            counts[(hash >> shift & 1023) as usize] += 1;
        }
        let deviation = chi_squared_deviation(&counts);
        assert!(deviation < 6.0, "{name}, bits {shift}..: {deviation:.1} deviations too uneven");
    }
    hashes.sort_unstable();
    let distinct = hashes.windows(2).filter(|pair| pair[0] != pair[1]).count() as u64 + 1;
    assert_eq!(distinct, KEYS, "{name}: equal hashes");
}

#[test]
fn distribution() {
    check_distribution("u64", |n| n.to_le_bytes().to_vec());
    check_distribution("u64, big-endian", |n| n.to_be_bytes().to_vec());
    check_distribution("u32", |n| (n as u32).to_le_bytes().to_vec());
    check_distribution("stride 4096", |n| (n << 12).to_le_bytes().to_vec());
    check_distribution("stride 2^40", |n| (n << 40).to_le_bytes().to_vec());
    check_distribution("two words", |n| [n % 447, n / 447].map(u64::to_le_bytes).concat());
    check_distribution("text", |n| format!("user:{n}").into_bytes());
    check_distribution("padded text", |n| format!("session:{n:032}:data").into_bytes());
}

#[test]
fn zeros_of_every_length_differ() {
    let hasher = KeyHasher::new(5);
    let zeros = vec![0; 4096];
    let mut hashes: Vec<u64> = (0..=4096).map(|len| hasher.hash(0, &zeros[..len])).collect();
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 4097);
}

#[test]
fn tables_and_seeds_are_independent() {
    let mut hashes = Vec::new();
    for seed in 0..64 {
        let hasher = KeyHasher::new(seed);
        assert_eq!(hasher.seed(), seed);
        hashes.extend((0..1024).map(|table| hasher.hash(table, b"the same key")));
    }
    let mut counts = [0u32; 1024];
    for hash in &hashes {
        counts[(hash >> 54) as usize] += 1;
    }
    assert!(chi_squared_deviation(&counts) < 6.0);
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 64 * 1024);
}
