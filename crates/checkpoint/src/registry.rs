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

use crate::schemes::{
    calc, calc_stored, cou, fork, fuzzy, fuzzy_undo, hourglass, naive, partial, piggyback,
    ping_pong, zigzag,
};

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
    /// The scheme's form of changes: commits mark what they write, and a deleted key keeps its cell
    /// until a published checkpoint has the deletion.
    const fn of_changes(mut self) -> Self {
        self.cells.dirty = DirtyRule::ByEpoch;
        self.cells.status_changes = StatusChanges::InPrepareAndCapture;
        self.cells.reuse = match (self.cells.reuse, self.cells.write) {
            (Reuse::OutsideOfCheckpoints, _) => Reuse::WhenCleanOutsideOfCheckpoints,
            // A commit that overwrites what the checkpoint lacks marks the record as taken.
            (Reuse::Always, _) | (_, WriteRule::KeepShadow | WriteRule::StoreStable) => {
                Reuse::WhenClean
            }
            _ => Reuse::WhenCleanOutsideOfCaptures,
        };
        self
    }

    /// Whether checkpoints of this scheme need a log. Without a replay they are no state of the
    /// store.
    pub fn needs_journal(&self) -> bool {
        self.point.is_some_and(PointOfConsistency::is_fuzzy)
    }

    /// Whether a start may have to undo commits that a checkpoint of this scheme holds. Then the log
    /// must have before-images.
    pub fn needs_before_images(&self) -> bool {
        self.point == Some(PointOfConsistency::FuzzyUndone)
    }

    /// Whether checkpoints of a chain can be merged. A merge keeps no stamps, which fuzzy ones need.
    pub fn may_merge(&self) -> bool {
        !self.needs_journal()
    }

    /// Whether the memory of a deleted key is kept until a published checkpoint has the deletion.
    pub fn keeps_deleted_keys(&self) -> bool {
        self.cells.reuse.waits_for_deletions()
    }

    /// Whether the scheme takes checkpoints.
    pub fn takes_checkpoints(&self) -> bool {
        self.point.is_some()
    }

    /// Whether commits wait for the point of consistency.
    pub fn stops_commits(&self) -> bool {
        self.point.is_some_and(PointOfConsistency::stops_commits)
    }

    /// Whether commits wait for the whole capture. Such a capture has no pace.
    pub fn stops_throughout(&self) -> bool {
        self.point == Some(PointOfConsistency::PhysicalThroughout)
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

const NAIVE: Capabilities = Capabilities {
    point: Some(PointOfConsistency::PhysicalThroughout),
    cells: CellRules::IN_PLACE,
};

const CALC: Capabilities =
    Capabilities { point: Some(PointOfConsistency::Virtual), cells: CellRules::BEFORE_IMAGES };

const CALC_STORED: Capabilities = Capabilities {
    point: Some(PointOfConsistency::Virtual),
    cells: CellRules {
        write: WriteRule::StoreStable,
        reuse: Reuse::OutsideOfCaptures,
        ..CellRules::BEFORE_IMAGES
    },
};

const COPY_ON_UPDATE: Capabilities = Capabilities {
    point: Some(PointOfConsistency::Physical),
    cells: CellRules {
        copies: 2,
        write: WriteRule::KeepShadow,
        dirty: DirtyRule::None,
        status_changes: StatusChanges::InCapture,
        reuse: Reuse::OutsideOfCaptures,
    },
};

const ZIGZAG: Capabilities = Capabilities {
    point: Some(PointOfConsistency::Physical),
    cells: CellRules {
        copies: 2,
        write: WriteRule::SwitchCopies,
        dirty: DirtyRule::None,
        status_changes: StatusChanges::WhileQuiesced,
        reuse: Reuse::OutsideOfCaptures,
    },
};

const PING_PONG: Capabilities = Capabilities {
    point: Some(PointOfConsistency::Physical),
    cells: CellRules {
        copies: 4,
        write: WriteRule::WriteBoth,
        dirty: DirtyRule::None,
        status_changes: StatusChanges::InCapture,
        reuse: Reuse::WhenMerged,
    },
};

const FUZZY: Capabilities = Capabilities {
    point: Some(PointOfConsistency::Fuzzy),
    cells: CellRules { reuse: Reuse::OutsideOfCheckpoints, ..CellRules::IN_PLACE },
};

const FUZZY_UNDO: Capabilities =
    Capabilities { point: Some(PointOfConsistency::FuzzyUndone), ..FUZZY };

/// The cells of hourglass and piggyback.
const ALTERNATING: CellRules = CellRules {
    copies: 2,
    write: WriteRule::AlternateCopies,
    dirty: DirtyRule::None,
    status_changes: StatusChanges::InPrepareAndCapture,
    reuse: Reuse::OutsideOfCaptures,
};

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
            aliases: &["naive:full"],
            about: "stop all commits, copy everything, go on",
            source: "CALC, SIGMOD 2016, §4.1.1",
            capabilities: NAIVE,
            checkpointer: naive::checkpointer,
        },
        Row {
            name: "naive:partial",
            aliases: &["pnaive"],
            about: "naive of what has changed since the last checkpoint",
            source: "CALC, SIGMOD 2016, §4.1.1 (pNaive)",
            capabilities: NAIVE.of_changes(),
            checkpointer: naive::of_changes,
        },
        Row {
            name: "calc",
            aliases: &["calc:full"],
            about: "nothing stops: the first write after a virtual point of consistency saves the before-image",
            source: "CALC, SIGMOD 2016, §2.2; SIREN, ICDE 2006, §3 (semi-fuzzy output)",
            capabilities: CALC,
            checkpointer: calc::checkpointer,
        },
        Row {
            name: "calc:partial",
            aliases: &["pcalc"],
            about: "calc of what has changed since the last checkpoint, and a full one where that costs less",
            source: "CALC, SIGMOD 2016, §2.3",
            capabilities: CALC.of_changes(),
            checkpointer: partial::checkpointer,
        },
        Row {
            name: "calc-stored",
            aliases: &["calc-stored:full"],
            about: "calc as published: the first write after the point stores the old value in a reserved pool",
            source: "CALC, SIGMOD 2016, §2.2 and §5.1.6",
            capabilities: CALC_STORED,
            checkpointer: calc_stored::checkpointer,
        },
        Row {
            name: "calc-stored:partial",
            aliases: &["pcalc-stored"],
            about: "calc-stored of what has changed since the last checkpoint",
            source: "CALC, SIGMOD 2016, §2.3 and §5.1.6",
            capabilities: CALC_STORED.of_changes(),
            checkpointer: calc_stored::of_changes,
        },
        Row {
            name: "cou",
            aliases: &["cou:full"],
            about: "two copies: the first write after a stop copies the old value to a shadow in the cell",
            source: "CALC, SIGMOD 2016, §4.1.2; Cao et al., SIGMOD 2011, §2.3",
            capabilities: COPY_ON_UPDATE,
            checkpointer: cou::checkpointer,
        },
        Row {
            name: "cou:partial",
            aliases: &["pcou"],
            about: "cou of what has changed since the last checkpoint",
            source: "CALC, SIGMOD 2016, §4.1.2",
            capabilities: COPY_ON_UPDATE.of_changes(),
            checkpointer: cou::of_changes,
        },
        Row {
            name: "zigzag",
            aliases: &["zigzag:full"],
            about: "two copies of every value: a commit writes the one that the checkpoint does not read",
            source: "Cao et al., SIGMOD 2011, §3.2; CALC, SIGMOD 2016, §4.1.4",
            capabilities: ZIGZAG,
            checkpointer: zigzag::checkpointer,
        },
        Row {
            name: "zigzag:partial",
            aliases: &["pzigzag"],
            about: "zigzag of what has changed since the last checkpoint",
            source: "CALC, SIGMOD 2016, §4.1.4 (pZigzag)",
            capabilities: ZIGZAG.of_changes(),
            checkpointer: zigzag::of_changes,
        },
        Row {
            name: "ping-pong",
            aliases: &["ping-pong:full", "ipp"],
            about: "four copies: every write goes to two, and the checkpoint merges one of them into an image",
            source: "Cao et al., SIGMOD 2011, §3.3; CALC, SIGMOD 2016, §4.1.3",
            capabilities: PING_PONG,
            checkpointer: ping_pong::checkpointer,
        },
        Row {
            name: "ping-pong:partial",
            aliases: &["pipp"],
            about: "three copies: every write goes to two, and the checkpoint has one of them",
            source: "Cao et al., SIGMOD 2011, §3.3; CALC, SIGMOD 2016, §4.1.3 (pIPP)",
            capabilities: Capabilities {
                cells: CellRules { copies: 3, write: WriteRule::WriteAlongside, ..PING_PONG.cells },
                ..PING_PONG
            }
            .of_changes(),
            checkpointer: ping_pong::of_changes,
        },
        Row {
            name: "fork",
            aliases: &["fork:full"],
            about: "a forked child holds the memory of a stop, and the system copies what is written",
            source: "Li et al., ICDE 2018, §II-A.2; Redis",
            capabilities: Capabilities {
                point: Some(PointOfConsistency::Physical),
                cells: CellRules::IN_PLACE,
            },
            checkpointer: fork::checkpointer,
        },
        Row {
            name: "hourglass",
            aliases: &["hourglass:partial", "hg"],
            about: "two copies: commits write that of their epoch, and the checkpoint has the changes of the last one",
            source: "Li et al., ICDE 2018, §III-A",
            capabilities: Capabilities {
                point: Some(PointOfConsistency::Virtual),
                cells: ALTERNATING,
            }
            .of_changes(),
            checkpointer: hourglass::checkpointer,
        },
        Row {
            name: "piggyback",
            aliases: &["piggyback:full", "pb"],
            about: "two copies: commits write that of their epoch; after the checkpoint a copier brings over the rest",
            source: "Li et al., ICDE 2018, §III-B",
            capabilities: Capabilities {
                point: Some(PointOfConsistency::Virtual),
                cells: CellRules { status_changes: StatusChanges::AtAnyTime, ..ALTERNATING },
            },
            checkpointer: piggyback::checkpointer,
        },
        Row {
            name: "fuzzy",
            aliases: &["fuzzy:full"],
            about: "nothing stops and nothing is saved; a start replays the log from the begin of the checkpoint",
            source: "Hagmann, IEEE ToC 1986, §3",
            capabilities: FUZZY,
            checkpointer: fuzzy::checkpointer,
        },
        Row {
            name: "fuzzy:partial",
            aliases: &[],
            about: "fuzzy of what has changed since the last checkpoint",
            source: "Hagmann, IEEE ToC 1986, §3; CALC, SIGMOD 2016, §2.3 (marks)",
            capabilities: FUZZY.of_changes(),
            checkpointer: fuzzy::of_changes,
        },
        Row {
            name: "fuzzy-undo",
            aliases: &["fuzzy-undo:full"],
            about: "fuzzy as published: commits stop for its tables, and a start undoes what a crash took away",
            source: "CALC, SIGMOD 2016, §4.1.2; ARIES, TODS 1992, §5.4",
            capabilities: FUZZY_UNDO,
            checkpointer: fuzzy_undo::checkpointer,
        },
        Row {
            name: "fuzzy-undo:partial",
            aliases: &["pfuzzy"],
            about: "fuzzy-undo of what has changed since the last checkpoint",
            source: "CALC, SIGMOD 2016, §4.1.2 (pFuzzy)",
            capabilities: FUZZY_UNDO.of_changes(),
            checkpointer: fuzzy_undo::of_changes,
        },
    ],
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_rows_tell_what_their_schemes_do() {
        for (at, row) in REGISTRY.iter().enumerate() {
            let names: Vec<_> = REGISTRY[..at].iter().flat_map(|row| row.names()).collect();
            assert!(row.names().all(|name| !names.contains(&name)), "{}", row.name);
            assert!(row.names().next() == Some(row.name) && !row.about.is_empty());
            assert_eq!(row.about(), row.about);
            let scheme = row.build();
            let takes_changes = scheme.checkpointer.as_ref().map(|it| it.takes_changes());
            let marks = row.capabilities.cells.dirty == DirtyRule::ByEpoch;
            assert_eq!(takes_changes.unwrap_or(false), marks, "{}", row.name);
            let point = scheme.checkpointer.map(|it| it.point_of_consistency());
            assert_eq!(point, row.capabilities.point, "{}", row.name);
            assert_eq!(row.capabilities.takes_checkpoints(), point.is_some(), "{}", row.name);
        }
        let default = REGISTRY.find(DEFAULT).expect("the default has a row");
        assert!(default.capabilities.takes_checkpoints() && !default.capabilities.stops_commits());
    }
}
