//! The journals. Each has one row here and one file below `schemes/`.

use std::sync::Arc;

use stillpoint_format::registry::{Named, Registry};

use crate::error::JournalError;
use crate::journal::{Capabilities, Config, Durability, Environment, Journal};
use crate::schemes::{command, none, redo, undo_redo};

/// Opens a journal for one incarnation of a store.
pub type Open = fn(&Environment, &Config) -> Result<Arc<dyn Journal>, JournalError>;

/// A row of the registry: one journal.
#[derive(Debug)]
pub struct Row {
    /// The journal's name on the command line and in the manifest.
    pub name: &'static str,
    /// One line for the help.
    pub about: &'static str,
    /// The durabilities that the journal offers, the default first.
    pub durabilities: &'static [Durability],
    /// Capabilities of the journal.
    pub capabilities: Capabilities,
    /// Opens the journal for one incarnation of a store.
    pub open: Open,
}

impl Named for Row {
    fn names(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name)
    }

    fn about(&self) -> &'static str {
        self.about
    }
}

/// All journals, the default first.
pub static REGISTRY: Registry<Row> =
    Registry::new("journal", &[redo::ROW, undo_redo::ROW, command::ROW, none::ROW]);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for row in &REGISTRY {
            assert!(std::ptr::eq(REGISTRY.find(row.name).expect("listed"), row), "{}", row.name);
            assert!(!row.durabilities.is_empty() && !row.about.is_empty());
            assert_eq!(row.about(), row.about);
        }
        let names = REGISTRY.iter().flat_map(|row| row.durabilities).map(|it| it.as_str());
        assert_eq!(
            names.collect::<Vec<_>>(),
            ["relaxed", "strict", "relaxed", "strict", "relaxed", "strict", "checkpoint"]
        );
        let unknown = REGISTRY.find("journal").expect_err("no row").to_string();
        assert_eq!(
            unknown,
            "unknown journal \"journal\"; known are: redo, undo-redo, command, none"
        );
    }
}
