//! Time slices of a thread, set by system calls that rustix lacks. ⚠ unsafe lives here, in small
//! documented blocks.

/// `struct sched_attr` of sched_setattr(2) in its first version.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// The slice in nanoseconds, from Linux 6.12 on.
    runtime: u64,
    deadline: u64,
    period: u64,
}

const SIZE: u32 = size_of::<Attributes>() as u32;
/// Flag: the scheduling policy stays as it is.
const KEEP_POLICY: u64 = 0x08;

/// Requests slices of this length for the calling thread, with the given nice value. A system
/// without slices, or one that refuses, changes nothing.
pub(crate) fn ask(nice: i32, slice_ns: u64) {
    let wanted = Attributes {
        size: SIZE,
        flags: KEEP_POLICY,
        nice,
        runtime: slice_ns,
        ..Attributes::default()
    };
    // SAFETY: the call reads as many bytes of `wanted` as its first field says, its size.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const wanted, 0) };
}

/// The calling thread's slice in nanoseconds.
pub(crate) fn granted() -> Option<u64> {
    let mut found = Attributes::default();
    // SAFETY: the call writes at most `SIZE` bytes to `found`, which has `SIZE` bytes.
    let rc = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut found, SIZE, 0) };
    (rc == 0 && found.runtime != 0).then_some(found.runtime)
}
