//! COMMAND: the table describes itself.

use super::help::HELP;
use super::key_uses::key_uses;
use crate::args::is;
use crate::error::{CmdError, CmdResult};
use crate::glob::{COMMAND_BUDGET, matches};
use crate::resp::{Args, Reply, Span, parse_u64};
use crate::session::commands::Commands;
use crate::session::context::Context;
use crate::session::row::{ANY, Container, NONE, Pure, SERVER, row, sub};
use crate::session::spec::{Flags, Spec};

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    row("command", -1, ANY, NONE, SERVER, "2.8.13", Container(COMMAND, Some(command)), "Describes the commands."),
];

#[rustfmt::skip] // each row takes one line
const COMMAND: &[Spec] = &[
    sub("count", 2, ANY, "2.8.13", Pure(count), "Returns the number of commands."),
    sub("docs", -2, ANY, "7.0.0", Pure(docs), "Returns documentation of commands."),
    sub("getkeys", -4, ANY, "2.8.13", Pure(getkeys), "Extracts the key names of a command."),
    sub("getkeysandflags", -4, ANY, "7.0.0", Pure(getkeysandflags), "Extracts the key names of a command and how they are used."),
    HELP,
    sub("info", -2, ANY, "2.8.13", Pure(info), "Describes commands."),
    sub("list", -2, ANY, "7.0.0", Pure(list), "Lists command names."),
];

/// Names of the categories that `ACL CAT` lists and `COMMAND INFO` gives.
pub(super) const CATEGORIES: &[&str] = &[
    "keyspace",
    "read",
    "write",
    "set",
    "sortedset",
    "list",
    "hash",
    "string",
    "bitmap",
    "hyperloglog",
    "geo",
    "stream",
    "pubsub",
    "admin",
    "fast",
    "slow",
    "blocking",
    "dangerous",
    "connection",
    "transaction",
    "scripting",
];

const FLAG_NAMES: &[(Flags, &str)] = &[
    (Flags::WRITE, "write"),
    (Flags::READONLY, "readonly"),
    (Flags::DENYOOM, "denyoom"),
    (Flags::ADMIN, "admin"),
    (Flags::PUBSUB, "pubsub"),
    (Flags::NOSCRIPT, "noscript"),
    (Flags::BLOCKING, "blocking"),
    (Flags::LOADING, "loading"),
    (Flags::STALE, "stale"),
    (Flags::SKIP_SLOWLOG, "skip_slowlog"),
    (Flags::FAST, "fast"),
    (Flags::NO_AUTH, "no_auth"),
    (Flags::NO_MULTI, "no_multi"),
];

fn flag_names(flags: Flags) -> Vec<&'static str> {
    FLAG_NAMES.iter().filter(|(flag, _)| flags.has(*flag)).map(|(_, name)| *name).collect()
}

fn categories(spec: &Spec) -> Vec<&'static str> {
    let mut names = Vec::from_iter(spec.group.category);
    let mut add = |condition: bool, name| {
        if condition {
            names.push(name);
        }
    };
    add(spec.flags.has(Flags::WRITE), "@write");
    add(spec.flags.has(Flags::READONLY), "@read");
    add(spec.flags.has(Flags::ADMIN), "@admin");
    add(spec.flags.has(Flags::ADMIN), "@dangerous");
    add(spec.flags.has(Flags::BLOCKING), "@blocking");
    add(spec.flags.has(Flags::FAST), "@fast");
    add(!spec.flags.has(Flags::FAST), "@slow");
    names
}

fn simple_set(reply: &mut Reply, names: &[&str]) {
    reply.set(names.len());
    for name in names {
        reply.simple(name);
    }
}

/// Writes the one key specification of a command that has keys.
fn key_spec(reply: &mut Reply, spec: &Spec) {
    let write = spec.flags.has(Flags::WRITE);
    reply.array(1);
    reply.map(3);
    reply.bulk(b"flags");
    simple_set(reply, if write { &["RW", "update"] } else { &["RO", "access"] });
    reply.bulk(b"begin_search");
    reply.map(2);
    reply.bulk(b"type");
    reply.bulk(b"index");
    reply.bulk(b"spec");
    reply.map(1);
    reply.bulk(b"index");
    reply.int(i64::from(spec.keys.first));
    reply.bulk(b"find_keys");
    reply.map(2);
    reply.bulk(b"type");
    reply.bulk(b"range");
    reply.bulk(b"spec");
    reply.map(3);
    reply.bulk(b"lastkey");
    let last = i64::from(spec.keys.last);
    reply.int(if last < 0 { last } else { last - i64::from(spec.keys.first) });
    reply.bulk(b"keystep");
    reply.int(i64::from(spec.keys.step));
    reply.bulk(b"limit");
    reply.int(0);
}

/// Answers one row as in `COMMAND` and `COMMAND INFO`, with its subcommands inside.
fn describe(reply: &mut Reply, spec: &Spec) {
    reply.array(10);
    reply.bulk(spec.full_name().as_bytes());
    reply.int(i64::from(spec.arity));
    simple_set(reply, &flag_names(spec.flags));
    for number in [i64::from(spec.keys.first), i64::from(spec.keys.last), i64::from(spec.keys.step)]
    {
        reply.int(number);
    }
    simple_set(reply, &categories(spec));
    reply.array(0);
    if spec.keys.first > 0 {
        key_spec(reply, spec)
    } else {
        reply.array(0)
    }
    reply.array(spec.subcommands().len());
    for sub in spec.subcommands() {
        describe(reply, sub);
    }
}

fn command(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.reply.array(ctx.local.commands.top().len());
    for spec in ctx.local.commands.top() {
        describe(ctx.reply, spec);
    }
    Ok(())
}

fn count(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.reply.int(ctx.local.commands.top().len() as i64);
    Ok(())
}

/// The row named `get` or `config|get`.
fn find(commands: &Commands, name: &[u8]) -> Option<&'static Spec> {
    commands.all().find(|spec| is(name, &spec.full_name()))
}

fn info(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    if args.len() == 2 {
        return command(ctx, args);
    }
    ctx.reply.array(args.len() - 2);
    for name in args.from(2) {
        match find(ctx.local.commands, name) {
            Some(spec) => describe(ctx.reply, spec),
            None => ctx.reply.null_array(),
        }
    }
    Ok(())
}

/// Documentation of one row: name, then a map.
fn document(reply: &mut Reply, spec: &Spec) {
    let subs = spec.subcommands();
    reply.bulk(spec.full_name().as_bytes());
    reply.map(if subs.is_empty() { 3 } else { 4 });
    for (field, value) in
        [("summary", spec.summary), ("since", spec.since), ("group", spec.group.name)]
    {
        reply.bulk(field.as_bytes());
        reply.bulk(value.as_bytes());
    }
    if !subs.is_empty() {
        reply.bulk(b"subcommands");
        reply.map(subs.len());
        for sub in subs {
            document(reply, sub);
        }
    }
}

fn docs(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let wanted: Vec<&Spec> = if args.len() == 2 {
        ctx.local.commands.top().iter().collect()
    } else {
        args.from(2).filter_map(|name| find(ctx.local.commands, name)).collect()
    };
    ctx.reply.map(wanted.len());
    for spec in wanted {
        document(ctx.reply, spec);
    }
    Ok(())
}

fn list(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let mut budget = COMMAND_BUDGET;
    let mut names = Vec::new();
    let filter = match args.len() {
        2 => None,
        5 if is(args.at(2), "FILTERBY") => Some((args.at(3), args.at(4))),
        _ => return Err(CmdError::SYNTAX),
    };
    for spec in ctx.local.commands.top() {
        let chosen = match filter {
            None => true,
            Some((by, pattern)) if is(by, "PATTERN") => {
                matches(pattern, spec.name.as_bytes(), &mut budget)
                    .map_err(|_| CmdError::PATTERN)?
            }
            Some((by, category)) if is(by, "ACLCAT") => {
                categories(spec).iter().any(|name| is(category, &name[1..]))
            }
            Some((by, _)) if is(by, "MODULE") => false,
            Some(_) => return Err(CmdError::SYNTAX),
        };
        if chosen {
            names.push(spec.name);
        }
    }
    ctx.reply.array(names.len());
    for name in names {
        ctx.reply.bulk(name.as_bytes());
    }
    Ok(())
}

/// The command after `COMMAND GETKEYS`, as arguments of its own.
fn inner(args: Args<'_>) -> (Vec<u8>, Vec<Span>) {
    let (mut bytes, mut spans) = (Vec::new(), Vec::new());
    for arg in args.from(2) {
        spans.push(Span { start: bytes.len() as u32, len: arg.len() as u32 });
        bytes.extend_from_slice(arg);
    }
    (bytes, spans)
}

/// Row and key positions of the command after `COMMAND GETKEYS`.
fn inner_keys(ctx: &Context<'_>, args: Args<'_>) -> Result<(&'static Spec, Vec<usize>), CmdError> {
    let spec = ctx.local.commands.resolve(args).map_err(|refusal| match refusal.spec {
        Some(_) => CmdError::fixed("ERR Invalid number of arguments specified for command"),
        None => CmdError::fixed("ERR Invalid command specified"),
    })?;
    const INVALID: CmdError = CmdError::fixed("ERR Invalid arguments specified for command");
    let mut positions: Vec<usize> = spec.keys.positions_in(args).collect();
    let counted = args.get(usize::from(spec.keys.count_at)).filter(|_| spec.keys.count_at > 0);
    if counted.is_some_and(|count| parse_u64(count) != Some(positions.len() as u64)) {
        return Err(INVALID);
    }
    if let Some(further_keys) = spec.further_keys {
        positions.extend(further_keys(args).ok_or(INVALID)?);
    }
    if positions.is_empty() || spec.is_container() {
        return Err(CmdError::fixed("ERR The command has no key arguments"));
    }
    Ok((spec, positions))
}

fn getkeys(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let (bytes, spans) = inner(args);
    let inner = Args::new(&bytes, &spans);
    let (_, positions) = inner_keys(ctx, inner)?;
    ctx.reply.array(positions.len());
    for i in positions {
        ctx.reply.bulk(inner.at(i));
    }
    Ok(())
}

fn getkeysandflags(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let (bytes, spans) = inner(args);
    let inner = Args::new(&bytes, &spans);
    let (spec, positions) = inner_keys(ctx, inner)?;
    let [first, others] = key_uses(spec, inner);
    ctx.reply.array(positions.len());
    for (number, i) in positions.into_iter().enumerate() {
        ctx.reply.array(2);
        ctx.reply.bulk(inner.at(i));
        simple_set(ctx.reply, if number == 0 { first } else { others });
    }
    Ok(())
}
