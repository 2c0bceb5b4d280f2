//! Processor time, as the system accounts for it.

use std::mem::MaybeUninit;

/// Processor time of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// Time in the program's own code, in microseconds.
    pub user_us: u64,
    /// Time in the system on the program's behalf, in microseconds.
    pub system_us: u64,
}

/// Processor time of all threads of this process so far.
pub fn own_cpu_time() -> CpuTime {
    usage_of(libc::RUSAGE_SELF)
}

/// Processor time of the children of this process that have ended and were waited for.
pub fn children_cpu_time() -> CpuTime {
    usage_of(libc::RUSAGE_CHILDREN)
}

fn usage_of(who: libc::c_int) -> CpuTime {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: `usage` has room for one `rusage`, which is all that the call writes.
    if unsafe { libc::getrusage(who, usage.as_mut_ptr()) } != 0 {
        return CpuTime::default();
    }
    // SAFETY: the call has succeeded, so it has written the whole structure (getrusage(2)).
    let usage = unsafe { usage.assume_init() };
    let microseconds = |time: libc::timeval| {
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        seconds.saturating_mul(1_000_000) + u64::try_from(time.tv_usec).unwrap_or(0)
    };
    CpuTime { user_us: microseconds(usage.ru_utime), system_us: microseconds(usage.ru_stime) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_the_system_count_as_such() {
        let before = own_cpu_time();
        while own_cpu_time().system_us - before.system_us < 20_000 {
            // Each look is a call of the system.
        }
        let after = own_cpu_time();
        assert!(after.user_us >= before.user_us);
        let all_us = crate::process_cpu_ns() / 1000;
        assert!(after.user_us + after.system_us <= all_us + 20_000, "{after:?} of {all_us}");
    }
}
