//! `stillpoint lab list | run ID | report`, for the one binary to embed.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::advise::{self, Question};
use crate::context::Context;
use crate::crash;
use crate::drivers::profiled;
use crate::error::{LabError, LabResult};
use crate::experiments::{self, EXPERIMENTS};
use crate::measure::durations::seconds;
use crate::report;
use crate::report::result::ExperimentResult;
use crate::subjects;
use crate::subjects::records::{of_scheme, setup};

/// Arguments of `stillpoint lab`.
#[derive(Args, Clone, Debug)]
pub struct LabArgs {
    #[command(subcommand)]
    command: LabCommand,
}

/// A command of the lab.
#[derive(Subcommand, Clone, Debug)]
enum LabCommand {
    /// List the experiments.
    List {
        /// One JSON object per line.
        #[arg(long)]
        json: bool,
    },
    /// Run an experiment, or all: JSON, figures and a row in the report.
    #[command(after_help = "Examples:\n  stillpoint lab run peers-redis --quick\n  \
                            stillpoint lab run peers-redis --part saving --runs 3\n  \
                            stillpoint lab run snap-fig3 --part rates --seconds 5 --processes 5\n  \
                            stillpoint lab run all --out results")]
    Run {
        /// The experiment's name, or `all`.
        id: String,
        /// Run for seconds instead of minutes. Quick runs show that the experiment still works and
        /// measure nothing.
        #[arg(long)]
        quick: bool,
        /// The folder of results.
        #[arg(long, value_name = "DIR", default_value = "lab-results")]
        out: PathBuf,
        /// Runs of each pair, instead of the experiment's own number.
        #[arg(long)]
        runs: Option<usize>,
        /// Seconds of each run, instead of the experiment's own.
        #[arg(long, value_parser = seconds)]
        seconds: Option<f64>,
        /// One part of the experiment instead of all, where it has parts.
        #[arg(long)]
        part: Option<String>,
        /// Checkpoint schemes to compare with the baseline, instead of all, where an experiment has all.
        #[arg(long, value_delimiter = ',', value_name = "NAMES")]
        schemes: Vec<String>,
        /// Stop as the schemes were published: until no transaction is open. Otherwise a point of
        /// consistency waits for commits under way.
        #[arg(long)]
        published_points: bool,
        /// Run all of it in so many processes, one after the other, and take the medians. Experiments
        /// on state arrays have 5 processes, others run in this one.
        #[arg(long)]
        processes: Option<usize>,
    },
    /// Measure a load on this machine and recommend a scheme for it. Exit status 1 if none keeps the
    /// limits.
    #[command(
        after_help = "Examples:\n  A game of 2,000 players with 100 KB each, 30 ticks per second, \
                            none of which may take longer than 5 ms:\n    stillpoint lab advise --state \
                            --cells 50000000 --cell-bytes 4 --updates-per-second 530000 \
                            --tick-ms 33 --worst-tick-us 5000\n  \
                            A million records, of which a tenth is hot:\n    stillpoint lab advise \
                            --records 1000000 --value-bytes 100 --transactions-per-second 50000 \
                            --hot 0.1 --worst-ms 5"
    )]
    Advise(Box<Question>),
    /// Child processes that experiments start.
    #[command(hide = true)]
    Child {
        #[command(subcommand)]
        child: Child,
    },
    /// Make one HTML page of all results in a folder.
    Report {
        /// The folder of results.
        #[arg(long, value_name = "DIR", default_value = "lab-results")]
        out: PathBuf,
    },
}

#[derive(Subcommand, Clone, Debug)]
enum Child {
    /// One deterministic thread, for callgrind.
    Instructions {
        #[arg(long)]
        scheme: String,
        #[arg(long)]
        journal: String,
        #[arg(long)]
        dir: PathBuf,
    },
    /// One kind of access to state arrays, for callgrind.
    Accesses(experiments::fc_words::accesses::Child),
    /// TPC-C on one thread, for callgrind.
    TpccInstructions(experiments::tpcc_instructions::Child),
    /// A server that answers at once and keeps nothing, until it is killed.
    NullServer {
        #[arg(long)]
        port: u16,
        #[arg(long)]
        value_bytes: usize,
    },
    /// One run of the microbenchmark, for a profiler beside it.
    Profiled(profiled::Profiled),
    /// The game of SIGMOD 2011 until it is killed.
    Game(crash::game::Child),
    /// TPC-C until it is killed.
    Tpcc(crash::tpcc::Child),
    /// TPC-C in the records of the engine until it is killed.
    TpccRecords(crash::tpcc_records::Child),
    /// State arrays until it is killed.
    Arrays {
        #[arg(long)]
        scheme: String,
        #[arg(long)]
        dir: PathBuf,
    },
    /// Transactions and checkpoints until it is killed.
    Crash {
        #[arg(long)]
        scheme: String,
        #[arg(long)]
        journal: String,
        #[arg(long)]
        records: u64,
        #[arg(long)]
        dir: PathBuf,
    },
}

fn run_child(child: &Child) -> LabResult<()> {
    let open = subjects::stillpoint::open;
    match child {
        Child::Instructions { scheme, journal, dir } => {
            experiments::instructions::child(&open, scheme, journal, dir.clone())
        }
        Child::Accesses(what) => experiments::fc_words::accesses::child(what),
        Child::TpccInstructions(what) => experiments::tpcc_instructions::child(what),
        Child::NullServer { port, value_bytes } => {
            subjects::null_server::serve(*port, *value_bytes)
        }
        Child::Profiled(what) => profiled::child(&open, what, &mut std::io::stdout()),
        Child::Game(what) => crash::game::child(what, &mut std::io::stdout()),
        Child::Tpcc(what) => crash::tpcc::child(what, &mut std::io::stdout()),
        Child::TpccRecords(what) => crash::tpcc_records::child(what, &mut std::io::stdout()),
        Child::Arrays { scheme, dir } => crash::arrays::child(scheme, dir, &mut std::io::stdout()),
        Child::Crash { scheme, journal, records, dir } => {
            let setup = setup(of_scheme(scheme)?, *records, journal, dir.clone());
            crash::records::child(&open, &setup, &mut std::io::stdout())
        }
    }
}

/// Carries out a command of the lab. Results go to `output`, progress to standard error. `commit`
/// names the source of this program, and every result file repeats it.
///
/// Returns whether every claim that was judged was met; quick runs judge nothing.
///
/// # Errors
/// When an experiment is unknown or fails, or a file cannot be read or written.
pub fn run(args: &LabArgs, commit: &str, output: &mut dyn Write) -> LabResult<bool> {
    match &args.command {
        LabCommand::List { json } => list(*json, output).map(|()| true),
        LabCommand::Run {
            id,
            quick,
            out,
            runs,
            seconds,
            part,
            schemes,
            published_points,
            processes,
        } => {
            let chosen = experiments::find(id)?;
            let binary = std::env::current_exe()
                .map_err(|e| LabError::process("the path of this program", e))?;
            let mut context = Context::new(out, *quick, binary, Box::new(std::io::stderr()));
            commit.clone_into(&mut context.commit);
            context.runs = *runs;
            context.seconds = *seconds;
            context.part.clone_from(part);
            for scheme in schemes {
                context.schemes.push(of_scheme(scheme)?.scheme.to_owned());
            }
            context.published_points = *published_points;
            context.processes = *processes;
            let mut met = true;
            for experiment in chosen {
                let result = experiment.run_and_save(&context)?;
                met &= result.quick || result.claims.iter().all(|c| c.met != Some(false));
                for line in lines(&result) {
                    print(output, line)?;
                }
            }
            let page = report::write(out)?;
            print(output, format!("report: {}", page.display()))?;
            Ok(met)
        }
        LabCommand::Advise(question) => {
            let progress = Box::new(std::io::stderr());
            let context = Context::new(&question.dir, false, "stillpoint".into(), progress);
            let answer = advise::advise(question, &context)?;
            for line in answer.lines {
                print(output, line)?;
            }
            Ok(answer.is_within_limits)
        }
        LabCommand::Child { child } => run_child(child).map(|()| true),
        LabCommand::Report { out } => {
            let page = report::write(out)?;
            print(output, format!("report: {}", page.display()))?;
            Ok(true)
        }
    }
}

fn print(output: &mut dyn Write, line: String) -> LabResult<()> {
    writeln!(output, "{line}").map_err(|source| LabError::File {
        op: "write to",
        path: "standard output".into(),
        source,
    })
}

/// Lists the experiments.
fn list(json: bool, output: &mut dyn Write) -> LabResult<()> {
    for e in &EXPERIMENTS {
        let line = if json {
            serde_json::json!({"id": e.id, "title": e.title, "paper": e.paper}).to_string()
        } else {
            format!("{:<14} {}\n{:<14} {}", e.id, e.title, "", e.paper)
        };
        print(output, line)?;
    }
    Ok(())
}

/// A result for the terminal: one line per claim.
fn lines(result: &ExperimentResult) -> Vec<String> {
    let mut lines = vec![format!("{}: {}", result.id, result.title)];
    if let Some(reason) = &result.skipped {
        lines.push(format!("  SKIPPED: {reason}"));
    }
    for claim in &result.claims {
        let verdict = match claim.met {
            _ if result.quick => "quick",
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "not measured",
        };
        let measured = claim.measured.map_or("—".to_owned(), |m| format!("{m:.3}"));
        let (text, bound, unit) = (&claim.claim, claim.bound, &claim.unit);
        lines.push(format!("  {verdict:<12} {measured:>10} {unit} (bound {bound})  {text}"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        lab: LabArgs,
    }

    fn say(words: &[&str]) -> LabResult<String> {
        let program = Program::try_parse_from([&["stillpoint"], words].concat())
            .map_err(|e| LabError::process("parse", e))?;
        let mut output = Vec::new();
        run(&program.lab, "0123abc", &mut output)?;
        Ok(String::from_utf8_lossy(&output).into_owned())
    }

    #[test]
    fn list_names_every_experiment() {
        let (text, json) = (say(&["list"]), say(&["list", "--json"]));
        let (text, json) = (text.expect("text"), json.expect("json"));
        assert_eq!(json.lines().count(), EXPERIMENTS.len());
        for experiment in &EXPERIMENTS {
            assert!(text.contains(experiment.id) && json.contains(experiment.id));
        }
    }

    #[test]
    fn an_unknown_experiment_is_refused_with_the_known_ones() {
        let error = say(&["run", "nothing"]).expect_err("unknown").to_string();
        assert!(error.contains("nothing") && error.contains("peers-redis"), "{error}");
    }

    #[test]
    fn seconds_that_are_no_duration_are_refused() {
        for text in ["1e30", "inf", "nan", "-1", "0"] {
            let option = format!("--seconds={text}");
            let advise = ["advise", "--state", "--cells=9", "--updates-per-second=9"];
            for words in [&["run", "nothing"][..], &advise] {
                let error = say(&[words, &[&option]].concat()).expect_err(text).to_string();
                assert!(error.contains("a week") && error.contains(text), "{error}");
            }
        }
    }

    #[test]
    fn advice_is_a_table_or_json() -> LabResult<()> {
        let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
        let at = dir.path().to_string_lossy().into_owned();
        let line = "advise --state --cells 1000 --updates-per-second 1000 --tick-ms 2 --seconds 0.05 \
                    --image-every-ms 20 --dir";
        let words: Vec<&str> = line.split_whitespace().chain([&*at]).collect();
        assert!(say(&words)?.contains("recommended: "));
        let json: serde_json::Value =
            serde_json::from_str(&say(&[&words[..], &["--json"]].concat())?)
                .map_err(|e| LabError::process("JSON", e))?;
        assert!(json["recommended"].is_string() && json["measured"][0]["image_s"].is_number());
        assert!(say(&words[..1]).is_err() && say(&["advise", "--cells", "7"]).is_err());
        assert!(say(&["advise", "--state", "--cells", "7"]).is_err(), "no rate");
        Ok(())
    }

    #[test]
    fn advice_on_records_has_the_same_form() -> LabResult<()> {
        let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
        let at = dir.path().to_string_lossy().into_owned();
        let line = "advise --records 1000 --transactions-per-second 500 --seconds 0.1 --touched 2 \
                    --hot 0.5 --schemes calc,naive --checkpoint-every-ms 50 --dir";
        let words: Vec<&str> = line.split_whitespace().chain([&*at]).collect();
        let text = say(&words)?;
        assert!(text.contains("recommended: ") && text.contains("naive"), "{text}");
        let json: serde_json::Value =
            serde_json::from_str(&say(&[&words[..], &["--json"]].concat())?)
                .map_err(|e| LabError::process("JSON", e))?;
        assert!(json["recommended"].is_string() && json["measured"][1]["cpu_us"].is_number());
        let both = say(&[&words[..], &["--state"]].concat()).expect_err("one of them");
        assert!(both.to_string().contains("--state"), "{both}");
        assert!(say(&["advise", "--records", "7"]).is_err(), "no rate");
        Ok(())
    }

    #[test]
    fn a_report_is_made_from_files_alone() -> LabResult<()> {
        let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
        report::tests::sample().save(dir.path())?;
        let said = say(&["report", "--out", &dir.path().to_string_lossy()])?;
        assert!(said.contains("report.html"));
        let page = crate::sys::read_text(&dir.path().join("report.html"))?;
        assert!(page.contains("reaches its goal"));
        Ok(())
    }
}
