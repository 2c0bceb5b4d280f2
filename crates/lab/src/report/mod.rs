//! One HTML page from a folder of result files, and from nothing else.
//!
//! The page needs no network and no script: it can be mailed, printed and kept.
//! On top what had to come out and what did, over all experiments; below, each
//! experiment with its figures, tables and everything needed to repeat it.

mod date;

use std::fmt::Write;
use std::path::{Path, PathBuf};

use crate::error::LabResult;
use crate::figure::{self, Place, escape};
use crate::result::{Bound, Claim, ExperimentResult, Table};
use crate::sys;

const STYLE: &str = include_str!("style.css");

/// Reads every result of the folder and writes `OUT/report.html`; returns its path.
///
/// # Errors
/// When a result cannot be read or the page cannot be written.
pub fn write(out: &Path) -> LabResult<PathBuf> {
    let results = ExperimentResult::load_all(out)?;
    let path = out.join("report.html");
    sys::write_text(&path, &page(&results))?;
    Ok(path)
}

/// The page for these results.
pub fn page(results: &[ExperimentResult]) -> String {
    let mut html = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>Stillpoint lab</title><style>{}{STYLE}</style></head><body><main>",
        figure::STYLE
    );
    head(&mut html, results);
    if results.iter().any(|r| !r.claims.is_empty()) {
        summary(&mut html, results);
    }
    for result in results {
        experiment(&mut html, result);
    }
    html.push_str("</main></body></html>\n");
    html
}

fn head(html: &mut String, results: &[ExperimentResult]) {
    html.push_str("<header><p class=\"eyebrow\">Stillpoint lab</p><h1>What came out</h1>");
    let Some(latest) = results.iter().max_by_key(|r| r.started_ms) else {
        html.push_str("<p>There are no results in this folder yet.</p></header>");
        return;
    };
    let measured = results.iter().filter(|r| !r.quick);
    let claims: Vec<&Claim> = measured.flat_map(|r| &r.claims).collect();
    let met = claims.iter().filter(|c| c.met == Some(true)).count();
    let missed = claims.iter().filter(|c| c.met == Some(false)).count();
    let machine = &latest.machine;
    if claims.is_empty() {
        html.push_str("<p class=\"lead\">Nothing was judged: there are only quick runs.</p>");
    } else {
        let left = claims.len() - met - missed;
        let _ = write!(
            html,
            "<p class=\"lead\"><b>{met}</b> of {} claims met, <b>{missed}</b> missed, {left} not \
             measured.</p>",
            claims.len(),
        );
    }
    let _ = write!(
        html,
        "<p class=\"facts\">{} · {} cores · {} memory · {} last-level cache · Linux {} · {} build</p>",
        escape(&machine.model),
        machine.cores,
        bytes(machine.memory_bytes),
        bytes(machine.last_level_cache_bytes),
        escape(&machine.kernel),
        escape(&machine.build),
    );
    if machine.build != "release" {
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

fn summary(html: &mut String, results: &[ExperimentResult]) {
    html.push_str(
        "<section><h2>Claims</h2><div class=\"wide\"><table class=\"claims\"><thead><tr><th>claim</th>\
         <th>paper</th><th>floor</th><th>aim</th><th>measured</th><th>worse | better</th><th></th></tr></thead>",
    );
    for result in results.iter().filter(|r| !r.claims.is_empty()) {
        let quick = if result.quick { " <span class=\"badge none\">quick run</span>" } else { "" };
        let _ = write!(
            html,
            "<tbody><tr class=\"group\"><th colspan=\"7\"><a href=\"#{0}\">{0}</a>{quick}</th></tr>",
            escape(&result.id)
        );
        for claim in &result.claims {
            claim_row(html, claim, result.quick);
        }
        html.push_str("</tbody>");
    }
    html.push_str("</table></div></section>");
}

fn claim_row(html: &mut String, claim: &Claim, quick: bool) {
    let unit = if claim.unit == "×" { " ×".to_owned() } else { format!(" {}", claim.unit) };
    let bound = |b: Bound| format!("{b}{unit}");
    let measured = claim.measured.map_or("—".into(), |m| format!("{}{unit}", figure_text(m)));
    let spread = claim.spread.filter(|s| s.runs > 1).map_or(String::new(), |s| {
        let (low, high) = (figure_text(s.low), figure_text(s.high));
        format!("<small>{low} – {high}, {} runs</small>", s.runs)
    });
    let aimed = matches!((claim.aim, claim.measured), (Some(aim), Some(m)) if aim.is_met_by(m));
    let (class, word) = match claim.met {
        Some(_) if quick => ("none", "quick"),
        Some(true) if aimed => ("aim", "aim"),
        Some(true) => ("met", "met"),
        Some(false) => ("missed", "missed"),
        None => ("none", "not measured"),
    };
    let _ = write!(
        html,
        "<tr><td>{}<small>{}</small></td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
         <td class=\"n\"><b>{}</b>{spread}</td><td>{}</td>\
         <td><span class=\"badge {class}\">{word}</span></td></tr>",
        escape(&claim.claim),
        escape(&claim.source),
        escape(claim.paper.as_deref().unwrap_or("—")),
        escape(&bound(claim.floor)),
        escape(&claim.aim.map_or("—".into(), bound)),
        escape(&measured),
        if quick { String::new() } else { gauge(claim) },
    );
}

/// A figure with about three significant digits.
fn figure_text(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let digits = (2 - value.abs().log10().floor() as i32).clamp(0, 4) as usize;
    format!("{value:.digits$}")
}

/// Where the measured figure lies beside its floor: the floor is the line in
/// the middle, right of it is better, and the ends are four times away.
fn gauge(claim: &Claim) -> String {
    let Some(measured) = claim.measured else {
        return String::new();
    };
    let limit = claim.floor.limit();
    let better = match claim.floor {
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

fn experiment(html: &mut String, result: &ExperimentResult) {
    let id = escape(&result.id);
    let _ = write!(
        html,
        "<section id=\"{id}\"><p class=\"eyebrow\">{id}</p><h2>{}</h2><p class=\"facts\">{}</p>",
        escape(&result.title),
        escape(&result.paper),
    );
    if let Some(reason) = &result.skipped {
        let _ = write!(html, "<p class=\"warning\">Skipped: {}.</p>", escape(reason));
    }
    for figure in &result.figures {
        let _ = write!(
            html,
            "<figure><figcaption><b>{}</b> {}</figcaption>{}</figure>",
            escape(&figure.title),
            escape(&figure.caption),
            figure::render(figure, &result.series, Place::Page)
        );
    }
    for table in &result.tables {
        data_table(html, table);
    }
    if !result.notes.is_empty() {
        html.push_str("<ul class=\"notes\">");
        for note in &result.notes {
            let _ = write!(html, "<li>{}</li>", escape(note));
        }
        html.push_str("</ul>");
    }
    repeat(html, result);
    html.push_str("</section>");
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

fn repeat(html: &mut String, result: &ExperimentResult) {
    let _ = write!(
        html,
        "<details><summary>How to repeat this</summary><p><code>{}</code></p><dl>\
         <dt>commit</dt><dd>{}</dd><dt>begun</dt><dd>{}</dd><dt>took</dt><dd>{:.0} s</dd>",
        escape(&result.command),
        escape(&result.commit),
        date::utc(result.started_ms),
        result.seconds,
    );
    for (name, value) in &result.parameters {
        let value = match value {
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let _ = write!(html, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(&value));
    }
    html.push_str("</dl></details>");
}

/// Bytes with a binary unit.
fn bytes(count: u64) -> String {
    match count {
        0 => "unknown".into(),
        n if n >= 1 << 30 => format!("{:.0} GiB", n as f64 / f64::from(1 << 30)),
        n => format!("{:.0} MiB", n as f64 / f64::from(1 << 20)),
    }
}

#[cfg(test)]
pub(crate) mod tests;
