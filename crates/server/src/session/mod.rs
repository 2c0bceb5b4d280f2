//! A client's session, and the way from its requests to calls of commands.
//!
//! ```text
//! spec      what a row of the command table says
//! row       how a family writes its rows
//! commands  the table
//! client    the state of one client, its MULTI queue included
//! context   what a command's handler works with
//! call      commands as calls, for logs that name calls beside the writes
//! logged    commands as calls that a start makes again
//! exec      EXEC as one transaction, or in pieces
//! whole     EXEC with commands over whole databases, as one transaction
//! route     what happens to a request: batch, now, queue, or refusal
//! ```

pub(crate) mod call;
pub(crate) mod client;
pub(crate) mod commands;
pub(crate) mod context;
pub(crate) mod exec;
pub(crate) mod logged;
pub(crate) mod route;
pub(crate) mod row;
pub(crate) mod spec;
mod whole;
