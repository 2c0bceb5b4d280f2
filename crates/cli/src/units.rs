//! Sizes and times in the form in which people write them: `4GiB`, `512MB`, `60s`, `5m`.

use std::time::Duration;

/// Parses a size in bytes: a number with an optional unit. B, KB, MB, GB are powers of 1000. K,
/// KiB, M, MiB, G, GiB, T, TiB are powers of 1024.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        _ => {
            return Err(format!("{text:?} is not a size; write one like 512MiB or 4GiB"));
        }
    };
    let number: u64 = number
        .parse()
        .map_err(|_| format!("{text:?} is not a size; write one like 512MiB or 4GiB"))?;
    number.checked_mul(factor).ok_or_else(|| format!("{text:?} is larger than 2^64 bytes"))
}

/// Parses a number of points that a merge keeps. At least one is kept in any case.
pub(crate) fn points(text: &str) -> Result<usize, String> {
    let number: Option<usize> = text.parse().ok();
    number.filter(|&number| number > 0).ok_or_else(|| {
        format!("{text:?} is no number of points; write 1 or more, as the server has --keep-points")
    })
}

/// Parses a time: a number with an optional unit ms, s (default), m or h. `0` and `never` give
/// `None`.
pub(crate) fn interval(text: &str) -> Result<Interval, String> {
    if text == "never" {
        return Ok(Interval(None));
    }
    let (number, unit) = split(text);
    let refuse = || format!("{text:?} is not a time; write one like 60s, 5m or never");
    let ms_per_unit: u64 = match unit {
        "ms" => 1,
        "" | "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        _ => return Err(refuse()),
    };
    let number: u64 = number.parse().map_err(|_| refuse())?;
    let ms = number.checked_mul(ms_per_unit).ok_or_else(refuse)?;
    Ok(Interval((ms != 0).then(|| Duration::from_millis(ms))))
}

/// A time between two events. `None` means never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interval(pub(crate) Option<Duration>);

fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

/// A size in the form for people.
pub(crate) fn show_size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_written() {
        assert_eq!(size("4GiB"), Ok(4 << 30));
        assert_eq!(size("10 mb"), Ok(10_000_000));
        assert_eq!(size("77"), Ok(77));
        assert!(size("x").is_err() && size("4 parsecs").is_err() && size("").is_err());
        assert!(size("99999999999TiB").is_err());
    }

    #[test]
    fn a_merge_keeps_a_point() {
        assert_eq!(points("3"), Ok(3));
        assert!(points("0").is_err_and(|why| why.contains("1 or more")));
        assert!(points("-1").is_err() && points("").is_err());
    }

    #[test]
    fn intervals_are_read_as_written() {
        assert_eq!(interval("60s"), Ok(Interval(Some(Duration::from_secs(60)))));
        assert_eq!(interval("1500ms"), Ok(Interval(Some(Duration::from_millis(1500)))));
        assert_eq!(interval("2h"), Ok(Interval(Some(Duration::from_secs(7200)))));
        assert_eq!(interval("never"), Ok(Interval(None)));
        assert_eq!(interval("0"), Ok(Interval(None)));
        assert!(interval("soon").is_err() && interval("5 y").is_err());
    }

    #[test]
    fn sizes_are_shown_with_one_digit() {
        assert_eq!(show_size(999), "999 B");
        assert_eq!(show_size(4 << 30), "4.0 GiB");
    }
}
