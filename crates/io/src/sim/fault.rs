//! Injected faults: the failing call and its failure.

use std::io;

/// A kind of call on a [`Disk`](crate::Disk) or [`DiskFile`](crate::DiskFile).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    /// `Disk::open`
    Open,
    /// `Disk::create_dir_all`
    CreateDir,
    /// `Disk::list`
    List,
    /// `Disk::exists`
    Exists,
    /// `Disk::rename`
    Rename,
    /// `Disk::remove`
    Remove,
    /// `Disk::sync_dir`
    SyncDir,
    /// `Disk::lock`
    Lock,
    /// `Disk::lock_shared`
    LockShared,
    /// `DiskFile::read_at`
    Read,
    /// `DiskFile::write_at`
    Write,
    /// `DiskFile::sync`
    Sync,
    /// `DiskFile::len`
    Len,
    /// `DiskFile::set_len`
    SetLen,
    /// `DiskFile::allocate`
    Allocate,
}

impl Call {
    /// Every kind.
    pub const ALL: [Call; 15] = [
        Call::Open,
        Call::CreateDir,
        Call::List,
        Call::Exists,
        Call::Rename,
        Call::Remove,
        Call::SyncDir,
        Call::Lock,
        Call::LockShared,
        Call::Read,
        Call::Write,
        Call::Sync,
        Call::Len,
        Call::SetLen,
        Call::Allocate,
    ];

    /// Whether this kind may change the disk (`Open` may create a file, so it counts).
    pub fn is_change(self) -> bool {
        !matches!(self, Call::List | Call::Exists | Call::LockShared | Call::Read | Call::Len)
    }
}

/// Numbers of calls of each kind on a simulated disk, including failed ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounts([u64; Call::ALL.len()]);

impl CallCounts {
    /// Calls of one kind.
    pub fn of(&self, call: Call) -> u64 {
        self.0[call as usize]
    }

    /// Calls of all kinds.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Calls for which [`Call::is_change`]: the sites that [`SimDisk::fail_at`] numbers.
    ///
    /// [`SimDisk::fail_at`]: crate::SimDisk::fail_at
    pub fn changes(&self) -> u64 {
        Call::ALL.into_iter().filter(|call| call.is_change()).map(|call| self.of(call)).sum()
    }

    pub(super) fn count(&mut self, call: Call) {
        self.0[call as usize] += 1;
    }
}

/// The failure of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The device is full. A write leaves a part of its bytes; a flush counts as failed.
    DiskFull,
    /// The device reports an error (EIO). A write leaves a part of its bytes; a flush counts as failed.
    InputOutput,
    /// The machine loses power during the call. This and every later call fails, and
    /// [`SimDisk::crash`](crate::SimDisk::crash) returns the remaining disk. An interrupted flush
    /// has no effect. Any other change may or may not be found.
    PowerLoss,
    /// The call panics and changes nothing, like a bug in the disk's caller.
    Panic,
}

impl Fault {
    /// The error of the failing call. [`Fault::Panic`] panics here.
    pub(super) fn error(self) -> io::Error {
        match self {
            Fault::DiskFull => {
                io::Error::new(io::ErrorKind::StorageFull, "no space left on the simulated device")
            }
            Fault::InputOutput => io::Error::other("injected input/output error"),
            Fault::PowerLoss => io::Error::other(NO_POWER),
            // A panic that prints nothing, since tests inject thousands.
            Fault::Panic => std::panic::resume_unwind(Box::new("injected panic")),
        }
    }
}

pub(super) const NO_POWER: &str = "the machine has lost power";
pub(super) const KILLED: &str = "the process has been killed";

/// Duration of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lasts {
    /// One call fails.
    Once,
    /// Every matching call from that one on fails, until [`SimDisk::clear_faults`](crate::SimDisk::clear_faults).
    UntilCleared,
}

/// A planned fault.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    /// Kinds of calls that the fault counts and meets. Empty means those with [`Call::is_change`].
    pub calls: Vec<Call>,
    /// Number of the failing call, counted from 1 at the injection.
    pub nth: u64,
    /// The failure.
    pub fault: Fault,
    /// The duration.
    pub lasts: Lasts,
}

/// The plans in force, with the calls counted so far.
#[derive(Debug, Default)]
pub(super) struct Faults {
    plans: Vec<(FaultPlan, u64)>,
}

impl Faults {
    pub(super) fn inject(&mut self, plan: FaultPlan) {
        self.plans.push((plan, 0));
    }

    pub(super) fn clear(&mut self) {
        self.plans.clear();
    }

    /// Counts a call in every plan. The first plan that the call meets decides the failure.
    pub(super) fn strike(&mut self, call: Call) -> Option<Fault> {
        let mut struck = None;
        self.plans.retain_mut(|(plan, seen)| {
            let matches =
                if plan.calls.is_empty() { call.is_change() } else { plan.calls.contains(&call) };
            if !matches {
                return true;
            }
            *seen += 1;
            if *seen < plan.nth {
                return true;
            }
            struck = struck.or(Some(plan.fault));
            plan.lasts == Lasts::UntilCleared
        });
        struck
    }
}
