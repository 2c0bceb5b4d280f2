//! Rows of the command table: arity, flags, keys, and the code that runs the command.

use stillpoint::{KeySet, Mode, Session, Tx};

use super::context::{Context, LoadingContext};
use crate::args::is;
use crate::config::Db;
use crate::error::{CmdError, CmdResult};
use crate::keyspace::{Keyspace, ListedKeys};
use crate::resp::{Args, parse_u64};

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
    /// Refused in scripts.
    pub(crate) const NOSCRIPT: Self = Self(1 << 6);
    /// Allowed while data is loaded.
    pub(crate) const LOADING: Self = Self(1 << 7);
    /// Refused inside `MULTI`, whose `EXEC` is then refused, too.
    pub(crate) const NO_MULTI: Self = Self(1 << 8);
    /// Never noted in the slow log.
    pub(crate) const SKIP_SLOWLOG: Self = Self(1 << 9);
    /// Publish and subscribe.
    pub(crate) const PUBSUB: Self = Self(1 << 10);
    /// Runs at once inside `MULTI`; other commands are queued.
    pub(crate) const IN_MULTI: Self = Self(1 << 11);
    /// Allowed on a replica with stale data.
    pub(crate) const STALE: Self = Self(1 << 12);
    /// Refused unless the server was started so that it is allowed.
    pub(crate) const PROTECTED: Self = Self(1 << 13);
    /// Refused inside `MULTI`, whose queue goes on.
    pub(crate) const OUTSIDE_MULTI: Self = Self(1 << 14);
    /// Runs although clients are paused.
    pub(crate) const DURING_PAUSE: Self = Self(1 << 15);
    /// The first argument is the database of the commands after this one.
    pub(crate) const SELECTS: Self = Self(1 << 16);

    /// Copies the values of its keys, whole or for the most part.
    pub(crate) const COPIES: Self = Self(1 << 17);
    /// May wait for keys.
    pub(crate) const BLOCKING: Self = Self(1 << 18);
    /// Reads keys whose names follow from values that the command has read.
    pub(crate) const DERIVES_KEYS: Self = Self(1 << 19);
    /// Runs while no other command does.
    pub(crate) const ALONE: Self = Self(1 << 20);
    /// Writes what follows from a sine or the like. Its last bit differs between machines.
    pub(crate) const INEXACT: Self = Self(1 << 21);
    /// Needs every record: waits while a server that serves already loads them.
    pub(crate) const NEEDS_ALL: Self = Self(1 << 22);
    /// Runs while no other command does, if databases were exchanged.
    pub(crate) const ALONE_IF_EXCHANGED: Self = Self(1 << 23);
    /// Uses its key as a collection alone, which it opens and closes. So the collection may stay open for the
    /// next call.
    pub(crate) const LEAVES_OPEN: Self = Self(1 << 24);

    pub(crate) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) const fn has_any(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    /// Whether a command writes and is not refused at full memory. Such a command may take from
    /// the reserve beyond the limit.
    pub(crate) const fn may_use_reserve(self) -> bool {
        self.has(Self::WRITE) && !self.has(Self::DENYOOM)
    }
}

/// Positions of the keys among the arguments. The command's name is argument 0. If `first` is 0,
/// there are no keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeySpec {
    /// First key.
    pub(crate) first: u16,
    /// Last key. A negative number counts from the end: -1 is the last argument.
    pub(crate) last: i16,
    /// Distance between keys.
    pub(crate) step: u16,
    /// The argument that tells how many keys there are, from `first` on; 0 if none does.
    pub(crate) count_at: u16,
}

impl KeySpec {
    pub(crate) const NONE: Self = Self { first: 0, last: 0, step: 0, count_at: 0 };
    pub(crate) const ONE: Self = Self { first: 1, last: 1, step: 1, count_at: 0 };
    pub(crate) const TWO: Self = Self { first: 1, last: 2, step: 1, count_at: 0 };
    pub(crate) const ALL: Self = Self { first: 1, last: -1, step: 1, count_at: 0 };
    pub(crate) const PAIRS: Self = Self { first: 1, last: -1, step: 2, count_at: 0 };

    pub(crate) const FROM_SECOND: Self = Self { first: 2, last: -1, step: 1, count_at: 0 };
    /// All arguments but the last.
    pub(crate) const TIMED: Self = Self { first: 1, last: -2, step: 1, count_at: 0 };
    /// The second argument after the name tells how many keys follow it.
    pub(crate) const COUNTED_THIRD: Self = Self { first: 3, last: -1, step: 1, count_at: 2 };
    /// The argument after the name tells how many keys follow it.
    pub(crate) const COUNTED: Self = Self { first: 2, last: -1, step: 1, count_at: 1 };

    /// The argument numbers of the keys among `args`.
    pub(crate) fn positions_in(self, args: Args<'_>) -> impl Iterator<Item = usize> {
        let counted = args.get(usize::from(self.count_at)).and_then(parse_u64);
        let most = match self.count_at {
            0 => usize::MAX,
            _ => counted.map_or(0, |count| usize::try_from(count).unwrap_or(usize::MAX)),
        };
        self.positions(args.len()).take(most)
    }

    /// The argument numbers of the keys among `argc` arguments, if none tells their number.
    pub(crate) fn positions(self, argc: usize) -> impl Iterator<Item = usize> {
        let last =
            if self.last < 0 { argc as i64 + i64::from(self.last) } else { i64::from(self.last) };
        let end = if self.first == 0 { 0 } else { (last + 1).clamp(0, argc as i64) as usize };
        (usize::from(self.first)..end).step_by(usize::from(self.step.max(1)))
    }
}

/// A family's description in `COMMAND`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    /// The family's name in `COMMAND DOCS`.
    pub(crate) name: &'static str,
    /// The family's category in `COMMAND INFO`, if it has one of its own.
    pub(crate) category: Option<&'static str>,
}

/// A handler that needs no data.
pub(crate) type PureFn = fn(&mut Context<'_>, Args<'_>) -> CmdResult;
/// A handler that runs in a transaction over the command's declared keys.
pub(crate) type KeyedFn = fn(&mut Context<'_>, Args<'_>, &mut Tx<'_>) -> CmdResult;
/// What a transaction does behind its commands.
pub(crate) type EndFn = fn(&mut Context<'_>, &mut Tx<'_>) -> CmdResult;
/// A handler that concerns whole databases; no key is locked while it runs.
pub(crate) type StoreFn = fn(&mut Context<'_>, Args<'_>, &mut Session) -> CmdResult;
/// A handler that concerns whole databases, inside a transaction over all their keys.
pub(crate) type ListedFn = fn(&mut Context<'_>, Args<'_>, &ListedKeys, &mut Tx<'_>) -> CmdResult;
/// A handler that runs while data is loaded.
pub(crate) type LoadingFn = fn(&mut LoadingContext<'_>, Args<'_>) -> CmdResult;
/// The argument numbers of keys that a [`KeySpec`] cannot express. `None` if the arguments do not tell them.
pub(crate) type FurtherKeysFn = fn(Args<'_>) -> Option<Vec<usize>>;
/// Declares keys that a [`KeySpec`] cannot express.
pub(crate) type DeclareFn = fn(Args<'_>, Db, &Keyspace, &mut KeySet);

/// Estimates a command's cost beyond its arguments, in units of about a microsecond. A key counts
/// as one unit, and so does each KiB that the command copies.
pub(crate) type WeighFn = fn(Args<'_>, Db, &Keyspace) -> usize;

/// The code that runs a command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Handler {
    /// Code that touches no data.
    Pure(PureFn),
    /// A transaction over the declared keys. The handler changes nothing before its last check
    /// that can fail, because `EXEC` keeps the other commands of the queue.
    Keyed(KeyedFn),
    /// A handler over whole databases, and its form inside a transaction.
    Store(StoreFn, Whole),
    /// `EXEC`.
    Exec,
    /// The first argument names a subcommand. The function runs the command without a subcommand.
    Container(&'static [Spec], Option<PureFn>),
}

/// A command over whole databases, as a part of a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whole {
    pub(crate) lists: Lists,
    pub(crate) run: ListedFn,
}

/// Databases whose keys a command must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lists {
    /// None.
    Nothing,
    /// The client's database.
    Own,
    /// All databases.
    All,
}

/// Secret arguments, which no log and no other client may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Secrets {
    None,
    /// All arguments from this one on.
    From(usize),
    /// Words, each with the number of secret arguments after the word.
    After(&'static [(&'static str, usize)]),
}

impl Secrets {
    /// Whether argument `i` is secret.
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
    /// Name in lower case. The name of a subcommand is without its container's.
    pub(crate) name: &'static str,
    /// The container's name for a subcommand, else empty.
    pub(crate) parent: &'static str,
    /// Number of arguments, the name included. A negative number means at least that many.
    pub(crate) arity: i16,
    pub(crate) flags: Flags,
    pub(crate) keys: KeySpec,
    pub(crate) group: Group,
    /// The first Redis version with the command.
    pub(crate) since: &'static str,
    /// A summary of the command, in one sentence.
    pub(crate) summary: &'static str,
    pub(crate) handler: Handler,
    /// Runs the command while data is loaded. Without this function the command is refused then.
    pub(crate) while_loading: Option<LoadingFn>,
    pub(crate) declare: Option<DeclareFn>,
    /// The argument numbers of further keys, behind those of `keys`.
    pub(crate) further_keys: Option<FurtherKeysFn>,
    pub(crate) secrets: Secrets,
    /// The command's cost beyond its arguments, if it may be large.
    pub(crate) weigh: Option<WeighFn>,
    /// The row's number among all rows, for counters.
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

    /// Whether the command has subcommands.
    #[inline]
    pub(crate) fn is_container(&self) -> bool {
        matches!(self.handler, Handler::Container(..))
    }

    /// The rows of the subcommands, if there are any.
    pub(crate) fn subcommands(&self) -> &'static [Self] {
        match self.handler {
            Handler::Container(rows, _) => rows,
            _ => &[],
        }
    }

    /// Whether `argc` is a right number of arguments, the name included.
    #[inline]
    pub(crate) fn takes(&self, argc: usize) -> bool {
        let argc = argc as i64;
        let arity = i64::from(self.arity);
        if arity < 0 { argc >= -arity } else { argc == arity }
    }

    /// Whether calls may be one transaction with other calls of their client on their only key,
    /// which is argument 1.
    #[inline]
    pub(crate) fn may_be_joined(&self) -> bool {
        const APART: Flags = Flags::BLOCKING.or(Flags::DERIVES_KEYS).or(Flags::COPIES);
        let has_one_key = matches!(self.keys, KeySpec { first: 1, last: 1, count_at: 0, .. });
        has_one_key
            && self.declare.is_none()
            && !self.flags.has_any(APART)
            && matches!(self.handler, Handler::Keyed(_))
    }

    /// Declares the keys of a call in database `db`; returns how many.
    pub(crate) fn declare_keys(
        &self,
        args: Args<'_>,
        db: Db,
        keyspace: &Keyspace,
        keys: &mut KeySet,
    ) -> u32 {
        if let Some(declare) = self.declare {
            let before = keys.len();
            declare(args, db, keyspace, keys);
            return (keys.len() - before) as u32;
        }
        let write = self.flags.has(Flags::WRITE);
        let mode = if write { Mode::Write } else { Mode::Read };
        let mut count = 0;
        for i in self.keys.positions_in(args) {
            // For most writers the argument after a key is its value. A wrong guess costs nothing.
            let hint = if write { args.get(i + 1).map_or(0, <[u8]>::len) } else { 0 };
            keyspace.declare(keys, db, args.at(i), mode, hint);
            count += 1;
        }
        count
    }

    pub(super) fn wrong_arity(&self) -> CmdError {
        CmdError::text(format!("ERR wrong number of arguments for '{}' command", self.full_name()))
    }
}
