//! The result file of an experiment: `OUT/<id>.json`.
//!
//! The report shows nothing but these files: claims, tables, series, the machine, the commit and
//! the command. Files describe figures as data, so that a later report may draw them better.

mod agreement;
mod claim;
mod file;
mod joined;
mod merge;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub(crate) use agreement::Agreement;
pub(crate) use claim::{Bound, Claim, ClaimRow, Paper, Samples};
pub(crate) use joined::joined;

use crate::error::{LabError, LabResult};
use crate::measure::conditions::Conditions;
use crate::measure::machine::Machine;
use crate::measure::stats::Spread;
use crate::sys;

/// One run of one experiment.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub(crate) struct ExperimentResult {
    /// The registered name, also the file's name.
    pub(crate) id: String,
    /// Headline: the subject of the experiment.
    pub(crate) title: String,
    /// Source of the claims: paper, section, figure.
    pub(crate) paper: String,
    /// The commit that the measured program was built from, with `-dirty` when the tree had changes.
    pub(crate) commit: String,
    /// The command that repeats the run.
    pub(crate) command: String,
    /// Whether this was a quick run, which only shows that the experiment still works.
    pub(crate) quick: bool,
    /// The reason why nothing was measured, if nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) skipped: Option<String>,
    /// Begin of the run, in milliseconds since the Unix epoch.
    pub(crate) started_ms: u64,
    /// Duration of the run.
    pub(crate) seconds: f64,
    /// The machine.
    pub(crate) machine: Machine,
    /// Other work of the machine during the run, and the memory pages that it gave.
    #[serde(default)]
    pub(crate) conditions: Conditions,
    /// Every parameter of the run, by name with its unit last.
    pub(crate) parameters: BTreeMap<String, serde_json::Value>,
    /// Measured series, in the order in which they are drawn.
    pub(crate) series: Vec<Series>,
    /// The figures, as descriptions that name series.
    #[serde(default)]
    pub(crate) figures: Vec<Figure>,
    /// Numbers that a figure does not show well.
    #[serde(default)]
    pub(crate) tables: Vec<Table>,
    /// Claims: the demanded and the measured figures.
    pub(crate) claims: Vec<Claim>,
    /// Notes that a reader needs to judge the figures.
    #[serde(default)]
    pub(crate) notes: Vec<Note>,
    /// The runs of single parts that were merged into this file, by part.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) parts: BTreeMap<String, PartRun>,
}

/// A run of one part alone.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub(crate) struct PartRun {
    /// The commit, as in [`ExperimentResult::commit`].
    pub(crate) commit: String,
    /// The command that repeats the run.
    pub(crate) command: String,
    /// Begin of the run, in milliseconds since the Unix epoch.
    pub(crate) started_ms: u64,
    /// Duration of the run.
    pub(crate) seconds: f64,
    /// The machine.
    pub(crate) machine: Machine,
    /// Other work of the machine during the run.
    pub(crate) conditions: Conditions,
    /// Every parameter of the run.
    pub(crate) parameters: BTreeMap<String, serde_json::Value>,
}

/// A note for the reader. Older files hold only its text.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(from = "NoteForm")]
pub(crate) struct Note {
    /// The part of the experiment that the note belongs to; empty for all parts.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) part: String,
    /// The sentence.
    pub(crate) text: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum NoteForm {
    Text(String),
    Note {
        #[serde(default)]
        part: String,
        text: String,
    },
}

impl From<NoteForm> for Note {
    fn from(form: NoteForm) -> Note {
        match form {
            NoteForm::Text(text) => Note { part: String::new(), text },
            NoteForm::Note { part, text } => Note { part, text },
        }
    }
}

/// A curve: points in order of x.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub(crate) struct Series {
    /// Unique within the result.
    pub(crate) name: String,
    /// Name in the legend, such as the scheme. If empty, the legend shows `name`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) label: String,
    /// The part of the experiment that the series belongs to; empty for all parts.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) part: String,
    /// Unit of x.
    pub(crate) x_unit: String,
    /// Unit of y.
    pub(crate) y_unit: String,
    /// `[x, y]`.
    #[serde(serialize_with = "file::shortened")]
    pub(crate) points: Vec<[f64; 2]>,
    /// The least and the greatest y of the runs or periods, for each point; empty where points are single
    /// values.
    #[serde(default, skip_serializing_if = "Vec::is_empty", serialize_with = "file::shortened")]
    pub(crate) spreads: Vec<[f64; 2]>,
}

impl Series {
    /// Name in the legend.
    pub(crate) fn label(&self) -> &str {
        if self.label.is_empty() { &self.name } else { &self.label }
    }
}

/// Mapping of values to lengths on an axis.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Scale {
    /// Equal distances for equal differences, from zero.
    #[default]
    Linear,
    /// Equal distances for equal ratios.
    Log,
}

/// A figure, described by names of series.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub(crate) struct Figure {
    /// Headline of the figure.
    pub(crate) title: String,
    /// The part of the experiment that the figure belongs to; empty for all parts.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) part: String,
    /// One or two sentences below the figure.
    #[serde(default)]
    pub(crate) caption: String,
    /// Label of the x axis, with the unit.
    pub(crate) x_label: String,
    /// Label of the y axis, with the unit.
    pub(crate) y_label: String,
    /// Scale of the x axis.
    #[serde(default)]
    pub(crate) x_scale: Scale,
    /// Scale of the y axis.
    #[serde(default)]
    pub(crate) y_scale: Scale,
    /// Names of the series, in the order of the legend. Empty for bars.
    #[serde(default)]
    pub(crate) series: Vec<String>,
    /// Shaded stretches of the x axis: captures, saves.
    #[serde(default)]
    pub(crate) spans: Vec<Span>,
    /// The paper's points in this picture.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) paper: Vec<PaperPoint>,
    /// Bars instead of curves.
    #[serde(default)]
    pub(crate) bars: Vec<Bar>,
}

/// A value of the paper among ours.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub(crate) struct PaperPoint {
    /// The scheme: a label of the figure's series, or a bar's group or name.
    pub(crate) label: String,
    /// The point at which the value is drawn. A bar has its own x.
    pub(crate) at: [f64; 2],
    /// The paper's statement.
    pub(crate) text: String,
}

/// A shaded stretch of the x axis.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub(crate) struct Span {
    /// Name of the event.
    pub(crate) label: String,
    /// Begin of the stretch.
    pub(crate) from: f64,
    /// End of the stretch.
    pub(crate) to: f64,
    /// The series whose colour the stretch takes. Without a series the stretch belongs to all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) series: Option<String>,
}

/// One bar of a bar figure: a median with its spread.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub(crate) struct Bar {
    /// Bars of one group stand together.
    pub(crate) group: String,
    /// Name of the bar within its group. The same names recur in each group.
    pub(crate) name: String,
    /// The height, with the spread of the runs.
    pub(crate) value: Spread,
}

/// A table of text cells; the first row of cells has the columns' heads.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub(crate) struct Table {
    /// Headline of the table.
    pub(crate) title: String,
    /// The part of the experiment that the table belongs to; empty for all parts.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) part: String,
    /// Heads of the columns.
    pub(crate) columns: Vec<String>,
    /// Cells, row by row, as many as there are columns.
    pub(crate) rows: Vec<Vec<String>>,
}

impl ExperimentResult {
    /// Adds a parameter to those of the plan. The parameter's name has the unit last.
    pub(crate) fn parameter(&mut self, name: &str, value: impl Into<serde_json::Value>) {
        self.parameters.insert(name.to_owned(), value.into());
    }

    /// Bytes ÷ size of the last-level cache. 0 if the size of the cache is unknown.
    pub(crate) fn per_cache(&self, bytes: u64) -> f64 {
        match self.machine.last_level_cache_bytes {
            0 => 0.0,
            cache => bytes as f64 / cache as f64,
        }
    }

    /// Adds a sentence for the reader.
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(Note { part: String::new(), text: text.into() });
    }

    /// The result's file in a folder of results.
    pub(crate) fn path_in(out: &Path, id: &str) -> PathBuf {
        out.join(format!("{id}.json"))
    }

    /// Writes `OUT/<id>.json` and one SVG file per figure. Returns the path of the JSON file.
    /// Removes figures left by an earlier run that had more of them.
    ///
    /// # Errors
    /// When the folder or a file cannot be written.
    pub(crate) fn save(&self, out: &Path) -> LabResult<PathBuf> {
        sys::create_dir_all(out)?;
        let path = Self::path_in(out, &self.id);
        let text = file::text(self)
            .map_err(|e| LabError::BadResult { path: path.clone(), reason: e.to_string() })?;
        sys::write_text(&path, &text)?;
        for (number, figure) in self.figures.iter().enumerate() {
            let svg = crate::report::figure::render(
                figure,
                &self.series,
                crate::report::figure::Embedding::Standalone,
            );
            sys::write_text(&self.picture_path(out, number + 1), &svg)?;
        }
        let further = (self.figures.len() + 1..).map(|number| self.picture_path(out, number));
        for path in further.take_while(|path| path.is_file()) {
            sys::remove_file(&path)?;
        }
        Ok(path)
    }

    fn picture_path(&self, out: &Path, number: usize) -> PathBuf {
        out.join(self.picture_name(number))
    }

    /// The name of the file of a figure. Numbers begin with 1.
    pub(crate) fn picture_name(&self, number: usize) -> String {
        format!("{}-{number}.svg", self.id)
    }

    /// Reads one result file.
    ///
    /// # Errors
    /// When the file cannot be read, or is no result file.
    pub(crate) fn load(path: &Path) -> LabResult<ExperimentResult> {
        let text = sys::read_text(path)?;
        serde_json::from_str(&text)
            .map_err(|e| LabError::BadResult { path: path.to_owned(), reason: e.to_string() })
    }

    /// Reads all result files of a folder, in order of their names.
    ///
    /// # Errors
    /// When the folder or one of its `.json` files cannot be read.
    pub(crate) fn load_all(out: &Path) -> LabResult<Vec<ExperimentResult>> {
        sys::list_dir(out)?
            .iter()
            .filter(|path| path.extension().is_some_and(|e| e == "json"))
            .map(|path| Self::load(path))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_of_older_files_are_plain_text() {
        let note: Note = serde_json::from_str("\"mind it\"").expect("a note");
        assert_eq!(note, Note { part: String::new(), text: "mind it".into() });
        let note = Note { part: "rest".into(), text: "mind it".into() };
        let text = serde_json::to_string(&note).expect("JSON");
        assert_eq!(serde_json::from_str::<Note>(&text).expect("a note"), note);
    }

    #[test]
    fn a_result_survives_its_file() -> LabResult<()> {
        let dir = tempfile::tempdir().map_err(|source| LabError::File {
            op: "create",
            path: "tmp".into(),
            source,
        })?;
        let result = crate::report::tests::sample();
        let path = result.save(dir.path())?;
        assert_eq!(ExperimentResult::load(&path)?, result);
        assert_eq!(ExperimentResult::load_all(dir.path())?, vec![result.clone()]);

        let without = ExperimentResult { figures: Vec::new(), ..result.clone() };
        assert!(dir.path().join("sample-1.svg").is_file());
        without.save(dir.path())?;
        assert!(!dir.path().join("sample-1.svg").exists(), "its figure is gone");

        sys::write_text(&dir.path().join("other.json"), "{}")?;
        let error = ExperimentResult::load_all(dir.path()).expect_err("no result file");
        assert!(error.to_string().contains("other.json"), "{error}");
        Ok(())
    }
}
