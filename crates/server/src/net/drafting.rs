//! Commands on declared keys, and what was built for them before their key has it.

use stillpoint::Tx;

use crate::error::{CmdError, CmdResult};
use crate::resp::Args;
use crate::session::context::Context;
use crate::session::spec::KeyedFn;

/// Runs a command, or gives its key what was built for it.
///
/// # Errors
/// Those of the command. The command has made a draft.
#[inline]
pub(super) fn run_keyed(
    ctx: &mut Context<'_>,
    run: KeyedFn,
    (args, keys): (Args<'_>, u32),
    tx: &mut Tx<'_>,
) -> CmdResult {
    if !ctx.local.keys.drafting.is_on() {
        return run(ctx, args, tx);
    }
    run_drafting(ctx, run, (args, keys), tx)
}

#[inline(never)]
fn run_drafting(
    ctx: &mut Context<'_>,
    run: KeyedFn,
    (args, keys): (Args<'_>, u32),
    tx: &mut Tx<'_>,
) -> CmdResult {
    if let Some(draft) = ctx.local.keys.drafting.built.take() {
        let linked = ctx.keys().link(tx, &draft);
        if linked != Ok(false) {
            // The transaction may still be refused, and run again.
            let draft = ctx.local.keys.drafting.built.insert(draft);
            linked?;
            ctx.reply.raw(&draft.reply);
            return Ok(());
        }
    }
    ctx.local.keys.drafting.keys = keys;
    let mark = ctx.reply.mark();
    run(ctx, args, tx)?;
    match &mut ctx.local.keys.drafting.made {
        Some(draft) => {
            draft.reply = ctx.reply.take_from(mark);
            Err(CmdError::DRAFTED)
        }
        None => Ok(()),
    }
}
