//! Publish and subscribe, which this server refuses.

use crate::error::{CmdError, CmdResult, quoted};
use crate::resp::Args;
use crate::session::context::Context;
use crate::session::row::{ANY, CONN, F, NONE, Pure, row};
use crate::session::spec::{Flags, Group, Spec};

const PUBSUB: Group = Group { name: "pubsub", category: Some("@pubsub") };

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    row("psubscribe", -2, Flags::PUBSUB.or(CONN), NONE, PUBSUB, "2.0.0", Pure(unsupported), "Listens to channels by pattern."),
    row("publish", 3, Flags::PUBSUB.or(ANY).or(F), NONE, PUBSUB, "2.0.0", Pure(unsupported), "Sends a message to a channel."),
    row("pubsub", -2, Flags::PUBSUB, NONE, PUBSUB, "2.8.0", Pure(unsupported), "Publish and subscribe."),
    row("punsubscribe", -1, Flags::PUBSUB.or(CONN), NONE, PUBSUB, "2.0.0", Pure(unsupported), "Stops listening to channels by pattern."),
    row("subscribe", -2, Flags::PUBSUB.or(CONN), NONE, PUBSUB, "2.0.0", Pure(unsupported), "Listens to channels."),
    row("unsubscribe", -1, Flags::PUBSUB.or(CONN), NONE, PUBSUB, "2.0.0", Pure(unsupported), "Stops listening to channels."),
];

/// Refuses a command that this server does not have.
fn unsupported(_: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let name = quoted(&args.at(0).to_ascii_uppercase(), 32);
    Err(CmdError::text(format!("ERR {name} is not supported yet by this server")))
}
