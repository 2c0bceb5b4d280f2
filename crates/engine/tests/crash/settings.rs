//! Tested settings: every scheme of the registry with every journal, at each of its durabilities.
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
        REGISTRY.find(self.scheme).expect("in the registry")
    }
}

/// All settings.
pub(crate) fn matrix() -> Vec<Setting> {
    let journals = JOURNALS.iter().flat_map(|journal| {
        journal.durabilities.iter().map(move |&durability| (journal, durability))
    });
    let pairs = journals.flat_map(|journal| REGISTRY.iter().map(move |row| (row, journal)));
    pairs
        .filter(|(row, (journal, _))| {
            let keeps_commits = journal.capabilities.records_commits;
            keeps_commits || row.capabilities.takes_checkpoints()
        })
        .map(|(row, (journal, durability))| Setting {
            scheme: row.name,
            journal: journal.name,
            durability,
        })
        .collect()
}
