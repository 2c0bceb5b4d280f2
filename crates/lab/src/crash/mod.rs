//! Crash checks: the lab kills a child process in the middle of its work and compares what the child
//! leaves with what it had promised. No figure of a subject counts if its crash check fails.

pub(crate) mod arrays;
pub(crate) mod game;
pub(crate) mod records;
pub(crate) mod tpcc;
pub(crate) mod tpcc_records;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::context::Context;
use crate::error::{LabError, LabResult};
use crate::sys;

/// A subject that runs in a child process. The lab kills the child and recovers what the child leaves.
pub(crate) trait Killable {
    /// What the child has reported so far.
    type Reported: Default;
    /// The result of the recovery.
    type Recovered;

    /// The name of the subject's directory.
    fn name(&self) -> String;

    /// The arguments behind `stillpoint lab child`, but for the directory.
    fn arguments(&self) -> Vec<String>;

    /// Reads a line of the child's output, and returns whether the lab may kill the child now.
    /// `None` for a line that the subject does not know.
    fn hear(&self, heard: &mut Self::Reported, line: &str) -> Option<bool>;

    /// Time from the line that permits the kill to the kill.
    fn linger(&self) -> Duration;

    /// Recovers what the child left in `dir`, and compares it with what the child had promised.
    ///
    /// # Errors
    /// When the recovery fails, or something promised is missing or wrong.
    fn recover(&self, heard: &Self::Reported, dir: &Path) -> LabResult<Self::Recovered>;
}

/// Starts a child, kills it in the middle of its work, recovers what it leaves and removes it.
///
/// # Errors
/// When the child cannot be run, ends by itself or prints an unknown line. The errors of
/// [`Killable::recover`] are passed on; the child's data then stay on the disk.
pub(crate) fn kill_and_check<K: Killable>(
    context: &Context,
    subject: &K,
) -> LabResult<K::Recovered> {
    let dir = context.fresh_dir(&format!("killed-{}", subject.name()))?;
    let mut command = Command::new(&context.binary);
    command.args(["lab", "child"]).args(subject.arguments()).arg("--dir").arg(&dir);
    let mut heard = K::Reported::default();
    kill_when(&mut command, subject.linger(), |line| subject.hear(&mut heard, line))?;
    let recovered = subject.recover(&heard, &dir)?;
    sys::remove_dir_all(&dir)?;
    Ok(recovered)
}

/// Turns words into arguments of a command line.
fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

/// Runs a child, reads its output line by line until `hear` returns true, and kills the child `linger`
/// later. `hear` returns `None` for a line that it does not know.
///
/// # Errors
/// When the child cannot be started, prints an unknown line, or ends by itself.
fn kill_when(
    command: &mut Command,
    linger: Duration,
    mut hear: impl FnMut(&str) -> Option<bool>,
) -> LabResult<()> {
    let line = format!("{command:?}");
    let failed = |reason: String| LabError::process(&line, reason);
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|e| failed(e.to_string()))?;
    let said = child.stdout.take().ok_or_else(|| failed("no output".into()))?;
    // At the end of the output the child has ended, or will end in a moment.
    let mut heard = Err(failed("ended by itself".into()));
    // The pipe stays open until the child is dead: a child that cannot write would end by itself.
    let mut lines = BufReader::new(said).lines();
    while let Some(Ok(text)) = lines.next() {
        match hear(&text) {
            Some(false) => {}
            Some(true) => {
                heard = Ok(());
                break;
            }
            None => {
                heard = Err(failed(format!("said {text:?}")));
                break;
            }
        }
    }
    sys::sleep(linger);
    let is_running = matches!(child.try_wait(), Ok(None));
    let _ = child.kill();
    let _ = child.wait();
    drop(lines);
    heard?;
    if is_running { Ok(()) } else { Err(failed("ended by itself".into())) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The output of a child whose parent stops reading after `lines_max` lines.
    pub(crate) struct Lines {
        said: Vec<u8>,
        lines_max: usize,
    }

    impl Lines {
        pub(crate) fn before_closing(lines_max: usize) -> Lines {
            Lines { said: Vec::new(), lines_max }
        }

        pub(crate) fn text(self) -> String {
            String::from_utf8(self.said).expect("children say text")
        }
    }

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if self.said.iter().filter(|&&byte| byte == b'\n').count() >= self.lines_max {
                return Err(std::io::ErrorKind::BrokenPipe.into());
            }
            self.said.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_child_is_killed_once_it_has_said_enough() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        let kill = |script, enough: u64| {
            let mut last = 0;
            let killed = kill_when(&mut shell(script), Duration::ZERO, |line| {
                last = line.parse().ok()?;
                Some(last >= enough)
            });
            (killed.map_err(|error| error.to_string()), last)
        };
        assert_eq!(kill("echo 1; echo 2; echo 3; exec sleep 60", 2), (Ok(()), 2));
        let (ended, _) = kill("echo 1; exit 3", 2);
        assert!(ended.expect_err("it is not there to be killed").contains("ended by itself"));
        let (odd, _) = kill("echo help; exec sleep 60", 2);
        assert!(odd.expect_err("no number").contains("said \"help\""));
    }
}
