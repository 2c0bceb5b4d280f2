//! The cut of the latest incarnation, from what was walked.

use std::ops::ControlFlow;

use super::LogEnd;
use super::chain::Chain;
use super::error::ScanError;
use super::segment::SegmentFile;
use super::walk::{Need, WINDOW_BYTES};
use crate::cut::{FirstUnmet, close, is_met};

/// Shortens the chains to the greatest cut that is closed under dependencies, and tells
/// how each log that has a segment ended.
pub(super) fn cut(chains: &mut [Chain]) -> Result<Vec<LogEnd>, ScanError> {
    let mut ends: Vec<u64> = chains.iter().map(|chain| chain.kept_gsn).collect();
    close(&mut ends, &mut Walks(chains))?;
    let mut report = Vec::new();
    for (chain, kept_gsn) in chains.iter_mut().zip(ends) {
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

struct Walks<'a>(&'a [Chain]);

impl FirstUnmet<ScanError> for Walks<'_> {
    fn first_unmet(&mut self, log: usize, ends: &[u64]) -> Result<Option<u64>, ScanError> {
        for segment in &self.0[log].segments {
            for need in &segment.needs {
                if need.from.last_gsn >= ends[log] {
                    return Ok(None);
                }
                if need.deps.iter().any(|&dep| !is_met(dep, ends))
                    && let Some(end) = exactly(&segment.file, need, ends[log], ends)?
                {
                    return Ok(Some(end));
                }
            }
        }
        Ok(None)
    }
}

/// The gsn before the first record of the run, up to `last`, with an unmet dependency.
fn exactly(
    file: &SegmentFile,
    need: &Need,
    last: u64,
    ends: &[u64],
) -> Result<Option<u64>, ScanError> {
    let mut before = need.from.last_gsn;
    let mut found = None;
    file.walk(need.from, WINDOW_BYTES, |batch, _| {
        for record in batch.records() {
            let record = record.map_err(|source| {
                ScanError::Malformed { path: file.shown.clone(), source }
            })?;
            if record.gsn > last || record.gsn > need.last_gsn {
                return Ok(ControlFlow::Break(()));
            }
            if !record.deps().all(|dep| is_met(dep, ends)) {
                found = Some(before);
                return Ok(ControlFlow::Break(()));
            }
            before = record.gsn;
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(found)
}
