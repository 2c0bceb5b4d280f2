//! COMMAND: the table describes itself.

use super::{COMMANDS, Flags, Group, Handler, Spec, is, resolve};
use crate::context::Context;
use crate::error::{CmdError, CmdResult};
use crate::resp::{Args, Reply, Span};

/// Names of the categories that `ACL CAT` lists and `COMMAND INFO` gives.
pub(crate) const CATEGORIES: &[&str] = &[
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
    let mut names = Vec::new();
    let mut add = |condition: bool, name| {
        if condition {
            names.push(name);
        }
    };
    add(spec.group == Group::Generic, "@keyspace");
    add(spec.flags.has(Flags::WRITE), "@write");
    add(spec.flags.has(Flags::READONLY), "@read");
    add(spec.group == Group::String, "@string");
    add(spec.group == Group::PubSub, "@pubsub");
    add(spec.flags.has(Flags::ADMIN), "@admin");
    add(spec.flags.has(Flags::ADMIN), "@dangerous");
    add(spec.group == Group::Connection, "@connection");
    add(spec.group == Group::Transactions, "@transaction");
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

/// The one key specification of a command that has keys.
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

/// One row as `COMMAND` and `COMMAND INFO` give it; subcommands one level down.
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

pub(crate) fn command(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.reply.array(COMMANDS.top().len());
    for spec in COMMANDS.top() {
        describe(ctx.reply, spec);
    }
    Ok(())
}

pub(crate) fn count(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.reply.int(COMMANDS.top().len() as i64);
    Ok(())
}

/// The row named `get` or `config|get`.
fn find(name: &[u8]) -> Option<&'static Spec> {
    COMMANDS.all().find(|spec| is(name, &spec.full_name()))
}

pub(crate) fn info(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    if args.len() == 2 {
        return command(ctx, args);
    }
    ctx.reply.array(args.len() - 2);
    for name in args.from(2) {
        match find(name) {
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
        [("summary", spec.summary), ("since", spec.since), ("group", spec.group.name())]
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

pub(crate) fn docs(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let wanted: Vec<&Spec> = if args.len() == 2 {
        COMMANDS.top().iter().collect()
    } else {
        args.from(2).filter_map(find).collect()
    };
    ctx.reply.map(wanted.len());
    for spec in wanted {
        document(ctx.reply, spec);
    }
    Ok(())
}

pub(crate) fn list(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let mut budget = crate::glob::COMMAND_BUDGET;
    let mut names = Vec::new();
    let filter = match args.len() {
        2 => None,
        5 if is(args.at(2), "FILTERBY") => Some((args.at(3), args.at(4))),
        _ => return Err(CmdError::SYNTAX),
    };
    for spec in COMMANDS.top() {
        let chosen = match filter {
            None => true,
            Some((by, pattern)) if is(by, "PATTERN") => {
                crate::glob::matches(pattern, spec.name.as_bytes(), &mut budget)
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
    let spec = resolve(ctx.shared.lookup, args).map_err(|error| {
        if error.message().contains("wrong number of arguments") {
            CmdError::fixed("ERR Invalid number of arguments specified for command")
        } else {
            CmdError::fixed("ERR Invalid command specified")
        }
    })?;
    let positions: Vec<usize> = spec.keys.positions(args.len()).collect();
    if positions.is_empty() || matches!(spec.handler, Handler::Container(_)) {
        return Err(CmdError::fixed("ERR The command has no key arguments"));
    }
    Ok((spec, positions))
}

pub(crate) fn getkeys(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let (bytes, spans) = inner(args);
    let inner = Args::new(&bytes, &spans);
    let (_, positions) = inner_keys(ctx, inner)?;
    ctx.reply.array(positions.len());
    for i in positions {
        ctx.reply.bulk(inner.at(i));
    }
    Ok(())
}

pub(crate) fn getkeysandflags(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let (bytes, spans) = inner(args);
    let inner = Args::new(&bytes, &spans);
    let (spec, positions) = inner_keys(ctx, inner)?;
    let write = spec.flags.has(Flags::WRITE);
    ctx.reply.array(positions.len());
    for i in positions {
        ctx.reply.array(2);
        ctx.reply.bulk(inner.at(i));
        simple_set(ctx.reply, if write { &["RW", "update"] } else { &["RO", "access"] });
    }
    Ok(())
}
