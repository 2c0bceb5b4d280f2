//! Zipf-distributed accesses: SIGMOD 2011, §5.1 (objects of 8 KB, α = 0.5) and ICDE 2018, §III-B
//! (pages of 4 KB, α = 2).

use std::sync::Arc;

use crate::error::{LabError, LabResult};
use crate::workloads::random::{Random, Zipf};
use crate::workloads::trace::{Access, WORDS_MAX};

/// Words of 4 bytes in an object of SIGMOD 2011.
pub(crate) const OBJECT_WORDS: usize = 2_000;
/// Words of 4 bytes in a page of ICDE 2018.
pub(crate) const PAGE_WORDS: usize = 1_024;

/// Parameters of the accesses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ZipfAccesses {
    /// Number of objects. The first is the most popular.
    pub(crate) objects: usize,
    /// Words of 4 bytes in an object.
    pub(crate) object_words: usize,
    /// α of the objects.
    pub(crate) object_exponent: f64,
    /// α of the words within an object.
    pub(crate) word_exponent: f64,
    /// Share of reads among the accesses.
    pub(crate) read_share: f64,
    /// Number of accesses.
    pub(crate) count: usize,
    /// The same seed makes the same accesses.
    pub(crate) seed: u64,
}

impl ZipfAccesses {
    /// Updates of SIGMOD 2011: `objects` objects of 8 KB. Object and word are drawn with α = 0.5.
    pub(crate) fn objects(objects: usize, count: usize, seed: u64) -> ZipfAccesses {
        ZipfAccesses {
            objects,
            object_words: OBJECT_WORDS,
            object_exponent: 0.5,
            word_exponent: 0.5,
            read_share: 0.0,
            count,
            seed,
        }
    }

    /// Accesses of ICDE 2018: pages of 4 KB drawn with α = 2, and any of their words.
    pub(crate) fn pages(pages: usize, count: usize, read_share: f64, seed: u64) -> ZipfAccesses {
        ZipfAccesses {
            objects: pages,
            object_words: PAGE_WORDS,
            object_exponent: 2.0,
            word_exponent: 0.0,
            read_share,
            count,
            seed,
        }
    }

    /// Words of the state.
    pub(crate) fn words(&self) -> usize {
        self.objects * self.object_words
    }

    /// Makes the accesses, on all processors.
    ///
    /// # Errors
    /// When the state is larger than a trace can address, or a thread cannot be started.
    pub(crate) fn make(&self) -> LabResult<Arc<Vec<Access>>> {
        const PIECE: usize = 1 << 18;
        if self.words() == 0 || self.words() > WORDS_MAX || self.count == 0 {
            return Err(LabError::Missing {
                what: format!("a trace of {} accesses to {} words", self.count, self.words()),
                cure: format!("choose from 1 to {WORDS_MAX} words, and at least one access"),
            });
        }
        let mut accesses = vec![Access::read(0); self.count];
        let mut pieces: Vec<Vec<(usize, &mut [Access])>> =
            (0..std::thread::available_parallelism().map_or(1, usize::from))
                .map(|_| Vec::new())
                .collect();
        let threads = pieces.len();
        for (number, piece) in accesses.chunks_mut(PIECE).enumerate() {
            pieces[number % threads].push((number, piece));
        }
        let work = |pieces: Vec<(usize, &mut [Access])>| {
            for (number, piece) in pieces {
                self.fill(&mut Random::for_thread(self.seed, number), piece);
            }
        };
        let jobs = pieces.into_iter().map(|pieces| move || work(pieces)).collect();
        stillpoint_io::in_parallel("trace", jobs).map_err(|e| LabError::process("trace", e))?;
        Ok(Arc::new(accesses))
    }

    fn fill(&self, random: &mut Random, accesses: &mut [Access]) {
        let objects = Zipf::new(self.objects as u64, self.object_exponent);
        let words = Zipf::new(self.object_words as u64, self.word_exponent);
        for access in accesses {
            let object = objects.next(random) - 1;
            let word = object * self.object_words as u64 + words.next(random) - 1;
            let reads = self.read_share > 0.0 && random.chance(self.read_share);
            *access = if reads {
                Access::read(word as u32)
            } else {
                Access::write(word as u32, random.next_u64() as u32)
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_follow_from_the_seed_and_stay_in_the_state() -> LabResult<()> {
        let zipf = ZipfAccesses::objects(50, 300_000, 7);
        let (once, again) = (zipf.make()?, zipf.make()?);
        assert_eq!(once, again);
        assert_ne!(once, ZipfAccesses { seed: 8, ..zipf }.make()?);
        assert!(once.iter().all(|access| access.is_write() && access.word() < 50 * OBJECT_WORDS));
        Ok(())
    }

    #[test]
    fn the_first_object_is_as_popular_as_the_law_says() -> LabResult<()> {
        let zipf = ZipfAccesses { read_share: 0.5, ..ZipfAccesses::objects(100, 400_000, 3) };
        let accesses = zipf.make()?;
        let total: f64 = (1..=100).map(|rank| f64::from(rank).powf(-0.5)).sum();
        let of_first = accesses.iter().filter(|a| a.word() < OBJECT_WORDS).count();
        let share = of_first as f64 / accesses.len() as f64;
        assert!((share * total - 1.0).abs() < 0.03, "share {share}, law {}", 1.0 / total);
        let reads = accesses.iter().filter(|a| !a.is_write()).count() as f64;
        assert!((reads / accesses.len() as f64 - 0.5).abs() < 0.01, "{reads}");
        Ok(())
    }

    #[test]
    fn a_state_that_is_too_large_is_refused() {
        let error = ZipfAccesses::objects(2_000_000, 1, 1).make().expect_err("16 GB").to_string();
        assert!(error.contains("4000000000 words"), "{error}");
    }
}
