//! The table of checkpoint schemes: one file under `schemes/`, one row here. Parser, help, tests
//! and benchmark matrix follow from the rows. No code asks for the name of a scheme; it asks for
//! capabilities.
//!
//! ```
//! use stillpoint_checkpoint::registry;
//! let row = registry::REGISTRY.find("calc")?;
//! assert!(row.capabilities.takes_checkpoints());
//! let error = registry::REGISTRY.find("clac").unwrap_err();
//! assert!(error.to_string().starts_with("unknown checkpoint scheme \"clac\"; known are: none, naive,"));
//! # Ok::<(), stillpoint_format::registry::UnknownName>(())
//! ```

use std::sync::Arc;

use stillpoint_format::registry::{Named, Registry};
use stillpoint_store::{
    CellRules, Checkpointer, DirtyRule, PointOfConsistency, Reuse, StatusChanges, WriteRule,
};

use crate::schemes::{calc, naive, partial, zigzag};

/// What a scheme can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// How the scheme's point of consistency comes about. `None` if the scheme takes no
    /// checkpoints.
    pub point: Option<PointOfConsistency>,
    /// How the store's cells are laid out, written and reused.
    pub cells: CellRules,
}

impl Capabilities {
    /// Whether checkpoints of this scheme need a log. Without a replay they are no state of the
    /// store.
    pub fn needs_journal(&self) -> bool {
        self.point == Some(PointOfConsistency::Fuzzy)
    }

    /// Whether the memory of a deleted key is kept until a published checkpoint has the deletion.
    pub fn keeps_deleted_keys(&self) -> bool {
        self.cells.reuse == Reuse::WhenClean
    }

    /// Whether the scheme takes checkpoints.
    pub fn takes_checkpoints(&self) -> bool {
        self.point.is_some()
    }

    /// Whether commits wait for the point of consistency.
    pub fn stops_commits(&self) -> bool {
        !matches!(self.point, None | Some(PointOfConsistency::Virtual))
    }
}

/// A scheme, made for one store.
#[derive(Clone)]
pub struct Scheme {
    /// How the store's cells are laid out, written and reused.
    pub cells: CellRules,
    /// The part that takes the checkpoints, if the scheme takes any.
    pub checkpointer: Option<Arc<dyn Checkpointer>>,
}

impl std::fmt::Debug for Scheme {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scheme")
            .field("takes_checkpoints", &self.checkpointer.is_some())
            .finish_non_exhaustive()
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The name in options and figures.
    pub name: &'static str,
    /// Other names that options may use.
    pub aliases: &'static [&'static str],
    /// One line for the help.
    pub about: &'static str,
    /// Paper and section.
    pub source: &'static str,
    /// What the scheme can do.
    pub capabilities: Capabilities,
    /// Makes the part that takes the checkpoints, if the scheme takes any.
    pub checkpointer: fn() -> Option<Arc<dyn Checkpointer>>,
}

impl Row {
    /// Makes the scheme for one store.
    pub fn build(&self) -> Scheme {
        let checkpointer = (self.checkpointer)();
        Scheme { cells: self.capabilities.cells, checkpointer }
    }
}

impl Named for Row {
    fn names(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }

    fn about(&self) -> &'static str {
        self.about
    }
}

/// The scheme of a store whose settings name none.
pub const DEFAULT: &str = "calc:partial";

/// The schemes.
pub static REGISTRY: Registry<Row> = Registry::new(
    "checkpoint scheme",
    &[
        Row {
            name: "none",
            aliases: &[],
            about: "no checkpoints: the baseline",
            source: "CALC, SIGMOD 2016, §5 (baseline of figure 2)",
            capabilities: Capabilities { point: None, cells: CellRules::IN_PLACE },
            checkpointer: || None,
        },
        Row {
            name: "naive",
            aliases: &[],
            about: "stop all commits, copy everything, go on",
            source: "CALC, SIGMOD 2016, §4.1.1",
            capabilities: Capabilities {
                point: Some(PointOfConsistency::PhysicalThroughout),
                cells: CellRules::IN_PLACE,
            },
            checkpointer: naive::checkpointer,
        },
        Row {
            name: "calc",
            aliases: &[],
            about: "nothing stops: the first write after a virtual point of consistency saves the before-image",
            source: "CALC, SIGMOD 2016, §2.2; SIREN, ICDE 2006, §3 (semi-fuzzy output)",
            capabilities: Capabilities {
                point: Some(PointOfConsistency::Virtual),
                cells: CellRules::BEFORE_IMAGES,
            },
            checkpointer: calc::checkpointer,
        },
        Row {
            name: "zigzag",
            aliases: &[],
            about: "two copies of every value: a commit writes the one that the checkpoint does not read",
            source: "Cao et al., SIGMOD 2011, §3.2; CALC, SIGMOD 2016, §4.1.4",
            capabilities: Capabilities {
                point: Some(PointOfConsistency::Physical),
                cells: CellRules {
                    copies: 2,
                    write: WriteRule::SwitchCopies,
                    dirty: DirtyRule::None,
                    status_changes: StatusChanges::WhileQuiesced,
                    reuse: Reuse::OutsideOfCaptures,
                },
            },
            checkpointer: zigzag::checkpointer,
        },
        Row {
            name: "calc:partial",
            aliases: &["pcalc"],
            about: "calc of what has changed since the last checkpoint, and a full one where that costs less",
            source: "CALC, SIGMOD 2016, §2.3",
            capabilities: Capabilities {
                point: Some(PointOfConsistency::Virtual),
                cells: CellRules {
                    dirty: DirtyRule::ByEpoch,
                    status_changes: StatusChanges::InPrepareAndCapture,
                    reuse: Reuse::WhenClean,
                    ..CellRules::BEFORE_IMAGES
                },
            },
            checkpointer: partial::checkpointer,
        },
    ],
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_rows_tell_what_their_schemes_do() {
        for (at, row) in REGISTRY.iter().enumerate() {
            assert!(REGISTRY[..at].iter().all(|other| other.name != row.name));
            assert!(row.names().next() == Some(row.name) && !row.about.is_empty());
            assert_eq!(row.about(), row.about);
            let scheme = row.build();
            let point = scheme.checkpointer.map(|it| it.point_of_consistency());
            assert_eq!(point, row.capabilities.point, "{}", row.name);
            assert_eq!(row.capabilities.takes_checkpoints(), point.is_some(), "{}", row.name);
        }
        let default = REGISTRY.find(DEFAULT).expect("the default has a row");
        assert!(default.capabilities.takes_checkpoints() && !default.capabilities.stops_commits());
    }
}
