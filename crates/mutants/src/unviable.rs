//! Finds the mutants that the compiler refuses, from the messages of `cargo check
//! --message-format=json`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde_json::Value;

use crate::switch::marks;

/// Result of a build.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    pub numbers: BTreeSet<u32>,
    /// Errors that no mutant explains.
    pub unexplained: Vec<String>,
}

/// File → its text, and the marked ranges in it.
type Files = BTreeMap<String, (String, Vec<(Range<usize>, u32)>)>;

/// A place that an error names.
struct ErrorSpan {
    file: String,
    bytes: Range<usize>,
    is_primary: bool,
}

/// Judges the compiler's messages. `read` returns the text of a file that a message names.
pub(crate) fn unviable(messages: &str, mut read: impl FnMut(&str) -> String) -> Refused {
    let mut refused = Refused::default();
    let mut files = Files::new();
    for line in messages.lines() {
        let Ok(value) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        let message = &value["message"];
        if value["reason"] != "compiler-message" || message["level"] != "error" {
            continue;
        }
        let mut places = Vec::new();
        collect(message, true, &mut places);
        if places.is_empty() {
            continue;
        }
        for place in &places {
            files.entry(place.file.clone()).or_insert_with(|| {
                let text = read(&place.file);
                let marks = marks(&text);
                (text, marks)
            });
        }
        let numbers = guilty(&places, &files);
        if numbers.is_empty() {
            refused.unexplained.push(message["rendered"].as_str().unwrap_or("").to_owned());
        }
        refused.numbers.extend(numbers);
    }
    refused
}

/// Collects the places of a message and of the notes below it.
fn collect(message: &Value, is_top: bool, places: &mut Vec<ErrorSpan>) {
    for span in message["spans"].as_array().into_iter().flatten() {
        let byte = |name: &str| span[name].as_u64().unwrap_or(0) as usize;
        places.push(ErrorSpan {
            file: span["file_name"].as_str().unwrap_or("").to_owned(),
            bytes: byte("byte_start")..byte("byte_end"),
            is_primary: is_top && span["is_primary"] == true,
        });
    }
    for child in message["children"].as_array().into_iter().flatten() {
        collect(child, false, places);
    }
}

/// The mutants that explain an error. First choice is the mutant whose text holds the place of the
/// error. Next come mutants that the notes name, and then all whose text shares a line with a
/// place. Last come arms deleted between the places, since the compiler names a match at its
/// beginning and its end.
fn guilty(places: &[ErrorSpan], files: &Files) -> BTreeSet<u32> {
    let innermost = |place: &ErrorSpan| {
        let marks = files[&place.file].1.iter();
        let around = marks.filter(|(range, _)| range.contains(&place.bytes.start));
        around.min_by_key(|(range, _)| range.len()).map(|(_, number)| *number)
    };
    for primary in [true, false] {
        let chosen = places.iter().filter(|place| place.is_primary == primary);
        let found: BTreeSet<u32> = chosen.filter_map(innermost).collect();
        if !found.is_empty() {
            return found;
        }
    }
    let mut found = BTreeSet::new();
    for place in places {
        let (text, marks) = &files[&place.file];
        let bytes = place.bytes.start.min(text.len())..place.bytes.end.min(text.len());
        let start = text[..bytes.start].rfind('\n').map_or(0, |at| at + 1);
        let end = text[bytes.end..].find('\n').map_or(text.len(), |at| bytes.end + at);
        let shared = marks.iter().filter(|(range, _)| range.start < end && range.end > start);
        found.extend(shared.map(|(_, number)| *number));
    }
    if found.is_empty()
        && let Some(start) = places.iter().map(|place| place.bytes.start).min()
        && let Some(end) = places.iter().map(|place| place.bytes.end).max()
    {
        let (text, marks) = &files[&places[0].file];
        let is_arm = |range: &Range<usize>| text[..range.start].ends_with("none(&[");
        let between = marks.iter().filter(|(range, _)| range.start > start && range.start < end);
        found.extend(between.filter(|(range, _)| is_arm(range)).map(|(_, number)| *number));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TEXT: &str = "a\n(/*<1*/ b - c /*1>*/) (/*<2*/ d /*2>*/)\n";

    fn refused(spans: &Value) -> Refused {
        let message = json!({ "level": "error", "spans": spans, "children": [], "rendered": "no" });
        let line = json!({ "reason": "compiler-message", "message": message }).to_string();
        unviable(&line, |_| TEXT.to_owned())
    }

    fn span(at: usize, is_primary: bool) -> Value {
        json!({ "file_name": "a.rs", "byte_start": at, "byte_end": at + 1, "is_primary": is_primary })
    }

    #[test]
    fn the_mutant_around_an_error_is_refused() {
        let inside = TEXT.find('-').expect("is there");
        assert_eq!(refused(&json!([span(inside, true)])).numbers, [1].into());
        assert_eq!(refused(&json!([span(0, true), span(inside, false)])).numbers, [1].into());
    }

    #[test]
    fn an_error_beside_mutants_refuses_those_of_its_line() {
        assert_eq!(refused(&json!([span(2, true)])).numbers, [1, 2].into());
    }

    #[test]
    fn an_arm_that_the_match_needs_is_refused() {
        let text =
            "match a {\n_ if (/*<1*/ b /*1>*/) => c,\nD if none(&[/*<2*/ 2 /*2>*/]) => e,\n}";
        let span = |at: usize, is_primary: bool| json!({ "file_name": "a.rs", "byte_start": at, "byte_end": at, "is_primary": is_primary });
        let spans = json!([span(6, true), span(text.len(), false)]);
        let message = json!({ "level": "error", "spans": spans, "children": [], "rendered": "" });
        let line = json!({ "reason": "compiler-message", "message": message }).to_string();
        assert_eq!(unviable(&line, |_| text.to_owned()).numbers, [2].into());
    }

    #[test]
    fn an_error_without_a_mutant_is_told() {
        let told = refused(&json!([span(0, true)]));
        assert!(told.numbers.is_empty());
        assert_eq!(told.unexplained, ["no"]);
    }
}
