//! CONFIG: parameters as a table of rows, some of which may be changed.

use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::time::Duration;

use stillpoint::CheckpointPolicy;

use super::help::HELP;
use crate::args::is;
use crate::config::DATABASES;
use crate::error::{CmdError, CmdResult, quoted};
use crate::glob::{COMMAND_BUDGET, matches};
use crate::keyspace::Policy;
use crate::log::LogLevel;
use crate::resp::{Args, parse_i64, parse_u64};
use crate::session::context::Context;
use crate::session::row::{ADM, ANY, Container, NONE, Pure, SERVER, row, sub, with_secrets};
use crate::session::spec::{Flags, Secrets, Spec};
use crate::shared::Shared;
use crate::shared::registry::RELAXED;

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    row("config", -2, Flags::NONE, NONE, SERVER, "2.0.0", Container(CONFIG, None), "Parameters."),
];

#[rustfmt::skip] // each row takes one line
const CONFIG: &[Spec] = &[
    sub("get", -3, ADM.or(ANY), "2.0.0", Pure(get), "Returns parameters."),
    HELP,
    sub("resetstat", 2, ADM.or(ANY), "2.0.0", Pure(resetstat), "Resets the statistics."),
    sub("rewrite", 2, ADM.or(ANY), "2.8.0", Pure(rewrite), "Writes the parameters to the configuration file."),
    with_secrets(sub("set", -4, ADM.or(ANY), "2.0.0", Pure(set), "Changes parameters."), Secrets::After(&[("requirepass", 1), ("masterauth", 1), ("masteruser", 1), ("tls-key-file-pass", 1), ("tls-client-key-file-pass", 1)])),
];

type Getter = fn(&Shared) -> String;
/// A change that was read and cannot fail any more.
type Change<'a> = Box<dyn FnOnce(&Shared) + 'a>;
/// Reads a value; changes nothing.
type Reader = for<'a> fn(&Shared, &'a [u8]) -> Result<Change<'a>, String>;

/// One parameter.
struct Param {
    name: &'static str,
    get: Getter,
    /// `None`: the parameter is given at the start only.
    set: Option<Reader>,
}

fn change<'a>(apply: impl FnOnce(&Shared) + 'a) -> Result<Change<'a>, String> {
    Ok(Box::new(apply))
}

/// Name of the scheme, whose alias the start may have named.
fn checkpoint_scheme(s: &Shared) -> &'static str {
    let named = &s.keyspace.engine().config().checkpoint;
    stillpoint::checkpoint_scheme_named(named).expect("the engine runs with this scheme")
}

fn yes_no(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

fn parse_yes_no(value: &[u8]) -> Result<bool, String> {
    match () {
        () if is(value, "yes") => Ok(true),
        () if is(value, "no") => Ok(false),
        () => Err("argument must be 'yes' or 'no'".to_owned()),
    }
}

fn number(value: &[u8], min: u64, max: u64) -> Result<u64, String> {
    parse_u64(value)
        .filter(|n| (min..=max).contains(n))
        .ok_or_else(|| format!("argument must be between {min} and {max} inclusive"))
}

/// A size with an optional unit, as Redis reads it: k = 1000, kb = 1024, and so on. The units KiB to
/// TiB of the command line are known, too.
fn size(value: &[u8]) -> Result<u64, String> {
    let digits = value.iter().take_while(|b| b.is_ascii_digit()).count();
    let unit = value[digits..].to_ascii_lowercase();
    let factor: u64 = match unit.as_slice() {
        b"" | b"b" => 1,
        b"k" => 1000,
        b"kb" | b"kib" => 1 << 10,
        b"m" => 1_000_000,
        b"mb" | b"mib" => 1 << 20,
        b"g" => 1_000_000_000,
        b"gb" | b"gib" => 1 << 30,
        b"tib" => 1 << 40,
        _ => return Err("argument must be a memory value".to_owned()),
    };
    let amount = parse_u64(&value[..digits]).and_then(|n| n.checked_mul(factor));
    amount.ok_or_else(|| "argument must be a memory value".to_owned())
}

/// A parameter with one possible value. Setting the parameter to that value is no error.
macro_rules! fixed {
    ($name:literal, $value:expr) => {
        Param {
            name: $name,
            get: |_| $value.to_owned(),
            set: Some(|_, value| {
                if is(value, $value) {
                    return change(|_| ());
                }
                Err(format!("this server has it as '{}' only", $value))
            }),
        }
    };
}

/// Up to where a collection is small: a number, or bytes with a unit.
macro_rules! small_limit {
    ($name:literal, $read:expr, $field:ident) => {
        Param {
            name: $name,
            get: |s| s.params.$field.load(RELAXED).to_string(),
            set: Some(|_, value| {
                let most = $read(value)?;
                change(move |s| s.params.$field.store(most, RELAXED))
            }),
        }
    };
}

/// A number that is kept for clients which set it.
macro_rules! kept {
    ($name:literal, $min:expr, $field:ident) => {
        Param {
            name: $name,
            get: |s| s.params.$field.load(RELAXED).to_string(),
            set: Some(|_, value| {
                let number = integer(value, $min..=i64::from(i32::MAX))?;
                change(move |s| s.params.$field.store(number, RELAXED))
            }),
        }
    };
}

/// An integer within a range. The errors are those of Redis.
fn integer(value: &[u8], within: RangeInclusive<i64>) -> Result<i64, String> {
    let number = parse_i64(value).ok_or("argument couldn't be parsed into an integer")?;
    if within.contains(&number) {
        return Ok(number);
    }
    Err(format!("argument must be between {} and {} inclusive", within.start(), within.end()))
}

/// A number of elements.
fn elements(value: &[u8]) -> Result<u64, String> {
    integer(value, 0..=i64::MAX).map(i64::cast_unsigned)
}

/// A value given at the start.
macro_rules! at_start {
    ($name:literal, $get:expr) => {
        Param { name: $name, get: $get, set: None }
    };
}

static PARAMS: &[Param] = &[
    fixed!("activerehashing", "yes"),
    fixed!("appendfilename", "appendonly.aof"),
    at_start!("appendfsync", |s| if s.is_strict() { "always" } else { "everysec" }.to_owned()),
    at_start!("appendonly", |s| yes_no(s.has_journal())),
    at_start!("bind", |s| s.config.bind.clone()),
    Param {
        name: "checkpoint",
        get: |s| checkpoint_scheme(s).to_owned(),
        set: Some(|s, value| {
            let present = checkpoint_scheme(s);
            let wanted = String::from_utf8_lossy(value).to_ascii_lowercase();
            match stillpoint::checkpoint_scheme_named(&wanted) {
                Ok(name) if name == present => change(|_| ()),
                Ok(_) => Err(format!(
                    "records in memory are laid out for '{present}'; restart with --checkpoint to choose another"
                )),
                Err(unknown) => Err(unknown),
            }
        }),
    },
    Param {
        name: "checkpoint-every",
        get: |s| seconds(policy(s).every).to_string(),
        set: Some(|_, v| {
            let every = number(v, 0, i32::MAX as u64)?;
            // Zero means never.
            let every = (every > 0).then(|| Duration::from_secs(every));
            change(move |s| set_policy(s, |policy| policy.every = every))
        }),
    },
    Param {
        name: "checkpoint-pace",
        get: |s| policy(s).pace.unwrap_or(0).to_string(),
        set: Some(|_, v| {
            // Zero means as fast as the disk.
            let pace = Some(size(v)?).filter(|&bytes_per_s| bytes_per_s > 0);
            change(move |s| set_policy(s, |policy| policy.pace = pace))
        }),
    },
    at_start!("client-output-buffer-limit", |s| format!(
        "normal {} 0 0 slave 0 0 0 pubsub 0 0 0",
        s.config.output_buffer_bytes
    )),
    at_start!("client-query-buffer-limit", |s| s.config.query_buffer_bytes.to_string()),
    fixed!("cluster-enabled", "no"),
    fixed!("daemonize", "no"),
    at_start!("databases", |_| DATABASES.to_string()),
    fixed!("dbfilename", "MANIFEST"),
    at_start!("dir", |s| s.keyspace.engine().config().data.display().to_string()),
    at_start!("enable-debug-command", |s| s.config.debug_command.as_str().to_owned()),
    small_limit!("hash-max-listpack-entries", elements, hash_max_entries),
    small_limit!("hash-max-listpack-value", size, hash_max_value),
    small_limit!("hash-max-ziplist-entries", elements, hash_max_entries),
    small_limit!("hash-max-ziplist-value", size, hash_max_value),
    fixed!("hll-sparse-max-bytes", "3000"),
    fixed!("hz", "10"),
    at_start!("io-threads", |s| s.config.threads.to_string()),
    Param {
        name: "latency-monitor-threshold",
        get: |s| s.params.latency_threshold_ms.load(RELAXED).to_string(),
        set: Some(|_, v| {
            let ms = number(v, 0, i64::MAX as u64)?;
            change(move |s| s.params.latency_threshold_ms.store(ms, RELAXED))
        }),
    },
    fixed!("lazyfree-lazy-user-flush", "yes"),
    kept!("list-compress-depth", 0, list_compress_depth),
    kept!("list-max-listpack-size", i64::from(i32::MIN), list_max_size),
    kept!("list-max-ziplist-size", i64::from(i32::MIN), list_max_size),
    Param {
        name: "log-limit",
        get: |s| match policy(s).log_limit_bytes {
            u64::MAX => "0".to_owned(),
            bytes => bytes.to_string(),
        },
        set: Some(|_, v| {
            // Zero means no limit.
            let bytes = Some(size(v)?).filter(|&bytes| bytes > 0).unwrap_or(u64::MAX);
            change(move |s| set_policy(s, |policy| policy.log_limit_bytes = bytes))
        }),
    },
    Param {
        name: "loglevel",
        get: |s| s.config.log_level.name().to_owned(),
        set: Some(|_, v| {
            let level = LogLevel::position(v)?;
            change(move |s| s.config.log_level.set(level))
        }),
    },
    Param {
        name: "maxclients",
        get: |s| s.params.maxclients.load(RELAXED).to_string(),
        set: Some(|s, v| {
            let clients = number(v, 1, s.config.clients_max as u64)? as usize;
            change(move |s| s.params.maxclients.store(clients, RELAXED))
        }),
    },
    Param {
        name: "maxmemory",
        get: |s| s.max_memory_bytes().to_string(),
        set: Some(|_, v| {
            let bytes = match usize::try_from(size(v)?).unwrap_or(usize::MAX) {
                // Zero means no limit, as in Redis.
                0 => usize::MAX,
                bytes => bytes,
            };
            change(move |s| s.keyspace.engine().set_max_memory_bytes(bytes))
        }),
    },
    Param {
        name: "maxmemory-clients",
        get: |s| match s.client_memory.limit() {
            u64::MAX => "0".to_owned(),
            bytes => bytes.to_string(),
        },
        set: Some(|_, v| {
            // Zero means no limit, as in Redis.
            let bytes = Some(size(v)?).filter(|&bytes| bytes > 0).unwrap_or(u64::MAX);
            change(move |s| s.client_memory.set_limit(bytes))
        }),
    },
    Param {
        name: "maxmemory-policy",
        get: |s| s.keyspace.eviction.policy().name.to_owned(),
        set: Some(|s, v| {
            let policy = Policy::named(&String::from_utf8_lossy(v))?;
            s.keep_marks(policy)?;
            change(move |s| s.keyspace.eviction.set_policy(policy, s.config.clock.wall_ms()))
        }),
    },
    Param {
        name: "maxmemory-samples",
        get: |s| s.keyspace.eviction.samples().to_string(),
        set: Some(|_, v| {
            let samples = number(v, 1, 10_000)? as usize;
            change(move |s| s.keyspace.eviction.set_samples(samples))
        }),
    },
    Param {
        name: "merge-after",
        get: |s| policy(s).merge_after.unwrap_or(0).to_string(),
        set: Some(|_, v| {
            // Zero means never.
            let links = Some(number(v, 0, 1 << 20)? as usize).filter(|&links| links > 0);
            if links == Some(1) {
                return Err("argument must be 0 or at least 2".to_owned());
            }
            change(move |s| set_policy(s, |policy| policy.merge_after = links))
        }),
    },
    fixed!("notify-keyspace-events", ""),
    at_start!("port", |s| s.port.to_string()),
    Param {
        name: "protected-mode",
        get: |s| yes_no(s.params.protected_mode.load(RELAXED)),
        set: Some(|_, v| {
            let is_on = parse_yes_no(v)?;
            change(move |s| s.params.protected_mode.store(is_on, RELAXED))
        }),
    },
    Param {
        name: "proto-max-bulk-len",
        get: |s| s.max_bulk_bytes().to_string(),
        set: Some(|_, v| {
            let bytes = size(v)?;
            if !((1 << 20)..=(512 << 20)).contains(&bytes) {
                return Err("argument must be between 1048576 and 536870912 inclusive".to_owned());
            }
            change(move |s| s.params.max_bulk_bytes.store(bytes, RELAXED))
        }),
    },
    Param {
        name: "requirepass",
        // The password is kept as a digest only.
        get: |s| if s.auth.is_required() { "(hidden)" } else { "" }.to_owned(),
        set: Some(|_, v| change(move |s| s.auth.set_password(v))),
    },
    Param {
        name: "save",
        get: |s| match policy(s).every {
            None => String::new(),
            Some(every) => format!("{} 1", seconds(Some(every))),
        },
        set: Some(|_, v| {
            let every = save_points(v)?;
            change(move |s| set_policy(s, |policy| policy.every = every))
        }),
    },
    small_limit!("set-max-intset-entries", elements, set_max_entries),
    Param {
        name: "slowlog-log-slower-than",
        get: |s| s.params.slowlog_slower_us.load(RELAXED).to_string(),
        set: Some(|_, v| {
            let us = parse_i64(v).filter(|&us| us >= -1);
            let us = us.ok_or("argument must be between -1 and 9223372036854775807 inclusive")?;
            change(move |s| s.params.slowlog_slower_us.store(us, RELAXED))
        }),
    },
    Param {
        name: "slowlog-max-len",
        get: |s| s.params.slowlog_max_len.load(RELAXED).to_string(),
        set: Some(|_, v| {
            let entries = number(v, 0, 1 << 20)? as usize;
            change(move |s| s.params.slowlog_max_len.store(entries, RELAXED))
        }),
    },
    at_start!("tcp-keepalive", |s| s.config.tcp_keepalive_s.to_string()),
    Param {
        name: "timeout",
        get: |s| s.params.timeout_s.load(RELAXED).to_string(),
        set: Some(|_, v| {
            let seconds = number(v, 0, i32::MAX as u64)?;
            change(move |s| s.params.timeout_s.store(seconds, RELAXED))
        }),
    },
    fixed!("unixsocket", ""),
    small_limit!("zset-max-listpack-entries", elements, zset_max_entries),
    small_limit!("zset-max-listpack-value", size, zset_max_value),
    small_limit!("zset-max-ziplist-entries", elements, zset_max_entries),
    small_limit!("zset-max-ziplist-value", size, zset_max_value),
];

fn policy(shared: &Shared) -> CheckpointPolicy {
    shared.keyspace.engine().checkpoint_policy()
}

/// Changes a part of the policy. The parameter has checked the value.
fn set_policy(shared: &Shared, change: impl FnOnce(&mut CheckpointPolicy)) {
    if let Err(error) = shared.keyspace.engine().change_checkpoint_policy(change) {
        tracing::error!(%error, "a parameter takes a value that the engine refuses");
    }
}

/// Whole seconds, rounded up, so that a period shorter than a second is not shown as zero. Zero for
/// never.
fn seconds(every: Option<Duration>) -> u64 {
    every.map_or(0, |every| every.as_secs_f64().ceil() as u64)
}

/// The period that Redis's `save` asks for: pairs of seconds and changes. Redis saves when one of the
/// pairs holds. Here the shortest time counts, and one change is enough.
fn save_points(value: &[u8]) -> Result<Option<Duration>, String> {
    let words: Vec<&[u8]> =
        value.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).collect();
    let numbers: Option<Vec<u64>> = words.iter().map(|word| parse_u64(word)).collect();
    let pairs = numbers.filter(|numbers| numbers.len().is_multiple_of(2));
    let pairs = pairs.ok_or("Invalid save parameters")?;
    let times = pairs.chunks(2).map(|pair| pair[0]);
    let in_range = |&s: &u64| (1..=i32::MAX as u64).contains(&s);
    if !times.clone().all(|s| in_range(&s)) {
        return Err("Invalid save parameters".to_owned());
    }
    Ok(times.min().map(Duration::from_secs))
}

fn get(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let mut budget = COMMAND_BUDGET;
    let mut found = Vec::new();
    for param in PARAMS {
        for pattern in args.from(2) {
            let pattern = pattern.to_ascii_lowercase();
            if matches(&pattern, param.name.as_bytes(), &mut budget)
                .map_err(|_| CmdError::PATTERN)?
            {
                found.push(param);
                break;
            }
        }
    }
    ctx.reply.map(found.len());
    for param in found {
        ctx.reply.bulk(param.name.as_bytes());
        ctx.reply.bulk((param.get)(ctx.shared).as_bytes());
    }
    Ok(())
}

/// All values are read before the first of them is applied, so a refused command changes nothing.
fn set(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    if !args.len().is_multiple_of(2) {
        return Err(CmdError::fixed("ERR wrong number of arguments for 'config|set' command"));
    }
    let mut params: Vec<(&Param, Reader, &[u8])> = Vec::new();
    for i in (2..args.len()).step_by(2) {
        let (name, value) = (args.at(i), args.at(i + 1));
        let shown = quoted(name, 128);
        let Some(param) = PARAMS.iter().find(|param| is(name, param.name)) else {
            return Err(CmdError::text(format!(
                "ERR Unknown option or number of arguments for CONFIG SET - '{shown}'"
            )));
        };
        if params.iter().any(|(other, ..)| other.name == param.name) {
            return Err(refused(param, "duplicate parameter"));
        }
        let reader = param.set.ok_or_else(|| refused(param, "can't set immutable config"))?;
        params.push((param, reader, value));
    }
    let read = params.into_iter().map(|(param, reader, value)| {
        reader(ctx.shared, value).map_err(|why| refused(param, &why))
    });
    let changes: Vec<Change<'_>> = read.collect::<Result<_, _>>()?;
    for apply in changes {
        apply(ctx.shared);
    }
    ctx.reply.ok();
    Ok(())
}

fn refused(param: &Param, why: &str) -> CmdError {
    let name = param.name;
    CmdError::text(format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"))
}

fn resetstat(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    for worker in &ctx.shared.workers {
        worker.reset();
    }
    ctx.shared.keyspace.reset_counts();
    let totals = &ctx.shared.totals;
    for counter in [&totals.connections, &totals.rejected_connections] {
        counter.store(0, Ordering::Relaxed);
    }
    ctx.reply.ok();
    Ok(())
}

/// The server knows no files, so there is nothing to write the changes to.
fn rewrite(_: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    Err(CmdError::fixed("ERR The server is running without a config file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_redis_reads_them() {
        assert_eq!(size(b"1kb"), Ok(1024));
        assert_eq!(size(b"2K"), Ok(2000));
        assert_eq!(size(b"1gb"), Ok(1 << 30));
        assert_eq!((size(b"4GiB"), size(b"1TiB")), (Ok(4 << 30), Ok(1 << 40)));
        assert_eq!((size(b"3KiB"), size(b"5mib")), (Ok(3 << 10), Ok(5 << 20)));
        assert!(size(b"x").is_err());
        assert!(size(b"1zb").is_err());
        assert!(size(b"99999999999999999999gb").is_err());
    }

    #[test]
    fn the_shortest_time_of_save_counts() {
        assert_eq!(save_points(b""), Ok(None));
        assert_eq!(save_points(b"3600 1 300 100 60 10000"), Ok(Some(Duration::from_secs(60))));
        for wrong in ["60", "60 1 5", "0 1", "x 1", "60 y", "99999999999 1"] {
            assert!(save_points(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rows_are_sorted_and_unique() {
        let names: Vec<_> = PARAMS.iter().map(|p| p.name).collect();
        let mut sorted = names.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(names, sorted);
    }
}
