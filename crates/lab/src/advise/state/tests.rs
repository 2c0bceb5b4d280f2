use super::*;
use crate::advise::lines;
use crate::error::LabError;

fn question() -> OfState {
    OfState {
        state: true,
        cells: Some(5_000),
        cell_bytes: 4,
        updates_per_second: Some(100_000),
        reads: 0.25,
        zipf: 0.5,
        tick_ms: 5.0,
        image_every_ms: 50,
        worst_tick_us: Some(1e6),
        copies_max: None,
        all_layouts: false,
    }
}

/// Seconds for which each scheme is measured.
const SECONDS: f64 = 0.2;

fn context(dir: &std::path::Path) -> Context {
    Context::new(dir, true, "none".into(), Box::new(std::io::sink()))
}

#[test]
fn each_scheme_is_measured_and_one_recommended() -> LabResult<()> {
    let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
    let advice = advise(&question(), SECONDS, &context(dir.path()))?;
    let schemes = crate::subjects::arrays::schemes().len();
    assert_eq!(advice.measured.len(), schemes);
    assert!(advice.choice.is_within_limits, "a second is enough for 500 updates");
    let lines = lines(&advice);
    assert_eq!(lines.len(), schemes + 4);
    assert!(lines[..=schemes].iter().all(|line| line.len() == lines[0].len()), "{lines:#?}");
    assert!(lines.iter().any(|line| line.starts_with("recommended: ")));
    for it in &advice.measured {
        assert!(it.recovery_s > 0.0 && it.image_s > 0.0 && it.copies >= 2.0, "{it:?}");
        assert!(it.worst_tick_us >= it.mean_tick_us, "{it:?}");
    }
    Ok(())
}

#[test]
fn long_cells_are_measured_in_pieces() -> LabResult<()> {
    let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
    let question = OfState { cells: Some(10), cell_bytes: 10_000, all_layouts: true, ..question() };
    assert_eq!(question.shape(), (1024, 30));
    let advice = advise(&question, SECONDS, &context(dir.path()))?;
    assert_eq!(advice.measured.len(), registry::names_here().count() - 1);
    let pieces = [(1, 1, 10), (4, 1, 10), (5, 1, 20), (8, 2, 10), (48, 2, 60), (4096, 1024, 10)];
    for (bytes, words, count) in pieces {
        assert_eq!(OfState { cell_bytes: bytes, ..question.clone() }.shape(), (words, count));
    }
    Ok(())
}

#[test]
fn questions_that_make_no_sense_are_refused() {
    let context = context(std::path::Path::new("nowhere"));
    let refused = |question: OfState, word: &str| {
        let error = advise(&question, SECONDS, &context).expect_err(word).to_string();
        assert!(error.contains(word), "{error}");
    };
    refused(OfState { cells: Some(0), ..question() }, "--cells 0");
    refused(OfState { reads: 1.0, ..question() }, "--reads 1");
    refused(OfState { zipf: f64::NAN, ..question() }, "--zipf NaN");
    for (tick_ms, word) in
        [(-1.0, "-1"), (1e30, "1000000"), (f64::INFINITY, "inf"), (1e-9, "0.000")]
    {
        refused(OfState { tick_ms, ..question() }, &format!("--tick-ms {word}"));
    }
    refused(OfState { image_every_ms: u64::MAX, ..question() }, "--image-every-ms 18446");
    refused(OfState { cells: Some(1 << 40), ..question() }, "bytes of memory are not there");
}
