//! Files, time and processes.

use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// Most memory of a program, in bytes, since a mutant may allocate without end.
const RESIDENT_BYTES_MAX: u64 = 3 << 30;

/// Time limits of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Limit of processor time, so that other work of the machine does not count.
    pub cpu_ms: u64,
    /// Longest wall time without any use of the processor, after which the program counts as hung.
    pub stall_ms: u64,
}

/// Unit of the processor times in /proc.
const TICK_MS: u64 = 10;

/// How a program ended, and its measured processor time in milliseconds.
pub(crate) type Run = (Ended, u64);

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Well,
    /// A test failed, the program was killed by a signal, or it took too much memory.
    Badly,
    /// The program was stopped at a limit of time.
    Late,
}

/// The text of a file. Bytes that are not UTF-8 are replaced.
#[expect(clippy::disallowed_methods, reason = "sources and the output of tests are no engine's")]
pub(crate) fn read(path: &Path) -> Result<String, String> {
    let bytes = std::fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[expect(clippy::disallowed_methods, reason = "switched sources and results are no engine's")]
pub(crate) fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

/// Milliseconds since the first call.
#[expect(clippy::disallowed_methods, reason = "limits of tests are no engine's")]
pub(crate) fn now_ms() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_millis() as u64
}

#[expect(clippy::disallowed_methods, reason = "limits of tests are no engine's")]
fn nap() {
    std::thread::sleep(Duration::from_millis(50));
}

#[expect(clippy::disallowed_methods, reason = "the output of tests is no engine's")]
fn create(path: &Path) -> Result<File, String> {
    File::create(path).map_err(|e| format!("cannot create {}: {e}", path.display()))
}

/// Runs a program with one mutant on, until it ends, one of its tests fails, or it meets a limit.
/// The program's output goes to the file `output`.
///
/// # Errors
/// The program cannot be started, or its output cannot be kept.
pub(crate) fn run(
    program: &Path,
    home: &Path,
    arguments: &[&str],
    mutant: u32,
    output: &Path,
    limits: Limits,
) -> Result<Run, String> {
    let kept = create(output)?;
    let both = kept.try_clone().map_err(|e| format!("{}: {e}", output.display()))?;
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(home)
        .env("STILLPOINT_MUTANT", mutant.to_string())
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(kept)
        .stderr(both)
        .process_group(0)
        .spawn()
        .map_err(|e| format!("cannot start {}: {e}", program.display()))?;
    let ended = watch(&mut child, output, limits)?;
    // The program's own child processes end with it.
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // No process may remain.
        let _ = kill_process_group(group, Signal::KILL);
    }
    child.wait().map_err(|e| format!("cannot wait for {}: {e}", program.display()))?;
    Ok(ended)
}

fn watch(child: &mut Child, output: &Path, limits: Limits) -> Result<Run, String> {
    let (mut used_ms, mut progress_ms) = (0, now_ms());
    loop {
        if let Some(status) = child.try_wait().map_err(|e| format!("cannot wait: {e}"))? {
            let ended = if status.success() { Ended::Well } else { Ended::Badly };
            return Ok((ended, used_ms));
        }
        if read(output)?.contains(" ... FAILED\n") {
            return Ok((Ended::Badly, used_ms));
        }
        let (cpu_ms, resident_bytes) = usage(child.id());
        if resident_bytes > RESIDENT_BYTES_MAX {
            return Ok((Ended::Badly, cpu_ms));
        }
        let now = now_ms();
        // Threads that only wake up and wait again use less processor time.
        if cpu_ms > used_ms + TICK_MS {
            (used_ms, progress_ms) = (cpu_ms, now);
        }
        if now - progress_ms > limits.stall_ms || cpu_ms > limits.cpu_ms {
            return Ok((Ended::Late, cpu_ms));
        }
        nap();
    }
}

/// Processor time in milliseconds, with ended children, and resident bytes of a process. Zero if
/// the system does not say.
fn usage(process: u32) -> (u64, u64) {
    let text = |name: &str| read(Path::new(&format!("/proc/{process}/{name}"))).unwrap_or_default();
    let stat = text("stat");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let number = |field: Option<&&str>| field.and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    let statm = text("statm");
    let pages = statm.split_whitespace().nth(1).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    // User and system time, then those of children that were waited for.
    let ticks: u64 = (11..15).map(|at| number(fields.get(at))).sum();
    (ticks * TICK_MS, pages * 4096)
}

/// All of standard input.
pub(crate) fn standard_input() -> Result<String, String> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).map_err(|e| format!("standard input: {e}"))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(script: &str) -> Ended {
        let output =
            std::env::temp_dir().join(format!("stillpoint-mutants-{}", std::process::id()));
        let limits = Limits { cpu_ms: 500, stall_ms: 200 };
        let home = std::env::temp_dir();
        run(Path::new("/bin/sh"), &home, &["-c", script], 7, &output, limits).expect("sh runs").0
    }

    #[test]
    fn ends_are_told_apart() {
        assert_eq!(ended("test $STILLPOINT_MUTANT = 7"), Ended::Well);
        assert_eq!(ended("exit 1"), Ended::Badly);
        assert_eq!(ended("echo 'test a ... FAILED'; sleep 1000"), Ended::Badly);
        assert_eq!(ended("sleep 1000"), Ended::Late);
        assert_eq!(ended("while true; do true; done"), Ended::Late);
    }
}
