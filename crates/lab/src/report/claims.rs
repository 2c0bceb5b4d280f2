//! Claims: the line that sums them up, and the folded table.

use std::fmt::{self, Write};
use std::iter::Sum;

use crate::measure::stats::counted;
use crate::report::figure::escape;
use crate::report::result::{Agreement, Bound, Claim, ExperimentResult, Samples};

/// Numbers of claims by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) claims: usize,
    met: usize,
    missed: usize,
}

impl Verdict {
    pub(super) fn of(result: &ExperimentResult) -> Verdict {
        let count = |met: bool| result.claims.iter().filter(|c| c.met == Some(met)).count();
        Verdict { claims: result.claims.len(), met: count(true), missed: count(false) }
    }

    /// Numbers of claims that were met and missed.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.met, self.missed)
    }
}

impl Sum for Verdict {
    fn sum<I: Iterator<Item = Verdict>>(verdicts: I) -> Verdict {
        verdicts.fold(Verdict::default(), |all, it| Verdict {
            claims: all.claims + it.claims,
            met: all.met + it.met,
            missed: all.missed + it.missed,
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict { claims, met, missed } = *self;
        let of = counted(claims, "claim");
        write!(f, "<b>{met}</b> of {of} met, <b>{missed}</b> missed")?;
        match claims - met - missed {
            0 => write!(f, "."),
            left => write!(f, ", {left} not measured."),
        }
    }
}

/// Writes the table of an experiment's claims, folded unless a claim was missed.
pub(super) fn fold(html: &mut String, result: &ExperimentResult) {
    if result.claims.is_empty() {
        return;
    }
    let is_missed = result.claims.iter().any(|claim| claim.met == Some(false));
    let open = if is_missed { " open" } else { "" };
    let gauge_head = if result.quick { "" } else { "<th class=\"chart\">worse | better</th>" };
    let _ = write!(
        html,
        "<details class=\"claims\"{open}><summary>{}</summary><div class=\"wide\"><table>\
         <thead><tr><th>claim</th><th>paper</th><th>must be</th><th>goal</th><th>measured</th>\
         {gauge_head}<th></th></tr></thead><tbody>",
        counted(result.claims.len(), "claim")
    );
    for claim in &result.claims {
        row(html, claim, result.quick);
    }
    html.push_str("</tbody></table></div></details>");
}

fn row(html: &mut String, claim: &Claim, is_quick: bool) {
    let unit = if claim.unit == "×" { " ×".to_owned() } else { format!(" {}", claim.unit) };
    let bound = |b: Bound| format!("{b}{unit}");
    let measured = claim.measured.map_or("—".into(), |m| format!("{}{unit}", significant(m)));
    let is_goal_met =
        matches!((claim.goal, claim.measured), (Some(goal), Some(m)) if goal.is_met_by(m));
    let (class, word) = match claim.met {
        _ if is_quick => ("none", "quick"),
        Some(true) if is_goal_met => ("goal", "goal met"),
        Some(true) => ("met", "met"),
        Some(false) => ("missed", "missed"),
        None => ("none", "not measured"),
    };
    let gauge =
        if is_quick { String::new() } else { format!("<td class=\"chart\">{}</td>", gauge(claim)) };
    let _ = write!(
        html,
        "<tr><td>{}<small>{}</small></td><td>{}{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
         <td class=\"n\"><b>{}</b>{}</td>{gauge}<td><span class=\"badge {class}\">{word}</span></td></tr>",
        escape(&claim.claim),
        escape(&claim.source),
        escape(claim.paper.as_deref().unwrap_or("—")),
        agreement(claim, is_quick),
        escape(&bound(claim.bound)),
        escape(&claim.goal.map_or("—".into(), bound)),
        escape(&measured),
        spread(claim),
    );
}

/// The agreement of the figure with the paper's, in a word. Empty if the agreement cannot be
/// judged.
fn agreement(claim: &Claim, is_quick: bool) -> String {
    match Agreement::of(claim) {
        Some(agreement) if !is_quick => format!("<small>{agreement}</small>"),
        _ => String::new(),
    }
}

/// Smallest and greatest value, and the number of runs, processes or periods. Empty for a single
/// value.
fn spread(claim: &Claim) -> String {
    let Some(spread) = claim.spread.filter(|spread| spread.runs > 1) else {
        return String::new();
    };
    let (low, high, count) = (significant(spread.low), significant(spread.high), spread.runs);
    match claim.samples {
        Samples::Runs => format!("<small>{low} – {high}, {count} runs</small>"),
        Samples::Processes => format!("<small>{low} – {high}, {count} processes</small>"),
        Samples::Periods => format!("<small>{low} – {high}, {count} periods of one run</small>"),
    }
}

/// A figure with about three significant digits.
pub(super) fn significant(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let digits = (2 - value.abs().log10().floor() as i32).clamp(0, 4) as usize;
    format!("{value:.digits$}")
}

/// A small scale that shows the measured figure relative to its bound. The bound is the line in the
/// middle, and figures to its right are better. The ends of the scale are at four times and a
/// quarter of the bound.
pub(super) fn gauge(claim: &Claim) -> String {
    let Some(measured) = claim.measured else {
        return String::new();
    };
    let limit = claim.bound.limit();
    let better = match claim.bound {
        Bound::AtLeast(_) => measured / limit,
        Bound::AtMost(_) => limit / measured,
    };
    if limit <= 0.0 || better.is_nan() || better < 0.0 {
        return String::new();
    }
    let share = (better.log2() / 2.0).clamp(-1.0, 1.0);
    let x = 55.0 + 50.0 * share;
    let class = if claim.met == Some(true) { "good" } else { "bad" };
    format!(
        "<svg class=\"gauge\" viewBox=\"0 0 110 16\" aria-hidden=\"true\">\
         <line x1=\"3\" x2=\"107\" y1=\"8\" y2=\"8\"/><line x1=\"55\" x2=\"55\" y1=\"2\" y2=\"14\"/>\
         <line class=\"{class}\" x1=\"55\" x2=\"{x:.1}\" y1=\"8\" y2=\"8\"/>\
         <circle class=\"{class}\" cx=\"{x:.1}\" cy=\"8\" r=\"4\"/></svg>"
    )
}
