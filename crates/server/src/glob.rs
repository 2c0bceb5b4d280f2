//! Glob-style patterns of `KEYS` and `SCAN MATCH`: `*`, `?`, `[a-z]`, `[^…]`, `\x`. The matcher is
//! iterative and has a budget of steps, so no pattern can hold a thread. (Redis's own matcher
//! recurses at each star.)

/// A pattern needed more steps than its budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BudgetSpent;

/// Steps that one command may spend on matching altogether.
pub(crate) const COMMAND_BUDGET: u64 = 1 << 32;

/// Whether all of `text` matches `pattern`. Each step is subtracted from `budget`.
pub(crate) fn matches(pattern: &[u8], text: &[u8], budget: &mut u64) -> Result<bool, BudgetSpent> {
    let (mut p, mut t) = (0, 0);
    // Position to resume from when a later part fails: after the last star, one byte further.
    let mut star: Option<(usize, usize)> = None;
    loop {
        *budget = budget.checked_sub(1).ok_or(BudgetSpent)?;
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            if p == pattern.len() {
                return Ok(true);
            }
            star = Some((p, t));
            continue;
        }
        if t == text.len() && p == pattern.len() {
            return Ok(true);
        }
        let step = match (pattern.get(p), text.get(t)) {
            (Some(_), Some(&byte)) => single(pattern, p, byte, budget)?,
            _ => None,
        };
        match (step, star) {
            (Some(next), _) => {
                p = next;
                t += 1;
            }
            (None, Some((after_star, from))) if from < text.len() => {
                star = Some((after_star, from + 1));
                p = after_star;
                t = from + 1;
            }
            (None, _) => return Ok(false),
        }
    }
}

/// Matches one byte against the pattern element at `p`. Returns the position of the next element.
fn single(
    pattern: &[u8],
    p: usize,
    byte: u8,
    budget: &mut u64,
) -> Result<Option<usize>, BudgetSpent> {
    Ok(match pattern[p] {
        b'?' => Some(p + 1),
        b'[' => {
            let (matched, next) = class(pattern, p + 1, byte);
            *budget = budget.checked_sub((next - p) as u64).ok_or(BudgetSpent)?;
            matched.then_some(next)
        }
        b'\\' if p + 1 < pattern.len() => (pattern[p + 1] == byte).then_some(p + 2),
        literal => (literal == byte).then_some(p + 1),
    })
}

/// Matches `byte` against the class that begins at `p` (after the bracket). Returns the position
/// after the class. An unclosed class ends with the pattern.
fn class(pattern: &[u8], mut p: usize, byte: u8) -> (bool, usize) {
    let negated = pattern.get(p) == Some(&b'^');
    if negated {
        p += 1;
    }
    let mut matched = false;
    loop {
        match &pattern[p.min(pattern.len())..] {
            [] => break,
            [b'\\', escaped, ..] => {
                matched |= *escaped == byte;
                p += 2;
            }
            [b']', ..] => {
                p += 1;
                break;
            }
            [low, b'-', high, ..] => {
                let (low, high) = (low.min(high), low.max(high));
                matched |= (low..=high).contains(&&byte);
                p += 3;
            }
            [literal, ..] => {
                matched |= *literal == byte;
                p += 1;
            }
        }
    }
    (matched != negated, p.min(pattern.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(pattern: &str, text: &str) -> bool {
        matches(pattern.as_bytes(), text.as_bytes(), &mut 1_000_000).expect("budget")
    }

    #[test]
    fn the_forms_that_redis_documents() {
        for (pattern, yes, no) in [
            ("h?llo", "hello", "hllo"),
            ("h*llo", "heeeello", "hell"),
            ("h[ae]llo", "hallo", "hillo"),
            ("h[^e]llo", "hbllo", "hello"),
            ("h[a-b]llo", "hbllo", "hcllo"),
            ("h[b-a]llo", "hallo", "hcllo"),
            ("h\\*llo", "h*llo", "hello"),
            ("*", "", "\0\0"),
            ("**a**b**", "xaxbx", "xbxax"),
            ("a[b", "ab", "ac"),
            ("[\\]]", "]", "\\"),
            ("a*b*c", "abbbc", "abbb"),
        ] {
            assert!(check(pattern, yes), "{pattern} should match {yes}");
            if pattern != "*" {
                assert!(!check(pattern, no), "{pattern} should not match {no}");
            }
        }
        assert!(!check("", "a"));
        assert!(check("", ""));
    }

    #[test]
    fn a_hostile_pattern_runs_out_of_budget_not_of_time() {
        let pattern = "*a".repeat(50) + "b";
        let text = "a".repeat(100_000);
        let mut budget = 100_000;
        assert_eq!(matches(pattern.as_bytes(), text.as_bytes(), &mut budget), Err(BudgetSpent));
    }

    /// Whether the pattern matches the text, by the definition of a match: recursive and slow.
    fn by_definition(p: &[u8], t: &[u8]) -> bool {
        match (p, t) {
            ([], _) => t.is_empty(),
            ([b'*', rest @ ..], _) => (0..=t.len()).any(|i| by_definition(rest, &t[i..])),
            ([b'?', rest @ ..], [_, tail @ ..]) => by_definition(rest, tail),
            ([c, rest @ ..], [b, tail @ ..]) => c == b && by_definition(rest, tail),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn equals_the_definition(pattern in "[ab*?]{0,8}", text in "[abc]{0,10}") {
            prop_assert_eq!(check(&pattern, &text), by_definition(pattern.as_bytes(), text.as_bytes()));
        }

        #[test]
        fn never_panics(pattern in prop::collection::vec(any::<u8>(), 0..20),
                        text in prop::collection::vec(any::<u8>(), 0..20)) {
            let mut budget = 100_000;
            let once = matches(&pattern, &text, &mut budget);
            prop_assert!(once.is_ok());
        }
    }
}
