//! Ranges of sorted sets: by position, score or member.

use stillpoint::{KeySet, Mode, Tx, TxError};

use super::answer_pair;
use super::score::{Bounds, parts};
use crate::args::{integer, is};
use crate::config::Db;
use crate::error::{CmdError, CmdResult};
use crate::families::elements::clip;
use crate::keyspace::{Contents, Elements, Keyspace, Kind, NewElements};
use crate::resp::Args;
use crate::session::context::Context;
use crate::session::row::{Keyed, ONE, R, RF, SORTED_SET, TWO, W, WM, declared_by, row};
use crate::session::spec::Spec;

#[rustfmt::skip] // each row takes one line
pub(in crate::families) const ROWS: &[Spec] = &[
    row("zcount", 4, RF, ONE, SORTED_SET, "2.0.0", Keyed(zcount), "Counts the members with scores in a range."),
    row("zlexcount", 4, RF, ONE, SORTED_SET, "2.8.9", Keyed(zlexcount), "Counts the members in a range of members."),
    row("zrange", -4, R, ONE, SORTED_SET, "1.2.0", Keyed(zrange), "Returns a range of members."),
    row("zrangebylex", -4, R, ONE, SORTED_SET, "2.8.9", Keyed(zrangebylex), "Returns the members in a range of members."),
    row("zrangebyscore", -4, R, ONE, SORTED_SET, "1.0.5", Keyed(zrangebyscore), "Returns the members with scores in a range."),
    declared_by(row("zrangestore", -5, WM, TWO, SORTED_SET, "6.2.0", Keyed(zrangestore), "Stores a range of members."), declare_store),
    row("zremrangebylex", 4, W, ONE, SORTED_SET, "2.8.9", Keyed(zremrangebylex), "Removes the members in a range of members."),
    row("zremrangebyrank", 4, W, ONE, SORTED_SET, "2.0.0", Keyed(zremrangebyrank), "Removes the members in a range of positions."),
    row("zremrangebyscore", 4, W, ONE, SORTED_SET, "1.2.0", Keyed(zremrangebyscore), "Removes the members with scores in a range."),
    row("zrevrange", -4, R, ONE, SORTED_SET, "1.2.0", Keyed(zrevrange), "Returns a range of members, highest score first."),
    row("zrevrangebylex", -4, R, ONE, SORTED_SET, "2.8.9", Keyed(zrevrangebylex), "Returns the members in a range of members, last first."),
    row("zrevrangebyscore", -4, R, ONE, SORTED_SET, "2.2.0", Keyed(zrevrangebyscore), "Returns the members with scores in a range, highest first."),
];

fn declare_store(args: Args<'_>, db: Db, keyspace: &Keyspace, keys: &mut KeySet) {
    keyspace.declare(keys, db, args.at(1), Mode::Write, 0);
    keyspace.declare(keys, db, args.at(2), Mode::Read, 0);
}

/// The property by which a range is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Position,
    Score,
    Member,
}

/// The properties of a range that the command's name fixes. `None`: an option gives the property.
#[derive(Clone, Copy, Debug)]
struct Form {
    by: Option<By>,
    back: Option<bool>,
    stores: bool,
}

const fn form(by: By, back: bool) -> Form {
    Form { by: Some(by), back: Some(back), stores: false }
}

/// A range with the options of its command.
struct Range<'a> {
    chosen: Chosen<'a>,
    back: bool,
    with_scores: bool,
    skip: i64,
    most: i64,
}

enum Chosen<'a> {
    Positions(i64, i64),
    Within(Bounds<'a>),
}

impl<'a> Range<'a> {
    /// Reads the bounds at argument `first`, and the options behind them.
    fn parse(args: Args<'a>, first: usize, form: Form) -> Result<Self, CmdError> {
        let (mut by, mut back) = (form.by, form.back);
        let (mut with_scores, mut limit) = (false, None);
        let mut i = first + 2;
        while let Some(arg) = args.get(i) {
            if !form.stores && is(arg, "WITHSCORES") {
                with_scores = true;
            } else if is(arg, "LIMIT") && args.len() - i > 2 {
                limit = Some((integer(args.at(i + 1))?, integer(args.at(i + 2))?));
                i += 2;
            } else if back.is_none() && is(arg, "REV") {
                back = Some(true);
            } else if form.by.is_none() && by.is_none() && is(arg, "BYLEX") {
                by = Some(By::Member);
            } else if form.by.is_none() && by.is_none() && is(arg, "BYSCORE") {
                by = Some(By::Score);
            } else {
                return Err(CmdError::SYNTAX);
            }
            i += 1;
        }
        let (by, back) = (by.unwrap_or(By::Position), back.unwrap_or(false));
        if limit.is_some_and(|(_, most)| most != -1) && by == By::Position {
            return Err(CmdError::fixed(
                "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or \
                 BYLEX",
            ));
        }
        if with_scores && by == By::Member {
            return Err(CmdError::fixed(
                "ERR syntax error, WITHSCORES not supported in combination with BYLEX",
            ));
        }
        let (a, b) = (args.at(first), args.at(first + 1));
        let (from, to) = if back { (b, a) } else { (a, b) };
        let chosen = match by {
            By::Position => Chosen::Positions(integer(a)?, integer(b)?),
            By::Score => Chosen::Within(Bounds::of_scores(from, to)?),
            By::Member => Chosen::Within(Bounds::of_members(from, to)?),
        };
        let (skip, most) = limit.filter(|_| by != By::Position).unwrap_or((0, -1));
        Ok(Self { chosen, back, with_scores, skip, most })
    }

    /// Where the range begins, in the order in which it is answered, and how long it is.
    fn find(&self, set: &mut Elements, tx: &mut Tx<'_>) -> Result<(u64, u64), TxError> {
        let len = set.len();
        let (from, to) = match &self.chosen {
            Chosen::Positions(start, end) => {
                let (from, to) = clip(*start, *end, len);
                if self.back && from < to { (len - to, len - from) } else { (from, to) }
            }
            Chosen::Within(bounds) => within(set, tx, bounds)?,
        };
        let skip = u64::try_from(self.skip).unwrap_or(u64::MAX).min(to - from);
        let left = to - from - skip;
        let count = u64::try_from(self.most).unwrap_or(u64::MAX).min(left);
        let first = if self.back { (to - skip).saturating_sub(1) } else { from + skip };
        Ok((first, count))
    }
}

/// The half-open range of positions within bounds.
fn within(set: &mut Elements, tx: &mut Tx<'_>, bounds: &Bounds<'_>) -> Result<(u64, u64), TxError> {
    let from = set.count_before(tx, &|element| bounds.is_before(element))?;
    let to = set.count_before(tx, &|element| bounds.is_not_behind(element))?;
    Ok(if from < to { (from, to) } else { (0, 0) })
}

fn answer(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>, form: Form) -> CmdResult {
    let range = Range::parse(args, 2, form)?;
    let Some(mut set) = ctx.keys().open_read(tx, 0, args.at(1), Kind::SORTED_SET)? else {
        ctx.reply.array(0);
        return Ok(());
    };
    let (first, count) = range.find(&mut set, tx)?;
    ctx.keys().leave_if_long(count)?;
    let nested = range.with_scores && ctx.reply.is_resp3();
    let flat = range.with_scores && !nested;
    ctx.reply.array((if flat { 2 * count } else { count }) as usize);
    set.visit(tx, (first, count), range.back, &mut |element| {
        if nested {
            ctx.reply.array(2);
        }
        if range.with_scores {
            answer_pair(ctx.reply, element);
        } else {
            ctx.reply.bulk(parts(element).1);
        }
    })?;
    Ok(())
}

fn zrange(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    answer(ctx, args, tx, Form { by: None, back: None, stores: false })
}

fn zrevrange(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    answer(ctx, args, tx, form(By::Position, true))
}

fn zrangebyscore(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    answer(ctx, args, tx, form(By::Score, false))
}

fn zrevrangebyscore(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    answer(ctx, args, tx, form(By::Score, true))
}

fn zrangebylex(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    answer(ctx, args, tx, form(By::Member, false))
}

fn zrevrangebylex(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    answer(ctx, args, tx, form(By::Member, true))
}

fn zrangestore(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let range = Range::parse(args, 3, Form { by: None, back: None, stores: true })?;
    let mut found = Contents::default();
    if let Some(mut set) = ctx.keys().open_read(tx, 1, args.at(2), Kind::SORTED_SET)? {
        let (first, count) = range.find(&mut set, tx)?;
        ctx.keys().leave_if_long(count)?;
        let mut keep = |element: &[u8]| found.push(element);
        set.visit(tx, (first, count), range.back, &mut keep)?;
    }
    ctx.keys().store(tx, 0, &NewElements::of(Kind::SORTED_SET, &found))?;
    ctx.reply.int(found.len() as i64);
    Ok(())
}

fn count(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>, bounds: &Bounds<'_>) -> CmdResult {
    let count = match ctx.keys().open_read(tx, 0, args.at(1), Kind::SORTED_SET)? {
        None => 0,
        Some(mut set) => {
            let (from, to) = within(&mut set, tx, bounds)?;
            to - from
        }
    };
    ctx.reply.int(count as i64);
    Ok(())
}

fn zcount(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let bounds = Bounds::of_scores(args.at(2), args.at(3))?;
    count(ctx, args, tx, &bounds)
}

fn zlexcount(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let bounds = Bounds::of_members(args.at(2), args.at(3))?;
    count(ctx, args, tx, &bounds)
}

fn remove(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>, chosen: Chosen<'_>) -> CmdResult {
    let range = Range { chosen, back: false, with_scores: false, skip: 0, most: -1 };
    let mut removed = 0;
    if let Some(mut set) = ctx.keys().open(tx, 0, args.at(1), Kind::SORTED_SET)? {
        let (first, count) = range.find(&mut set, tx)?;
        if count > 0 {
            let range = first..first + count;
            removed = set.remove_ranges(tx, &[range], None)? as i64;
        }
        ctx.keys().save(tx, 0, &mut set)?;
    }
    ctx.reply.int(removed);
    Ok(())
}

fn zremrangebyrank(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let chosen = Chosen::Positions(integer(args.at(2))?, integer(args.at(3))?);
    remove(ctx, args, tx, chosen)
}

fn zremrangebyscore(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let bounds = Bounds::of_scores(args.at(2), args.at(3))?;
    remove(ctx, args, tx, Chosen::Within(bounds))
}

fn zremrangebylex(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let bounds = Bounds::of_members(args.at(2), args.at(3))?;
    remove(ctx, args, tx, Chosen::Within(bounds))
}
