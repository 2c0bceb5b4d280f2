use super::*;
use crate::workloads::load::Declare;
use crate::workloads::trace::{Trace, TraceLoad, WordCell};
use crate::workloads::zipf::ZipfAccesses;
use stillpoint_state::{Actions, Array, Cells};

fn drive(images: Images) -> Drive {
    Drive {
        ticks: 12,
        warm_up_ticks: 1,
        warm_up_images: 1,
        tick: Some(Duration::from_millis(5)),
        images,
        further_boundaries: 2,
        ..Drive::paper(1)
    }
}

fn load<C: WordCell>(read_share: f64) -> LabResult<TraceLoad<C>> {
    let zipf = ZipfAccesses { read_share, ..ZipfAccesses::objects(20, 10_000, 5) };
    Ok(TraceLoad::new(Trace::equal(zipf.make()?, 700), zipf.words()))
}

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

#[test]
fn every_scheme_runs_and_recovers_on_words_and_on_pages() -> LabResult<()> {
    let (words, pages) = (load::<u32>(0.3)?, load::<[u32; 1024]>(0.3)?);
    for name in registry::names_here() {
        let drive = drive(Images::EveryTicks(6));
        for outcome in
            [run(&words, name, &drive, dir().path())?, run(&pages, name, &drive, dir().path())?]
        {
            let content = registry::REGISTRY.find(name).expect("it is there").content;
            let takes_images = content != Content::Nothing;
            assert_eq!(outcome.ticks.len(), 12, "{name}");
            assert_eq!(outcome.all().captures() >= 1, takes_images, "{name}");
            let further = outcome.further.iter().map(|tick| tick.begins_capture);
            assert_eq!(further.collect::<Vec<_>>(), [takes_images; 2], "{name}");
            assert_eq!(outcome.recovery.is_some(), takes_images, "{name}");
            assert!(outcome.ticks.iter().all(|tick| tick.work_ns > 0 && tick.raw_ns > 0), "{name}");
            let copies = outcome.held_bytes as f64 / outcome.state_bytes as f64;
            assert!(copies >= 1.0 && outcome.all().max_ms() >= outcome.all().mean_ms(), "{name}");
        }
    }
    Ok(())
}

#[test]
fn images_as_often_as_possible_and_a_log_of_ticks() -> LabResult<()> {
    let drive =
        Drive { logs_actions: true, merge: Merge::Copy, ..drive(Images::AsOftenAsPossible) };
    let drive = Drive { ticks: 40, ..drive };
    let outcome = run(&load::<u32>(0.0)?, "ipp", &drive, dir().path())?;
    let recovery = outcome.recovery.expect("it has images");
    assert!(recovery.tick > 40 && recovery.replayed_ticks < recovery.tick, "{recovery:?}");
    assert!(outcome.all().captures() >= 1, "{:?}", outcome.image_s);
    Ok(())
}

/// Writes other values when a tick is run again.
struct Forgetful(TraceLoad<u32>);

impl Load for Forgetful {
    type Arrays = Array<u32>;
    fn declare(&self, builder: &mut impl Declare) -> Array<u32> {
        self.0.declare(builder)
    }
    fn first<S: Scheme>(&self, array: Array<u32>, cells: &mut Cells<S>) {
        self.0.first(array, cells);
    }
    fn step<S: Scheme>(&self, array: Array<u32>, cells: &mut Cells<S>, tick: u64) -> u64 {
        self.0.step(array, cells, tick)
    }
    fn replay<S: Scheme>(&self, array: Array<u32>, cells: &mut Cells<S>, _: u64, _: Actions<'_>) {
        cells.write(array, 3, 0xDEAD);
    }
    fn first_difference<A: Scheme, B: Scheme>(
        &self,
        one: (Array<u32>, &Cells<A>),
        other: (Array<u32>, &Cells<B>),
    ) -> Option<String> {
        self.0.first_difference(one, other)
    }
}

#[test]
fn a_figure_from_a_run_whose_recovery_differs_is_no_figure() -> LabResult<()> {
    let drive = drive(Images::EveryTicks(100));
    let drive = Drive { logs_actions: true, further_boundaries: 0, ..drive };
    let error = run(&Forgetful(load(0.0)?), "pb", &drive, dir().path());
    let error = error.expect_err("it does not recover").to_string();
    assert!(error.contains("pb") && error.contains("differs from the load: cell"), "{error}");
    Ok(())
}

#[test]
fn an_unknown_scheme_and_a_used_directory_are_refused() -> LabResult<()> {
    let (load, dir, drive) = (load::<u32>(0.0)?, dir(), drive(Images::EveryTicks(6)));
    let error = run(&load, "izp", &drive, dir.path()).expect_err("unknown").to_string();
    assert!(error.contains("izp") && error.contains("ipp"), "{error}");
    run(&load, "hg", &drive, dir.path())?;
    let error = run(&load, "hg", &drive, dir.path()).expect_err("used").to_string();
    assert!(error.contains("holds a state already"), "{error}");
    Ok(())
}
