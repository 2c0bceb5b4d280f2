//! One line of the log.

use std::fmt::Write;

use tracing::Level;

use crate::args::LogFormat;

/// A value of a field.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Text(String),
    Number(u64),
    Decimal(f64),
    Flag(bool),
}

/// A line to be written.
#[derive(Debug)]
pub(super) struct Line<'a> {
    level: Level,
    message: &'a str,
    fields: Vec<(&'static str, Value)>,
}

impl<'a> Line<'a> {
    pub(super) fn new(level: Level, message: &'a str) -> Self {
        Self { level, message, fields: Vec::new() }
    }

    pub(super) fn push(&mut self, name: &'static str, value: Value) {
        self.fields.push((name, value));
    }

    /// The line with its time, in milliseconds since the Unix epoch, and a line break.
    pub(super) fn show(&self, format: LogFormat, wall_ms: u64) -> String {
        match format {
            LogFormat::Text => self.text(wall_ms),
            LogFormat::Json => self.json(wall_ms),
        }
    }

    fn text(&self, wall_ms: u64) -> String {
        let mut line = format!("{} {:5} ", moment(wall_ms), self.level.as_str());
        push_plain(&mut line, self.message);
        for (name, value) in &self.fields {
            // Writing to a string cannot fail.
            let _ = match value {
                Value::Text(text) if is_word(text) => write!(line, " {name}={text}"),
                Value::Text(text) => write!(line, " {name}={text:?}"),
                Value::Number(number) => write!(line, " {name}={number}"),
                Value::Decimal(number) => write!(line, " {name}={number}"),
                Value::Flag(flag) => write!(line, " {name}={flag}"),
            };
        }
        line.push('\n');
        line
    }

    fn json(&self, wall_ms: u64) -> String {
        let mut object = serde_json::Map::new();
        object.insert("time".to_owned(), moment(wall_ms).into());
        object.insert("level".to_owned(), self.level.as_str().to_lowercase().into());
        object.insert("message".to_owned(), self.message.into());
        for (name, value) in &self.fields {
            let value = match value {
                Value::Text(text) => text.as_str().into(),
                Value::Number(number) => (*number).into(),
                Value::Decimal(number) => (*number).into(),
                Value::Flag(flag) => (*flag).into(),
            };
            object.insert((*name).to_owned(), value);
        }
        let mut line = serde_json::Value::Object(object).to_string();
        line.push('\n');
        line
    }
}

fn is_word(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_graphic() && c != '"' && c != '\\' && c != '=';
    !text.is_empty() && text.chars().all(plain)
}

/// Appends a text, and escapes characters that would begin a new line or control a terminal.
fn push_plain(line: &mut String, text: &str) {
    for c in text.chars() {
        if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
    }
}

/// A time in the form of RFC 3339, in UTC.
fn moment(wall_ms: u64) -> String {
    let (seconds, ms) = (wall_ms / 1000, wall_ms % 1000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Year, month and day of a number of days since the Unix epoch. Source: Hinnant,
/// "chrono-compatible low-level date algorithms", with years that begin in March, in eras of 400.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year_of_era + carry, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_calendar() {
        for (wall_ms, shown) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_795_444_425_123, "2026-11-23T14:33:45.123Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(moment(wall_ms), shown);
        }
    }

    #[test]
    fn a_line_stays_a_line() {
        let mut line = Line::new(Level::WARN, "a\nb");
        line.push("path", Value::Text("/x".to_owned()));
        line.push("why", Value::Text("no \"space\"\n".to_owned()));
        line.push("count", Value::Number(3));
        assert_eq!(
            line.show(LogFormat::Text, 0),
            "1970-01-01T00:00:00.000Z WARN  a\\nb path=/x why=\"no \\\"space\\\"\\n\" count=3\n"
        );
        let json = line.show(LogFormat::Json, 0);
        assert_eq!(json.matches('\n').count(), 1);
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!((&json["level"], &json["message"]), (&"warn".into(), &"a\nb".into()));
        assert_eq!((&json["why"], &json["count"]), (&"no \"space\"\n".into(), &3.into()));
    }
}
