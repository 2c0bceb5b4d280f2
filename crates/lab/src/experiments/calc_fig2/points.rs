//! Both forms of the physical point of consistency, row by row. One waits for open transactions, as
//! published. One waits for commits under way only, which deferred updates make possible.
//!
//! Long transactions run beside the short ones, since a point of the first form waits for them. A row has a
//! bed for each form, in turn with the baseline. A row that stops nobody in either form runs once.
//!
//! The table says what deferred updates give each scheme, and what is left of calc's lead then.

use super::report::{SOURCE, is_beside, lost_beside, lost_percent, timeline};
use super::{Plan, without_checkpoints};
use crate::drivers::transactions::{Drive, Outcome};
use crate::error::LabResult;
use crate::experiments::calc_figures::{Compared, bars};
use crate::experiments::calc_measures::{lost_share, stopped_ms, worst_window_ratio};
use crate::harness::Harness;
use crate::measure::stats::{loss_ratio, median, spread_of};
use crate::report::figure::axis::grouped;
use crate::report::result::{Bound, ClaimRow, ExperimentResult, Figure, Paper, Table};
use crate::subjects::records::{CALC_PACED, Row, rows_of};

/// The words for the two forms.
const PUBLISHED: &str = "as published";
const OURS: &str = "of commits under way";

/// A point as published that stops commits for less gives deferred updates nothing to shorten.
const STOPPED_MS_MIN: f64 = 1.0;

const STOPPED: ClaimRow = ClaimRow::new(
    "time stopped with long transactions, point of commits under way ÷ as published",
    "Stillpoint",
    Bound::AtMost(1.0),
);

/// Figure 2(b): with long transactions beside, a point as published waits for them.
const DROPS: ClaimRow = ClaimRow::new(
    "worst 100 ms window with long transactions, point as published, ÷ baseline's worst",
    SOURCE,
    Bound::AtMost(0.1),
)
.paper(Paper::words("a visible drop to zero at the begin of the checkpoint"));
/// Schemes whose drop the paper shows.
const DROPPING: [&str; 2] = ["zigzag", "ping-pong"];

/// The rounds of a row.
struct Forms {
    row: Row,
    /// With the point as published. `None` if the row stops nobody in either form.
    published: Option<Compared>,
    ours: Compared,
}

impl Forms {
    /// The rounds with the point as published, or those of the one form.
    fn published(&self) -> &Compared {
        self.published.as_ref().unwrap_or(&self.ours)
    }
}

/// A measure of some rounds.
type Measure = fn(&Outcome, &Outcome) -> f64;

/// Runs the rows of the asked schemes and calc, at the pace of the paper's disk. If no scheme is asked for,
/// these are all full forms.
pub(super) fn run(
    bench: &Harness<'_>,
    plan: &Plan,
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let mut asked = bench.context.schemes.clone();
    if !asked.is_empty() {
        asked.push("calc".to_owned());
    }
    let rows = rows_of(&asked, bench.context.quick);
    let is_wanted =
        |row: &&Row| row.is_paced() && (!asked.is_empty() || !row.scheme.ends_with(":partial"));
    let forms: Vec<(Row, bool)> = rows
        .iter()
        .filter(is_wanted)
        .flat_map(|row| [(*row, true), (*row, false)])
        .filter(|(row, published)| row.stops_as_published || !published)
        .collect();
    let drive = Drive {
        checkpoints_at_s: vec![plan.checkpoint_at_s],
        long: Some(plan.long),
        ..plan.drive(plan.round_s)
    };
    let rounds = bench.in_pairs_of_forms(rows[0], &forms, (plan.records, result), |pair| {
        let published = pair[1].published_points;
        let what = format!("point {}", if published { PUBLISHED } else { OURS });
        let rounds = (plan.point_runs, &*what);
        let compared = Compared::in_turn(bench, pair, rounds, |run, row| Drive {
            seed: run as u64 + 1,
            ..without_checkpoints(row, &drive)
        })?;
        Ok((published, compared))
    })?;
    let mut published: Vec<Compared> = Vec::new();
    let mut all = Vec::new();
    for (is_published, compared) in rounds {
        let row = compared.row;
        if is_published {
            published.push(compared);
        } else {
            let published = published.pop_if(|it| it.row == row);
            all.push(Forms { row, published, ours: compared });
        }
    }
    claims(&all, result);
    let lines: Vec<&Compared> = all.iter().map(Forms::published).collect();
    timeline("Throughput over time with long transactions, points as published", &lines, result);
    show(plan, &all, result);
    Ok(())
}

/// What calc loses ÷ what some rounds lose, each as a share of the own baseline. Calc has one form.
fn lead(calc: &Forms, rounds: &Compared) -> f64 {
    let lost = |it: &Compared| median(&it.over(lost_share));
    loss_ratio(lost(&calc.ours), lost(rounds))
}

fn claims(all: &[Forms], result: &mut ExperimentResult) {
    let stopped = |rounds: &Compared| median(&rounds.over(|_, run| stopped_ms(run)));
    for it in all {
        let published = stopped(it.published());
        if it.published.is_some() && published >= STOPPED_MS_MIN {
            let ratio = stopped(&it.ours) / published;
            result.claims.push(STOPPED.claim(it.row.scheme).measured(ratio));
        }
    }
    for it in all.iter().filter(|it| DROPPING.contains(&it.row.scheme)) {
        let worst = it.published().over(worst_window_ratio);
        result.claims.push(DROPS.claim_of((it.row.scheme, ""), "").measured_runs(&worst));
    }
    let Some(calc) = all.iter().find(|it| it.row.name == CALC_PACED) else { return };
    for it in all.iter().filter(|it| is_beside(&it.row)) {
        for (rounds, form) in [(it.published(), PUBLISHED), (&it.ours, OURS)] {
            let at = format!("paced, with long transactions, point {form}");
            let claim = lost_beside(it.row.scheme).claim_of(("calc", it.row.scheme), &at);
            result.claims.push(claim.measured(lead(calc, rounds)));
        }
    }
}

fn show(plan: &Plan, all: &[Forms], result: &mut ExperimentResult) {
    let bar = |it: &Forms| {
        let lost = |rounds: &Compared| rounds.over(lost_percent);
        let published = it.published.as_ref();
        let published =
            published.map(|rounds| (format!("{}, {PUBLISHED}", it.row.scheme), lost(rounds)));
        [published, Some((it.row.scheme.to_owned(), lost(&it.ours)))].into_iter().flatten()
    };
    result.figures.push(Figure {
        title: "Transactions lost, by the form of the point of consistency".into(),
        caption: format!(
            "Area of the baseline minus area of the run, as a share of the baseline's, {:.0} s with one paced \
             checkpoint and long transactions, {} records; {}.",
            plan.round_s,
            grouped(plan.records),
            spread_of(plan.point_runs)
        ),
        y_label: "% of the baseline's transactions".into(),
        bars: bars(all.iter().flat_map(bar)),
        ..Figure::default()
    });
    result.tables.push(table(all));
}

fn table(all: &[Forms]) -> Table {
    let columns = [
        "row",
        "stopped ms, as published",
        "stopped ms",
        "worst window ÷ baseline's, as published",
        "worst window ÷ baseline's",
        "lost %, as published",
        "lost %",
        "given by deferred updates, points",
        "calc's loss ÷ this, as published",
        "calc's loss ÷ this",
    ];
    let calc = all.iter().find(|it| it.row.name == CALC_PACED);
    let row = |it: &Forms| {
        let both = |measure: Measure| {
            [it.published(), &it.ours].map(|rounds| median(&rounds.over(measure)))
        };
        let stopped = both(|_, run| stopped_ms(run)).map(|ms| format!("{ms:.3}"));
        let worst = both(worst_window_ratio).map(|ratio| format!("{ratio:.2}"));
        let lost = both(lost_percent);
        let given = match it.published {
            Some(_) => format!("{:.1}", lost[0] - lost[1]),
            None => "–".to_owned(),
        };
        let lead = [it.published(), &it.ours].map(|rounds| {
            let ratio = calc.map_or(f64::NAN, |calc| lead(calc, rounds));
            if ratio.is_finite() { format!("{ratio:.3}") } else { "–".to_owned() }
        });
        let name = vec![it.row.scheme.to_owned()];
        let cells = [
            stopped.to_vec(),
            worst.to_vec(),
            lost.map(|lost| format!("{lost:.1}")).to_vec(),
            vec![given],
        ];
        [name].into_iter().chain(cells).chain([lead.to_vec()]).flatten().collect()
    };
    Table {
        title: "What deferred updates give, and what is left of calc's lead".into(),
        columns: columns.map(String::from).to_vec(),
        rows: all.iter().map(row).collect(),
        ..Table::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{compared, result};
    use super::*;
    use crate::subjects::records::ZIGZAG_PACED;

    /// The machine was slower beside zigzag, whose loss in transactions is that of calc.
    #[test]
    fn calc_is_ahead_by_shares() {
        let forms = |name: &str, published, ours| {
            let runs = |(height, kept): (u64, u64)| compared(name, &[(height, [kept; 4])]);
            let (published, ours) = (Some(runs(published)), runs(ours));
            Forms { row: ours.row, published, ours }
        };
        let calc = Forms { published: None, ..forms(CALC_PACED, (1, 1), (1000, 900)) };
        let all = [calc, forms(ZIGZAG_PACED, (500, 100), (500, 400))];
        let mut result = result();
        claims(&all, &mut result);
        let of = |form: &str| {
            let found = result.claims.iter().find(|it| it.claim.ends_with(form));
            found.and_then(|it| it.measured).unwrap_or(f64::NAN)
        };
        assert!((of(PUBLISHED) - 0.125).abs() < 1e-9 && (of(OURS) - 0.5).abs() < 1e-9);
        let row = &table(&all).rows[1];
        assert_eq!(row[5..], ["80.0", "20.0", "60.0", "0.125", "0.500"]);
    }
}
