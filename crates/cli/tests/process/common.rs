//! `stillpoint serve` as a child process, and a client of it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

use stillpoint_io::{Clock, RealClock};

/// Longest wait for an event. The wait allows for a busy machine and measures nothing.
const PATIENCE_NS: u64 = 60_000_000_000;

/// Waits until `ready` returns a value.
pub(crate) fn wait_for<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let start_ns = RealClock.monotonic_ns();
    loop {
        if let Some(found) = ready() {
            return found;
        }
        assert!(RealClock.monotonic_ns() - start_ns < PATIENCE_NS, "{what} did not come");
        RealClock.sleep(Duration::from_millis(5));
    }
}

/// A port that nobody listens on.
pub(crate) fn free_port() -> u16 {
    let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
    socket.local_addr().expect("its address").port()
}

pub(crate) fn stillpoint() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stillpoint"));
    command.stdin(Stdio::null());
    command
}

/// Runs a tool over a directory with a text on its standard input. Returns exit code, stdout and
/// stderr.
pub(crate) fn run_with(
    tool: &str,
    dir: &Path,
    more: &[&str],
    input: &[u8],
) -> (Option<i32>, String, String) {
    let mut command = stillpoint();
    command.arg(tool).arg(dir).args(more).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    // A refusal may come before all of the input was read.
    let _ = child.stdin.take().expect("piped").write_all(input);
    let ended = child.wait_with_output().expect("it ends");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (ended.status.code(), text(ended.stdout), text(ended.stderr))
}

/// Runs a tool over a directory. Returns exit code, and all that the tool has said.
pub(crate) fn run(arguments: &[&str], dir: &Path) -> (Option<i32>, String) {
    let (tool, more) = arguments.split_first().expect("a tool");
    let (code, said, errors) = run_with(tool, dir, more, b"");
    (code, said + &errors)
}

/// Loads the dump of a directory into another one. Returns what the tool has said.
pub(crate) fn load_elsewhere(dir: &Path, to: &Path) -> String {
    let (code, dump, errors) = run_with("dump", dir, &[], b"");
    assert_eq!(code, Some(0), "{errors}");
    let (code, said, errors) = run_with("load", to, &[], dump.as_bytes());
    assert_eq!(code, Some(0), "{errors}");
    said + &errors
}

/// A server in a process of its own. A drop kills the server.
pub(crate) struct Serving {
    pub(crate) child: Child,
    pub(crate) port: u16,
    stdout: BufReader<ChildStdout>,
}

impl Serving {
    /// Starts a server over a directory. The server may not serve yet when this returns.
    pub(crate) fn begin(data: &Path, arguments: &[&str]) -> Self {
        Self::begin_as(stillpoint(), data, arguments)
    }

    pub(crate) fn begin_as(command: Command, data: &Path, arguments: &[&str]) -> Self {
        Self::begin_at(free_port(), command, data, arguments)
    }

    pub(crate) fn begin_at(port: u16, command: Command, data: &Path, arguments: &[&str]) -> Self {
        Self::begin_logging_to(Stdio::piped(), port, command, data, arguments)
    }

    /// Starts a server that logs to `stderr`.
    pub(crate) fn begin_logging_to(
        stderr: Stdio,
        port: u16,
        mut command: Command,
        data: &Path,
        arguments: &[&str],
    ) -> Self {
        command.arg("serve").arg("--data").arg(data).args(["--threads", "2", "--port"]);
        command.arg(port.to_string()).args(arguments);
        command.stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().expect("the binary runs");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, port, stdout }
    }

    /// Starts a server and waits until it serves.
    pub(crate) fn start(data: &Path, arguments: &[&str]) -> Self {
        let mut serving = Self::begin(data, arguments);
        serving.wait_until_served();
        serving
    }

    pub(crate) fn wait_until_served(&mut self) {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("text");
        assert!(line.contains(" serves "), "{line:?} {}", self.errors());
    }

    pub(crate) fn client(&self) -> Client {
        Client::of(wait_for("a connection", || TcpStream::connect(("127.0.0.1", self.port)).ok()))
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status().expect("kill runs");
        assert!(sent.success());
    }

    /// Waits for the end of the process. Returns the process's status and its output on stdout and
    /// stderr.
    pub(crate) fn ended(mut self) -> (ExitStatus, String, String) {
        let status = wait_for("the end of the server", || self.child.try_wait().expect("a child"));
        let mut said = String::new();
        self.stdout.read_to_string(&mut said).expect("text");
        (status, said, self.errors())
    }

    /// Whether the process still runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }

    fn errors(&mut self) -> String {
        let mut said = String::new();
        if let Some(mut stderr) = self.child.stderr.take() {
            stderr.read_to_string(&mut said).expect("text");
        }
        said
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command in the protocol.
fn request(words: &[&str]) -> String {
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    request
}

/// A blocking client of the protocol.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    fn of(stream: TcpStream) -> Self {
        let limit = Some(Duration::from_nanos(PATIENCE_NS));
        stream.set_read_timeout(limit).expect("a time limit");
        Self { stream: BufReader::new(stream) }
    }

    /// Sends a command and returns its reply as text. The text of a number or error begins with its
    /// kind.
    pub(crate) fn ask(&mut self, words: &[&str]) -> String {
        self.try_ask(words).expect("a reply")
    }

    pub(crate) fn try_ask(&mut self, words: &[&str]) -> std::io::Result<String> {
        self.stream.get_mut().write_all(request(words).as_bytes())?;
        self.reply()
    }

    /// Sends commands at once. Returns the replies that came before the connection broke, if it did.
    pub(crate) fn try_ask_all(&mut self, requests: &[Vec<String>]) -> Vec<String> {
        let words = |words: &Vec<String>| {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            request(&words)
        };
        let all: String = requests.iter().map(words).collect();
        if self.stream.get_mut().write_all(all.as_bytes()).is_err() {
            return Vec::new();
        }
        requests.iter().map_while(|_| self.reply().ok()).collect()
    }

    /// Sends a command and reads nothing.
    pub(crate) fn send(&mut self, words: &[&str]) {
        let request = words.join(" ") + "\r\n";
        self.stream.get_mut().write_all(request.as_bytes()).expect("the server takes it");
    }

    pub(crate) fn reply(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        let Some(length) = line.strip_prefix('$') else {
            return Ok(line.trim_start_matches('+').to_owned());
        };
        let Ok(length) = length.parse::<usize>() else {
            return Ok("(nil)".to_owned());
        };
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}
