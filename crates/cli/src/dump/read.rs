//! Reads a dump line by line, and checks each line.

use std::io::{self, BufRead, Read};

use super::{AnyLine, Record, VERSION};

/// Most bytes of a line. A key of 64 KiB and a value of 512 MiB may need six bytes for each byte.
const LINE_BYTES_MAX: u64 = 6 * ((512 << 20) + (64 << 10)) + 4096;
/// Bytes of the buffer that stay allocated between lines.
const LINE_BYTES_KEPT: usize = 1 << 20;

/// The reason why a line of a dump cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("line {line}, which begins at byte {offset}: {reason}")]
pub(crate) struct DumpError {
    /// Number of the line, from 1.
    line: u64,
    offset: u64,
    reason: String,
}

/// The content of a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found<'a> {
    Head,
    Record(Record<'a>),
    End { records: u64, tables: Vec<String> },
}

/// The lines of a dump, or of several behind each other.
pub(crate) struct Lines<R> {
    input: R,
    line: Vec<u8>,
    number: u64,
    /// Offsets of the line and of the next line.
    offset: u64,
    next_offset: u64,
    /// Records since the first line. `None` outside of a dump that has a first line.
    begun: Option<u64>,
    has_ended: bool,
    has_found: bool,
}

impl<R: BufRead> Lines<R> {
    pub(crate) fn new(input: R) -> Self {
        Self {
            input,
            line: Vec::new(),
            number: 0,
            offset: 0,
            next_offset: 0,
            begun: None,
            has_ended: false,
            has_found: false,
        }
    }

    /// Bytes read.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.next_offset
    }

    /// An error of the line that was read last.
    pub(crate) fn error(&self, reason: impl Into<String>) -> DumpError {
        DumpError { line: self.number, offset: self.offset, reason: reason.into() }
    }

    /// Reads the next line; `None` at the end of the input.
    ///
    /// # Errors
    /// A line belongs to no dump, the input ends before the dump does, or the input cannot be read.
    pub(crate) fn next(&mut self) -> Result<Option<Found<'_>>, DumpError> {
        if !self.read_line()? {
            return match self.begun {
                Some(records) => Err(self.error(format!(
                    "the dump ends here, after {records} records and without its last line: it was \
                     cut off; take the whole dump"
                ))),
                None if !self.has_found => Err(self.error("there is no dump")),
                None => Ok(None),
            };
        }
        let found = parse(&self.line).and_then(|found| self.check(&found).map(|()| found));
        self.has_found |= found.is_ok();
        match &found {
            Ok(Found::Head) => self.begun = Some(0),
            Ok(Found::Record(_)) => self.begun = self.begun.map(|records| records + 1),
            Ok(Found::End { .. }) => (self.begun, self.has_ended) = (None, true),
            Err(_) => {}
        }
        let (line, offset) = (self.number, self.offset);
        found.map(Some).map_err(|reason| DumpError { line, offset, reason })
    }

    /// Checks that a line of this kind may follow the lines before.
    fn check(&self, found: &Found<'_>) -> Result<(), String> {
        match (found, self.begun) {
            (Found::Head, Some(_)) => {
                Err("a dump begins, and the one before has not ended: it was cut off".to_owned())
            }
            (Found::Record(_), None) if self.has_ended => {
                Err("a record behind the end of the dump".to_owned())
            }
            (Found::End { .. }, None) => {
                Err("a dump ends that has not begun: its first line is missing".to_owned())
            }
            (Found::End { records, .. }, Some(came)) if *records != came => {
                Err(format!("the dump had {records} records when it was written, and {came} came"))
            }
            _ => Ok(()),
        }
    }

    /// Reads the next line that is not blank. Returns false at the end of the input.
    fn read_line(&mut self) -> Result<bool, DumpError> {
        loop {
            self.line.clear();
            self.line.shrink_to(LINE_BYTES_KEPT);
            (self.offset, self.number) = (self.next_offset, self.number + 1);
            let mut bounded = self.input.by_ref().take(LINE_BYTES_MAX + 1);
            let count = bounded.read_until(b'\n', &mut self.line);
            let count = count.map_err(|error: io::Error| self.error(error.to_string()))? as u64;
            if count > LINE_BYTES_MAX {
                return Err(self.error(format!("it has more than {LINE_BYTES_MAX} bytes")));
            }
            self.next_offset += count;
            if count == 0 || !self.line.iter().all(u8::is_ascii_whitespace) {
                return Ok(count > 0);
            }
        }
    }
}

fn parse(line: &[u8]) -> Result<Found<'_>, String> {
    // serde_json counts the lines of its input, and its input is this one line.
    let found: AnyLine<'_> = serde_json::from_slice(line).map_err(|error| {
        let (column, mut reason) = (error.column(), error.to_string());
        reason.truncate(reason.rfind(" at line ").unwrap_or(reason.len()));
        format!("{reason}, at byte {column} of the line")
    })?;
    match found {
        AnyLine {
            stillpoint_dump: Some(version),
            table: None,
            key: None,
            tag: None,
            value: None,
            expires_ms: None,
            end: None,
            records: None,
            tables: None,
        } => match version {
            VERSION => Ok(Found::Head),
            _ => Err(format!(
                "a dump of version {version}, and this build reads {VERSION}: use the release that \
                 wrote it, or a later one"
            )),
        },
        AnyLine {
            stillpoint_dump: None,
            table: Some(table),
            key: Some(key),
            tag: Some(tag),
            value: Some(value),
            expires_ms,
            end: None,
            records: None,
            tables: None,
        } => Ok(Found::Record(Record { table, key, tag, value, expires_ms })),
        AnyLine {
            stillpoint_dump: None,
            table: None,
            key: None,
            tag: None,
            value: None,
            expires_ms: None,
            end: Some(true),
            records: Some(records),
            tables: Some(tables),
        } => Ok(Found::End { records, tables }),
        _ => Err("it has not the fields of a record: table, key, tag and value, and expires_ms \
                  where the key expires"
            .to_owned()),
    }
}
