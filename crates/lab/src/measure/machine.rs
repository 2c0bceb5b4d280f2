//! The machine that a result belongs to.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::sys;

/// The machine of a measurement. Ratios carry over to other machines, times do not.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct Machine {
    /// Logical processors.
    pub(crate) cores: usize,
    /// The processor's name.
    pub(crate) model: String,
    /// Bytes of memory.
    pub(crate) memory_bytes: u64,
    /// Bytes of the last-level cache, as the kernel reports it.
    pub(crate) last_level_cache_bytes: u64,
    /// The kernel's release.
    pub(crate) kernel: String,
    /// `release`, or `debug` for a build with debug assertions, whose times mean little.
    pub(crate) build: String,
}

impl Machine {
    /// Describes this machine. Unknown properties are `"unknown"` or 0.
    pub(crate) fn here() -> Machine {
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

/// Bytes of memory that are still available to a process.
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
}
