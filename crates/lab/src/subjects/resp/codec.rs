//! Replies of the Redis protocol, read without copying.

/// A reply, its text still in the buffer that it was read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply<'a> {
    /// `+text`
    Status(&'a [u8]),
    /// `-text`
    Error(&'a [u8]),
    /// `:number`
    Integer(i64),
    /// `$length`, bytes
    Bulk(&'a [u8]),
    /// `$-1`, `*-1` or `_`
    Nil,
    /// `*count` and that many replies
    Array {
        /// Number of replies.
        count: usize,
        /// The bytes of the replies.
        items: &'a [u8],
    },
}

/// Reads the first reply in `buffer`. Returns the reply and its length in bytes, or `None` if the
/// reply is incomplete.
///
/// # Errors
/// When the bytes are no reply of the protocol.
pub(crate) fn read(buffer: &[u8]) -> Result<Option<(Reply<'_>, usize)>, String> {
    let Some((&kind, rest)) = buffer.split_first() else {
        return Ok(None);
    };
    let Some(line_len) = rest.iter().position(|&b| b == b'\r') else {
        return Ok(None);
    };
    let (line, body_at) = (&rest[..line_len], 1 + line_len + 2);
    if buffer.len() < body_at {
        return Ok(None);
    }
    let whole = |reply| Ok(Some((reply, body_at)));
    match kind {
        b'+' => whole(Reply::Status(line)),
        b'-' => whole(Reply::Error(line)),
        b':' => whole(Reply::Integer(number(line)?)),
        b'_' => whole(Reply::Nil),
        b'$' => match usize::try_from(number(line)?) {
            Err(_) => whole(Reply::Nil),
            Ok(length) => {
                let end = body_at + length;
                if buffer.len() < end + 2 {
                    return Ok(None);
                }
                Ok(Some((Reply::Bulk(&buffer[body_at..end]), end + 2)))
            }
        },
        b'*' => match usize::try_from(number(line)?) {
            Err(_) => whole(Reply::Nil),
            Ok(count) => {
                let Some(end) = skip(buffer, body_at, count)? else {
                    return Ok(None);
                };
                Ok(Some((Reply::Array { count, items: &buffer[body_at..end] }, end)))
            }
        },
        other => Err(format!("a reply begins with {:?}", char::from(other))),
    }
}

/// The end of `count` replies that begin at `at`, nested ones included.
fn skip(buffer: &[u8], mut at: usize, count: usize) -> Result<Option<usize>, String> {
    let mut left = count;
    while left > 0 {
        left -= 1;
        let rest = &buffer[at..];
        if rest.first() == Some(&b'*') {
            let Some(line_len) = rest.iter().position(|&b| b == b'\r') else {
                return Ok(None);
            };
            left += usize::try_from(number(&rest[1..line_len])?).unwrap_or(0);
            at += line_len + 2;
            if buffer.len() < at {
                return Ok(None);
            }
        } else {
            let Some((_, length)) = read(rest)? else {
                return Ok(None);
            };
            at += length;
        }
    }
    Ok(Some(at))
}

fn number(line: &[u8]) -> Result<i64, String> {
    std::str::from_utf8(line)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| format!("{:?} is no number", String::from_utf8_lossy(line)))
}

/// Appends a request with these arguments.
pub(crate) fn request(out: &mut Vec<u8>, arguments: &[&[u8]]) {
    out.extend(format!("*{}\r\n", arguments.len()).as_bytes());
    for argument in arguments {
        out.extend(format!("${}\r\n", argument.len()).as_bytes());
        out.extend_from_slice(argument);
        out.extend(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_reply_is_read() {
        let cases: [(&[u8], Reply<'_>); 9] = [
            (b"+OK\r\n", Reply::Status(b"OK")),
            (b"-ERR no\r\n", Reply::Error(b"ERR no")),
            (b":-5\r\n", Reply::Integer(-5)),
            (b"$3\r\na\rb\r\n", Reply::Bulk(b"a\rb")),
            (b"$0\r\n\r\n", Reply::Bulk(b"")),
            (b"$-1\r\n", Reply::Nil),
            (b"*-1\r\n", Reply::Nil),
            (b"_\r\n", Reply::Nil),
            (b"*2\r\n*1\r\n:1\r\n+a\r\n", Reply::Array { count: 2, items: b"*1\r\n:1\r\n+a\r\n" }),
        ];
        for (bytes, reply) in cases {
            assert_eq!(read(bytes), Ok(Some((reply, bytes.len()))));
            for cut in 0..bytes.len() {
                assert_eq!(read(&bytes[..cut]), Ok(None), "{bytes:?} cut at {cut}");
            }
            let followed = [bytes, b"+next\r\n"].concat();
            assert_eq!(read(&followed), Ok(Some((reply, bytes.len()))));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for bytes in [&b"hello\r\n"[..], b":x\r\n", b"$\r\n", b"*1\r\n?\r\n"] {
            assert!(read(bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn requests_are_arrays_of_bulk_strings() {
        let mut out = Vec::new();
        request(&mut out, &[b"SET", b"k", b""]);
        assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n");
    }
}
