//! Crash checks: a child process is killed in the middle of its work, and what it leaves is compared
//! with what it had promised. Nothing is a figure where one fails.

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

/// A subject that runs in a child process, is killed there and is recovered here.
pub(crate) trait Killable {
    /// What the child has said so far.
    type Reported: Default;
    /// What came back.
    type Recovered;

    /// The name of its directory.
    fn name(&self) -> String;

    /// The arguments behind `stillpoint lab child`, but for the directory.
    fn arguments(&self) -> Vec<String>;

    /// Takes in a line that the child has said, and tells whether the child may be killed now.
    /// `None` for a line that is not understood.
    fn hear(&self, heard: &mut Self::Reported, line: &str) -> Option<bool>;

    /// Time from there to the kill.
    fn linger(&self) -> Duration;

    /// Recovers what the child left in `dir`, and compares it with what the child had promised.
    ///
    /// # Errors
    /// When it cannot be recovered, or something promised is missing or wrong.
    fn recover(&self, heard: &Self::Reported, dir: &Path) -> LabResult<Self::Recovered>;
}

/// Starts a child, kills it in the middle of its work, recovers what it leaves and removes it.
///
/// # Errors
/// When the child cannot be run, ends by itself or says what is not understood; and those of
/// [`Killable::recover`], whose data stay where they are.
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

/// Words as arguments.
fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

/// Runs a child, hears what it says line by line until that is enough, and kills it in the middle.
/// `hear` says of each line whether it is enough; `None` for one that it does not understand.
/// `linger` is the time from there to the kill.
///
/// # Errors
/// When the child cannot be started, says something else, or ends by itself.
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
    // Without more to hear it has ended, or will in a moment.
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

    /// What a child says, to a parent that stops listening as one does whose end of the pipe is
    /// closed.
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
