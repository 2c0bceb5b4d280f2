//! The transaction lock of a cell, in one 64-bit word.
//!
//! ```text
//!  63     53 52          18    17    16      9 8        1     0
//! ┌─────────┬──────────────┬───────┬──────────┬──────────┬───────┐
//! │ user 11 │ priority 35  │ await │ status 8 │ shared 8 │ excl. │
//! └─────────┴──────────────┴───────┴──────────┴──────────┴───────┘
//! ```
//!
//! - *exclusive* and *shared*: strict two-phase locks of transactions. A *sharer* is a transaction
//!   that holds the lock shared.
//! - *status*: owned by the checkpoint scheme. [`claim`], [`claim_if`] and [`update_status`] need
//!   no lock, so a capture never waits for a transaction. [`set_status_held`] is for the holder of
//!   the exclusive lock.
//! - *await*: a transaction waits for the sharers to leave. No younger transaction may join the
//!   sharers, so they do leave. If the waiter gave up, the flag costs the next sharer one refusal.
//! - *priority*: the oldest priority that has held the lock since it was last free, or that waits for
//!   it (see [`Priority`]). Meaningless while the lock is free.
//! - *user*: bits of the caller, which this module never changes.
//!
//! Wait-die with two classes (Rosenkrantz, Stearns, Lewis 1978, extended):
//!
//! 1. A transaction with declared keys locks in a global order and may wait for any holder.
//! 2. An undeclared transaction never waits for a declared holder. An undeclared transaction waits
//!    only for holders that are younger.
//! 3. So each wait leads from a declared transaction to a later place of the order, or from an older
//!    undeclared transaction to a younger one. No cycle of waits can close.
//! 4. Only a declared transaction waits for a transaction that itself awaits sharers. The latter
//!    transaction is declared and at the same place of the order, or is undeclared. No wait leads
//!    back from the latter.

use crate::atomic::{AtomicU64, Ordering};

const EXCLUSIVE: u64 = 1;
const SHARED_SHIFT: u32 = 1;
const SHARED_ONE: u64 = 1 << SHARED_SHIFT;
const SHARED_MAX: u64 = 0xff;
const SHARED_MASK: u64 = SHARED_MAX << SHARED_SHIFT;
const STATUS_SHIFT: u32 = 9;
const STATUS_MASK: u64 = 0xff << STATUS_SHIFT;
const AWAITED: u64 = 1 << 17;
const PRIORITY_SHIFT: u32 = 18;
const PRIORITY_BITS: u32 = 35;
const PRIORITY_MAX: u64 = (1 << PRIORITY_BITS) - 1;
const PRIORITY_MASK: u64 = PRIORITY_MAX << PRIORITY_SHIFT;
const USER_SHIFT: u32 = 53;

/// Largest value of the user field.
pub const USER_MAX: u64 = (1 << (64 - USER_SHIFT)) - 1;

/// Age of a transaction for wait-die. A lower one is older, with wrap-around. Zero is a transaction
/// with declared keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority(u64);

impl Priority {
    /// A transaction with declared keys, which locks in a global order.
    pub const DECLARED: Self = Self(0);

    /// The priority of the `n`-th undeclared transaction. A retry keeps the priority.
    pub fn undeclared(n: u64) -> Self {
        Self(n % PRIORITY_MAX + 1)
    }

    /// Whether a transaction of this priority may wait for a lock whose oldest holder is `holder`.
    pub fn may_wait_for(self, holder: Self) -> bool {
        if self == Self::DECLARED {
            return true;
        }
        holder != Self::DECLARED
            && (self == holder || (self.0.wrapping_sub(holder.0) >> (PRIORITY_BITS - 1)) & 1 == 1)
    }

    fn older(self, other: Self) -> Self {
        if self == Self::DECLARED || (other != Self::DECLARED && self.may_wait_for(other)) {
            self
        } else {
            other
        }
    }

    fn of(word: u64) -> Self {
        Self((word & PRIORITY_MASK) >> PRIORITY_SHIFT)
    }
}

/// Other transactions hold the lock, the oldest of them with this priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contended(pub Priority);

/// The word of a free cell with this user field and scheme status.
pub fn free(user: u64, status: u8) -> u64 {
    debug_assert!(user <= USER_MAX);
    (user << USER_SHIFT) | (u64::from(status) << STATUS_SHIFT)
}

/// The word of a cell that a transaction of this priority has locked exclusively.
pub fn locked(user: u64, status: u8, priority: Priority) -> u64 {
    free(user, status) | EXCLUSIVE | (priority.0 << PRIORITY_SHIFT)
}

/// The user field.
#[inline]
pub fn user(word: u64) -> u64 {
    word >> USER_SHIFT
}

/// The scheme's status bits.
#[inline]
pub fn status(word: u64) -> u8 {
    ((word & STATUS_MASK) >> STATUS_SHIFT) as u8
}

/// The priority of the transaction that holds the lock exclusively in this value of the word.
#[inline]
pub fn exclusive_holder(seen: u64) -> Option<Priority> {
    (seen & EXCLUSIVE != 0).then(|| Priority::of(seen))
}

/// Takes the exclusive lock if no transaction holds the lock.
///
/// # Errors
/// [`Contended`], with the priority of the holder.
#[inline]
pub fn try_exclusive(word: &AtomicU64, priority: Priority) -> Result<(), Contended> {
    // Relaxed: the exchange below synchronises with the releasing store or RMW.
    let mut seen = word.load(Ordering::Relaxed);
    loop {
        if seen & (EXCLUSIVE | SHARED_MASK) != 0 {
            return Err(Contended(Priority::of(seen)));
        }
        let kept = seen & !(PRIORITY_MASK | AWAITED);
        let locked = kept | EXCLUSIVE | (priority.0 << PRIORITY_SHIFT);
        match word.compare_exchange_weak(seen, locked, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return Ok(()),
            Err(now) => seen = now,
        }
    }
}

/// Takes a share of the lock if no transaction holds it exclusively, fewer than 255 share it, and no
/// older transaction awaits it.
///
/// # Errors
/// [`Contended`], with the priority of the holder or of the waiting transaction.
#[inline]
pub fn try_shared(word: &AtomicU64, priority: Priority) -> Result<(), Contended> {
    // Relaxed: as in try_exclusive.
    let mut seen = word.load(Ordering::Relaxed);
    loop {
        if seen & EXCLUSIVE != 0 || seen & SHARED_MASK == SHARED_MASK {
            return Err(Contended(Priority::of(seen)));
        }
        if seen & AWAITED != 0 && must_yield_to_waiter(word, seen, priority) {
            return Err(Contended(Priority::of(seen)));
        }
        let oldest =
            if seen & SHARED_MASK == 0 { priority } else { priority.older(Priority::of(seen)) };
        let shared = ((seen & !PRIORITY_MASK) + SHARED_ONE) | (oldest.0 << PRIORITY_SHIFT);
        match word.compare_exchange_weak(seen, shared, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return Ok(()),
            Err(now) => seen = now,
        }
    }
}

/// Whether a new sharer must back off because an older transaction waits for the lock. Also true when
/// the lock has just become free: the waiting transaction gets the first try.
#[cold]
fn must_yield_to_waiter(word: &AtomicU64, seen: u64, priority: Priority) -> bool {
    if priority != Priority::DECLARED && priority.may_wait_for(Priority::of(seen)) {
        return false;
    }
    if seen & SHARED_MASK == 0 {
        // Relaxed: the flag is a hint. If the word has changed meanwhile, another waiter set the flag.
        let _ = word.compare_exchange(seen, seen & !AWAITED, Ordering::Relaxed, Ordering::Relaxed);
    }
    true
}

/// Notes in the word that a transaction of this priority waits for the sharers to leave. Does
/// nothing if the lock is not shared. Call this again while waiting, since another transaction may
/// clear the flag.
pub fn await_sharers(word: &AtomicU64, priority: Priority) {
    // Relaxed: a hint, which protects nothing.
    let mut seen = word.load(Ordering::Relaxed);
    while seen & SHARED_MASK != 0 {
        let oldest = priority.older(Priority::of(seen));
        let awaited = (seen & !PRIORITY_MASK) | AWAITED | (oldest.0 << PRIORITY_SHIFT);
        if awaited == seen {
            return;
        }
        match word.compare_exchange_weak(seen, awaited, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}

/// Takes the note of [`await_sharers`] back, so that others may share the lock again. Who waits on notes it anew.
pub fn await_no_longer(word: &AtomicU64) {
    // Relaxed: a hint, which protects nothing.
    word.fetch_and(!AWAITED, Ordering::Relaxed);
}

/// Whether this value of the word says that a transaction waits for the sharers to leave.
#[inline]
pub fn is_awaited(seen: u64) -> bool {
    seen & AWAITED != 0
}

/// Turns the caller's share into the exclusive lock if it is the only share.
///
/// # Errors
/// [`Contended`] if others share the lock, with the oldest priority among them.
pub fn try_upgrade(word: &AtomicU64, priority: Priority) -> Result<(), Contended> {
    // Relaxed: as in try_exclusive.
    let mut seen = word.load(Ordering::Relaxed);
    loop {
        debug_assert!(seen & SHARED_MASK != 0, "upgrade without a share");
        if seen & SHARED_MASK != SHARED_ONE {
            return Err(Contended(Priority::of(seen)));
        }
        let kept = seen & !(PRIORITY_MASK | SHARED_MASK | AWAITED);
        let locked = kept | EXCLUSIVE | (priority.0 << PRIORITY_SHIFT);
        match word.compare_exchange_weak(seen, locked, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return Ok(()),
            Err(now) => seen = now,
        }
    }
}

/// Releases the exclusive lock.
#[inline]
pub fn release_exclusive(word: &AtomicU64) {
    let before = word.fetch_and(!EXCLUSIVE, Ordering::Release);
    debug_assert!(before & EXCLUSIVE != 0, "released a lock that was not held");
}

/// Releases the exclusive lock with a plain store. Call this only while no other thread can
/// [`claim`] the word, since a claim between load and store would be lost. No claim is possible
/// inside a read section that saw a phase without a capture scan. No other thread changes the word
/// of an exclusively held lock.
#[inline]
pub fn release_exclusive_unclaimable(word: &AtomicU64) {
    // Relaxed load: the holder is the only writer of the word.
    let seen = word.load(Ordering::Relaxed);
    debug_assert!(seen & EXCLUSIVE != 0, "released a lock that was not held: {seen:#x}");
    word.store(seen & !EXCLUSIVE, Ordering::Release);
}

/// Sets status bits of a word whose lock the caller holds exclusively: true if one of them was
/// unset. `claimable` says that other threads may [`claim`] other bits of the word meanwhile. If no
/// thread may, a plain store suffices, as in [`release_exclusive_unclaimable`].
#[inline]
pub fn set_status_held(word: &AtomicU64, bits: u8, claimable: bool) -> bool {
    // Relaxed: the holder alone sets these bits, and publishes them when it releases the lock.
    let seen = word.load(Ordering::Relaxed);
    let bits = u64::from(bits) << STATUS_SHIFT;
    if seen & bits == bits {
        return false;
    }
    match claimable {
        // Relaxed: as the load.
        true => drop(word.fetch_or(bits, Ordering::Relaxed)),
        false => word.store(seen | bits, Ordering::Relaxed),
    }
    true
}

/// Releases one share.
#[inline]
pub fn release_shared(word: &AtomicU64) {
    let before = word.fetch_sub(SHARED_ONE, Ordering::Release);
    debug_assert!(before & SHARED_MASK != 0, "released a share that was not held");
}

/// Sets the status bits in `mask` to those of `status`. Returns true to the one caller that changed
/// the bits, and false if they were so already. Independent of the lock, and never waits.
///
/// The winner has read the cell before its claim. A thread that sees the new status first, by a
/// lost claim or by a load with Acquire, cannot overwrite what the winner read.
#[inline]
pub fn claim(word: &AtomicU64, mask: u8, status: u8) -> bool {
    // Release for the winner: its earlier reads come before the actions of threads that see the
    // status. Acquire for the loser, the partner: its later actions come after the winner's reads.
    let mut seen = word.load(Ordering::Acquire);
    loop {
        let changed =
            (seen ^ (u64::from(status) << STATUS_SHIFT)) & u64::from(mask) << STATUS_SHIFT;
        if changed == 0 {
            return false;
        }
        let claimed = seen ^ changed;
        match word.compare_exchange_weak(seen, claimed, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return true,
            Err(now) => seen = now,
        }
    }
}

/// Sets the status bits in `mask` to those of `status`, if the bits in `seen_mask` equal those of
/// `seen`. Returns true to the one caller that changed the bits. Orders as [`claim`] does.
#[inline]
pub fn claim_if(word: &AtomicU64, (seen_mask, seen): (u8, u8), mask: u8, status: u8) -> bool {
    // Release for the winner, Acquire for the loser, as in `claim`.
    let mut now = word.load(Ordering::Acquire);
    loop {
        if self::status(now) & seen_mask != seen {
            return false;
        }
        let kept = now & !(u64::from(mask) << STATUS_SHIFT);
        let claimed = kept | u64::from(status & mask) << STATUS_SHIFT;
        match word.compare_exchange_weak(now, claimed, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return true,
            Err(other) => now = other,
        }
    }
}

/// Replaces the status by the result of `next`, independent of the lock.
pub fn update_status(word: &AtomicU64, next: impl Fn(u8) -> u8) {
    // Relaxed: a first guess, which the exchange checks.
    let mut now = word.load(Ordering::Relaxed);
    loop {
        let updated = (now & !STATUS_MASK) | u64::from(next(status(now))) << STATUS_SHIFT;
        // AcqRel: as in `claim`.
        match word.compare_exchange_weak(now, updated, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return,
            Err(other) => now = other,
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_fields_do_not_disturb_each_other() {
        let word = AtomicU64::new(free(1024, 0b101));
        let young = Priority::undeclared(7);
        assert_eq!(try_shared(&word, young), Ok(()));
        assert_eq!(try_shared(&word, Priority::DECLARED), Ok(()));
        assert_eq!(try_exclusive(&word, young), Err(Contended(Priority::DECLARED)));
        release_shared(&word);
        assert_eq!(try_upgrade(&word, young), Ok(()));
        assert_eq!(try_shared(&word, young), Err(Contended(young)));
        assert!(claim(&word, 0b001, 0b010), "one bit, though the lock is held");
        assert_eq!(status(word.load(Ordering::Relaxed)), 0b100);
        assert!(!claim(&word, 0b101, 0b110), "as it is already");
        assert!(!claim_if(&word, (0b100, 0), 0b011, 0b011), "the third bit is set");
        assert!(claim_if(&word, (0b100, 0b100), 0b011, 0b011));
        assert_eq!(status(word.load(Ordering::Relaxed)), 0b111);
        assert!(claim(&word, 0xff, 0b1000_0000));
        assert!(set_status_held(&word, 0b10, true) && !set_status_held(&word, 0b10, false));
        assert!(claim(&word, 0b10, 0) && set_status_held(&word, 0b10, false));
        release_exclusive(&word);
        let end = word.load(Ordering::Relaxed);
        assert_eq!((user(end), status(end)), (1024, 0b1000_0010));
        assert_eq!(end & (EXCLUSIVE | SHARED_MASK), 0);
    }

    #[test]
    fn at_most_255_share() {
        let word = AtomicU64::new(free(3, 1));
        for _ in 0..255 {
            assert!(try_shared(&word, Priority::undeclared(1)).is_ok());
        }
        assert!(try_shared(&word, Priority::undeclared(1)).is_err());
        for _ in 0..255 {
            release_shared(&word);
        }
        assert!(try_exclusive(&word, Priority::undeclared(1)).is_ok());
    }

    #[test]
    fn who_awaits_the_sharers_goes_before_younger_ones() {
        let word = AtomicU64::new(free(3, 1));
        let [old, middle, young] = [1, 2, 3].map(Priority::undeclared);
        assert_eq!(try_shared(&word, young), Ok(()));
        assert_eq!(try_exclusive(&word, middle), Err(Contended(young)));
        await_sharers(&word, middle);
        assert_eq!(try_shared(&word, young), Err(Contended(middle)));
        assert_eq!(try_shared(&word, Priority::DECLARED), Err(Contended(middle)));
        assert_eq!(try_shared(&word, old), Ok(()), "older ones may join");
        release_shared(&word);
        release_shared(&word);
        assert!(try_shared(&word, young).is_err(), "the advance");
        assert_eq!(try_exclusive(&word, middle), Ok(()));
        release_exclusive(&word);
        assert_eq!(word.load(Ordering::Relaxed) & AWAITED, 0);
        // The flag of a waiter that gave up refuses the next shared lock once.
        assert_eq!(try_shared(&word, young), Ok(()));
        await_sharers(&word, Priority::DECLARED);
        release_shared(&word);
        assert!(try_shared(&word, old).is_err());
        assert_eq!(try_shared(&word, young), Ok(()));
        release_shared(&word);
        // The flag of a free or exclusively held lock is never set.
        await_sharers(&word, old);
        assert_eq!(try_exclusive(&word, old), Ok(()));
        await_sharers(&word, Priority::DECLARED);
        release_exclusive_unclaimable(&word);
        let end = word.load(Ordering::Relaxed);
        assert_eq!((user(end), status(end), end & AWAITED), (3, 1, 0));
    }

    #[test]
    fn waits_run_from_old_to_young_and_never_to_a_declared_holder() {
        let old = Priority::undeclared(10);
        let young = Priority::undeclared(11);
        assert!(old.may_wait_for(young));
        assert!(!young.may_wait_for(old));
        assert!(Priority::DECLARED.may_wait_for(Priority::DECLARED));
        assert!(Priority::DECLARED.may_wait_for(old));
        assert!(!old.may_wait_for(Priority::DECLARED));
        assert_eq!(old.older(young), old);
        assert_eq!(young.older(old), old);
        assert_eq!(young.older(Priority::DECLARED), Priority::DECLARED);
        // around the wrap of 35 bits
        let before_wrap = Priority::undeclared(PRIORITY_MAX - 1);
        let after_wrap = Priority::undeclared(PRIORITY_MAX + 5);
        assert!(before_wrap.may_wait_for(after_wrap));
        assert!(!after_wrap.may_wait_for(before_wrap));
    }
}
