//! All mutants of cargo-mutants in one build, chosen at run time.
//!
//! `.ci/mutants campaign` copies the tree, has this program put the mutants into it, compiles it
//! once, and has this program run the tests once per mutant. The copy asks the environment variable
//! `STILLPOINT_MUTANT` which mutant is on.
//!
//! - `switch TREE LIST OFF`: puts the mutants of `LIST` (`cargo mutants --list --json`) into
//!   `TREE`, except those with numbers in the file `OFF`. Prints the numbers of mutants that cannot
//!   be switched.
//! - `unviable TREE`: reads the output of `cargo check --message-format=json` in `TREE`. Prints the
//!   numbers of the mutants that the compiler refuses.
//! - `judge BUILD LIST UNVIABLE REFUSED SHARD/SHARDS SECONDS OUTPUT AREA…`: judges a share of the
//!   mutants of these areas, until `SECONDS` have passed. The command uses the test programs that
//!   `BUILD` names. Prints rows of the ledger, and each verdict to standard error.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program of the command line")]

mod judge;
mod list;
mod switch;
mod system;
mod unviable;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;

use judge::{Judge, Verdict};
use list::Mutant;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match &arguments[..] {
        ["switch", tree, list, off] => switch_tree(Path::new(tree), list, off),
        ["unviable", tree] => print_unviable(Path::new(tree)),
        ["judge", build, list, unviable, refused, shard, seconds, output, areas @ ..] => {
            let off = Off::read(unviable, refused);
            off.and_then(|off| campaign(build, list, &off, (shard, seconds, output), areas))
        }
        _ => Err("switch, unviable or judge: see crates/mutants/src/main.rs".to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn read_list(path: &str) -> Result<Vec<Mutant>, String> {
    list::parse(&system::read(Path::new(path))?).map_err(|e| format!("{path}: {e}"))
}

/// The numbers in a file, separated by spaces or line breaks.
fn read_numbers(path: &str) -> Result<BTreeSet<u32>, String> {
    let text = system::read(Path::new(path))?;
    let numbers = text.split_whitespace().map(str::parse);
    numbers.collect::<Result<_, _>>().map_err(|e| format!("{path}: {e}"))
}

fn switch_tree(tree: &Path, list: &str, off: &str) -> Result<(), String> {
    let (mutants, off) = (read_list(list)?, read_numbers(off)?);
    let mut files: BTreeMap<&str, Vec<&Mutant>> = BTreeMap::new();
    for mutant in mutants.iter().filter(|mutant| !off.contains(&mutant.number)) {
        files.entry(&mutant.file).or_default().push(mutant);
    }
    for (file, mutants) in files {
        let path = tree.join(file);
        let done = switch::switch(&system::read(&path)?, &mutants)
            .map_err(|e| format!("{}: {e}", path.display()))?;
        system::write(&path, &done.text)?;
        for number in done.refused {
            println!("{number}");
        }
    }
    let path = tree.join("crates/sync/src/lib.rs");
    system::write(&path, &(system::read(&path)? + switch::QUESTIONS))
}

fn print_unviable(tree: &Path) -> Result<(), String> {
    let messages = system::standard_input()?;
    let refused =
        unviable::unviable(&messages, |file| system::read(&tree.join(file)).unwrap_or_default());
    for number in &refused.numbers {
        println!("{number}");
    }
    match refused.unexplained.first() {
        Some(error) if refused.numbers.is_empty() => Err(error.clone()),
        _ => Ok(()),
    }
}

/// Mutants that are not in the build.
struct Off {
    /// Mutants that do not compile.
    unviable: BTreeSet<u32>,
    /// Mutants that cannot be switched.
    refused: BTreeSet<u32>,
}

impl Off {
    fn read(unviable: &str, refused: &str) -> Result<Self, String> {
        Ok(Self { unviable: read_numbers(unviable)?, refused: read_numbers(refused)? })
    }
}

/// Verdicts on the mutants of an area.
#[derive(Default)]
struct Counts {
    share: u32,
    caught: u32,
    timed_out: u32,
    survived: u32,
    unviable: u32,
    refused: u32,
}

impl Counts {
    fn count(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Caught => self.caught += 1,
            Verdict::TimedOut => self.timed_out += 1,
            Verdict::Survived => self.survived += 1,
        }
    }
}

fn campaign(
    build: &str,
    list: &str,
    off: &Off,
    (shard, seconds, output): (&str, &str, &str),
    areas: &[&str],
) -> Result<(), String> {
    let (at, of) = shard
        .split_once('/')
        .and_then(|(at, of)| Some((at.parse().ok()?, of.parse().ok()?)))
        .filter(|(at, of): &(u32, u32)| at < of)
        .ok_or_else(|| format!("'{shard}' is no SHARD/SHARDS, such as 0/10"))?;
    let limit_ms = 1000 * seconds.parse::<u64>().map_err(|e| format!("'{seconds}': {e}"))?;
    let mut judge = Judge::new(&system::read(Path::new(build))?, Path::new(output));
    let mutants = read_list(list)?;
    let mut counts: BTreeMap<&str, Counts> = BTreeMap::new();
    let start_ms = system::now_ms();
    let chosen = list::sample(&mutants, at, of);
    for mutant in chosen.into_iter().filter(|mutant| areas.contains(&mutant.area())) {
        let counts = counts.entry(mutant.area()).or_default();
        counts.share += 1;
        if off.unviable.contains(&mutant.number) {
            counts.unviable += 1;
        } else if off.refused.contains(&mutant.number) {
            counts.refused += 1;
        } else if system::now_ms() - start_ms < limit_ms {
            let (verdict, by) = judge.judge(mutant.area(), mutant.number)?;
            counts.count(verdict);
            eprintln!("{verdict:?}\t{}\t{}\t{by}", mutant.number, mutant.name);
        }
    }
    for (area, counts) in &counts {
        let Counts { share, caught, timed_out, survived, unviable, refused } = counts;
        let judged = caught + timed_out + survived;
        println!(
            "| {area} | {shard} | {share} | {judged} | {caught} | {timed_out} | {survived} | {unviable} | {refused} |"
        );
    }
    Ok(())
}
