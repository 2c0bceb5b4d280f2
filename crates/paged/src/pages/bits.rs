//! A set of small numbers, as bits.

use std::ops::Range;

/// Numbers below a length that grows. Numbers beyond the length are not in the set.
#[derive(Clone, Debug, Default)]
pub(super) struct Bits {
    words: Vec<u64>,
}

impl Bits {
    /// Whether the number is in the set.
    pub(super) fn has(&self, number: u64) -> bool {
        let word = self.words.get((number / 64) as usize).copied().unwrap_or(0);
        word >> (number % 64) & 1 != 0
    }

    /// Adds a number. Returns whether it is new.
    pub(super) fn add(&mut self, number: u64) -> bool {
        let at = (number / 64) as usize;
        if at >= self.words.len() {
            self.words.resize(at + 1, 0);
        }
        let bit = 1 << (number % 64);
        let is_new = self.words[at] & bit == 0;
        self.words[at] |= bit;
        is_new
    }

    /// Removes a number. Returns whether it was in the set.
    pub(super) fn remove(&mut self, number: u64) -> bool {
        let had = self.has(number);
        if had {
            self.words[(number / 64) as usize] &= !(1 << (number % 64));
        }
        had
    }

    /// The bits of the numbers `64 * at..64 * (at + 1)`.
    fn word(&self, at: usize) -> u64 {
        self.words.get(at).copied().unwrap_or(0)
    }
}

/// Number of numbers below `end` that are in no set.
pub(super) fn count_absent(sets: [&Bits; 3], end: u64) -> u64 {
    let words = end.div_ceil(64) as usize;
    let present = |at: usize| sets.iter().fold(0, |all, set| all | set.word(at)) & below(end, at);
    end - (0..words).map(|at| u64::from(present(at).count_ones())).sum::<u64>()
}

/// The first run of numbers in `range` that are in no set, of at most `longest` numbers.
pub(super) fn absent_run(sets: [&Bits; 3], range: Range<u64>, longest: u64) -> Option<Range<u64>> {
    let present = |at: usize| sets.iter().fold(0, |all, set| all | set.word(at));
    let mut number = range.start;
    while number < range.end {
        let free = !present((number / 64) as usize) >> (number % 64);
        if free == 0 {
            number = (number / 64 + 1) * 64;
            continue;
        }
        number += u64::from(free.trailing_zeros());
        let start = number;
        while number < range.end && number - start < longest {
            let bits = present((number / 64) as usize) >> (number % 64);
            let free = u64::from(bits.trailing_zeros()).min(64 - number % 64);
            number += free;
            if free == 0 || !number.is_multiple_of(64) {
                break;
            }
        }
        let end = number.min(range.end).min(start + longest);
        return (start < end).then_some(start..end);
    }
    None
}

/// The bits of word `at` that stand for numbers below `end`.
fn below(end: u64, at: usize) -> u64 {
    let first = at as u64 * 64;
    match end.saturating_sub(first) {
        0 => 0,
        count if count >= 64 => u64::MAX,
        count => (1 << count) - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use stillpoint_io::{Rng, SeededRng, seeded_rounds};

    #[test]
    fn sets_and_runs_equal_those_of_a_sequential_model() {
        seeded_rounds(200, |seed| {
            let rng = SeededRng::new(seed);
            let end = rng.below(300) + 1;
            let mut sets: [Bits; 3] = Default::default();
            let mut mirrors: [BTreeSet<u64>; 3] = Default::default();
            for _ in 0..rng.below(600) {
                let (which, number) = (rng.below(3) as usize, rng.below(end));
                if rng.below(3) > 0 {
                    assert_eq!(sets[which].add(number), mirrors[which].insert(number));
                } else {
                    assert_eq!(sets[which].remove(number), mirrors[which].remove(&number));
                }
                assert_eq!(sets[which].has(number), mirrors[which].contains(&number));
            }
            let all = [&sets[0], &sets[1], &sets[2]];
            let is_absent = |number: &u64| mirrors.iter().all(|mirror| !mirror.contains(number));
            assert_eq!(count_absent(all, end), (0..end).filter(is_absent).count() as u64);
            for _ in 0..20 {
                let start = rng.below(end + 1);
                let stop = start + rng.below(end + 1 - start);
                let longest = rng.below(130) + 1;
                let first = (start..stop).find(is_absent);
                let expected = first.map(|first| {
                    let run = (first..stop).take_while(is_absent).take(longest as usize).count();
                    first..first + run as u64
                });
                assert_eq!(absent_run(all, start..stop, longest), expected, "seed {seed}");
            }
        });
    }
}
