//! `stillpoint serve`: opens the port, then recovers with progress, then serves until a signal.

mod settings;
mod signals;
mod supervisor;

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use sd_notify::NotifyState;
use stillpoint::{Config, Engine, Progress, Stage};
use stillpoint_io::{Cancel, RealClock};
use stillpoint_server::{Bound, Loading, Server, ServerConfig, with_commands};

use crate::args::ServeArgs;
use crate::error::CliError;
use crate::log::Log;
use crate::units::show_size;
use settings::{LogSettings, Settings};
use signals::{Ends, Watch};
use supervisor::PidFile;

/// Time between two lines of the log about the progress of recovery.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// Descriptors reserved for the process: the log, the MANIFEST, parts of a checkpoint, event loops.
const RESERVED_FILES: u64 = 96;
/// Descriptors reserved for each log: segments, prepared segments, its directory.
const RESERVED_FILES_PER_LOG: u64 = 8;

/// Runs the server until it is told to end.
pub(crate) fn run(args: &ServeArgs) -> Result<(), CliError> {
    let settings = settings::settings(args)?;
    let LogSettings { file, format, level } = &settings.log;
    let log = Log::open(file.as_deref(), *format, level.clone(), Arc::new(RealClock));
    let log = log?;
    log.install();
    let ends = Ends::default();
    let watch = Watch::start(ends.clone(), log.clone())?;
    tell_start(&settings);
    let served = serve(settings, &ends);
    drop(watch);
    match &served {
        Ok(()) => tracing::info!("ended"),
        Err(error) => tracing::error!(%error, "ended by a failure"),
    }
    log.finish();
    served
}

fn tell_start(settings: &Settings) {
    let (engine, server) = (&settings.engine, &settings.server);
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        pid = std::process::id(),
        data = %engine.data.display(),
        bind = server.bind,
        port = server.port,
        threads = server.threads,
        journal = engine.journal,
        durability = engine.durability.as_str(),
        checkpoint = engine.checkpoint,
        checkpoint_every_s = engine.checkpoint_every.map(|every| every.as_secs()),
        max_memory_bytes = engine.max_memory_bytes,
        password = server.requirepass.is_some(),
        "stillpoint starts"
    );
}

/// Computes how many clients the process's limit of open files allows. The rest is reserved for the
/// store, which needs descriptors for checkpoints and logs.
///
/// # Errors
/// The limit leaves none for clients.
fn limit_clients(server: &mut ServerConfig, logs: usize) -> Result<(), CliError> {
    let open_files = stillpoint_io::raise_open_files().unwrap_or_else(|error| {
        tracing::warn!(%error, "the limit of open files cannot be raised");
        None
    });
    let Some(open_files) = open_files else { return Ok(()) };
    let reserve = RESERVED_FILES + RESERVED_FILES_PER_LOG * logs as u64;
    let most = open_files.saturating_sub(reserve);
    if most == 0 {
        return Err(CliError::OpenFiles { limit: open_files, needed: reserve });
    }
    server.clients_max = usize::try_from(most).unwrap_or(usize::MAX).min(server.clients_max);
    if server.maxclients > server.clients_max {
        tracing::warn!(
            maxclients = server.clients_max,
            asked_for = server.maxclients,
            open_files,
            "fewer clients than asked for: raise the limit of open files (ulimit -n)"
        );
    }
    Ok(())
}

fn serve(settings: Settings, ends: &Ends) -> Result<(), CliError> {
    let Settings { engine, mut server, pidfile, .. } = settings;
    limit_clients(&mut server, engine.logs)?;
    let _pidfile = pidfile.as_deref().map(PidFile::write).transpose()?;
    // The port is opened first, so that a port in use is reported before anything is loaded.
    let loading = Bound::new(server)?.answer()?;
    supervisor::tell(&[NotifyState::Status("loading")]);
    let engine = match open(engine, &ends.opening, &loading) {
        Err(CliError::Engine(stillpoint::Error::Cancelled)) => {
            tracing::info!("ends before the data was loaded; nothing has changed");
            return Ok(());
        }
        opened => Arc::new(opened?),
    };
    // Without this setting the allocator would keep the memory of unread replies and long values.
    // Recovery reads with buffers that it allocates again and again, so the setting comes after it.
    stillpoint_io::return_large_allocations();
    let server = loading.start(engine.clone(), Arc::clone(&ends.stopping))?;
    supervisor::tell(&[NotifyState::Ready, NotifyState::Status("serving")]);
    show_served(&engine, &server)?;
    server.join()?;
    supervisor::tell(&[NotifyState::Stopping]);
    let load = engine.loading();
    // The event loops and their sessions have ended.
    if let Ok(engine) = Arc::try_unwrap(engine) {
        engine.close()?;
    }
    if let Some(failure) = load.failure {
        return Err(stillpoint::Error::NotLoaded(failure).into());
    }
    writeln!(std::io::stdout(), "stillpoint has saved everything and ends")?;
    Ok(())
}

fn show_served(engine: &Engine, server: &Server) -> Result<(), CliError> {
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
    Ok(())
}

/// Reports the progress of recovery: on a terminal, to clients that ask, and in the log.
struct Reporter<'a> {
    bar: ProgressBar,
    loading: &'a Loading,
    stage: Option<Stage>,
    /// Time since the begin of the stage at which the log gets its next line.
    next: Duration,
}

impl<'a> Reporter<'a> {
    fn new(loading: &'a Loading) -> Self {
        let visible = std::io::stderr().is_terminal();
        let bar = if visible { ProgressBar::new(0) } else { ProgressBar::hidden() };
        let style = "{msg:18} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar, loading, stage: None, next: REPORT_EVERY }
    }

    fn tell(&mut self, progress: &Progress) {
        self.bar.set_message(progress.stage.as_str());
        self.bar.set_length(progress.bytes_total);
        self.bar.set_position(progress.bytes_done);
        self.loading.tell(progress);
        if self.stage != Some(progress.stage) {
            (self.stage, self.next) = (Some(progress.stage), REPORT_EVERY);
        }
        if progress.elapsed >= self.next {
            self.next += REPORT_EVERY;
            tracing::info!(
                stage = progress.stage.as_str(),
                done_bytes = progress.bytes_done,
                total_bytes = progress.bytes_total,
                "recovering"
            );
        }
    }
}

/// Opens the engine, and shows the progress of recovery.
fn open(config: Config, cancel: &Cancel, loading: &Loading) -> Result<Engine, CliError> {
    let mut reporter = Reporter::new(loading);
    let builder = with_commands(Engine::builder(config));
    let opened = builder.cancel(cancel).progress(|progress| reporter.tell(progress)).open();
    reporter.bar.finish_and_clear();
    let engine = opened?;
    let (recovered, load) = (&engine.stats().recovered, engine.loading());
    if !load.is_done {
        tracing::info!(
            checkpoint = recovered.checkpoint,
            to_load = show_size(load.bytes_total),
            index_size = show_size(load.index_bytes),
            commits = recovered.commits_replayed,
            log_size = show_size(recovered.log_bytes),
            replay_ms = recovered.replay_time.as_millis() as u64,
            "recovered; serves while it loads"
        );
        return Ok(engine);
    }
    tracing::info!(
        checkpoint = recovered.checkpoint,
        records = recovered.records_loaded,
        checkpoint_size = show_size(recovered.checkpoint_bytes),
        load_ms = recovered.load_time.as_millis() as u64,
        undone_keys = recovered.keys_undone,
        undo_ms = recovered.undo_time.as_millis() as u64,
        commits = recovered.commits_replayed,
        log_size = show_size(recovered.log_bytes),
        replay_ms = recovered.replay_time.as_millis() as u64,
        "recovered"
    );
    Ok(engine)
}
