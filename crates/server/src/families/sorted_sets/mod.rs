//! Sorted sets: members in the order of their scores.

pub(super) mod combine;
pub(super) mod range;
pub(super) mod score;

use stillpoint::{Tx, TxError};

use super::elements::{Popped, clip_count, open_waiting, random_pairs, scan};
use super::lists::pop_options;
use crate::args::is;
use crate::error::{CmdError, CmdResult};
use crate::keyspace::{Elements, Kind};
use crate::resp::{Args, Reply};
use crate::session::context::Context;
use crate::session::row::{COUNTED, Keyed, ONE, R, RF, SORTED_SET, W, WF, WMF, closing, row};
use crate::session::spec::Spec;
use score::{content, parse_score, parts, score_text};

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    closing(row("zadd", -4, WMF, ONE, SORTED_SET, "1.2.0", Keyed(zadd), "Sets the scores of members of a sorted set.")),
    row("zcard", 2, RF, ONE, SORTED_SET, "1.2.0", Keyed(zcard), "Returns the number of members of a sorted set."),
    closing(row("zincrby", 4, WMF, ONE, SORTED_SET, "1.2.0", Keyed(zincrby), "Adds to the score of a member.")),
    row("zmpop", -4, W, COUNTED, SORTED_SET, "7.0.0", Keyed(zmpop), "Removes members from the first sorted set that has some."),
    closing(row("zmscore", -3, RF, ONE, SORTED_SET, "6.2.0", Keyed(zmscore), "Returns the scores of several members.")),
    closing(row("zpopmax", -2, WF, ONE, SORTED_SET, "5.0.0", Keyed(zpopmax), "Removes the members with the highest scores and returns them.")),
    closing(row("zpopmin", -2, WF, ONE, SORTED_SET, "5.0.0", Keyed(zpopmin), "Removes the members with the lowest scores and returns them.")),
    row("zrandmember", -2, R, ONE, SORTED_SET, "6.2.0", Keyed(zrandmember), "Returns random members of a sorted set."),
    row("zrank", -3, RF, ONE, SORTED_SET, "2.0.0", Keyed(zrank), "Returns the position of a member, lowest score first."),
    closing(row("zrem", -3, WF, ONE, SORTED_SET, "1.2.0", Keyed(zrem), "Removes members of a sorted set.")),
    row("zrevrank", -3, RF, ONE, SORTED_SET, "2.0.0", Keyed(zrevrank), "Returns the position of a member, highest score first."),
    row("zscan", -3, R, ONE, SORTED_SET, "2.8.0", Keyed(zscan), "Walks over the members of a sorted set, some at a time."),
    closing(row("zscore", 3, RF, ONE, SORTED_SET, "1.2.0", Keyed(zscore), "Returns the score of a member.")),
];

/// Answers a score.
fn answer_score(reply: &mut Reply, score: f64) {
    reply.double_text(&score_text(score));
}

pub(super) fn score_of(
    set: &mut Elements,
    tx: &mut Tx<'_>,
    member: &[u8],
) -> Result<Option<f64>, TxError> {
    Ok(set.get(tx, member)?.map(|content| parts(&content).0))
}

/// Options of `ZADD`.
#[derive(Default)]
pub(super) struct AddOptions {
    pub(super) only_if_missing: bool,
    pub(super) only_if_there: bool,
    only_greater: bool,
    only_less: bool,
    pub(super) counts_changes: bool,
    adds_to: bool,
}

impl AddOptions {
    /// Reads the options from argument 2 on. Also returns the first argument behind the options.
    fn parse(args: Args<'_>) -> Result<(Self, usize), CmdError> {
        let mut options = Self::default();
        let mut i = 2;
        while let Some(arg) = args.get(i) {
            match arg {
                word if is(word, "NX") => options.only_if_missing = true,
                word if is(word, "XX") => options.only_if_there = true,
                word if is(word, "GT") => options.only_greater = true,
                word if is(word, "LT") => options.only_less = true,
                word if is(word, "CH") => options.counts_changes = true,
                word if is(word, "INCR") => options.adds_to = true,
                _ => break,
            }
            i += 1;
        }
        let rest = args.len() - i;
        let error = match () {
            () if rest == 0 || !rest.is_multiple_of(2) => return Err(CmdError::SYNTAX),
            () if options.only_if_missing && options.only_if_there => {
                "ERR XX and NX options at the same time are not compatible"
            }
            () if (options.only_greater && (options.only_if_missing || options.only_less))
                || (options.only_less && options.only_if_missing) =>
            {
                "ERR GT, LT, and/or NX options at the same time are not compatible"
            }
            () if options.adds_to && rest > 2 => {
                "ERR INCR option supports a single increment-element pair"
            }
            () => return Ok((options, i)),
        };
        Err(CmdError::fixed(error))
    }

    /// The new score of a member that has the score `old`; `None` if the score stays as it is.
    fn new_score(&self, old: Option<f64>, score: f64) -> Result<Option<f64>, CmdError> {
        let Some(old) = old else {
            return Ok((!self.only_if_there).then_some(score));
        };
        if self.only_if_missing {
            return Ok(None);
        }
        let new = if self.adds_to { old + score } else { score };
        if new.is_nan() {
            return Err(CmdError::fixed("ERR resulting score is not a number (NaN)"));
        }
        let is_refused = (self.only_greater && new <= old) || (self.only_less && new >= old);
        Ok((!is_refused).then_some(new))
    }
}

fn zadd(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let (options, first) = AddOptions::parse(args)?;
    add(ctx, args, tx, &options, first)
}

fn zincrby(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let options = AddOptions { adds_to: true, ..AddOptions::default() };
    add(ctx, args, tx, &options, 2)
}

/// Adds the pairs of score and member from argument `first` on.
fn add(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    tx: &mut Tx<'_>,
    options: &AddOptions,
    first: usize,
) -> CmdResult {
    let pairs = (first..args.len()).step_by(2);
    let pairs: Vec<(f64, &[u8])> = pairs
        .map(|i| Ok((parse_score(args.at(i))?, args.at(i + 1))))
        .collect::<Result<_, CmdError>>()?;
    add_pairs(ctx, args.at(1), tx, options, pairs)
}

/// Adds pairs of score and member to the first key's sorted set.
pub(super) fn add_pairs(
    ctx: &mut Context<'_>,
    key: &[u8],
    tx: &mut Tx<'_>,
    options: &AddOptions,
    pairs: Vec<(f64, &[u8])>,
) -> CmdResult {
    let mut set = ctx.keys().open_or_new(tx, 0, key, Kind::SORTED_SET)?;
    let (mut added, mut changed, mut last) = (0, 0, None);
    for (score, member) in pairs {
        set.update(tx, member, |old| {
            let old = old.map(|content| parts(content).0);
            last = options.new_score(old, score)?;
            let new = last.filter(|new| old != Some(*new));
            added += i64::from(old.is_none() && new.is_some());
            changed += i64::from(old.is_some() && new.is_some());
            Ok::<_, CmdError>(new.map(|new| content(new, member)))
        })?;
    }
    ctx.keys().close(tx, 0, set)?;
    match (options.adds_to, last) {
        (true, Some(score)) => answer_score(ctx.reply, score),
        (true, None) => ctx.reply.null(),
        (false, _) => {
            ctx.reply.int(if options.counts_changes { added + changed } else { added });
        }
    }
    Ok(())
}

fn zrem(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let mut removed = 0;
    if let Some(mut set) = ctx.keys().open(tx, 0, args.at(1), Kind::SORTED_SET)? {
        for member in args.from(2) {
            removed += i64::from(set.remove(tx, member)?.is_some());
        }
        ctx.keys().close(tx, 0, set)?;
    }
    ctx.reply.int(removed);
    Ok(())
}

fn zcard(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let len = ctx.keys().read_len(tx, 0, args.at(1), Kind::SORTED_SET)?;
    ctx.reply.int(len as i64);
    Ok(())
}

fn zscore(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let set = ctx.keys().open_read(tx, 0, args.at(1), Kind::SORTED_SET)?;
    let score = match set {
        Some(mut set) => {
            let score = score_of(&mut set, tx, args.at(2))?;
            ctx.keys().close(tx, 0, set)?;
            score
        }
        None => None,
    };
    match score {
        Some(score) => answer_score(ctx.reply, score),
        None => ctx.reply.null(),
    }
    Ok(())
}

fn zmscore(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let mut set = ctx.keys().open_read(tx, 0, args.at(1), Kind::SORTED_SET)?;
    ctx.reply.array(args.len() - 2);
    for member in args.from(2) {
        let score = match &mut set {
            Some(set) => score_of(set, tx, member)?,
            None => None,
        };
        match score {
            Some(score) => answer_score(ctx.reply, score),
            None => ctx.reply.null(),
        }
    }
    if let Some(set) = set {
        ctx.keys().close(tx, 0, set)?;
    }
    Ok(())
}

fn rank(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    tx: &mut Tx<'_>,
    (back, command): (bool, &str),
) -> CmdResult {
    if args.len() > 4 {
        let text = format!("ERR wrong number of arguments for '{command}' command");
        return Err(CmdError::text(text));
    }
    let with_score = args.get(3).is_some();
    if args.get(3).is_some_and(|arg| !is(arg, "WITHSCORE")) {
        return Err(CmdError::SYNTAX);
    }
    let mut found = None;
    if let Some(mut set) = ctx.keys().open_read(tx, 0, args.at(1), Kind::SORTED_SET)?
        && let Some((position, content)) = set.ranked(tx, args.at(2))?
    {
        let position = if back { set.len() - 1 - position } else { position };
        found = Some((position as i64, parts(&content).0));
    }
    match found {
        Some((position, score)) if with_score => {
            ctx.reply.array(2);
            ctx.reply.int(position);
            answer_score(ctx.reply, score);
        }
        Some((position, _)) => ctx.reply.int(position),
        None if with_score => ctx.reply.null_array(),
        None => ctx.reply.null(),
    }
    Ok(())
}

fn zrank(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    rank(ctx, args, tx, (false, "zrank"))
}

fn zrevrank(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    rank(ctx, args, tx, (true, "zrevrank"))
}

/// Removes up to `count` members with the lowest scores, or the highest.
fn take(
    set: &mut Elements,
    tx: &mut Tx<'_>,
    highest: bool,
    count: u64,
) -> Result<Vec<Vec<u8>>, TxError> {
    set.take_end(tx, highest, count)
}

pub(super) fn answer_pair(reply: &mut Reply, element: &[u8]) {
    let (score, member) = parts(element);
    reply.bulk(member);
    answer_score(reply, score);
}

fn pop(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>, highest: bool) -> CmdResult {
    if args.len() > 3 {
        return Err(CmdError::SYNTAX);
    }
    let count = args.get(2).map(clip_count).transpose()?;
    let taken = match ctx.keys().open(tx, 0, args.at(1), Kind::SORTED_SET)? {
        None => Vec::new(),
        Some(mut set) => {
            let count = count.unwrap_or(1);
            ctx.keys().leave_if_long(count.min(set.len()))?;
            let taken = take(&mut set, tx, highest, count)?;
            ctx.keys().close(tx, 0, set)?;
            taken
        }
    };
    let nested = count.is_some() && ctx.reply.is_resp3();
    ctx.reply.array(if nested { taken.len() } else { 2 * taken.len() });
    for element in &taken {
        if nested {
            ctx.reply.array(2);
        }
        answer_pair(ctx.reply, element);
    }
    Ok(())
}

fn zpopmin(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    pop(ctx, args, tx, false)
}

fn zpopmax(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    pop(ctx, args, tx, true)
}

fn zmpop(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let (count, highest, most) = pop_options(args, 1, parse_end)?;
    match pop_first(ctx, args, tx, (2, count), (highest, most))? {
        Some((key, taken)) => answer_popped(ctx.reply, args.at(key), &taken),
        None => ctx.reply.null_array(),
    }
    Ok(())
}

/// Whether the highest scores are meant.
pub(super) fn parse_end(arg: &[u8]) -> Result<bool, CmdError> {
    match () {
        () if is(arg, "MIN") => Ok(false),
        () if is(arg, "MAX") => Ok(true),
        () => Err(CmdError::SYNTAX),
    }
}

/// Takes members off the first of `count` sorted sets, from argument `first` on, that has members.
/// Also returns the argument of its key.
pub(super) fn pop_first(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    tx: &mut Tx<'_>,
    (first, count): (usize, usize),
    (highest, most): (bool, u64),
) -> Result<Popped, CmdError> {
    for slot in 0..count as u32 {
        let at = first + slot as usize;
        let opened = open_waiting(ctx, tx, (slot, args.at(at)), Kind::SORTED_SET)?;
        let Some(mut set) = opened else { continue };
        ctx.keys().leave_if_long(most.min(set.len()))?;
        let taken = take(&mut set, tx, highest, most)?;
        ctx.keys().save(tx, slot, &mut set)?;
        if set.len() > 0 {
            ctx.keys().wake_next(tx, slot, None);
        }
        return Ok(Some((at, taken)));
    }
    Ok(None)
}

pub(super) fn answer_popped(reply: &mut Reply, key: &[u8], taken: &[Vec<u8>]) {
    reply.array(2);
    reply.bulk(key);
    reply.array(taken.len());
    for element in taken {
        reply.array(2);
        answer_pair(reply, element);
    }
}

fn zrandmember(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let kind = (Kind::SORTED_SET, "WITHSCORES");
    random_pairs(ctx, args, tx, kind, |reply, element, both| {
        if !both {
            return reply.bulk(parts(element).1);
        }
        if reply.is_resp3() {
            reply.array(2);
        }
        answer_pair(reply, element);
    })
}

fn zscan(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    scan(ctx, args, tx, Kind::SORTED_SET, |element| {
        let (score, member) = parts(element);
        (member, Some(score_text(score).into_bytes()))
    })
}
