//! `stillpoint load`: loads a dump into a data directory.

use std::io::{BufReader, IsTerminal, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use stillpoint::Config;
use stillpoint::offline::Loader;
use stillpoint_server::StoredValue;

use crate::dump::{Found, Lines, Record};
use crate::error::CliError;
use crate::units::show_size;

/// Records between two updates of the shown progress.
const SHOWN_EVERY: u64 = 1024;

/// Loads the dump on `input` into the directory `dir`, all of it or nothing.
pub(crate) fn run(
    dir: &Path,
    adds: bool,
    max_memory: Option<u64>,
    as_json: bool,
    input: impl Read,
    out: &mut dyn Write,
) -> Result<ExitCode, CliError> {
    let mut config = Config::new(dir);
    if let Some(bytes) = max_memory {
        config.max_memory_bytes = bytes.try_into().unwrap_or(usize::MAX);
    }
    let mut loader = Loader::open(config, adds)?;
    let mut lines = Lines::new(BufReader::with_capacity(1 << 20, input));
    let bar = bar();
    let loaded = load(&mut loader, &mut lines, &bar);
    bar.finish_and_clear();
    let bytes = lines.bytes_read();
    let records = loaded
        .and_then(|()| loader.finish().map_err(CliError::from))
        .map_err(|source| CliError::NothingLoaded { source: Box::new(source) })?;
    if as_json {
        writeln!(out, "{}", json!({"records": records, "bytes": bytes, "into": dir}))?;
    } else {
        let size = show_size(bytes);
        writeln!(out, "{records} records, {size} of dump, loaded into {}", dir.display())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn load<R: std::io::BufRead>(
    loader: &mut Loader,
    lines: &mut Lines<R>,
    bar: &ProgressBar,
) -> Result<(), CliError> {
    let mut records = 0;
    while let Some(found) = lines.next()? {
        match found {
            Found::Head => {}
            Found::End { tables, .. } => {
                let names: Vec<&str> = tables.iter().map(String::as_str).collect();
                loader.make_tables(&names)?;
            }
            Found::Record(record) => {
                put(loader, record).map_err(|reason| lines.error(reason))?;
                records += 1;
                if records % SHOWN_EVERY == 0 {
                    bar.set_message(format!("{records} records"));
                    bar.set_position(lines.bytes_read());
                }
            }
        }
    }
    Ok(())
}

/// Puts a record, or returns the reason why it cannot.
fn put(loader: &mut Loader, record: Record<'_>) -> Result<(), String> {
    let Record { table, key, tag, value, expires_ms } = record;
    let label = StoredValue::label(&table, tag, expires_ms)?;
    loader
        .put(&table, key.0.into_owned(), label, value.0.into_owned())
        .map_err(|error| error.to_string())
}

fn bar() -> ProgressBar {
    let visible = std::io::stderr().is_terminal();
    let bar = if visible { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    if let Ok(style) = ProgressStyle::with_template("{spinner} {bytes} {bytes_per_sec}, {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
