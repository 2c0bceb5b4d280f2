//! Bits of strings, and integers of any width among them. Bit 0 is the highest of the first byte.

use std::collections::HashMap;

use stillpoint::{KeySet, Mode, Tx};

use crate::args::{integer, is};
use crate::config::Db;
use crate::error::{CmdError, CmdResult};
use crate::keyspace::{Keyspace, Kind};
use crate::resp::{Args, parse_i64, parse_u64};
use crate::session::context::Context;
use crate::session::row::{
    FROM_SECOND, Keyed, ONE, R, RF, WM, copying, declared_by, row, weighed_by,
};
use crate::session::spec::{Group, Spec};

const BITMAP: Group = Group { name: "bitmap", category: Some("@bitmap") };

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    copying(row("bitcount", -2, R, ONE, BITMAP, "2.6.0", Keyed(bitcount), "Counts the bits that are set.")),
    copying(row("bitfield", -2, WM, ONE, BITMAP, "3.2.0", Keyed(bitfield), "Reads and changes integers of any width.")),
    copying(row("bitfield_ro", -2, RF, ONE, BITMAP, "6.0.0", Keyed(bitfield_ro), "Reads integers of any width.")),
    copying(declared_by(row("bitop", -4, WM, FROM_SECOND, BITMAP, "2.6.0", Keyed(bitop), "Combines strings bit by bit."), declare_bitop)),
    copying(row("bitpos", -3, R, ONE, BITMAP, "2.8.7", Keyed(bitpos), "Returns the first bit that is set, or not.")),
    row("getbit", 3, RF, ONE, BITMAP, "2.2.0", Keyed(getbit), "Returns a bit."),
    weighed_by(row("setbit", 4, WM, ONE, BITMAP, "2.2.0", Keyed(setbit), "Sets a bit and returns the old one."), setbit_weight),
];

const BIT_OFFSET: CmdError = CmdError::fixed("ERR bit offset is not an integer or out of range");

/// Reads the number of a bit. `#3` is the third integer of `width` bits after the first.
fn bit_offset(ctx: &Context<'_>, arg: &[u8], width: Option<u32>) -> Result<u64, CmdError> {
    let (text, factor) = match (arg, width) {
        ([b'#', rest @ ..], Some(width)) => (rest, u64::from(width)),
        _ => (arg, 1),
    };
    let offset = parse_i64(text).and_then(|offset| u64::try_from(offset).ok());
    let offset = offset.and_then(|offset| offset.checked_mul(factor));
    offset.filter(|offset| offset / 8 < ctx.local.max_bulk_bytes).ok_or(BIT_OFFSET)
}

/// The value of a key as bytes, and whether there is one.
fn bytes_of(
    ctx: &mut Context<'_>,
    tx: &mut Tx<'_>,
    slot: u32,
    key: &[u8],
) -> Result<Option<Vec<u8>>, CmdError> {
    let entry = ctx.keys().read_kind(tx, slot, key, Kind::STRING)?;
    Ok(entry.map(|entry| {
        let mut bytes = Vec::with_capacity(entry.len());
        entry.copy_to(&mut bytes);
        bytes
    }))
}

fn getbit(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let offset = bit_offset(ctx, args.at(2), None)?;
    let byte = (offset / 8) as usize;
    let mut at = Vec::new();
    if let Some(entry) = ctx.keys().read_kind(tx, 0, args.at(1), Kind::STRING)?
        && byte < entry.len()
    {
        entry.copy_range_to(byte, byte + 1, &mut at);
    }
    let bit = at.first().map_or(0, |at| at >> (7 - offset % 8) & 1);
    ctx.reply.int(i64::from(bit));
    Ok(())
}

/// The string may have to grow up to the bit.
fn setbit_weight(args: Args<'_>, _: Db, _: &Keyspace) -> usize {
    args.get(2).and_then(parse_u64).map_or(0, |offset| (offset >> 13) as usize)
}

fn setbit(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let offset = bit_offset(ctx, args.at(2), None)?;
    let on = match parse_i64(args.at(3)) {
        Some(bit @ 0..=1) => bit == 1,
        _ => return Err(CmdError::fixed("ERR bit is not an integer or out of range")),
    };
    let byte = (offset / 8) as usize;
    let mut at = Vec::new();
    let entry = ctx.keys().lookup_kind(tx, 0, args.at(1), Kind::STRING)?;
    let len = entry.map(|entry| entry.len());
    if let Some(entry) = entry.filter(|entry| byte < entry.len()) {
        entry.copy_range_to(byte, byte + 1, &mut at);
    }
    let old = at.first().copied().unwrap_or(0);
    let bit = 1 << (7 - offset % 8);
    let new = if on { old | bit } else { old & !bit };
    if new == old && !at.is_empty() {
        // As in Redis, this is no change for those who watch the key.
        ctx.reply.int(i64::from(old & bit != 0));
        return Ok(());
    }
    // The bytes between the end of the string and the bit become zeros.
    let from = byte.min(len.unwrap_or(0));
    tx.check_room(byte - from)?;
    let mut bytes = vec![0; byte - from];
    bytes.push(new);
    write_range(ctx, tx, (from, len.is_some()), &bytes)?;
    ctx.reply.int(i64::from(old & bit != 0));
    Ok(())
}

/// Writes a range of the first key's string, which begins at most at its end.
fn write_range(
    ctx: &mut Context<'_>,
    tx: &mut Tx<'_>,
    (from, is_there): (usize, bool),
    bytes: &[u8],
) -> CmdResult {
    if is_there {
        ctx.keys().patch(tx, 0, from, bytes)?;
    } else {
        ctx.keys().put(tx, 0, Kind::STRING, None, bytes)?;
    }
    Ok(())
}

/// Whether the last argument of a range says that its bounds are bits.
fn counts_bits(arg: &[u8]) -> Result<bool, CmdError> {
    match () {
        () if is(arg, "BIT") => Ok(true),
        () if is(arg, "BYTE") => Ok(false),
        () => Err(CmdError::SYNTAX),
    }
}

/// The half-open range of bits that `start..=end` covers; units are bits or bytes.
fn bit_range(start: i64, end: i64, len: usize, in_bits: bool) -> (u64, u64) {
    let total = if in_bits { 8 * len as i64 } else { len as i64 };
    let place = |i: i64| if i < 0 { i.saturating_add(total).max(0) } else { i };
    let (from, to) = (place(start), place(end).min(total - 1));
    if from > to {
        return (0, 0);
    }
    let unit = if in_bits { 1 } else { 8 };
    (from as u64 * unit, (to as u64 + 1) * unit)
}

/// The bits of a byte that lie in the half-open range of bits `from..to`.
fn mask(byte: usize, from: u64, to: u64) -> u8 {
    let first = 8 * byte as u64;
    let low = from.saturating_sub(first).min(8) as u32;
    let high = to.saturating_sub(first).min(8) as u32;
    let after = |bits: u32| (0xff_u32 >> bits) as u8;
    after(low) & !after(high)
}

/// The bytes that a range of bits touches.
fn touched(from: u64, to: u64) -> std::ops::Range<usize> {
    (from / 8) as usize..to.div_ceil(8) as usize
}

fn bitcount(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let Some(bytes) = bytes_of(ctx, tx, 0, args.at(1))? else {
        ctx.reply.int(0);
        return Ok(());
    };
    let (from, to) = match args.len() {
        2 => (0, 8 * bytes.len() as u64),
        4 | 5 => {
            let (start, end) = (integer(args.at(2))?, integer(args.at(3))?);
            if start < 0 && end < 0 && start > end {
                (0, 0)
            } else {
                let in_bits = args.get(4).map_or(Ok(false), counts_bits)?;
                bit_range(start, end, bytes.len(), in_bits)
            }
        }
        _ => return Err(CmdError::SYNTAX),
    };
    let ones = |byte: usize| i64::from((bytes[byte] & mask(byte, from, to)).count_ones());
    let count: i64 = touched(from, to).map(ones).sum();
    ctx.reply.int(count);
    Ok(())
}

fn bitpos(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let bit = integer(args.at(2))?;
    if !(0..=1).contains(&bit) {
        return Err(CmdError::fixed("ERR The bit argument must be 1 or 0."));
    }
    let Some(bytes) = bytes_of(ctx, tx, 0, args.at(1))? else {
        ctx.reply.int(-bit);
        return Ok(());
    };
    if args.len() > 6 {
        return Err(CmdError::SYNTAX);
    }
    let start = args.get(3).map_or(Ok(0), integer)?;
    let in_bits = args.get(5).map_or(Ok(false), counts_bits)?;
    let end = args.get(4).map(integer).transpose()?;
    let (from, to) = bit_range(start, end.unwrap_or(-1), bytes.len(), in_bits);
    if from == to {
        ctx.reply.int(-1);
        return Ok(());
    }
    let wanted = |byte: usize| {
        let bits = if bit == 1 { bytes[byte] } else { !bytes[byte] };
        bits & mask(byte, from, to)
    };
    let found = touched(from, to).find(|&byte| wanted(byte) != 0);
    let position = match found {
        Some(byte) => 8 * byte as i64 + i64::from(wanted(byte).leading_zeros()),
        // The string ends in zeros without end, unless the range has an end.
        None if bit == 0 && end.is_none() => to as i64,
        None => -1,
    };
    ctx.reply.int(position);
    Ok(())
}

fn declare_bitop(args: Args<'_>, db: Db, keyspace: &Keyspace, keys: &mut KeySet) {
    keyspace.declare(keys, db, args.at(2), Mode::Write, 0);
    for key in args.from(3) {
        keyspace.declare(keys, db, key, Mode::Read, 0);
    }
}

/// How `BITOP` combines the bits of the first source with those of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BitOp {
    And,
    Or,
    Xor,
    Not,
    /// Bits set in the first source and in no other.
    Diff,
    /// Bits set in any other source and not in the first.
    Diff1,
    /// Bits set in the first source and in any other.
    AndOr,
    /// Bits set in exactly one source.
    One,
}

impl BitOp {
    fn parse(word: &[u8], sources: usize) -> Result<Self, CmdError> {
        let all = [
            ("AND", Self::And),
            ("OR", Self::Or),
            ("XOR", Self::Xor),
            ("NOT", Self::Not),
            ("DIFF", Self::Diff),
            ("DIFF1", Self::Diff1),
            ("ANDOR", Self::AndOr),
            ("ONE", Self::One),
        ];
        let found = all.into_iter().find(|(name, _)| is(word, name));
        let (name, op) = found.ok_or(CmdError::SYNTAX)?;
        let needed = match op {
            Self::Not if sources != 1 => "a single source key",
            Self::Diff | Self::Diff1 | Self::AndOr if sources < 2 => "at least two source keys",
            _ => return Ok(op),
        };
        Err(CmdError::text(format!("ERR BITOP {name} must be called with {needed}.")))
    }

    /// Combines one byte of the first source with the same byte of the others.
    fn combine(self, first: u8, others: impl Iterator<Item = u8>) -> u8 {
        match self {
            Self::And => others.fold(first, |a, b| a & b),
            Self::Or => others.fold(first, |a, b| a | b),
            Self::Xor => others.fold(first, |a, b| a ^ b),
            Self::Not => !first,
            Self::Diff => others.fold(first, |a, b| a & !b),
            Self::Diff1 => others.fold(0, |a, b| a | b) & !first,
            Self::AndOr => others.fold(0, |a, b| a | b) & first,
            Self::One => {
                let several = |(once, more): (u8, u8), b: u8| ((once ^ b) & !more, more | once & b);
                let (once, more) = others.fold((first, 0), several);
                once & !more
            }
        }
    }
}

fn bitop(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let op = BitOp::parse(args.at(1), args.len() - 3)?;
    // A key that is named again is not read again.
    let (mut read, mut heap) = (HashMap::new(), ctx.heap());
    for (slot, key) in (1..).zip(args.from(3)) {
        if read.contains_key(key) {
            continue;
        }
        let len = ctx.keys().lookup_kind(tx, slot, key, Kind::STRING)?.map_or(0, |e| e.len());
        heap.take(len);
        heap.check()?;
        read.insert(key, bytes_of(ctx, tx, slot, key)?.unwrap_or_default());
    }
    let len = read.values().map(Vec::len).max().unwrap_or(0);
    tx.check_room(len)?;
    let sources: Vec<&[u8]> =
        args.from(3).map(|key| read.get(key).map_or(&[][..], |bytes| bytes)).collect();
    let (mut result, others) = match &sources[..] {
        [first, others @ ..] => (first.to_vec(), others),
        [] => return Err(CmdError::SYNTAX),
    };
    result.resize(len, 0);
    for (i, byte) in result.iter_mut().enumerate() {
        let others = others.iter().map(|source| source.get(i).copied().unwrap_or(0));
        *byte = op.combine(*byte, others);
    }
    if result.is_empty() {
        ctx.keys().delete(tx, 0)?;
    } else {
        ctx.keys().put(tx, 0, Kind::STRING, None, &result)?;
    }
    ctx.reply.int(len as i64);
    Ok(())
}

/// The rule for a number that its integer cannot hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

/// An integer among the bits.
#[derive(Clone, Copy, Debug)]
struct Field {
    signed: bool,
    width: u32,
    offset: u64,
}

/// An operation of `BITFIELD`.
#[derive(Clone, Copy, Debug)]
enum FieldOp {
    Get,
    Set(i64),
    Add(i64),
}

impl Field {
    fn parse(ctx: &Context<'_>, kind: &[u8], offset: &[u8]) -> Result<Self, CmdError> {
        let error = CmdError::fixed(
            "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported \
             but i64 is.",
        );
        let (signed, digits) = match kind {
            [b'i', digits @ ..] => (true, digits),
            [b'u', digits @ ..] => (false, digits),
            _ => return Err(error),
        };
        let most = if signed { 64 } else { 63 };
        let width = parse_i64(digits).filter(|width| (1..=most).contains(width)).ok_or(error)?;
        let width = width as u32;
        let offset = bit_offset(ctx, offset, Some(width))?;
        Ok(Self { signed, width, offset })
    }

    /// The byte behind the field.
    fn end(self) -> usize {
        (self.offset + u64::from(self.width)).div_ceil(8) as usize
    }

    fn get(self, bytes: &[u8]) -> i64 {
        let bits = (self.offset..self.offset + u64::from(self.width)).fold(0_u64, |bits, at| {
            let byte = bytes.get((at / 8) as usize).copied().unwrap_or(0);
            bits << 1 | u64::from(byte >> (7 - at % 8) & 1)
        });
        self.extended(bits)
    }

    /// The number that the lowest bits of `bits` mean.
    fn extended(self, bits: u64) -> i64 {
        let shift = 64 - self.width;
        if self.signed {
            (bits << shift).cast_signed() >> shift
        } else {
            (bits << shift >> shift).cast_signed()
        }
    }

    /// Writes the lowest bits of a number. The bytes reach to the end of the field.
    fn put(self, bytes: &mut [u8], number: i64) {
        for i in 0..self.width {
            let at = self.offset + u64::from(i);
            let bit = (number >> (self.width - 1 - i)) as u8 & 1;
            let (byte, shift) = (&mut bytes[(at / 8) as usize], 7 - at % 8);
            *byte = *byte & !(1 << shift) | bit << shift;
        }
    }

    /// The number that the field holds after an attempt to hold `number`; `None` if it is refused.
    fn fit(self, number: i128, overflow: Overflow) -> Option<i64> {
        let (low, high) = match self.signed {
            true => (-(1_i128 << (self.width - 1)), (1_i128 << (self.width - 1)) - 1),
            false => (0, (1_i128 << self.width) - 1),
        };
        if (low..=high).contains(&number) {
            return Some(number as i64);
        }
        match overflow {
            Overflow::Wrap => Some(self.extended(number as u64)),
            Overflow::Saturate => Some(if number < low { low as i64 } else { high as i64 }),
            Overflow::Fail => None,
        }
    }
}

/// Reads the operations, each with its rule for an overflow.
fn field_ops(
    ctx: &Context<'_>,
    args: Args<'_>,
) -> Result<Vec<(Field, FieldOp, Overflow)>, CmdError> {
    let mut ops = Vec::new();
    let mut overflow = Overflow::Wrap;
    let mut i = 2;
    while let Some(word) = args.get(i) {
        let left = args.len() - i - 1;
        if is(word, "OVERFLOW") && left >= 1 {
            overflow = match args.at(i + 1) {
                word if is(word, "WRAP") => Overflow::Wrap,
                word if is(word, "SAT") => Overflow::Saturate,
                word if is(word, "FAIL") => Overflow::Fail,
                _ => return Err(CmdError::fixed("ERR Invalid OVERFLOW type specified")),
            };
            i += 2;
            continue;
        }
        let is_get = is(word, "GET") && left >= 2;
        if !is_get && (left < 3 || !(is(word, "SET") || is(word, "INCRBY"))) {
            return Err(CmdError::SYNTAX);
        }
        let field = Field::parse(ctx, args.at(i + 1), args.at(i + 2))?;
        let op = match is_get {
            true => FieldOp::Get,
            false if is(word, "SET") => FieldOp::Set(integer(args.at(i + 3))?),
            false => FieldOp::Add(integer(args.at(i + 3))?),
        };
        ops.push((field, op, overflow));
        i += if is_get { 3 } else { 4 };
    }
    Ok(ops)
}

fn bitfield(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let ops = field_ops(ctx, args)?;
    run_fields(ctx, args, tx, &ops)
}

fn bitfield_ro(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let ops = field_ops(ctx, args)?;
    if ops.iter().any(|(_, op, _)| !matches!(op, FieldOp::Get)) {
        return Err(CmdError::fixed("ERR BITFIELD_RO only supports the GET subcommand"));
    }
    run_fields(ctx, args, tx, &ops)
}

fn run_fields(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    tx: &mut Tx<'_>,
    ops: &[(Field, FieldOp, Overflow)],
) -> CmdResult {
    let entry = ctx.keys().read_kind(tx, 0, args.at(1), Kind::STRING)?;
    let (is_there, old_len) = (entry.is_some(), entry.as_ref().map_or(0, |entry| entry.len()));
    // The range of bytes with all fields: that from `base` on.
    let base = ops.iter().map(|(field, ..)| (field.offset / 8) as usize).min().unwrap_or(0);
    let base = base.min(old_len);
    let end = ops.iter().map(|(field, ..)| field.end()).max().unwrap_or(0).min(old_len);
    let mut bytes = Vec::new();
    if let Some(entry) = entry.filter(|_| base < end) {
        entry.copy_range_to(base, end, &mut bytes);
    }
    let mut has_changed = false;
    let writes = || ops.iter().filter(|(_, op, _)| !matches!(op, FieldOp::Get));
    let needed = writes().map(|(field, ..)| field.end()).max();
    let grows_to = needed.filter(|&needed| needed > old_len);
    if let Some(needed) = grows_to {
        tx.check_room(needed - old_len)?;
        bytes.resize(needed - base, 0);
    }
    ctx.reply.array(ops.len());
    for (field, op, overflow) in ops {
        let field = Field { offset: field.offset - 8 * base as u64, ..*field };
        let old = field.get(&bytes);
        let (answer, new) = match op {
            FieldOp::Get => (Some(old), None),
            FieldOp::Set(number) => {
                // As in Redis, an unsigned field takes a negative number for a very large one.
                let number = match field.signed {
                    true => i128::from(*number),
                    false => i128::from(number.cast_unsigned()),
                };
                let new = field.fit(number, *overflow);
                (new.map(|_| old), new)
            }
            FieldOp::Add(by) => {
                let new = field.fit(i128::from(old) + i128::from(*by), *overflow);
                (new, new)
            }
        };
        if let Some(new) = new {
            has_changed |= new != old;
            field.put(&mut bytes, new);
        }
        match answer {
            Some(answer) => ctx.reply.int(answer),
            None => ctx.reply.null(),
        }
    }
    if !has_changed && grows_to.is_none() {
        return Ok(());
    }
    let first = writes().map(|(field, ..)| (field.offset / 8) as usize).min();
    if let (Some(first), Some(end)) = (first, needed) {
        let from = if is_there { first } else { 0 };
        // The bytes before the first field are as they were, or zeros behind the old end.
        let from = from.min(old_len);
        write_range(ctx, tx, (from, is_there), &bytes[from - base..end - base])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_on_bits_are_those_of_redis_8() {
        let of = |op: &str, bytes: &[u8]| {
            let op = BitOp::parse(op.as_bytes(), bytes.len()).expect("an operation");
            op.combine(bytes[0], bytes[1..].iter().copied())
        };
        let bytes = [0b1111_0000, 0b1100_1100, 0b1010_1010];
        assert_eq!(of("and", &bytes), 0b1000_0000);
        assert_eq!(of("or", &bytes), 0b1111_1110);
        assert_eq!(of("xor", &bytes), 0b1001_0110);
        assert_eq!(of("diff", &bytes), 0b0001_0000);
        assert_eq!(of("diff1", &bytes), 0b0000_1110);
        assert_eq!(of("andor", &bytes), 0b1110_0000);
        assert_eq!(of("one", &bytes), 0b0001_0110);
        assert_eq!(of("one", &[1, 1, 1]), 0);
        assert_eq!(of("not", &bytes[..1]), 0b0000_1111);
        let refused = |op: &str, sources| BitOp::parse(op.as_bytes(), sources).expect_err("none");
        let text = "ERR BITOP DIFF must be called with at least two source keys.";
        assert_eq!(refused("diff", 1).message(), text);
        let text = "ERR BITOP NOT must be called with a single source key.";
        assert_eq!(refused("not", 2).message(), text);
    }

    #[test]
    fn masks_cut_bytes_at_the_bounds() {
        assert_eq!(mask(0, 0, 8), 0xff);
        assert_eq!(mask(0, 1, 8), 0x7f);
        assert_eq!(mask(0, 0, 1), 0x80);
        assert_eq!(mask(1, 10, 12), 0x30);
        assert_eq!(mask(1, 0, 100), 0xff);
        assert_eq!(mask(2, 0, 16), 0);
        assert_eq!(bit_range(0, -1, 2, false), (0, 16));
        assert_eq!(bit_range(-3, -2, 2, true), (13, 15));
        assert_eq!(bit_range(5, 2, 2, true), (0, 0));
        assert_eq!(bit_range(0, 0, 0, false), (0, 0));
    }

    #[test]
    fn fields_hold_what_fits() {
        let field = |signed, width, offset| Field { signed, width, offset };
        let mut bytes = [0; 20];
        for (signed, width, offset, number) in [
            (true, 5, 3, -16),
            (false, 5, 3, 31),
            (true, 64, 7, i64::MIN),
            (false, 63, 70, i64::MAX),
            (true, 1, 0, -1),
        ] {
            let field = field(signed, width, offset);
            field.put(&mut bytes, number);
            assert_eq!(field.get(&bytes), number);
        }
        let byte = field(true, 8, 0);
        assert_eq!(byte.fit(128, Overflow::Wrap), Some(-128));
        assert_eq!(byte.fit(128, Overflow::Saturate), Some(127));
        assert_eq!(byte.fit(-129, Overflow::Saturate), Some(-128));
        assert_eq!(byte.fit(128, Overflow::Fail), None);
        assert_eq!(field(false, 8, 0).fit(-1, Overflow::Wrap), Some(255));
        assert_eq!(
            field(true, 64, 0).fit(i128::from(i64::MAX) + 1, Overflow::Wrap),
            Some(i64::MIN)
        );
    }
}
