//! The connection itself: HELLO, AUTH, PING, SELECT, QUIT, RESET.

use super::client::check_name;
use crate::args::{integer, is};
use crate::config::DATABASES;
use crate::error::{CmdError, CmdResult, quoted};
use crate::resp::{Args, Reply, parse_i64};
use crate::session::context::{Context, LoadingContext};
use crate::session::row::{ANY, CONNECTION, F, NONE, OPEN, Pure, row, while_loading, with_secrets};
use crate::session::spec::{Flags, Secrets, Spec};
use crate::shared::auth::Attempt;
use crate::shared::registry::RELAXED;

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    while_loading(with_secrets(row("auth", -2, OPEN, NONE, CONNECTION, "1.0.0", Pure(auth), "Authenticates the connection."), Secrets::From(1)), auth_while_loading),
    row("echo", 2, ANY.or(F), NONE, CONNECTION, "1.0.0", Pure(echo), "Returns the given string."),
    while_loading(with_secrets(row("hello", -1, OPEN, NONE, CONNECTION, "6.0.0", Pure(hello), "Chooses the protocol version and authenticates."), Secrets::After(&[("auth", 2)])), hello_while_loading),
    while_loading(row("ping", -1, F, NONE, CONNECTION, "1.0.0", Pure(ping), "Returns PONG or the given string."), ping_while_loading),
    while_loading(row("quit", -1, OPEN.or(Flags::IN_MULTI), NONE, CONNECTION, "1.0.0", Pure(quit), "Closes the connection."), quit_while_loading),
    row("reset", 1, OPEN.or(Flags::IN_MULTI), NONE, CONNECTION, "6.2.0", Pure(reset), "Returns the connection to its first state."),
    row("select", 2, ANY.or(F).or(Flags::SELECTS), NONE, CONNECTION, "1.0.0", Pure(select), "Changes the database."),
];

/// The Redis version whose commands and wording are followed.
pub(super) const REDIS_VERSION: &str = "7.0.15";

fn ping_while_loading(ctx: &mut LoadingContext<'_>, args: Args<'_>) -> CmdResult {
    match args.len() {
        1 => ctx.reply.simple("PONG"),
        2 => ctx.reply.bulk(args.at(1)),
        _ => return Err(PING_ARITY),
    }
    Ok(())
}

fn ping(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    match args.len() {
        1 => ctx.reply.simple("PONG"),
        2 => ctx.reply.bulk(args.at(1)),
        _ => return Err(PING_ARITY),
    }
    Ok(())
}

fn echo(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    ctx.reply.bulk(args.at(1));
    Ok(())
}

fn select(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let index = integer(args.at(1))?;
    let db = u16::try_from(index).ok().filter(|&db| db < DATABASES);
    ctx.client.db = db.ok_or(CmdError::DB_INDEX)?;
    ctx.reply.ok();
    Ok(())
}

fn quit(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.client.closing = true;
    ctx.reply.ok();
    Ok(())
}

fn quit_while_loading(ctx: &mut LoadingContext<'_>, _: Args<'_>) -> CmdResult {
    ctx.client.closing = true;
    ctx.reply.ok();
    Ok(())
}

fn reset(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.client.reset(!ctx.shared.auth.is_required());
    ctx.client.info.strict.store(ctx.shared.is_strict(), RELAXED);
    ctx.reply.set_resp3(false);
    ctx.reply.simple("RESET");
    Ok(())
}

const PING_ARITY: CmdError = CmdError::fixed("ERR wrong number of arguments for 'ping' command");

const WRONG_PASS: CmdError =
    CmdError::fixed("WRONGPASS invalid username-password pair or user is disabled.");

/// Checks user and password of the client.
fn authenticate(ctx: &mut Context<'_>, user: &[u8], password: &[u8]) -> CmdResult {
    let address = ctx.client.info.address.ip();
    // A user that does not exist costs the same try and gives the same answer.
    let password = if user == b"default" { password } else { b"" };
    let now_ms = ctx.shared.config.clock.monotonic_ns() / 1_000_000;
    if user != b"default" && !ctx.shared.auth.is_required() {
        return Err(WRONG_PASS);
    }
    match ctx.shared.auth.attempt(address, password, now_ms) {
        Attempt::Accepted => {
            ctx.client.authenticated = true;
            Ok(())
        }
        Attempt::Refused { delay_ms } => {
            tracing::warn!(client = %ctx.client.info.address, "wrong password");
            ctx.client.silent_until_ms = now_ms + delay_ms;
            Err(WRONG_PASS)
        }
    }
}

fn auth(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    match args.len() {
        2 => {
            if !ctx.shared.auth.is_required() {
                return Err(CmdError::fixed(
                    "ERR AUTH <password> called without any password configured for the default \
                     user. Are you sure your configuration is correct?",
                ));
            }
            authenticate(ctx, b"default", args.at(1))?;
        }
        3 => authenticate(ctx, args.at(1), args.at(2))?,
        _ => return Err(CmdError::SYNTAX),
    }
    ctx.reply.ok();
    Ok(())
}

/// Checks user and password while data is loaded. A wrong password costs the connection.
fn authenticate_while_loading(
    ctx: &mut LoadingContext<'_>,
    user: &[u8],
    password: &[u8],
) -> CmdResult {
    let address = ctx.client.info.address.ip();
    let now_ms = ctx.config.clock.monotonic_ns() / 1_000_000;
    let password = if user == b"default" { password } else { b"" };
    match ctx.auth.attempt(address, password, now_ms) {
        Attempt::Accepted if user == b"default" || ctx.auth.is_required() => {
            ctx.client.authenticated = true;
            Ok(())
        }
        _ => {
            tracing::warn!(client = %ctx.client.info.address, "wrong password");
            ctx.client.closing = true;
            Err(WRONG_PASS)
        }
    }
}

fn auth_while_loading(ctx: &mut LoadingContext<'_>, args: Args<'_>) -> CmdResult {
    match args.len() {
        2 => authenticate_while_loading(ctx, b"default", args.at(1))?,
        3 => authenticate_while_loading(ctx, args.at(1), args.at(2))?,
        _ => return Err(CmdError::SYNTAX),
    }
    ctx.reply.ok();
    Ok(())
}

/// The arguments of `HELLO`.
#[derive(Debug, Default)]
struct Hello<'a> {
    version: Option<i64>,
    /// User and password.
    login: Option<(&'a [u8], &'a [u8])>,
    name: Option<&'a [u8]>,
}

impl<'a> Hello<'a> {
    /// The answer to a client that has not logged in and does not do so now.
    const NOAUTH: CmdError = CmdError::fixed(
        "NOAUTH HELLO must be called with the client already authenticated, otherwise the \
         HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and \
         select the RESP protocol version at the same time",
    );

    fn parse(args: Args<'a>) -> Result<Self, CmdError> {
        let mut hello = Self::default();
        let Some(arg) = args.get(1) else {
            return Ok(hello);
        };
        let number = parse_i64(arg)
            .ok_or(CmdError::fixed("ERR Protocol version is not an integer or out of range"))?;
        if !(2..=3).contains(&number) {
            return Err(CmdError::fixed("NOPROTO unsupported protocol version"));
        }
        hello.version = Some(number);
        let mut i = 2;
        while let Some(option) = args.get(i) {
            if is(option, "AUTH") && i + 2 < args.len() {
                hello.login = Some((args.at(i + 1), args.at(i + 2)));
                i += 3;
            } else if is(option, "SETNAME") && i + 1 < args.len() {
                let text = args.at(i + 1);
                check_name(text, "Client names")?;
                hello.name = Some(text);
                i += 2;
            } else {
                let shown = quoted(option, 64);
                return Err(CmdError::text(format!("ERR Syntax error in HELLO option '{shown}'")));
            }
        }
        Ok(hello)
    }
}

fn hello(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let hello = Hello::parse(args)?;
    if let Some((user, password)) = hello.login {
        authenticate(ctx, user, password)?;
    }
    if ctx.client.must_authenticate(&ctx.shared.auth) {
        return Err(Hello::NOAUTH);
    }
    if let Some(name) = hello.name {
        ctx.client.info.names.lock().name = String::from_utf8_lossy(name).into_owned();
    }
    if let Some(version) = hello.version {
        ctx.reply.set_resp3(version == 3);
    }
    write_hello(ctx.reply, ctx.client.info.id);
    Ok(())
}

fn hello_while_loading(ctx: &mut LoadingContext<'_>, args: Args<'_>) -> CmdResult {
    let hello = Hello::parse(args)?;
    if let Some((user, password)) = hello.login {
        authenticate_while_loading(ctx, user, password)?;
    }
    if !ctx.client.authenticated {
        return Err(Hello::NOAUTH);
    }
    if let Some(name) = hello.name {
        ctx.client.info.names.lock().name = String::from_utf8_lossy(name).into_owned();
    }
    if let Some(version) = hello.version {
        ctx.reply.set_resp3(version == 3);
    }
    write_hello(ctx.reply, 0);
    Ok(())
}

/// Writes the answer to `HELLO`, for the client of that id.
fn write_hello(reply: &mut Reply, id: u64) {
    let proto = if reply.is_resp3() { 3 } else { 2 };
    reply.map(7);
    for (field, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        reply.bulk(field.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"proto");
    reply.int(proto);
    reply.bulk(b"id");
    reply.int(id as i64);
    for (field, value) in [("mode", "standalone"), ("role", "master")] {
        reply.bulk(field.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"modules");
    reply.array(0);
}
