//! One blocking connection, for commands that set a server up and read its status.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::codec::{self, Reply};
use crate::error::{LabError, LabResult};
use crate::workloads::strings;

/// A reply that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// `+text`
    Status(String),
    /// `:number`
    Integer(i64),
    /// `$length`, bytes
    Bulk(Vec<u8>),
    /// No value.
    Nil,
    /// Several replies; nested errors are texts here.
    Array(Vec<Value>),
}

impl Value {
    fn of(reply: Reply<'_>) -> Value {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match reply {
            Reply::Status(line) | Reply::Error(line) => Value::Status(text(line)),
            Reply::Integer(number) => Value::Integer(number),
            Reply::Bulk(bytes) => Value::Bulk(bytes.to_vec()),
            Reply::Nil => Value::Nil,
            Reply::Array { count, mut items } => {
                let mut values = Vec::new();
                for _ in 0..count {
                    let Ok(Some((item, length))) = codec::read(items) else {
                        break;
                    };
                    values.push(Value::of(item));
                    items = &items[length..];
                }
                Value::Array(values)
            }
        }
    }
}

/// A connection on which each call waits for its reply.
#[derive(Debug)]
pub(crate) struct Admin {
    address: SocketAddr,
    stream: TcpStream,
    input: Vec<u8>,
}

impl Admin {
    /// Connects. A reply may take up to a minute.
    ///
    /// # Errors
    /// When no server listens at the address.
    pub(crate) fn connect(address: SocketAddr) -> LabResult<Admin> {
        let open = || {
            let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(Duration::from_secs(60)))?;
            Ok(stream)
        };
        let stream = open().map_err(|e: std::io::Error| LabError::server(address, e))?;
        Ok(Admin { address, stream, input: Vec::new() })
    }

    /// Sends one command and waits for its reply.
    ///
    /// # Errors
    /// When the connection breaks or the server answers with an error.
    pub(crate) fn call(&mut self, arguments: &[&[u8]]) -> LabResult<Value> {
        self.send(&[arguments])?;
        self.reply(arguments)
    }

    /// Sends several commands at once and waits for all replies.
    ///
    /// # Errors
    /// As [`Admin::call`].
    pub(crate) fn call_all(&mut self, requests: &[Vec<&[u8]>]) -> LabResult<Vec<Value>> {
        let borrowed: Vec<&[&[u8]]> = requests.iter().map(Vec::as_slice).collect();
        self.send(&borrowed)?;
        requests.iter().map(|request| self.reply(request)).collect()
    }

    fn send(&mut self, requests: &[&[&[u8]]]) -> LabResult<()> {
        let mut out = Vec::new();
        requests.iter().for_each(|request| codec::request(&mut out, request));
        self.stream.write_all(&out).map_err(|e| LabError::server(self.address, e))
    }

    fn reply(&mut self, request: &[&[u8]]) -> LabResult<Value> {
        let address = self.address;
        loop {
            let parsed =
                codec::read(&self.input).map_err(|reason| LabError::server(address, reason))?;
            if let Some((reply, length)) = parsed {
                let result = match reply {
                    Reply::Error(text) => {
                        let command = String::from_utf8_lossy(request[0]);
                        let text = String::from_utf8_lossy(text);
                        Err(LabError::server(address, format!("{command}: {text}")))
                    }
                    other => Ok(Value::of(other)),
                };
                self.input.drain(..length);
                return result;
            }
            let mut chunk = [0; 16 * 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(LabError::server(address, "closed the connection")),
                Ok(n) => self.input.extend_from_slice(&chunk[..n]),
                Err(e) => return Err(LabError::server(address, e)),
            }
        }
    }

    /// Sends several commands at once. Returns how many the server has taken before it refused one for
    /// want of memory.
    ///
    /// # Errors
    /// When the connection breaks, or a command is refused for another reason.
    pub(crate) fn count_taken(&mut self, requests: &[Vec<&[u8]>]) -> LabResult<u64> {
        let borrowed: Vec<&[&[u8]]> = requests.iter().map(Vec::as_slice).collect();
        self.send(&borrowed)?;
        let (mut taken, mut is_full) = (0, false);
        for request in requests {
            match self.reply(request) {
                Ok(_) if is_full => {}
                Ok(_) => taken += 1,
                Err(LabError::Server { reason, .. }) if reason.contains("OOM") => is_full = true,
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }

    /// Number of keys of the selected database.
    ///
    /// # Errors
    /// As [`Admin::call`].
    pub(crate) fn dbsize(&mut self) -> LabResult<u64> {
        match self.call(&[b"DBSIZE"])? {
            Value::Integer(keys) => Ok(keys.max(0) as u64),
            other => Err(LabError::server(self.address, format!("DBSIZE answered {other:?}"))),
        }
    }

    /// The fields of one section of INFO.
    ///
    /// # Errors
    /// As [`Admin::call`].
    pub(crate) fn info(&mut self, section: &str) -> LabResult<BTreeMap<String, String>> {
        let text = match self.call(&[b"INFO", section.as_bytes()])? {
            Value::Bulk(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            other => {
                return Err(LabError::server(self.address, format!("INFO answered {other:?}")));
            }
        };
        let fields = text.lines().filter_map(|line| line.trim_end().split_once(':'));
        Ok(fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// Reads keys of [`strings`] and checks each value against its key. Also checks that the
    /// value's stamp is not below the given one (0: any).
    ///
    /// # Errors
    /// The first key with a wrong value.
    pub(crate) fn check_strings(&mut self, expected: &[(u64, u64)], bytes: usize) -> LabResult<()> {
        for chunk in expected.chunks(1_000) {
            let keys: Vec<Vec<u8>> = chunk.iter().map(|&(key, _)| strings::key(key)).collect();
            let requests: Vec<Vec<&[u8]>> = keys.iter().map(|k| vec![&b"GET"[..], k]).collect();
            for (value, &(key, stamp_min)) in self.call_all(&requests)?.iter().zip(chunk) {
                let wrong = |reason: String| LabError::server(self.address, reason);
                let Value::Bulk(found) = value else {
                    return Err(wrong(format!("key {key} is gone: {value:?}")));
                };
                let stamp = strings::check(key, found, bytes).map_err(wrong)?;
                if stamp < stamp_min {
                    let reason = format!("key {key} has write {stamp}, acknowledged {stamp_min}");
                    return Err(wrong(reason));
                }
            }
        }
        Ok(())
    }
}
