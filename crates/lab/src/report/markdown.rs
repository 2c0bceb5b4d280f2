//! The results of a folder as Markdown, which a repository keeps beside the files. The page has the machine,
//! the papers' figures with their verdicts, and each experiment with its claims and its pictures.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::claims::{Verdict, significant};
use super::{date, papers, repeat};
use crate::report::result::{Agreement, Claim, ExperimentResult};

/// The text for these results.
pub(super) fn text(results: &[ExperimentResult]) -> String {
    let mut text = "# What the laboratory measured\n\n".to_owned();
    text.push_str("`stillpoint lab report` makes this page of the result files beside it.\n");
    head(&mut text, results);
    for (name, title, rows) in papers::rows(results) {
        let _ = write!(text, "\n## {name}\n\n{title}\n\n");
        table(&mut text, &["figure", "what the paper shows", "here", "agreement"]);
        for row in rows {
            let here = row.experiments.join(", ");
            line(&mut text, &[row.item, row.says, &here, &row.agreement]);
        }
    }
    for result in results {
        experiment(&mut text, result);
    }
    text
}

fn head(text: &mut String, results: &[ExperimentResult]) {
    let judged: Verdict = results.iter().filter(|it| !it.quick).map(Verdict::of).sum();
    let (met, missed) = judged.counts();
    let left = judged.claims - met - missed;
    let _ = write!(
        text,
        "\nClaims: {}; met: {met}; missed: {missed}; not measured: {left}.\n",
        judged.claims
    );
    if results.iter().any(|it| it.quick) {
        text.push_str("Some results come from quick runs, which measure nothing.\n");
    }
    let runs = || results.iter().flat_map(ExperimentResult::runs);
    let machines: BTreeSet<String> = runs().map(|run| repeat::machine(&run.machine)).collect();
    let commits: BTreeSet<String> = runs().map(|run| run.commit).collect();
    for (name, all) in [("Machine", machines), ("Commit", commits)] {
        for one in all {
            let _ = write!(text, "\n{name}: {one}\n");
        }
    }
    text.push('\n');
    table(text, &["experiment", "part", "begun", "minutes", "stolen %", "other processes %"]);
    for result in results {
        for (part, run) in result.named_runs() {
            let percent = |share: f64| format!("{:.1}", share * 100.0);
            let (stolen, other) = (
                percent(run.conditions.steal_share),
                percent(run.conditions.other_processes_share),
            );
            let minutes = format!("{:.1}", run.seconds / 60.0);
            let begun = date::utc(run.started_ms);
            line(text, &[&result.id, &part, &begun, &minutes, &stolen, &other]);
        }
    }
}

fn experiment(text: &mut String, result: &ExperimentResult) {
    let _ = write!(text, "\n## {}: {}\n\n{}\n\n", result.id, result.title, result.paper);
    if let Some(reason) = &result.skipped {
        let _ = write!(text, "Skipped: {reason}.\n\n");
    }
    if !result.claims.is_empty() {
        table(text, &["claim", "paper", "must be", "measured", "", "agreement"]);
        result.claims.iter().for_each(|claim| claim_line(text, claim, result.quick));
    }
    if !result.notes.is_empty() {
        text.push('\n');
    }
    for note in &result.notes {
        let _ = writeln!(text, "- {}", note.text);
    }
    for (number, figure) in result.figures.iter().enumerate() {
        let _ = write!(text, "\n![{}]({})\n", figure.title, result.picture_name(number + 1));
        if !figure.caption.is_empty() {
            let _ = write!(text, "\n{}\n", figure.caption);
        }
    }
}

fn claim_line(text: &mut String, claim: &Claim, is_quick: bool) {
    let spread = claim.spread.filter(|spread| spread.runs > 1).map_or(String::new(), |spread| {
        let [low, high] = [spread.low, spread.high].map(significant);
        format!(" ({low} to {high}, {})", spread.runs)
    });
    let measured = claim.measured.map_or("—".to_owned(), |measured| {
        format!("{} {}{spread}", significant(measured), claim.unit)
    });
    let met = match claim.met {
        _ if is_quick => "quick",
        Some(true) => "met",
        Some(false) => "**missed**",
        None => "not measured",
    };
    let agreement = Agreement::of(claim).filter(|_| !is_quick);
    let agreement = agreement.map_or(String::new(), |agreement| agreement.to_string());
    let paper = claim.paper.as_deref().unwrap_or("");
    let bound = claim.bound.to_string();
    line(text, &[&claim.claim, paper, &bound, &measured, met, &agreement]);
}

fn table(text: &mut String, heads: &[&str]) {
    line(text, heads);
    line(text, &vec!["---"; heads.len()]);
}

fn line(text: &mut String, cells: &[&str]) {
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    let _ = writeln!(text, "| {} |", cells.join(" | "));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_verdicts_machine_commit_and_pictures() {
        let sample = crate::report::tests::sample();
        let page = text(std::slice::from_ref(&sample));
        assert!(page.contains(&format!("Commit: {}", sample.commit)), "{page}");
        assert!(page.contains("Machine: ") && page.contains("| sample |"), "{page}");
        assert!(page.contains("](sample-1.svg)") && page.contains("| met |"), "{page}");
        let quick = text(&[ExperimentResult { quick: true, ..sample }]);
        assert!(quick.contains("| quick |") && !quick.contains("| met |"), "{quick}");
    }

    #[test]
    fn each_part_names_its_own_run() {
        let mut result = crate::report::tests::sample();
        let commit = "of a part".to_owned();
        result
            .parts
            .insert("long".into(), crate::report::result::PartRun { commit, ..result.part_run() });
        let page = text(&[result]);
        assert!(page.contains("Commit: of a part") && page.contains("| sample | long |"), "{page}");
    }
}
