//! Disk, clock, randomness and threads: the real ones and the simulated ones.
//! Nothing in this crate knows what the bytes mean.
//!
//! Every other crate reaches files, time, random numbers and threads through
//! these traits, so that production, power loss and fault injection run the
//! same engine.

#![deny(unsafe_code)]

mod aligned;
#[cfg_attr(
    all(target_os = "linux", target_env = "gnu"),
    expect(unsafe_code, reason = "the call is the allocator's own, see the notes there")
)]
mod allocator;
mod append;
mod behind;
mod cancel;
mod clock;
mod disk;
#[expect(unsafe_code, reason = "fork is the system's own, see the notes there")]
mod fork;
#[expect(unsafe_code, reason = "mappings are the system's own, see the notes there")]
mod huge;
mod owned;
mod pace;
mod parallel;
mod process;
mod queue;
mod real;
mod rng;
mod seeded;
mod sim;
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "the calls are the system's own, see the notes there")]
mod slice;
mod thread;
#[expect(unsafe_code, reason = "the call is the system's own, see the notes there")]
mod usage;
mod whole;
mod workers;
#[cfg_attr(
    target_os = "linux",
    expect(unsafe_code, reason = "the calls are the system's own, see the notes there")
)]
mod written;

pub use aligned::AlignedBuf;
pub use allocator::{
    RETURNED_BYTES_MIN, grow_heap_in_large_steps, return_freed_memory, return_large_allocations,
};
pub use append::AppendFile;
pub use behind::WriteBehind;
pub use cancel::{Cancel, CancellableDisk};
pub use clock::{Clock, ManualClock, RealClock};
pub use disk::{
    Caching, DIRECT_ALIGN, Disk, DiskError, DiskFile, DiskLock, DiskResult, OpenMode, SharedLock,
    Space,
};
pub use fork::{ForkError, ForkedMemory};
pub use huge::huge_zeros;
pub use owned::{NotOwner, OwnedDisk};
pub use pace::{Meter, Pace};
pub use parallel::in_parallel;
pub use process::{
    process_cpu_ns, raise_open_files, resident_bytes, thread_cpu_ns, total_memory_bytes,
};
pub use queue::{Ended, Queue, Transfer};
pub use real::RealDisk;
pub use rng::{RealRng, Rng, SeededRng};
pub use seeded::seeded_rounds;
pub use sim::{Call, CallCounts, Fault, FaultPlan, Lasts, SimDisk, Tearing};
pub use thread::{
    JoinHandle, ThreadError, ask_for_short_slices, catch_panic, cpu_count, go_behind,
    go_far_behind, is_interrupted_soon, pin_to_core, spawn,
};
pub use usage::{CpuTime, children_cpu_time, own_cpu_time};
pub use whole::{read_all, replace_by, write_beside, write_file_durably};
pub use written::{WrittenPages, WrittenPagesError};
