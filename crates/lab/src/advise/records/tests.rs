use super::*;
use crate::advise::lines;

/// Seconds for which each scheme is measured.
const SECONDS: f64 = 0.2;

fn question() -> OfRecords {
    OfRecords {
        records: Some(2_000),
        value_bytes: 64,
        transactions_per_second: Some(2_000),
        touched: 4,
        updated: None,
        whole: false,
        hot: 0.5,
        checkpoint_every_ms: 100,
        pace_mb: None,
        journal: "redo".into(),
        strict: false,
        worst_ms: None,
        memory_mib: None,
        schemes: Vec::new(),
    }
}

fn context(dir: &Path) -> Context {
    Context::new(dir, true, "none".into(), Box::new(std::io::sink()))
}

#[test]
fn each_scheme_is_measured_recovered_and_one_is_recommended() -> LabResult<()> {
    for journal in ["none", "redo", "undo-redo"] {
        let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
        let question = OfRecords { journal: journal.into(), ..question() };
        let schemes = question.schemes()?.len();
        let all = REGISTRY.iter().count();
        assert_eq!(schemes == all, journal == "undo-redo", "{journal}: {schemes} of {all}");
        let advice = advise(&question, SECONDS, &context(dir.path()))?;
        assert_eq!(advice.measured.len(), schemes);
        for it in &advice.measured {
            assert!(it.recovery_s > 0.0 && it.cpu_us > 0.0 && it.worst_ms >= it.p50_ms, "{it:?}");
            assert_eq!(it.checkpoint_s.is_nan(), !it.takes_checkpoints, "{it:?}");
        }
        let lines = lines(&advice);
        assert!(lines[..=schemes].iter().all(|line| line.len() == lines[0].len()), "{lines:#?}");
        assert!(lines.iter().any(|line| line.starts_with("recommended: ")));
    }
    Ok(())
}

#[test]
fn some_schemes_may_be_chosen() -> LabResult<()> {
    let schemes = vec!["pcalc".to_owned(), "zigzag".to_owned()];
    let rows = OfRecords { schemes, ..question() }.schemes()?;
    let names: Vec<_> = rows.iter().map(|row| row.name).collect();
    assert_eq!(names, ["none", "calc:partial", "zigzag"]);
    Ok(())
}

#[test]
fn a_lost_update_is_found() {
    let held = Contents { records: 10, updates: 5 };
    assert!(compare("calc", held, held).is_ok());
    let error = compare("calc", Contents { updates: 4, ..held }, held).expect_err("one is lost");
    assert!(error.to_string().contains("updates: 4"), "{error}");
}

#[test]
fn questions_that_make_no_sense_are_refused() {
    let context = context(Path::new("nowhere"));
    let refused = |question: OfRecords, word: &str| {
        let error = advise(&question, SECONDS, &context).expect_err(word).to_string();
        assert!(error.contains(word), "{error}");
    };
    refused(OfRecords { records: Some(0), ..question() }, "--records 0");
    refused(OfRecords { hot: 0.0, ..question() }, "--hot 0");
    refused(OfRecords { hot: f64::NAN, ..question() }, "--hot NaN");
    refused(OfRecords { hot: 0.002, ..question() }, "--touched 4");
    refused(OfRecords { updated: Some(5), ..question() }, "--updated 5");
    refused(OfRecords { value_bytes: 7, ..question() }, "--value-bytes 7");
    refused(OfRecords { transactions_per_second: Some(0), ..question() }, "-per-second 0");
    refused(OfRecords { checkpoint_every_ms: 0, ..question() }, "--checkpoint-every-ms 0");
    refused(OfRecords { journal: "paper".into(), ..question() }, "paper");
    refused(OfRecords { schemes: vec!["magic".into()], ..question() }, "magic");
    let fuzzy = vec!["fuzzy-undo".to_owned()];
    refused(OfRecords { schemes: fuzzy, ..question() }, "fuzzy-undo");
    refused(
        OfRecords { value_bytes: 1 << 20, records: Some(1 << 30), ..question() },
        "fewer records",
    );
}
