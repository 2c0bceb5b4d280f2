//! `stillpoint lab advise`: measures all schemes under a load on this machine, each for seconds, and
//! recommends one with the reason. Each scheme's data are read back and compared.
//!
//! - [`state`]: state arrays, `--state`;
//! - [`records`]: records and transactions, `--records N`.

pub(crate) mod records;
mod state;

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use serde_json::Value;

use crate::context::Context;
use crate::error::{LabError, LabResult};
use crate::measure::durations::seconds;
use crate::sys;

/// A load, and the limits that a scheme must keep under it.
#[derive(Args, Clone, Debug, PartialEq)]
pub(crate) struct Question {
    #[command(flatten)]
    of_state: state::OfState,
    #[command(flatten)]
    of_records: records::OfRecords,
    /// Seconds for which each scheme is measured.
    #[arg(long, default_value_t = 3.0, value_parser = seconds, help_heading = "Options")]
    seconds: f64,
    /// Directory for the files of the measured schemes, on the disk in question.
    #[arg(long, value_name = "DIR", default_value = "lab-results", help_heading = "Options")]
    pub(crate) dir: PathBuf,
    /// One JSON object instead of a table.
    #[arg(long, help_heading = "Options")]
    json: bool,
}

/// The recommended scheme.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Choice {
    /// The scheme's registered name.
    pub(crate) recommended: String,
    /// The reason for the choice, in words.
    pub(crate) reason: String,
    /// Whether the scheme keeps the limits.
    pub(crate) is_within_limits: bool,
}

/// The figures of all schemes and the recommendation.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Advice<M> {
    /// The figures of every measured scheme.
    measured: Vec<M>,
    /// The recommended scheme and the reason.
    #[serde(flatten)]
    choice: Choice,
}

/// The head of a column, and its cell for a scheme.
type Column<M> = (&'static str, fn(&M) -> String);

/// Figures of a scheme, as a row of the table.
trait Measurement: Serialize + Sized + 'static {
    /// All columns. The first names the scheme.
    const COLUMNS: &'static [Column<Self>];
}

/// The answer to a question, for the terminal.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) lines: Vec<String>,
    /// Whether the recommended scheme keeps the limits.
    pub(crate) is_within_limits: bool,
}

fn refused(what: String, cure: &str) -> LabError {
    LabError::Missing { what, cure: cure.to_owned() }
}

/// Measures the schemes under the load and chooses one.
///
/// # Errors
/// When the load makes no sense, the memory is too small, or the disk fails.
pub(crate) fn advise(question: &Question, context: &Context) -> LabResult<Answer> {
    let answer = match question.of_state.state {
        true => answer(question, &state::advise(&question.of_state, question.seconds, context)?),
        false => {
            answer(question, &records::advise(&question.of_records, question.seconds, context)?)
        }
    };
    sys::remove_dir_all(&context.work)?;
    answer
}

fn answer<M: Measurement>(question: &Question, advice: &Advice<M>) -> LabResult<Answer> {
    let is_within_limits = advice.choice.is_within_limits;
    let lines = if question.json {
        let json: Result<Value, _> = serde_json::to_value(advice);
        let json = json.and_then(|json| serde_json::to_string_pretty(&json));
        vec![json.map_err(|e| LabError::process("JSON", e))?]
    } else {
        lines(advice)
    };
    Ok(Answer { lines, is_within_limits })
}

/// The advice for a terminal, line by line.
fn lines<M: Measurement>(advice: &Advice<M>) -> Vec<String> {
    let heads = M::COLUMNS.iter().map(|(head, _)| (*head).to_owned());
    let mut rows: Vec<Vec<String>> = vec![heads.collect()];
    let cells = |it: &M| M::COLUMNS.iter().map(|(_, cell)| cell(it)).collect();
    rows.extend(advice.measured.iter().map(cells));
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..M::COLUMNS.len()).map(width).collect();
    let mut lines: Vec<String> = rows
        .iter()
        .map(|row| {
            let cells = row.iter().zip(&widths).skip(1).map(|(cell, w)| format!("  {cell:>w$}"));
            let first = widths[0];
            format!("{:<first$}{}", row[0], cells.collect::<String>())
        })
        .collect();
    lines.push(String::new());
    lines.push(format!("recommended: {}", advice.choice.recommended));
    lines.push(advice.choice.reason.clone());
    lines
}
