//! The text of a result file: small enough to be kept in a repository, with lines that a person can compare.

use serde::Serializer;
use serde_json::Value;

use super::ExperimentResult;

/// Digits of a coordinate. A picture shows fewer.
const DIGITS: i32 = 6;

/// The JSON of a result: a line for each field, and for each entry of a field that is a list.
///
/// # Errors
/// When a field cannot be written as JSON.
pub(super) fn text(result: &ExperimentResult) -> serde_json::Result<String> {
    let mut lines = Vec::new();
    if let Value::Object(fields) = serde_json::to_value(result)? {
        for (name, value) in fields {
            let name = Value::String(name);
            lines.push(match value {
                Value::Array(entries) if !entries.is_empty() => {
                    let entries: Vec<String> = entries.iter().map(Value::to_string).collect();
                    format!("{name}: [\n{}\n]", entries.join(",\n"))
                }
                other => format!("{name}: {other}"),
            });
        }
    }
    Ok(format!("{{\n{}\n}}\n", lines.join(",\n")))
}

/// Serializes points with as many digits as a reader can use.
pub(super) fn shortened<S: Serializer>(points: &[[f64; 2]], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(points.iter().map(|point| point.map(short)))
}

/// The nearest number with few digits. What is no number stays so.
fn short(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let exponent = DIGITS - 1 - value.abs().log10().floor() as i32;
    // A power below one would not be exact, so such numbers are divided and multiplied.
    let power = 10.0_f64.powi(exponent.abs());
    if exponent >= 0 { (value * power).round() / power } else { (value / power).round() * power }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_keep_six_digits() {
        let cases = [
            (1234567.89, 1234570.0),
            (0.000_123_456_78, 0.000_123_457),
            (-98.765_432_1, -98.7654),
            (5.0, 5.0),
        ];
        for (value, wanted) in cases {
            let found = short(value);
            assert!((found - wanted).abs() < wanted.abs() * 1e-12, "{value}: {found}");
            assert_eq!(short(found).to_bits(), found.to_bits(), "a second time changes nothing");
        }
        assert!(short(f64::NAN).is_nan() && short(0.0) == 0.0);
    }

    #[test]
    fn a_file_has_a_line_for_each_entry() {
        let text = text(&crate::report::tests::sample()).expect("JSON");
        let result: ExperimentResult = serde_json::from_str(&text).expect("a result");
        assert_eq!(result, crate::report::tests::sample());
        let of_claims =
            text.lines().filter(|line| line.starts_with("{\"aim\"") || line.contains("\"bound\":"));
        assert_eq!(of_claims.count(), result.claims.len(), "{text}");
    }
}
