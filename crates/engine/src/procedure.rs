//! Procedures: deterministic functions with typed arguments, called by name.

use std::sync::Arc;

use stillpoint_store::{KeySet, TxError};

use crate::error::Error;
use crate::tx::Tx;

/// Values that are encoded as arguments and results of procedures.
pub trait Arguments: Sized {
    /// Appends the value.
    fn encode(&self, out: &mut Vec<u8>);
    /// Decodes a value from the front of `bytes`. `None` if there is none.
    fn decode(bytes: &mut &[u8]) -> Option<Self>;
}

/// Numbers of as many bits take four bytes at most.
const SHORT_BITS: u32 = 28;
/// The bits that say that another byte follows.
const MORE: u32 = 0x8080_8080;

/// The lengths of numbers are hard to predict, so those of four bytes at most are encoded without a branch.
#[inline]
fn encode_number(number: u64, out: &mut Vec<u8>) {
    if number >> SHORT_BITS != 0 {
        return encode_long(number, out);
    }
    let number = number as u32;
    let spread = number & 0x7f
        | (number & 0x3f80) << 1
        | (number & 0x1f_c000) << 2
        | (number & 0xfe0_0000) << 3;
    let len = (u32::BITS - (spread | 1).leading_zeros()).div_ceil(8);
    let follow = MORE & ((1 << (8 * (len - 1))) - 1);
    let end = out.len() + len as usize;
    out.extend_from_slice(&(spread | follow).to_le_bytes());
    out.truncate(end);
}

fn encode_long(mut rest: u64, out: &mut Vec<u8>) {
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[inline]
fn decode_number(bytes: &mut &[u8]) -> Option<u64> {
    let Some(word) = bytes.first_chunk().map(|word| u32::from_le_bytes(*word)) else {
        return decode_long(bytes);
    };
    let ends = !word & MORE;
    if ends == 0 {
        return decode_long(bytes);
    }
    let len = ends.trailing_zeros() / 8 + 1;
    let spread = word & !MORE & (u32::MAX >> (u32::BITS - 8 * len));
    *bytes = &bytes[len as usize..];
    let number = spread & 0x7f
        | (spread & 0x7f00) >> 1
        | (spread & 0x7f_0000) >> 2
        | (spread & 0x7f00_0000) >> 3;
    Some(number.into())
}

fn decode_long(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if bits.leading_zeros() < shift {
            return None;
        }
        value |= bits << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Integers take one byte for seven bits, the lowest first. The top bit says that another byte follows.
macro_rules! integer_arguments {
    ($($integer:ty),*) => {$(
        impl Arguments for $integer {
            #[inline]
            fn encode(&self, out: &mut Vec<u8>) {
                encode_number(u64::from(*self), out);
            }
            #[inline]
            fn decode(bytes: &mut &[u8]) -> Option<Self> {
                Self::try_from(decode_number(bytes)?).ok()
            }
        }
    )*};
}
integer_arguments!(u16, u32, u64);

/// Numbers of a fixed width, little-endian.
macro_rules! plain_arguments {
    ($($number:ty),*) => {$(
        impl Arguments for $number {
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn decode(bytes: &mut &[u8]) -> Option<Self> {
                let (head, rest) = bytes.split_first_chunk()?;
                *bytes = rest;
                Some(Self::from_le_bytes(*head))
            }
        }
    )*};
}
plain_arguments!(u8, f64);

/// Numbers near zero, of either sign, take few bytes.
impl Arguments for i64 {
    fn encode(&self, out: &mut Vec<u8>) {
        ((self << 1) ^ (self >> 63)).cast_unsigned().encode(out);
    }
    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let folded = u64::decode(bytes)?;
        Some((folded >> 1).cast_signed() ^ -(folded & 1).cast_signed())
    }
}

impl Arguments for Vec<u8> {
    fn encode(&self, out: &mut Vec<u8>) {
        (self.len() as u64).encode(out);
        out.extend_from_slice(self);
    }
    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let len = usize::try_from(u64::decode(bytes)?).ok()?;
        let (head, rest) = bytes.split_at_checked(len)?;
        *bytes = rest;
        Some(head.to_vec())
    }
}

impl Arguments for String {
    fn encode(&self, out: &mut Vec<u8>) {
        (self.len() as u64).encode(out);
        out.extend_from_slice(self.as_bytes());
    }
    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        Self::from_utf8(Vec::decode(bytes)?).ok()
    }
}

impl Arguments for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        u8::from(*self).encode(out);
    }
    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        match u8::decode(bytes)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl<T: Arguments> Arguments for Option<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.is_some().encode(out);
        if let Some(value) = self {
            value.encode(out);
        }
    }
    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        Some(if bool::decode(bytes)? { Some(T::decode(bytes)?) } else { None })
    }
}

macro_rules! tuple_arguments {
    ($($($name:ident),*;)*) => {$(
        #[expect(non_snake_case, reason = "a type's name serves as its value's")]
        impl<$($name: Arguments),*> Arguments for ($($name,)*) {
            fn encode(&self, out: &mut Vec<u8>) {
                let ($($name,)*) = self;
                $($name.encode(out);)*
                let _ = out;
            }
            fn decode(bytes: &mut &[u8]) -> Option<Self> {
                let _ = &bytes;
                Some(($($name::decode(bytes)?,)*))
            }
        }
    )*};
}
tuple_arguments! { A; A, B; A, B, C; A, B, C, D; A, B, C, D, E; }

impl Arguments for () {
    fn encode(&self, _: &mut Vec<u8>) {}
    fn decode(_: &mut &[u8]) -> Option<Self> {
        Some(())
    }
}

/// A deterministic procedure: the same arguments, records and inputs give the same result and the same
/// writes. The inputs are [`Tx::time_ms`] and [`Tx::random`]. Nothing else counts: no clock, no random
/// number, no order of a hash map's iteration, no setting, no memory figure, no state of its own.
///
/// A log of calls relies on that: a start makes the calls again.
pub trait StoredProcedure: Send + Sync + 'static {
    /// Version of the procedure, for logs that name calls. A change after which the same arguments and
    /// records give another result or other writes makes a greater version. As long as a log has calls
    /// of an older version, the program registers that one, too.
    const VERSION: u32 = 1;
    /// Arguments of the procedure.
    type Input: Arguments;
    /// Result of the procedure.
    type Output: Arguments;
    /// Declares the keys of a call. The keys must follow from the arguments alone.
    fn declare(&self, input: &Self::Input, keys: &mut KeySet);
    /// Reads and writes the keys by slot, in the order of declaration.
    ///
    /// # Errors
    /// The procedure's own error, or an error of the transaction. The transaction is rolled back,
    /// and [`Session::call`](crate::Session::call) returns the error.
    fn run(&self, input: &Self::Input, tx: &mut Tx<'_>) -> Result<Self::Output, TxError>;
}

/// A procedure with its types erased.
pub(crate) trait ErasedProcedure: Send + Sync {
    fn version(&self) -> u32;
    fn prepare<'a>(&'a self, input: &[u8]) -> Option<Box<dyn PreparedCall + 'a>>;
}

/// A call with decoded arguments.
pub(crate) trait PreparedCall {
    fn declare(&self, keys: &mut KeySet);
    fn run(&self, tx: &mut Tx<'_>, output: &mut Vec<u8>) -> Result<(), TxError>;
}

struct Call<'a, P: StoredProcedure> {
    procedure: &'a P,
    input: P::Input,
}

impl<P: StoredProcedure> PreparedCall for Call<'_, P> {
    fn declare(&self, keys: &mut KeySet) {
        self.procedure.declare(&self.input, keys);
    }
    fn run(&self, tx: &mut Tx<'_>, output: &mut Vec<u8>) -> Result<(), TxError> {
        let result = self.procedure.run(&self.input, tx)?;
        result.encode(output);
        Ok(())
    }
}

impl<P: StoredProcedure> ErasedProcedure for P {
    fn version(&self) -> u32 {
        P::VERSION
    }
    fn prepare<'a>(&'a self, input: &[u8]) -> Option<Box<dyn PreparedCall + 'a>> {
        let mut rest = input;
        let input = P::Input::decode(&mut rest)?;
        rest.is_empty().then(|| Box::new(Call { procedure: self, input }) as Box<dyn PreparedCall>)
    }
}

/// Procedures by name and version, in this order. The list is complete before any log is replayed, and
/// does not change afterwards. Each call that is logged looks up its procedure, and programs have few.
#[derive(Default)]
pub(crate) struct Procedures(Vec<(String, u32, Arc<dyn ErasedProcedure>)>);

impl Procedures {
    /// Adds a procedure. False if there is one of that name and version.
    pub(crate) fn add(&mut self, name: String, procedure: Arc<dyn ErasedProcedure>) -> bool {
        let version = procedure.version();
        let at = self.place(&name, version);
        let is_new = self.at(at, &name).is_none_or(|found| found.version() != version);
        if is_new {
            self.0.insert(at, (name, version, procedure));
        }
        is_new
    }

    /// Whether there is a procedure of this name and version.
    pub(crate) fn has(&self, name: &str, version: u32) -> bool {
        self.find_version(name, version).is_some()
    }

    /// The newest version of a procedure.
    pub(crate) fn find(&self, name: &str) -> Result<&dyn ErasedProcedure, Error> {
        let behind = self.0.partition_point(|(other, ..)| &**other <= name);
        let newest = behind.checked_sub(1).and_then(|at| self.at(at, name));
        newest.ok_or_else(|| Error::NoSuchProcedure(name.to_owned()))
    }

    /// A procedure in the version that a log names.
    pub(crate) fn find_version(&self, name: &str, version: u32) -> Option<&dyn ErasedProcedure> {
        let found = self.at(self.place(name, version), name)?;
        (found.version() == version).then_some(found)
    }

    fn place(&self, name: &str, version: u32) -> usize {
        self.0.partition_point(|(other, number, _)| (&**other, *number) < (name, version))
    }

    /// The procedure at a place, if it is one of this name.
    fn at(&self, at: usize, name: &str) -> Option<&dyn ErasedProcedure> {
        let (_, _, found) = self.0.get(at).filter(|(other, ..)| other == name)?;
        Some(&**found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_small_ones_are_short() {
        let mut bytes = Vec::new();
        let bounds = (0..64).step_by(7).flat_map(|bits| [(1 << bits) - 1, 1 << bits]);
        let all: Vec<u64> = bounds.chain([300, 1 << 35, u64::MAX - 1, u64::MAX]).collect();
        all.iter().for_each(|number| number.encode(&mut bytes));
        let signed = [0, -1, 63, -64, 64, i64::MIN, i64::MAX];
        signed.iter().for_each(|number| number.encode(&mut bytes));
        let mut rest = &bytes[..];
        assert!(all.iter().all(|&number| u64::decode(&mut rest) == Some(number)));
        assert!(signed.iter().all(|&number| i64::decode(&mut rest) == Some(number)));
        assert!(rest.is_empty());
        let len = |number: u64| {
            let mut bytes = Vec::new();
            number.encode(&mut bytes);
            bytes.len()
        };
        let bounds = [127, 128, 16_383, 16_384, (1 << 28) - 1, 1 << 28, u64::MAX];
        assert_eq!(bounds.map(len), [1, 2, 2, 3, 4, 5, 10]);
    }

    #[test]
    fn what_is_no_number_of_the_type_is_refused() {
        assert_eq!(u16::decode(&mut &[0x80, 0x80, 0x04][..]), None, "65,536");
        assert_eq!(u64::decode(&mut &[0xff; 9][..]), None, "it does not end");
        assert_eq!(u64::decode(&mut &[0xff; 10][..]), None, "more than 64 bits");
        let over = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
        assert_eq!(u64::decode(&mut &over[..]), None, "more than 64 bits");
    }
}
