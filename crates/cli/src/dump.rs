//! The lines of a dump, which `dump` writes and `load` reads.
//!
//! ```text
//! {"stillpoint_dump":1}
//! {"table":"db0","key":"user:7","tag":0,"value":"ann","expires_ms":1790000000000}
//! {"table":"db0","key":{"base16":"00ff"},"tag":0,"value":""}
//! {"end":true,"records":2,"tables":["db0","db1"]}
//! ```
//! The last line tells a whole dump from one that was cut off. A dump of an earlier release has no
//! first and last line, and shows an expiry in tag and value only.

mod bytes;
mod read;

use std::borrow::Cow;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};

pub(crate) use bytes::Bytes;
pub(crate) use read::{DumpError, Found, Lines};

/// The version of the lines.
const VERSION: u32 = 1;

/// The first line.
#[derive(Debug, Serialize)]
struct Head {
    stillpoint_dump: u32,
}

/// A record.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Record<'a> {
    pub(crate) table: Cow<'a, str>,
    pub(crate) key: Bytes<'a>,
    /// The tag, without the mark of an expiry.
    pub(crate) tag: u8,
    pub(crate) value: Bytes<'a>,
    /// When the key expires, in milliseconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expires_ms: Option<u64>,
}

/// The last line.
#[derive(Debug, Serialize)]
struct End<'a> {
    end: bool,
    records: u64,
    tables: &'a [String],
}

/// A line of a dump, as the reader decodes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AnyLine<'a> {
    stillpoint_dump: Option<u32>,
    #[serde(borrow)]
    table: Option<Cow<'a, str>>,
    key: Option<Bytes<'a>>,
    tag: Option<u8>,
    value: Option<Bytes<'a>>,
    expires_ms: Option<u64>,
    end: Option<bool>,
    records: Option<u64>,
    tables: Option<Vec<String>>,
}

/// Writes a dump.
pub(crate) struct Dump<W> {
    out: W,
    records: u64,
}

impl<W: Write> Dump<W> {
    /// Begins a dump.
    ///
    /// # Errors
    /// Those of the writer.
    pub(crate) fn new(out: W) -> io::Result<Self> {
        let mut dump = Self { out, records: 0 };
        dump.line(&Head { stillpoint_dump: VERSION })?;
        Ok(dump)
    }

    /// # Errors
    /// Those of the writer.
    pub(crate) fn record(&mut self, record: &Record<'_>) -> io::Result<()> {
        self.records += 1;
        self.line(record)
    }

    /// Ends the dump with the sorted names of all tables. The dump is whole afterwards.
    ///
    /// # Errors
    /// Those of the writer.
    pub(crate) fn end(mut self, tables: &[String]) -> io::Result<()> {
        let records = self.records;
        self.line(&End { end: true, records, tables })?;
        self.out.flush()
    }

    fn line(&mut self, line: &impl Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, line)?;
        self.out.write_all(b"\n")
    }
}

#[cfg(test)]
mod tests;
