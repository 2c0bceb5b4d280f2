//! Both experiments with redis-server in the place of every server: the machinery can be tested without
//! ours.

use super::*;
use crate::experiments::Experiment;
use crate::report::result::ExperimentResult;

/// The subjects of a test, all of them redis-server.
fn in_its_place(redis: &Path) -> Vec<Subject> {
    let all = subjects(Path::new("unused"), Some(redis.to_owned()));
    let real = all.last().expect("redis").peer.clone();
    let peer = |name: &str| Peer { name: name.into(), ..real.clone() };
    all.iter()
        .map(|it| Subject { peer: peer(it.name()), ..it.clone() })
        .filter(|it| [NONE, FORK, CONSTANT[0]].contains(&it.name()))
        .collect()
}

fn each(
    compare: fn(&Context, &Plan, &[Subject], &mut ExperimentResult) -> LabResult<()>,
    plan: Plan,
) -> LabResult<Option<ExperimentResult>> {
    let Some(redis) = find_program("redis-server") else {
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "SKIPPED: redis-server is not installed");
        return Ok(None);
    };
    let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
    let context = Context::new(dir.path(), true, redis.clone(), Box::new(std::io::stderr()));
    each_in(&context, compare, &plan, &redis).map(Some)
}

fn each_in(
    context: &Context,
    compare: fn(&Context, &Plan, &[Subject], &mut ExperimentResult) -> LabResult<()>,
    plan: &Plan,
    redis: &Path,
) -> LabResult<ExperimentResult> {
    let mut result = context.result("snap-fig5", "snapshots", "a paper");
    compare(context, plan, &in_its_place(redis), &mut result)?;
    for table in &result.tables {
        assert!(table.rows.iter().all(|row| row.len() == table.columns.len()));
    }
    assert_eq!(sys::list_dir(&context.work)?.iter().filter(|path| path.is_dir()).count(), 0);
    Ok(result)
}

#[test]
fn throughput_is_compared_with_forks() -> LabResult<()> {
    if !crate::experiments::has_turn(module_path!()) {
        return Ok(());
    }
    let plan = Plan { update_shares: vec![0.1, 0.5], ..SnapFig5::quick() };
    let Some(result) = each(throughput::compare, plan)? else { return Ok(()) };
    // Two sizes and two shares of one scheme, and a dump at the greatest size.
    assert_eq!((result.claims.len(), result.figures.len()), (6, 2));
    assert!(result.claims.iter().all(|claim| claim.measured.is_some_and(|it| it > 0.0)));
    assert_eq!(result.tables[0].rows.len(), 12);
    for row in &result.tables[0].rows {
        assert_eq!(row[5] == "–", row[2] == NONE, "a dump has its time: {row:?}");
    }
    for series in &result.series {
        assert_eq!(series.points.len(), 2, "{}", series.name);
    }
    Ok(())
}

#[test]
fn worst_latencies_belong_to_periods() -> LabResult<()> {
    if !crate::experiments::has_turn(module_path!()) {
        return Ok(());
    }
    let Some(result) = each(latency::compare, SnapFig6::quick())? else { return Ok(()) };
    assert_eq!((result.figures[0].series.len(), result.tables[0].rows.len()), (3, 6));
    let measured = result.claims.iter().filter(|claim| claim.measured.is_some()).count();
    assert!(measured >= 7, "{:#?}", result.claims);
    let beside = result.claims.iter().find(|it| it.claim.contains("equal stretches"));
    assert!(beside.is_some_and(|it| it.measured.is_some()), "{:#?}", result.claims);
    for series in &result.series {
        assert!(series.points.iter().all(|point| point[1] > 0.0), "{}", series.name);
    }
    Ok(())
}

/// The part that bounds name has two sizes, one share of updates and no curves.
#[test]
fn the_floors_are_a_short_part() {
    let mut context = Context::new("out".as_ref(), false, "none".into(), Box::new(std::io::sink()));
    let names = |context: &Context| -> Vec<String> {
        let all = subjects(Path::new("program"), Some("redis".into()));
        chosen(context, all).iter().map(|it| it.name().to_owned()).collect()
    };
    assert_eq!(names(&context).len(), 7, "the grid has all");
    context.part = Some("floors".into());
    assert_eq!(names(&context), [NONE, FORK, HUGE_FORK, CONSTANT[0], CONSTANT[1]]);
    let mut plan = SnapFig5::full();
    plan.adjust(&context);
    assert_eq!((&plan.records[..], plan.update_shares.len()), (&[250_000, 4_000_000][..], 1));
    assert!(plan.period_s < SnapFig5::full().period_s);
    context.schemes = vec!["calc".into()];
    context.seconds = Some(7.0);
    plan.adjust(&context);
    assert_eq!(plan.period_s.to_bits(), 7.0_f64.to_bits());
    assert_eq!(names(&context), [NONE, FORK, CALC]);
    context.schemes = vec!["fork".into()];
    assert_eq!(names(&context), [NONE, FORK, HUGE_FORK], "both sizes of pages");
}

#[test]
fn each_server_has_its_command() {
    let all = subjects(Path::new("program"), Some("redis".into()));
    let names: Vec<&str> = all.iter().map(Subject::name).collect();
    assert_eq!(names, [NONE, FORK, HUGE_FORK, CONSTANT[0], CONSTANT[1], CALC, REDIS]);
    let copies: Vec<u64> = all.iter().map(|it| it.copies).collect();
    assert_eq!(copies, [1, 2, 2, 2, 2, 1, 2]);
    assert!(!all[0].takes_snapshots && all[1..].iter().all(|it| it.takes_snapshots));
    assert!(all[1].peer.arguments.ends_with(&["--pages", "small"].map(String::from)));
}
