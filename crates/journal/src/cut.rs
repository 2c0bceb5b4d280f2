//! The greatest set of per-log prefixes that is closed under dependencies.
//!
//! After a crash each log has a valid prefix. A record in such a prefix may depend on a record that
//! is lost in another log. Then this record is lost too. So are all later records of its log, and
//! the records that depend on any of these. The algorithm starts from the valid prefixes and
//! shortens them wherever a dependency is missing, until nothing changes. Every closed set survives
//! each shortening, so the result is the greatest closed set.

use stillpoint_format::LogGsn;

/// Looks in log `log` for the first record with gsn ≤ `ends[log]` that depends on a (k, h) with h >
/// `ends[k]`. Returns the gsn of the record before the found one: with that record the log must
/// end.
pub(crate) trait FirstUnmet<E> {
    fn first_unmet(&mut self, log: usize, ends: &[u64]) -> Result<Option<u64>, E>;
}

/// Shortens the prefixes that end at `ends` to the greatest closed ones.
pub(crate) fn close<E>(ends: &mut [u64], records: &mut impl FirstUnmet<E>) -> Result<(), E> {
    loop {
        let mut shortened = false;
        for log in 0..ends.len() {
            if let Some(end) = records.first_unmet(log, ends)? {
                debug_assert!(end < ends[log], "a cut only shortens");
                ends[log] = end;
                shortened = true;
            }
        }
        if !shortened {
            return Ok(());
        }
    }
}

/// Whether prefixes that end at `ends` meet a dependency. A log without a prefix holds nothing.
pub(crate) fn is_met(dep: LogGsn, ends: &[u64]) -> bool {
    ends.get(usize::from(dep.log)).is_some_and(|&end| dep.gsn <= end)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    /// Per log, its records: gsn and dependencies.
    type Records = Vec<Vec<(u64, Vec<LogGsn>)>>;

    struct InMemory<'a>(&'a Records);

    impl FirstUnmet<Infallible> for InMemory<'_> {
        fn first_unmet(&mut self, log: usize, ends: &[u64]) -> Result<Option<u64>, Infallible> {
            let mut before = 0;
            for (gsn, deps) in self.0[log].iter().filter(|record| record.0 <= ends[log]) {
                if !deps.iter().all(|&dep| is_met(dep, ends)) {
                    return Ok(Some(before));
                }
                before = *gsn;
            }
            Ok(None)
        }
    }

    fn is_closed(records: &Records, ends: &[u64]) -> bool {
        (0..records.len()).all(|log| {
            let mut kept = records[log].iter().filter(|record| record.0 <= ends[log]);
            kept.all(|(_, deps)| deps.iter().all(|&dep| is_met(dep, ends)))
        })
    }

    /// The greatest closed tuple of prefixes within `valid`, by brute force over all tuples.
    fn oracle(records: &Records, valid: &[u64]) -> Vec<u64> {
        let choices = |log: usize| {
            let gsns = records[log].iter().map(|record| record.0);
            let mut ends: Vec<u64> = gsns.filter(|&gsn| gsn <= valid[log]).collect();
            ends.insert(0, 0);
            ends
        };
        let mut tuples: Vec<Vec<u64>> = vec![Vec::new()];
        for log in 0..records.len() {
            let extend = |tuple: &Vec<u64>| {
                let tuple = tuple.clone();
                choices(log).into_iter().map(move |end| [&tuple[..], &[end]].concat())
            };
            tuples = tuples.iter().flat_map(extend).collect();
        }
        tuples.retain(|ends| is_closed(records, ends));
        // Closed sets are closed under union, so the one with the greatest sum is the greatest.
        tuples.into_iter().max_by_key(|ends| ends.iter().sum::<u64>()).expect("the empty set")
    }

    /// Up to 4 logs of up to 5 records; dependencies go to smaller gsns of other logs.
    fn histories() -> impl Strategy<Value = (Records, Vec<usize>)> {
        let step = (0usize..4, prop::collection::vec(any::<prop::sample::Index>(), 0..3));
        let steps = prop::collection::vec(step, 0..16);
        (1usize..=4, steps, prop::collection::vec(0usize..6, 4)).prop_map(|(logs, steps, lost)| {
            let mut records: Records = vec![Vec::new(); logs];
            let mut all: Vec<LogGsn> = Vec::new();
            for (gsn, (log, wanted)) in (1..).zip(steps) {
                let log = log % logs;
                if records[log].len() == 5 {
                    continue;
                }
                let mut deps: Vec<LogGsn> =
                    wanted.iter().filter(|_| !all.is_empty()).map(|at| *at.get(&all)).collect();
                deps.retain(|dep| usize::from(dep.log) != log);
                records[log].push((gsn, deps));
                all.push(LogGsn { log: log as u8, gsn });
            }
            (records, lost)
        })
    }

    proptest! {
        #[test]
        fn the_cut_is_the_greatest_closed_set((records, lost) in histories()) {
            let valid: Vec<u64> = records.iter().zip(&lost).map(|(of, &lost)| {
                let kept = of.len().saturating_sub(lost);
                kept.checked_sub(1).map_or(0, |last| of[last].0)
            }).collect();
            let mut ends = valid.clone();
            let Ok(()) = close(&mut ends, &mut InMemory(&records));
            prop_assert!(is_closed(&records, &ends));
            prop_assert_eq!(ends, oracle(&records, &valid));
        }
    }

    #[test]
    fn two_hops_fall_together() {
        let on = |log, gsn| vec![LogGsn { log, gsn }];
        let records =
            vec![vec![(1, vec![])], vec![(2, on(0, 1))], vec![(3, on(1, 2)), (4, vec![])]];
        let mut ends = vec![0, 2, 4];
        let Ok(()) = close(&mut ends, &mut InMemory(&records));
        assert_eq!(ends, [0, 0, 0]);
    }
}
