//! The registry: one row per experiment, from which `list`, `run` and CI follow.

mod advise_check;
mod calc_fig2;
mod calc_fig3;
mod calc_fig4;
mod calc_fig5;
mod calc_fig6;
mod calc_fig7;
mod calc_fig8;
pub(crate) mod calc_figures;
mod calc_measures;
mod command_cost;
pub(crate) mod fc_words;
mod game;
pub(crate) mod instructions;
mod memory_back;
mod paged;
mod partial_cost;
mod peers_clients;
mod peers_collections;
mod peers_redis;
mod redo_cost;
mod restart_serving;
mod siren_fig8;
mod siren_fig9;
mod siren_memory;
mod siren_tab3;
mod snap_fig3;
mod snap_redis;
mod snap_table1;
mod snapshot_cost;
mod tpcc;
pub(crate) mod tpcc_instructions;
mod ycsb;

use std::process::{Command, Stdio};

use serde::Serialize;
use serde_json::Value;
use stillpoint_format::registry::{Named, Registry};

use crate::context::Context;
use crate::error::{LabError, LabResult};
use crate::harness::Harness;
use crate::measure::conditions::Meter;
use crate::report::result::{ExperimentResult, joined};
use crate::subjects;
use crate::sys;

/// An experiment: its subject, its plan, and its run.
///
/// The result holds the plan as its parameters. The runner chooses the plan, makes the result, and
/// removes the experiment's working data.
pub(crate) trait Experiment {
    /// The experiment's name in commands, in files, and in the report.
    const ID: &'static str;
    /// The experiment's headline in the report.
    const TITLE: &'static str;
    /// The source of the claims.
    const PAPER: &'static str;
    /// Parts that can be run alone. Empty for an experiment without parts.
    const PARTS: &'static [&'static str] = &[];
    /// Processes that run the experiment one after the other, unless the command line names another
    /// number. A quick run has one.
    const PROCESSES: usize = 1;
    /// A part whose figures are the same in every process, so that one process suffices for it.
    const EXACT_PART: Option<&'static str> = None;

    /// The amount of work. Names of fields have their units last.
    type Plan: Serialize;

    /// The plan that the bounds ask for.
    fn full() -> Self::Plan;

    /// A plan of seconds, which shows that the experiment still runs.
    fn quick() -> Self::Plan;

    /// Applies the command line's number of runs, seconds and part to the plan.
    fn adjust(plan: &mut Self::Plan, asked: &Context);

    /// Carries out the plan and adds all figures to the result.
    ///
    /// # Errors
    /// When a subject fails, or reads, holds or recovers anything wrong.
    fn run(bench: &Harness<'_>, plan: &Self::Plan, result: &mut ExperimentResult) -> LabResult<()>;
}

/// A row of the registry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registered {
    /// The experiment's [`Experiment::ID`].
    pub(crate) id: &'static str,
    /// The experiment's [`Experiment::TITLE`].
    pub(crate) title: &'static str,
    /// The experiment's [`Experiment::PAPER`].
    pub(crate) paper: &'static str,
    /// The experiment's [`Experiment::PARTS`].
    pub(crate) parts: &'static [&'static str],
    /// The experiment's [`Experiment::PROCESSES`].
    processes: usize,
    /// The experiment's [`Experiment::EXACT_PART`].
    exact_part: Option<&'static str>,
    run: fn(&Context) -> LabResult<ExperimentResult>,
}

const fn row<E: Experiment>() -> Registered {
    Registered {
        id: E::ID,
        title: E::TITLE,
        paper: E::PAPER,
        parts: E::PARTS,
        processes: E::PROCESSES,
        exact_part: E::EXACT_PART,
        run: run::<E>,
    }
}

/// All experiments, in the order in which `run all` takes them.
pub(crate) static EXPERIMENTS: Registry<Registered> = Registry::new(
    "experiment",
    &[
        row::<calc_fig2::CalcFig2>(),
        row::<calc_fig3::CalcFig3>(),
        row::<calc_fig4::CalcFig4>(),
        row::<calc_fig5::CalcFig5>(),
        row::<calc_fig6::CalcFig6>(),
        row::<calc_fig7::CalcFig7>(),
        row::<calc_fig8::CalcFig8>(),
        row::<partial_cost::PartialCost>(),
        row::<snapshot_cost::SnapshotCost>(),
        row::<restart_serving::RestartServing>(),
        row::<redo_cost::RedoCost>(),
        row::<command_cost::CommandCost>(),
        row::<paged::PagedRead>(),
        row::<paged::PagedScan>(),
        row::<paged::PagedYcsb>(),
        row::<paged::PagedTpcc>(),
        row::<paged::PagedPageSize>(),
        row::<siren_tab3::SirenTab3>(),
        row::<siren_fig8::SirenFig8>(),
        row::<siren_fig9::SirenFig9>(),
        row::<siren_memory::SirenMemory>(),
        row::<fc_words::FcWords>(),
        row::<snap_fig3::SnapFig3>(),
        row::<snap_table1::SnapTable1>(),
        row::<snap_redis::SnapFig5>(),
        row::<snap_redis::SnapFig6>(),
        row::<game::FcFig10>(),
        row::<game::FcFig11>(),
        row::<tpcc::FcFig12>(),
        row::<tpcc::FcFig13>(),
        row::<ycsb::Ycsb>(),
        row::<peers_redis::PeersRedis>(),
        row::<peers_clients::PeersClients>(),
        row::<peers_collections::PeersCollections>(),
        row::<memory_back::MemoryBack>(),
        row::<advise_check::AdviseCheck>(),
    ],
);

impl Named for Registered {
    fn names(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.id)
    }

    fn about(&self) -> &'static str {
        self.title
    }
}

/// The full or quick plan, adjusted by the context's number and length of runs.
fn plan<E: Experiment>(context: &Context) -> E::Plan {
    let mut plan = if context.quick { E::quick() } else { E::full() };
    E::adjust(&mut plan, context);
    plan
}

/// Runs an experiment with our engine, and with the binary that knows `lab child`.
fn run<E: Experiment>(context: &Context) -> LabResult<ExperimentResult> {
    let children = context.binary.is_file();
    let bench = Harness { context, open: &subjects::stillpoint::open, children };
    run_plan::<E>(&bench, &plan::<E>(context))
}

/// Runs a plan. The result holds the plan as its parameters.
fn run_plan<E: Experiment>(bench: &Harness<'_>, plan: &E::Plan) -> LabResult<ExperimentResult> {
    let context = bench.context;
    let mut result = context.result(E::ID, E::TITLE, E::PAPER);
    let parameters = serde_json::to_value(plan);
    match parameters.map_err(|e| LabError::process("a plan as JSON", e))? {
        Value::Object(fields) => result.parameters.extend(fields),
        other => result.parameters.extend([("plan".to_owned(), other)]),
    }
    E::run(bench, plan, &mut result)?;
    sys::remove_dir_all(&context.work)?;
    Ok(result)
}

/// The experiment of this name, or all for `all`.
///
/// # Errors
/// When there is no such experiment. The message lists the names that exist.
pub(crate) fn find(id: &str) -> LabResult<Vec<&'static Registered>> {
    if id == "all" {
        Ok(EXPERIMENTS.into_iter().collect())
    } else {
        Ok(vec![EXPERIMENTS.find(id)?])
    }
}

impl Registered {
    /// Runs the experiment and writes its result file and figures.
    ///
    /// # Errors
    /// When the experiment fails, or its files cannot be written.
    pub(crate) fn run_and_save(&self, context: &Context) -> LabResult<ExperimentResult> {
        if let Some(part) = &context.part
            && !self.parts.contains(&&**part)
        {
            let known = self.parts.join(", ");
            return Err(LabError::UnknownPart { id: self.id, part: part.clone(), known });
        }
        sys::create_dir_all(&context.out)?;
        let earlier = self.earlier(context)?;
        let (began_ns, meter) = (sys::now_ns(), Meter::start());
        let mut result = match self.processes(context) {
            processes if processes != 1 => self.run_in_processes(context, processes)?,
            _ => {
                let mut result = (self.run)(context)?;
                result.seconds = (sys::now_ns() - began_ns) as f64 / 1e9;
                result.conditions = meter.finish(context.huge_page_bytes_max());
                result
            }
        };
        if context.quick {
            // A quick run is too short to be judged.
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

impl Registered {
    /// The number of processes that run the experiment.
    fn processes(&self, context: &Context) -> usize {
        let is_exact = self.exact_part.is_some() && context.part.as_deref() == self.exact_part;
        let own = if context.quick || is_exact { 1 } else { self.processes };
        context.processes.unwrap_or(own)
    }

    /// Runs the experiment in processes of its own, one after the other, and joins their results.
    fn run_in_processes(&self, context: &Context, processes: usize) -> LabResult<ExperimentResult> {
        let mut runs = Vec::new();
        for number in 1..=processes {
            context.note(format!("{}: process {number} of {processes}", self.id));
            let out = context.fresh_dir("process")?;
            let mut command = Command::new(&context.binary);
            command.args(context.arguments(self.id)).args(["--processes", "1"]);
            command.arg("--out").arg(&out);
            // A process exits with status 1 if it missed a claim. Here only the joined result
            // decides whether claims are met.
            let status = command.stdout(Stdio::null()).status();
            let status = status.map_err(|e| LabError::process(format!("{command:?}"), e))?;
            let path = ExperimentResult::path_in(&out, self.id);
            if !path.is_file() {
                return Err(LabError::process(format!("{command:?}"), status));
            }
            runs.push(ExperimentResult::load(&path)?);
        }
        sys::remove_dir_all(&context.work)?;
        let none = || LabError::process("processes", "at least one is needed");
        let mut result = joined(&runs).ok_or_else(none)?;
        result.command.push_str(&format!(" --processes {processes}"));
        result.parts.clear();
        Ok(result)
    }

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

/// Whether the quick runs of a module's tests belong to the share `K/N` that `STILLPOINT_LAB_SHARE`
/// names. Without the variable all do.
///
/// # Panics
/// When the variable is no `K/N` with K below N.
#[cfg(test)]
#[expect(clippy::print_stderr, reason = "a skipped test says so")]
pub(crate) fn has_turn(module: &str) -> bool {
    let Ok(text) = std::env::var("STILLPOINT_LAB_SHARE") else { return true };
    let (k, n) = text
        .split_once('/')
        .and_then(|(k, n)| Some((k.parse::<usize>().ok()?, n.parse::<usize>().ok()?)))
        .filter(|(k, n)| k < n)
        .unwrap_or_else(|| panic!("STILLPOINT_LAB_SHARE={text}: K/N with K below N is wanted"));
    let hash = module.bytes().fold(0_u32, |hash, b| hash.wrapping_mul(39).wrapping_add(b.into()));
    let has_turn = hash as usize % n == k;
    if !has_turn {
        eprintln!("SKIPPED: the quick run of {module} is in another share than {text}");
    }
    has_turn
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::result::{Bound, Claim};

    #[test]
    fn a_part_must_be_one_of_the_experiment() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut context = Context::new(dir.path(), true, "none".into(), Box::new(std::io::sink()));
        context.part = Some("naps".into());
        for experiment in &EXPERIMENTS {
            let error = experiment.run_and_save(&context).expect_err("no such part").to_string();
            assert!(error.contains("naps") && error.contains(experiment.id), "{error}");
        }
    }

    /// An experiment of two parts.
    struct Toy;

    #[derive(Serialize)]
    struct ToyPlan {
        run_s: f64,
    }

    impl Experiment for Toy {
        const ID: &'static str = "toy";
        const TITLE: &'static str = "A toy";
        const PAPER: &'static str = "none";
        const PARTS: &'static [&'static str] = &["one", "two"];
        type Plan = ToyPlan;

        fn full() -> ToyPlan {
            ToyPlan { run_s: 60.0 }
        }

        fn quick() -> ToyPlan {
            ToyPlan { run_s: 0.5 }
        }

        fn adjust(plan: &mut ToyPlan, asked: &Context) {
            plan.run_s = asked.seconds.unwrap_or(plan.run_s);
        }

        fn run(bench: &Harness<'_>, _: &ToyPlan, result: &mut ExperimentResult) -> LabResult<()> {
            bench.context.fresh_dir("toy")?;
            for part in Toy::PARTS.iter().filter(|part| bench.context.wants(part)) {
                result.in_part(part, |result| {
                    let claim = Claim::new(*part, "Stillpoint", Bound::AtMost(1.0));
                    result.claims.push(claim.measured(0.5));
                    Ok(())
                })?;
            }
            Ok(())
        }
    }

    const TOY: Registered = row::<Toy>();

    #[test]
    fn the_plan_is_the_parameters_and_nothing_is_left_behind() -> LabResult<()> {
        let dir = tempfile::tempdir().expect("a directory");
        let mut context = Context::new(dir.path(), false, "none".into(), Box::new(std::io::sink()));
        assert_eq!(TOY.run_and_save(&context)?.parameters["run_s"], 60.0);
        context.seconds = Some(7.0);
        assert_eq!(TOY.run_and_save(&context)?.parameters["run_s"], 7.0);
        context.quick = true;
        context.seconds = None;
        assert_eq!(TOY.run_and_save(&context)?.parameters["run_s"], 0.5);
        assert!(!context.work.exists());
        Ok(())
    }

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
    fn state_arrays_run_in_five_processes_unless_told_otherwise() {
        let mut context =
            Context::new("out".as_ref(), false, "none".into(), Box::new(std::io::sink()));
        let of = |context: &Context, id: &str| {
            let found = EXPERIMENTS.find(id).expect("registered");
            found.processes(context)
        };
        for id in ["fc-words", "snap-fig3", "snap-table1", "fc-fig10", "fc-fig11", "fc-fig12"] {
            assert_eq!(of(&context, id), 5, "{id}");
        }
        assert_eq!(of(&context, "calc-fig2"), 1);
        context.part = Some("accesses".into());
        assert_eq!(of(&context, "fc-words"), 1, "callgrind counts the same in every process");
        context.part = Some("latency".into());
        assert_eq!(of(&context, "fc-words"), 5);
        context.quick = true;
        assert_eq!(of(&context, "fc-words"), 1);
        context.processes = Some(2);
        assert_eq!(of(&context, "fc-words"), 2);
    }

    #[test]
    fn names_are_unique_and_found() {
        for experiment in &EXPERIMENTS {
            let found = find(experiment.id).expect("registered");
            assert_eq!(found.len(), 1, "{} is registered twice", experiment.id);
            assert!(!experiment.title.is_empty() && !experiment.paper.is_empty());
        }
        assert_eq!(find("all").expect("all").len(), EXPERIMENTS.len());
        let error = find("peers").expect_err("no such experiment").to_string();
        assert!(error.contains("peers-redis"), "{error}");
    }
}
