//! Commands: one row of [`table`] each, one file per family.
//!
//! A row says everything about a command that is not its code: arity, flags, where
//! its keys are, which handler runs it. `COMMAND` answers from the rows, the planner
//! declares keys from them, authentication and `MULTI` ask their flags.

mod client;
mod config;
mod connection;
mod docs;
mod exec;
mod expiry;
mod info;
mod keys;
mod keyspace;
mod long_double;
mod numbers;
mod server;
mod strings;
mod table;
mod transactions;
mod whole;

use stillpoint::{KeySet, Mode, Session, Tx};

use self::whole::Whole;
use crate::config::Db;
use crate::context::Context;
use crate::databases::Databases;
use crate::error::{CmdError, CmdResult, quoted};
use crate::resp::Args;

pub(crate) use connection::{Hello, WRONG_PASS, write_hello};
pub(crate) use docs::command as describe_all;
pub(crate) use exec::{answered, declare_exec, exec_needs_gate, run_exec, run_exec_alone};
pub(crate) use info::{Section, loading_info, write_info};
pub(crate) use table::{COMMANDS, Lookup};
pub(crate) use transactions::queue;

/// Facts about a command, as a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flags(u32);

impl Flags {
    pub(crate) const NONE: Self = Self(0);
    /// May change data.
    pub(crate) const WRITE: Self = Self(1);
    /// Reads data.
    pub(crate) const READONLY: Self = Self(1 << 1);
    /// Refused when memory is full.
    pub(crate) const DENYOOM: Self = Self(1 << 2);
    /// Administration.
    pub(crate) const ADMIN: Self = Self(1 << 3);
    /// Allowed before authentication.
    pub(crate) const NO_AUTH: Self = Self(1 << 4);
    /// Takes constant or logarithmic time.
    pub(crate) const FAST: Self = Self(1 << 5);
    /// Not from scripts.
    pub(crate) const NOSCRIPT: Self = Self(1 << 6);
    /// Allowed while data is loaded.
    pub(crate) const LOADING: Self = Self(1 << 7);
    /// Not inside `MULTI`.
    pub(crate) const NO_MULTI: Self = Self(1 << 8);
    /// Never in the slow log.
    pub(crate) const SKIP_SLOWLOG: Self = Self(1 << 9);
    /// Publish and subscribe.
    pub(crate) const PUBSUB: Self = Self(1 << 10);
    /// Runs at once inside `MULTI` instead of being queued.
    pub(crate) const IN_MULTI: Self = Self(1 << 11);
    /// Cannot be refused to a blocked or overloaded client.
    pub(crate) const STALE: Self = Self(1 << 12);
    /// Refused unless the server was started so that it is allowed.
    pub(crate) const PROTECTED: Self = Self(1 << 13);

    pub(crate) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// True for a command that writes and is not refused at full memory: it may take from the
    /// reserve beyond the limit.
    pub(crate) const fn may_use_reserve(self) -> bool {
        self.has(Self::WRITE) && !self.has(Self::DENYOOM)
    }
}

/// Where the keys are among the arguments (0: the command's name). `first == 0`: none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeySpec {
    /// First key.
    pub(crate) first: u16,
    /// Last key; negative counts from the end (-1: the last argument).
    pub(crate) last: i16,
    /// Distance between keys.
    pub(crate) step: u16,
}

impl KeySpec {
    pub(crate) const NONE: Self = Self { first: 0, last: 0, step: 0 };
    pub(crate) const ONE: Self = Self { first: 1, last: 1, step: 1 };
    pub(crate) const TWO: Self = Self { first: 1, last: 2, step: 1 };
    pub(crate) const ALL: Self = Self { first: 1, last: -1, step: 1 };
    pub(crate) const PAIRS: Self = Self { first: 1, last: -1, step: 2 };

    /// The argument numbers of the keys among `argc` arguments.
    pub(crate) fn positions(self, argc: usize) -> impl Iterator<Item = usize> {
        let last =
            if self.last < 0 { argc as i64 + i64::from(self.last) } else { i64::from(self.last) };
        let end = if self.first == 0 { 0 } else { (last + 1).clamp(0, argc as i64) as usize };
        (usize::from(self.first)..end).step_by(usize::from(self.step.max(1)))
    }
}

/// The family of a command, as `COMMAND DOCS` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Generic,
    String,
    Transactions,
    Connection,
    Server,
    PubSub,
}

impl Group {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Generic => "generic",
            Self::String => "string",
            Self::Transactions => "transactions",
            Self::Connection => "connection",
            Self::Server => "server",
            Self::PubSub => "pubsub",
        }
    }
}

/// A handler that needs no data.
pub(crate) type PureFn = fn(&mut Context<'_>, Args<'_>) -> CmdResult;
/// A handler that runs in a transaction over the command's declared keys.
pub(crate) type KeyedFn = fn(&mut Context<'_>, Args<'_>, &mut Tx<'_>) -> CmdResult;
/// A handler that concerns whole tables; no lock is held while it runs.
pub(crate) type StoreFn = fn(&mut Context<'_>, Args<'_>, &mut Session) -> CmdResult;

/// What runs a command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Handler {
    /// Code that touches no data.
    Pure(PureFn),
    /// A transaction over the declared keys. The handler changes nothing before the
    /// last check that can fail: inside `EXEC` the other commands are kept.
    Keyed(KeyedFn),
    /// Code over whole tables, and the same inside of a transaction.
    Store(StoreFn, Whole),
    /// `EXEC`.
    Exec,
    /// The first argument names the subcommand.
    Container(&'static [Spec]),
}

/// Declares keys that the key spec cannot express.
pub(crate) type DeclareFn = fn(Args<'_>, Db, &Databases, &mut KeySet);

/// Arguments that no log and no other client may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Secrets {
    None,
    /// All from this one on.
    From(usize),
    /// So many after each of these words.
    After(&'static [(&'static str, usize)]),
}

impl Secrets {
    /// True if argument `i` is one of them.
    pub(crate) fn hide(self, args: Args<'_>, i: usize) -> bool {
        match self {
            Self::None => false,
            Self::From(first) => i >= first,
            Self::After(words) => words
                .iter()
                .any(|&(word, count)| (i.saturating_sub(count)..i).any(|j| is(args.at(j), word))),
        }
    }
}

/// One row of the command table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    /// Name, lower case; of a subcommand only its own.
    pub(crate) name: &'static str,
    /// The container's name for a subcommand, else empty.
    pub(crate) parent: &'static str,
    /// Number of arguments, name included; negative: at least that many.
    pub(crate) arity: i16,
    pub(crate) flags: Flags,
    pub(crate) keys: KeySpec,
    pub(crate) group: Group,
    /// Redis version that had it first.
    pub(crate) since: &'static str,
    /// One sentence.
    pub(crate) summary: &'static str,
    pub(crate) handler: Handler,
    pub(crate) declare: Option<DeclareFn>,
    pub(crate) secrets: Secrets,
    /// Number among all rows, for counters.
    pub(crate) id: u16,
}

impl Spec {
    /// `name`, or `parent|name`.
    pub(crate) fn full_name(&self) -> String {
        if self.parent.is_empty() {
            self.name.to_owned()
        } else {
            format!("{}|{}", self.parent, self.name)
        }
    }

    /// The rows of the subcommands, if there are any.
    pub(crate) fn subcommands(&self) -> &'static [Self] {
        match self.handler {
            Handler::Container(rows) => rows,
            _ => &[],
        }
    }

    /// True if `argc` arguments are the right number.
    pub(crate) fn takes(&self, argc: usize) -> bool {
        let argc = argc as i64;
        let arity = i64::from(self.arity);
        if arity < 0 { argc >= -arity } else { argc == arity }
    }

    /// Declares the keys of a call in database `db`; returns how many.
    pub(crate) fn declare_keys(
        &self,
        args: Args<'_>,
        db: Db,
        databases: &Databases,
        keys: &mut KeySet,
    ) -> u32 {
        if let Some(declare) = self.declare {
            let before = keys.len();
            declare(args, db, databases, keys);
            return (keys.len() - before) as u32;
        }
        let write = self.flags.has(Flags::WRITE);
        let mode = if write { Mode::Write } else { Mode::Read };
        let table = databases.table(db);
        let mut count = 0;
        for i in self.keys.positions(args.len()) {
            // The argument after a key is its value for most writers; a wrong guess costs nothing.
            let hint = if write { args.get(i + 1).map_or(0, <[u8]>::len) } else { 0 };
            keys.push(table, args.at(i), mode, hint);
            count += 1;
        }
        count
    }

    fn wrong_arity(&self) -> CmdError {
        CmdError::text(format!("ERR wrong number of arguments for '{}' command", self.full_name()))
    }
}

/// Finds the row for a request and checks its number of arguments.
pub(crate) fn resolve(lookup: &Lookup, args: Args<'_>) -> Result<&'static Spec, CmdError> {
    let Some(spec) = lookup.find(args.at(0)) else {
        return Err(unknown_command(args));
    };
    let Handler::Container(rows) = spec.handler else {
        return if spec.takes(args.len()) { Ok(spec) } else { Err(spec.wrong_arity()) };
    };
    let Some(name) = args.get(1) else {
        return if spec.takes(1) { Ok(spec) } else { Err(spec.wrong_arity()) };
    };
    let Some(sub) = rows.iter().find(|row| row.name.as_bytes().eq_ignore_ascii_case(name)) else {
        let shown = quoted(name, 128);
        let parent = spec.name.to_ascii_uppercase();
        return Err(CmdError::text(format!(
            "ERR unknown subcommand '{shown}'. Try {parent} HELP."
        )));
    };
    if sub.takes(args.len()) { Ok(sub) } else { Err(sub.wrong_arity()) }
}

fn unknown_command(args: Args<'_>) -> CmdError {
    let mut shown = String::new();
    for arg in args.from(1) {
        if shown.len() >= 128 {
            break;
        }
        shown.push_str(&format!("'{}' ", quoted(arg, 128 - shown.len())));
    }
    let name = quoted(args.at(0), 128);
    CmdError::text(format!("ERR unknown command '{name}', with args beginning with: {shown}"))
}

/// True if `arg` is `word`, whatever the case.
pub(crate) fn is(arg: &[u8], word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

/// Reads an integer argument.
pub(crate) fn integer(arg: &[u8]) -> Result<i64, CmdError> {
    crate::resp::parse_i64(arg).ok_or(CmdError::NOT_INTEGER)
}

/// Answers `HELP` of a container from its rows.
pub(crate) fn help(ctx: &mut Context<'_>, args: Args<'_>) -> CmdResult {
    let rows = ctx.shared.lookup.find(args.at(0)).map_or(&[][..], Spec::subcommands);
    let name = quoted(&args.at(0).to_ascii_uppercase(), 32);
    ctx.reply.array(1 + 2 * rows.len());
    ctx.reply.simple(&format!("{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for row in rows {
        ctx.reply.simple(&row.name.to_ascii_uppercase());
        ctx.reply.simple(&format!("    {}", row.summary));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
