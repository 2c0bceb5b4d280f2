//! Conditions of a run: other work of the machine, and the pages of memory that it gave.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::measure::process;
use crate::sys;

/// Conditions of a run, which tell a slow scheme from a busy machine.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
#[serde(default)]
pub(crate) struct Conditions {
    /// Load average of the last minute when the run began.
    pub(crate) load_average_before: f64,
    /// Load average of the last minute when the run ended.
    pub(crate) load_average_after: f64,
    /// Share of the processors' time that the host gave to other machines.
    pub(crate) steal_share: f64,
    /// Share of the processors' time that other processes took.
    pub(crate) other_processes_share: f64,
    /// The system's setting for transparent huge pages: `always`, `madvise` or `never`.
    pub(crate) huge_pages: String,
    /// Most bytes of this process on huge pages (AnonHugePages) over all samples.
    pub(crate) huge_page_bytes_max: u64,
}

/// Counts from the beginning of a run to its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meter {
    load_average: f64,
    ticks: Ticks,
    own_cpu_s: f64,
}

/// Clock ticks of all processors since the start of the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ticks {
    all: u64,
    busy: u64,
    stolen: u64,
}

impl Ticks {
    /// The counts of the first line of `/proc/stat`: user, nice, system, idle, iowait, irq,
    /// softirq, steal.
    fn of(stat: &str) -> Option<Ticks> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let numbers: Vec<u64> =
            line.split_whitespace().take(8).map_while(|n| n.parse().ok()).collect();
        let [user, nice, system, idle, wait, irq, soft_irq, stolen] = numbers[..] else {
            return None;
        };
        let busy = user + nice + system + irq + soft_irq;
        Some(Ticks { all: busy + idle + wait + stolen, busy, stolen })
    }

    fn now() -> Ticks {
        let stat = sys::read_text(Path::new("/proc/stat")).unwrap_or_default();
        Ticks::of(&stat).unwrap_or_default()
    }
}

fn load_average() -> f64 {
    let text = sys::read_text(Path::new("/proc/loadavg")).unwrap_or_default();
    text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0.0)
}

/// The word in brackets of `always [madvise] never`.
fn chosen(setting: &str) -> Option<&str> {
    let (_, rest) = setting.split_once('[')?;
    Some(rest.split_once(']')?.0)
}

impl Meter {
    /// Begins to count.
    pub(crate) fn start() -> Meter {
        let (load_average, ticks) = (load_average(), Ticks::now());
        Meter { load_average, ticks, own_cpu_s: process::own_cpu_seconds() }
    }

    /// The counts. Figures that the system does not tell are 0.
    pub(crate) fn finish(self, huge_page_bytes_max: u64) -> Conditions {
        let path = Path::new("/sys/kernel/mm/transparent_hugepage/enabled");
        let setting = sys::read_text(path).unwrap_or_default();
        let now = Ticks::now();
        let own_cpu_s = process::own_cpu_seconds() - self.own_cpu_s;
        let own_ticks = own_cpu_s * rustix::param::clock_ticks_per_second() as f64;
        let (stolen_share, other_share) = shares(self.ticks, now, own_ticks);
        Conditions {
            load_average_before: self.load_average,
            load_average_after: load_average(),
            steal_share: stolen_share,
            other_processes_share: other_share,
            huge_pages: chosen(&setting).unwrap_or("unknown").to_owned(),
            huge_page_bytes_max,
        }
    }
}

/// Shares of all ticks: stolen ones, and busy ones that were not this program's.
fn shares(before: Ticks, now: Ticks, own_ticks: f64) -> (f64, f64) {
    let all = now.all.saturating_sub(before.all);
    if all == 0 {
        return (0.0, 0.0);
    }
    let stolen = now.stolen.saturating_sub(before.stolen) as f64;
    let busy = now.busy.saturating_sub(before.busy) as f64;
    (stolen / all as f64, (busy - own_ticks).max(0.0) / all as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_and_foreign_time_are_shares_of_all_processors() {
        let before = Ticks::of("cpu  100 0 50 800 20 5 5 20 0 0\ncpu0 1 2\n").expect("a line");
        assert_eq!(before, Ticks { all: 1_000, busy: 160, stolen: 20 });
        let now = Ticks::of("cpu  400 0 150 1200 20 5 5 220 0 0\n").expect("a line");
        let (stolen, others) = shares(before, now, 300.0);
        assert!((stolen - 0.2).abs() < 1e-12 && (others - 0.1).abs() < 1e-12, "{stolen} {others}");
        assert_eq!(shares(before, before, 0.0), (0.0, 0.0));
        assert_eq!(Ticks::of("intr 5"), None);
    }

    #[test]
    fn the_setting_is_the_word_in_brackets() {
        assert_eq!(chosen("always [madvise] never\n"), Some("madvise"));
        assert_eq!(chosen(""), None);
    }

    #[test]
    fn a_run_says_which_pages_it_had() {
        let conditions = Meter::start().finish(7);
        assert_eq!(conditions.huge_page_bytes_max, 7);
        assert!(conditions.load_average_before >= 0.0 && !conditions.huge_pages.is_empty());
    }
}
