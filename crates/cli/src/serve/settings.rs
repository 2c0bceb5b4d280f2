//! Settings: defaults, then the file, then the environment, then options.

use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};
use stillpoint::{AddressSpace, Codec, Config, Durability, PageSize, QuiesceFor};
use stillpoint_io::{Disk, RealClock, RealDisk, RealRng};
use stillpoint_server::{DebugCommand, LogLevel, ServerConfig};

use crate::args::{DebugArg, DurabilityArg, LogFormat, PagesArg, PointArg, ServeArgs};
use crate::error::CliError;
use crate::units::{Interval, interval, size};

/// Longest wait for the data directory. A killed server needs some time to free its memory before
/// it releases the lock.
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// Longest wait of a command for a lock, if the settings name none.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Settings of the server.
pub(super) struct Settings {
    pub(super) engine: Config,
    pub(super) server: ServerConfig,
    pub(super) log: LogSettings,
    pub(super) pidfile: Option<PathBuf>,
}

/// Destination and format of the log.
pub(super) struct LogSettings {
    pub(super) file: Option<PathBuf>,
    pub(super) format: LogFormat,
    pub(super) level: LogLevel,
}

/// A configuration file: the options with underscores.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    data: Option<PathBuf>,
    bind: Option<String>,
    port: Option<u16>,
    threads: Option<usize>,
    checkpoint: Option<String>,
    point_of_consistency: Option<PointArg>,
    checkpoint_every: Written<Interval>,
    checkpoint_pace: Written<u64>,
    compress: Option<String>,
    keep_checkpoints: Option<usize>,
    merge_after: Option<usize>,
    log_limit: Written<u64>,
    journal: Option<String>,
    log_calls: Option<bool>,
    wait_for_load: Option<bool>,
    durability: Option<DurabilityArg>,
    max_memory: Written<u64>,
    max_memory_policy: Option<String>,
    pages: Option<PagesArg>,
    stable_pool: Written<u64>,
    pool: Written<u64>,
    page_size: Written<u64>,
    lock_timeout: Written<Interval>,
    requirepass: Option<String>,
    enable_debug_command: Option<DebugArg>,
    log_level: Option<String>,
    log_format: Option<LogFormat>,
    log_file: Option<PathBuf>,
    pidfile: Option<PathBuf>,
}

/// A value in the form in which people write it, with its unit.
#[derive(Debug)]
struct Written<T>(Option<T>);

impl<T> Default for Written<T> {
    fn default() -> Self {
        Self(None)
    }
}

/// A value that is written with a unit.
trait FromText: Sized {
    /// The form in which people write the value.
    const FORM: &str;
    fn from_text(text: &str) -> Result<Self, String>;
}

impl FromText for Interval {
    const FORM: &str = "a time in quotes with its unit, like \"60s\", \"5m\" or \"never\"";
    fn from_text(text: &str) -> Result<Self, String> {
        interval(text)
    }
}

impl FromText for u64 {
    const FORM: &str = "a size in quotes with its unit, like \"512MiB\" or \"4GiB\"";
    fn from_text(text: &str) -> Result<Self, String> {
        size(text)
    }
}

impl<'de, T: FromText> Deserialize<'de> for Written<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor<T>(PhantomData<T>);
        impl<T: FromText> de::Visitor<'_> for Visitor<T> {
            type Value = Written<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(T::FORM)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                T::from_text(text).map(|value| Written(Some(value))).map_err(E::custom)
            }
            fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
                Ok(Written(None))
            }
        }
        from.deserialize_any(Visitor(PhantomData))
    }
}

fn read_file(path: &Path) -> Result<File, CliError> {
    let refuse = |reason: String| CliError::ConfigFile { file: path.to_owned(), reason };
    let (dir, name) = (path.parent().unwrap_or(Path::new("")), path.file_name());
    let name = name.ok_or_else(|| refuse("is not a file".to_owned()))?;
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    if !dir.is_dir() {
        return Err(refuse("does not exist".to_owned()));
    }
    let disk = RealDisk::new(dir).map_err(|error| refuse(error.to_string()))?;
    let found = disk.exists(Path::new(name)).map_err(|error| refuse(error.to_string()))?;
    if !found {
        return Err(refuse("does not exist".to_owned()));
    }
    let bytes = stillpoint_io::read_all(&disk, Path::new(name))
        .map_err(|error| refuse(error.to_string()))?;
    parse_file(&bytes).map_err(refuse)
}

fn parse_file(bytes: &[u8]) -> Result<File, String> {
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err("is no JSON object; write one like {\"port\": 6380}".to_owned());
    }
    let mut from = serde_json::Deserializer::from_slice(bytes);
    let file: File = serde_path_to_error::deserialize(&mut from).map_err(|error| {
        let field = error.path().to_string();
        let inner = error.into_inner();
        match field.as_str() {
            "" | "." => inner.to_string(),
            field => format!("{field}: {inner}"),
        }
    })?;
    from.end().map_err(|error| error.to_string())?;
    Ok(file)
}

/// Combines the settings of file, environment and options.
///
/// # Errors
/// A setting cannot be read or used.
pub(super) fn settings(args: &ServeArgs) -> Result<Settings, CliError> {
    let file = match &args.config {
        Some(path) => read_file(path)?,
        None => File::default(),
    };
    let defaults = ServerConfig::new(Arc::new(RealClock), Arc::new(RealRng));
    let threads = args.threads.or(file.threads).unwrap_or(defaults.threads);
    let log = LogSettings {
        file: args.log_file.clone().or(file.log_file.clone()),
        format: args.log_format.or(file.log_format).unwrap_or_default(),
        level: level_named(args.log_level.as_deref().or(file.log_level.as_deref()))?,
    };
    let config_file = args.config.as_deref().map(std::path::absolute).transpose()?;
    let server = ServerConfig {
        bind: args.bind.clone().or(file.bind.clone()).unwrap_or_else(|| defaults.bind.clone()),
        port: args.port.or(file.port).unwrap_or(defaults.port),
        threads,
        requirepass: args.requirepass.clone().or(file.requirepass.clone()),
        debug_command: match args.enable_debug_command.or(file.enable_debug_command) {
            None | Some(DebugArg::No) => DebugCommand::No,
            Some(DebugArg::Local) => DebugCommand::Local,
            Some(DebugArg::Yes) => DebugCommand::Yes,
        },
        max_memory_policy: args
            .max_memory_policy
            .clone()
            .or(file.max_memory_policy.clone())
            .unwrap_or_else(|| defaults.max_memory_policy.clone()),
        log_level: log.level.clone(),
        config_file: config_file.map_or_else(String::new, |path| path.display().to_string()),
        ..defaults
    };
    let pidfile = args.pidfile.clone().or(file.pidfile.clone());
    Ok(Settings { engine: engine_settings(args, file, threads)?, server, log, pidfile })
}

fn engine_settings(args: &ServeArgs, file: File, threads: usize) -> Result<Config, CliError> {
    let mut config =
        Config::new(args.data.clone().or(file.data).unwrap_or_else(|| PathBuf::from("./data")));
    config.lock_wait = LOCK_WAIT;
    if let Some(scheme) = args.checkpoint.clone().or(file.checkpoint) {
        config.checkpoint = scheme;
    }
    if let Some(point) = args.point_of_consistency.or(file.point_of_consistency) {
        config.quiesce_for = match point {
            PointArg::Commits => QuiesceFor::Commits,
            PointArg::Transactions => QuiesceFor::Transactions,
        };
    }
    if let Some(Interval(every)) = args.checkpoint_every.or(file.checkpoint_every.0) {
        config.checkpoint_every = every;
    }
    // Zero means no limit.
    let pace = args.checkpoint_pace.or(file.checkpoint_pace.0);
    config.checkpoint_pace = pace.filter(|&bytes_per_s| bytes_per_s > 0);
    if let Some(codec) = args.compress.clone().or(file.compress) {
        config.codec = codec_named(&codec)?;
    }
    if let Some(keep) = args.keep_checkpoints.or(file.keep_checkpoints) {
        config.keep_checkpoints = keep;
    }
    if let Some(links) = args.merge_after.or(file.merge_after) {
        config.merge_after = (links > 0).then_some(links);
    }
    if let Some(limit) = args.log_limit.or(file.log_limit.0) {
        // Zero means no limit.
        config.log_limit_bytes = if limit == 0 { u64::MAX } else { limit };
    }
    if let Some(journal) = args.journal.clone().or(file.journal) {
        config.journal = journal;
    }
    config.log_calls = args.log_calls.or(file.log_calls).unwrap_or(false);
    config.serve_while_loading = !args.wait_for_load.or(file.wait_for_load).unwrap_or(false);
    let durability = args.durability.or(file.durability);
    config.durability = match durability.unwrap_or(DurabilityArg::Relaxed) {
        DurabilityArg::Relaxed => Durability::Relaxed,
        DurabilityArg::Strict => Durability::Strict,
    };
    if let Some(limit) = args.max_memory.or(file.max_memory.0) {
        config.max_memory_bytes = usize::try_from(limit).unwrap_or(usize::MAX);
    }
    if args.pages.or(file.pages) == Some(PagesArg::Small) {
        config.environment.space = Arc::new(AddressSpace::of_pages(PageSize::Small));
    }
    let pool = args.stable_pool.or(file.stable_pool.0);
    let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    config.stable_pool_bytes = pool.map(bytes);
    config.pool_bytes = args.pool.or(file.pool.0).map(bytes);
    config.page_bytes = args.page_size.or(file.page_size.0).map(bytes);
    let lock_timeout = args.lock_timeout.or(file.lock_timeout.0);
    config.lock_timeout = lock_timeout.map_or(Some(LOCK_TIMEOUT), |Interval(limit)| limit);
    config.logs = threads.clamp(1, 64);
    config.sessions = threads + 11;
    Ok(config)
}

fn level_named(name: Option<&str>) -> Result<LogLevel, CliError> {
    let Some(name) = name else {
        return Ok(LogLevel::default());
    };
    LogLevel::named(name).ok_or_else(|| {
        let known: Vec<_> = LogLevel::names().collect();
        let reason = format!("{name:?} is unknown; known are: {}", known.join(", "));
        CliError::Option { option: "log-level", reason }
    })
}

fn codec_named(name: &str) -> Result<Codec, CliError> {
    let unknown = |unknown: stillpoint::UnknownName| CliError::Option {
        option: "compress",
        reason: unknown.to_string(),
    };
    name.parse().map_err(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_used_is_told_by_line_field_and_form() {
        for (text, parts) in [
            ("[]", &["is no JSON object", "{\"port\": 6380}"][..]),
            ("", &["is no JSON object"]),
            ("{\"checkpoint_every\": 60}", &["checkpoint_every: ", "\"60s\"", "line 1 column"]),
            ("{\n\"max_memory\": 1}", &["max_memory: ", "\"4GiB\"", "line 2"]),
            ("{\"log_limit\": \"4 parsecs\"}", &["log_limit: ", "is not a size"]),
            ("{\"port\": 70000}", &["port: ", "70000", "line 1"]),
            ("{\"durability\": \"none\"}", &["durability: ", "`strict`"]),
            ("{\"prot\": 1}", &["prot", "unknown field", "`port`"]),
            ("{\"port\": 1} {}", &["trailing characters"]),
        ] {
            let error = parse_file(text.as_bytes()).expect_err(text);
            for part in parts {
                assert!(error.contains(part), "{text}: {error:?} lacks {part:?}");
            }
        }
    }

    #[test]
    fn a_file_is_read_with_its_units() {
        let text = "{\"checkpoint_every\": \"5m\", \"log_limit\": \"1GiB\", \"max_memory\": null}";
        let file = parse_file(text.as_bytes()).expect("right");
        assert_eq!(file.checkpoint_every.0, Some(Interval(Some(Duration::from_secs(300)))));
        assert_eq!((file.log_limit.0, file.max_memory.0), (Some(1 << 30), None));
    }

    /// What a point of consistency waits for is an option, and a field of the file. The option wins.
    #[test]
    fn the_form_of_the_point_of_consistency_is_chosen() {
        let of = |args: &ServeArgs, text: &str| {
            let file = parse_file(text.as_bytes()).expect("right");
            engine_settings(args, file, 1).expect("right").quiesce_for
        };
        let none = ServeArgs::default();
        let point_of_consistency = Some(PointArg::Transactions);
        let asked = ServeArgs { point_of_consistency, ..ServeArgs::default() };
        assert_eq!(of(&none, "{}"), QuiesceFor::Commits);
        assert_eq!(of(&asked, "{}"), QuiesceFor::Transactions);
        let file = "{\"point_of_consistency\": \"transactions\"}";
        assert_eq!(of(&none, file), QuiesceFor::Transactions);
        assert_eq!(of(&asked, "{\"point_of_consistency\": \"commits\"}"), QuiesceFor::Transactions);
        let error = parse_file(b"{\"point_of_consistency\": \"locks\"}").expect_err("no form");
        assert!(error.contains("point_of_consistency") && error.contains("commits"), "{error}");
    }

    #[test]
    fn a_pace_or_a_limit_of_zero_is_none() {
        let args =
            ServeArgs { checkpoint_pace: Some(0), log_limit: Some(0), ..ServeArgs::default() };
        let config = engine_settings(&args, File::default(), 1).expect("right");
        assert_eq!((config.checkpoint_pace, config.log_limit_bytes), (None, u64::MAX));
        let args = ServeArgs { checkpoint_pace: Some(7), ..args };
        let config = engine_settings(&args, File::default(), 1).expect("right");
        assert_eq!(config.checkpoint_pace, Some(7));
    }
}
