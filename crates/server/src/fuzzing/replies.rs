//! Checks that bytes are a sequence of whole replies.

/// The number of replies in `bytes`.
///
/// # Errors
/// The bytes are not a sequence of whole RESP values. The error says where and why.
pub fn check_replies(bytes: &[u8]) -> Result<usize, String> {
    let (mut at, mut replies) = (0, 0);
    while at < bytes.len() {
        let mut open = 1u64;
        while open > 0 {
            let fail = |what: &str| Err(format!("byte {at} of the replies: {what}"));
            let Some(end) = bytes[at..].windows(2).position(|pair| pair == b"\r\n") else {
                return fail("a line without an end");
            };
            let line = &bytes[at + 1..at + end];
            let number = || {
                let text = std::str::from_utf8(line).ok()?;
                text.parse::<i64>().ok().filter(|n| n.to_string() == text)
            };
            let mut next = at + end + 2;
            open -= 1;
            match (bytes[at], number()) {
                (b'+' | b'-' | b'(' | b',', _) if line.iter().all(|byte| *byte >= b' ') => {}
                (b'_', _) if line.is_empty() => {}
                (b'#', _) if line == b"t" || line == b"f" => {}
                (b':', Some(_)) | (b'$' | b'*', Some(-1)) => {}
                (b'$' | b'=', Some(len @ 0..)) => {
                    let body_end = next.saturating_add(len as usize);
                    if bytes.get(body_end..body_end.saturating_add(2)) != Some(b"\r\n") {
                        return fail("a string that does not end where it should");
                    }
                    next = body_end + 2;
                }
                (b'*' | b'~' | b'>', Some(count @ 0..)) => open += count as u64,
                (b'%', Some(count @ 0..)) => open += 2 * count as u64,
                _ => return fail("no reply begins like this"),
            }
            at = next;
            if open > 0 && at == bytes.len() {
                return Err(format!("{open} values are missing at the end of the replies"));
            }
        }
        replies += 1;
    }
    Ok(replies)
}
