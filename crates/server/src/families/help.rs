//! The subcommand `HELP` of every container.

use crate::error::{CmdResult, quoted};
use crate::resp::Args;
use crate::session::context::Context;
use crate::session::row::{ANY, Pure, sub};
use crate::session::spec::Spec;

/// The row of `HELP`.
pub(super) const HELP: Spec = sub("help", 2, ANY, "5.0.0", Pure(help), "Lists the subcommands.");

/// Answers `HELP` of a container from its rows.
fn help(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let rows = ctx.local.commands.find(args.at(0)).map_or(&[][..], Spec::subcommands);
    let name = quoted(&args.at(0).to_ascii_uppercase(), 32);
    ctx.reply.array(1 + 2 * rows.len());
    ctx.reply.simple(&format!("{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for row in rows {
        ctx.reply.simple(&row.name.to_ascii_uppercase());
        ctx.reply.simple(&format!("    {}", row.summary));
    }
    Ok(())
}
