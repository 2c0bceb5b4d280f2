//! The one binary, `stillpoint`: serve, check, inspect, dump, load, restore, repair, lab.

mod args;
mod dump;
mod error;
#[cfg(feature = "arrow")]
mod export;
mod load;
mod log;
mod offline;
mod serve;
mod units;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use crate::args::{Cli, Command};
use crate::error::CliError;

/// The commit that this program was built from: see `build.rs`.
const COMMIT: &str = env!("STILLPOINT_COMMIT");
/// Exit code of `check` for a damaged directory, and of any command that meets damage.
const DAMAGED: u8 = 1;
/// Exit code of everything else that went wrong.
const FAILED: u8 = 2;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut output = std::io::stdout().lock();
    let result = match &cli.command {
        Command::Serve(args) => serve::run(args).map(|()| ExitCode::SUCCESS),
        Command::Check { dir, collections, json } => {
            offline::check(dir, *collections, *json, &mut output)
        }
        Command::Inspect { dir, calls: true, .. } => offline::calls(dir, &mut output),
        Command::Inspect { dir, collections, json, .. } => {
            offline::inspect(dir, *collections, *json, &mut output)
        }
        Command::Dump { dir, table } => offline::dump(dir, table.as_deref(), &mut output),
        #[cfg(feature = "arrow")]
        Command::Export { dir, table, arrow: _ } => export::run(dir, table, &mut output),
        Command::Load { dir, add, max_memory, json } => {
            load::run(dir, *add, *max_memory, *json, std::io::stdin().lock(), &mut output)
        }
        Command::Restore { dir, checkpoint, to, json } => {
            offline::restore(dir, *checkpoint, to, *json, &mut output)
        }
        Command::Merge { dir, keep_points, adopt, json } => {
            offline::merge(dir, adopt.as_deref(), *keep_points, *json, &mut output)
        }
        Command::Repair { dir, accept_loss, json } => {
            offline::repair(dir, *accept_loss, *json, &mut output)
        }
        Command::Lab(args) => match stillpoint_lab::cli::run(args, COMMIT, &mut output) {
            Ok(true) => Ok(ExitCode::SUCCESS),
            Ok(false) => Ok(ExitCode::from(DAMAGED)),
            Err(error) => Err(CliError::Lab(error.to_string())),
        },
    };
    result.unwrap_or_else(|error| {
        // A reader that closes the pipe of a dump early is no failure.
        if error.is_broken_pipe() {
            return ExitCode::SUCCESS;
        }
        let _ = writeln!(std::io::stderr(), "stillpoint: {error}");
        ExitCode::from(if error.is_damage() { DAMAGED } else { FAILED })
    })
}
