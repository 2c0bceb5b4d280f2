//! Unions, intersections and differences of sorted sets, and of sets, whose members have score 1.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use stillpoint::{KeySet, Mode, Tx};

use super::answer_score;
use super::score::{parts, score_bytes};
use crate::args::{integer, is};
use crate::config::Db;
use crate::error::{CmdError, CmdResult};
use crate::heap::Heap;
use crate::keyspace::{Contents, Keyspace, Kind, NewElements};
use crate::resp::{Args, parse_f64, parse_i64, parse_u64};
use crate::session::context::Context;
use crate::session::row::{
    COUNTED, Keyed, ONE, R, SORTED_SET, WM, declared_by, row, with_further_keys,
};
use crate::session::spec::{KeySpec, Spec};

#[rustfmt::skip] // each row takes one line
pub(in crate::families) const ROWS: &[Spec] = &[
    row("zdiff", -3, R, COUNTED, SORTED_SET, "6.2.0", Keyed(zdiff), "Returns the members of a sorted set that no other has."),
    with_further_keys(declared_by(row("zdiffstore", -4, WM, ONE, SORTED_SET, "6.2.0", Keyed(zdiffstore), "Stores the members of a sorted set that no other has."), declare_store), sources),
    row("zinter", -3, R, COUNTED, SORTED_SET, "6.2.0", Keyed(zinter), "Returns the members that all sorted sets have."),
    row("zintercard", -3, R, COUNTED, SORTED_SET, "7.0.0", Keyed(zintercard), "Returns the number of members that all sorted sets have."),
    with_further_keys(declared_by(row("zinterstore", -4, WM, ONE, SORTED_SET, "2.0.0", Keyed(zinterstore), "Stores the members that all sorted sets have."), declare_store), sources),
    row("zunion", -3, R, COUNTED, SORTED_SET, "6.2.0", Keyed(zunion), "Returns the members that any of the sorted sets has."),
    with_further_keys(declared_by(row("zunionstore", -4, WM, ONE, SORTED_SET, "2.0.0", Keyed(zunionstore), "Stores the members that any of the sorted sets has."), declare_store), sources),
];

/// The arguments with the keys that are combined into another one; `None` if their count is wrong.
fn sources(args: Args<'_>) -> Option<Vec<usize>> {
    let sources: Vec<usize> = KeySpec::COUNTED_THIRD.positions_in(args).collect();
    let count = args.get(2).and_then(parse_u64);
    (count == Some(sources.len() as u64)).then_some(sources)
}

fn declare_store(args: Args<'_>, db: Db, keyspace: &Keyspace, keys: &mut KeySet) {
    keyspace.declare(keys, db, args.at(1), Mode::Write, 0);
    for i in KeySpec::COUNTED_THIRD.positions_in(args) {
        keyspace.declare(keys, db, args.at(i), Mode::Read, 0);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Union,
    Intersection,
    Difference,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aggregate {
    Sum,
    Min,
    Max,
}

impl Aggregate {
    fn of(self, a: f64, b: f64) -> f64 {
        match self {
            // Infinities of both signs give 0.
            Self::Sum => Some(a + b).filter(|sum| !sum.is_nan()).unwrap_or(0.0),
            Self::Min => a.min(b),
            Self::Max => a.max(b),
        }
    }
}

/// The properties of a command's result.
#[derive(Clone, Copy, Debug)]
struct Form {
    operation: Operation,
    command: &'static str,
    /// The argument with the number of keys.
    count_at: usize,
    only_counts: bool,
}

/// Options behind the keys.
struct Options {
    weights: Vec<f64>,
    aggregate: Aggregate,
    with_scores: bool,
    limit: usize,
}

impl Options {
    fn parse(args: Args<'_>, mut i: usize, keys: usize, form: Form) -> Result<Self, CmdError> {
        let mut options = Self {
            weights: vec![1.0; keys],
            aggregate: Aggregate::Sum,
            with_scores: false,
            limit: 0,
        };
        let combines = form.operation != Operation::Difference && !form.only_counts;
        while let Some(arg) = args.get(i) {
            let left = args.len() - i;
            if combines && left > keys && is(arg, "WEIGHTS") {
                for (weight, arg) in options.weights.iter_mut().zip(args.from(i + 1)) {
                    *weight = parse_f64(arg).ok_or(NOT_WEIGHT)?;
                }
                i += keys;
            } else if combines && left > 1 && is(arg, "AGGREGATE") {
                options.aggregate = match args.at(i + 1) {
                    word if is(word, "SUM") => Aggregate::Sum,
                    word if is(word, "MIN") => Aggregate::Min,
                    word if is(word, "MAX") => Aggregate::Max,
                    _ => return Err(CmdError::SYNTAX),
                };
                i += 1;
            } else if form.count_at == 1 && !form.only_counts && is(arg, "WITHSCORES") {
                options.with_scores = true;
            } else if form.only_counts && left > 1 && is(arg, "LIMIT") {
                let limit = parse_i64(args.at(i + 1)).and_then(|limit| usize::try_from(limit).ok());
                options.limit = limit.ok_or(CmdError::fixed("ERR LIMIT can't be negative"))?;
                i += 1;
            } else {
                return Err(CmdError::SYNTAX);
            }
            i += 1;
        }
        Ok(options)
    }
}

const NOT_WEIGHT: CmdError = CmdError::fixed("ERR weight value is not a float");

/// Members with their scores.
type Scored<'a> = Vec<(f64, &'a [u8])>;

/// The elements of sorted sets, each read once.
struct Inputs {
    read: Vec<Contents>,
    /// For each key that the command names, its place among those.
    named: Vec<usize>,
}

impl Inputs {
    /// The elements of each key, in the order in which the command names the keys.
    fn all(&self) -> Vec<&Contents> {
        self.named.iter().filter_map(|&place| self.read.get(place)).collect()
    }
}

/// Reads the keys and options. Each input is a sorted set's elements.
fn read(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    tx: &mut Tx<'_>,
    form: Form,
) -> Result<(Inputs, Options), CmdError> {
    let count = integer(args.at(form.count_at))?;
    let count = usize::try_from(count).ok().filter(|&count| count > 0).ok_or_else(|| {
        CmdError::text(format!("ERR at least 1 input key is needed for '{}' command", form.command))
    })?;
    let first = form.count_at + 1;
    if count > args.len() - first {
        return Err(CmdError::SYNTAX);
    }
    let mut inputs = Inputs { read: Vec::new(), named: Vec::with_capacity(count) };
    let (mut places, mut heap, mut elements) = (HashMap::new(), ctx.heap(), 0);
    for i in 0..count {
        let (slot, key) = ((form.count_at - 1 + i) as u32, args.at(first + i));
        let place = match places.entry(key) {
            Entry::Occupied(place) => *place.get(),
            Entry::Vacant(place) => {
                let read = read_input(ctx, tx, (slot, key), (&mut heap, &mut elements))?;
                inputs.read.push(read);
                *place.insert(inputs.read.len() - 1)
            }
        };
        inputs.named.push(place);
    }
    Ok((inputs, Options::parse(args, first + count, count, form)?))
}

/// Combines inputs, lowest score first.
fn combine<'a>(inputs: &'a Inputs, options: &Options, operation: Operation) -> Scored<'a> {
    let inputs = inputs.all();
    let mut scored = match operation {
        Operation::Union => union(&inputs, options),
        Operation::Intersection => intersection(&inputs, options),
        Operation::Difference => difference(&inputs),
    };
    // Inputs are sorted already, so most of this is a merge.
    scored.sort_by(|a, b| (score_bytes(a.0), a.1).cmp(&(score_bytes(b.0), b.1)));
    scored
}

/// The members of a sorted set or a set, with their scores. `elements` is the number of elements that
/// the command has read, and reads.
fn read_input(
    ctx: &mut Context<'_>,
    tx: &mut Tx<'_>,
    (slot, key): (u32, &[u8]),
    (heap, elements): (&mut Heap, &mut u64),
) -> Result<Contents, CmdError> {
    let mut input = Contents::default();
    let kind = ctx.keys().lookup(tx, slot, key).map(|entry| entry.kind());
    match kind {
        None => {}
        Some(Kind::SET) => {
            let score = score_bytes(1.0);
            if let Some(mut set) = ctx.keys().open_read(tx, slot, key, Kind::SET)? {
                *elements += set.len();
                ctx.keys().leave_if_long(*elements)?;
                set.copy_all(tx, heap, &mut |member| input.push_parts(&[&score, member]))?;
            }
        }
        Some(_) => {
            if let Some(mut set) = ctx.keys().open_read(tx, slot, key, Kind::SORTED_SET)? {
                *elements += set.len();
                ctx.keys().leave_if_long(*elements)?;
                set.copy_all(tx, heap, &mut |element| input.push(element))?;
            }
        }
    }
    Ok(input)
}

/// The elements of an input, with their scores times a weight.
fn weighted(input: &Contents, weight: f64) -> impl Iterator<Item = (f64, &[u8])> {
    input.iter().map(parts).map(move |(score, member)| {
        (Some(score * weight).filter(|score| !score.is_nan()).unwrap_or(0.0), member)
    })
}

fn union<'a>(inputs: &[&'a Contents], options: &Options) -> Scored<'a> {
    let weights = options.weights.iter().copied();
    if let [only] = inputs {
        return weighted(only, options.weights[0]).collect();
    }
    let most = inputs.iter().map(|input| input.len()).max().unwrap_or(0);
    let (mut all, mut places): (Scored<'_>, _) = (Vec::new(), HashMap::with_capacity(most));
    for (input, weight) in inputs.iter().zip(weights) {
        for (score, member) in weighted(input, weight) {
            match places.entry(member) {
                Entry::Vacant(place) => {
                    place.insert(all.len());
                    all.push((score, member));
                }
                Entry::Occupied(place) => {
                    let old = &mut all[*place.get()].0;
                    *old = options.aggregate.of(*old, score);
                }
            }
        }
    }
    all
}

fn intersection<'a>(inputs: &[&'a Contents], options: &Options) -> Scored<'a> {
    // Scores are combined from the smallest set on, as Redis does.
    let mut order: Vec<usize> = (0..inputs.len()).collect();
    order.sort_by_key(|&i| inputs[i].len());
    let mut common: Option<Scored<'_>> = None;
    for i in order {
        let input = weighted(inputs[i], options.weights[i]);
        common = Some(match common {
            None => input.collect(),
            Some(so_far) if so_far.is_empty() => so_far,
            Some(so_far) => {
                let input: HashMap<&[u8], f64> =
                    input.map(|(score, member)| (member, score)).collect();
                let both = |(score, member)| {
                    let other = *input.get(member)?;
                    Some((options.aggregate.of(score, other), member))
                };
                so_far.into_iter().filter_map(both).collect()
            }
        });
    }
    common.unwrap_or_default()
}

fn difference<'a>(inputs: &[&'a Contents]) -> Scored<'a> {
    let Some((first, others)) = inputs.split_first() else { return Vec::new() };
    let others: HashSet<&[u8]> =
        others.iter().flat_map(|input| input.iter().map(|element| parts(element).1)).collect();
    first.iter().map(parts).filter(|(_, member)| !others.contains(member)).collect()
}

fn answer(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    tx: &mut Tx<'_>,
    (operation, command): (Operation, &'static str),
) -> CmdResult {
    let form = Form { operation, command, count_at: 1, only_counts: false };
    let (inputs, options) = read(ctx, args, tx, form)?;
    let scored = combine(&inputs, &options, operation);
    let nested = options.with_scores && ctx.reply.is_resp3();
    let flat = options.with_scores && !nested;
    ctx.reply.array(if flat { 2 * scored.len() } else { scored.len() });
    for (score, member) in &scored {
        if nested {
            ctx.reply.array(2);
        }
        ctx.reply.bulk(member);
        if options.with_scores {
            answer_score(ctx.reply, *score);
        }
    }
    Ok(())
}

fn store(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    tx: &mut Tx<'_>,
    (operation, command): (Operation, &'static str),
) -> CmdResult {
    let form = Form { operation, command, count_at: 2, only_counts: false };
    let (inputs, options) = read(ctx, args, tx, form)?;
    let scored = combine(&inputs, &options, operation);
    let mut contents = Contents::default();
    scored.iter().for_each(|(score, member)| contents.push_parts(&[&score_bytes(*score), member]));
    ctx.keys().store(tx, 0, &NewElements::of(Kind::SORTED_SET, &contents))?;
    ctx.reply.int(scored.len() as i64);
    Ok(())
}

fn zunion(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    answer(ctx, args, tx, (Operation::Union, "zunion"))
}

fn zinter(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    answer(ctx, args, tx, (Operation::Intersection, "zinter"))
}

fn zdiff(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    answer(ctx, args, tx, (Operation::Difference, "zdiff"))
}

fn zunionstore(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    store(ctx, args, tx, (Operation::Union, "zunionstore"))
}

fn zinterstore(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    store(ctx, args, tx, (Operation::Intersection, "zinterstore"))
}

fn zdiffstore(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    store(ctx, args, tx, (Operation::Difference, "zdiffstore"))
}

fn zintercard(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let operation = Operation::Intersection;
    let form = Form { operation, command: "zintercard", count_at: 1, only_counts: true };
    let (inputs, options) = read(ctx, args, tx, form)?;
    let len = combine(&inputs, &options, operation).len();
    ctx.reply.int((if options.limit == 0 { len } else { len.min(options.limit) }) as i64);
    Ok(())
}
