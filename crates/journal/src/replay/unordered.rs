//! Replay in no order: the kept writes, for receivers that put them into order themselves.
//!
//! Each thread takes a segment of a log after the other, and hands each kept write on as soon as it is
//! decoded. Nothing is merged, and no thread waits for another. The cut is known before, so a record is
//! kept or not by its own gsn.

use std::ops::ControlFlow;

use parking_lot::Mutex;
use stillpoint_io::in_parallel;
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::content::{Kept, ReceiveWrites};
use crate::reader::{Chain, InWindow, Logs, Received, ScanError, Walked, damaged_since};

impl Logs {
    /// Hands all kept writes on, with one thread for each receiver. Calls are left out. `told` gets the
    /// bytes that are done, and those in all. Returns the receivers, and the number of commits.
    ///
    /// # Errors
    /// As [`Replay::next_round`](super::Replay::next_round), or an error of a receiver.
    pub fn replay_unordered<R: ReceiveWrites>(
        &self,
        receivers: Vec<R>,
        told: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Received<R>, R::Error> {
        let chains = self.incarnations.iter().flatten().filter(|of| of.kept_gsn > of.base);
        let segments = chains.flat_map(|chain| chain.segments.iter().map(move |of| (chain, of)));
        let mut todo: Vec<(&Chain, &Walked)> =
            segments.filter(|(chain, of)| of.end.last_gsn > chain.base).collect();
        todo.reverse();
        let (todo, total) = (Mutex::new(todo), self.replay_bytes());
        let done = AtomicU64::new(0);
        let work = |mut receiver: R| -> Result<(R, u64), R::Error> {
            let mut commits = 0;
            loop {
                let next = todo.lock().pop();
                let Some((chain, segment)) = next else { return Ok((receiver, commits)) };
                commits += self.hand_on(chain, segment, &mut receiver)?;
                let bytes = segment.end.offset.saturating_sub(segment.begin.offset);
                // Relaxed: a figure for people.
                told(done.fetch_add(bytes, Relaxed) + bytes, total);
            }
        };
        let work = &work;
        let jobs = receivers.into_iter().map(|receiver| move || work(receiver)).collect();
        let mut all = (Vec::new(), 0);
        for worked in in_parallel("replay", jobs).map_err(ScanError::from)? {
            let (receiver, commits) = worked?;
            all.0.push(receiver);
            all.1 += commits;
        }
        Ok(all)
    }

    /// Hands the kept writes of a segment on. Returns the number of commits.
    fn hand_on<R: ReceiveWrites>(
        &self,
        chain: &Chain,
        segment: &Walked,
        receiver: &mut R,
    ) -> Result<u64, R::Error> {
        let kept = Kept {
            log: chain.log,
            gsns: (chain.base, chain.kept_gsn),
            start_epoch: self.start.epoch,
        };
        let (mut commits, mut refused) = (0, None);
        let (place, cause) = segment.file.walk_windows(segment.begin, |come_to| {
            let (batch, at, window) = match come_to {
                InWindow::Batch(batch, at, window) => (batch, at, window),
                InWindow::End(describe) => {
                    receiver.end_window(describe);
                    return Ok(ControlFlow::Continue(()));
                }
            };
            if at.offset >= segment.end.offset || batch.first_gsn() > chain.kept_gsn {
                return Ok(ControlFlow::Break(()));
            }
            match kept.hand_on(&segment.file, (window, batch), receiver) {
                Ok(more) => {
                    commits += more;
                    Ok(ControlFlow::Continue(()))
                }
                Err(error) => {
                    refused = Some(error);
                    Ok(ControlFlow::Break(()))
                }
            }
        })?;
        match (refused, cause) {
            (Some(error), _) => Err(error),
            (None, Some(cause)) if place.offset < segment.end.offset => {
                Err(damaged_since(&segment.file, chain.log, &place, cause).into())
            }
            _ => Ok(commits),
        }
    }
}
