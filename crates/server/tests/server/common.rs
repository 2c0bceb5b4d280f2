//! A server to test, a plain client, and a real redis-server for comparisons.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use stillpoint::{Config as EngineConfig, Engine};
use stillpoint_io::{Clock, RealClock, RealRng};
use stillpoint_server::{
    CollectionCheck, DebugCommand, Loading, Server, ServerConfig, ServerError, with_commands,
};

/// A server on a free port; ends when dropped.
pub(crate) struct TestServer {
    server: Option<Server>,
    pub(crate) port: u16,
    stopping: Arc<AtomicBool>,
    directory: Option<Arc<tempfile::TempDir>>,
    engine: Weak<Engine>,
}

pub(crate) fn config() -> ServerConfig {
    let mut config = ServerConfig::new(Arc::new(RealClock), Arc::new(RealRng));
    config.port = 0;
    config.threads = 2;
    config.debug_command = DebugCommand::Local;
    config
}

/// Opens an engine that knows the commands of its log.
pub(crate) fn opened(config: EngineConfig) -> Engine {
    with_commands(Engine::builder(config)).open().expect("the engine opens")
}

impl TestServer {
    pub(crate) fn start() -> Self {
        Self::with(config())
    }

    pub(crate) fn with(config: ServerConfig) -> Self {
        Self::over(config, EngineConfig::new("unused"))
    }

    /// A server over an engine with this configuration, in a directory of its own.
    pub(crate) fn over(config: ServerConfig, mut engine: EngineConfig) -> Self {
        let directory = Arc::new(tempfile::tempdir().expect("a directory"));
        engine.data = directory.path().join("data");
        Self::around(config, opened(engine), Some(directory))
    }

    pub(crate) fn around(
        config: ServerConfig,
        engine: Engine,
        directory: Option<Arc<tempfile::TempDir>>,
    ) -> Self {
        let stopping = Arc::new(AtomicBool::new(false));
        let engine = Arc::new(engine);
        let weak = Arc::downgrade(&engine);
        let server = Server::start(config, engine, Arc::clone(&stopping)).expect("server starts");
        Self { port: server.port(), server: Some(server), stopping, directory, engine: weak }
    }

    /// The server that takes over the clients of `loading`.
    pub(crate) fn after_loading(
        loading: Loading,
        engine: Engine,
        directory: Arc<tempfile::TempDir>,
    ) -> Self {
        let stopping = Arc::new(AtomicBool::new(false));
        let engine = Arc::new(engine);
        let weak = Arc::downgrade(&engine);
        let server = loading.start(engine, Arc::clone(&stopping)).expect("it starts");
        let directory = Some(directory);
        Self { port: server.port(), server: Some(server), stopping, directory, engine: weak }
    }

    /// Ends the server as a crash would, without closing the engine, and starts it again.
    pub(crate) fn restart(mut self, config: ServerConfig, mut engine: EngineConfig) -> Self {
        let directory = self.directory.clone().expect("a real directory");
        engine.data = directory.path().join("data");
        self.stopping.store(true, Ordering::Relaxed);
        let ended = self.server.take().map_or(Ok(()), Server::join);
        ended.expect("server ends cleanly");
        Self::around(config, opened(engine), Some(directory))
    }

    /// What `look` finds in the engine.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&Engine) -> R) -> R {
        look(&self.engine.upgrade().expect("the server runs"))
    }

    /// Records of a table.
    pub(crate) fn records(&self, table: &str) -> u64 {
        let engine = self.engine.upgrade().expect("the server runs");
        engine.table(table).map_or(0, |table| engine.len(table))
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.port)
    }

    /// Ends the server and gives its result.
    pub(crate) fn end(mut self) -> Result<(), ServerError> {
        self.stopping.store(true, Ordering::Relaxed);
        self.server.take().map_or(Ok(()), Server::join)
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        if let Some(server) = self.server.take() {
            let ended = server.join();
            if !std::thread::panicking() {
                ended.expect("server ends cleanly");
            }
        }
    }
}

/// A reply, decoded.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Simple(String),
    Error(String),
    Int(i64),
    Bulk(Vec<u8>),
    Null,
    Array(Vec<Value>),
    Map(Vec<(Value, Value)>),
    Set(Vec<Value>),
    Double(String),
    Bool(bool),
    Verbatim(String),
    /// The connection was closed.
    Closed,
}

impl Value {
    pub(crate) fn bulk(text: &str) -> Self {
        Self::Bulk(text.as_bytes().to_vec())
    }
    pub(crate) fn ok() -> Self {
        Self::Simple("OK".to_owned())
    }
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Simple(s) | Self::Error(s) | Self::Double(s) | Self::Verbatim(s) => s.clone(),
            Self::Bulk(b) => String::from_utf8_lossy(b).into_owned(),
            Self::Int(n) => n.to_string(),
            other => format!("{other:?}"),
        }
    }
    pub(crate) fn int(&self) -> i64 {
        match self {
            Self::Int(n) => *n,
            other => panic!("{other:?} is no integer"),
        }
    }
    pub(crate) fn items(&self) -> &[Value] {
        match self {
            Self::Array(items) | Self::Set(items) => items,
            other => panic!("{other:?} is no array"),
        }
    }
}

/// A blocking client that decodes replies.
pub(crate) struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
    at: usize,
}

impl Client {
    pub(crate) fn connect(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("connects");
        stream.set_nodelay(true).expect("no delay");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
        Self { stream, buffer: Vec::new(), at: 0 }
    }

    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        // The next read shows a connection that the server has closed.
        let _ = self.stream.write_all(bytes);
    }

    /// Longest time without progress when sending.
    pub(crate) fn write_timeout(&self, timeout: Duration) {
        self.stream.set_write_timeout(Some(timeout)).expect("timeout");
    }

    /// The same connection, for another thread.
    pub(crate) fn second_handle(&self) -> Self {
        let stream = self.stream.try_clone().expect("a handle");
        Self { stream, buffer: Vec::new(), at: 0 }
    }

    pub(crate) fn shutdown(&self, how: Shutdown) {
        self.stream.shutdown(how).expect("connected");
    }

    /// Sends bytes that the server must take.
    pub(crate) fn send_whole(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server takes what is sent");
    }

    /// Reads exactly this number of bytes.
    pub(crate) fn read_bytes(mut self, len: usize) -> Vec<u8> {
        let mut bytes = self.buffer.split_off(self.at);
        let have = bytes.len();
        bytes.resize(len, 0);
        self.stream.read_exact(&mut bytes[have..]).expect("all replies");
        bytes
    }

    pub(crate) fn send(&mut self, args: &[&[u8]]) {
        let encoded = encode(args);
        self.send_raw(&encoded);
    }

    /// Sends words and reads the reply.
    pub(crate) fn call(&mut self, words: &[&str]) -> Value {
        let args: Vec<&[u8]> = words.iter().map(|w| w.as_bytes()).collect();
        self.send(&args);
        self.read()
    }

    /// Whether a byte of a reply is there.
    pub(crate) fn has_reply(&mut self) -> bool {
        self.stream.set_nonblocking(true).expect("a socket");
        let is_there = self.at < self.buffer.len() || self.stream.peek(&mut [0]).is_ok();
        self.stream.set_nonblocking(false).expect("a socket");
        is_there
    }

    fn fill(&mut self) -> bool {
        let mut chunk = [0; 65536];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return false,
                Ok(n) => {
                    self.buffer.drain(..self.at);
                    self.at = 0;
                    self.buffer.extend_from_slice(&chunk[..n]);
                    return true;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return false,
                Err(error) => panic!("no reply: {error}"),
            }
        }
    }

    fn line(&mut self) -> Option<String> {
        loop {
            let rest = &self.buffer[self.at..];
            if let Some(end) = rest.windows(2).position(|w| w == b"\r\n") {
                let line = String::from_utf8_lossy(&rest[..end]).into_owned();
                self.at += end + 2;
                return Some(line);
            }
            if !self.fill() {
                return None;
            }
        }
    }

    fn exact(&mut self, n: usize) -> Vec<u8> {
        while self.buffer.len() - self.at < n + 2 {
            assert!(self.fill(), "closed inside a bulk");
        }
        let bytes = self.buffer[self.at..self.at + n].to_vec();
        assert_eq!(&self.buffer[self.at + n..self.at + n + 2], b"\r\n");
        self.at += n + 2;
        bytes
    }

    fn many(&mut self, n: usize) -> Vec<Value> {
        (0..n).map(|_| self.read()).collect()
    }

    /// Reads one reply.
    pub(crate) fn read(&mut self) -> Value {
        let Some(line) = self.line() else {
            return Value::Closed;
        };
        let (kind, rest) = line.split_at(1);
        let number = || rest.parse::<i64>().unwrap_or_else(|_| panic!("bad reply {line:?}"));
        match kind {
            "+" => Value::Simple(rest.to_owned()),
            "-" => Value::Error(rest.to_owned()),
            ":" => Value::Int(number()),
            "_" => Value::Null,
            "," => Value::Double(rest.to_owned()),
            "#" => Value::Bool(rest == "t"),
            "$" if rest == "-1" => Value::Null,
            "*" if rest == "-1" => Value::Null,
            "$" => Value::Bulk(self.exact(number() as usize)),
            "=" => {
                let bytes = self.exact(number() as usize);
                Value::Verbatim(String::from_utf8_lossy(&bytes[4..]).into_owned())
            }
            "*" | ">" => Value::Array(self.many(number() as usize)),
            "~" => Value::Set(self.many(number() as usize)),
            "%" => {
                let n = number() as usize;
                Value::Map((0..n).map(|_| (self.read(), self.read())).collect())
            }
            _ => panic!("bad reply {line:?}"),
        }
    }

    /// Drops all received bytes.
    pub(crate) fn skip_buffered(&mut self) {
        self.at = self.buffer.len();
    }

    /// Whether the server closes the connection without another byte.
    pub(crate) fn is_closed(&mut self) -> bool {
        self.at == self.buffer.len() && !self.fill()
    }
}

pub(crate) fn encode(args: &[&[u8]]) -> Vec<u8> {
    let mut out = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// The number in the line `name` of an answer to `INFO`.
pub(crate) fn field(info: &str, name: &str) -> u64 {
    let line = info.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
    line.and_then(|v| v.trim().parse().ok()).unwrap_or_else(|| panic!("no {name} in {info}"))
}

/// Waits until `condition` holds, for ten seconds at most.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if condition() {
            return;
        }
        RealClock.sleep(Duration::from_millis(10));
    }
    panic!("{what} did not happen within ten seconds");
}

/// A real redis-server; ends when dropped.
pub(crate) struct RealRedis {
    child: Child,
    pub(crate) port: u16,
}

impl RealRedis {
    /// `None`, with a message, if redis-server is not installed.
    pub(crate) fn start(args: &[&str]) -> Option<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        drop(listener);
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--save", "", "--appendonly", "no"])
            .args(["--bind", "127.0.0.1", "--dir", &std::env::temp_dir().to_string_lossy()])
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(child) = child else {
            skipped("redis-server");
            return None;
        };
        eventually("redis-server starts", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Some(Self { child, port })
    }
}

impl Drop for RealRedis {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a program of the Redis tools and returns its output. `None`, with a message, if the program
/// is not installed.
pub(crate) fn tool(name: &str, args: &[&str]) -> Option<String> {
    match Command::new(name).args(args).output() {
        Ok(output) => {
            let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
            text.push_str(&String::from_utf8_lossy(&output.stderr));
            Some(text)
        }
        Err(_) => {
            skipped(name);
            None
        }
    }
}

#[expect(clippy::print_stderr, reason = "what was not tested must be seen")]
pub(crate) fn skipped(name: &str) {
    eprintln!("SKIPPED: {name} is not installed, nothing was tested with it");
}

/// Verifies all collections of the data of a server that has ended.
pub(crate) fn verify(engine: &Engine) -> u64 {
    let mut check = CollectionCheck::default();
    let mut session = engine.session().expect("a session");
    for table in ["db0", "db0.nodes", "db1", "db1.nodes", "graves"] {
        let Ok(id) = engine.table(table) else { continue };
        let mut cursor = 0;
        loop {
            let mut visit = |key: &[u8], value: stillpoint::ValueRef<'_>| {
                check.add(table, key, value);
            };
            cursor = session.scan(id, cursor, 1000, &mut visit).expect("a scan");
            if cursor == 0 {
                break;
            }
        }
    }
    let found = check.finish();
    assert_eq!(found.damage, Vec::new());
    found.collections
}
