//! Makes one HTML page of a folder of result files.
//!
//! The page needs no network and no script, so it can be mailed, printed and kept. The page begins
//! with one line per experiment. Each experiment shows its verdict and its figures first. Claims,
//! tables and the way to repeat the experiment are folded below. Missed claims are unfolded, and a
//! printed page unfolds everything.

mod claims;
mod date;
pub(crate) mod draw;
pub(crate) mod figure;
mod markdown;
mod papers;
mod repeat;
pub(crate) mod result;

use std::fmt::Write;
use std::path::{Path, PathBuf};

use self::claims::Verdict;
use self::figure::{Embedding, escape};
use crate::error::LabResult;
use crate::report::result::{ExperimentResult, Figure, Table};
use crate::sys;

const STYLE: &str = include_str!("style.css");

/// Reads every result of the folder and writes `OUT/report.html` and `OUT/report.md`. Returns the path of the
/// page. The Markdown text shows the pictures that lie beside it, so a repository can keep it.
///
/// # Errors
/// When a result cannot be read or the page cannot be written.
pub(crate) fn write(out: &Path) -> LabResult<PathBuf> {
    let results = ExperimentResult::load_all(out)?;
    let path = out.join("report.html");
    sys::write_text(&path, &page(&results))?;
    sys::write_text(&out.join("report.md"), &markdown::text(&results))?;
    Ok(path)
}

/// The page for these results.
pub(crate) fn page(results: &[ExperimentResult]) -> String {
    let mut html = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>Stillpoint lab</title><style>{}{STYLE}</style></head><body><main>",
        figure::STYLE
    );
    head(&mut html, results);
    overview(&mut html, results);
    papers::tables(&mut html, results);
    for result in results {
        experiment(&mut html, result);
    }
    html.push_str("</main></body></html>\n");
    html
}

fn head(html: &mut String, results: &[ExperimentResult]) {
    html.push_str("<header><p class=\"eyebrow\">Stillpoint lab</p><h1>What came out</h1>");
    let Some(first) = results.first() else {
        html.push_str("<p>There are no results in this folder yet.</p></header>");
        return;
    };
    let judged: Verdict = results.iter().filter(|r| !r.quick).map(Verdict::of).sum();
    if judged.claims == 0 {
        html.push_str("<p class=\"lead\">Nothing was judged: there are only quick runs.</p>");
    } else {
        let _ = write!(html, "<p class=\"lead\">{judged}</p>");
    }
    // A file can hold parts that were run on other machines.
    let others = |it: &ExperimentResult| {
        it.machine != first.machine || it.parts.values().any(|part| part.machine != first.machine)
    };
    if results.iter().any(others) {
        html.push_str(
            "<p class=\"warning\">The results come from different machines. Each names its own \
             under “How to repeat this”.</p>",
        );
    } else {
        let _ = write!(html, "<p class=\"facts\">{}</p>", repeat::machine(&first.machine));
    }
    if results.iter().any(|it| it.machine.build != "release") {
        html.push_str(
            "<p class=\"warning\">A build with debug assertions: its times mean little.</p>",
        );
    }
    if results.iter().any(|r| r.quick) {
        html.push_str(
            "<p class=\"warning\">Some results come from quick runs, which show that an experiment \
             works and measure nothing: they are marked.</p>",
        );
    }
    html.push_str("</header>");
}

/// One line per experiment.
fn overview(html: &mut String, results: &[ExperimentResult]) {
    if results.is_empty() {
        return;
    }
    html.push_str("<nav><ul class=\"overview\">");
    for result in results {
        let _ = write!(
            html,
            "<li><a href=\"#{0}\">{1}</a> <span class=\"eyebrow\">{0}</span><br>{2}</li>",
            escape(&result.id),
            escape(&result.title),
            verdict(result),
        );
    }
    html.push_str("</ul></nav>");
}

/// The verdict line of an experiment.
fn verdict(result: &ExperimentResult) -> String {
    match &result.skipped {
        Some(reason) => format!("Skipped: {}.", escape(reason)),
        None if result.quick => {
            "<span class=\"badge none\">quick run</span> Nothing was judged.".to_owned()
        }
        None => Verdict::of(result).to_string(),
    }
}

fn experiment(html: &mut String, result: &ExperimentResult) {
    let id = escape(&result.id);
    let _ = write!(
        html,
        "<section id=\"{id}\"><p class=\"eyebrow\">{id}</p><h2>{}</h2><p class=\"facts\">{}</p>\
         <p class=\"verdict\">{}</p>",
        escape(&result.title),
        escape(&result.paper),
        verdict(result),
    );
    for figure in &result.figures {
        figure_of(html, figure, result);
    }
    claims::fold(html, result);
    if !result.tables.is_empty() {
        html.push_str("<details class=\"tables\"><summary>Tables</summary>");
        result.tables.iter().for_each(|table| data_table(html, table));
        html.push_str("</details>");
    }
    if !result.notes.is_empty() {
        html.push_str("<ul class=\"notes\">");
        for note in &result.notes {
            let _ = write!(html, "<li>{}</li>", escape(&note.text));
        }
        html.push_str("</ul>");
    }
    repeat::fold(html, result);
    html.push_str("</section>");
}

fn figure_of(html: &mut String, figure: &Figure, result: &ExperimentResult) {
    let hidden = figure::hidden_values(figure, &result.series).unwrap_or_default();
    let _ = write!(
        html,
        "<figure><figcaption><b>{}</b> {} {}</figcaption><div class=\"wide\">{}</div></figure>",
        escape(&figure.title),
        escape(&figure.caption),
        escape(&hidden),
        figure::render(figure, &result.series, Embedding::Page)
    );
}

fn data_table(html: &mut String, table: &Table) {
    let _ = write!(
        html,
        "<h3>{}</h3><div class=\"wide\"><table class=\"data\"><thead><tr>",
        escape(&table.title)
    );
    for column in &table.columns {
        let _ = write!(html, "<th>{}</th>", escape(column));
    }
    html.push_str("</tr></thead><tbody>");
    for row in &table.rows {
        html.push_str("<tr>");
        for cell in row {
            let number = cell.starts_with(|c: char| c.is_ascii_digit() || c == '-');
            let class = if number { " class=\"n\"" } else { "" };
            let _ = write!(html, "<td{class}>{}</td>", escape(cell));
        }
        html.push_str("</tr>");
    }
    html.push_str("</tbody></table></div>");
}

#[cfg(test)]
pub(crate) mod tests;
