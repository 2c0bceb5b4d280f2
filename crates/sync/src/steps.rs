//! The steps of a commit, for tests that interleave sessions at them.
//!
//! A test gives a hook to each thread that it schedules. Each step calls the hook, which may let other
//! threads go first. A thread that waits for another calls the hook too, instead of spinning.
//! Without the feature `planted-bugs` no code of this module is left.

/// A step of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A commit has read the phase, with all its locks held.
    PhaseRead,
    /// The log has taken the commit.
    Appended,
    /// The writes are in their cells, which are still locked.
    Installed,
    /// The thread waits for another.
    Waits,
}

#[cfg(feature = "planted-bugs")]
mod hooked {
    use super::Step;
    use std::cell::RefCell;
    use std::rc::Rc;

    type Hook = Rc<dyn Fn(Step)>;

    thread_local! {
        static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    }

    /// Sets or removes this thread's hook.
    pub fn set_hook(hook: Option<Hook>) {
        HOOK.set(hook);
    }

    /// Calls the thread's hook. Returns whether the thread has a hook.
    #[inline]
    pub fn step(step: Step) -> bool {
        let hook = HOOK.with_borrow(Clone::clone);
        hook.is_some_and(|hook| {
            hook(step);
            true
        })
    }
}

#[cfg(feature = "planted-bugs")]
pub use hooked::{set_hook, step};

/// False, since without the feature no thread has a hook.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub const fn step(_: Step) -> bool {
    false
}
