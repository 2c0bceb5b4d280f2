//! The log of the process, as text or as JSON.
//!
//! Events come through `tracing`, and a disabled event costs one read of a flag. If a line of code
//! repeats an event, the log writes the first event. Later the log writes one event after 1 s, 2 s,
//! and so on up to a minute, with the number of events left out. So no client can fill a disk. A
//! thread of its own writes the lines, so the caller never waits for a pipe or a disk.

mod line;
mod repeats;
mod writer;

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint_io::{AppendFile, Clock};
use stillpoint_server::LogLevel;
use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Event, Metadata, Subscriber};

use crate::args::LogFormat;
use line::{Line, Value};
use repeats::Repeats;
use writer::{Sink, Writer};

/// A handle of the log. Clones share the log.
#[derive(Clone, Debug)]
pub(crate) struct Log(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    writer: Writer,
    format: LogFormat,
    level: LogLevel,
    clock: Arc<dyn Clock>,
    repeats: Mutex<Repeats>,
}

impl Log {
    /// A log into a file, or to stderr.
    ///
    /// # Errors
    /// When the file cannot be opened, or the thread that writes cannot be started.
    pub(crate) fn open(
        file: Option<&Path>,
        format: LogFormat,
        level: LogLevel,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, stillpoint::Error> {
        let sink = match file {
            Some(path) => Sink::File(AppendFile::open(path)?),
            None => Sink::Stderr,
        };
        let writer = Writer::start(sink, format, Arc::clone(&clock))?;
        let repeats = Mutex::default();
        Ok(Self(Arc::new(Inner { writer, format, level, clock, repeats })))
    }

    /// Sends all later events of this process to this log.
    pub(crate) fn install(&self) {
        // The call cannot fail, since the program installs only one log.
        let _ = tracing::subscriber::set_global_default(self.clone());
    }

    /// Opens the file anew, after it was renamed. The log says whether that succeeded. If not, the
    /// old file stays in use.
    pub(crate) fn reopen(&self) {
        self.0.writer.reopen();
    }

    /// Waits until everything is written, or until nothing could be written for a second.
    pub(crate) fn finish(&self) {
        self.0.writer.finish();
    }

    /// Writes due lines about events left out. To be called about once a second.
    pub(crate) fn tell_repeats(&self) {
        self.tell_due(self.0.clock.monotonic_ns());
    }

    /// Writes lines about all events left out, at the end of the process.
    pub(crate) fn tell_all_repeats(&self) {
        self.tell_due(u64::MAX);
    }

    fn tell_due(&self, now_ns: u64) {
        let due = self.0.repeats.lock().due(now_ns);
        for repeated in due {
            let mut line = Line::new(repeated.level, &repeated.message);
            line.push("more", Value::Number(repeated.more));
            self.write(&line);
        }
    }

    fn write(&self, line: &Line<'_>) {
        let text = line.show(self.0.format, self.0.clock.wall_ms());
        self.0.writer.push(text);
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && *metadata.level() <= self.0.level.get()
            && metadata.target().starts_with("stillpoint")
    }

    fn register_callsite(&self, _: &'static Metadata<'static>) -> tracing::subscriber::Interest {
        // The level may change while the server runs.
        tracing::subscriber::Interest::sometimes()
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let now_ns = self.0.clock.monotonic_ns();
        let Some(more) = self.0.repeats.lock().admit(metadata.callsite(), now_ns) else {
            return;
        };
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut line = Line::new(*metadata.level(), &fields.message);
        for (name, value) in fields.others {
            line.push(name, value);
        }
        if more > 0 {
            line.push("more", Value::Number(more));
        }
        self.write(&line);
        self.0.repeats.lock().told(metadata.callsite(), *metadata.level(), fields.message);
    }

    // Nothing here opens spans.
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

/// The text and fields of an event.
#[derive(Default)]
struct Fields {
    message: String,
    others: Vec<(&'static str, Value)>,
}

impl Fields {
    fn push(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::Text(text)) => self.message = text,
            (name, value) => self.others.push((name, value)),
        }
    }
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push(field, Value::Number(value));
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        match u64::try_from(value) {
            Ok(value) => self.push(field, Value::Number(value)),
            Err(_) => self.push(field, Value::Text(value.to_string())),
        }
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push(field, Value::Decimal(value));
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field, Value::Flag(value));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.push(field, Value::Text(value.to_owned()));
    }
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.push(field, Value::Text(format!("{value:?}")));
    }
}
