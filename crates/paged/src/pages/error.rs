//! Errors of the page store: which file, slot, page and table, and what to do.

use std::path::PathBuf;

use stillpoint_format::DecodeError;
use stillpoint_format::pages::PageId;
use stillpoint_io::{DiskError, ThreadError};
use stillpoint_mem::RegionError;

/// An error of the page store.
#[derive(Debug, thiserror::Error)]
pub enum PagesError {
    /// The disk refuses a call.
    #[error("{0}")]
    Disk(#[from] DiskError),
    /// A page is damaged, stale, or lies in another page's slot.
    #[error(
        "{}: slot {slot}, page {page}{}: {cause}; restore a backup",
        file.display(),
        table.map(|table| format!(" of table {table}")).unwrap_or_default()
    )]
    Page {
        /// The data file.
        file: PathBuf,
        /// Number of the slot.
        slot: u64,
        /// The page that the map has there.
        page: PageId,
        /// The table that the bytes name, which may be damaged, too.
        table: Option<u16>,
        /// The defect.
        cause: DecodeError,
    },
    /// The map has no such page.
    #[error("{}: page {page} has no slot; put a copy of the data directory back", file.display())]
    NoSuchPage {
        /// The map file.
        file: PathBuf,
        /// Number of the page.
        page: PageId,
    },
    /// A block of the map is damaged in both places.
    #[error("{}: {cause}; its copy is no better; restore a backup", file.display())]
    MapBlock {
        /// The map file.
        file: PathBuf,
        /// The defect.
        cause: DecodeError,
    },
    /// One of two copies of a map block is damaged or torn. A crash may have torn it.
    #[error("{}: {cause}; the other copy is whole, and the next checkpoint mends this one", file.display())]
    MapCopy {
        /// The map file.
        file: PathBuf,
        /// The defect.
        cause: DecodeError,
    },
    /// The map contradicts the MANIFEST, the data file or itself.
    #[error("{}: {reason}; put the file of the same time as MANIFEST back, or restore a backup", file.display())]
    Map {
        /// The file.
        file: PathBuf,
        /// The contradiction.
        reason: String,
    },
    /// A section of the MANIFEST cannot be used. A newer release may have written it.
    #[error(
        "the MANIFEST says {text:?} of a paged table: {reason}; open the store with the release that wrote \
         it, or put a copy of the data directory back"
    )]
    Section {
        /// The section.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// All slots are in use, and the disk has no room for further ones.
    #[error(
        "no room for {wanted} further pages: {reason}; delete records, or give the disk more space"
    )]
    Full {
        /// Number of pages.
        wanted: u64,
        /// The refusal of the disk, or which slots are held back.
        reason: String,
    },
    /// An earlier write or flush failed.
    #[error(
        "an earlier write or flush of pages failed ({0}); stop, check the disk, and restart to recover"
    )]
    Failed(String),
    /// The system refuses memory.
    #[error("{0}")]
    Memory(#[from] RegionError),
    /// The system refuses threads.
    #[error("{0}")]
    Thread(#[from] ThreadError),
}

impl PagesError {
    /// Whether the files are damaged, or contradict each other.
    pub fn is_damage(&self) -> bool {
        match self {
            PagesError::Page { .. }
            | PagesError::NoSuchPage { .. }
            | PagesError::MapBlock { .. }
            | PagesError::MapCopy { .. }
            | PagesError::Section { .. }
            | PagesError::Map { .. } => true,
            PagesError::Disk(error) => error.is_not_found(),
            PagesError::Full { .. }
            | PagesError::Failed(_)
            | PagesError::Memory(_)
            | PagesError::Thread(_) => false,
        }
    }

    /// Whether there is no room. The caller may try again once there is.
    pub fn is_full(&self) -> bool {
        matches!(self, PagesError::Full { .. })
    }
}
