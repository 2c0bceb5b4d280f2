//! The whole experiment on the toy engine.

use super::*;
use crate::drivers::transactions::tests::Toy;
use crate::experiments::run_plan;

#[test]
fn every_claim_is_measured_and_every_figure_drawn() -> LabResult<()> {
    if !crate::experiments::has_turn(module_path!()) {
        return Ok(());
    }
    let dir = tempfile::tempdir().map_err(|e| crate::LabError::process("tempdir", e))?;
    let context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
    let bench = Harness { context: &context, open: &Toy::open, children: false };
    let plan = Plan { records: 5_000, rest_s: 0.1, round_s: 0.5, ..CalcFig2::quick() };
    let plan = Plan { checkpoint_at_s: 0.2, ..plan };
    let plan = Plan { rest_records: 5_000, rest_pairs: 1, logged_records: 5_000, ..plan };
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
    assert!(
        has("naive, paced: worst 100 ms window") && has("before it: calc, paced ÷ zigzag, paced")
    );
    assert!(has("zigzag: worst 100 ms window with long transactions"));
    assert!(has("fuzzy-undo: time stopped ÷ time of the checkpoint"));
    assert!(has("throughput at rest: calc ÷ zigzag") && has("the journal: redo ÷ no journal"));
    let rows = |title: &str| {
        let found = result.tables.iter().find(|table| table.title == title);
        found.map_or(Vec::new(), |it| it.rows.iter().map(|row| &*row[0]).collect())
    };
    assert_eq!(rows("At rest"), ["naive", "calc", "calc:partial", "zigzag"]);
    let fuzzy = ["fuzzy", "fuzzy:partial", "fuzzy-undo", "fuzzy-undo:partial"];
    let with_journal = [&fuzzy[..], &["siren", "siren-semi-fuzzy"]].concat();
    assert_eq!(rows("Under a journal"), with_journal);
    let forms = "What deferred updates give, and what is left of calc's lead";
    assert_eq!(rows(forms), ["naive", "calc", "zigzag"]);
    Ok(())
}

/// Rows that stop commits run with both forms of the point of consistency, and calc is among the rows.
#[test]
fn both_forms_of_the_point_are_compared_in_one_run() -> LabResult<()> {
    if !crate::experiments::has_turn(module_path!()) {
        return Ok(());
    }
    let dir = tempfile::tempdir().map_err(|e| crate::LabError::process("tempdir", e))?;
    let mut context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
    context.part = Some("points".into());
    context.runs = Some(1);
    context.schemes = vec!["zigzag:partial".into(), "naive".into()];
    let mut plan = Plan { records: 5_000, round_s: 0.4, checkpoint_at_s: 0.1, ..CalcFig2::quick() };
    plan.long = LongTransactions { seconds: 0.05, writes: 10, open_max: 1, ..plan.long };
    CalcFig2::adjust(&mut plan, &context);
    assert_eq!(plan.point_runs, 1);
    let bench = Harness { context: &context, open: &Toy::open, children: false };
    let result = run_plan::<CalcFig2>(&bench, &plan)?;
    let rows = &result.tables[0].rows;
    let stopped: Vec<_> = rows.iter().map(|row| (&*row[0], &*row[1], &*row[2])).collect();
    let both = |name| (name, "20.000", "10.000");
    assert_eq!(stopped, [both("naive"), ("calc", "10.000", "10.000"), both("zigzag:partial")]);
    assert!(rows[1][7] == "–" && rows[0][7] != "–", "{rows:?}");
    let claims: Vec<_> = result.claims.iter().map(|it| (&*it.claim, it.measured)).collect();
    let of_stops = claims.iter().filter(|it| it.0.contains("stopped"));
    assert!(of_stops.clone().count() == 2 && of_stops.clone().all(|it| it.1 == Some(0.5)));
    let of_calc: Vec<_> = claims.iter().filter(|it| it.0.contains("calc ÷ naive")).collect();
    assert!(of_calc.len() == 2 && of_calc[0].0.ends_with("as published"), "{claims:?}");
    assert_eq!(claims.len(), 4, "nothing is claimed of the loss beside changes: {claims:?}");
    Ok(())
}

/// A list of schemes and a number of runs belong to the part that is asked for.
#[test]
fn a_part_can_be_cut_to_some_schemes() -> LabResult<()> {
    if !crate::experiments::has_turn(module_path!()) {
        return Ok(());
    }
    let dir = tempfile::tempdir().map_err(|e| crate::LabError::process("tempdir", e))?;
    let mut context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
    context.part = Some("fuzzy".into());
    context.runs = Some(2);
    context.schemes = vec!["fuzzy-undo".into()];
    let mut plan = Plan { logged_records: 1_000, rest_pairs: 1, rest_s: 0.05, ..CalcFig2::quick() };
    plan.logged_round_s = 0.3;
    CalcFig2::adjust(&mut plan, &context);
    assert_eq!((plan.logged_runs, plan.runs), (2, CalcFig2::quick().runs));
    let bench = Harness { context: &context, open: &Toy::open, children: false };
    let result = run_plan::<CalcFig2>(&bench, &plan)?;
    assert_eq!((result.tables.len(), result.tables[0].rows.len()), (1, 1), "{:?}", result.tables);
    assert!(result.tables.iter().all(|table| table.part == "fuzzy"));
    Ok(())
}
