//! Holds on the files of checkpoints, for who copies a chain while the store is served.
//!
//! ```text
//! hold ─▶ copy the MANIFEST ─▶ copy the checkpoints that it names ─▶ drop the hold
//! ```
//! While somebody holds the files, the files of no checkpoint are removed that a MANIFEST has named. So
//! the files that the copied MANIFEST names are there until the end. `stillpoint restore` makes a store of
//! the copy, and needs no logs. Checkpoints and merges go on meanwhile, and take space.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{Checkpoints, attempt};
use crate::error::Error;
use crate::shared::Shared;

/// Somebody who [holds](crate::Engine::hold_files) the files of checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileHolder {
    /// The holder's name.
    pub name: String,
    /// Time since the hold began.
    pub held_for: Duration,
}

/// A hold that is not dropped yet.
#[derive(Debug)]
pub(super) struct Holding {
    holder: String,
    /// Monotonic time of its begin.
    since_ns: u64,
}

/// The files of checkpoints are held until this is dropped, or the store is closed. The background
/// thread then removes those that were replaced meanwhile. Without a background thread the drop does.
#[derive(Debug)]
pub struct HeldFiles {
    shared: Weak<Shared>,
    holder: String,
}

impl HeldFiles {
    /// Name of the holder.
    pub fn holder(&self) -> &str {
        &self.holder
    }
}

/// Holds the files under a name.
///
/// # Errors
/// Somebody holds the files under this name, or it is no name.
pub(crate) fn hold(shared: &Arc<Shared>, holder: &str) -> Result<HeldFiles, Error> {
    let refuse = |reason| Err(Error::Config { setting: "holder", reason });
    let is_name = (1..=64).contains(&holder.len())
        && holder.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',');
    if !is_name {
        return refuse("a name has 1 to 64 printable characters, no space and no comma".to_owned());
    }
    let mut holders = shared.checkpoints.holders.lock();
    if holders.iter().any(|other| other.holder == holder) {
        return refuse(format!("{holder:?} holds the files already; choose another name"));
    }
    let since_ns = shared.config.environment.clock.monotonic_ns();
    holders.push(Holding { holder: holder.to_owned(), since_ns });
    tracing::info!(holder, "files are held");
    Ok(HeldFiles { shared: Arc::downgrade(shared), holder: holder.to_owned() })
}

impl Drop for HeldFiles {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else { return };
        shared.checkpoints.holders.lock().retain(|other| other.holder != self.holder);
        tracing::info!(holder = self.holder, "files are held no longer");
        if !shared.config.environment.background {
            return remove_released(&shared);
        }
        // The drop waits for no disk: the background thread removes the files.
        shared.checkpoints.state.lock().was_released = true;
        shared.checkpoints.changed.notify_all();
    }
}

/// Removes files that were held. Files that cannot be removed now are removed by a later checkpoint, or
/// at the next start.
pub(super) fn remove_released(shared: &Shared) {
    if shared.health().is_err() {
        return;
    }
    let Err(error) = attempt::remove_strays_while_open(shared) else { return };
    if error.is_fatal() {
        shared.fail(error.to_string());
        return;
    }
    tracing::warn!(
        %error,
        "files that nobody holds any more could not be removed; the next checkpoint tries again"
    );
}

impl Checkpoints {
    /// Who holds the files of checkpoints.
    pub(super) fn file_holders(&self, now_ns: u64) -> Vec<FileHolder> {
        let holder = |holding: &Holding| FileHolder {
            name: holding.holder.clone(),
            held_for: Duration::from_nanos(now_ns.saturating_sub(holding.since_ns)),
        };
        self.holders.lock().iter().map(holder).collect()
    }

    /// Whether somebody holds the files of checkpoints.
    pub(super) fn are_held(&self) -> bool {
        !self.holders.lock().is_empty()
    }
}
