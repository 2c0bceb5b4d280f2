//! The thread that writes the log's lines.
//!
//! A caller only queues a line. So a pipe that nobody reads, or a disk that hangs, delays this
//! thread and nothing else. Lines that find the queue full are counted and dropped. Once the queue
//! is empty, a line says how many.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use stillpoint_io::{AppendFile, Clock, DiskError, ThreadError};
use tracing::Level;

use super::line::{Line, Value};
use crate::args::LogFormat;

/// Most bytes of queued lines.
const QUEUE_BYTES: usize = 1 << 20;
/// At its end the process waits this long for a line to be written, and then drops the rest.
const PATIENCE: Duration = Duration::from_secs(1);

/// The destination of lines.
#[derive(Debug)]
pub(super) enum Sink {
    Stderr,
    File(AppendFile),
    #[cfg(test)]
    Pipe(std::io::PipeWriter),
}

impl Sink {
    fn append(&mut self, line: &str) {
        // A failed write to the log must not end the server.
        match self {
            Self::Stderr => drop(std::io::stderr().write_all(line.as_bytes())),
            Self::File(file) => drop(file.append(line)),
            #[cfg(test)]
            Self::Pipe(pipe) => drop(pipe.write_all(line.as_bytes())),
        }
    }

    fn reopen(&self) -> Result<(), DiskError> {
        match self {
            Self::File(file) => file.reopen(),
            _ => Ok(()),
        }
    }
}

#[derive(Debug)]
enum Entry {
    Line(String),
    /// A number of lines was lost.
    Lost(u64),
    /// The writer opens the file anew before it writes later lines.
    Reopen,
}

#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<Entry>,
    /// Bytes of the queued lines.
    bytes: usize,
    /// Lines that found the queue full and were not reported yet.
    lost: u64,
    /// Entries written so far.
    written: u64,
    /// Whether the writer has taken an entry that is not written yet.
    is_writing: bool,
    has_ended: bool,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// Writes lines in the order in which they come, on a thread of its own.
#[derive(Debug)]
pub(super) struct Writer(Arc<Shared>);

impl Writer {
    /// # Errors
    /// The thread could not be started.
    pub(super) fn start(
        sink: Sink,
        format: LogFormat,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, ThreadError> {
        let shared = Arc::<Shared>::default();
        let its = Arc::clone(&shared);
        let show = move |line: &Line<'_>| line.show(format, clock.wall_ms());
        // The thread stays detached. A write may hang for ever, and the end of the process must not
        // wait for it.
        let _detached = stillpoint_io::spawn("log", move || its.run(sink, &show))?;
        Ok(Self(shared))
    }

    /// Queues a line, or counts the line as lost.
    pub(super) fn push(&self, line: String) {
        let mut queue = self.0.queue.lock();
        if queue.bytes + line.len() > QUEUE_BYTES {
            queue.lost += 1;
            return;
        }
        queue.bytes += line.len();
        queue.entries.push_back(Entry::Line(line));
        self.0.changed.notify_all();
    }

    /// Lets the writer open the file anew, after the lines queued so far.
    pub(super) fn reopen(&self) {
        self.0.queue.lock().entries.push_back(Entry::Reopen);
        self.0.changed.notify_all();
    }

    /// Waits until all lines are written, or until none could be written for a second.
    pub(super) fn finish(&self) {
        let mut queue = self.0.queue.lock();
        while queue.is_writing || !queue.entries.is_empty() || queue.lost > 0 {
            let before = queue.written;
            let waited = self.0.changed.wait_for(&mut queue, PATIENCE);
            if waited.timed_out() && queue.written == before {
                return;
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.queue.lock().has_ended = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn run(&self, mut sink: Sink, show: &dyn Fn(&Line<'_>) -> String) {
        while let Some(entry) = self.next() {
            match entry {
                Entry::Line(line) => sink.append(&line),
                Entry::Lost(more) => sink.append(&show(&lost(more))),
                Entry::Reopen => sink.append(&show(&reopened(sink.reopen()))),
            }
        }
    }

    /// The next entry; `None` when no entry is left.
    fn next(&self) -> Option<Entry> {
        let mut queue = self.queue.lock();
        if std::mem::take(&mut queue.is_writing) {
            queue.written += 1;
            self.changed.notify_all();
        }
        loop {
            let mut entry = queue.entries.pop_front();
            if let Some(Entry::Line(line)) = &entry {
                queue.bytes -= line.len();
            } else if entry.is_none() && queue.lost > 0 {
                entry = Some(Entry::Lost(std::mem::take(&mut queue.lost)));
            }
            if entry.is_some() || queue.has_ended {
                queue.is_writing = entry.is_some();
                return entry;
            }
            self.changed.wait(&mut queue);
        }
    }
}

fn lost(more: u64) -> Line<'static> {
    let mut line =
        Line::new(Level::WARN, "lines of the log were lost: they came faster than it was read");
    line.push("more", Value::Number(more));
    line
}

fn reopened(result: Result<(), DiskError>) -> Line<'static> {
    match result {
        Ok(()) => Line::new(Level::INFO, "the log is opened anew"),
        Err(error) => {
            let mut line =
                Line::new(Level::ERROR, "the log cannot be opened anew; the old one goes on");
            line.push("error", Value::Text(error.to_string()));
            line
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use stillpoint_io::ManualClock;

    use super::*;

    fn writer() -> (Writer, BufReader<std::io::PipeReader>) {
        let (reader, pipe) = std::io::pipe().expect("a pipe");
        let clock = Arc::new(ManualClock::new(0));
        let writer = Writer::start(Sink::Pipe(pipe), LogFormat::Text, clock).expect("a thread");
        (writer, BufReader::new(reader))
    }

    /// The reader starts only after all lines were logged. The lines exceed the pipe and the queue
    /// many times.
    #[test]
    fn a_pipe_that_nobody_reads_holds_nobody_up() {
        let (writer, reader) = writer();
        let count = 50_000;
        for number in 0..count {
            writer.push(format!("line {number} {}\n", "x".repeat(90)));
        }
        writer.reopen();
        let lost = writer.0.queue.lock().lost;
        assert!(lost > 0 && lost < count, "{lost} of {count} lost");
        let reading = stillpoint_io::spawn("reader", move || {
            reader.lines().map(|line| line.expect("text")).collect::<Vec<_>>()
        });
        writer.finish();
        drop(writer);
        let lines = reading.expect("a thread").join().expect("no panic");
        let whole = lines.iter().filter(|line| line.starts_with("line ")).count() as u64;
        let told: Vec<&String> = lines.iter().filter(|line| line.contains("were lost")).collect();
        assert_eq!(whole + lost, count);
        assert!(told.len() == 1 && told[0].ends_with(&format!("more={lost}")), "{told:?}");
        assert!(lines.iter().any(|line| line.contains("opened anew")), "reopened");
        // A slow writer makes room in the middle, so lines may be lost there. The order stays.
        let numbers = lines.iter().filter_map(|line| line.strip_prefix("line "));
        let numbers: Vec<u64> = numbers
            .map(|rest| rest.split(' ').next().expect("a number").parse().expect("a number"))
            .collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    }

    /// The end of the process gives up on a pipe that is never read.
    #[test]
    fn a_pipe_that_is_never_read_is_given_up() {
        let (writer, _reader) = writer();
        for number in 0..2000 {
            writer.push(format!("line {number} {}\n", "x".repeat(90)));
        }
        writer.finish();
        assert!(!writer.0.queue.lock().entries.is_empty(), "a pipe holds less");
    }
}
