//! INFO: the fields that dashboards read. Fields about RDB files describe checkpoints here.

use std::collections::BTreeMap;
use std::fmt::Write;

use stillpoint::{CheckpointDone, CheckpointStatus, FileHolder, Phase};

use super::connection::REDIS_VERSION;
use crate::args::is;
use crate::config::DATABASES;
use crate::error::CmdResult;
use crate::resp::Args;
use crate::session::context::{Context, LoadingContext};
use crate::session::row::{ANY, NONE, Pure, SERVER, row, while_loading};
use crate::session::spec::Spec;
use crate::shared::Shared;
use crate::shared::loading::LoadingProgress;
use crate::shared::registry::{ClientInfo, RELAXED};
use crate::shared::stats::{CommandStats, LATENCY_BUCKETS, WorkerStats};

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    while_loading(row("info", -1, ANY, NONE, SERVER, "1.0.0", Pure(info), "Returns numbers about the server."), info_while_loading),
];

type Writer = fn(&mut String, &Context<'_>);

/// One section.
struct Section {
    name: &'static str,
    /// Part of a plain `INFO`.
    by_default: bool,
    write: Writer,
}

static SECTIONS: &[Section] = &[
    Section { name: "Server", by_default: true, write: server },
    Section { name: "Clients", by_default: true, write: clients },
    Section { name: "Memory", by_default: true, write: memory },
    Section { name: "Persistence", by_default: true, write: persistence },
    Section { name: "Stats", by_default: true, write: stats },
    Section { name: "Replication", by_default: true, write: replication },
    Section { name: "CPU", by_default: true, write: cpu },
    Section { name: "Modules", by_default: true, write: |_, _| {} },
    Section { name: "Commandstats", by_default: false, write: commandstats },
    Section { name: "Errorstats", by_default: true, write: errorstats },
    Section { name: "Latencystats", by_default: false, write: latencystats },
    Section { name: "Cluster", by_default: true, write: cluster },
    Section { name: "Keyspace", by_default: true, write: keyspace },
];

impl Section {
    /// The sections that the arguments name.
    fn chosen(args: Args<'_>) -> Vec<&'static Self> {
        let named = |section: &&Self| is_named(args, section.name, section.by_default);
        SECTIONS.iter().filter(named).collect()
    }
}

fn info(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let mut text = String::new();
    write_info(&mut text, ctx, &Section::chosen(args));
    ctx.reply.verbatim(&text);
    Ok(())
}

/// `INFO` while data is loaded, when the engine's numbers are not known yet.
fn info_while_loading(ctx: &mut LoadingContext<'_>, args: Args<'_>) -> CmdResult {
    ctx.reply.verbatim(&loading_info(args, ctx.progress));
    Ok(())
}

/// True if the arguments of `INFO` name a section.
fn is_named(args: Args<'_>, name: &str, by_default: bool) -> bool {
    args.len() == 1 && by_default
        || args.from(1).any(|arg| {
            is(arg, "all")
                || is(arg, "everything")
                || is(arg, "default") && by_default
                || is(arg, name)
        })
}

/// Writes the sections.
fn write_info(out: &mut String, ctx: &Context<'_>, sections: &[&'static Section]) {
    for (i, section) in sections.iter().enumerate() {
        if i > 0 {
            out.push_str("\r\n");
        }
        out.push_str(&format!("# {}\r\n", section.name));
        (section.write)(out, ctx);
    }
}

/// Appends a line `name:value`.
fn field(out: &mut String, name: &str, value: impl std::fmt::Display) {
    // Writing to a string cannot fail.
    let _ = write!(out, "{name}:{value}\r\n");
}

/// The text of `INFO` while data is loaded.
fn loading_info(args: Args<'_>, progress: &LoadingProgress) -> String {
    let mut out = String::new();
    if is_named(args, "Server", true) {
        out.push_str("# Server\r\n");
        program(&mut out);
        field(&mut out, "tcp_port", progress.port);
        field(&mut out, "uptime_in_seconds", progress.uptime_s());
        out.push_str("\r\n");
    }
    if is_named(args, "Memory", true) {
        out.push_str("# Memory\r\n");
        field(&mut out, "used_memory_rss", stillpoint_io::resident_bytes());
        out.push_str("\r\n");
    }
    if is_named(args, "Persistence", true) {
        out.push_str("# Persistence\r\n");
        loading(&mut out, progress);
    }
    out
}

/// Writes the progress of loading, in bytes of the present stage.
fn loading(out: &mut String, progress: &LoadingProgress) {
    let now = progress.now();
    let (done, total) = now.map_or((0, 0), |now| (now.bytes_done, now.bytes_total));
    let share = if total == 0 { 0.0 } else { done as f64 / total as f64 };
    let left = now.and_then(|now| now.remaining());
    field(out, "loading", 1);
    field(out, "async_loading", 0);
    field(out, "loading_start_time", progress.started_ms / 1000);
    field(out, "loading_stage", now.map_or("opening", |now| now.stage.as_str()));
    field(out, "loading_total_bytes", total);
    field(out, "loading_loaded_bytes", done);
    field(out, "loading_loaded_perc", format!("{:.2}", share * 100.0));
    field(out, "loading_eta_seconds", left.map_or(1, |left| left.as_secs()));
}

/// A number of bytes for people, as Redis prints it.
fn human(bytes: u64) -> String {
    const UNITS: [(&str, u64); 4] =
        [("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)];
    for (unit, size) in UNITS {
        if bytes >= size {
            return format!("{:.2}{unit}", bytes as f64 / size as f64);
        }
    }
    format!("{bytes}B")
}

fn uptime_s(shared: &Shared) -> u64 {
    shared.config.clock.wall_ms().saturating_sub(shared.started_ms) / 1000
}

/// Fields that do not change while the program runs.
fn program(out: &mut String) {
    field(out, "redis_version", REDIS_VERSION);
    field(out, "redis_git_sha1", "00000000");
    field(out, "redis_git_dirty", 0);
    field(out, "redis_build_id", "stillpoint");
    field(out, "redis_mode", "standalone");
    field(out, "stillpoint_version", env!("CARGO_PKG_VERSION"));
    field(out, "os", std::env::consts::OS);
    field(out, "arch_bits", usize::BITS);
    field(out, "monotonic_clock", "POSIX clock_gettime");
    field(out, "multiplexing_api", "epoll");
    field(out, "process_id", std::process::id());
}

fn server(out: &mut String, ctx: &Context<'_>) {
    let shared = ctx.shared;
    program(out);
    field(out, "process_supervised", "no");
    field(out, "run_id", &shared.run_id);
    field(out, "tcp_port", shared.port);
    field(out, "server_time_usec", shared.config.clock.wall_ms() * 1000);
    field(out, "uptime_in_seconds", uptime_s(shared));
    field(out, "uptime_in_days", uptime_s(shared) / 86_400);
    field(out, "hz", 10);
    field(out, "configured_hz", 10);
    field(out, "executable", "stillpoint");
    field(out, "config_file", &shared.config.config_file);
    field(out, "io_threads_active", u8::from(shared.config.threads > 1));
    field(out, "event_loops", shared.config.threads);
}

fn clients(out: &mut String, ctx: &Context<'_>) {
    let shared = ctx.shared;
    let all = shared.registry.all();
    field(out, "connected_clients", all.len());
    field(out, "cluster_connections", 0);
    field(out, "maxclients", shared.params.maxclients.load(RELAXED));
    let biggest = |of: fn(&ClientInfo) -> usize| all.iter().map(|info| of(info)).max().unwrap_or(0);
    let input = biggest(|info| info.input_bytes.load(RELAXED));
    let output = biggest(|info| info.output_bytes.load(RELAXED));
    field(out, "client_recent_max_input_buffer", input);
    field(out, "client_recent_max_output_buffer", output);
    let for_flush = all.iter().filter(|info| info.flush_wait.is_on()).count();
    field(out, "blocked_clients", shared.keyspace.waiters.len() + for_flush);
    field(out, "tracking_clients", 0);
    field(out, "clients_in_timeout_table", 0);
}

fn memory(out: &mut String, ctx: &Context<'_>) {
    let shared = ctx.shared;
    let used = shared.used_memory();
    let peak = shared.totals.peak_memory.load(RELAXED).max(used);
    let resident = stillpoint_io::resident_bytes();
    let total = stillpoint_io::total_memory_bytes();
    let dataset = shared.data_bytes();
    for (name, bytes) in [
        ("used_memory", used),
        ("used_memory_rss", resident),
        ("used_memory_peak", peak),
        ("total_system_memory", total),
        ("maxmemory", shared.max_memory_bytes()),
    ] {
        field(out, name, bytes);
        field(out, &format!("{name}_human"), human(bytes));
    }
    field(out, "used_memory_dataset", dataset);
    field(out, "used_memory_overhead", used.saturating_sub(dataset));
    let buffers = shared.keyspace.engine().stats().journal.buffer_bytes;
    let startup = shared.startup_bytes;
    field(out, "used_memory_startup", startup);
    field(out, "used_memory_log_buffers", buffers);
    field(
        out,
        "used_memory_peak_perc",
        format!("{:.2}%", used as f64 / peak.max(1) as f64 * 100.0),
    );
    field(out, "used_memory_lua", 0);
    field(out, "used_memory_scripts", 0);
    field(out, "maxmemory_policy", shared.keyspace.eviction.policy().name);
    // The program itself counts as used memory. Otherwise a small store would look fragmented.
    let known = used + startup + buffers;
    let ratio = resident as f64 / known.max(1) as f64;
    field(out, "mem_fragmentation_ratio", format!("{ratio:.2}"));
    field(out, "mem_fragmentation_bytes", resident as i64 - known as i64);
    field(out, "mem_clients_normal", shared.client_memory.total());
    field(out, "mem_allocator", "slabs");
    field(out, "active_defrag_running", 0);
    field(out, "lazyfree_pending_objects", 0);
}

fn persistence(out: &mut String, ctx: &Context<'_>) {
    let shared = ctx.shared;
    let stats = shared.keyspace.engine().stats();
    let state = &stats.checkpoints;
    field(out, "loading", 0);
    let load = shared.keyspace.engine().loading();
    field(out, "async_loading", u8::from(!load.is_done));
    field(out, "load_total_bytes", load.bytes_total);
    field(out, "load_loaded_bytes", load.bytes_done);
    field(out, "load_index_bytes", load.index_bytes);
    field(out, "load_keys_asked", load.keys_asked);
    field(out, "load_blocks_read", load.blocks_read);
    field(out, "load_records", load.records);
    field(out, "load_seconds", load.elapsed.as_secs());
    field(out, "load_last_error", load.failure.as_deref().unwrap_or(""));
    field(out, "recovered_log_bytes", stats.recovered.log_bytes);
    let running = state.running.as_ref();
    field(out, "current_cow_size", 0);
    field(out, "current_save_keys_processed", running.map_or(0, |p| p.records));
    field(out, "rdb_changes_since_last_save", state.commits_since);
    field(out, "rdb_bgsave_in_progress", u8::from(running.is_some()));
    let last_ms = state.last_finished_ms.unwrap_or(shared.started_ms);
    field(out, "rdb_last_save_time", last_ms / 1000);
    let failed = state.last_error.is_some();
    field(out, "rdb_last_bgsave_status", if failed { "err" } else { "ok" });
    let last_s = state.last.as_ref().map(|done| done.duration.as_secs_f64().ceil() as i64);
    field(out, "rdb_last_bgsave_time_sec", last_s.unwrap_or(-1));
    let now_ns = shared.config.clock.monotonic_ns();
    let running_s = running.map(|p| seconds_since(p.started_ns, now_ns));
    field(out, "rdb_current_bgsave_time_sec", running_s.map_or(-1, u64::cast_signed));
    field(out, "rdb_saves", state.published);
    field(out, "rdb_last_cow_size", state.last.as_ref().map_or(0, |done| done.pool_bytes_max));
    field(out, "aof_enabled", u8::from(shared.has_journal()));
    field(out, "aof_rewrite_in_progress", 0);
    field(out, "aof_rewrite_scheduled", 0);
    // A checkpoint shortens the log, so its status is shown as that of a rewrite.
    field(out, "aof_last_bgrewrite_status", if failed { "err" } else { "ok" });
    let healthy = shared.keyspace.engine().health().is_ok();
    let taken = healthy && !shared.refusals.lock().are_going_on;
    field(out, "aof_last_write_status", if taken { "ok" } else { "err" });
    field(out, "aof_current_size", stats.journal.written_bytes);
    field(out, "checkpoint_scheme", &stats.checkpoint_scheme);
    field(out, "checkpoint_copies", stats.checkpoint_copies);
    field(out, "checkpoint_memory_bytes", stats.checkpoint_memory.total_bytes());
    field(out, "checkpoint_copies_bytes", stats.checkpoint_memory.copies_bytes);
    field(out, "checkpoint_marks_bytes", stats.checkpoint_memory.marks_bytes);
    field(out, "checkpoint_child_bytes", stats.checkpoint_child_bytes);
    field(out, "checkpoint_last_child_bytes", stats.checkpoint_last_child_bytes);
    field(out, "checkpoint_stable_pool_bytes", stats.stable_pool.bytes);
    field(out, "checkpoint_stable_used_bytes", stats.stable_pool.used_bytes);
    field(out, "checkpoint_failures", state.failures);
    field(out, "checkpoint_failures_in_row", state.failures_since);
    let next_s = state.next_attempt.map(|left| left.as_secs_f64().ceil() as i64);
    field(out, "checkpoint_next_attempt_sec", next_s.unwrap_or(-1));
    let age_s = shared.config.clock.wall_ms().saturating_sub(last_ms) / 1000;
    field(out, "checkpoint_age_seconds", age_s);
    field(out, "checkpoint_last_error", state.last_error.as_deref().unwrap_or(""));
    field(out, "checkpoint_overdue", u8::from(state.is_overdue));
    checkpoints(out, state);
    field(out, "journal", &stats.journal_scheme);
    field(out, "log_waits", stats.journal.waits);
    field(out, "log_refusals", stats.journal.refusals);
    let held = |holder: &stillpoint::Holder| format!("{}={}", holder.name, holder.bytes);
    let holders: Vec<String> = stats.log_holders.iter().map(held).collect();
    field(out, "log_holders", holders.join(","));
    field(out, "epoch", stats.epoch);
    field(out, "incarnation", stats.incarnation);
}

/// Whole seconds since a checkpoint began. A checkpoint that is about to begin has no time yet.
fn seconds_since(started_ns: u64, now_ns: u64) -> u64 {
    match started_ns {
        0 => 0,
        _ => now_ns.saturating_sub(started_ns) / 1_000_000_000,
    }
}

/// Writes the progress of the checkpoint under way, the figures of the last one, and the state of
/// the chain.
fn checkpoints(out: &mut String, state: &CheckpointStatus) {
    let ms = |duration: std::time::Duration| format!("{:.3}", duration.as_secs_f64() * 1000.0);
    let running = state.running.as_ref();
    let phase = running.map_or(Phase::Rest, |now| now.phase);
    field(out, "checkpoint_phase", format!("{phase:?}").to_lowercase());
    let kind = running.and_then(|now| now.kind);
    field(out, "checkpoint_kind", kind.map_or("", |kind| kind.as_str()));
    field(out, "checkpoint_written_bytes", running.map_or(0, |now| now.written_bytes));
    let last = state.last.as_ref();
    field(out, "checkpoint_last_kind", last.map_or("", |done| done.kind.as_str()));
    field(out, "checkpoint_last_epoch", last.map_or(0, |done| done.epoch));
    field(out, "checkpoint_last_records", last.map_or(0, |done| done.records));
    field(out, "checkpoint_last_changed_records", last.map_or(0, |done| done.changed));
    field(out, "checkpoint_last_bytes", last.map_or(0, |done| done.bytes));
    field(out, "checkpoint_last_waiting_bytes_max", last.map_or(0, |done| done.pool_bytes_max));
    field(out, "checkpoint_last_stable_bytes_max", last.map_or(0, |done| done.stable_peak_bytes));
    field(out, "checkpoint_last_waits", last.map_or(0, |done| done.waits));
    let or_none = |time: Option<std::time::Duration>| time.map_or_else(|| "-1".to_owned(), ms);
    let of_last = |time: fn(&CheckpointDone) -> std::time::Duration| or_none(last.map(time));
    field(out, "checkpoint_last_consistency_ms", of_last(|done| done.consistency));
    field(out, "checkpoint_last_stopped_ms", of_last(|done| done.stopped));
    field(out, "checkpoint_last_capture_ms", of_last(|done| done.capture));
    field(out, "checkpoint_last_drain_ms", of_last(|done| done.drain));
    field(out, "checkpoint_last_wait_ms", of_last(|done| done.waited));
    field(out, "checkpoint_last_ms", of_last(|done| done.duration));
    field(out, "checkpoint_last_ready_ms", or_none(last.and_then(|done| done.until_ready)));
    field(out, "checkpoint_chain_links", state.chain_links);
    field(out, "checkpoint_chain_bytes", state.chain_bytes);
    let held = |holder: &FileHolder| format!("{}={}", holder.name, holder.held_for.as_secs());
    field(out, "file_holders", state.holders.iter().map(held).collect::<Vec<_>>().join(","));
    field(out, "checkpoint_chain_links_max", state.chain_links_max);
    let is_long = state.chain_links > state.chain_links_max;
    field(out, "checkpoint_chain_too_long", u8::from(is_long));
    let merging = &state.merging;
    field(out, "merge_in_progress", u8::from(merging.running.is_some()));
    field(out, "merge_written_bytes", merging.running.map_or(0, |now| now.written_bytes));
    field(out, "merges", merging.done);
    field(out, "merge_failures", merging.failures);
    field(out, "merge_last_error", merging.last_error.as_deref().unwrap_or(""));
}

/// Writes numbers of commands and of bytes received and sent.
fn traffic(out: &mut String, shared: &Shared) {
    let totals = &shared.totals;
    field(out, "total_connections_received", totals.connections.load(RELAXED));
    field(out, "total_commands_processed", shared.sum(|w| w.commands.get()));
    let rates = shared.rates.lock();
    field(out, "instantaneous_ops_per_sec", rates.commands.per_second() as u64);
    field(out, "total_net_input_bytes", shared.sum(|w| w.net_in.get()));
    field(out, "total_net_output_bytes", shared.sum(|w| w.net_out.get()));
    let kbps = |rate: f64| format!("{:.2}", rate / 1024.0);
    field(out, "instantaneous_input_kbps", kbps(rates.net_in.per_second()));
    field(out, "instantaneous_output_kbps", kbps(rates.net_out.per_second()));
}

fn stats(out: &mut String, ctx: &Context<'_>) {
    let shared = ctx.shared;
    traffic(out, shared);
    let totals = &shared.totals;
    field(out, "rejected_connections", totals.rejected_connections.load(RELAXED));
    field(out, "sync_full", 0);
    field(out, "sync_partial_ok", 0);
    field(out, "sync_partial_err", 0);
    field(out, "expired_subkeys", shared.keyspace.expired_fields());
    field(out, "expired_keys", shared.keyspace.expired());
    field(out, "evicted_keys", shared.keyspace.evicted());
    field(out, "keyspace_hits", shared.keyspace.hits());
    field(out, "keyspace_misses", shared.keyspace.misses());
    field(out, "pubsub_channels", 0);
    field(out, "pubsub_patterns", 0);
    field(out, "latest_fork_usec", 0);
    field(out, "total_forks", 0);
    field(out, "total_error_replies", shared.sum(|w| w.errors.get()));
    let mut errors = BTreeMap::new();
    shared.workers.iter().for_each(|worker| worker.add_errors(&mut errors));
    let refused: u64 = ["OOM", "MISCONF"].iter().filter_map(|code| errors.get(*code)).sum();
    field(out, "refused_writes", refused);
    field(out, "accept_errors", totals.accept_errors.load(RELAXED));
    field(out, "total_reads_processed", shared.sum(|w| w.reads.get()));
    field(out, "total_writes_processed", shared.sum(|w| w.writes.get()));
    field(out, "evicted_clients", shared.client_memory.evicted.load(RELAXED));
    let flushes = shared.sum(|w| w.flushes.get());
    field(out, "log_flushes", flushes);
    let flush_us = shared.sum(|w| w.flush_nanoseconds.get()) / 1000;
    field(out, "log_flush_usec_mean", flush_us.checked_div(flushes).unwrap_or(0));
    field(
        out,
        "client_query_buffer_limit_disconnections",
        totals.query_limit_disconnects.load(RELAXED),
    );
    field(
        out,
        "client_output_buffer_limit_disconnections",
        totals.output_limit_disconnects.load(RELAXED),
    );
}

fn replication(out: &mut String, ctx: &Context<'_>) {
    let shared = ctx.shared;
    field(out, "role", "master");
    field(out, "connected_slaves", 0);
    field(out, "master_failover_state", "no-failover");
    field(out, "master_replid", &shared.run_id);
    field(out, "master_repl_offset", 0);
    field(out, "repl_backlog_active", 0);
}

fn cpu(out: &mut String, _: &Context<'_>) {
    let own = stillpoint_io::own_cpu_time();
    let children = stillpoint_io::children_cpu_time();
    for (name, us) in [
        ("used_cpu_sys", own.system_us),
        ("used_cpu_user", own.user_us),
        ("used_cpu_sys_children", children.system_us),
        ("used_cpu_user_children", children.user_us),
    ] {
        field(out, name, format!("{}.{:06}", us / 1_000_000, us % 1_000_000));
    }
}

fn commandstats(out: &mut String, ctx: &Context<'_>) {
    let shared = ctx.shared;
    for spec in ctx.local.commands.all() {
        let sum =
            |of: fn(&CommandStats) -> u64| shared.sum(|w: &WorkerStats| of(w.command(spec.id)));
        let calls = sum(|c| c.calls.get());
        let rejected = sum(|c| c.rejected.get());
        let failed = sum(|c| c.failed.get());
        if calls + rejected + failed == 0 {
            continue;
        }
        let usec = sum(|c| c.nanoseconds.get()) as f64 / 1000.0;
        let value = format!(
            "calls={calls},usec={},usec_per_call={:.2},rejected_calls={rejected},failed_calls={failed}",
            usec as u64,
            usec / calls.max(1) as f64,
        );
        field(out, &format!("cmdstat_{}", spec.full_name()), value);
    }
}

fn errorstats(out: &mut String, ctx: &Context<'_>) {
    let shared = ctx.shared;
    let mut errors = BTreeMap::new();
    shared.workers.iter().for_each(|worker| worker.add_errors(&mut errors));
    for (code, count) in errors {
        field(out, &format!("errorstat_{code}"), format!("count={count}"));
    }
}

fn latencystats(out: &mut String, ctx: &Context<'_>) {
    let shared = ctx.shared;
    for spec in ctx.local.commands.all() {
        let mut buckets = [0u64; LATENCY_BUCKETS];
        for worker in &shared.workers {
            for (sum, counter) in buckets.iter_mut().zip(&worker.command(spec.id).latency) {
                *sum += counter.get();
            }
        }
        let total: u64 = buckets.iter().sum();
        if total == 0 {
            continue;
        }
        let percentile = |share: f64| {
            let rank = (total as f64 * share).ceil() as u64;
            let mut sum = 0;
            let bucket = buckets.iter().position(|n| {
                sum += n;
                sum >= rank
            });
            1u64 << bucket.unwrap_or(0)
        };
        let value = format!(
            "p50={}.000,p99={}.000,p99.9={}.000",
            percentile(0.5),
            percentile(0.99),
            percentile(0.999)
        );
        field(out, &format!("latency_percentiles_usec_{}", spec.full_name()), value);
    }
}

fn cluster(out: &mut String, _: &Context<'_>) {
    field(out, "cluster_enabled", 0);
}

fn keyspace(out: &mut String, ctx: &Context<'_>) {
    let shared = ctx.shared;
    for db in 0..DATABASES {
        let keys = shared.keyspace.len(db);
        if keys > 0 {
            let expires = shared.keyspace.expiring(db);
            field(out, &format!("db{db}"), format!("keys={keys},expires={expires},avg_ttl=0"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_that_has_no_beginning_yet_has_taken_no_time() {
        const UPTIME_NS: u64 = 7_000_000_000;
        assert_eq!(seconds_since(0, UPTIME_NS), 0);
        assert_eq!(seconds_since(UPTIME_NS, UPTIME_NS + 2_999_999_999), 2);
    }
}
