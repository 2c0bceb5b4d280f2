//! The contents of the elements of a hash: its fields.
//!
//! ```text
//! content   [mark (80 00), expiry (u64)], name as a string, value
//! ```
//! Only a field that expires has a mark. No string begins with these bytes, since a length has no
//! superfluous zeros. The expiry is little-endian, in milliseconds since the Unix epoch.

use super::encoding::{put_string, string_at};

/// The bytes before an expiry.
const MARK: [u8; 2] = [0x80, 0];
/// Bytes of the mark and the expiry.
const TIMED_BYTES: usize = MARK.len() + 8;

/// A field of a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) value: &'a [u8],
    /// When the field expires, in milliseconds since the Unix epoch.
    pub(crate) expire_at_ms: Option<u64>,
}

impl<'a> Field<'a> {
    /// The field in a content. Of a damaged content all is taken for the name.
    pub(crate) fn of(content: &'a [u8]) -> Self {
        let expire_at_ms = expiry(content);
        let start = if expire_at_ms.is_some() { TIMED_BYTES } else { 0 };
        let (name, end) = string_at(content, start).unwrap_or((content, content.len()));
        Self { name, value: &content[end..], expire_at_ms }
    }

    /// The content that stands for the field.
    pub(crate) fn content(&self) -> Vec<u8> {
        let mut content = Vec::with_capacity(TIMED_BYTES + self.name.len() + self.value.len() + 5);
        if let Some(at) = self.expire_at_ms {
            content.extend_from_slice(&MARK);
            content.extend_from_slice(&at.to_le_bytes());
        }
        put_string(&mut content, self.name);
        content.extend_from_slice(self.value);
        content
    }
}

/// The name in a content.
pub(super) fn name(content: &[u8]) -> &[u8] {
    Field::of(content).name
}

/// The expiry in a content, in milliseconds since the Unix epoch.
pub(super) fn expiry(content: &[u8]) -> Option<u64> {
    let at = content.strip_prefix(&MARK)?.first_chunk()?;
    Some(u64::from_le_bytes(*at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back_with_and_without_an_expiry() {
        for name in [&b""[..], b"f", &[0x80; 300]] {
            for value in [&b""[..], b"\x80\0 a value"] {
                for expire_at_ms in [None, Some(0), Some(1_700_000_000_123), Some(u64::MAX)] {
                    let field = Field { name, value, expire_at_ms };
                    assert_eq!(Field::of(&field.content()), field);
                }
            }
        }
        // A damaged content is taken for a field with an empty value.
        for content in [&b"\x80"[..], b"\x80\0", b"\x80\x0012345678", b"\xff"] {
            assert_eq!(Field::of(content).value, b"");
        }
    }
}
