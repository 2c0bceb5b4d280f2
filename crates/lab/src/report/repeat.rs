//! The data needed to repeat and to judge a result: command, commit, machine, conditions,
//! parameters. Parts that ran by themselves have data of their own.

use std::fmt::Write;

use super::date;
use crate::measure::conditions::Conditions;
use crate::measure::machine::Machine;
use crate::report::figure::escape;
use crate::report::result::{ExperimentResult, PartRun};

/// Writes a folded list for the whole run and for the runs of parts.
pub(super) fn fold(html: &mut String, result: &ExperimentResult) {
    html.push_str("<details class=\"repeat\"><summary>How to repeat this</summary>");
    for (name, part) in result.named_runs() {
        if !name.is_empty() {
            let _ = write!(html, "<h3>Part {}, run by itself</h3>", escape(&name));
        }
        run(html, &part);
    }
    html.push_str("</details>");
}

fn run(html: &mut String, run: &PartRun) {
    let _ = write!(
        html,
        "<p><code>{}</code></p><dl><dt>commit</dt><dd>{}</dd><dt>begun</dt><dd>{}</dd>\
         <dt>took</dt><dd>{:.0} s</dd><dt>machine</dt><dd>{}</dd>",
        escape(&run.command),
        escape(&run.commit),
        date::utc(run.started_ms),
        run.seconds,
        machine(&run.machine),
    );
    conditions(html, &run.conditions);
    for (name, value) in &run.parameters {
        let value = match value {
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let _ = write!(html, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(&value));
    }
    html.push_str("</dl>");
}

fn conditions(html: &mut String, it: &Conditions) {
    if *it == Conditions::default() {
        html.push_str("<dt>conditions</dt><dd>not recorded</dd>");
        return;
    }
    let _ = write!(
        html,
        "<dt>load average</dt><dd>{:.2} before, {:.2} after</dd>\
         <dt>stolen by the host</dt><dd>{:.1} % of the processors' time</dd>\
         <dt>other processes</dt><dd>{:.1} % of the processors' time</dd>\
         <dt>transparent huge pages</dt><dd>{}, at most {} had</dd>",
        it.load_average_before,
        it.load_average_after,
        it.steal_share * 100.0,
        it.other_processes_share * 100.0,
        escape(&it.huge_pages),
        bytes(it.huge_page_bytes_max),
    );
}

/// The machine in one line.
pub(super) fn machine(it: &Machine) -> String {
    let known = |count: u64| if count == 0 { "unknown".to_owned() } else { bytes(count) };
    format!(
        "{} · {} cores · {} memory · {} last-level cache · Linux {} · {} build",
        escape(&it.model),
        it.cores,
        known(it.memory_bytes),
        known(it.last_level_cache_bytes),
        escape(&it.kernel),
        escape(&it.build),
    )
}

/// Bytes with a binary unit.
fn bytes(count: u64) -> String {
    match count {
        n if n >= 1 << 30 => format!("{:.0} GiB", n as f64 / f64::from(1 << 30)),
        n => format!("{:.0} MiB", n as f64 / f64::from(1 << 20)),
    }
}
