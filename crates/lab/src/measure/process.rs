//! Counts of a process from `/proc`.

use std::path::PathBuf;

use crate::error::{LabError, LabResult};
use crate::measure::machine::{field, kibibytes};
use crate::sys;

fn proc_file(pid: u32, name: &str) -> LabResult<String> {
    sys::read_text(&PathBuf::from(format!("/proc/{pid}/{name}")))
}

/// User and system seconds of a process and of the children that it has waited for.
pub(crate) fn cpu_seconds(pid: u32) -> LabResult<f64> {
    let stat = proc_file(pid, "stat")?;
    cpu_ticks(&stat)
        .map(|ticks| ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
        .ok_or_else(|| LabError::process(format!("/proc/{pid}/stat"), "not understood"))
}

/// utime + stime + cutime + cstime: fields 14 to 17. The name may hold spaces and brackets.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    fields.get(11..15)?.iter().map(|f| f.parse::<u64>().ok()).sum()
}

/// Running child processes of a process.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let tasks = sys::list_dir(&PathBuf::from(format!("/proc/{pid}/task"))).unwrap_or_default();
    let of_task = |task: &PathBuf| sys::read_text(&task.join("children")).unwrap_or_default();
    let pids = tasks.iter().map(of_task).collect::<Vec<_>>().join(" ");
    pids.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Anonymous resident bytes of a process.
pub(crate) fn anonymous_bytes(pid: u32) -> Option<u64> {
    field(&proc_file(pid, "status").ok()?, "RssAnon").and_then(kibibytes)
}

/// Bytes of a process that no other process maps.
pub(crate) fn private_bytes(pid: u32) -> Option<u64> {
    let rollup = proc_file(pid, "smaps_rollup").ok()?;
    let part = |name| field(&rollup, name).and_then(kibibytes);
    Some(part("Private_Clean")? + part("Private_Dirty")?)
}

/// Anonymous bytes of a process on huge pages.
pub(crate) fn huge_page_bytes(pid: u32) -> Option<u64> {
    field(&proc_file(pid, "smaps_rollup").ok()?, "AnonHugePages").and_then(kibibytes)
}

/// The greatest resident size that a process ever had, in bytes (`VmHWM`).
pub(crate) fn peak_bytes(pid: u32) -> Option<u64> {
    field(&proc_file(pid, "status").ok()?, "VmHWM").and_then(kibibytes)
}

/// CPU seconds of this process and of the children that it has waited for. 0 if the system does not
/// say.
pub(crate) fn own_cpu_seconds() -> f64 {
    cpu_seconds(std::process::id()).unwrap_or(0.0)
}

/// Bytes of this process that lie on huge pages (AnonHugePages).
pub(crate) fn own_huge_page_bytes() -> u64 {
    huge_page_bytes(std::process::id()).unwrap_or(0)
}

/// Anonymous resident bytes of this process; 0 where the system does not say.
pub(crate) fn own_bytes() -> u64 {
    anonymous_bytes(std::process::id()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_fields_are_counted_from_the_last_bracket() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194304 1 2 3 4 100 20 3 4 20 0 1 0 5 6 7";
        assert_eq!(cpu_ticks(stat), Some(127));
        assert_eq!(cpu_ticks("7 (x) S 1"), None);
    }
}
