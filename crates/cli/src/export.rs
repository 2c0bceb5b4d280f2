//! `export`: a table of a data directory as an Apache Arrow IPC file.

use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use stillpoint::{Config, Engine};
use stillpoint_arrow::{ExportError, TableFile};
use stillpoint_server::{StoredValue, with_commands};

use crate::error::CliError;
use crate::offline::said_of;

pub(crate) fn run(dir: &Path, table: &str, out: &mut dyn Write) -> Result<ExitCode, CliError> {
    let out = BufWriter::with_capacity(1 << 20, out);
    let mut file = TableFile::new(out, table).map_err(ExportError::into_io)?;
    let mut bytes = Vec::new();
    let builder = with_commands(Engine::builder(Config::new(dir)));
    let dumped = builder.dump(Some(table), &mut |table, key, value| {
        bytes.clear();
        let stored = StoredValue::of(table, value);
        stored.copy_to(&mut bytes);
        file.push(key, stored.tag(), &bytes, stored.expires_ms()).map_err(ExportError::into_io)
    })?;
    file.finish().map_err(ExportError::into_io)?;
    if let Some(said) = said_of(dumped.extent) {
        writeln!(io::stderr(), "{said}")?;
    }
    Ok(ExitCode::SUCCESS)
}
