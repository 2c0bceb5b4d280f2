//! Code shared by the families of collections: scans, ranges and random elements.

use std::collections::HashSet;

use stillpoint::Tx;
use stillpoint_io::Rng;

use super::databases::cursor;
use crate::args::{integer, is};
use crate::error::{CmdError, CmdResult};
use crate::glob::{COMMAND_BUDGET, matches};
use crate::keyspace::{Elements, Kind};
use crate::resp::{Args, Reply, parse_i64};
use crate::session::context::Context;

/// The options of `HSCAN`, `SSCAN` and `ZSCAN`.
struct ScanOptions<'a> {
    pattern: Option<&'a [u8]>,
    count: u64,
}

impl<'a> ScanOptions<'a> {
    fn parse(args: Args<'a>) -> Result<Self, CmdError> {
        let mut options = Self { pattern: None, count: 10 };
        let mut i = 3;
        while let Some(arg) = args.get(i) {
            let value = args.get(i + 1).ok_or(CmdError::SYNTAX)?;
            if is(arg, "COUNT") {
                let count = integer(value)?;
                options.count = u64::try_from(count).map_err(|_| CmdError::SYNTAX)?;
                if count == 0 {
                    return Err(CmdError::SYNTAX);
                }
            } else if is(arg, "MATCH") {
                options.pattern = Some(value).filter(|pattern| *pattern != b"*");
            } else {
                return Err(CmdError::SYNTAX);
            }
            i += 2;
        }
        Ok(options)
    }
}

/// Splits an element into its name and the second part of the reply, if there is one.
type Split = fn(&[u8]) -> (&[u8], Option<Vec<u8>>);

/// Runs a scan of a collection. `split` returns the name of an element, and the second part of the
/// reply.
pub(super) fn scan(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    tx: &mut Tx<'_>,
    kind: Kind,
    split: Split,
) -> CmdResult {
    let from = cursor(args.at(2))?;
    let Some(mut elements) = ctx.keys().open_read(tx, 0, args.at(1), kind)? else {
        ctx.reply.array(2);
        ctx.reply.bulk(b"0");
        ctx.reply.array(0);
        return Ok(());
    };
    let options = ScanOptions::parse(args)?;
    ctx.keys().leave_if_long(options.count.min(elements.len()))?;
    let mut budget = COMMAND_BUDGET;
    let (mut found, mut spent) = (Vec::new(), false);
    let next = elements.scan(tx, (from, options.count), &mut |content| {
        let (name, rest) = split(content);
        match options.pattern.map_or(Ok(true), |pattern| matches(pattern, name, &mut budget)) {
            Ok(true) => {
                found.push(name.to_vec());
                found.extend(rest);
            }
            Ok(false) => {}
            Err(_) => spent = true,
        }
    })?;
    if spent {
        return Err(CmdError::PATTERN);
    }
    ctx.reply.array(2);
    ctx.reply.bulk(next.to_string().as_bytes());
    bulks(ctx.reply, &found);
    Ok(())
}

/// Answers an array of strings.
pub(super) fn bulks(reply: &mut Reply, all: &[Vec<u8>]) {
    reply.array(all.len());
    all.iter().for_each(|one| reply.bulk(one));
}

/// The half-open range of positions that `start..=end` covers of `len`. Negative numbers count from
/// the end.
pub(super) fn clip(start: i64, end: i64, len: u64) -> (u64, u64) {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let place = |i: i64| if i < 0 { i.saturating_add(len) } else { i };
    let (from, to) = (place(start).max(0), place(end).min(len - 1));
    if from > to { (0, 0) } else { (from as u64, to as u64 + 1) }
}

/// `count` different positions below `len`, in no order. If `count` is not below `len`, all
/// positions in order.
pub(super) fn distinct(rng: &dyn Rng, len: u64, count: u64) -> Vec<u64> {
    if count >= len {
        return (0..len).collect();
    }
    if count * 3 > len {
        let mut all: Vec<u64> = (0..len).collect();
        for at in 0..count as usize {
            let other = at + rng.below(len - at as u64) as usize;
            all.swap(at, other);
        }
        all.truncate(count as usize);
        return all;
    }
    let mut seen = HashSet::new();
    let mut drawn = Vec::with_capacity(count as usize);
    while (drawn.len() as u64) < count {
        let position = rng.below(len);
        if seen.insert(position) {
            drawn.push(position);
        }
    }
    drawn
}

/// Reads the count of `HRANDFIELD`, `SRANDMEMBER` and `ZRANDMEMBER`.
pub(super) fn random_count(arg: &[u8]) -> Result<i64, CmdError> {
    let count = parse_i64(arg).ok_or(CmdError::NOT_INTEGER)?;
    if count == i64::MIN { Err(COUNT_RANGE) } else { Ok(count) }
}

/// Reads a count that is not negative.
pub(super) fn clip_count(arg: &[u8]) -> Result<u64, CmdError> {
    let count = parse_i64(arg).and_then(|count| u64::try_from(count).ok());
    count.ok_or(CmdError::fixed("ERR value is out of range, must be positive"))
}

/// Reads, at argument `at`, the number of the keys that follow it.
pub(super) fn numkeys(args: Args<'_>, at: usize) -> Result<usize, CmdError> {
    let count = parse_i64(args.at(at)).and_then(|count| usize::try_from(count).ok());
    let count = count
        .filter(|&count| count > 0)
        .ok_or(CmdError::fixed("ERR numkeys should be greater than 0"))?;
    if count >= args.len() - at {
        return Err(CmdError::fixed("ERR Number of keys can't be greater than number of args"));
    }
    Ok(count)
}

const COUNT_RANGE: CmdError = CmdError::fixed(
    "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
);

/// `HRANDFIELD` and `ZRANDMEMBER`: one random element, several, or several with their values.
/// `answer` writes the name, or the name and the value.
pub(super) fn random_pairs(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    tx: &mut Tx<'_>,
    (kind, word): (Kind, &str),
    answer: fn(&mut Reply, &[u8], bool),
) -> CmdResult {
    let rng = std::sync::Arc::clone(&ctx.shared.config.rng);
    let Some(count) = args.get(2) else {
        let mut drawn = None;
        if let Some(elements) = ctx.keys().open_read(tx, 0, args.at(1), kind)? {
            drawn = Draw::new(elements, tx)?.one(tx, &*rng)?;
        }
        match drawn {
            Some(content) => answer(ctx.reply, &content, false),
            None => ctx.reply.null(),
        }
        return Ok(());
    };
    let count = random_count(count)?;
    let with_values = args.get(3).is_some();
    if args.len() > 4 || args.get(3).is_some_and(|arg| !is(arg, word)) {
        return Err(CmdError::SYNTAX);
    }
    if with_values && !(-i64::MAX / 2..=i64::MAX / 2).contains(&count) {
        return Err(CmdError::fixed("ERR value is out of range"));
    }
    let Some(elements) = ctx.keys().open_read(tx, 0, args.at(1), kind)? else {
        ctx.reply.array(0);
        return Ok(());
    };
    let mut draw = Draw::new(elements, tx)?;
    let shown = match count {
        ..0 if draw.live == 0 => 0,
        ..0 => count.unsigned_abs(),
        _ => count.cast_unsigned().min(draw.live),
    };
    ctx.keys().leave_if_long(shown)?;
    let flat = with_values && !ctx.reply.is_resp3();
    ctx.reply.array((if flat { 2 * shown } else { shown }) as usize);
    if count >= 0 && shown == draw.live {
        draw.elements.visit_all(tx, &mut |content| answer(ctx.reply, content, with_values))?;
        return Ok(());
    }
    if count >= 0 {
        return draw.distinct(tx, &*rng, shown, &mut |content| {
            answer(ctx.reply, content, with_values);
            !ctx.reply.overflowed()
        });
    }
    for _ in 0..shown {
        let drawn = draw.one(tx, &*rng)?;
        answer(ctx.reply, drawn.as_deref().unwrap_or_default(), with_values);
        if ctx.reply.overflowed() {
            break;
        }
    }
    Ok(())
}

/// Draws random elements of a collection, but none that have expired.
struct Draw {
    elements: Elements,
    /// Elements that have not expired.
    live: u64,
    /// The elements that have not expired, as a list, if most elements have expired.
    few: Option<Vec<Vec<u8>>>,
}

impl Draw {
    fn new(mut elements: Elements, tx: &mut Tx<'_>) -> Result<Self, CmdError> {
        let expired = elements.expired(tx)?;
        let live = elements.len().saturating_sub(expired);
        let mut few = None;
        if expired > live {
            let mut all = Vec::new();
            elements.visit_all(tx, &mut |content| all.push(content.to_vec()))?;
            few = Some(all);
        }
        Ok(Self { elements, live, few })
    }

    /// An element; `None` if all have expired.
    fn one(&mut self, tx: &mut Tx<'_>, rng: &dyn Rng) -> Result<Option<Vec<u8>>, CmdError> {
        if self.live == 0 {
            return Ok(None);
        }
        if let Some(few) = &self.few {
            return Ok(few.get(rng.below(self.live) as usize).cloned());
        }
        let judge = self.elements.judge();
        loop {
            let position = rng.below(self.elements.len());
            match self.elements.at(tx, position)? {
                Some(content) if !judge.is_live(&content) => {}
                drawn => return Ok(drawn),
            }
        }
    }

    /// `count` different elements, fewer than there are. `visit` says whether to go on.
    fn distinct(
        &mut self,
        tx: &mut Tx<'_>,
        rng: &dyn Rng,
        count: u64,
        visit: &mut dyn FnMut(&[u8]) -> bool,
    ) -> CmdResult {
        let (judge, len) = (self.elements.judge(), self.elements.len());
        let mut left = count;
        // Among so many positions, at least `count` elements have not expired.
        for position in distinct(rng, len, count + (len - self.live)) {
            let drawn = self.elements.at(tx, position)?.unwrap_or_default();
            if left == 0 || (judge.is_live(&drawn) && !visit(&drawn)) {
                break;
            }
            left -= u64::from(judge.is_live(&drawn));
        }
        Ok(())
    }
}

/// The argument of the first key that has elements, and the elements taken off that key.
pub(super) type Popped = Option<(usize, Vec<Vec<u8>>)>;

/// Opens the collection of a key. If the command has waited, a value of another kind counts as no
/// value, and the next client that waits for the key is woken. What is an earlier client's counts as no
/// value, too.
pub(super) fn open_waiting(
    ctx: &mut Context<'_>,
    tx: &mut Tx<'_>,
    (slot, key): (u32, &[u8]),
    kind: Kind,
) -> Result<Option<Elements>, CmdError> {
    let opened = ctx.keys().open(tx, slot, key, kind);
    match opened {
        Err(error) if error == CmdError::WRONG_TYPE && ctx.has_waited() => {
            let blocked = ctx.client.blocked.take();
            let waiting = blocked.as_ref().map(|blocked| &blocked.waiting);
            ctx.keys().wake_next(tx, slot, waiting);
            ctx.client.blocked = blocked;
            Ok(None)
        }
        Ok(Some(elements)) => {
            let blocked = ctx.client.blocked.take();
            let waiting = blocked.as_ref().map(|blocked| &blocked.waiting);
            let gives_way = waiting.is_some_and(|it| ctx.keys().gives_way(tx, slot, it));
            ctx.client.blocked = blocked;
            Ok(Some(elements).filter(|_| !gives_way))
        }
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use stillpoint_io::SeededRng;

    use super::*;

    #[test]
    fn ranges_are_clipped() {
        for (start, end, len, want) in [
            (0, -1, 5, (0, 5)),
            (1, 2, 5, (1, 3)),
            (-2, -1, 5, (3, 5)),
            (-100, 1, 5, (0, 2)),
            (3, 2, 5, (0, 0)),
            (5, 9, 5, (0, 0)),
            (0, -6, 5, (0, 0)),
            (0, 0, 0, (0, 0)),
            (i64::MIN, i64::MAX, 5, (0, 5)),
        ] {
            assert_eq!(clip(start, end, len), want, "{start} {end} {len}");
        }
    }

    #[test]
    fn drawn_positions_differ() {
        let rng = SeededRng::new(1);
        for (len, count) in [(10, 3), (10, 9), (10, 10), (10, 99), (1000, 5), (1, 0)] {
            let drawn = distinct(&rng, len, count);
            let seen: HashSet<_> = drawn.iter().collect();
            assert_eq!((drawn.len() as u64, seen.len()), (len.min(count), drawn.len()));
            assert!(drawn.iter().all(|&position| position < len));
        }
    }
}
