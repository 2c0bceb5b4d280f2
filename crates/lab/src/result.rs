//! The result file of an experiment: `OUT/<id>.json`.
//!
//! Everything the report shows is in these files: claims, tables, series, the
//! machine, the commit and the command. Figures are described, not drawn, so
//! that a later report may draw them better.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{LabError, LabResult};
use crate::machine::Machine;
use crate::stats::Spread;
use crate::sys;

/// One run of one experiment.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct ExperimentResult {
    /// The registered name, also the file's name.
    pub id: String,
    /// What the experiment shows, as a headline.
    pub title: String,
    /// Where the claims come from: paper, section, figure.
    pub paper: String,
    /// The commit that was measured, with `-dirty` when the tree had changes.
    pub commit: String,
    /// The command that repeats it.
    pub command: String,
    /// True for the mode that only shows that the experiment still runs.
    pub quick: bool,
    /// Why nothing was measured, when that is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// When it began, in milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// How long it took.
    pub seconds: f64,
    /// The machine.
    pub machine: Machine,
    /// Every parameter of the run, by name with its unit last.
    pub parameters: BTreeMap<String, serde_json::Value>,
    /// Measured series, in the order in which they are drawn.
    pub series: Vec<Series>,
    /// Which series make which figure.
    #[serde(default)]
    pub figures: Vec<Figure>,
    /// Numbers that a figure does not show well.
    #[serde(default)]
    pub tables: Vec<Table>,
    /// What had to come out, and what did.
    pub claims: Vec<Claim>,
    /// What a reader must know to judge the figures.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A curve: points in order of x.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Series {
    /// Unique within the result.
    pub name: String,
    /// Unit of x.
    pub x_unit: String,
    /// Unit of y.
    pub y_unit: String,
    /// `[x, y]`.
    pub points: Vec<[f64; 2]>,
}

/// How an axis maps values to lengths.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Equal distances for equal differences, from zero.
    #[default]
    Linear,
    /// Equal distances for equal ratios.
    Log,
}

/// A figure: what to draw from the series of the result.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct Figure {
    /// Headline: what is to be seen.
    pub title: String,
    /// One or two sentences below it.
    #[serde(default)]
    pub caption: String,
    /// Label of the x axis, with the unit.
    pub x_label: String,
    /// Label of the y axis, with the unit.
    pub y_label: String,
    /// Scale of the x axis.
    #[serde(default)]
    pub x_scale: Scale,
    /// Scale of the y axis.
    #[serde(default)]
    pub y_scale: Scale,
    /// Names of the series, in the order of their colours. Empty for bars.
    #[serde(default)]
    pub series: Vec<String>,
    /// Shaded stretches of the x axis: captures, saves.
    #[serde(default)]
    pub spans: Vec<Span>,
    /// Bars instead of curves.
    #[serde(default)]
    pub bars: Vec<Bar>,
}

/// A shaded stretch of the x axis.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Span {
    /// What happened there.
    pub label: String,
    /// Where it began.
    pub from: f64,
    /// Where it ended.
    pub to: f64,
    /// The series that it belongs to, whose colour it takes; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<String>,
}

/// One bar of a bar figure: a median with its spread.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Bar {
    /// Bars of one group stand together.
    pub group: String,
    /// Which of the group: the same names recur in each group.
    pub name: String,
    /// The height, with the spread of the runs.
    pub value: Spread,
}

/// A table of text cells; the first row of cells has the columns' heads.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Table {
    /// Headline.
    pub title: String,
    /// Heads of the columns.
    pub columns: Vec<String>,
    /// Cells, row by row, as many as there are columns.
    pub rows: Vec<Vec<String>>,
}

/// At most or at least: how a measured figure is judged.
///
/// Written in the file as a person writes it: `"≤ 1.01"`, `"≥ 0.98"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// Met by figures that are not greater.
    AtMost(f64),
    /// Met by figures that are not smaller.
    AtLeast(f64),
}

impl Bound {
    /// True if the figure meets the bound; a figure that is no number does not.
    pub fn is_met_by(self, measured: f64) -> bool {
        match self {
            Bound::AtMost(limit) => measured <= limit,
            Bound::AtLeast(limit) => measured >= limit,
        }
    }

    /// The number in the bound.
    pub fn limit(self) -> f64 {
        match self {
            Bound::AtMost(limit) | Bound::AtLeast(limit) => limit,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::AtMost(limit) => write!(f, "≤ {limit}"),
            Bound::AtLeast(limit) => write!(f, "≥ {limit}"),
        }
    }
}

impl FromStr for Bound {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let parse =
            |rest: &str| rest.trim().parse::<f64>().map_err(|e| format!("bound {text:?}: {e}"));
        if let Some(rest) = text.strip_prefix('≤') {
            Ok(Bound::AtMost(parse(rest)?))
        } else if let Some(rest) = text.strip_prefix('≥') {
            Ok(Bound::AtLeast(parse(rest)?))
        } else {
            Err(format!("bound {text:?} must begin with ≤ or ≥"))
        }
    }
}

impl Serialize for Bound {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Bound {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// What had to come out, and what did.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Claim {
    /// The sentence that is checked.
    pub claim: String,
    /// Who asks for it: paper and section, or the project's own aim.
    pub source: String,
    /// The paper's figure, in its own words.
    pub paper: Option<String>,
    /// What must be reached.
    pub floor: Bound,
    /// What is hoped for.
    pub aim: Option<Bound>,
    /// The median of what was measured; absent when it could not be.
    pub measured: Option<f64>,
    /// Smallest and greatest of the runs, where there were several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<Spread>,
    /// Unit of `measured` and of the bounds.
    pub unit: String,
    /// Whether `measured` meets `floor`; absent when nothing was measured.
    pub met: Option<bool>,
}

impl Claim {
    /// A claim of the project itself, not measured yet.
    pub fn new(claim: impl Into<String>, source: impl Into<String>, floor: Bound) -> Claim {
        Claim {
            claim: claim.into(),
            source: source.into(),
            paper: None,
            floor,
            aim: None,
            measured: None,
            spread: None,
            unit: "×".to_owned(),
            met: None,
        }
    }

    /// Adds the paper's figure.
    #[must_use]
    pub fn paper(mut self, figure: impl Into<String>) -> Claim {
        self.paper = Some(figure.into());
        self
    }

    /// Adds the aim beyond the floor.
    #[must_use]
    pub fn aim(mut self, aim: Bound) -> Claim {
        self.aim = Some(aim);
        self
    }

    /// Sets the unit; `×` otherwise.
    #[must_use]
    pub fn unit(mut self, unit: impl Into<String>) -> Claim {
        self.unit = unit.into();
        self
    }

    /// Sets the measured figure and judges it.
    #[must_use]
    pub fn measured(mut self, measured: f64) -> Claim {
        if measured.is_finite() {
            self.measured = Some(measured);
            self.met = Some(self.floor.is_met_by(measured));
        }
        self
    }

    /// Sets the measured figure to the median of several runs and judges that.
    #[must_use]
    pub fn measured_runs(self, runs: &[f64]) -> Claim {
        match Spread::of(runs) {
            Some(spread) => {
                let mut claim = self.measured(spread.median);
                claim.spread = Some(spread);
                claim
            }
            None => self,
        }
    }
}

impl ExperimentResult {
    /// The result's file in a folder of results.
    pub fn path_in(out: &Path, id: &str) -> PathBuf {
        out.join(format!("{id}.json"))
    }

    /// Writes `OUT/<id>.json` and one SVG file per figure; returns the JSON file's path.
    ///
    /// # Errors
    /// When the folder or a file cannot be written.
    pub fn save(&self, out: &Path) -> LabResult<PathBuf> {
        sys::create_dir_all(out)?;
        let path = Self::path_in(out, &self.id);
        let text = serde_json::to_string_pretty(self)
            .map_err(|e| LabError::BadResult { path: path.clone(), reason: e.to_string() })?;
        sys::write_text(&path, &text)?;
        for (number, figure) in self.figures.iter().enumerate() {
            let svg = crate::figure::render(figure, &self.series, crate::figure::Place::Standalone);
            sys::write_text(&out.join(format!("{}-{}.svg", self.id, number + 1)), &svg)?;
        }
        Ok(path)
    }

    /// Reads one result file.
    ///
    /// # Errors
    /// When it cannot be read, or is no result file.
    pub fn load(path: &Path) -> LabResult<ExperimentResult> {
        let text = sys::read_text(path)?;
        serde_json::from_str(&text)
            .map_err(|e| LabError::BadResult { path: path.to_owned(), reason: e.to_string() })
    }

    /// Reads all result files of a folder, in order of their names.
    ///
    /// # Errors
    /// When the folder or one of its `.json` files cannot be read.
    pub fn load_all(out: &Path) -> LabResult<Vec<ExperimentResult>> {
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
    fn bounds_are_written_as_people_write_them() {
        for (bound, text) in [(Bound::AtMost(1.01), "≤ 1.01"), (Bound::AtLeast(0.98), "≥ 0.98")]
        {
            assert_eq!(bound.to_string(), text);
            assert_eq!(text.parse::<Bound>(), Ok(bound));
        }
        assert!("1.01".parse::<Bound>().is_err());
        assert!("≤ much".parse::<Bound>().is_err());
    }

    #[test]
    fn a_claim_is_met_on_the_right_side_of_its_floor() {
        let claim = Claim::new("c", "s", Bound::AtMost(1.2));
        assert_eq!(claim.clone().measured(1.2).met, Some(true));
        assert_eq!(claim.clone().measured(1.21).met, Some(false));
        let claim = Claim::new("c", "s", Bound::AtLeast(8.0));
        assert_eq!(claim.clone().measured_runs(&[7.0, 9.0, 8.5]).met, Some(true));
        assert_eq!(claim.clone().measured_runs(&[7.0, 7.5, 8.5]).met, Some(false));
        assert_eq!(claim.clone().measured_runs(&[]).met, None, "nothing measured, nothing judged");
        assert_eq!(claim.measured(f64::NAN).met, None);
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
        assert_eq!(ExperimentResult::load_all(dir.path())?, vec![result]);

        sys::write_text(&dir.path().join("other.json"), "{}")?;
        let error = ExperimentResult::load_all(dir.path()).expect_err("no result file");
        assert!(error.to_string().contains("other.json"), "{error}");
        Ok(())
    }
}
