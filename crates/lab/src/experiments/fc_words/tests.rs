use super::*;
use crate::experiments::{plan, run_plan};
use crate::subjects;
use crate::sys;

fn run(context: &Context) -> LabResult<ExperimentResult> {
    let open = &subjects::stillpoint::open;
    let bench = Harness { context, open, children: false };
    run_plan::<FcWords>(&bench, &plan::<FcWords>(context))
}

fn context(dir: &std::path::Path) -> Context {
    Context::new(dir, true, "none".into(), Box::new(std::io::sink()))
}

#[test]
fn the_quick_mode_goes_through_all_parts() -> LabResult<()> {
    if !crate::experiments::has_turn(module_path!()) {
        return Ok(());
    }
    let dir = tempfile::tempdir().map_err(|e| crate::LabError::process("tempdir", e))?;
    let context = context(dir.path());
    let result = run(&context)?;
    let figures: Vec<&str> = result.figures.iter().map(|figure| &*figure.title).collect();
    assert_eq!(figures.len(), 12, "{figures:?}");
    for figure in &result.figures {
        for name in &figure.series {
            let named = result.series.iter().filter(|series| &series.name == name).count();
            assert_eq!(named, 1, "{name} of {}", figure.title);
        }
    }
    for table in &result.tables {
        assert!(table.rows.iter().all(|row| row.len() == table.columns.len()), "{}", table.title);
    }
    let measured = result.claims.iter().filter(|claim| claim.measured.is_some()).count();
    assert!(
        measured + 24 >= result.claims.len(),
        "all but crossovers, pages and what drowns: {:#?}",
        result.claims
    );
    assert!(sys::list_dir(&dir.path().join("work")).is_err(), "nothing is left behind");
    Ok(())
}

#[test]
fn one_part_leaves_the_others_out() -> LabResult<()> {
    if !crate::experiments::has_turn(module_path!()) {
        return Ok(());
    }
    let dir = tempfile::tempdir().map_err(|e| crate::LabError::process("tempdir", e))?;
    let mut context = context(dir.path());
    context.part = Some("sizes".into());
    let result = run(&context)?;
    assert_eq!((result.figures.len(), result.tables.len(), result.claims.len()), (2, 0, 8));
    Ok(())
}

#[test]
fn the_plan_takes_the_contexts_lengths() {
    let mut context = context(std::path::Path::new("out"));
    context.quick = false;
    (context.runs, context.seconds) = (Some(2), Some(10.0));
    let plan = plan::<FcWords>(&context);
    assert_eq!((plan.periods, plan.live_periods), (2, 3));
    assert!(plan.rates.contains(&RATE) && plan.few_rates.contains(&RATE));
}
