//! The table of commands, made from the rows of the families.

use super::spec::{EndFn, Handler, Spec};
use crate::error::{CmdError, quoted};
use crate::resp::Args;

/// All commands by name.
#[derive(Debug)]
pub(crate) struct Commands {
    top: &'static [Spec],
    rows: usize,
    lookup: Lookup,
    /// Serves the clients that wait for what a transaction has made.
    pub(super) serve: EndFn,
}

/// Why a request is no call of a command.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// The row, if only the number of arguments is wrong.
    pub(crate) spec: Option<&'static Spec>,
    pub(crate) error: CmdError,
}

impl Commands {
    /// The table of these rows. The table lives as long as the process. `serve` runs at the end of each
    /// transaction that has made keys for which clients may wait.
    pub(crate) fn new(families: &[&'static [Spec]], serve: EndFn) -> Self {
        let mut rows = 0..;
        let mut number = |spec: &mut Spec| spec.id = rows.next().unwrap_or_default();
        let mut top: Vec<Spec> = families.concat();
        top.sort_by_key(|spec| spec.name);
        for spec in &mut top {
            number(spec);
            if let Handler::Container(children, alone) = spec.handler {
                let mut children = children.to_vec();
                for child in &mut children {
                    (child.parent, child.group) = (spec.name, spec.group);
                    number(child);
                }
                spec.handler = Handler::Container(children.leak(), alone);
            }
        }
        let top = top.leak();
        let rows = usize::from(rows.next().unwrap_or_default());
        Self { top, rows, lookup: Lookup::new(top), serve }
    }

    /// The commands by name, without subcommands.
    pub(crate) fn top(&self) -> &'static [Spec] {
        self.top
    }

    /// Every command, each followed by its subcommands.
    pub(crate) fn all(&self) -> impl Iterator<Item = &'static Spec> {
        self.top.iter().flat_map(|spec| std::iter::once(spec).chain(spec.subcommands()))
    }

    /// Number of rows, subcommands included. All ids are below this number.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// The row with that id.
    pub(crate) fn by_id(&self, id: u16) -> Option<&'static Spec> {
        self.all().find(|spec| spec.id == id)
    }

    /// The row of a command.
    #[inline]
    pub(crate) fn find(&self, name: &[u8]) -> Option<&'static Spec> {
        self.lookup.find(name)
    }

    /// Finds the row for a request and checks its number of arguments.
    ///
    /// # Errors
    /// There is no such command, or the number is wrong.
    #[inline]
    pub(crate) fn resolve(&self, args: Args<'_>) -> Result<&'static Spec, Box<Refusal>> {
        match self.find(args.at(0)) {
            Some(spec) if !spec.is_container() && spec.takes(args.len()) => Ok(spec),
            found => resolve_further(found, args),
        }
    }
}

/// The row of a subcommand, or the reason why there is none.
#[inline(never)]
fn resolve_further(
    found: Option<&'static Spec>,
    args: Args<'_>,
) -> Result<&'static Spec, Box<Refusal>> {
    let refuse = |spec, error| Err(Box::new(Refusal { spec, error }));
    let Some(spec) = found else {
        return refuse(None, unknown_command(args));
    };
    let row = match (spec.is_container(), args.get(1)) {
        (true, Some(name)) => {
            let children = spec.subcommands();
            match children.iter().find(|row| row.name.as_bytes().eq_ignore_ascii_case(name)) {
                Some(child) => child,
                None => return refuse(None, unknown_subcommand(spec, name)),
            }
        }
        _ => spec,
    };
    if row.takes(args.len()) { Ok(row) } else { refuse(Some(row), row.wrong_arity()) }
}

fn unknown_subcommand(spec: &Spec, name: &[u8]) -> CmdError {
    let shown = quoted(name, 128);
    let parent = spec.name.to_ascii_uppercase();
    CmdError::text(format!("ERR unknown subcommand '{shown}'. Try {parent} HELP."))
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

/// Buckets of the index by name: a power of two, several times the number of commands.
const BUCKETS: usize = 1024;

/// Finds a command by its name in any case: an open hash table of the rows.
#[derive(Debug)]
struct Lookup {
    buckets: Box<[Option<&'static Spec>; BUCKETS]>,
}

fn bucket(name: &[u8]) -> usize {
    let hash = name.iter().fold(name.len() as u64, |hash, byte| {
        (hash ^ u64::from(byte & 0xdf)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    (hash >> 54) as usize
}

impl Lookup {
    fn new(top: &'static [Spec]) -> Self {
        let mut buckets = Box::new([None; BUCKETS]);
        for spec in top {
            let mut at = bucket(spec.name.as_bytes());
            while buckets[at].is_some() {
                at = (at + 1) % BUCKETS;
            }
            buckets[at] = Some(spec);
        }
        Self { buckets }
    }

    #[inline]
    fn find(&self, name: &[u8]) -> Option<&'static Spec> {
        if name.len() > 32 {
            return None;
        }
        let mut at = bucket(name);
        while let Some(spec) = self.buckets[at] {
            if spec.name.as_bytes().eq_ignore_ascii_case(name) {
                return Some(spec);
            }
            at = (at + 1) % BUCKETS;
        }
        None
    }
}
