//! Tested settings: every scheme of a list with every journal, at each of its durabilities.
//! Combinations that keep nothing after a crash are left out.

use stillpoint::Durability;
use stillpoint_checkpoint::registry::{REGISTRY, Row};
use stillpoint_journal::registry::REGISTRY as JOURNALS;

#[path = "../../../checkpoint/tests/conformance/spikes/mod.rs"]
mod spikes;

pub(crate) use spikes::SPIKES;

/// A scheme, a journal and a durability.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) scheme: &'static str,
    pub(crate) journal: &'static str,
    pub(crate) durability: Durability,
}

impl Setting {
    pub(crate) fn row(&self) -> &'static Row {
        let mut rows = REGISTRY.iter().chain(SPIKES);
        rows.find(|row| row.name == self.scheme).expect("in a list of rows")
    }
}

/// The settings with the schemes of the registry.
pub(crate) fn matrix() -> Vec<Setting> {
    settings_of(REGISTRY.iter())
}

/// The settings with these schemes.
pub(crate) fn settings_of(rows: impl Iterator<Item = &'static Row> + Clone) -> Vec<Setting> {
    let journals = JOURNALS.iter().flat_map(|journal| {
        journal.durabilities.iter().map(move |&durability| (journal, durability))
    });
    let pairs = journals.flat_map(|journal| rows.clone().map(move |row| (row, journal)));
    pairs
        .filter(|(row, (journal, _))| {
            let keeps_commits = journal.capabilities.records_commits;
            let keeps_checkpoints = row.capabilities.takes_checkpoints();
            let repeats_calls = journal.capabilities.logs_calls_alone;
            if repeats_calls && row.capabilities.needs_journal() {
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
