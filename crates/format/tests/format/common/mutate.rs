//! Hostile bytes: seeded mutations of valid files.

/// A stream of random numbers (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Stream(pub(crate) u64);

impl Stream {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// Numbers at which decoders tend to fail.
const NASTY: [u64; 12] = [
    0,
    1,
    u64::MAX,
    u64::MAX - 1,
    1 << 63,
    u32::MAX as u64,
    u32::MAX as u64 - 7,
    1 << 31,
    u16::MAX as u64,
    1 << 52,
    512 << 20,
    65_537,
];

/// Changes some bytes: flips, nasty numbers, runs, cuts, insertions, doublings.
pub(crate) fn mutate(stream: &mut Stream, bytes: &mut Vec<u8>) {
    for _ in 0..=stream.below(4) {
        if bytes.is_empty() {
            bytes.push(stream.next() as u8);
        }
        let at = stream.below(bytes.len());
        let len = stream.below(64).min(bytes.len() - at);
        match stream.below(9) {
            0 | 1 => bytes[at] ^= 1 << stream.below(8),
            2 => bytes[at] = stream.next() as u8,
            3 | 4 => {
                let nasty = NASTY[stream.below(NASTY.len())].to_le_bytes();
                let width = [1, 2, 4, 8][stream.below(4)].min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&nasty[..width]);
            }
            5 => bytes[at..at + len].fill(stream.next() as u8),
            6 => bytes.truncate(at),
            7 => {
                let copy = bytes[at..at + len].to_vec();
                let to = stream.below(bytes.len());
                bytes.splice(to..to, copy);
            }
            _ => drop(bytes.drain(at..at + len)),
        }
    }
}
