//! The whole experiment on the toy engine.

use super::*;
use crate::drivers::transactions::tests::Toy;
use crate::experiments::run_plan;

#[test]
fn every_claim_is_measured_and_every_figure_drawn() -> LabResult<()> {
    let dir = tempfile::tempdir().map_err(|e| crate::LabError::process("tempdir", e))?;
    let context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
    let bench = Harness { context: &context, open: &Toy::open, children: false };
    let plan =
        Plan { records: 5_000, rest_s: 0.1, round_s: 0.5, timeline_s: 0.6, ..CalcFig2::quick() };
    let plan = Plan { timeline_checkpoints_s: vec![0.1, 0.3], checkpoint_at_s: 0.1, ..plan };
    let long = LongTransactions { seconds: 0.05, writes: 10, open_max: 1, ..plan.long };
    let result = run_plan::<CalcFig2>(&bench, &Plan { long, ..plan })?;

    // The toy can be faster with a checkpoint than without. Then the ratio has no meaning.
    let always = |c: &&crate::report::result::Claim| !c.claim.contains("transactions lost: calc ÷");
    let unmeasured: Vec<&str> = (result.claims.iter().filter(always))
        .filter(|c| c.met.is_none())
        .map(|c| c.claim.as_str())
        .collect();
    assert_eq!(unmeasured, ["instructions per transaction at rest: calc ÷ none"]);
    assert!(
        result.notes.iter().any(|note| note.text.contains("not counted")),
        "{:?}",
        result.notes
    );
    for figure in &result.figures {
        let drawn = !figure.bars.is_empty()
            || figure.series.iter().all(|name| result.series.iter().any(|s| &s.name == name));
        assert!(drawn && figure.bars.len() != 1, "{}", figure.title);
    }
    for table in &result.tables {
        assert!(table.rows.iter().all(|row| row.len() == table.columns.len()), "{}", table.title);
    }
    let has = |text: &str| result.claims.iter().any(|c| c.claim.contains(text));
    let others = ["naive, paced", "zigzag, paced", "naive, unpaced"];
    assert!(others.iter().all(|other| has(&format!("transactions lost: calc ÷ {other}"))));
    assert!(has("before the checkpoint: zigzag ÷ none") && has("checkpoint: calc ÷ zigzag"));
    Ok(())
}
