//! `stillpoint serve`: settings from defaults, a file and options; recovery with its progress; the
//! server until a signal.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use stillpoint::{Codec, Config, Durability, Engine};
use stillpoint_io::{Disk, RealClock, RealDisk, RealRng};
use stillpoint_server::{DebugCommand, Server, ServerConfig};

use crate::args::{DebugArg, DurabilityArg, ServeArgs};
use crate::error::CliError;
use crate::units::{Interval, interval, show_size, size};

/// Enough for a server that was just killed to be gone; it frees its memory first.
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// A configuration file: the options with underscores.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    data: Option<PathBuf>,
    bind: Option<String>,
    port: Option<u16>,
    threads: Option<usize>,
    checkpoint: Option<String>,
    checkpoint_every: Option<String>,
    checkpoint_pace: Option<String>,
    compress: Option<String>,
    keep_checkpoints: Option<usize>,
    log_limit: Option<String>,
    journal: Option<String>,
    durability: Option<DurabilityArg>,
    max_memory: Option<String>,
    requirepass: Option<String>,
    enable_debug_command: Option<DebugArg>,
}

/// Runs the server until it is told to end.
pub(crate) fn run(args: &ServeArgs) -> Result<(), CliError> {
    let file = match &args.config {
        Some(path) => read_file(path)?,
        None => File::default(),
    };
    let (config, server) = settings(args, file)?;
    let stopping = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, stopping.clone()).map_err(CliError::Signals)?;
    }
    let engine = Arc::new(open(config)?);
    let server = Server::start(server, engine.clone(), stopping)?;
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "stillpoint {} serves {} on port {} ({} checkpoints, {} journal, {} durability)",
        env!("CARGO_PKG_VERSION"),
        engine.config().data.display(),
        server.port(),
        engine.config().checkpoint,
        engine.config().journal,
        engine.config().durability.as_str(),
    )?;
    out.flush()?;
    server.join()?;
    // The event loops are gone, and their sessions with them.
    if let Ok(engine) = Arc::try_unwrap(engine) {
        engine.close()?;
    }
    writeln!(out, "stillpoint has saved everything and ends")?;
    Ok(())
}

fn read_file(path: &Path) -> Result<File, CliError> {
    let refuse = |reason: String| CliError::ConfigFile { file: path.to_owned(), reason };
    let (dir, name) = (path.parent().unwrap_or(Path::new("")), path.file_name());
    let name = name.ok_or_else(|| refuse("is not a file".to_owned()))?;
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let disk = RealDisk::new(dir).map_err(|error| refuse(error.to_string()))?;
    let found = disk.exists(Path::new(name)).map_err(|error| refuse(error.to_string()))?;
    if !found {
        return Err(refuse("does not exist".to_owned()));
    }
    let bytes = stillpoint_io::read_all(&disk, Path::new(name))
        .map_err(|error| refuse(error.to_string()))?;
    serde_json::from_slice(&bytes).map_err(|error| refuse(error.to_string()))
}

fn settings(args: &ServeArgs, file: File) -> Result<(Config, ServerConfig), CliError> {
    let parsed_size = |option, text: Option<String>| {
        text.map(|text| size(&text))
            .transpose()
            .map_err(|reason| CliError::Option { option, reason })
    };
    let every = file.checkpoint_every.map(|text| interval(&text)).transpose();
    let every = every.map_err(|reason| CliError::Option { option: "checkpoint-every", reason })?;
    let mut config =
        Config::new(args.data.clone().or(file.data).unwrap_or_else(|| PathBuf::from("./data")));
    config.lock_wait = LOCK_WAIT;
    let defaults = ServerConfig::new(Arc::new(RealClock), Arc::new(RealRng));
    let threads = args.threads.or(file.threads).unwrap_or(defaults.threads);
    if let Some(scheme) = args.checkpoint.clone().or(file.checkpoint) {
        config.checkpoint = scheme;
    }
    if let Some(Interval(every)) = args.checkpoint_every.or(every) {
        config.checkpoint_every = every;
    }
    let pace = parsed_size("checkpoint-pace", file.checkpoint_pace)?;
    config.checkpoint_pace = args.checkpoint_pace.or(pace);
    if let Some(codec) = args.compress.clone().or(file.compress) {
        config.codec = codec_named(&codec)?;
    }
    if let Some(keep) = args.keep_checkpoints.or(file.keep_checkpoints) {
        config.keep_checkpoints = keep;
    }
    if let Some(limit) = args.log_limit.or(parsed_size("log-limit", file.log_limit)?) {
        config.log_limit_bytes = limit;
    }
    if let Some(journal) = args.journal.clone().or(file.journal) {
        config.journal = journal;
    }
    let durability = args.durability.or(file.durability);
    config.durability = match durability.unwrap_or(DurabilityArg::Relaxed) {
        DurabilityArg::Relaxed => Durability::Relaxed,
        DurabilityArg::Strict => Durability::Strict,
    };
    if let Some(limit) = args.max_memory.or(parsed_size("max-memory", file.max_memory)?) {
        config.max_memory_bytes = usize::try_from(limit).unwrap_or(usize::MAX);
    }
    config.logs = threads.clamp(1, 64);
    config.sessions = threads + 4;
    let server = ServerConfig {
        bind: args.bind.clone().or(file.bind).unwrap_or_else(|| defaults.bind.clone()),
        port: args.port.or(file.port).unwrap_or(defaults.port),
        threads,
        requirepass: args.requirepass.clone().or(file.requirepass),
        debug_command: match args.enable_debug_command.or(file.enable_debug_command) {
            None | Some(DebugArg::No) => DebugCommand::No,
            Some(DebugArg::Local) => DebugCommand::Local,
            Some(DebugArg::Yes) => DebugCommand::Yes,
        },
        ..defaults
    };
    Ok((config, server))
}

fn codec_named(name: &str) -> Result<Codec, CliError> {
    match name {
        "none" => Ok(Codec::None),
        "lz4" => Ok(Codec::Lz4),
        "zstd" => Ok(Codec::Zstd),
        _ => Err(CliError::Option {
            option: "compress",
            reason: format!("{name:?} is unknown; known are: none, lz4, zstd"),
        }),
    }
}

/// Opens the engine, showing how far recovery is.
fn open(config: Config) -> Result<Engine, CliError> {
    let visible = std::io::stderr().is_terminal();
    let bar = if visible { ProgressBar::new(0) } else { ProgressBar::hidden() };
    let style = "{msg:18} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    let engine = Engine::open_with_progress(config, &mut |progress| {
        bar.set_message(progress.stage.as_str());
        bar.set_length(progress.bytes_total);
        bar.set_position(progress.bytes_done);
    })?;
    bar.finish_and_clear();
    let recovered = &engine.stats().recovered;
    if recovered.records_loaded > 0 || recovered.commits_replayed > 0 {
        writeln!(
            std::io::stderr(),
            "recovered {} records from checkpoint {} ({} in {:.2} s) and {} commits from the log \
             ({} in {:.2} s)",
            recovered.records_loaded,
            recovered.checkpoint.map_or_else(|| "none".to_owned(), |epoch| epoch.to_string()),
            show_size(recovered.checkpoint_bytes),
            recovered.load_time.as_secs_f64(),
            recovered.commits_replayed,
            show_size(recovered.log_bytes),
            recovered.replay_time.as_secs_f64(),
        )?;
    }
    Ok(engine)
}
