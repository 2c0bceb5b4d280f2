//! What a full cache gives up: the policies of `maxmemory-policy`, and the marks by which they choose.
//!
//! A policy may choose by when keys were used last, or by how often. Then each access leaves a mark
//! beside the record ([`stillpoint::Tx::set_access`]): 32 bits, 0 for none.
//!
//! ```text
//! last use    0 (bit 31) | tenths of a second since the Unix epoch, modulo 2^31
//! frequency   1 (bit 31) | minute of the last change, modulo 2^16 (bits 8..24) | counter (bits 0..8)
//! ```
//! The counter is Redis's: it grows with the logarithm of the uses, and loses one a minute. A policy
//! without marks writes nothing at a read.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// What a policy looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// It gives up no key.
    Nothing,
    /// The key whose last use is longest ago.
    LastUse,
    /// The key that is used least often.
    Frequency,
    /// Any key.
    Chance,
    /// The key that expires first.
    Expiry,
}

/// A value of `maxmemory-policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    pub(crate) name: &'static str,
    pub(crate) choice: Choice,
    /// Whether it gives up keys with an expiry alone.
    pub(super) is_volatile: bool,
}

const fn policy(name: &'static str, choice: Choice, is_volatile: bool) -> Policy {
    Policy { name, choice, is_volatile }
}

/// All policies. The first is the default.
const POLICIES: [Policy; 8] = [
    policy("noeviction", Choice::Nothing, false),
    policy("allkeys-lru", Choice::LastUse, false),
    policy("allkeys-lfu", Choice::Frequency, false),
    policy("allkeys-random", Choice::Chance, false),
    policy("volatile-lru", Choice::LastUse, true),
    policy("volatile-lfu", Choice::Frequency, true),
    policy("volatile-random", Choice::Chance, true),
    policy("volatile-ttl", Choice::Expiry, true),
];

impl Policy {
    /// The policy of that name, in any case of letters.
    ///
    /// # Errors
    /// There is none; the text names all policies.
    pub(crate) fn named(name: &str) -> Result<Self, String> {
        let found = POLICIES.iter().find(|policy| policy.name.eq_ignore_ascii_case(name));
        found.copied().ok_or_else(|| {
            let names: Vec<&str> = eviction_policies().collect();
            format!("argument must be one of the following: {}", names.join(", "))
        })
    }

    /// Whether the policy gives up keys.
    pub(crate) fn evicts(self) -> bool {
        self.choice != Choice::Nothing
    }

    /// Whether the policy needs marks of accesses.
    pub(crate) fn needs_marks(self) -> bool {
        matches!(self.choice, Choice::LastUse | Choice::Frequency)
    }
}

/// The values of `maxmemory-policy`. The first is the default.
pub fn eviction_policies() -> impl Iterator<Item = &'static str> {
    POLICIES.iter().map(|policy| policy.name)
}

/// The numbers that clients see of a key's use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyUse {
    /// Milliseconds since the last use, or since marks are kept if there was none since.
    IdleMs(u64),
    /// The counter of uses.
    Frequency(u32),
    /// The policy keeps no marks.
    Unknown,
}

/// The counter of a key that is new.
const COUNTER_FIRST: u32 = 5;
const COUNTER_MAX: u32 = 255;
/// A counter of `n` above the first one grows with one use of this many times `n`.
const COUNTER_FACTOR: u64 = 10;
const IS_FREQUENCY: u32 = 1 << 31;

/// The mark of a last use at this time. Never 0.
pub(super) fn last_use(now_ms: u64) -> u32 {
    ((now_ms / 100) as u32 & !IS_FREQUENCY).max(1)
}

/// Milliseconds since the last use that a mark tells. The longest time for no mark.
pub(super) fn idle_ms(mark: u32, now_ms: u64) -> u64 {
    // The mark of a frequency, from before a change of the policy, tells no last use.
    if mark == 0 || mark & IS_FREQUENCY != 0 {
        return u64::from(u32::MAX) * 100;
    }
    let passed = last_use(now_ms).wrapping_sub(mark) & !IS_FREQUENCY;
    // A clock that went back makes the difference negative.
    let is_negative = passed > !IS_FREQUENCY / 2;
    if is_negative { 0 } else { u64::from(passed) * 100 }
}

fn minutes(now_ms: u64) -> u32 {
    (now_ms / 60_000) as u32 & 0xffff
}

/// The counter of a mark at this time: it has lost one for each minute. 0 for no mark.
pub(super) fn frequency(mark: u32, now_ms: u64) -> u32 {
    if mark & IS_FREQUENCY == 0 {
        return 0;
    }
    let passed = minutes(now_ms).wrapping_sub(mark >> 8 & 0xffff) & 0xffff;
    (mark & COUNTER_MAX).saturating_sub(passed)
}

/// The mark after one more use. `random` gives 64 random bits.
pub(super) fn used_once_more(mark: u32, now_ms: u64, random: impl FnOnce() -> u64) -> u32 {
    let mut counter = frequency(mark, now_ms);
    if mark & IS_FREQUENCY == 0 {
        counter = COUNTER_FIRST;
    } else if counter < COUNTER_MAX {
        let above = u64::from(counter.saturating_sub(COUNTER_FIRST));
        let is_counted = random().is_multiple_of(above * COUNTER_FACTOR + 1);
        counter += u32::from(is_counted);
    }
    IS_FREQUENCY | minutes(now_ms) << 8 | counter
}

/// The policy in force, and the place where writers ask for room.
#[derive(Debug)]
pub(crate) struct Eviction {
    /// Number of the policy. Relaxed: an old policy does no harm for a moment.
    policy: AtomicU8,
    /// Whether the policy needs marks.
    needs_marks: AtomicBool,
    samples: AtomicUsize,
    /// Whether the policy has found no key to give up, although it was to.
    is_exhausted: AtomicBool,
    /// How often the evicting thread has looked for keys since somebody asked.
    answers: AtomicU64,
    /// Whether nodes of deleted collections are to be removed at once.
    buries: AtomicBool,
    /// When the marks of the present policy began, in milliseconds since the Unix epoch.
    since_ms: AtomicU64,
    wishes: Mutex<Wishes>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Wishes {
    /// A writer has found no room.
    room: bool,
    /// Something has changed that ends any wait.
    look: bool,
    over: bool,
}

/// Why a wait of the evicting thread has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// It is time to look, or the policy has changed.
    Looks,
    /// A writer has found no room.
    Asked,
    /// The server ends.
    Over,
}

impl Eviction {
    pub(super) fn new() -> Self {
        Self {
            policy: AtomicU8::new(0),
            needs_marks: AtomicBool::new(false),
            samples: AtomicUsize::new(5),
            is_exhausted: AtomicBool::new(false),
            answers: AtomicU64::new(0),
            buries: AtomicBool::new(false),
            since_ms: AtomicU64::new(0),
            wishes: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// The policy in force.
    #[inline]
    pub(crate) fn policy(&self) -> Policy {
        POLICIES[usize::from(self.policy.load(Relaxed))]
    }

    /// Changes the policy. The engine keeps marks by now, if the policy needs some.
    pub(crate) fn set_policy(&self, policy: Policy, now_ms: u64) {
        let number = POLICIES.iter().position(|known| *known == policy).unwrap_or(0);
        let before = POLICIES[usize::from(self.policy.swap(number as u8, Relaxed))];
        // Marks of one choice stay true under another policy with the same choice.
        if before.choice != policy.choice {
            self.since_ms.store(now_ms, Relaxed);
        }
        self.needs_marks.store(policy.needs_marks(), Relaxed);
        self.is_exhausted.store(false, Relaxed);
        self.wishes.lock().look = true;
        self.changed.notify_all();
    }

    /// Whether accesses leave marks.
    #[inline]
    pub(super) fn needs_marks(&self) -> bool {
        self.needs_marks.load(Relaxed)
    }

    /// The mark after one more use. `random` gives 64 random bits.
    pub(super) fn mark_after(&self, mark: u32, now_ms: u64, random: impl FnOnce() -> u64) -> u32 {
        match self.policy().choice {
            Choice::LastUse => last_use(now_ms),
            Choice::Frequency => used_once_more(mark, now_ms, random),
            _ => mark,
        }
    }

    /// What a mark tells clients.
    pub(super) fn key_use(&self, mark: u32, now_ms: u64) -> KeyUse {
        let kept_ms = now_ms.saturating_sub(self.since_ms.load(Relaxed));
        match self.policy().choice {
            Choice::LastUse => KeyUse::IdleMs(idle_ms(mark, now_ms).min(kept_ms)),
            Choice::Frequency => KeyUse::Frequency(frequency(mark, now_ms)),
            _ => KeyUse::Unknown,
        }
    }

    /// Keys among which a victim is chosen.
    pub(crate) fn samples(&self) -> usize {
        self.samples.load(Relaxed)
    }

    pub(crate) fn set_samples(&self, samples: usize) {
        self.samples.store(samples, Relaxed);
    }

    /// Whether somebody who finds no memory should [ask](Self::ask) for room.
    pub(crate) fn makes_room(&self) -> bool {
        self.policy().evicts() && !self.is_exhausted.load(Relaxed)
    }

    /// Notes whether there was a key to give up.
    pub(crate) fn note_exhausted(&self, is_exhausted: bool) {
        self.is_exhausted.store(is_exhausted, Relaxed);
    }

    /// Asks for room in memory, at once. Whoever asks waits for a moment and tries again.
    pub(crate) fn ask(&self) {
        self.wishes.lock().room = true;
        self.changed.notify_all();
    }

    /// Notes that keys were looked for since somebody asked.
    pub(crate) fn note_answer(&self) {
        // Relaxed: a count.
        self.answers.fetch_add(1, Relaxed);
    }

    /// How often keys were looked for since somebody asked.
    pub(crate) fn answers(&self) -> u64 {
        self.answers.load(Relaxed)
    }

    /// Asks for the removal of nodes of deleted collections. Whoever asks wakes the first event loop.
    pub(crate) fn ask_to_bury(&self) {
        // Relaxed: the event loop looks at its next tick in any case.
        self.buries.store(true, Relaxed);
    }

    /// Whether somebody has asked for that since the last call.
    pub(crate) fn takes_burial(&self) -> bool {
        self.buries.load(Relaxed) && self.buries.swap(false, Relaxed)
    }

    /// Ends the evicting thread.
    pub(crate) fn end(&self) {
        self.wishes.lock().over = true;
        self.changed.notify_all();
    }

    /// Waits for a wish, `most` at most.
    pub(crate) fn wait(&self, most: Duration) -> Woken {
        let mut wishes = self.wishes.lock();
        if !(wishes.room || wishes.look || wishes.over) {
            self.changed.wait_for(&mut wishes, most);
        }
        wishes.look = false;
        match (wishes.over, std::mem::take(&mut wishes.room)) {
            (true, _) => Woken::Over,
            (_, true) => Woken::Asked,
            _ => Woken::Looks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_found_by_their_names() {
        for policy in POLICIES {
            assert_eq!(Policy::named(&policy.name.to_uppercase()), Ok(policy));
            assert_eq!(policy.evicts(), policy.name != "noeviction");
            assert_eq!(policy.is_volatile, policy.name.starts_with("volatile-"));
        }
        assert!(Policy::named("lru").is_err_and(|error| error.contains("volatile-ttl")));
    }

    #[test]
    fn idle_time_is_since_the_last_use() {
        let now_ms = 1_700_000_000_000;
        assert_eq!(idle_ms(last_use(now_ms), now_ms), 0);
        assert_eq!(idle_ms(last_use(now_ms), now_ms + 12_300), 12_300);
        assert_eq!(idle_ms(last_use(now_ms), now_ms - 5_000), 0, "a clock that went back");
        assert!(idle_ms(0, now_ms) > idle_ms(last_use(now_ms - 1_000_000_000), now_ms));
        // The mark begins anew at 0 after 2^31 tenths.
        let wrap_ms = (1u64 << 31) * 100;
        assert_eq!(idle_ms(last_use(wrap_ms - 1_000), wrap_ms + 1_000), 2_000);
        // Who has the mark of another policy goes before who was used a second ago.
        let other = used_once_more(0, now_ms, || 0);
        assert!(idle_ms(other, now_ms + 2_000) > idle_ms(last_use(now_ms + 1_000), now_ms + 2_000));
    }

    #[test]
    fn frequency_grows_slowly_and_is_forgotten() {
        let now_ms = 1_700_000_000_000;
        let mut seed = 1u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed >> 33
        };
        let mut mark = 0;
        let mut seen = Vec::new();
        for uses in 1..=100_000 {
            let number = random();
            mark = used_once_more(mark, now_ms, || number);
            if [1, 2, 100, 1_000, 100_000].contains(&uses) {
                seen.push(frequency(mark, now_ms));
            }
        }
        // Redis's table for a factor of 10: about 10 after 100 hits, 18 after 1,000, 142 after 100,000.
        assert_eq!(seen[..2], [5, 6]);
        assert!((8..=14).contains(&seen[2]), "{seen:?}");
        assert!((15..=24).contains(&seen[3]), "{seen:?}");
        assert!((120..=165).contains(&seen[4]), "{seen:?}");
        assert_eq!(frequency(mark, now_ms + 10 * 60_000), seen[4] - 10);
        assert_eq!(frequency(mark, now_ms + 1_000 * 60_000), 0);
        assert_eq!(frequency(0, now_ms), 0);
    }
}
