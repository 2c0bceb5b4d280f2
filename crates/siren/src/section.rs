//! What the MANIFEST says about a table of the kind.

use stillpoint_format::siren::Extent;

/// A section of the MANIFEST: the place of the directory that has the table's pages. All sections of one
/// checkpoint are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Section {
    /// The checkpoint holds all operations up to this level.
    pub(crate) level: u64,
    /// A number above those of all transactions in the checkpoint.
    pub(crate) next_transaction: u64,
    /// The disk pages of the directory.
    pub(crate) directory: Extent,
    /// Bytes of the directory.
    pub(crate) bytes: u64,
}

impl Section {
    pub(crate) fn write(&self) -> String {
        let Self { level, next_transaction, directory: Extent { first, pages }, bytes } = self;
        format!("level={level} transaction={next_transaction} directory={first}+{pages}:{bytes}")
    }

    /// The section in a text. `None` if the text is no section.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let mut part = |name: &str| parts.next()?.strip_prefix(name)?.strip_prefix('=');
        let (level, next_transaction) = (part("level")?.parse().ok()?, part("transaction")?);
        let next_transaction = next_transaction.parse().ok()?;
        let (place, bytes) = part("directory")?.split_once(':')?;
        let (first, pages) = place.split_once('+')?;
        let directory = Extent { first: first.parse().ok()?, pages: pages.parse().ok()? };
        if !directory.is_possible() {
            return None;
        }
        let section = Self { level, next_transaction, directory, bytes: bytes.parse().ok()? };
        parts.next().is_none().then_some(section)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_the_same_after_writing() {
        let directory = Extent { first: 4, pages: 2 };
        let section = Section { level: 7, next_transaction: u64::MAX, directory, bytes: 90 };
        assert_eq!(Section::read(&section.write()), Some(section));
        for text in [
            "",
            "level=7",
            "level=7 transaction=1 directory=4+2",
            "level=7 transaction=1 directory=4294967295+2:9",
            "level=7 transaction=1 directory=4+2:9 x",
        ] {
            assert_eq!(Section::read(text), None, "{text:?}");
        }
    }
}
