//! Judges the agreement of a measured figure with the paper's, in one of five words.

use std::fmt;

use crate::report::result::{Bound, Claim};

/// Largest deviation from the paper's figure that still counts as reproduced.
const TOLERANCE: f64 = 1.1;

/// A figure that is so many times worse than the bound of an order has the opposite direction.
const OPPOSITE: f64 = 10.0;

/// Agreement of a claim with its paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Agreement {
    /// The figure is within 10 % of the paper's, or the order is the paper's.
    Reproduced,
    /// The figure is better than the paper's by more than 10 %.
    Beaten,
    /// The figure has the paper's direction, and is worse by more than 10 %.
    Weaker,
    /// The figure has the opposite direction: the paper's better subject came out worse.
    Reversed,
    /// The paper's figure is no ratio, but a time or share on another machine under another load.
    NotComparable,
}

impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Agreement::Reproduced => "reproduced",
            Agreement::Beaten => "beaten",
            Agreement::Weaker => "weaker",
            Agreement::Reversed => "reversed",
            Agreement::NotComparable => "not comparable",
        })
    }
}

impl Agreement {
    /// All words of agreement, the best first.
    pub(crate) const ALL: [Agreement; 5] = [
        Agreement::Reproduced,
        Agreement::Beaten,
        Agreement::Weaker,
        Agreement::Reversed,
        Agreement::NotComparable,
    ];

    /// The agreement of a claim with its paper. `None` if the paper says nothing of it or nothing was
    /// measured.
    pub(crate) fn of(claim: &Claim) -> Option<Agreement> {
        claim.paper.as_ref()?;
        let measured = claim.measured?;
        if claim.unit != "×" {
            return Some(Agreement::NotComparable);
        }
        // Lower bounds and upper bounds are judged alike: a greater value is better from here on.
        // Nothing is better than a cost of zero, or than a gain in its place.
        let better = |ratio: f64| match claim.bound {
            Bound::AtLeast(_) => ratio,
            Bound::AtMost(_) if ratio <= 0.0 => f64::INFINITY,
            Bound::AtMost(_) => 1.0 / ratio,
        };
        let (measured, limit) = (better(measured), better(claim.bound.limit()));
        let Some(paper) = claim.paper_ratio.map(better) else {
            // The paper gives an order and no number. The bound says how clear the order must be.
            return Some(match measured >= limit {
                true => Agreement::Reproduced,
                false if limit >= 1.0 && measured < 1.0 => Agreement::Reversed,
                false if measured * OPPOSITE < limit => Agreement::Reversed,
                false => Agreement::Weaker,
            });
        };
        Some(if measured > paper * TOLERANCE {
            Agreement::Beaten
        } else if measured >= paper / TOLERANCE {
            Agreement::Reproduced
        } else if measured < 1.0 && paper > 1.0 {
            Agreement::Reversed
        } else {
            Agreement::Weaker
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bound: Bound, paper: Option<f64>, measured: f64) -> Option<Agreement> {
        let claim = Claim { paper_ratio: paper, ..Claim::new("c", "s", bound).paper("words") };
        Agreement::of(&claim.measured(measured))
    }

    #[test]
    fn a_ratio_is_laid_beside_the_papers() {
        let cases = [
            (10.6, Agreement::Beaten),
            (8.4, Agreement::Reproduced),
            (7.7, Agreement::Reproduced),
            (3.0, Agreement::Weaker),
            (0.8, Agreement::Reversed),
        ];
        for (measured, wanted) in cases {
            assert_eq!(of(Bound::AtLeast(1.0), Some(8.4), measured), Some(wanted), "{measured}");
            let inverse = of(Bound::AtMost(1.0), Some(1.0 / 8.4), 1.0 / measured);
            assert_eq!(inverse, Some(wanted), "1 / {measured}");
        }
        // A loss that came out as a gain counts as better; a larger loss counts as weaker.
        assert_eq!(of(Bound::AtLeast(0.8), Some(0.9), 1.4), Some(Agreement::Beaten));
        assert_eq!(of(Bound::AtLeast(0.8), Some(0.9), 0.5), Some(Agreement::Weaker));
        assert_eq!(of(Bound::AtMost(0.6), Some(0.5), -0.3), Some(Agreement::Beaten));
        assert_eq!(of(Bound::AtMost(1.2), None, 0.0), Some(Agreement::Reproduced));
    }

    #[test]
    fn an_order_is_kept_weak_or_turned_round() {
        assert_eq!(of(Bound::AtLeast(10.0), None, 12.0), Some(Agreement::Reproduced));
        assert_eq!(of(Bound::AtLeast(10.0), None, 4.0), Some(Agreement::Weaker));
        assert_eq!(of(Bound::AtLeast(1.0), None, 0.7), Some(Agreement::Reversed));
        assert_eq!(of(Bound::AtMost(1.2), None, 1.1), Some(Agreement::Reproduced));
        assert_eq!(of(Bound::AtMost(1.2), None, 1.5), Some(Agreement::Weaker));
        // No visible drop: half of it is a weaker form, and a stop is the opposite.
        assert_eq!(of(Bound::AtLeast(0.5), None, 0.3), Some(Agreement::Weaker));
        assert_eq!(of(Bound::AtLeast(0.5), None, 0.0), Some(Agreement::Reversed));
        assert_eq!(of(Bound::AtMost(0.5), None, 8.0), Some(Agreement::Reversed));
    }

    #[test]
    fn what_is_no_ratio_cannot_be_compared() {
        let claim = Claim::new("c", "s", Bound::AtMost(8.1)).unit("s");
        assert_eq!(Agreement::of(&claim.clone().measured(1.0)), None, "no paper");
        let claim = claim.paper("8.1 s");
        assert_eq!(Agreement::of(&claim), None, "not measured");
        assert_eq!(Agreement::of(&claim.measured(1.0)), Some(Agreement::NotComparable));
    }
}
