//! SORT: the elements of a list, a set or a sorted set, in an order that other keys may give.
//!
//! The keys that `BY` and `GET` name depend on the elements. A first run finds these keys, and the
//! command runs again as a transaction that declares them. The command repeats such runs until the
//! declared keys are the right ones. So the command is one serializable transaction.

use std::cmp::Ordering;

use stillpoint::{KeySet, Mode, Tx};

use crate::args::{integer, is};
use crate::config::Db;
use crate::error::{CmdError, CmdResult};
use crate::families::sorted_sets::score::parts;
use crate::heap::Heap;
use crate::keyspace::{Contents, Field, Keyspace, Kind, NewElements};
use crate::resp::{Args, parse_number};
use crate::session::context::Context;
use crate::session::row::{
    GENERIC, Keyed, ONE, R, WM, declared_by, deriving, row, with_further_keys,
};
use crate::session::spec::Spec;

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    with_further_keys(deriving(declared_by(row("sort", -2, WM, ONE, GENERIC, "1.0.0", Keyed(sort), "Sorts the elements of a list, a set or a sorted set, and returns or stores them."), declare)), stored),
    deriving(row("sort_ro", -2, R, ONE, GENERIC, "7.0.0", Keyed(sort_ro), "Sorts the elements of a list, a set or a sorted set.")),
];

/// The argument with the key in which the result is stored.
fn store_key(args: Args<'_>) -> Option<usize> {
    let (mut found, mut i) = (None, 2);
    while let Some(arg) = args.get(i) {
        if is(arg, "LIMIT") {
            i += 2;
        } else if is(arg, "BY") || is(arg, "GET") {
            i += 1;
        } else if is(arg, "STORE") && i + 1 < args.len() {
            found = Some(i + 1);
            i += 1;
        }
        i += 1;
    }
    found
}

fn stored(args: Args<'_>) -> Option<Vec<usize>> {
    Some(store_key(args).into_iter().collect())
}

fn declare(args: Args<'_>, db: Db, keyspace: &Keyspace, keys: &mut KeySet) {
    keyspace.declare(keys, db, args.at(1), Mode::Read, 0);
    if let Some(target) = store_key(args) {
        keyspace.declare(keys, db, args.at(target), Mode::Write, 0);
    }
}

/// Bytes of the longest key that a store has.
const MAX_KEY_BYTES: usize = 65_536;
/// Bytes of heap that a derived key or a value takes, beside its own.
const DERIVED_BYTES: usize = 48;

/// A pattern of `BY` or `GET`.
#[derive(Clone, Copy, Debug)]
enum Pattern<'a> {
    /// The element itself.
    Element,
    /// Nothing: the pattern names no element.
    Nothing,
    /// A key, and perhaps a field of the hash there.
    Key { before: &'a [u8], behind: &'a [u8], field: Option<&'a [u8]> },
}

impl<'a> Pattern<'a> {
    fn parse(text: &'a [u8]) -> Self {
        if text == b"#" {
            return Self::Element;
        }
        let Some(star) = text.iter().position(|&byte| byte == b'*') else { return Self::Nothing };
        let (before, rest) = (&text[..star], &text[star + 1..]);
        let arrow = rest.windows(2).position(|pair| pair == b"->");
        match arrow.filter(|arrow| arrow + 2 < rest.len()) {
            Some(at) => Self::Key { before, behind: &rest[..at], field: Some(&rest[at + 2..]) },
            None => Self::Key { before, behind: rest, field: None },
        }
    }

    /// Bytes of the key that the pattern names for an element. `None` if it names none, or one that is
    /// too long to exist.
    fn key_bytes(&self, element: &[u8]) -> Option<usize> {
        let Self::Key { before, behind, .. } = self else { return None };
        Some(before.len() + element.len() + behind.len()).filter(|&len| len <= MAX_KEY_BYTES)
    }

    /// The key that the pattern names for an element, if such a key can exist.
    fn key(&self, element: &[u8]) -> Option<Vec<u8>> {
        match self {
            Self::Key { before, behind, .. } if self.key_bytes(element).is_some() => {
                Some([before, element, behind].concat())
            }
            _ => None,
        }
    }
}

/// The arguments.
struct Options<'a> {
    by: Option<Pattern<'a>>,
    gets: Vec<Pattern<'a>>,
    /// Whether the elements keep their order.
    unsorted: bool,
    descending: bool,
    alpha: bool,
    skip: i64,
    most: i64,
    stores: bool,
}

impl<'a> Options<'a> {
    fn parse(args: Args<'a>, may_store: bool) -> Result<Self, CmdError> {
        let mut options = Self {
            by: None,
            gets: Vec::new(),
            unsorted: false,
            descending: false,
            alpha: false,
            skip: 0,
            most: -1,
            stores: false,
        };
        let mut i = 2;
        while let Some(arg) = args.get(i) {
            let left = args.len() - i - 1;
            if is(arg, "ASC") {
                options.descending = false;
            } else if is(arg, "DESC") {
                options.descending = true;
            } else if is(arg, "ALPHA") {
                options.alpha = true;
            } else if is(arg, "LIMIT") && left >= 2 {
                (options.skip, options.most) = (integer(args.at(i + 1))?, integer(args.at(i + 2))?);
                i += 2;
            } else if may_store && is(arg, "STORE") && left >= 1 {
                options.stores = true;
                i += 1;
            } else if is(arg, "BY") && left >= 1 {
                let pattern = args.at(i + 1);
                options.by = Some(Pattern::parse(pattern));
                // As in Redis, a pattern without a star stays in force when another follows.
                options.unsorted |= !pattern.contains(&b'*');
                i += 1;
            } else if is(arg, "GET") && left >= 1 {
                options.gets.push(Pattern::parse(args.at(i + 1)));
                i += 1;
            } else {
                return Err(CmdError::SYNTAX);
            }
            i += 1;
        }
        Ok(options)
    }

    /// The half-open range of the elements that the reply has, of `len` elements in all.
    fn range(&self, len: usize) -> (usize, usize) {
        let start = usize::try_from(self.skip.max(0)).unwrap_or(usize::MAX).min(len);
        let most = usize::try_from(self.most).unwrap_or(usize::MAX);
        (start, start.saturating_add(most).min(len))
    }
}

/// The elements of the first key, in their order, with the kind of the collection.
fn read(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    tx: &mut Tx<'_>,
    heap: &mut Heap,
) -> Result<(Kind, Contents), CmdError> {
    let mut elements = Contents::default();
    let Some(kind) = ctx.keys().read(tx, 0, args.at(1)).map(|entry| entry.kind()) else {
        return Ok((Kind::LIST, elements));
    };
    if ![Kind::LIST, Kind::SET, Kind::SORTED_SET].contains(&kind) {
        return Err(CmdError::WRONG_TYPE);
    }
    if let Some(mut collection) = ctx.keys().open(tx, 0, args.at(1), kind)? {
        ctx.keys().leave_if_long(collection.len())?;
        let is_sorted_set = kind == Kind::SORTED_SET;
        collection.copy_all(tx, heap, &mut |content| {
            elements.push(if is_sorted_set { parts(content).1 } else { content });
        })?;
    }
    Ok((kind, elements))
}

/// Reads what a pattern names for an element, from a key that the command has declared.
fn value_of(
    ctx: &mut Context<'_>,
    tx: &mut Tx<'_>,
    pattern: &Pattern<'_>,
    element: &[u8],
) -> Result<Option<Vec<u8>>, CmdError> {
    let (key, field) = match pattern {
        Pattern::Element => return Ok(Some(element.to_vec())),
        Pattern::Nothing => return Ok(None),
        Pattern::Key { field, .. } => match pattern.key(element) {
            Some(key) => (key, field),
            None => return Ok(None),
        },
    };
    let Some(slot) = ctx.derived_slot(&key) else { return Ok(None) };
    let kind = ctx.keys().read(tx, slot, &key).map(|entry| entry.kind());
    match (kind, field) {
        (Some(Kind::STRING), None) => {
            let entry = ctx.keys().lookup(tx, slot, &key);
            Ok(entry.map(|entry| {
                let mut value = Vec::with_capacity(entry.len());
                entry.copy_to(&mut value);
                value
            }))
        }
        (Some(Kind::HASH), Some(field)) => {
            let Some(mut hash) = ctx.keys().open(tx, slot, &key, Kind::HASH)? else {
                return Ok(None);
            };
            let content = hash.get(tx, field)?;
            Ok(content.map(|content| Field::of(&content).value.to_vec()))
        }
        _ => Ok(None),
    }
}

/// The value by which an element is sorted.
enum Weight {
    Number(f64),
    Text(Option<Vec<u8>>),
}

/// The elements in their new order.
fn sorted<'e>(
    ctx: &mut Context<'_>,
    tx: &mut Tx<'_>,
    (options, heap): (&Options<'_>, &mut Heap),
    elements: Vec<&'e [u8]>,
) -> Result<Vec<&'e [u8]>, CmdError> {
    let by = options.by.unwrap_or(Pattern::Element);
    let mut weighed: Vec<(Weight, &[u8])> = Vec::with_capacity(elements.len());
    let mut is_number = true;
    for element in elements {
        let value = value_of(ctx, tx, &by, element)?;
        let weight = if options.alpha {
            heap.take(value.as_ref().map_or(0, Vec::len));
            heap.check()?;
            Weight::Text(value)
        } else {
            let number = value.as_ref().map_or(Some(0.0), |value| parse_number(value));
            is_number &= number.is_some();
            Weight::Number(number.unwrap_or(0.0))
        };
        weighed.push((weight, element));
    }
    if !is_number {
        return Err(CmdError::fixed("ERR One or more scores can't be converted into double"));
    }
    weighed.sort_by(|(a, first), (b, second)| {
        let order = match (a, b) {
            // Elements with equal numbers are in the order of their bytes.
            (Weight::Number(a), Weight::Number(b)) => {
                a.partial_cmp(b).unwrap_or(Ordering::Equal).then_with(|| first.cmp(second))
            }
            (Weight::Text(a), Weight::Text(b)) => a.cmp(b),
            _ => Ordering::Equal,
        };
        if options.descending { order.reverse() } else { order }
    });
    Ok(weighed.into_iter().map(|(_, element)| element).collect())
}

fn run(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>, may_store: bool) -> CmdResult {
    let mut options = Options::parse(args, may_store)?;
    let mut heap = ctx.heap();
    let (kind, all) = read(ctx, args, tx, &mut heap)?;
    if options.unsorted && kind == Kind::SET && options.stores {
        // A set has no order that could be stored.
        (options.unsorted, options.alpha, options.by) = (false, true, None);
    }
    let mut elements: Vec<&[u8]> = all.iter().collect();
    let (from, to) = options.range(elements.len());
    if options.unsorted {
        if options.descending && kind != Kind::SET {
            elements.reverse();
        }
        elements = elements[from..to].to_vec();
    }
    let by = options.by.filter(|_| !options.unsorted);
    let patterns = by.iter().chain(&options.gets);
    for pattern in patterns.clone() {
        for bytes in elements.iter().filter_map(|element| pattern.key_bytes(element)) {
            heap.take(bytes + DERIVED_BYTES);
        }
        heap.check()?;
    }
    let derived = patterns
        .flat_map(|pattern| elements.iter().filter_map(move |element| pattern.key(element)));
    ctx.derive_keys(1 + u32::from(options.stores), derived.collect())?;
    if !options.unsorted {
        elements = sorted(ctx, tx, (&options, &mut heap), elements)?[from..to].to_vec();
    }
    if options.stores {
        return store(ctx, tx, (&options, &mut heap), &elements);
    }
    ctx.reply.array(elements.len() * options.gets.len().max(1));
    for element in elements {
        if options.gets.is_empty() {
            ctx.reply.bulk(element);
        }
        for pattern in &options.gets {
            match value_of(ctx, tx, pattern, element)? {
                Some(value) => ctx.reply.bulk(&value),
                None => ctx.reply.null(),
            }
        }
        if ctx.reply.overflowed() {
            break;
        }
    }
    Ok(())
}

/// Stores the result as a list in the second key.
fn store(
    ctx: &mut Context<'_>,
    tx: &mut Tx<'_>,
    (options, heap): (&Options<'_>, &mut Heap),
    elements: &[&[u8]],
) -> CmdResult {
    let mut contents = Contents::default();
    for element in elements {
        if options.gets.is_empty() {
            contents.push(element);
        }
        for pattern in &options.gets {
            let value = value_of(ctx, tx, pattern, element)?.unwrap_or_default();
            heap.take(value.len() + DERIVED_BYTES);
            heap.check()?;
            contents.push(&value);
        }
    }
    ctx.keys().store(tx, 1, &NewElements::of(Kind::LIST, &contents))?;
    ctx.reply.int(contents.len() as i64);
    Ok(())
}

fn sort(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    run(ctx, args, tx, true)
}

fn sort_ro(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    run(ctx, args, tx, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_name_keys_and_fields() {
        let parts = |text: &'static str| match Pattern::parse(text.as_bytes()) {
            Pattern::Key { before, behind, field } => (before, behind, field),
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(parts("w_*"), (&b"w_"[..], &b""[..], None));
        assert_eq!(parts("*->f"), (&b""[..], &b""[..], Some(&b"f"[..])));
        assert_eq!(parts("a*b->c*d"), (&b"a"[..], &b"b"[..], Some(&b"c*d"[..])));
        // An arrow at the end is part of the key.
        assert_eq!(parts("a*->"), (&b"a"[..], &b"->"[..], None));
        assert!(matches!(Pattern::parse(b"#"), Pattern::Element));
        assert!(matches!(Pattern::parse(b"constant->f"), Pattern::Nothing));
        assert_eq!(Pattern::parse(b"a*b").key(b"X"), Some(b"aXb".to_vec()));
    }
}
