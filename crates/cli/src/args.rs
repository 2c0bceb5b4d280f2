//! Arguments of the command line. The names of the arguments are a contract with users.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::units::{Interval, interval, points, size};

/// Data at memory speed, saved without stopping, brought back exactly.
#[derive(Debug, Parser)]
#[command(
    name = "stillpoint",
    version,
    about,
    after_help = "\
Examples:
  stillpoint serve                                 a Redis-protocol server on port 6379, data in ./data
  stillpoint serve --durability strict             every reply waits until its commit survives a crash
  stillpoint check ./data                          is the data directory sound?
  stillpoint dump ./data --table db0               every key and value as JSON lines
  stillpoint load ./data < dump.jsonl              a data directory from a dump
  stillpoint lab list                              the experiments"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a data directory over the Redis protocol
    #[command(after_help = "\
Examples:
  stillpoint serve
  stillpoint serve --data /var/lib/stillpoint --port 6380 --checkpoint-every 30s
  stillpoint serve --journal none --checkpoint-every 5m     a cache: the last checkpoint survives
  stillpoint serve --config stillpoint.json                 settings from a file; options override it

SIGTERM and SIGINT end it cleanly, during loading at once; a second one ends it in any case. SIGHUP
opens the log file anew. A configuration file is a JSON object whose names are those of the options
with underscores: {\"port\": 6380, \"durability\": \"strict\", \"max_memory\": \"8GiB\"}
An option stands before the environment variable of its name, and that before the file.")]
    Serve(Box<ServeArgs>),
    /// Verify every file and record of a data directory: exit 0 if sound, 1 if damaged
    #[command(after_help = "Example:\n  stillpoint check ./data && echo sound")]
    Check {
        /// The data directory
        dir: PathBuf,
        /// Recover the data into memory, too, and verify every hash, list, set and sorted set
        #[arg(long)]
        collections: bool,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Say what a data directory holds
    #[command(after_help = "\
Examples:
  stillpoint inspect ./data
  stillpoint inspect ./data --collections    how many hashes, lists, sets and sorted sets, and how large
  stillpoint inspect ./data --calls      the commands in the logs, if the server ran with --log-calls")]
    Inspect {
        /// The data directory
        dir: PathBuf,
        /// Recover the data into memory, too, and count hashes, lists, sets and sorted sets
        #[arg(long, conflicts_with = "calls")]
        collections: bool,
        /// List the calls that the logs name, as JSON lines
        #[arg(long)]
        calls: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Write every key and value as JSON lines
    #[command(after_help = "\
A record is {\"table\":…,\"key\":…,\"tag\":…,\"value\":…}, and \"expires_ms\" where the key expires: the
moment in milliseconds since the Unix epoch. Bytes that are no UTF-8 are written as
{\"base16\":\"…\"}. What recovery would serve is what is written; the directory is not changed.
Beside a running server it is the newest checkpoint, without the log. A paged table is dumped only if
no process has the directory open. `stillpoint load` makes tables in memory of all tables of a dump.
The first line, {\"stillpoint_dump\":1}, and the last, {\"end\":true,\"records\":…,\"tables\":[…]}, tell
a whole dump from one that was cut off.

Example:
  stillpoint dump ./data --table db0 > db0.jsonl")]
    Dump {
        /// The data directory
        dir: PathBuf,
        /// Only this table
        #[arg(long)]
        table: Option<String>,
    },
    /// Write a table as an Apache Arrow IPC file
    #[cfg(feature = "arrow")]
    #[command(after_help = "\
Reads the data directory that no process has open, and changes nothing. The columns are key, tag, value
and expires; a value is as `stillpoint dump` shows it. Data frames, notebooks and SQL engines read such a
file, and see one that was cut off. A program exports a store that it has open by the crate
stillpoint-arrow.

Example:
  stillpoint export ./data --table db0 --arrow > db0.arrow")]
    Export {
        /// The data directory
        dir: PathBuf,
        /// The table
        #[arg(long)]
        table: String,
        /// Apache Arrow's IPC file format
        #[arg(long, required = true)]
        arrow: bool,
    },
    /// Put a dump into a data directory, new or existing
    #[command(after_help = "\
Reads from standard input what `stillpoint dump` writes, of this release or an earlier one. All of
it is loaded or nothing: the records become durable together, at the end. Several dumps may follow
each other. JSON lines without the first and the last line of a dump are loaded as they come.

Examples:
  stillpoint load ./new < dump.jsonl
  stillpoint dump ./data --table db0 | stillpoint load --add ./other")]
    Load {
        /// The data directory; made if it does not exist. No process may have it open
        dir: PathBuf,
        /// Add to the records that are there, and replace those with the same key; without it the
        /// directory must hold none
        #[arg(long)]
        add: bool,
        /// Memory for records, values and indexes [default: three quarters of the machine's]
        #[arg(long, value_name = "SIZE", value_parser = size)]
        max_memory: Option<u64>,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Make a new data directory from one checkpoint
    #[command(after_help = "\
A store with paged tables is refused: their pages make a state only together with the logs. Copy the
whole directory while no process has it open.

Example:
  stillpoint restore ./data --checkpoint 7 --to ./restored")]
    Restore {
        /// The data directory
        dir: PathBuf,
        /// Epoch of the checkpoint, as `stillpoint inspect` lists them
        #[arg(long, value_name = "EPOCH")]
        checkpoint: u64,
        /// The directory to make; it must not exist, or be empty
        #[arg(long, value_name = "DIR2")]
        to: PathBuf,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Merge the newest checkpoint with those that it goes on from
    #[command(after_help = "\
The data directory must not be open. A start then reads one full checkpoint in place of a chain.
To merge on another machine, copy the directory there, merge the copy, and adopt what was merged.

Older checkpoints are merged away, and `stillpoint restore` offers them no more.

Examples:
  stillpoint merge ./data --keep-points 1
  stillpoint merge ./data --keep-points 1 --adopt ./copy")]
    Merge {
        /// The data directory
        dir: PathBuf,
        /// Newest checkpoints that `stillpoint restore` can still use afterwards, at least 1; what the
        /// server has as --keep-points
        #[arg(long, value_name = "N", value_parser = points)]
        keep_points: usize,
        /// Merge nothing: take over what was merged in this copy of the directory
        #[arg(long, value_name = "COPY")]
        adopt: Option<PathBuf>,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Give up what of a refused data directory cannot be read, so that the rest can be served
    #[command(after_help = "\
Without --accept-loss nothing changes: it says what would be given up. Put missing files or the
newest MANIFEST back first, if there is a copy of them. A MANIFEST that is missing or damaged is made
anew from the other files; tables whose names nothing tells are called table-<number> then.

Exit 0 if nothing has to be given up, or if it was given up; 1 if something would have to be.

Examples:
  stillpoint repair ./data
  stillpoint repair --accept-loss ./data")]
    Repair {
        /// The data directory
        dir: PathBuf,
        /// Give up the damaged data; without this option repair only lists the losses
        #[arg(long)]
        accept_loss: bool,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Run experiments and write their report
    Lab(stillpoint_lab::cli::LabArgs),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DurabilityArg {
    /// A commit is durable within a second of its reply
    Relaxed,
    /// A reply waits until its commit, and all it has read, is durable
    Strict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PointArg {
    /// Commits under way
    Commits,
    /// Open transactions, as published; new ones do not begin meanwhile
    Transactions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DebugArg {
    /// Nobody
    No,
    /// Clients of the same machine
    Local,
    /// Every client
    Yes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// Time, level, message, fields
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

/// Pages of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PagesArg {
    /// 2 MiB, where the system has them
    Huge,
    /// 4 KiB
    Small,
}

#[derive(Debug, Default, Args)]
pub(crate) struct ServeArgs {
    /// The data directory; made if it does not exist [default: ./data]
    #[arg(long, env = "STILLPOINT_DATA", value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Addresses to listen on, or names of this host, with commas between them [default: 127.0.0.1]
    #[arg(long, env = "STILLPOINT_BIND", value_name = "ADDRESSES")]
    pub(crate) bind: Option<String>,
    /// Port to listen on [default: 6379]
    #[arg(long, env = "STILLPOINT_PORT")]
    pub(crate) port: Option<u16>,
    /// Event loops [default: one per core]
    #[arg(long, env = "STILLPOINT_THREADS", value_name = "N")]
    pub(crate) threads: Option<usize>,
    #[arg(long, env = "STILLPOINT_CHECKPOINT", value_name = "SCHEME",
        help = choices("Checkpoint scheme", stillpoint::CHECKPOINT_SCHEME_DEFAULT, stillpoint::checkpoint_schemes()),
        long_help = choices_told("Checkpoint scheme", stillpoint::CHECKPOINT_SCHEME_DEFAULT, stillpoint::checkpoint_schemes()))]
    pub(crate) checkpoint: Option<String>,
    /// What a scheme that stops commits waits for [default: commits]
    #[arg(long, env = "STILLPOINT_POINT_OF_CONSISTENCY", value_enum)]
    pub(crate) point_of_consistency: Option<PointArg>,
    /// Time between checkpoints, or `never` [default: 60s]
    #[arg(long, env = "STILLPOINT_CHECKPOINT_EVERY", value_name = "TIME", value_parser = interval)]
    pub(crate) checkpoint_every: Option<Interval>,
    /// Bytes per second that a checkpoint may write, 0 for no limit [default: no limit]
    #[arg(long, env = "STILLPOINT_CHECKPOINT_PACE", value_name = "SIZE", value_parser = size)]
    pub(crate) checkpoint_pace: Option<u64>,
    #[arg(long, env = "STILLPOINT_COMPRESS", value_name = "CODEC",
        help = choices("Compression of checkpoints", "none", stillpoint::codecs()),
        long_help = choices_told("Compression of checkpoints", "none", stillpoint::codecs()))]
    pub(crate) compress: Option<String>,
    /// Newest checkpoints that `stillpoint restore` can use [default: 1]
    #[arg(long, alias = "keep-points", env = "STILLPOINT_KEEP_CHECKPOINTS", value_name = "N")]
    pub(crate) keep_checkpoints: Option<usize>,
    /// Checkpoints of changes after which they are merged, 0 for never [default: 8]
    #[arg(long, env = "STILLPOINT_MERGE_AFTER", value_name = "N")]
    pub(crate) merge_after: Option<usize>,
    /// A checkpoint begins when recovery would read this much log, 0 for no limit [default: 4GiB]
    #[arg(long, env = "STILLPOINT_LOG_LIMIT", value_name = "SIZE", value_parser = size)]
    pub(crate) log_limit: Option<u64>,
    #[arg(long, env = "STILLPOINT_JOURNAL", value_name = "JOURNAL",
        help = choices("Journal", "redo", stillpoint::journal_schemes()),
        long_help = choices_told("Journal", "redo", stillpoint::journal_schemes()))]
    pub(crate) journal: Option<String>,
    /// Whether each record of the log names its command besides the writes, for `inspect --calls`
    /// [default: no]
    #[arg(long, env = "STILLPOINT_LOG_CALLS", num_args = 0..=1, default_missing_value = "true",
        value_name = "BOOL")]
    pub(crate) log_calls: Option<bool>,
    /// When a commit is acknowledged [default: relaxed]
    #[arg(long, env = "STILLPOINT_DURABILITY", value_enum)]
    pub(crate) durability: Option<DurabilityArg>,
    /// Memory for records, values and indexes [default: three quarters of the machine's]
    #[arg(long, env = "STILLPOINT_MAX_MEMORY", value_name = "SIZE", value_parser = size)]
    pub(crate) max_memory: Option<u64>,
    #[arg(long, env = "STILLPOINT_MAX_MEMORY_POLICY", value_name = "POLICY",
        help = format!("Which keys a full server gives up: {} [default: noeviction]", policies()))]
    pub(crate) max_memory_policy: Option<String>,
    /// Pages of the memory of records. With `--checkpoint fork` a write copies one of them
    /// [default: huge]
    #[arg(long, env = "STILLPOINT_PAGES", value_enum)]
    pub(crate) pages: Option<PagesArg>,
    /// The part of that memory which calc-stored reserves for old values [default: a fifth]
    #[arg(long, env = "STILLPOINT_STABLE_POOL", value_name = "SIZE", value_parser = size)]
    pub(crate) stable_pool: Option<u64>,
    /// Load every record before the first answer. A checkpoint that proves damaged then refuses the start.
    /// Without this option, a key that is not in memory yet is read from the checkpoints [default: no]
    #[arg(long, env = "STILLPOINT_WAIT_FOR_LOAD", num_args = 0..=1,
        default_missing_value = "true", value_name = "BOOL")]
    pub(crate) wait_for_load: Option<bool>,
    /// The part of that memory which holds pages of paged tables, for a store that has some
    /// [default: none]
    #[arg(long, env = "STILLPOINT_POOL", value_name = "SIZE", value_parser = size)]
    pub(crate) pool: Option<u64>,
    /// Bytes of a page of paged tables, 4KiB to 64KiB; the first one fixes it
    /// [default: 16KiB, or as the store has it]
    #[arg(long, env = "STILLPOINT_PAGE_SIZE", value_name = "SIZE", value_parser = size)]
    pub(crate) page_size: Option<u64>,
    /// Longest wait of a command for a lock of a program's open transaction, or `never` for no limit. Such
    /// locks are those of tables of `--checkpoint siren` [default: 10s]
    #[arg(long, env = "STILLPOINT_LOCK_TIMEOUT", value_name = "TIME", value_parser = interval)]
    pub(crate) lock_timeout: Option<Interval>,
    /// Password that clients must give with AUTH
    #[arg(long, env = "STILLPOINT_REQUIREPASS", hide_env_values = true, value_name = "PASS")]
    pub(crate) requirepass: Option<String>,
    /// Who may use DEBUG, which is for tests [default: no]
    #[arg(long, env = "STILLPOINT_ENABLE_DEBUG_COMMAND", value_enum)]
    pub(crate) enable_debug_command: Option<DebugArg>,
    /// How much to log: debug, verbose, notice or warning [default: notice]
    #[arg(long, env = "STILLPOINT_LOG_LEVEL", value_name = "LEVEL")]
    pub(crate) log_level: Option<String>,
    /// How to write the log [default: text]
    #[arg(long, env = "STILLPOINT_LOG_FORMAT", value_enum)]
    pub(crate) log_format: Option<LogFormat>,
    /// File to append the log to, opened anew at SIGHUP [default: stderr]
    #[arg(long, env = "STILLPOINT_LOG_FILE", value_name = "FILE")]
    pub(crate) log_file: Option<PathBuf>,
    /// File to write the number of the process to while it runs
    #[arg(long, env = "STILLPOINT_PIDFILE", value_name = "FILE")]
    pub(crate) pidfile: Option<PathBuf>,
    /// File with settings
    #[arg(long, env = "STILLPOINT_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// The values of `--max-memory-policy`.
fn policies() -> String {
    stillpoint_server::eviction_policies().collect::<Vec<_>>().join(", ")
}

/// The short help of an option that takes a name from a registry.
fn choices<'a>(
    what: &str,
    default: &str,
    rows: impl Iterator<Item = (&'a str, &'a str)>,
) -> String {
    let names: Vec<&str> = rows.map(|(name, _)| name).collect();
    format!("{what}: {} [default: {default}]", names.join(", "))
}

/// The long help of an option that takes a name from a registry: a line for each name.
fn choices_told<'a>(
    what: &str,
    default: &str,
    rows: impl Iterator<Item = (&'a str, &'a str)>,
) -> String {
    let lines: String = rows.map(|(name, about)| format!("\n- {name}: {about}")).collect();
    format!("{what} [default: {default}]\n\nKnown are:{lines}")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Cli;

    #[test]
    fn the_help_lists_every_row_of_the_registries() {
        let mut cli = Cli::command();
        cli.build();
        let serve = cli.find_subcommand_mut("serve").expect("a command");
        let (short, long) = (serve.render_help().to_string(), serve.render_long_help().to_string());
        let rows = stillpoint::checkpoint_schemes()
            .chain(stillpoint::journal_schemes())
            .chain(stillpoint::codecs());
        for (name, about) in rows {
            assert!(short.contains(name), "{name} is not in: {short}");
            assert!(long.contains(&format!("- {name}: {about}")), "{name} is not in: {long}");
        }
    }

    #[test]
    fn the_documents_name_every_scheme_and_every_log() {
        let (readme, of_server) =
            (include_str!("../../../README.md"), include_str!("../../../docs/server.md"));
        for (name, _) in stillpoint::checkpoint_schemes() {
            assert!(
                of_server.contains(&format!("`{name}`")),
                "docs/server.md does not name {name}"
            );
        }
        for (name, _) in stillpoint::journal_schemes().filter(|(name, _)| *name != "none") {
            assert!(readme.contains(&format!("{name} log")), "the README does not name {name}");
        }
    }
}
