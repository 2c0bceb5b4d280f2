//! A server under test, as a child process. The lab watches the process from outside through
//! `/proc`, and ends it by a crash or a shutdown.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use stillpoint_io::JoinHandle;

use crate::error::{LabError, LabResult};
use crate::measure::process::{anonymous_bytes, children, cpu_seconds, peak_bytes, private_bytes};
use crate::subjects::resp::admin::Admin;
use crate::sys;

/// Command line of a server. `{dir}` and `{port}` stand for its data directory and its port on the
/// loopback interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    /// The server's name in results.
    pub(crate) name: String,
    /// The program.
    pub(crate) program: PathBuf,
    /// Arguments of the program.
    pub(crate) arguments: Vec<String>,
}

/// A server that is running. A drop kills the server.
#[derive(Debug)]
pub(crate) struct Server {
    command: String,
    child: Child,
    dir: PathBuf,
    /// Address on which the server listens.
    pub(crate) address: SocketAddr,
    /// Nanoseconds from the start of the process to the first answer about its data.
    pub(crate) start_ns: u64,
}

impl Peer {
    /// Starts the server on its data directory and waits until it serves.
    ///
    /// # Errors
    /// When the program cannot be started, ends, or does not serve within `patience`.
    pub(crate) fn start(&self, dir: &Path, patience: Duration) -> LabResult<Server> {
        // While a server loads its data, it answers PING and refuses DBSIZE, or lets it wait.
        let serves = |admin: &mut Admin| admin.dbsize().is_ok();
        self.start_until(dir, patience, Duration::from_millis(2), serves)
    }

    /// Starts the server on its data directory and waits until `serves` says so, which is asked again
    /// after a pause.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub(crate) fn start_until(
        &self,
        dir: &Path,
        patience: Duration,
        pause: Duration,
        mut serves: impl FnMut(&mut Admin) -> bool,
    ) -> LabResult<Server> {
        sys::create_dir_all(dir)?;
        let port = free_port()?;
        let fill = |text: &String| {
            text.replace("{dir}", &dir.to_string_lossy()).replace("{port}", &port.to_string())
        };
        let arguments: Vec<String> = self.arguments.iter().map(fill).collect();
        let command = format!("{} {}", self.program.display(), arguments.join(" "));
        let log = sys::create_file(&log_path(dir))?;
        let log_too = log.try_clone().map_err(|e| LabError::process(&command, e))?;
        let began_ns = sys::now_ns();
        let child = Command::new(&self.program)
            .args(&arguments)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(log_too)
            .spawn()
            .map_err(|e| LabError::process(&command, e))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut server = Server { command, child, dir: dir.to_owned(), address, start_ns: 0 };
        while !Admin::connect(address).is_ok_and(|mut admin| serves(&mut admin)) {
            server.go_on_waiting(began_ns, patience)?;
            sys::sleep(pause);
        }
        server.start_ns = sys::now_ns() - began_ns;
        Ok(server)
    }
}

/// The output of a server goes to a file beside its data directory, not inside.
fn log_path(dir: &Path) -> PathBuf {
    let mut name = dir.as_os_str().to_owned();
    name.push(".log");
    PathBuf::from(name)
}

fn free_port() -> LabResult<u16> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let bind = || TcpListener::bind(address)?.local_addr();
    bind().map(|a| a.port()).map_err(|e| LabError::server(address, e))
}

impl Server {
    /// Fails if the process has ended, or if it was waited for too long.
    fn go_on_waiting(&mut self, began_ns: u64, patience: Duration) -> LabResult<()> {
        if let Ok(Some(status)) = self.child.try_wait() {
            return Err(self.failure(format!("ended at start: {status}")));
        }
        if sys::now_ns() - began_ns > patience.as_nanos() as u64 {
            return Err(self.failure(format!("did not serve within {patience:?}")));
        }
        Ok(())
    }

    /// An error about this server, with the end of its output.
    pub(crate) fn failure(&self, reason: impl std::fmt::Display) -> LabError {
        let log = sys::read_text(&log_path(&self.dir)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(5)..].join(" | ");
        LabError::process(&self.command, format!("{reason}; its last words: {tail}"))
    }

    /// The server's process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A connection for commands.
    ///
    /// # Errors
    /// When the server does not accept a connection.
    pub(crate) fn admin(&self) -> LabResult<Admin> {
        Admin::connect(self.address)
    }

    /// CPU seconds so far, children included.
    ///
    /// # Errors
    /// When the process is gone.
    pub(crate) fn cpu_seconds(&self) -> LabResult<f64> {
        let mut sum = cpu_seconds(self.pid())?;
        for child in children(self.pid()) {
            sum += cpu_seconds(child).unwrap_or(0.0);
        }
        Ok(sum)
    }

    /// The server's peak of resident memory, in bytes (`VmHWM`), without children.
    ///
    /// # Errors
    /// When the process is gone.
    pub(crate) fn peak_bytes(&self) -> LabResult<u64> {
        peak_bytes(self.pid()).ok_or_else(|| self.failure("has no size any more"))
    }

    /// Ends the server as a crash would: SIGKILL, nothing flushed.
    ///
    /// # Errors
    /// When the process has ended already.
    pub(crate) fn kill(mut self) -> LabResult<()> {
        self.child.kill().map_err(|e| LabError::process(&self.command, e))?;
        self.child.wait().map_err(|e| LabError::process(&self.command, e))?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended already, so both calls may fail. A drop has no use for the
        // errors.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Memory of a process at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemorySample {
    /// The monotonic time in nanoseconds.
    pub(crate) at_ns: u64,
    /// Anonymous resident bytes of the process itself.
    pub(crate) anonymous_bytes: u64,
    /// Bytes that only the children map: pages copied after a fork.
    pub(crate) children_bytes: u64,
}

impl MemorySample {
    /// Bytes of the process and its children.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.anonymous_bytes + self.children_bytes
    }
}

/// One sample out of this number includes the children. For such a sample the kernel visits each of
/// their pages, so more such samples would disturb the measurement.
const CHILDREN_EVERY: u64 = 5;

/// Samples a process every 100 ms until told to stop.
#[derive(Debug)]
pub(crate) struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<MemorySample>>,
}

impl Watch {
    /// Starts the sampling thread.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn start(pid: u32) -> LabResult<Watch> {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let body = move || {
            let (mut samples, mut round, mut children_bytes) = (Vec::new(), 0, 0);
            // Acquire pairs with the Release in Watch::finish.
            while !told.load(Ordering::Acquire) {
                let alive = children(pid);
                if alive.is_empty() {
                    children_bytes = 0;
                } else if round % CHILDREN_EVERY == 0 {
                    children_bytes = alive.iter().filter_map(|&c| private_bytes(c)).sum();
                }
                let Some(anonymous_bytes) = anonymous_bytes(pid) else {
                    break;
                };
                let at_ns = sys::now_ns();
                samples.push(MemorySample { at_ns, anonymous_bytes, children_bytes });
                round += 1;
                sys::sleep(Duration::from_millis(100));
            }
            samples
        };
        Ok(Watch { stop, thread: sys::spawn("watch", body)? })
    }

    /// Ends the thread and returns the samples.
    ///
    /// # Errors
    /// When the sampling thread has panicked.
    pub(crate) fn finish(self) -> LabResult<Vec<MemorySample>> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().map_err(|e| LabError::process("watch", e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_can_be_watched() -> LabResult<()> {
        let pid = std::process::id();
        let before = cpu_seconds(pid)?;
        let watch = Watch::start(pid)?;
        let (began_ns, mut sum) = (sys::now_ns(), 0_u64);
        // Even on a busy machine the process gets a tenth of a second of CPU time sooner or later.
        while sys::now_ns() - began_ns < 300_000_000 || cpu_seconds(pid)? - before <= 0.1 {
            (0..100_000_u64).for_each(|n| sum = sum.wrapping_mul(31).wrapping_add(n));
        }
        let samples = watch.finish()?;
        assert!(sum != 1, "the work is not left out");
        assert!(samples.len() >= 2 && samples.iter().all(|s| s.anonymous_bytes > 100_000));
        assert!(peak_bytes(pid) >= Some(samples[0].anonymous_bytes));
        Ok(())
    }

    #[test]
    fn children_are_found_and_a_false_start_says_why() -> LabResult<()> {
        let mut child =
            Command::new("sleep").arg("5").spawn().map_err(|e| LabError::process("sleep 5", e))?;
        assert!(children(std::process::id()).contains(&child.id()));
        assert!(private_bytes(child.id()).is_some());
        let _ = child.kill();
        let _ = child.wait();

        let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
        let data = dir.path().join("data");
        let peer = Peer {
            name: "broken".into(),
            program: "sh".into(),
            arguments: vec!["-c".into(), "echo no room at {port} >&2; exit 3".into()],
        };
        let error = peer.start(&data, Duration::from_secs(5)).expect_err("it ends at once");
        assert!(error.to_string().contains("no room at"), "{error}");
        Ok(())
    }
}
