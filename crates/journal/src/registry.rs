//! The journals there are. One row, one file below `schemes/`.

use std::sync::Arc;

use crate::error::JournalError;
use crate::journal::{Capabilities, Config, Durability, Environment, Journal};
use crate::schemes::{none, redo};

/// Opens a journal for one incarnation of a store.
pub type Open = fn(&Environment, &Config) -> Result<Arc<dyn Journal>, JournalError>;

/// A journal that can be chosen.
#[derive(Debug)]
pub struct Scheme {
    /// Its name on the command line and in the manifest.
    pub name: &'static str,
    /// What it does, in one line, for help texts.
    pub description: &'static str,
    /// The durabilities that it offers, the default first.
    pub durabilities: &'static [Durability],
    /// What it can do.
    pub capabilities: Capabilities,
    /// Opens it for one incarnation of a store.
    pub open: Open,
}

/// All journals, the default first.
pub static SCHEMES: &[Scheme] = &[redo::SCHEME, none::SCHEME];

/// The journal of that name.
pub fn find(name: &str) -> Option<&'static Scheme> {
    SCHEMES.iter().find(|scheme| scheme.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for scheme in SCHEMES {
            assert!(std::ptr::eq(find(scheme.name).expect("listed"), scheme), "{}", scheme.name);
            assert!(!scheme.durabilities.is_empty() && !scheme.description.is_empty());
        }
        assert!(find("journal").is_none());
    }
}
