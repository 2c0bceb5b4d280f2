//! HyperLogLog: an estimate of the number of different elements, in at most 12 KiB.
//!
//! `PFCOUNT` of one key uses the number in the header if it is valid. Unlike in Redis, the command
//! never writes that number, so that a read stays a read.

mod registers;

use stillpoint::{KeySet, Mode, Tx};
use stillpoint_io::Rng;

use crate::args::is;
use crate::config::Db;
use crate::error::{CmdError, CmdResult, quoted};
use crate::keyspace::{Keyspace, Kind};
use crate::resp::Args;
use crate::session::context::Context;
use crate::session::row::{
    ADM, ALL, Keyed, M, NONE, ONE, Pure, R, W, WM, WMF, declared_by, row, with_further_keys,
};
use crate::session::spec::{Group, KeySpec, Spec};
use registers::{Corrupted, Registers, Sketch, estimate};

const HYPERLOGLOG: Group = Group { name: "hyperloglog", category: Some("@hyperloglog") };

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    row("pfadd", -2, WMF, ONE, HYPERLOGLOG, "2.8.9", Keyed(pfadd), "Adds elements to a HyperLogLog."),
    row("pfcount", -2, R, ALL, HYPERLOGLOG, "2.8.9", Keyed(pfcount), "Returns about how many different elements were added."),
    row("pfdebug", 3, W.or(M).or(ADM), KeySpec { first: 2, last: 2, step: 1, count_at: 0 }, HYPERLOGLOG, "2.8.9", Keyed(pfdebug), "Shows the inside of a HyperLogLog."),
    with_further_keys(declared_by(row("pfmerge", -2, WM, ALL, HYPERLOGLOG, "2.8.9", Keyed(pfmerge), "Merges HyperLogLogs into one."), declare_merge), sources),
    row("pfselftest", 1, ADM, NONE, HYPERLOGLOG, "2.8.9", Pure(pfselftest), "Tests the implementation."),
];

impl From<Corrupted> for CmdError {
    fn from(_: Corrupted) -> Self {
        Self::fixed("INVALIDOBJ Corrupted HLL object detected")
    }
}

/// The value of a key: its bytes, and the time of its expiry.
struct Stored {
    bytes: Vec<u8>,
    expire_at_ms: Option<u64>,
}

/// Reads the sketch of a key.
fn read(
    ctx: &mut Context<'_>,
    tx: &mut Tx<'_>,
    slot: u32,
    key: &[u8],
) -> Result<Option<Stored>, CmdError> {
    let Some(entry) = ctx.keys().read_kind(tx, slot, key, Kind::STRING)? else { return Ok(None) };
    let mut bytes = Vec::with_capacity(entry.len());
    entry.copy_to(&mut bytes);
    if !Sketch::is_one(&bytes) {
        return Err(CmdError::fixed("WRONGTYPE Key is not a valid HyperLogLog string value."));
    }
    Ok(Some(Stored { bytes, expire_at_ms: entry.expire_at_ms }))
}

/// Writes the changed bytes of the first key's sketch.
fn write(
    ctx: &mut Context<'_>,
    tx: &mut Tx<'_>,
    old: Option<&Stored>,
    new: &[u8],
) -> Result<(), CmdError> {
    match old {
        Some(old) if old.bytes.len() == new.len() => {
            let differs = |(a, b): (&u8, &u8)| a != b;
            let pairs = || old.bytes.iter().zip(new);
            let (first, last) = (pairs().position(differs), pairs().rposition(differs));
            if let (Some(first), Some(last)) = (first, last) {
                ctx.keys().patch(tx, 0, first, &new[first..=last])?;
            }
        }
        old => {
            let expire_at_ms = old.and_then(|old| old.expire_at_ms);
            ctx.keys().put(tx, 0, Kind::STRING, expire_at_ms, new)?;
        }
    }
    Ok(())
}

fn pfadd(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let old = read(ctx, tx, 0, args.at(1))?;
    let mut sketch = Sketch::of(old.as_ref().map(|old| &old.bytes[..]));
    let mut has_changed = old.is_none();
    for element in args.from(2) {
        has_changed |= sketch.add(element)?;
    }
    if has_changed {
        sketch.invalidate();
        write(ctx, tx, old.as_ref(), &sketch.bytes)?;
    }
    ctx.reply.int(i64::from(has_changed));
    Ok(())
}

fn pfcount(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let mut all = Registers::default();
    for (slot, key) in (0..).zip(args.from(1)) {
        let Some(stored) = read(ctx, tx, slot, key)? else { continue };
        let sketch = Sketch::of(Some(&stored.bytes));
        if args.len() == 2
            && let Some(count) = sketch.known_count()
        {
            ctx.reply.int(count);
            return Ok(());
        }
        sketch.merge_into(&mut all)?;
    }
    ctx.reply.int(estimate(&all));
    Ok(())
}

fn declare_merge(args: Args<'_>, db: Db, keyspace: &Keyspace, keys: &mut KeySet) {
    keyspace.declare(keys, db, args.at(1), Mode::Write, 0);
    for key in args.from(2) {
        keyspace.declare(keys, db, key, Mode::Read, 0);
    }
}

/// `COMMAND GETKEYS` of Redis refuses a merge without sources, although the command allows it. All keys are in the
/// row.
fn sources(args: Args<'_>) -> Option<Vec<usize>> {
    (args.len() > 2).then(Vec::new)
}

fn pfmerge(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let (mut all, mut is_dense, mut target) = (Registers::default(), false, None);
    for (slot, key) in (0..).zip(args.from(1)) {
        let Some(stored) = read(ctx, tx, slot, key)? else { continue };
        let sketch = Sketch::of(Some(&stored.bytes));
        is_dense |= sketch.is_dense();
        sketch.merge_into(&mut all)?;
        if slot == 0 {
            target = Some(stored);
        }
    }
    let mut sketch = Sketch::of(target.as_ref().map(|target| &target.bytes[..]));
    if is_dense {
        sketch.make_dense()?;
    }
    for (register, &value) in all.iter().enumerate() {
        if value > 0 {
            sketch.raise(register, value)?;
        }
    }
    sketch.invalidate();
    write(ctx, tx, target.as_ref(), &sketch.bytes)?;
    ctx.reply.ok();
    Ok(())
}

fn pfdebug(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let stored = read(ctx, tx, 0, args.at(2))?
        .ok_or(CmdError::fixed("ERR The specified key does not exist"))?;
    let mut sketch = Sketch::of(Some(&stored.bytes));
    let was_dense = sketch.is_dense();
    let subcommand = args.at(1);
    if is(subcommand, "GETREG") {
        sketch.make_dense()?;
        write(ctx, tx, Some(&stored), &sketch.bytes)?;
        let mut all = Registers::default();
        sketch.merge_into(&mut all)?;
        ctx.reply.array(all.len());
        all.iter().for_each(|&register| ctx.reply.int(i64::from(register)));
    } else if is(subcommand, "DECODE") {
        if was_dense {
            return Err(CmdError::fixed("ERR HLL encoding is not sparse"));
        }
        // A sketch whose runs are not those of its registers has no end of them.
        sketch.merge_into(&mut Registers::default())?;
        ctx.reply.bulk(sketch.runs_text().as_bytes());
    } else if is(subcommand, "ENCODING") {
        ctx.reply.simple(if was_dense { "dense" } else { "sparse" });
    } else if is(subcommand, "TODENSE") {
        sketch.make_dense()?;
        write(ctx, tx, Some(&stored), &sketch.bytes)?;
        ctx.reply.int(i64::from(!was_dense));
    } else {
        let shown = quoted(subcommand, 128);
        return Err(CmdError::text(format!("ERR Unknown PFDEBUG subcommand '{shown}'")));
    }
    Ok(())
}

/// Elements that the test adds at most.
const TESTED_ELEMENTS: u64 = 100_000;

/// Adds random elements to two sketches: one that is dense, and one that becomes dense by itself.
/// Compares both with each other and with the true number.
fn pfselftest(ctx: &mut Context<'_>, _: Args<'_>) -> CmdResult {
    let rng = std::sync::Arc::clone(&ctx.shared.config.rng);
    if let Some(what) = fault(&*rng)? {
        return Err(CmdError::text(format!("TESTFAILED {what}")));
    }
    ctx.reply.ok();
    Ok(())
}

/// The fault that the test finds. `None` if there is none.
fn fault(rng: &dyn Rng) -> Result<Option<String>, Corrupted> {
    let (mut sparse, mut dense) = (Sketch::of(None), Sketch::of(None));
    dense.make_dense()?;
    let seed = rng.next_u64();
    let mut next = 1;
    for number in 1..=TESTED_ELEMENTS {
        let element = (seed ^ number).to_le_bytes();
        if sparse.add(&element)? != dense.add(&element)? {
            return Ok(Some(format!("dense/sparse disagree on element {number}")));
        }
        if number < next {
            continue;
        }
        next *= 10;
        let counts = [&sparse, &dense].map(|sketch| {
            let mut all = Registers::default();
            sketch.merge_into(&mut all).map(|()| estimate(&all))
        });
        let [sparse_count, dense_count] = counts;
        let (sparse_count, dense_count) = (sparse_count?, dense_count?);
        // Six standard errors, as Redis allows, and a few for small numbers.
        let allowed = (number as f64 * 6.0 * 1.04 / 128.0).ceil().max(2.0) as u64;
        if sparse_count != dense_count || number.abs_diff(dense_count as u64) > allowed {
            return Ok(Some(format!(
                "too big an error: {number} elements, sparse {sparse_count}, dense {dense_count}"
            )));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use stillpoint_io::SeededRng;

    use super::*;

    #[test]
    fn the_test_of_the_implementation_passes() {
        for seed in 0..3 {
            assert_eq!(fault(&SeededRng::new(seed)).map_err(|_| ()), Ok(None));
        }
    }
}
