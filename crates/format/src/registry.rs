//! Registries: tables of choices by name, for options, the MANIFEST and figures.
//!
//! One table each for checkpoint schemes, journals, state schemes, codecs and experiments. Option
//! parsers, help texts, tests and matrices go through the rows.
//!
//! ```
//! use stillpoint_format::registry::{Named, Registry};
//!
//! struct Fruit(&'static str);
//!
//! impl Named for Fruit {
//!     fn names(&self) -> impl Iterator<Item = &'static str> {
//!         std::iter::once(self.0)
//!     }
//!     fn about(&self) -> &'static str {
//!         "grows on trees"
//!     }
//! }
//!
//! static FRUITS: Registry<Fruit> = Registry::new("fruit", &[Fruit("apple"), Fruit("pear")]);
//! assert_eq!(FRUITS.find("pear")?.0, "pear");
//! let unknown = FRUITS.find("plum").map(|_| ()).unwrap_err();
//! assert_eq!(unknown.to_string(), "unknown fruit \"plum\"; known are: apple, pear");
//! # Ok::<(), stillpoint_format::registry::UnknownName>(())
//! ```

use std::ops::Deref;

/// A row of a registry.
pub trait Named {
    /// The names under which the row can be chosen, the usual one first.
    fn names(&self) -> impl Iterator<Item = &'static str>;

    /// One line for the help.
    fn about(&self) -> &'static str;
}

/// A table of choices by name. The table dereferences to a slice of its rows.
#[derive(Debug)]
pub struct Registry<R: 'static> {
    what: &'static str,
    rows: &'static [R],
}

impl<R> Registry<R> {
    /// A table. `what` says what one row is, for messages.
    pub const fn new(what: &'static str, rows: &'static [R]) -> Self {
        Registry { what, rows }
    }
}

impl<R: Named> Registry<R> {
    /// The row of that name.
    ///
    /// # Errors
    /// [`UnknownName`], whose text lists the names that are known.
    pub fn find(&self, name: &str) -> Result<&'static R, UnknownName> {
        let row = self.rows.iter().find(|row| row.names().any(|known| known == name));
        row.ok_or_else(|| UnknownName {
            what: self.what,
            name: name.to_owned(),
            known: self.names().collect(),
        })
    }

    /// All names, those of a row after each other.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.rows.iter().flat_map(Named::names)
    }

    /// The usual name of each row with its line for the help.
    pub fn help(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.rows.iter().filter_map(|row| Some((row.names().next()?, row.about())))
    }
}

impl<R> Deref for Registry<R> {
    type Target = [R];

    fn deref(&self) -> &[R] {
        self.rows
    }
}

impl<R> IntoIterator for &Registry<R> {
    type Item = &'static R;
    type IntoIter = std::slice::Iter<'static, R>;

    fn into_iter(self) -> Self::IntoIter {
        self.rows.iter()
    }
}

/// A name that is in no row.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {what} {name:?}; known are: {}", known.join(", "))]
pub struct UnknownName {
    /// The kind of thing that was asked for.
    pub what: &'static str,
    /// The name.
    pub name: String,
    /// The known names.
    pub known: Vec<&'static str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Shape(&'static [&'static str]);

    impl Named for Shape {
        fn names(&self) -> impl Iterator<Item = &'static str> {
            self.0.iter().copied()
        }
        fn about(&self) -> &'static str {
            "flat"
        }
    }

    static SHAPES: Registry<Shape> =
        Registry::new("shape", &[Shape(&["square", "box"]), Shape(&["circle"])]);

    #[test]
    fn every_name_of_a_row_finds_it() {
        for (name, row) in [("square", 0), ("box", 0), ("circle", 1)] {
            let found = SHAPES.find(name).unwrap_or_else(|unknown| panic!("{unknown}"));
            assert!(std::ptr::eq(found, &raw const SHAPES[row]), "{name}");
        }
        assert_eq!(SHAPES.names().collect::<Vec<_>>(), ["square", "box", "circle"]);
        let help: Vec<_> = SHAPES.help().collect();
        assert_eq!(help, [("square", "flat"), ("circle", "flat")]);
        assert_eq!((SHAPES.len(), SHAPES.into_iter().count()), (2, 2));
    }

    #[test]
    fn a_name_is_matched_as_a_whole() {
        for name in ["", "squ", "Square", "circle "] {
            let unknown = SHAPES.find(name).map(|_| ()).expect_err("in no row");
            let text = format!("unknown shape {name:?}; known are: square, box, circle");
            assert_eq!(unknown.to_string(), text);
        }
    }
}
