//! The family DEBUG, which tests of clients use.

use super::help::HELP;
use crate::args::integer;
use crate::error::{CmdError, CmdResult};
use crate::resp::{Args, parse_f64};
use crate::session::context::Context;
use crate::session::row::{ADM, ANY, Container, NONE, Pure, SERVER, TEST, row, sub};
use crate::session::spec::Spec;
use crate::shared::registry::RELAXED;

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    row("debug", -2, ADM.or(ANY), NONE, SERVER, "1.0.0", Container(DEBUG, None), "For tests."),
];

#[rustfmt::skip] // each row takes one line
const DEBUG: &[Spec] = &[
    sub("change-repl-id", 2, TEST, "1.0.0", Pure(debug_ok), "Does nothing here."),
    HELP,
    sub("jmap", 2, TEST, "1.0.0", Pure(debug_ok), "Does nothing here."),
    sub("quicklist-packed-threshold", 3, TEST, "1.0.0", Pure(debug_ok), "Does nothing here."),
    sub("set-active-expire", 3, TEST, "1.0.0", Pure(debug_active_expire), "Switches the background deletion of expired keys."),
    sub("sleep", 3, TEST, "1.0.0", Pure(debug_sleep), "Answers after some seconds."),
];

/// Longest `DEBUG SLEEP`.
const SLEEP_MAX_S: f64 = 60.0;

/// Makes this client wait, and no other.
fn debug_sleep(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let seconds = parse_f64(args.at(2)).ok_or(CmdError::NOT_FLOAT)?;
    let sleep_ms = (seconds.clamp(0.0, SLEEP_MAX_S) * 1000.0) as u64;
    let now_ms = ctx.shared.config.clock.monotonic_ns() / 1_000_000;
    ctx.client.silent_until_ms = now_ms + sleep_ms;
    ctx.reply.ok();
    Ok(())
}

fn debug_ok(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.reply.ok();
    Ok(())
}

fn debug_active_expire(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    ctx.shared.params.active_expiry.store(integer(args.at(2))? != 0, RELAXED);
    ctx.reply.ok();
    Ok(())
}
