//! One open file of a simulated machine.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::fault::{Call, Fault};
use super::tree::NodeId;
use super::{Machine, State};
use crate::disk::{
    Caching, DiskError, DiskFile, DiskResult, OpenMode, check_aligned, check_range, poisoned,
    read_only,
};
use crate::rng::Rng;

/// An open file of one machine.
pub(super) struct SimFile {
    pub(super) machine: Arc<Machine>,
    pub(super) node: NodeId,
    pub(super) path: PathBuf,
    pub(super) mode: OpenMode,
    pub(super) caching: Caching,
}

impl SimFile {
    /// Runs one call: counts it, and refuses it on a stopped machine. The caller applies the fault,
    /// if there is one.
    fn call<T>(
        &self,
        call: Call,
        op: impl FnOnce() -> String,
        effect: impl FnOnce(&mut State, Option<Fault>) -> io::Result<T>,
    ) -> DiskResult<T> {
        let mut state = self.machine.state_for(call);
        let result = state.begin(call).and_then(|fault| effect(&mut state, fault));
        result.map_err(|source| DiskError::new(op(), &self.path, source))
    }

    /// Makes the checks that precede every change.
    fn check_writable(&self, state: &State) -> io::Result<()> {
        if self.mode == OpenMode::Read {
            return Err(read_only());
        }
        if state.tree.file(self.node)?.flush_failed { Err(poisoned()) } else { Ok(()) }
    }

    fn write(
        &self,
        state: &mut State,
        bytes: &[u8],
        offset: u64,
        fault: Option<Fault>,
    ) -> io::Result<()> {
        self.check_writable(state)?;
        check_range(bytes.len() as u64, offset)?;
        check_aligned(self.caching, bytes, offset)?;
        let free_pages = state.free_pages();
        state.order += 1;
        let whole = match fault {
            None | Some(Fault::PowerLoss) => bytes,
            Some(Fault::DiskFull | Fault::InputOutput | Fault::Panic) => {
                &bytes[..state.rng.below(bytes.len() as u64) as usize]
            }
        };
        let State { tree, order, rng, .. } = state;
        let written =
            tree.file_mut(self.node)?.content.write(whole, offset, free_pages, *order, rng);
        match fault {
            Some(fault) => Err(state.suffer(fault)),
            None if written < bytes.len() => Err(Fault::DiskFull.error()),
            None => Ok(()),
        }
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> DiskResult<usize> {
        let len = buf.len();
        self.call(
            Call::Read,
            || format!("read {len} bytes at {offset} of"),
            |state, fault| {
                check_range(len as u64, offset)?;
                check_aligned(self.caching, buf, offset)?;
                state
                    .apply(fault, |state| Ok(state.tree.file(self.node)?.content.read(buf, offset)))
            },
        )
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> DiskResult<()> {
        let len = buf.len();
        self.call(
            Call::Write,
            || format!("write {len} bytes at {offset} of"),
            |state, fault| self.write(state, buf, offset, fault),
        )
    }

    fn sync(&self) -> DiskResult<()> {
        self.call(
            Call::Sync,
            || "flush".to_owned(),
            |state, fault| {
                let file = state.tree.file_mut(self.node)?;
                if file.flush_failed {
                    return Err(poisoned());
                }
                let Some(fault) = fault else {
                    file.content.flush();
                    return Ok(());
                };
                if fault != Fault::PowerLoss {
                    file.flush_failed = true;
                    file.content.fail_flush();
                }
                Err(state.suffer(fault))
            },
        )
    }

    fn len(&self) -> DiskResult<u64> {
        self.call(
            Call::Len,
            || "measure".to_owned(),
            |state, fault| {
                state.apply(fault, |state| Ok(state.tree.file(self.node)?.content.len()))
            },
        )
    }

    fn set_len(&self, len: u64) -> DiskResult<()> {
        self.call(
            Call::SetLen,
            || format!("set to {len} bytes the length of"),
            |state, fault| {
                self.check_writable(state)?;
                check_range(len, 0)?;
                state.apply(fault, |State { tree, order, rng, .. }| {
                    *order += 1;
                    tree.file_mut(self.node)?.content.set_len(len, *order, rng);
                    Ok(())
                })
            },
        )
    }

    fn allocate(&self, len: u64) -> DiskResult<()> {
        self.call(
            Call::Allocate,
            || format!("reserve {len} bytes for"),
            |state, fault| {
                self.check_writable(state)?;
                check_range(len, 0)?;
                let free_pages = state.free_pages();
                state.apply(fault, |State { tree, rng, .. }| {
                    let content = &mut tree.file_mut(self.node)?.content;
                    if content.pages_to_reserve(len) > free_pages {
                        return Err(Fault::DiskFull.error());
                    }
                    content.allocate(len, rng);
                    Ok(())
                })
            },
        )
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        if let Ok(file) = self.machine.state.lock().tree.file_mut(self.node) {
            file.handles -= 1;
        }
    }
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimFile")
            .field("path", &self.path)
            .field("mode", &self.mode)
            .field("caching", &self.caching)
            .finish_non_exhaustive()
    }
}
