//! The cut of the latest incarnation, from what was walked.

use std::ops::ControlFlow;

use stillpoint_sync::planted::{Bug, is_planted};

use super::LogEnd;
use super::chain::Chain;
use super::error::ScanError;
use super::segment::SegmentFile;
use super::walk::{Need, WINDOW_BYTES};
use crate::cut::{FirstUnmet, close, is_met};

/// Shortens the chains to the greatest cut that is closed under dependencies, and tells
/// how each log that has a segment ended.
pub(super) fn cut(chains: &mut [Chain], start_epoch: u64) -> Result<Vec<LogEnd>, ScanError> {
    let mut ends: Vec<u64> = chains.iter().map(|chain| chain.kept_gsn).collect();
    if !is_planted(Bug::CutNotClosed) {
        let mut walks = Walks { chains, start_epoch };
        close(&mut ends, &mut walks)?;
    }
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

struct Walks<'a> {
    chains: &'a [Chain],
    start_epoch: u64,
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
    /// The gsn before the first record of the run with an unmet dependency. What the
    /// checkpoint holds needs nothing any more.
    fn exactly(
        &self,
        chain: &Chain,
        file: &SegmentFile,
        need: &Need,
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
                let held = record.gsn <= chain.base || record.epoch < self.start_epoch;
                if !held && !record.deps().all(|dep| is_met(dep, ends)) {
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
