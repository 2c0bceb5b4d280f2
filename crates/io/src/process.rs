//! Resources used by this process, and the limits of the machine.

#![expect(
    clippy::disallowed_methods,
    reason = "reads /proc and /sys, which are no part of the store"
)]

use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::ClockId;

use crate::clock::clock_ns;

/// Processor time of all threads of this process so far, in nanoseconds.
pub fn process_cpu_ns() -> u64 {
    clock_ns(ClockId::ProcessCPUTime)
}

/// Processor time of the calling thread so far, in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    clock_ns(ClockId::ThreadCPUTime)
}

/// Raises this process's limit of open files to the system's maximum. Returns the limit, or `None`
/// if there is none.
///
/// # Errors
/// The system refuses. The limit is unchanged.
pub fn raise_open_files() -> std::io::Result<Option<u64>> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    }
    Ok(limit.maximum)
}

/// Resident memory of this process, in bytes. 0 if the system does not say.
pub fn resident_bytes() -> u64 {
    // Second number of /proc/self/statm: resident pages (proc(5)).
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    pages.saturating_mul(rustix::param::page_size() as u64)
}

/// Memory available to this process, in bytes: the machine's, or the lower limit of a control
/// group. 0 if the system does not say.
pub fn total_memory_bytes() -> u64 {
    let machine = machine_memory_bytes();
    match group_limit_bytes() {
        Some(limit) if machine == 0 || limit < machine => limit,
        _ => machine,
    }
}

#[cfg(target_os = "linux")]
fn machine_memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    #[expect(clippy::useless_conversion, reason = "the field is 32 bits wide on 32-bit systems")]
    u64::from(info.totalram).saturating_mul(u64::from(info.mem_unit))
}

#[cfg(not(target_os = "linux"))]
fn machine_memory_bytes() -> u64 {
    0
}

/// The tightest limit of the process's control group and its parents (cgroups(7)), both versions.
fn group_limit_bytes() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    groups
        .lines()
        .filter_map(|line| {
            let (root, file, group) = limit_file(line)?;
            tightest(Path::new(root), group, file)
        })
        .min()
}

/// For one line of `/proc/self/cgroup`: mount point, limit file and group, if it is about memory.
fn limit_file(line: &str) -> Option<(&'static str, &'static str, &str)> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
    if controllers.is_empty() {
        Some(("/sys/fs/cgroup", "memory.max", group))
    } else if controllers.split(',').any(|c| c == "memory") {
        Some(("/sys/fs/cgroup/memory", "memory.limit_in_bytes", group))
    } else {
        None
    }
}

/// The smallest number in `file` of the group and of each group above it.
fn tightest(root: &Path, group: &str, file: &str) -> Option<u64> {
    let mut directory: PathBuf = root.join(group.trim_start_matches('/'));
    let mut limit: Option<u64> = None;
    loop {
        // "max" and unreadable files limit nothing.
        let text = std::fs::read_to_string(directory.join(file)).unwrap_or_default();
        if let Ok(bytes) = text.trim().parse::<u64>() {
            limit = Some(limit.map_or(bytes, |least| least.min(bytes)));
        }
        if directory == root || !directory.pop() {
            return limit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_costs_processor_time() {
        let (process, thread) = (process_cpu_ns(), thread_cpu_ns());
        let mut sum = 0u64;
        while thread_cpu_ns() - thread < 3_000_000 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(process_cpu_ns() - process >= 3_000_000);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn touched_memory_is_resident_and_below_the_total() {
        const BYTES: usize = 64 << 20;
        let touched = std::hint::black_box(vec![1u8; BYTES]);
        // Other tests of this process allocate and free memory meanwhile, so a difference of two
        // figures proves nothing.
        let resident = resident_bytes();
        assert_eq!(std::hint::black_box(&touched)[BYTES - 1], 1);
        assert!(resident >= BYTES as u64, "{resident}");
        assert!(resident < total_memory_bytes());
    }

    #[test]
    fn group_limit_is_the_tightest_on_the_way_up() {
        let root = tempfile::tempdir().expect("temporary directory");
        let leaf = root.path().join("a/b");
        std::fs::create_dir_all(&leaf).expect("directories");
        std::fs::write(root.path().join("a/memory.max"), "4096\n").expect("write");
        std::fs::write(leaf.join("memory.max"), "max\n").expect("write");
        assert_eq!(tightest(root.path(), "/a/b", "memory.max"), Some(4096));
        std::fs::write(leaf.join("memory.max"), "512\n").expect("write");
        assert_eq!(tightest(root.path(), "/a/b", "memory.max"), Some(512));
        assert_eq!(tightest(root.path(), "/", "memory.max"), None);
    }

    #[test]
    fn group_lines_of_both_versions_are_understood() {
        assert_eq!(limit_file("0::/a:b"), Some(("/sys/fs/cgroup", "memory.max", "/a:b")));
        let v1 = Some(("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "/x"));
        assert_eq!(limit_file("5:memory,cpu:/x"), v1);
        assert_eq!(limit_file("4:cpu:/x"), None);
        assert_eq!(limit_file("nonsense"), None);
    }
}
