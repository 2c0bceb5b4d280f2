//! What a called procedure may read beside its arguments and records, and what the log keeps of it.
//!
//! ```text
//! inputs = kinds u8 (1: time, 2: seed) · [time in milliseconds u64] · [seed u64]
//! ```

use std::cell::Cell;
use std::sync::Arc;

use stillpoint_format::log::WritesDigest;
use stillpoint_io::{Clock, Rng};
use stillpoint_sync::{mutant, planted};

const TIME: u8 = 1;
const SEED: u8 = 2;

/// The inputs of one run of a call, drawn when the procedure asks for them, and the digest of what the
/// run writes.
pub(crate) struct Inputs {
    /// Where new inputs come from. `None` for a run with logged ones alone.
    source: Option<(Arc<dyn Clock>, Arc<dyn Rng>)>,
    time_ms: Option<u64>,
    /// The seed, and the state of the generator that it has begun.
    seed: Option<(u64, u64)>,
    pub(crate) digest: WritesDigest,
    /// Whether anybody asks for the digest. Without that, writes note nothing.
    pub(crate) takes_digest: bool,
    /// Whether the run depends on something that a log does not have, such as a failure for lack of
    /// memory. The log gets its writes.
    pub(crate) depends_on_more: Cell<bool>,
}

impl Inputs {
    pub(crate) fn new(clock: Arc<dyn Clock>, rng: Arc<dyn Rng>) -> Self {
        Self::of(Some((clock, rng)))
    }

    fn of(source: Option<(Arc<dyn Clock>, Arc<dyn Rng>)>) -> Self {
        let (digest, depends_on_more) = (WritesDigest::default(), Cell::new(false));
        let takes_digest = true;
        Self { source, time_ms: None, seed: None, digest, takes_digest, depends_on_more }
    }

    /// Begins a run with new inputs.
    pub(crate) fn begin(&mut self) {
        (self.time_ms, self.seed) = (None, None);
        self.begin_again();
    }

    /// Begins another run with the same inputs.
    pub(crate) fn begin_again(&mut self) {
        self.seed = self.seed.map(|(seed, _)| (seed, seed));
        self.digest = WritesDigest::default();
        self.depends_on_more.set(false);
    }

    /// The inputs that a log has. `None` if the bytes are none.
    pub(crate) fn logged(bytes: &[u8]) -> Option<Self> {
        let mut inputs = Self::of(None);
        let Some((&kinds, mut rest)) = bytes.split_first() else { return Some(inputs) };
        let mut next = |kind: u8| {
            let (word, behind) = rest.split_first_chunk().filter(|_| kinds & kind != 0)?;
            rest = behind;
            Some(mutant!(u64::from_le_bytes(*word), InputsNotRepeated => 0))
        };
        inputs.time_ms = next(TIME);
        inputs.seed = next(SEED).map(|seed| (seed, seed));
        let kind = |is_there: bool, kind| if is_there { kind } else { 0 };
        let found = kind(inputs.time_ms.is_some(), TIME) | kind(inputs.seed.is_some(), SEED);
        (rest.is_empty() && found == kinds && kinds != 0).then_some(inputs)
    }

    /// Appends the inputs that the run has drawn. Nothing if it has drawn none.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let words = [(TIME, self.time_ms), (SEED, self.seed.map(|(seed, _)| seed))];
        let kinds = words.iter().filter(|(_, word)| word.is_some()).map(|(kind, _)| kind).sum();
        if kinds != 0 {
            out.push(kinds);
            words.iter().flat_map(|(_, word)| word).for_each(|word| out.extend(word.to_le_bytes()));
        }
    }

    /// `None` if the run has logged inputs, and this is not among them.
    pub(crate) fn time_ms(&mut self) -> Option<u64> {
        self.time_ms = self.time_ms.or_else(|| Some(self.source.as_ref()?.0.wall_ms()));
        self.time_ms
    }

    /// The next number of the splitmix64 generator (Steele, Lea, Flood, *Fast Splittable Pseudorandom
    /// Number Generators*, OOPSLA 2014). `None` as for the time.
    pub(crate) fn random(&mut self) -> Option<u64> {
        if self.seed.is_none() {
            let seed = self.source.as_ref()?.1.next_u64();
            self.seed = Some((seed, seed));
        }
        let (_, state) = self.seed.as_mut()?;
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(mixed ^ (mixed >> 31))
    }
}

#[cfg(test)]
mod tests {
    use stillpoint_io::{ManualClock, SeededRng};

    use super::*;

    #[test]
    fn logged_inputs_give_the_same_run() {
        for kinds in 0..4 {
            let clock = Arc::new(ManualClock::self_advancing(5));
            let mut live = Inputs::new(clock, Arc::new(SeededRng::new(1)));
            live.begin();
            let read = |from: &mut Inputs| {
                let time = (kinds & TIME != 0).then(|| (from.time_ms(), from.time_ms()));
                let random = (kinds & SEED != 0).then(|| (from.random(), from.random()));
                (time, random)
            };
            let found = read(&mut live);
            let mut logged = Vec::new();
            live.encode(&mut logged);
            let mut again = Inputs::logged(&logged).expect("encoded");
            assert_eq!(read(&mut again), found);
            again.begin_again();
            assert_eq!(read(&mut again), found);
            assert!(found.0.is_none_or(|(first, second)| first == second), "one call, one time");
            assert_eq!(again.time_ms().is_some(), kinds & TIME != 0, "nothing is drawn anew");
            assert_eq!(again.random().is_some(), kinds & SEED != 0, "nothing is drawn anew");
            for len in 1..logged.len() {
                assert!(Inputs::logged(&logged[..len]).is_none(), "{len} bytes of {logged:?}");
            }
            logged.push(0);
            assert!(Inputs::logged(&logged).is_none());
        }
    }
}
