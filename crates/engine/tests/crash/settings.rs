//! Tested settings: every scheme with every journal, at each of its durabilities.
//! Combinations that keep nothing after a crash are left out.

use stillpoint::Durability;
use stillpoint_checkpoint::registry::{REGISTRY, Row};
use stillpoint_journal::registry::REGISTRY as JOURNALS;

/// A scheme, a journal and a durability.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) scheme: &'static str,
    pub(crate) journal: &'static str,
    pub(crate) durability: Durability,
}

impl Setting {
    pub(crate) fn row(&self) -> &'static Row {
        REGISTRY.find(self.scheme).expect("a row of the registry")
    }
}

/// The settings with the schemes of the registry.
pub(crate) fn matrix() -> Vec<Setting> {
    let journals = JOURNALS.iter().flat_map(|journal| {
        journal.durabilities.iter().map(move |&durability| (journal, durability))
    });
    let pairs = journals.flat_map(|journal| REGISTRY.iter().map(move |row| (row, journal)));
    pairs
        .filter(|(row, (journal, _))| {
            let keeps_commits = journal.capabilities.records_commits;
            let keeps_checkpoints = row.capabilities.takes_checkpoints();
            let repeats_calls = journal.capabilities.logs_calls_alone;
            if repeats_calls && row.capabilities.needs_journal() {
                return false;
            }
            let has_images = journal.capabilities.logs_before_images;
            if row.capabilities.needs_before_images() && !has_images {
                return false;
            }
            keeps_commits || (keeps_checkpoints && !row.capabilities.needs_journal())
        })
        .map(|(row, (journal, durability))| Setting {
            scheme: row.name,
            journal: journal.name,
            durability,
        })
        .collect()
}
