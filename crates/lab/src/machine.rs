//! The machine and the commit that a result belongs to.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::sys;

/// What was measured on. Ratios carry over to other machines, times do not.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Machine {
    /// Logical processors.
    pub cores: usize,
    /// The processor's name.
    pub model: String,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Bytes of the last-level cache, as the kernel reports it.
    pub last_level_cache_bytes: u64,
    /// The kernel's release.
    pub kernel: String,
    /// `release`, or `debug` for a build with debug assertions, whose times mean little.
    pub build: String,
}

impl Machine {
    /// Describes this machine; what cannot be found out is `"unknown"` or 0.
    pub fn here() -> Machine {
        let cpuinfo = sys::read_text(Path::new("/proc/cpuinfo")).unwrap_or_default();
        let meminfo = sys::read_text(Path::new("/proc/meminfo")).unwrap_or_default();
        let kernel = sys::read_text(Path::new("/proc/sys/kernel/osrelease")).unwrap_or_default();
        Machine {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            model: field(&cpuinfo, "model name").unwrap_or("unknown").to_owned(),
            memory_bytes: field(&meminfo, "MemTotal").and_then(kibibytes).unwrap_or(0),
            last_level_cache_bytes: last_level_cache_bytes(),
            kernel: if kernel.is_empty() { "unknown".into() } else { kernel.trim().to_owned() },
            build: if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned(),
        }
    }
}

/// Bytes of memory that a process can still have.
pub(crate) fn available_bytes() -> u64 {
    let meminfo = sys::read_text(Path::new("/proc/meminfo")).unwrap_or_default();
    field(&meminfo, "MemAvailable").and_then(kibibytes).unwrap_or(u64::MAX)
}

/// The value of the first `name : value` or `name: value` line.
pub(crate) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// `"123 kB"` in bytes.
pub(crate) fn kibibytes(text: &str) -> Option<u64> {
    text.strip_suffix("kB")?.trim().parse::<u64>().ok().map(|k| k * 1024)
}

fn last_level_cache_bytes() -> u64 {
    let root = Path::new("/sys/devices/system/cpu/cpu0/cache");
    let size = |index: u32| {
        let text = sys::read_text(&root.join(format!("index{index}/size"))).ok()?;
        let text = text.trim();
        match text.strip_suffix('K') {
            Some(k) => k.parse::<u64>().ok().map(|k| k * 1024),
            None => text.strip_suffix('M')?.parse::<u64>().ok().map(|m| m * 1024 * 1024),
        }
    };
    (0..=4).filter_map(size).max().unwrap_or(0)
}

/// The commit of the working tree around the current directory, `-dirty` added
/// when tracked files differ from it; else `STILLPOINT_COMMIT`; else `unknown`.
pub fn commit() -> String {
    if let Some(commit) = commit_from_git() {
        return commit;
    }
    if let Some(commit) = std::env::current_dir().ok().and_then(|dir| commit_from_files(&dir)) {
        return commit;
    }
    std::env::var("STILLPOINT_COMMIT").unwrap_or_else(|_| "unknown".to_owned())
}

fn commit_from_git() -> Option<String> {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changes.is_empty() { commit } else { format!("{commit}-dirty") })
}

/// Without the git program: `.git/HEAD`, then the loose or the packed reference.
fn commit_from_files(start: &Path) -> Option<String> {
    let git: PathBuf = start.ancestors().map(|dir| dir.join(".git")).find(|git| git.is_dir())?;
    let head = sys::read_text(&git.join("HEAD")).ok()?;
    let Some(reference) = head.trim().strip_prefix("ref: ") else {
        return Some(head.trim().to_owned());
    };
    if let Ok(commit) = sys::read_text(&git.join(reference)) {
        return Some(commit.trim().to_owned());
    }
    let packed = sys::read_text(&git.join("packed-refs")).ok()?;
    packed.lines().find_map(|line| {
        let (commit, name) = line.split_once(' ')?;
        (name == reference).then(|| commit.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "MemTotal:       24 kB\nMemFree: 3 kB\nmodel name\t: A CPU\n";
        assert_eq!(field(text, "MemTotal").and_then(kibibytes), Some(24 * 1024));
        assert_eq!(field(text, "model name"), Some("A CPU"));
        assert_eq!(field(text, "Mem"), None);
        assert_eq!(kibibytes("7 MB"), None);
    }

    #[test]
    fn a_commit_is_found_without_git() -> Result<(), Box<dyn std::error::Error>> {
        let dir = tempfile::tempdir()?;
        let git = dir.path().join(".git");
        sys::create_dir_all(&git.join("refs/heads"))?;
        sys::write_text(&git.join("HEAD"), "ref: refs/heads/main\n")?;
        sys::write_text(&git.join("packed-refs"), "# pack\naaaa refs/heads/main\n")?;
        let below = dir.path().join("a/b");
        sys::create_dir_all(&below)?;
        assert_eq!(commit_from_files(&below), Some("aaaa".into()));
        sys::write_text(&git.join("refs/heads/main"), "bbbb\n")?;
        assert_eq!(commit_from_files(&below), Some("bbbb".into()), "loose before packed");
        sys::write_text(&git.join("HEAD"), "cccc\n")?;
        assert_eq!(commit_from_files(&below), Some("cccc".into()), "detached");
        Ok(())
    }
}
