//! Durations on the command line.

/// Longest duration that the lab takes: a week, in seconds.
pub(crate) const LONGEST_S: f64 = 604_800.0;

/// Parses a duration in seconds, above 0.
///
/// # Errors
/// The text is no number, or the number is no duration of at most a week.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let duration = moment(text)?;
    if duration > 0.0 { Ok(duration) } else { Err(refusal(text, "above 0")) }
}

/// Parses a moment of a run, in seconds since its beginning.
///
/// # Errors
/// As [`seconds`], but 0 is right.
pub(crate) fn moment(text: &str) -> Result<f64, String> {
    // A comparison with NaN is false.
    let is_right = |seconds: &f64| (0.0..=LONGEST_S).contains(seconds);
    text.parse().ok().filter(is_right).ok_or_else(|| refusal(text, "from 0"))
}

fn refusal(text: &str, least: &str) -> String {
    format!("{text:?} is no number of seconds; give one {least} to {LONGEST_S} (a week)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_numbers_up_to_a_week() {
        assert_eq!((seconds("2.5"), seconds("604800")), (Ok(2.5), Ok(LONGEST_S)));
        assert_eq!((moment("0"), moment("0.1")), (Ok(0.0), Ok(0.1)));
        for text in ["1e30", "inf", "-inf", "nan", "-1", "", "5s", "604801"] {
            let error = seconds(text).expect_err(text);
            assert!(error.contains("a week") && error.contains(text), "{error}");
            assert!(moment(text).is_err(), "{text}");
        }
        assert!(seconds("0").is_err() && seconds("-0").is_err());
    }
}
