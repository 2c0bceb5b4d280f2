//! The family CLIENT: connected clients and their settings.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::help::HELP;
use crate::args::{integer, is};
use crate::error::{CmdError, CmdResult, quoted};
use crate::resp::{Args, parse_i64};
use crate::session::client::ReplyMode;
use crate::session::context::{Context, LoadingContext};
use crate::session::row::{
    ADM, ANY, CONN, CONNECTION, Container, NONE, Pure, row, sub, while_loading,
};
use crate::session::spec::{Flags, Spec};
use crate::shared::registry::{ClientInfo, RELAXED};

/// Subcommands about the own connection.
const OWN: Flags = CONN.or(Flags::DURING_PAUSE);
/// Subcommands about other connections.
const OTHERS: Flags = ADM.or(ANY).or(Flags::DURING_PAUSE);

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    row("client", -2, Flags::NONE, NONE, CONNECTION, "2.4.0", Container(CLIENT, None), "Connections."),
];

#[rustfmt::skip] // each row takes one line
const CLIENT: &[Spec] = &[
    sub("caching", 3, OWN, "6.0.0", Pure(caching), "Tracks keys in the next request."),
    sub("durability", -2, OWN, "1.0.0", Pure(durability), "Chooses whether replies wait until they are durable."),
    sub("getname", 2, OWN, "2.6.9", Pure(getname), "Returns the name of the connection."),
    sub("getredir", 2, OWN, "6.0.0", Pure(getredir), "Returns the client that invalidations are redirected to."),
    Spec { flags: ANY.or(Flags::DURING_PAUSE), ..HELP },
    sub("id", 2, OWN, "5.0.0", Pure(id), "Returns the id of the connection."),
    sub("info", 2, OWN, "6.2.0", Pure(info), "Describes the connection."),
    sub("kill", -3, OTHERS, "2.4.0", Pure(kill), "Closes connections."),
    sub("list", -2, OTHERS, "2.4.0", Pure(list), "Lists the connections."),
    sub("no-evict", 3, OTHERS, "7.0.0", Pure(no_evict), "Exempts the connection from eviction."),
    sub("no-touch", 3, OWN, "7.2.0", Pure(no_touch), "Makes reads leave no trace of access."),
    sub("pause", -3, OTHERS, "3.0.0", Pure(pause), "Holds commands back for a while."),
    sub("reply", 3, OWN, "3.2.0", Pure(reply), "Chooses which replies are sent."),
    while_loading(sub("setinfo", 4, OWN, "7.2.0", Pure(setinfo), "Names the client library."), setinfo_while_loading),
    sub("setname", 3, OWN, "2.6.9", Pure(setname), "Names the connection."),
    sub("tracking", -3, OWN, "6.0.0", Pure(tracking), "Switches client-side caching."),
    sub("trackinginfo", 2, OWN, "6.2.0", Pure(trackinginfo), "Describes client-side caching of the connection."),
    sub("unblock", -3, OTHERS, "5.0.0", Pure(unblock), "Unblocks a client."),
    sub("unpause", 2, OTHERS, "6.2.0", Pure(unpause), "Ends CLIENT PAUSE."),
];

/// Refuses a name that does not fit into a line of `CLIENT LIST`: a long one, or one with bytes
/// that are not printable.
pub(super) fn check_name(name: &[u8], what: &str) -> CmdResult {
    if name.len() > 1024 || !name.iter().all(|b| (b'!'..=b'~').contains(b)) {
        return Err(CmdError::text(format!(
            "ERR {what} cannot contain spaces, newlines or special characters."
        )));
    }
    Ok(())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn id(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.reply.int(ctx.client.info.id as i64);
    Ok(())
}

fn getname(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    let name = ctx.client.info.names.lock().name.clone();
    if name.is_empty() {
        ctx.reply.null()
    } else {
        ctx.reply.bulk(name.as_bytes())
    }
    Ok(())
}

fn setname(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    check_name(args.at(2), "Client names")?;
    ctx.client.info.names.lock().name = text(args.at(2));
    ctx.reply.ok();
    Ok(())
}

fn setinfo(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let (option, value) = (args.at(2), args.at(3));
    let lib_name = is(option, "LIB-NAME");
    if !lib_name && !is(option, "LIB-VER") {
        let shown = quoted(option, 64);
        return Err(CmdError::text(format!("ERR Unrecognized option '{shown}'")));
    }
    check_name(value, if lib_name { "lib-name" } else { "lib-ver" })?;
    let mut names = ctx.client.info.names.lock();
    *(if lib_name { &mut names.lib_name } else { &mut names.lib_ver }) = text(value);
    ctx.reply.ok();
    Ok(())
}

/// Notes the names of the client's library as far as they are printable.
fn setinfo_while_loading(ctx: &mut LoadingContext<'_>, args: Args<'_>) -> CmdResult {
    let value = args.at(3);
    if value.len() <= 128 && value.iter().all(u8::is_ascii_graphic) {
        let mut names = ctx.client.info.names.lock();
        if is(args.at(2), "LIB-NAME") {
            names.lib_name = text(value);
        } else if is(args.at(2), "LIB-VER") {
            names.lib_ver = text(value);
        }
    }
    ctx.reply.ok();
    Ok(())
}

/// Writes the data of this client that other threads see.
fn publish(ctx: &Context<'_>) {
    let (client, info) = (&*ctx.client, &ctx.client.info);
    info.db.store(u32::from(client.db), RELAXED);
    info.last_ms.store(ctx.now_ms(), RELAXED);
    info.resp3.store(ctx.reply.is_resp3(), RELAXED);
    info.multi.store(client.multi.as_ref().map_or(0, |m| m.len() as u32 + 1), RELAXED);
    info.watched.store(client.watched.len() as u32, RELAXED);
}

fn line(ctx: &Context<'_>, info: &ClientInfo) -> String {
    let last = info.last_command.load(RELAXED);
    let command = last.checked_sub(1).and_then(|id| ctx.local.commands.by_id(id as u16));
    info.line(ctx.now_ms(), &command.map_or_else(|| "NULL".to_owned(), |spec| spec.full_name()))
}

fn info(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    publish(ctx);
    let text = line(ctx, &ctx.client.info) + "\n";
    ctx.reply.verbatim(&text);
    Ok(())
}

fn list(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    publish(ctx);
    let mut wanted: Option<BTreeSet<u64>> = None;
    match args.get(2) {
        None => {}
        Some(option) if is(option, "TYPE") && args.len() == 4 => {
            let kind = args.at(3);
            if !["normal", "master", "replica", "slave", "pubsub"].iter().any(|k| is(kind, k)) {
                let shown = quoted(kind, 64);
                return Err(CmdError::text(format!("ERR Unknown client type '{shown}'")));
            }
            if !is(kind, "normal") {
                wanted = Some(BTreeSet::new());
            }
        }
        Some(option) if is(option, "ID") && args.len() > 3 => {
            let ids = args.from(3).map(|arg| {
                let id = parse_i64(arg).filter(|&id| id > 0);
                id.map(i64::cast_unsigned).ok_or(CmdError::fixed("ERR Invalid client ID"))
            });
            wanted = Some(ids.collect::<Result<_, _>>()?);
        }
        Some(_) => return Err(CmdError::SYNTAX),
    }
    let mut text = String::new();
    let clients = match wanted {
        Some(ids) => ctx.shared.registry.some(ids),
        None => ctx.shared.registry.all(),
    };
    for info in clients {
        text.push_str(&line(ctx, &info));
        text.push('\n');
    }
    ctx.reply.verbatim(&text);
    Ok(())
}

/// The clients that `CLIENT KILL` selects.
#[derive(Default)]
struct Filter {
    id: Option<u64>,
    address: Option<String>,
    local_address: Option<String>,
    nobody: bool,
    skip_me: bool,
}

impl Filter {
    fn parse(args: Args<'_>) -> Result<Self, CmdError> {
        let mut filter = Self { skip_me: true, ..Self::default() };
        let mut i = 2;
        while i < args.len() {
            let (option, value) = (args.at(i), args.get(i + 1).ok_or(CmdError::SYNTAX)?);
            if is(option, "ID") {
                let id = parse_i64(value)
                    .filter(|&id| id > 0)
                    .ok_or(CmdError::fixed("ERR client-id should be greater than 0"))?;
                filter.id = Some(id.cast_unsigned());
            } else if is(option, "ADDR") {
                filter.address = Some(text(value));
            } else if is(option, "LADDR") {
                filter.local_address = Some(text(value));
            } else if is(option, "TYPE") {
                if !["normal", "master", "replica", "slave", "pubsub"].iter().any(|k| is(value, k))
                {
                    let shown = quoted(value, 64);
                    return Err(CmdError::text(format!("ERR Unknown client type '{shown}'")));
                }
                filter.nobody |= !is(value, "normal");
            } else if is(option, "USER") {
                if value != b"default" {
                    let shown = quoted(value, 64);
                    return Err(CmdError::text(format!("ERR No such user '{shown}'")));
                }
            } else if is(option, "SKIPME") {
                filter.skip_me = match value {
                    _ if is(value, "yes") => true,
                    _ if is(value, "no") => false,
                    _ => return Err(CmdError::SYNTAX),
                };
            } else {
                return Err(CmdError::SYNTAX);
            }
            i += 2;
        }
        Ok(filter)
    }

    fn fits(&self, info: &ClientInfo, me: u64) -> bool {
        let same = |wanted: &Option<String>, actual: SocketAddr| {
            wanted.as_ref().is_none_or(|wanted| *wanted == actual.to_string())
        };
        !self.nobody
            && self.id.is_none_or(|id| id == info.id)
            && same(&self.address, info.address)
            && same(&self.local_address, info.local_address)
            && !(self.skip_me && info.id == me)
    }
}

fn kill(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let old_form = args.len() == 3;
    let filter = if old_form {
        Filter { address: Some(text(args.at(2))), ..Filter::default() }
    } else {
        Filter::parse(args)?
    };
    let me = ctx.client.info.id;
    let victims: Vec<Arc<ClientInfo>> =
        ctx.shared.registry.all().into_iter().filter(|info| filter.fits(info, me)).collect();
    for victim in &victims {
        if victim.id == me {
            ctx.client.closing = true;
        } else {
            // Release: partner of the Acquire in the client's event loop, which reads the flag.
            victim.killed.store(true, Ordering::Release);
            ctx.shared.keyspace.waiters.leave(victim.id);
        }
    }
    if !victims.is_empty() {
        ctx.shared.wake_all();
    }
    match (old_form, victims.len()) {
        (true, 0) => return Err(CmdError::fixed("ERR No such client")),
        (true, _) => ctx.reply.ok(),
        (false, n) => ctx.reply.int(n as i64),
    }
    Ok(())
}

fn on_or_off(arg: &[u8]) -> Result<bool, CmdError> {
    match () {
        () if is(arg, "ON") => Ok(true),
        () if is(arg, "OFF") => Ok(false),
        () => Err(CmdError::SYNTAX),
    }
}

fn no_evict(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    ctx.client.info.no_evict.store(on_or_off(args.at(2))?, RELAXED);
    ctx.reply.ok();
    Ok(())
}

fn no_touch(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    ctx.client.info.no_touch.store(on_or_off(args.at(2))?, RELAXED);
    ctx.reply.ok();
    Ok(())
}

/// This server has no client-side caching, so only switching it off succeeds.
fn tracking(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    if on_or_off(args.at(2))? {
        return Err(CmdError::fixed("ERR CLIENT TRACKING is not supported yet by this server"));
    }
    ctx.reply.ok();
    Ok(())
}

fn trackinginfo(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.reply.map(3);
    ctx.reply.bulk(b"flags");
    ctx.reply.set(1);
    ctx.reply.bulk(b"off");
    ctx.reply.bulk(b"redirect");
    ctx.reply.int(-1);
    ctx.reply.bulk(b"prefixes");
    ctx.reply.array(0);
    Ok(())
}

fn caching(_: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let option = args.at(2);
    if is(option, "YES") || is(option, "NO") {
        return Err(CmdError::fixed(
            "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN \
             or OPTOUT mode enabled",
        ));
    }
    Err(CmdError::SYNTAX)
}

fn getredir(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.reply.int(-1);
    Ok(())
}

/// Ends the wait of a client's command.
fn unblock(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let with_error = match args.get(3) {
        None => false,
        Some(how) if args.len() == 4 && is(how, "TIMEOUT") => false,
        Some(how) if args.len() == 4 && is(how, "ERROR") => true,
        Some(_) => {
            return Err(CmdError::fixed("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"));
        }
    };
    let id = integer(args.at(2))?;
    let id = id.cast_unsigned();
    let worker = ctx.shared.keyspace.waiters.unblock(id, with_error).or_else(|| {
        let clients = ctx.shared.registry.lock();
        let info = clients.get(&id).filter(|info| info.flush_wait.unblock(with_error))?;
        Some(info.worker)
    });
    if let Some(worker) = worker {
        ctx.shared.mailboxes.wake(worker);
    }
    ctx.reply.int(i64::from(worker.is_some()));
    Ok(())
}

fn pause(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let all = match args.get(3) {
        None => true,
        Some(mode) if args.len() == 4 && is(mode, "ALL") => true,
        Some(mode) if args.len() == 4 && is(mode, "WRITE") => false,
        Some(_) => {
            return Err(CmdError::fixed("ERR CLIENT PAUSE mode must be WRITE or ALL"));
        }
    };
    let timeout = parse_i64(args.at(2))
        .ok_or(CmdError::fixed("ERR timeout is not an integer or out of range"))?;
    let timeout = u64::try_from(timeout).map_err(|_| CmdError::fixed("ERR timeout is negative"))?;
    let now_ms = ctx.shared.config.clock.monotonic_ns() / 1_000_000;
    ctx.shared.paused_all.store(all, Ordering::Relaxed);
    // Release: partner of the Acquire in the planner, so that the mode is seen too.
    ctx.shared.paused_until_ms.store(now_ms.saturating_add(timeout), Ordering::Release);
    ctx.reply.ok();
    Ok(())
}

fn unpause(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.shared.paused_until_ms.store(0, Ordering::Release);
    ctx.shared.wake_all();
    ctx.reply.ok();
    Ok(())
}

/// `CLIENT DURABILITY [STRICT|RELAXED]`: without an argument, what the connection has.
fn durability(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let client = &mut *ctx.client;
    let strict = match args.get(2) {
        None => {
            let now = if client.info.strict.load(RELAXED) { "strict" } else { "relaxed" };
            ctx.reply.bulk(now.as_bytes());
            return Ok(());
        }
        Some(_) if args.len() > 3 => return Err(CmdError::SYNTAX),
        Some(level) if is(level, "STRICT") => true,
        Some(level) if is(level, "RELAXED") => false,
        Some(_) => return Err(CmdError::SYNTAX),
    };
    if strict && !ctx.shared.has_journal() {
        return Err(CmdError::fixed(
            "ERR without a journal no reply can wait for its flush; start with --journal redo",
        ));
    }
    // Replies of this pass that were promised to wait do so, and this one behind them.
    client.was_strict = client.is_strict();
    client.info.strict.store(strict, RELAXED);
    ctx.reply.ok();
    Ok(())
}

/// `CLIENT REPLY ON|OFF|SKIP`.
fn reply(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let mode = args.at(2);
    if is(mode, "ON") {
        ctx.client.reply_mode = ReplyMode::On;
        ctx.reply.ok();
    } else if is(mode, "OFF") {
        ctx.client.reply_mode = ReplyMode::Off;
    } else if is(mode, "SKIP") {
        if ctx.client.reply_mode != ReplyMode::Off {
            ctx.client.reply_mode = ReplyMode::SkipNext;
        }
    } else {
        return Err(CmdError::SYNTAX);
    }
    Ok(())
}
