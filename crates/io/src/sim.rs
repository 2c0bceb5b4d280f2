//! A disk in memory that can lose power, fail and fill up.
//!
//! Every sector of 512 bytes and every name has a durable and a volatile state. After a power loss
//! each unflushed sector is old, new or torn, independently of the others. Of each directory's
//! unflushed changes a prefix remains. Seeds determine all of these outcomes.
//!
//! Two assumptions about a real disk are never violated here. A flush that returned success has
//! reached the medium. Sectors that nobody writes keep their bytes.

mod content;
mod crash;
mod fault;
mod file;
mod pages;
mod tree;

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

pub use self::crash::Tearing;
pub use self::fault::{Call, CallCounts, Fault, FaultPlan, Lasts};

use self::crash::Outcome;
use self::fault::{Faults, KILLED, NO_POWER};
use self::file::SimFile;
use self::pages::PAGE;
use self::tree::{NodeId, Tree};
use crate::disk::{
    Caching, Disk, DiskError, DiskFile, DiskLock, DiskResult, OpenMode, SharedLock, Space, parts,
    poisoned,
};
use crate::rng::{Rng, SeededRng};

/// The path under which a simulated disk shows its files.
const ROOT_PATH: &str = "/sim";

/// Interval at which a hanging call checks that the machine still runs.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// A disk in memory. Clones share the disk.
///
/// ```
/// use std::path::Path;
/// use stillpoint_io::{Disk, SimDisk, read_all, write_file_durably};
/// let (path, root) = (Path::new("MANIFEST"), Path::new(""));
/// let disk = SimDisk::new(1);
/// write_file_durably(&disk, path, b"one")?;
/// disk.remove(path)?; // not durable before sync_dir
/// for seed in 0..20 {
///     let after = disk.crash(seed);
///     if after.exists(path)? {
///         assert_eq!(read_all(&after, path)?, b"one");
///     }
/// }
/// let late = disk.sync_dir(root).unwrap_err();
/// assert_eq!(late.to_string(), "flush directory /sim: the machine has lost power");
/// # Ok::<(), stillpoint_io::DiskError>(())
/// ```
#[derive(Clone)]
pub struct SimDisk {
    machine: Arc<Machine>,
}

/// The machine that a disk's handles belong to.
struct Machine {
    state: Mutex<State>,
    /// Signals that hanging calls may go on.
    resumed: Condvar,
}

impl Machine {
    /// The locked state, after a wait while calls of this kind hang.
    fn state_for(&self, call: Call) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        while state.dead.is_none() && state.stalled.contains(&call) {
            state.waiting += 1;
            // A fault that cuts the power signals no waiting thread, so the thread looks again from
            // time to time.
            self.resumed.wait_for(&mut state, LOOK_AGAIN);
            state.waiting -= 1;
        }
        state
    }

    /// Stops the machine: every later call fails.
    fn die(&self, why: &'static str) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        state.dead = state.dead.or(Some(why));
        state
    }
}

struct State {
    /// The reason why every call fails, if the machine has stopped.
    dead: Option<&'static str>,
    tree: Tree,
    locks: BTreeMap<NodeId, Holders>,
    /// Writes so far, of all files.
    order: u64,
    rng: SeededRng,
    faults: Faults,
    /// Kinds of hanging calls, and the number of calls that hang.
    stalled: Vec<Call>,
    waiting: usize,
    counts: CallCounts,
    capacity_bytes: Option<u64>,
    tearing: Tearing,
}

impl SimDisk {
    /// An empty disk. The seed decides what faults leave behind.
    pub fn new(seed: u64) -> Self {
        Self::of(State {
            dead: None,
            tree: Tree::new(),
            locks: BTreeMap::new(),
            order: 0,
            rng: SeededRng::new(seed),
            faults: Faults::default(),
            stalled: Vec::new(),
            waiting: 0,
            counts: CallCounts::default(),
            capacity_bytes: None,
            tearing: Tearing::default(),
        })
    }

    fn of(state: State) -> Self {
        Self { machine: Arc::new(Machine { state: Mutex::new(state), resumed: Condvar::new() }) }
    }

    /// Sets the possible contents of torn sectors after later crashes. The default is
    /// [`Tearing::Garbage`].
    pub fn set_tearing(&self, tearing: Tearing) {
        self.machine.state.lock().tearing = tearing;
    }

    /// Cuts the power now. Returns one of the disks that may be found afterwards, in a machine that
    /// runs again. This machine's handles fail from here on. A call with another seed returns
    /// another of the possible disks.
    pub fn crash(&self, seed: u64) -> SimDisk {
        self.machine.die(NO_POWER).after_power_loss(seed)
    }

    /// Calls [`crash`](Self::crash) once for each seed.
    pub fn crash_states(
        &self,
        seeds: impl IntoIterator<Item = u64>,
    ) -> impl Iterator<Item = SimDisk> {
        seeds.into_iter().map(|seed| self.crash(seed))
    }

    /// As [`crash`](Self::crash), but this machine goes on.
    pub fn crash_image(&self, seed: u64) -> SimDisk {
        self.machine.state.lock().after_power_loss(seed)
    }

    /// Ends the process, as `kill -9` does, and returns the disk that the next process finds. The
    /// disk holds everything written, but unflushed bytes are still not durable. Locks are free.
    pub fn kill(&self) -> SimDisk {
        let state = self.machine.die(KILLED);
        let tree = state.tree.after_kill();
        state.successor(tree, state.rng.next_u64())
    }

    /// Whether the machine has stopped by a crash or kill, so that every call fails.
    pub fn is_dead(&self) -> bool {
        self.machine.state.lock().dead.is_some()
    }

    /// Makes the `nth` call from now that may change the disk fail once ([`Call::is_change`];
    /// counted from 1). On a fresh disk, `nth` in `1..=call_counts().changes()` of a run without
    /// faults visits every site of that run.
    pub fn fail_at(&self, nth: u64, fault: Fault) {
        self.inject(FaultPlan { calls: Vec::new(), nth, fault, lasts: Lasts::Once });
    }

    /// Adds a fault to come.
    pub fn inject(&self, plan: FaultPlan) {
        self.machine.state.lock().faults.inject(plan);
    }

    /// Ends every present and planned fault. Failed files stay failed.
    pub fn clear_faults(&self) {
        self.machine.state.lock().faults.clear();
    }

    /// Lets calls of these kinds hang, until [`resume`](Self::resume) or the end of the machine.
    pub fn stall(&self, calls: &[Call]) {
        self.machine.state.lock().stalled = calls.to_vec();
    }

    /// Ends the hanging of present and later calls.
    pub fn resume(&self) {
        self.machine.state.lock().stalled.clear();
        self.machine.resumed.notify_all();
    }

    /// Number of hanging calls.
    pub fn waiting_calls(&self) -> usize {
        self.machine.state.lock().waiting
    }

    /// Calls so far.
    pub fn call_counts(&self) -> CallCounts {
        self.machine.state.lock().counts
    }

    /// Sets the space for file contents, counted in pages of 4096 bytes. `None` means unlimited.
    /// The space may be less than the space in use; then nothing more fits.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.machine.state.lock().capacity_bytes = bytes;
    }

    /// Space in use, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.machine.state.lock().tree.footprint_pages() * PAGE as u64
    }

    /// Sectors of 512 bytes that a power loss now would leave uncertain.
    pub fn unflushed_sectors(&self) -> u64 {
        self.machine.state.lock().tree.contents().map(content::Content::unflushed_sectors).sum()
    }

    /// Created, renamed and removed names that are not durable yet.
    pub fn unflushed_names(&self) -> usize {
        self.machine.state.lock().tree.unflushed_names()
    }

    /// Runs one call on a path: counts it, applies faults, and refuses it on a stopped machine.
    fn call<T>(
        &self,
        call: Call,
        op: &str,
        path: &Path,
        effect: impl FnOnce(&mut State, &[&str]) -> io::Result<T>,
    ) -> DiskResult<T> {
        let mut state = self.machine.state_for(call);
        let result = state.begin(call).and_then(|fault| {
            let parts = parts(path)?;
            state.apply(fault, |state| effect(state, &parts))
        });
        result.map_err(|source| DiskError::new(op, self.describe(path), source))
    }
}

impl State {
    fn check_alive(&self) -> io::Result<()> {
        self.dead.map_or(Ok(()), |why| Err(io::Error::other(why)))
    }

    /// Counts a call and returns the fault that it meets.
    fn begin(&mut self, call: Call) -> io::Result<Option<Fault>> {
        self.check_alive()?;
        self.counts.count(call);
        match self.faults.strike(call) {
            Some(Fault::Panic) => Err(Fault::Panic.error()),
            fault => Ok(fault),
        }
    }

    /// Runs a call that has no effect if it fails. If the power fails in the middle of the call,
    /// the effect exists but is not durable, so the crash decides.
    fn apply<T>(
        &mut self,
        fault: Option<Fault>,
        effect: impl FnOnce(&mut Self) -> io::Result<T>,
    ) -> io::Result<T> {
        match fault {
            None => effect(self),
            Some(fault) => {
                if fault == Fault::PowerLoss {
                    effect(self)?;
                }
                Err(self.suffer(fault))
            }
        }
    }

    fn suffer(&mut self, fault: Fault) -> io::Error {
        if fault == Fault::PowerLoss {
            self.dead = Some(NO_POWER);
        }
        fault.error()
    }

    fn free_pages(&self) -> u64 {
        self.capacity_bytes.map_or(u64::MAX, |bytes| {
            (bytes / PAGE as u64).saturating_sub(self.tree.footprint_pages())
        })
    }

    fn after_power_loss(&self, seed: u64) -> SimDisk {
        let rng = SeededRng::new(seed);
        let oldest = self.tree.contents().filter_map(content::Content::oldest_unflushed).min();
        let oldest = oldest.unwrap_or(self.order);
        let outcome = Outcome::draw(self.tearing, oldest, self.order, &rng);
        let tree = self.tree.after_power_loss(&outcome, &rng);
        self.successor(tree, rng.next_u64())
    }

    /// The machine that starts with these files.
    fn successor(&self, tree: Tree, seed: u64) -> SimDisk {
        SimDisk::of(State {
            dead: None,
            tree,
            locks: BTreeMap::new(),
            order: self.order,
            rng: SeededRng::new(seed),
            faults: Faults::default(),
            stalled: Vec::new(),
            waiting: 0,
            counts: CallCounts::default(),
            capacity_bytes: self.capacity_bytes,
            tearing: self.tearing,
        })
    }
}

impl Disk for SimDisk {
    fn open(&self, path: &Path, mode: OpenMode, caching: Caching) -> DiskResult<Arc<dyn DiskFile>> {
        let op = if mode == OpenMode::CreateNew { "create" } else { "open" };
        let node = self.call(Call::Open, op, path, |state, parts| {
            let node = match mode {
                OpenMode::CreateNew => state.tree.create_file(parts)?,
                OpenMode::Read | OpenMode::ReadWrite => state.tree.lookup(parts)?,
            };
            state.tree.file_mut(node)?.handles += 1;
            Ok(node)
        })?;
        let path = self.describe(path);
        Ok(Arc::new(SimFile { machine: self.machine.clone(), node, path, mode, caching }))
    }

    fn create_dir_all(&self, path: &Path) -> DiskResult<()> {
        self.call(Call::CreateDir, "create directory", path, |state, parts| {
            state.tree.create_dir_all(parts)
        })
    }

    fn list(&self, path: &Path) -> DiskResult<Vec<String>> {
        self.call(Call::List, "list", path, |state, parts| {
            state.tree.list(state.tree.lookup(parts)?)
        })
    }

    fn exists(&self, path: &Path) -> DiskResult<bool> {
        self.call(Call::Exists, "look for", path, |state, parts| match state.tree.lookup(parts) {
            Ok(_) => Ok(true),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                Ok(false)
            }
            Err(e) => Err(e),
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> DiskResult<()> {
        let op = format!("rename to {} the file", self.describe(to).display());
        self.call(Call::Rename, &op, from, |state, from| state.tree.rename(from, &parts(to)?))
    }

    fn remove(&self, path: &Path) -> DiskResult<()> {
        self.call(Call::Remove, "remove", path, |state, parts| state.tree.remove(parts))
    }

    fn sync_dir(&self, path: &Path) -> DiskResult<()> {
        let mut state = self.machine.state_for(Call::SyncDir);
        let result = state.begin(Call::SyncDir).and_then(|fault| {
            let node = state.tree.lookup(&parts(path)?)?;
            if state.tree.directory(node)?.flush_failed {
                return Err(poisoned());
            }
            let Some(fault) = fault else {
                state.tree.flush_directory(node);
                return Ok(());
            };
            state.tree.directory_mut(node)?.flush_failed = true;
            Err(state.suffer(fault))
        });
        result.map_err(|e| DiskError::new("flush directory", self.describe(path), e))
    }

    fn lock(&self, path: &Path) -> DiskResult<Option<Box<dyn DiskLock>>> {
        let locked = self.call(Call::Lock, "lock", path, |state, parts| {
            let node = match state.tree.lookup(parts) {
                Err(e) if e.kind() == ErrorKind::NotFound => state.tree.create_file(parts)?,
                found => found?,
            };
            state.tree.file(node)?;
            let free = !state.locks.contains_key(&node);
            if free {
                state.locks.insert(node, Holders::One);
            }
            Ok(free.then_some(node))
        })?;
        Ok(locked.map(|node| {
            let path = path.to_owned();
            let guard: Box<dyn DiskLock> =
                Box::new(LockGuard { machine: self.machine.clone(), node, path });
            guard
        }))
    }

    fn lock_shared(&self, path: &Path) -> DiskResult<SharedLock> {
        self.call(Call::LockShared, "lock", path, |state, parts| {
            let node = match state.tree.lookup(parts) {
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                    return Ok(SharedLock::Absent);
                }
                found => found?,
            };
            state.tree.file(node)?;
            match state.locks.entry(node).or_insert(Holders::Shared(0)) {
                Holders::One => return Ok(SharedLock::InUse),
                Holders::Shared(count) => *count += 1,
            }
            let (machine, path) = (self.machine.clone(), path.to_owned());
            Ok(SharedLock::Held(Box::new(LockGuard { machine, node, path })))
        })
    }

    fn space(&self) -> DiskResult<Option<Space>> {
        let state = self.machine.state.lock();
        let space = state.check_alive().map(|()| {
            state.capacity_bytes.map(|total_bytes| Space {
                free_bytes: state.free_pages() * PAGE as u64,
                total_bytes,
            })
        });
        space.map_err(|e| DiskError::new("ask for the space of", self.describe(Path::new("")), e))
    }

    fn simulation_seed(&self) -> Option<u64> {
        Some(self.machine.state.lock().rng.next_u64())
    }
    fn describe(&self, path: &Path) -> PathBuf {
        let root = PathBuf::from(ROOT_PATH);
        match parts(path) {
            Ok(parts) => parts.iter().fold(root, |path, part| path.join(part)),
            Err(_) => root.join(path),
        }
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.machine.state.lock();
        f.debug_struct("SimDisk")
            .field("dead", &state.dead)
            .field("counts", &state.counts)
            .field("unflushed_names", &state.tree.unflushed_names())
            .finish_non_exhaustive()
    }
}

/// Holders of a lock file.
enum Holders {
    /// An exclusive holder.
    One,
    /// A number of shared holders.
    Shared(usize),
}

/// Holds a lock of its machine until dropped.
struct LockGuard {
    machine: Arc<Machine>,
    node: NodeId,
    /// The path of the lock file below the root.
    path: PathBuf,
}

impl DiskLock for LockGuard {
    fn is_in_place(&self) -> DiskResult<bool> {
        let state = self.machine.state.lock();
        let found =
            state.check_alive().and_then(|()| match state.tree.lookup(&parts(&self.path)?) {
                Ok(node) => Ok(node == self.node),
                Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                    Ok(false)
                }
                Err(e) => Err(e),
            });
        found.map_err(|e| DiskError::new("look for", Path::new(ROOT_PATH).join(&self.path), e))
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        let mut state = self.machine.state.lock();
        match state.locks.get_mut(&self.node) {
            Some(Holders::Shared(count)) if *count > 1 => *count -= 1,
            _ => drop(state.locks.remove(&self.node)),
        }
    }
}
