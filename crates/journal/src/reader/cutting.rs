//! Finds the cut of the latest incarnation from the scanned segments.

use std::ops::ControlFlow;

use stillpoint_sync::{mutant, planted};

use super::LogEnd;
use super::chain::Chain;
use super::error::ScanError;
use super::loss::Judge;
use super::segment::SegmentFile;
use super::walk::{Dependency, WINDOW_BYTES};
use crate::cut::{FirstUnmet, close, is_met};

/// Shortens the chains to the greatest cut that is closed under dependencies, and tells
/// how each log that has a segment ended.
pub(super) fn cut(
    chains: &mut [Chain],
    start_epoch: u64,
    (incarnation, ended): (u32, bool),
    judge: &mut Judge,
) -> Result<Vec<LogEnd>, ScanError> {
    let mut ends: Vec<u64> = chains.iter().map(|chain| chain.kept_gsn).collect();
    // A recorded cut was found with the closed positions that batches state, so they need no second
    // look. Such a cut may end a log below a position that lies in a gap between two gsns.
    let seen = if ended { Ok(vec![0; chains.len()]) } else { seen_closed(chains) };
    let nothing = vec![0; chains.len()];
    let (closed, was_closed) = match seen {
        Ok(closed) if !judge.accepts() => (closed, nothing),
        // A record that was once closed may be given up together with a dependency.
        Ok(was_closed) => (nothing, was_closed),
        Err(why) => {
            if let ScanError::Unclosed { log, last_gsn, closed_gsn, .. } = why {
                judge.give_up(why, (incarnation, log), last_gsn, Some(closed_gsn))?;
            }
            (nothing.clone(), nothing)
        }
    };
    // A record does not name dependencies that were closed at its commit. The gsn of a record is
    // greater than those of its dependencies.
    let lost_above = judge.lost_above(incarnation);
    if let Some(lost_above) = lost_above {
        for (end, chain) in ends.iter_mut().zip(&*chains) {
            if *end > lost_above {
                *end = chain.last_gsn_below(lost_above.saturating_add(1))?;
            }
        }
    }
    let mut walks = Walks { chains, start_epoch, closed: &closed };
    mutant!(close(&mut ends, &mut walks)?, CutNotClosed => ());
    let mut report = Vec::new();
    for (chain, kept_gsn) in chains.iter_mut().zip(ends) {
        let is_loss = lost_above.is_some() || kept_gsn < was_closed[usize::from(chain.log)];
        if kept_gsn < chain.kept_gsn && is_loss {
            judge.follow(incarnation, chain.log, kept_gsn, chain.kept_gsn);
        }
        chain.kept_gsn = kept_gsn;
        if let Some(last) = chain.segments.last() {
            report.push(LogEnd {
                log: chain.log,
                valid_gsn: chain.valid_gsn,
                kept_gsn,
                end: Some((last.file.shown.clone(), last.end.offset, last.cause.clone())),
            });
        }
    }
    Ok(report)
}

/// Per log, the closed position that a batch of another log states.
///
/// # Errors
/// A log that ends before this position, since its end was durable and is missing.
fn seen_closed(chains: &[Chain]) -> Result<Vec<u64>, ScanError> {
    let mut seen = vec![0; chains.len()];
    for chain in chains {
        for segment in &chain.segments {
            for mark in &segment.closed {
                let log = usize::from(mark.log);
                if chains.get(log).is_none_or(|other| other.valid_gsn < mark.gsn) {
                    return Err(ScanError::Unclosed {
                        log: mark.log,
                        last_gsn: chains.get(log).map_or(0, |other| other.valid_gsn),
                        closed_gsn: mark.gsn,
                        path: segment.file.shown.clone(),
                    });
                }
                seen[log] = seen[log].max(mark.gsn);
            }
        }
    }
    Ok(seen)
}

struct Walks<'a> {
    chains: &'a [Chain],
    start_epoch: u64,
    /// The gsn up to which records were once closed.
    closed: &'a [u64],
}

impl FirstUnmet<ScanError> for Walks<'_> {
    fn first_unmet(&mut self, log: usize, ends: &[u64]) -> Result<Option<u64>, ScanError> {
        let chain = &self.chains[log];
        for segment in &chain.segments {
            for need in &segment.needs {
                if need.from.last_gsn >= ends[log] {
                    return Ok(None);
                }
                if need.deps.iter().any(|&dep| !is_met(dep, ends))
                    && let Some(end) = self.exactly(chain, &segment.file, need, ends)?
                {
                    return Ok(Some(end));
                }
            }
        }
        Ok(None)
    }
}

impl Walks<'_> {
    /// The gsn before the first record of the run with an unmet dependency. Records in the
    /// checkpoint need no dependencies any more.
    fn exactly(
        &self,
        chain: &Chain,
        file: &SegmentFile,
        need: &Dependency,
        ends: &[u64],
    ) -> Result<Option<u64>, ScanError> {
        let last = need.last_gsn.min(ends[usize::from(chain.log)]);
        let mut before = need.from.last_gsn;
        let mut found = None;
        file.walk(need.from, WINDOW_BYTES, |batch, _| {
            for record in batch.records() {
                let record = record.map_err(|source| file.malformed(source))?;
                if record.gsn > last {
                    return Ok(ControlFlow::Break(()));
                }
                let held = record.gsn <= chain.loaded_gsn || record.epoch < self.start_epoch;
                if !held && let Some(dep) = record.deps().find(|dep| !is_met(*dep, ends)) {
                    if record.gsn <= self.closed[usize::from(chain.log)] {
                        return Err(ScanError::Unclosed {
                            log: dep.log,
                            last_gsn: ends.get(usize::from(dep.log)).copied().unwrap_or(0),
                            closed_gsn: dep.gsn,
                            path: file.shown.clone(),
                        });
                    }
                    found = Some(before);
                    return Ok(ControlFlow::Break(()));
                }
                before = record.gsn;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found)
    }
}
