//! The whole experiment on the toy engine.

use super::*;
use crate::drivers::transactions::tests::Toy;
use crate::drivers::transactions::{Capture, Outcome};
use crate::experiments::run_plan;
use crate::measure::stats::WINDOW_NS;
use crate::report::result::{Agreement, Claim};
use crate::subjects::records::row;

/// A run of these windows. Its checkpoint begins with the second window and ends within the third.
pub(super) fn outcome(windows: &[u64]) -> Outcome {
    let mut outcome = Outcome { seconds: windows.len() as f64 / 10.0, ..Outcome::default() };
    for (number, &count) in windows.iter().enumerate() {
        outcome.windows.add(number as u64 * WINDOW_NS, count);
    }
    outcome.captures.push(Capture { from_s: 0.1, to_s: 0.25, ..Capture::default() });
    outcome
}

/// Runs of a row, each of four windows and beside a baseline of this height.
pub(super) fn compared(name: &str, runs: &[(u64, [u64; 4])]) -> Compared {
    Compared {
        row: row(name),
        baseline: runs.iter().map(|(height, _)| outcome(&[*height; 4])).collect(),
        runs: runs.iter().map(|(_, windows)| outcome(windows)).collect(),
    }
}

pub(super) fn result() -> ExperimentResult {
    let context = Context::new("unused".as_ref(), true, "none".into(), Box::new(std::io::sink()));
    context.result("toy", "a toy", "none")
}

fn reported(found: &Findings) -> ExperimentResult {
    let mut result = result();
    report::add(&CalcFig2::quick(), found, &mut result);
    result
}

fn claim<'a>(result: &'a ExperimentResult, text: &str) -> &'a Claim {
    let found = result.claims.iter().find(|it| it.claim.contains(text));
    found.unwrap_or_else(|| panic!("{text}: {:?}", result.claims))
}

#[track_caller]
fn measures(claim: &Claim, wanted: f64) {
    let measured = claim.measured.unwrap_or(f64::NAN);
    assert!((measured - wanted).abs() < 1e-9, "{}: {measured}, not {wanted}", claim.claim);
}

/// All runs of calc count, and each beside its own baseline: a slow machine loses fewer transactions.
#[test]
fn losses_are_medians_of_shares() {
    let calc = [50, 200, 300].map(|lost| (1000, [1000 - lost; 4]));
    let naive = compared(NAIVE_PACED, &[(500, [100; 4])]);
    let saturated = vec![compared(CALC_PACED, &calc), naive];
    let result = reported(&Findings { saturated, ..Findings::default() });
    measures(claim(&result, "transactions lost: calc ÷ naive, paced"), 0.2 / 0.8);
    let lost = result.figures.iter().find(|it| it.title == "Transactions lost per checkpoint");
    let bars: Vec<f64> =
        lost.map_or(Vec::new(), |it| it.bars.iter().map(|b| b.value.median).collect());
    assert_eq!(bars.iter().map(|it| it.round()).collect::<Vec<_>>(), [20.0, 80.0]);
}

/// The paper has four schemes beside calc, and one of them with a number of its own.
#[test]
fn only_schemes_of_the_paper_are_laid_beside_it() {
    for (scheme, ratio) in
        [("naive", Some(0.5)), ("ping-pong", Some(0.5)), ("zigzag", Some(0.6)), ("cou", None)]
    {
        let claim = report::lost_beside(scheme).claim("");
        assert_eq!((claim.paper_ratio, claim.paper.is_some()), (ratio, ratio.is_some()));
        assert_eq!(claim.source.starts_with("CALC paper"), ratio.is_some());
    }
}

#[test]
fn what_a_checkpoint_leaves_is_a_ratio_that_the_report_can_judge() {
    let calc = |kept| compared(CALC_PACED, &[(1000, [1000, kept, kept, 1000])]);
    let found = |kept, with_long| Findings {
        saturated: vec![calc(kept)],
        with_long: vec![calc(with_long)],
        half: Vec::new(),
    };
    let result = reported(&found(771, 694));
    let kept = claim(&result, "calc, paced: throughput kept inside the capture window");
    measures(kept, 0.771);
    assert_eq!((kept.met, Agreement::of(kept)), (Some(false), Some(Agreement::Weaker)));
    for text in
        ["throughput kept inside the capture window, with 2-second", "worst 100 ms window ÷"]
    {
        let by_long = claim(&result, &format!("calc, paced: {text}"));
        measures(by_long, 694.0 / 771.0);
        assert_eq!((by_long.met, Agreement::of(by_long)), (Some(false), Some(Agreement::Weaker)));
    }
    let result = reported(&found(900, 890));
    let kept = claim(&result, "calc, paced: throughput kept inside the capture window");
    assert_eq!((kept.met, Agreement::of(kept)), (Some(true), Some(Agreement::Reproduced)));
    let by_long = claim(&result, "with 2-second");
    assert_eq!((by_long.met, Agreement::of(by_long)), (Some(true), Some(Agreement::Reproduced)));
}

/// A claim that is missed does not say "reproduced", and one ratio of medians stands for all runs.
#[test]
fn drops_of_two_rows_are_compared_by_their_medians() {
    let within = |kept| (1000, [1000, kept, kept, 1000]);
    let calc = compared(CALC_PACED, &[within(880), within(900), within(950)]);
    let saturated = vec![calc, compared(ZIGZAG_PACED, &[within(1000)])];
    let result = reported(&Findings { saturated, ..Findings::default() });
    let drop = claim(&result, "÷ before it: calc, paced ÷ zigzag, paced");
    measures(drop, 0.9);
    assert_eq!((drop.spread, drop.met), (None, Some(false)));
    assert_eq!(Agreement::of(drop), Some(Agreement::Weaker));
}

#[test]
fn after_its_checkpoint_naive_returns_to_normal_or_not() {
    let naive = |after| vec![compared(NAIVE_PACED, &[(1000, [1000, 0, 0, after])])];
    for (after, met) in [(980, true), (500, false)] {
        let result = reported(&Findings { saturated: naive(after), ..Findings::default() });
        let claim = claim(&result, "throughput after the checkpoint");
        measures(claim, after as f64 / 1000.0);
        assert_eq!(claim.met, Some(met));
        assert!(result.notes.is_empty(), "{:?}", result.notes);
    }
}

#[test]
fn a_round_that_ends_before_its_checkpoint_is_named() {
    let mut saturated = vec![compared(NAIVE_PACED, &[(1000, [1000; 4]); 2])];
    saturated[0].runs[1].captures[0].to_s = 0.5;
    let result = reported(&Findings { saturated, ..Findings::default() });
    assert!(result.notes[0].text.starts_with("naive, paced, saturated: 1 of 2 rounds"));
    assert_eq!(claim(&result, "throughput after").met, None, "no time was left");
    let plan = CalcFig2::full();
    assert!(plan.round_s - plan.checkpoint_at_s >= 32.0, "a paced checkpoint takes 27 s");
}

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

    // The toy can be faster with a checkpoint than without. Then the ratio has no meaning. Beside other tests
    // it may do nothing before its checkpoint.
    let sometimes = ["transactions lost: calc ÷", "before the checkpoint", "before it"];
    let always = |c: &&Claim| !sometimes.iter().any(|text| c.claim.contains(text));
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
    assert!(has("time stopped: fuzzy-undo ÷ naive"));
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
