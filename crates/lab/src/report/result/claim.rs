//! Claims: a demanded bound, and the measured figure.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::measure::stats::Spread;

/// An upper or lower bound of a measured figure.
///
/// Written in the file as a person writes it: `"≤ 1.01"`, `"≥ 0.98"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    /// An upper bound.
    AtMost(f64),
    /// A lower bound.
    AtLeast(f64),
}

impl Bound {
    /// Whether the figure meets the bound. Not-a-number never does.
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

/// Kind of the values in a spread.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Samples {
    /// Runs, each with freshly opened engines or arrays.
    #[default]
    Runs,
    /// Processes, one after the other, each with one run.
    Processes,
    /// Successive checkpoint periods of one run: one process, one placement in memory.
    Periods,
}

/// A paper's statement about a claim.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Paper {
    words: &'static str,
    ratio: Option<f64>,
}

impl Paper {
    /// A statement in words. The paper gives no ratio: it says only which of the two is better, or
    /// its figure is of another machine.
    pub(crate) const fn words(words: &'static str) -> Paper {
        Paper { words, ratio: None }
    }

    /// The ratio of subject and baseline.
    pub(crate) const fn ratio(words: &'static str, ratio: f64) -> Paper {
        Paper { words, ratio: Some(ratio) }
    }

    /// The ratio, where the paper says one.
    pub(crate) fn ratio_of(self) -> Option<f64> {
        self.ratio
    }
}

/// A claim as data: a metric, of a subject or of a subject divided by a baseline. Where the names
/// of subjects are known only at run time, [`claim_of`](ClaimRow::claim_of) adds the names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ClaimRow {
    /// The claimed metric.
    pub(crate) metric: &'static str,
    /// The subject, by its name in figures. Empty if the metric says all.
    pub(crate) subject: &'static str,
    /// The baseline of a comparison, whose metric is the divisor. Empty for none.
    pub(crate) baseline: &'static str,
    /// The claim's [`Claim::source`].
    pub(crate) source: &'static str,
    /// The paper's statement on the claim.
    pub(crate) paper: Option<Paper>,
    /// The claim's [`Claim::bound`].
    pub(crate) bound: Bound,
    /// The claim's [`Claim::goal`].
    pub(crate) goal: Option<Bound>,
    /// The claim's [`Claim::unit`].
    pub(crate) unit: &'static str,
}

impl ClaimRow {
    /// A claim on a metric alone, in `×`, without a paper and without a goal.
    pub(crate) const fn new(metric: &'static str, source: &'static str, bound: Bound) -> Self {
        let (subject, baseline, unit) = ("", "", "×");
        Self { metric, subject, baseline, source, paper: None, bound, goal: None, unit }
    }

    /// This claim on a subject, divided by a baseline. An empty baseline stands for none.
    pub(crate) const fn between(self, subject: &'static str, baseline: &'static str) -> Self {
        Self { subject, baseline, ..self }
    }

    /// This claim with a paper's statement.
    pub(crate) const fn paper(self, paper: Paper) -> Self {
        Self { paper: Some(paper), ..self }
    }

    /// This claim with a goal beyond the bound.
    pub(crate) const fn goal(self, goal: Bound) -> Self {
        Self { goal: Some(goal), ..self }
    }

    /// This claim in another unit.
    pub(crate) const fn unit(self, unit: &'static str) -> Self {
        Self { unit, ..self }
    }

    /// The claim under these circumstances, not measured yet. `at` may be empty.
    pub(crate) fn claim(&self, at: &str) -> Claim {
        self.claim_of((self.subject, self.baseline), at)
    }

    /// The claim on another subject and another baseline. Each may be empty.
    pub(crate) fn claim_of(&self, (subject, baseline): (&str, &str), at: &str) -> Claim {
        let ClaimRow { metric, source, paper, bound, goal, unit, .. } = *self;
        let mut text = match (subject, baseline) {
            ("", _) => metric.to_owned(),
            (_, "") => format!("{subject}: {metric}"),
            _ => format!("{metric}: {subject} ÷ {baseline}"),
        };
        if !at.is_empty() {
            text = format!("{text}, {at}");
        }
        let mut claim = Claim::new(text, source, bound).unit(unit);
        (claim.subject, claim.baseline) = (subject.to_owned(), baseline.to_owned());
        claim.paper = paper.map(|paper| paper.words.to_owned());
        claim.paper_ratio = paper.and_then(|paper| paper.ratio);
        claim.goal = goal;
        claim
    }
}

/// A demanded bound and the measured figure.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub(crate) struct Claim {
    /// The sentence that is checked.
    pub(crate) claim: String,
    /// The subject of a comparison, by its name in figures. The subject's figure is the dividend.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) subject: String,
    /// The baseline of a comparison, by its name in figures. The baseline's figure is the divisor.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) baseline: String,
    /// The part of the experiment that the claim belongs to; empty for all parts.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) part: String,
    /// Source of the demand: paper and section, or the project itself.
    pub(crate) source: String,
    /// The paper's figure, in its own words.
    pub(crate) paper: Option<String>,
    /// The paper's figure as a number, where it is a ratio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) paper_ratio: Option<f64>,
    /// The demanded bound.
    #[serde(alias = "floor")]
    pub(crate) bound: Bound,
    /// The goal beyond the bound.
    #[serde(alias = "aim")]
    pub(crate) goal: Option<Bound>,
    /// The median of the measured values. Absent if nothing could be measured.
    pub(crate) measured: Option<f64>,
    /// Smallest and greatest value, if several were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) spread: Option<Spread>,
    /// Kind of the values in the spread.
    #[serde(default)]
    pub(crate) samples: Samples,
    /// Unit of `measured` and of the bounds.
    pub(crate) unit: String,
    /// Whether `measured` meets `bound`. Absent if nothing was measured, and in quick runs.
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

    /// Sets the measured figure to the median of several runs, and judges the median.
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
        let compared = ClaimRow::new("overhead", "a paper", Bound::AtLeast(1.0))
            .between("ns", "ipp")
            .paper(Paper::ratio("3 ×", 3.0))
            .goal(Bound::AtLeast(3.0));
        let claim = compared.claim("200 MB");
        assert_eq!(claim.claim, "overhead: ns ÷ ipp, 200 MB");
        assert_eq!((&*claim.subject, &*claim.baseline), ("ns", "ipp"));
        assert_eq!((claim.paper.as_deref(), claim.goal), (Some("3 ×"), compared.goal));
        assert_eq!(claim.paper_ratio, Some(3.0));
        assert_eq!(compared.claim("").claim, "overhead: ns ÷ ipp");
        assert_eq!(compared.claim_of(("pb", "none"), "").claim, "overhead: pb ÷ none");
        let alone = ClaimRow::new("worst tick", "a paper", Bound::AtMost(1.0)).unit("ms");
        assert_eq!((&*alone.claim("").claim, &*alone.claim("").unit), ("worst tick", "ms"));
        assert_eq!(alone.claim_of(("ns", ""), "at rest").claim, "ns: worst tick, at rest");
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
