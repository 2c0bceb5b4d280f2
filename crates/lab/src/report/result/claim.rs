//! Claims: what had to come out, by which bound it is judged, and what did come out.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::measure::stats::Spread;

/// At most or at least: how a measured figure is judged.
///
/// Written in the file as a person writes it: `"≤ 1.01"`, `"≥ 0.98"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    /// Met by figures that are not greater.
    AtMost(f64),
    /// Met by figures that are not smaller.
    AtLeast(f64),
}

impl Bound {
    /// True if the figure meets the bound; a figure that is no number does not.
    pub(crate) fn is_met_by(self, measured: f64) -> bool {
        match self {
            Bound::AtMost(limit) => measured <= limit,
            Bound::AtLeast(limit) => measured >= limit,
        }
    }

    /// The number in the bound.
    pub(crate) fn limit(self) -> f64 {
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

/// What the values of a spread are.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Samples {
    /// Runs, each from an opened engine or arrays on.
    #[default]
    Runs,
    /// Successive checkpoint periods of one run: one process, one placement in memory.
    Periods,
}

/// What a paper says of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Paper {
    words: &'static str,
    ratio: Option<f64>,
}

impl Paper {
    /// Which of the two is better, and no number.
    pub(crate) const fn order(words: &'static str) -> Paper {
        Paper { words, ratio: None }
    }

    /// The ratio of the two.
    pub(crate) const fn ratio(words: &'static str, ratio: f64) -> Paper {
        Paper { words, ratio: Some(ratio) }
    }
}

/// A claim as data: a metric of a subject, divided by that of a baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Comparison {
    /// What is measured of both.
    pub(crate) metric: &'static str,
    /// Whose is divided, by its name in figures.
    pub(crate) subject: &'static str,
    /// By whose.
    pub(crate) baseline: &'static str,
    /// As [`Claim::source`].
    pub(crate) source: &'static str,
    /// What the paper says of it.
    pub(crate) paper: Option<Paper>,
    /// As [`Claim::bound`].
    pub(crate) bound: Bound,
    /// As [`Claim::goal`].
    pub(crate) goal: Bound,
}

impl Comparison {
    /// The claim under these circumstances, not measured yet. `at` may be empty.
    pub(crate) fn claim(&self, at: &str) -> Claim {
        let Comparison { metric, subject, baseline, source, paper, bound, goal } = *self;
        let at = if at.is_empty() { String::new() } else { format!(", {at}") };
        let mut claim = Claim::new(format!("{metric}: {subject} ÷ {baseline}{at}"), source, bound);
        (claim.subject, claim.baseline) = (subject.to_owned(), baseline.to_owned());
        claim.paper = paper.map(|paper| paper.words.to_owned());
        claim.paper_ratio = paper.and_then(|paper| paper.ratio);
        claim.goal(goal)
    }
}

/// What had to come out, and what did.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub(crate) struct Claim {
    /// The sentence that is checked.
    pub(crate) claim: String,
    /// Whose figure is divided, where two are compared: its name in figures.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) subject: String,
    /// By whose figure it is divided.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) baseline: String,
    /// The part of the experiment that it belongs to; empty for all parts.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) part: String,
    /// Who asks for it: paper and section, or the project itself.
    pub(crate) source: String,
    /// The paper's figure, in its own words.
    pub(crate) paper: Option<String>,
    /// The paper's figure as a number, where it is a ratio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) paper_ratio: Option<f64>,
    /// What must be reached.
    #[serde(alias = "floor")]
    pub(crate) bound: Bound,
    /// What is hoped for.
    #[serde(alias = "aim")]
    pub(crate) goal: Option<Bound>,
    /// The median of what was measured; absent when it could not be.
    pub(crate) measured: Option<f64>,
    /// Smallest and greatest value, where there were several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) spread: Option<Spread>,
    /// What the values of the spread are.
    #[serde(default)]
    pub(crate) samples: Samples,
    /// Unit of `measured` and of the bounds.
    pub(crate) unit: String,
    /// Whether `measured` meets `bound`; absent when nothing was measured, and in quick runs.
    pub(crate) met: Option<bool>,
}

impl Claim {
    /// A claim of the project itself, not measured yet.
    pub(crate) fn new(claim: impl Into<String>, source: impl Into<String>, bound: Bound) -> Claim {
        Claim {
            claim: claim.into(),
            subject: String::new(),
            baseline: String::new(),
            part: String::new(),
            source: source.into(),
            paper: None,
            paper_ratio: None,
            bound,
            goal: None,
            measured: None,
            spread: None,
            samples: Samples::Runs,
            unit: "×".to_owned(),
            met: None,
        }
    }

    /// Adds the paper's figure.
    #[must_use]
    pub(crate) fn paper(mut self, figure: impl Into<String>) -> Claim {
        self.paper = Some(figure.into());
        self
    }

    /// Adds the paper's figure, a ratio, in words and as a number.
    #[must_use]
    pub(crate) fn paper_ratio(mut self, figure: impl Into<String>, ratio: f64) -> Claim {
        self.paper_ratio = Some(ratio);
        self.paper(figure)
    }

    /// Adds what is hoped for beyond the bound.
    #[must_use]
    pub(crate) fn goal(mut self, goal: Bound) -> Claim {
        self.goal = Some(goal);
        self
    }

    /// Sets the unit; `×` otherwise.
    #[must_use]
    pub(crate) fn unit(mut self, unit: impl Into<String>) -> Claim {
        self.unit = unit.into();
        self
    }

    /// Sets the measured figure and judges it.
    #[must_use]
    pub(crate) fn measured(mut self, measured: f64) -> Claim {
        if measured.is_finite() {
            self.measured = Some(measured);
            self.met = Some(self.bound.is_met_by(measured));
        }
        self
    }

    /// Sets the measured figure to the median of several runs and judges that.
    #[must_use]
    pub(crate) fn measured_runs(self, runs: &[f64]) -> Claim {
        match Spread::of(runs) {
            Some(spread) => {
                let mut claim = self.measured(spread.median);
                claim.spread = Some(spread);
                claim
            }
            None => self,
        }
    }

    /// As [`Claim::measured_runs`], with successive periods of one run.
    #[must_use]
    pub(crate) fn measured_periods(self, periods: &[f64]) -> Claim {
        Claim { samples: Samples::Periods, ..self.measured_runs(periods) }
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
    fn a_claim_is_met_on_the_right_side_of_its_bound() {
        let claim = Claim::new("c", "s", Bound::AtMost(1.2));
        assert_eq!(claim.clone().measured(1.2).met, Some(true));
        assert_eq!(claim.clone().measured(1.21).met, Some(false));
        let claim = Claim::new("c", "s", Bound::AtLeast(8.0));
        assert_eq!(claim.clone().measured_runs(&[7.0, 9.0, 8.5]).met, Some(true));
        assert_eq!(claim.clone().measured_runs(&[7.0, 7.5, 8.5]).met, Some(false));
        assert_eq!(claim.clone().measured_runs(&[]).met, None, "nothing measured, nothing judged");
        assert_eq!(claim.clone().measured(f64::NAN).met, None);
        assert_eq!(claim.measured_periods(&[9.0, 9.0]).samples, Samples::Periods);
    }

    #[test]
    fn a_comparison_says_what_is_divided_by_what() {
        let compared = Comparison {
            metric: "overhead",
            subject: "ns",
            baseline: "ipp",
            source: "a paper",
            paper: Some(Paper::ratio("3 ×", 3.0)),
            bound: Bound::AtLeast(1.0),
            goal: Bound::AtLeast(3.0),
        };
        let claim = compared.claim("200 MB");
        assert_eq!(claim.claim, "overhead: ns ÷ ipp, 200 MB");
        assert_eq!((&*claim.subject, &*claim.baseline), ("ns", "ipp"));
        assert_eq!((claim.paper.as_deref(), claim.goal), (Some("3 ×"), Some(compared.goal)));
        assert_eq!(claim.paper_ratio, Some(3.0));
        assert_eq!(compared.claim("").claim, "overhead: ns ÷ ipp");
    }

    #[test]
    fn older_files_name_the_bound_floor_and_the_goal_aim() {
        let text = r#"{"claim":"c","source":"s","paper":null,"floor":"≤ 2","aim":"≤ 1",
                       "measured":1.5,"unit":"×","met":true}"#;
        let claim: Claim = serde_json::from_str(text).expect("a claim");
        assert_eq!((claim.bound, claim.goal), (Bound::AtMost(2.0), Some(Bound::AtMost(1.0))));
        assert_eq!(claim.samples, Samples::Runs);
    }
}
