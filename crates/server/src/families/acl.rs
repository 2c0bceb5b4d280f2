//! The families ACL and MODULE. There is one user and no module.

use super::docs::CATEGORIES;
use super::help::HELP;
use crate::error::CmdResult;
use crate::resp::Args;
use crate::session::context::Context;
use crate::session::row::{ADM, ANY, CONN, Container, NONE, Pure, SERVER, row, sub};
use crate::session::spec::{Flags, Spec};

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    row("acl", -2, Flags::NONE, NONE, SERVER, "6.0.0", Container(ACL, None), "Users and their rights."),
    row("module", -2, Flags::NONE, NONE, SERVER, "4.0.0", Container(MODULE, None), "Modules."),
];

#[rustfmt::skip] // each row takes one line
const ACL: &[Spec] = &[
    sub("cat", -2, CONN, "6.0.0", Pure(acl_cat), "Lists the categories of commands."),
    HELP,
    sub("list", 2, ADM.or(ANY), "6.0.0", Pure(acl_list), "Lists the rules of the users."),
    sub("users", 2, ADM.or(ANY), "6.0.0", Pure(acl_users), "Lists the users."),
    sub("whoami", 2, CONN, "6.0.0", Pure(acl_whoami), "Returns the user of the connection."),
];

#[rustfmt::skip] // each row takes one line
const MODULE: &[Spec] = &[
    HELP,
    sub("list", 2, ADM, "4.0.0", Pure(empty_array), "Lists the loaded modules."),
];

fn empty_array(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.reply.array(0);
    Ok(())
}

fn acl_whoami(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.reply.bulk(b"default");
    Ok(())
}

fn acl_users(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    ctx.reply.array(1);
    ctx.reply.bulk(b"default");
    Ok(())
}

fn acl_list(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    let secret = if ctx.shared.auth.is_required() { "#(hidden)" } else { "nopass" };
    ctx.reply.array(1);
    ctx.reply.bulk(format!("user default on {secret} ~* &* +@all").as_bytes());
    Ok(())
}

fn acl_cat(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    let names = CATEGORIES;
    ctx.reply.array(names.len());
    for name in names {
        ctx.reply.bulk(name.as_bytes());
    }
    Ok(())
}
