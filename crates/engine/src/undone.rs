//! Undo beyond the cut: what a publication waits for, so that a start finds all before-images. And what
//! a start keeps of its undo.

use std::sync::Arc;

use stillpoint_checkpoint::{UndoneRecord, WriterConfig, write_undone};
use stillpoint_format::LOG_NONE;
use stillpoint_format::part::Codec;
use stillpoint_io::{Clock, Disk};
use stillpoint_recovery::Plan;
use stillpoint_store::Stamp;
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};
use stillpoint_sync::{mutant, planted};

use crate::catalog::Catalog;
use crate::error::Error;

/// For each pair of logs, the last commit of the second that a commit of the first has overwritten. To
/// undo the first commit, a start needs the before-image of the second one, too.
#[derive(Debug)]
pub(crate) struct Overwritten {
    logs: usize,
    /// The gsns, by the first log.
    gsns: Box<[AtomicU64]>,
}

impl Overwritten {
    fn new(logs: u8) -> Self {
        let logs = usize::from(logs);
        Self { logs, gsns: (0..logs * logs).map(|_| AtomicU64::new(0)).collect() }
    }

    /// The notes of so many logs, if their records have before-images.
    pub(crate) fn where_logged(logs_before_images: bool, logs: u8) -> Option<Arc<Self>> {
        logs_before_images.then(|| Arc::new(Self::new(logs)))
    }

    fn of(&self, log: u8) -> &[AtomicU64] {
        &self.gsns[usize::from(log) * self.logs..][..self.logs]
    }

    /// Notes what a commit of a log is about to overwrite.
    pub(crate) fn note(&self, log: u8, stamp: Stamp) {
        if stamp.log() == log {
            return;
        }
        // What a checkpoint has loaded is of no log. Relaxed: who meets the commit in its cell finds the
        // note, since the commit writes the cell later.
        if let Some(last) = self.of(log).get(usize::from(stamp.log()))
            && last.load(Relaxed) < stamp.gsn()
        {
            last.fetch_max(stamp.gsn(), Relaxed);
        }
    }

    /// These commits, and all whose values they have overwritten: the last one of each log.
    pub(crate) fn with_overwritten(&self, met: &[Stamp]) -> Vec<Stamp> {
        let mut last = vec![0; self.logs];
        let mut todo = met.to_vec();
        while let Some(stamp) = todo.pop() {
            let log = usize::from(stamp.log());
            if stamp.log() == LOG_NONE || last[log] >= stamp.gsn() {
                continue;
            }
            last[log] = stamp.gsn();
            let overwritten = (0..LOG_NONE).zip(self.of(stamp.log()));
            // Relaxed: as in `note`.
            let of_log = |(log, gsn): (u8, &AtomicU64)| Stamp::new(gsn.load(Relaxed), log);
            todo.extend(overwritten.map(of_log));
        }
        let stamp = |(log, gsn)| Stamp::new(gsn, log);
        (0..LOG_NONE).zip(last).filter(|(_, gsn)| *gsn > 0).map(stamp).collect()
    }
}

/// What the logs must have before a checkpoint is published that a start may have to undo.
#[derive(Debug)]
pub(crate) struct WriteAhead {
    /// The last commits that a replay takes for decided: they are closed.
    pub(crate) closed: Vec<Stamp>,
    /// The last commits that may have to be undone: they are flushed.
    pub(crate) flushed: Vec<Stamp>,
}

/// Writes a checkpoint of changes with what a recovery has brought back, and adds it to the manifest of
/// the plan. The next start cannot bring it back, since the logs then end at the cut.
///
/// # Errors
/// The disk refuses. The manifest on disk names what it has named.
pub(crate) fn keep(
    disk: &Arc<dyn Disk>,
    clock: &dyn Clock,
    codec: Codec,
    plan: &mut Plan,
    undone: &[UndoneRecord],
) -> Result<(), Error> {
    mutant!(UndoNotKept => return Ok(()));
    let Some(base) = plan.manifest.newest_chain().last().map(|&base| base.clone()) else {
        return Ok(());
    };
    // The MANIFEST counts the serial of the directory before the directory is made.
    let serial = plan.manifest.next_serial;
    plan.manifest.next_serial += 1;
    Catalog::new(disk.clone(), plan.manifest.clone()).publish(|_| ())?;
    let mut config = WriterConfig::new(plan.manifest.store, plan.manifest.hash_seed, serial);
    config.codec = codec;
    let entry = write_undone(disk, clock, &config, (&base, plan.epoch), undone)?;
    plan.manifest.checkpoints.push(entry);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_overwritten_is_followed_from_log_to_log() {
        let all = Overwritten::new(4);
        all.note(0, Stamp::new(7, 1));
        all.note(0, Stamp::new(5, 1));
        all.note(0, Stamp::new(9, 0));
        all.note(0, Stamp::new(9, LOG_NONE));
        all.note(1, Stamp::new(3, 2));
        all.note(2, Stamp::new(2, 0));
        all.note(3, Stamp::new(90, 0));
        let found = all.with_overwritten(&[Stamp::new(8, 0)]);
        assert_eq!(found, [Stamp::new(8, 0), Stamp::new(7, 1), Stamp::new(3, 2)]);
        assert_eq!(all.with_overwritten(&[]), []);
        let of_two = all.with_overwritten(&[Stamp::new(4, 2), Stamp::new(1, LOG_NONE)]);
        assert_eq!(of_two, [Stamp::new(2, 0), Stamp::new(7, 1), Stamp::new(4, 2)]);
    }
}
