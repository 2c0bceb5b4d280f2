//! Notifies a supervisor of processes. The supervisor gets a datagram at `NOTIFY_SOCKET`, if that
//! variable is set, and a file with the number of the process.

use std::path::{Path, PathBuf};

use sd_notify::NotifyState;
use stillpoint_io::{Disk, RealDisk, write_file_durably};

use crate::error::CliError;

/// Sends a message to the supervisor. An error is ignored, since a supervisor that wants messages
/// listens.
pub(super) fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(false, states) {
        tracing::debug!(%error, "the supervisor was not told");
    }
}

/// A file with the number of the process. A drop removes the file.
pub(super) struct PidFile {
    dir: RealDisk,
    name: PathBuf,
}

impl PidFile {
    /// # Errors
    /// When the file cannot be written.
    pub(super) fn write(path: &Path) -> Result<Self, CliError> {
        let refuse = |reason: &str| CliError::Option {
            option: "pidfile",
            reason: format!("{}: {reason}", path.display()),
        };
        let name = path.file_name().ok_or_else(|| refuse("is not a file"))?;
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        let dir = dir.unwrap_or(Path::new("."));
        if !dir.is_dir() {
            return Err(refuse("its directory does not exist"));
        }
        let dir = RealDisk::new(dir).map_err(stillpoint::Error::from)?;
        let pid = format!("{}\n", std::process::id());
        write_file_durably(&dir, Path::new(name), pid.as_bytes())
            .map_err(stillpoint::Error::from)?;
        Ok(Self { dir, name: PathBuf::from(name) })
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // If the removal fails, the reader of the file sees that no such process runs.
        let _ = self.dir.remove(&self.name);
    }
}
