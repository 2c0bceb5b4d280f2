//! Bytes in JSON: UTF-8 as a string, other bytes as an object with one field.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Name of the field for bytes that are not UTF-8.
const BASE16: &str = "base16";
const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// A key or a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bytes<'a>(pub(crate) Cow<'a, [u8]>);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => {
                let mut map = serializer.serialize_map(Some(1))?;
                map.serialize_entry(BASE16, &to_base16(&self.0))?;
                map.end()
            }
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Bytes<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BytesVisitor)
    }
}

struct BytesVisitor;

impl<'de> Visitor<'de> for BytesVisitor {
    type Value = Bytes<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string, or an object {\"base16\": \"…\"}")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Bytes(Cow::Borrowed(text.as_bytes())))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Bytes(Cow::Owned(text.as_bytes().to_vec())))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Self::Value, E> {
        Ok(Bytes(Cow::Owned(text.into_bytes())))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (name, digits) = map
            .next_entry::<Cow<'de, str>, Cow<'de, str>>()?
            .ok_or_else(|| A::Error::missing_field(BASE16))?;
        if name != BASE16 {
            return Err(A::Error::unknown_field(&name, &[BASE16]));
        }
        if let Some(other) = map.next_key::<Cow<'de, str>>()? {
            return Err(A::Error::unknown_field(&other, &[BASE16]));
        }
        from_base16(&digits).map(|bytes| Bytes(Cow::Owned(bytes))).map_err(A::Error::custom)
    }
}

fn to_base16(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
    let mut digits = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        digits.push(digit(byte >> 4));
        digits.push(digit(byte & 15));
    }
    digits
}

fn from_base16(digits: &str) -> Result<Vec<u8>, String> {
    if !digits.len().is_multiple_of(2) {
        return Err(format!("base16 has {} digits, which is odd", digits.len()));
    }
    let value = |digit: u8| {
        let value = char::from(digit).to_digit(16).map(|value| value as u8);
        value.ok_or_else(|| format!("base16 has the byte {digit:#04x}, which is no digit"))
    };
    let pairs = digits.as_bytes().chunks_exact(2);
    pairs.map(|pair| Ok(value(pair[0])? << 4 | value(pair[1])?)).collect()
}
