//! The registry: one row per experiment, from which `list`, `run` and CI follow.

use crate::arrays::mmo::experiments as mmo;
use crate::arrays::tpcc::experiments as tpcc;
use crate::arrays::{snap, words};
use crate::calc::{Bench, fig2, fig6};
use crate::conditions::Meter;
use crate::context::Context;
use crate::engines;
use crate::error::{LabError, LabResult};
use crate::peers_redis;
use crate::redo_cost;
use crate::result::ExperimentResult;
use crate::sys;

/// One experiment.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// Its name: in commands, in files, in the report.
    pub id: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// Where its claims come from.
    pub paper: &'static str,
    /// Parts that can be run alone; none if it is all of a piece.
    pub parts: &'static [&'static str],
    /// Runs it; [`Context::quick`] asks for seconds instead of minutes.
    pub run: fn(&Context) -> LabResult<ExperimentResult>,
}

/// All experiments, in the order in which `run all` takes them.
pub const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        id: fig2::ID,
        title: fig2::TITLE,
        paper: fig2::PAPER,
        parts: fig2::PARTS,
        run: |context| fig2::run(&bench(context), &fig2::Plan::of(context)),
    },
    Experiment {
        id: fig6::ID,
        title: fig6::TITLE,
        paper: fig6::PAPER,
        parts: &[],
        run: |context| fig6::run(&bench(context), &fig6::Plan::of(context)),
    },
    Experiment {
        id: redo_cost::ID,
        title: redo_cost::TITLE,
        paper: redo_cost::PAPER,
        parts: &[],
        run: |context| redo_cost::run(&bench(context), &redo_cost::Plan::of(context)),
    },
    Experiment {
        id: words::ID,
        title: words::TITLE,
        paper: words::PAPER,
        parts: words::PARTS,
        run: |context| words::run(context, &words::Plan::of(context)),
    },
    Experiment {
        id: snap::ID,
        title: snap::TITLE,
        paper: snap::PAPER,
        parts: snap::PARTS,
        run: |context| snap::run(context, &snap::Plan::of(context)),
    },
    Experiment {
        id: mmo::FIG10,
        title: mmo::FIG10_TITLE,
        paper: mmo::PAPER,
        parts: &[],
        run: |context| mmo::fig10(context, &mmo::Plan::of(context)),
    },
    Experiment {
        id: mmo::FIG11,
        title: mmo::FIG11_TITLE,
        paper: mmo::PAPER,
        parts: &[],
        run: |context| mmo::fig11(context, &mmo::Plan::of(context)),
    },
    Experiment {
        id: tpcc::FIG12,
        title: tpcc::FIG12_TITLE,
        paper: tpcc::PAPER,
        parts: tpcc::PARTS,
        run: |context| tpcc::fig12(context, &tpcc::Plan::of(context)),
    },
    Experiment {
        id: tpcc::FIG13,
        title: tpcc::FIG13_TITLE,
        paper: tpcc::PAPER,
        parts: tpcc::PARTS,
        run: |context| tpcc::fig13(context, &tpcc::Plan::of(context)),
    },
    Experiment {
        id: peers_redis::ID,
        title: peers_redis::TITLE,
        paper: peers_redis::PAPER,
        parts: peers_redis::PARTS,
        run: peers_redis::run,
    },
];

/// Our engine, and the binary that knows `lab child`.
fn bench(context: &Context) -> Bench<'_> {
    Bench { context, open: &engines::stillpoint::open, children: true }
}

/// The experiment of this name, or all for `all`.
///
/// # Errors
/// When there is none; the message lists those that there are.
pub fn find(id: &str) -> LabResult<Vec<&'static Experiment>> {
    let found: Vec<_> = EXPERIMENTS.iter().filter(|e| id == "all" || e.id == id).collect();
    if found.is_empty() {
        let known: Vec<&str> = EXPERIMENTS.iter().map(|e| e.id).collect();
        return Err(LabError::UnknownExperiment { id: id.to_owned(), known: known.join(", ") });
    }
    Ok(found)
}

impl Experiment {
    /// Runs the experiment and writes its result file and figures.
    ///
    /// # Errors
    /// When it cannot be run, or its files cannot be written.
    pub fn run_and_save(&self, context: &Context) -> LabResult<ExperimentResult> {
        if let Some(part) = &context.part
            && !self.parts.contains(&&**part)
        {
            let known = self.parts.join(", ");
            return Err(LabError::UnknownPart { id: self.id, part: part.clone(), known });
        }
        sys::create_dir_all(&context.out)?;
        let earlier = self.earlier(context)?;
        let (began_ns, meter) = (sys::now_ns(), Meter::start());
        let mut result = (self.run)(context)?;
        result.seconds = (sys::now_ns() - began_ns) as f64 / 1e9;
        result.conditions = meter.finish(context.huge_page_bytes_max());
        if context.quick {
            // Too short to judge anything by.
            result.claims.iter_mut().for_each(|claim| claim.met = None);
        }
        if let Some(part) = &context.part {
            let mut whole = earlier.unwrap_or_else(|| result.without_findings());
            whole.merge_part(part, result);
            result = whole;
        }
        let path = result.save(&context.out)?;
        context.note(format!("{}: written to {}", self.id, path.display()));
        Ok(result)
    }
}

impl Experiment {
    /// The result that the run of a part goes into.
    fn earlier(&self, context: &Context) -> LabResult<Option<ExperimentResult>> {
        let path = ExperimentResult::path_in(&context.out, self.id);
        if context.part.is_none() || !path.is_file() {
            return Ok(None);
        }
        let earlier = ExperimentResult::load(&path)?;
        if earlier.quick != context.quick {
            let mode = |quick: bool| if quick { "a quick run" } else { "a measured run" };
            let (of_file, of_run) = (mode(earlier.quick), mode(context.quick));
            return Err(LabError::OtherMode { path, of_file, of_run });
        }
        Ok(Some(earlier))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Bound, Claim};

    #[test]
    fn a_part_must_be_one_of_the_experiment() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        context.part = Some("naps".into());
        for experiment in EXPERIMENTS {
            let error = experiment.run_and_save(&context).expect_err("no such part").to_string();
            assert!(error.contains("naps") && error.contains(experiment.id), "{error}");
        }
    }

    /// An experiment of two parts, whose runs are numbered.
    fn toy(context: &Context) -> LabResult<ExperimentResult> {
        let mut result = context.result("toy", "A toy", "none");
        for part in ["one", "two"].into_iter().filter(|part| context.wants(part)) {
            result.in_part(part, |result| {
                let claim = Claim::new(part, "Stillpoint", Bound::AtMost(1.0));
                result.claims.push(claim.measured(0.5));
                Ok(())
            })?;
        }
        Ok(result)
    }

    const TOY: Experiment =
        Experiment { id: "toy", title: "A toy", paper: "none", parts: &["one", "two"], run: toy };

    #[test]
    fn a_part_is_merged_into_the_file_of_the_whole_run() -> LabResult<()> {
        let dir = tempfile::tempdir().expect("a directory");
        let mut context = Context::new(dir.path(), false, "none".into(), Box::new(std::io::sink()));
        context.commit = "aaaa".into();
        TOY.run_and_save(&context)?;
        context.commit = "bbbb".into();
        context.part = Some("two".into());
        TOY.run_and_save(&context)?;
        let file = ExperimentResult::load(&dir.path().join("toy.json"))?;
        let claims: Vec<&str> = file.claims.iter().map(|claim| &*claim.claim).collect();
        assert_eq!(claims, ["one", "two"], "the other part's claims are still there");
        assert_eq!((&*file.commit, &*file.parts["two"].commit), ("aaaa", "bbbb"));
        assert_eq!(file.command, "stillpoint lab run toy");

        context.quick = true;
        let error = TOY.run_and_save(&context).expect_err("another mode").to_string();
        assert!(error.contains("toy.json") && error.contains("a measured run"), "{error}");
        Ok(())
    }

    #[test]
    fn a_part_alone_makes_a_file_of_its_own() -> LabResult<()> {
        let dir = tempfile::tempdir().expect("a directory");
        let mut context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        context.part = Some("one".into());
        let result = TOY.run_and_save(&context)?;
        assert_eq!((result.claims.len(), result.parts.len()), (1, 1));
        Ok(())
    }

    #[test]
    fn a_quick_run_judges_nothing() -> LabResult<()> {
        let dir = tempfile::tempdir().expect("a directory");
        let context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        TOY.run_and_save(&context)?;
        let file = ExperimentResult::load(&dir.path().join("toy.json"))?;
        assert!(file.claims.iter().all(|claim| claim.met.is_none() && claim.measured.is_some()));
        Ok(())
    }

    #[test]
    fn names_are_unique_and_found() {
        for experiment in EXPERIMENTS {
            let found = find(experiment.id).expect("registered");
            assert_eq!(found.len(), 1, "{} is registered twice", experiment.id);
            assert!(!experiment.title.is_empty() && !experiment.paper.is_empty());
        }
        assert_eq!(find("all").expect("all").len(), EXPERIMENTS.len());
        let error = find("peers").expect_err("no such experiment").to_string();
        assert!(error.contains("peers-redis"), "{error}");
    }
}
