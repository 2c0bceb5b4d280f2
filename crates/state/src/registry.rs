//! The table of schemes. Each scheme is one file under `schemes/` and one row in `schemes/mod.rs`,
//! with its layouts and the papers' names for them. A name selects scheme and layout when a program starts. From there
//! on all code is specialised for the two.
//!
//! ```
//! use stillpoint_state::{Arrays, Scheme, registry};
//! /// A program that runs with any scheme.
//! struct Sum(u64);
//! impl registry::Program for Sum {
//!     type Output = u64;
//!     fn run<S: Scheme>(self) -> u64 {
//!         let mut builder = Arrays::<S>::builder();
//!         let cells = builder.array::<u64>("cells", 10);
//!         let mut arrays = builder.build().expect("memory");
//!         for index in 0..10 {
//!             arrays.write(cells, index, self.0);
//!         }
//!         arrays.iter(cells).sum()
//!     }
//! }
//! assert_eq!(registry::run("ipp", Sum(7))?, 70);
//! let error = registry::run("izp", Sum(7)).unwrap_err();
//! assert!(error.to_string().starts_with("unknown state scheme \"izp\"; known are: none, ns,"));
//! # Ok::<(), stillpoint_format::registry::UnknownName>(())
//! ```

use stillpoint_format::registry::Named;
use stillpoint_io::{WrittenPages, WrittenPagesError};

use crate::grid::CellRequirements;
use crate::scheme::{Content, Scheme};
pub use crate::schemes::{REGISTRY, run};

/// A program that can run with any scheme.
pub trait Program {
    /// The result of the program.
    type Output;
    /// Runs the program with this scheme.
    fn run<S: Scheme>(self) -> Self::Output;
}

/// A layout that a scheme may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutRow {
    /// The name of scheme and layout in options and figures: the papers' name, if the papers have one.
    pub name: &'static str,
    /// The layout's own name.
    pub layout: &'static str,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The name of the scheme in words.
    pub scheme: &'static str,
    /// One line for the help.
    pub about: &'static str,
    /// Paper and section.
    pub source: &'static str,
    /// Whether a capture holds all cells or changes.
    pub content: Content,
    /// True if the tick at which a capture begins costs the same for every size of the state.
    pub has_constant_tick: bool,
    /// The scheme's layouts. The first one is the best for most loads.
    pub layouts: &'static [LayoutRow],
    pub(crate) needs: fn(usize) -> CellRequirements,
}

impl Row {
    /// Copies and marks that the scheme needs for cells of `cell_bytes` bytes.
    pub fn needs(&self, cell_bytes: usize) -> CellRequirements {
        (self.needs)(cell_bytes)
    }

    /// Checks that this system offers the calls that the scheme needs.
    ///
    /// # Errors
    /// The reason why arrays of the scheme cannot be made on this system.
    pub fn check_system(&self) -> Result<(), WrittenPagesError> {
        if self.needs(1).tracks_writes { WrittenPages::check() } else { Ok(()) }
    }
}

/// The names of the schemes that work on this system.
pub fn names_here() -> impl Iterator<Item = &'static str> {
    let here = REGISTRY.iter().filter(|row| row.check_system().is_ok());
    here.flat_map(|row| row.layouts).map(|layout| layout.name)
}

impl Named for Row {
    fn names(&self) -> impl Iterator<Item = &'static str> {
        self.layouts.iter().map(|layout| layout.name)
    }

    fn about(&self) -> &'static str {
        self.about
    }
}

macro_rules! registry {
    ($( {
        scheme: $scheme:literal,
        about: $about:literal,
        source: $source:literal,
        constant_tick: $constant:literal,
        run: $module:ident :: $type:ident,
        layouts: { $( $name:literal => $layout:ident ),+ $(,)? },
    } )+) => {
        /// The schemes.
        pub static REGISTRY: Registry<Row> = Registry::new("state scheme", &[ $(
            Row {
                scheme: $scheme,
                about: $about,
                source: $source,
                content: <$module::$type<Naive> as Scheme>::CONTENT,
                has_constant_tick: $constant,
                layouts: &[ $( LayoutRow {
                    name: $name,
                    layout: <$layout as Layout>::NAME,
                } ),+ ],
                needs: <$module::$type<Naive> as Scheme>::needs,
            }
        ),+ ]);

        /// Runs a program with the scheme and layout of that name.
        ///
        /// # Errors
        /// [`UnknownName`], whose text lists the names that are known.
        pub fn run<P: Program>(name: &str, program: P) -> Result<P::Output, UnknownName> {
            REGISTRY.find(name)?;
            Ok(match name {
                $( $( $name => program.run::<$module::$type<$layout>>(), )+ )+
                _ => unreachable!("the rows are those of the table"),
            })
        }
    };
}

pub(crate) use registry;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    struct ContentOf(&'static str);

    impl Program for ContentOf {
        type Output = Content;
        fn run<S: Scheme>(self) -> Content {
            assert!(!self.0.is_empty());
            S::CONTENT
        }
    }

    #[test]
    fn names_are_unique_and_lead_to_their_scheme() {
        let all: BTreeSet<&str> = REGISTRY.names().collect();
        assert_eq!(all.len(), REGISTRY.names().count());
        for name in REGISTRY.names() {
            let row = REGISTRY.find(name).expect("it is in the table");
            assert_eq!(run(name, ContentOf(name)), Ok(row.content), "{name}");
            let keeps_copies = !matches!(row.scheme, "none" | "fork");
            assert_eq!(row.needs(8).copies > 1, keeps_copies, "{name}");
        }
    }
}
