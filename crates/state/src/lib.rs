//! Arrays of plain data with one mutator and ticks, for games, simulations and trading: captured
//! while they change, by the schemes of two papers. Knows no transactions.
//!
//! | paper | schemes |
//! |---|---|
//! | "Fast Checkpoint Recovery Algorithms for Frequently Consistent Applications", SIGMOD 2011 | naive snapshot, copy-on-update, wait-free zigzag, wait-free ping-pong |
//! | "Consistent Snapshot Algorithms for In-Memory Database Systems", ICDE 2018 | hourglass, piggyback |
//!
//! [`State`] has everything: arrays on a disk, and recovery. A writer takes images in two files in
//! turn, and a logger keeps the actions between them.
//!
//! [`Arrays`] is the memory alone: cells that one thread reads and writes, and whose image as of a
//! tick another thread takes meanwhile ([`Capture`]). A [`Scheme`] defines how a capture works, and
//! a [`Layout`] where copies and marks lie. [`registry`] has both by name.
//!
//! A game that goes on where it was, however it ended:
//!
//! ```
//! use stillpoint_state::{Actions, Array, Cells, Config, Environment, Interleaved, State};
//! use stillpoint_state::{Plain, StateError, schemes::Piggyback};
//!
//! type Scheme = Piggyback<Interleaved>;
//!
//! #[derive(Clone, Copy, Debug, Plain)]
//! enum Mood { Idle, Running, Hunting { prey: u16 } }
//!
//! #[derive(Clone, Copy, Debug, Plain)]
//! struct Player { at: [f32; 3], speed: [f32; 3], mood: Mood, lives: bool }
//!
//! #[derive(Clone, Copy)]
//! struct Game {
//!     players: Array<Player>,
//!     scores: Array<u32>,
//! }
//!
//! impl Game {
//!     fn step(self, cells: &mut Cells<Scheme>, actions: Actions<'_>) {
//!         let (mut players, mut scores) = cells.arrays_mut((self.players, self.scores));
//!         for action in actions {
//!             let who = usize::from(action[0]);
//!             players.update(who, |player| (player.mood, player.speed[0]) = (Mood::Running, 1.0));
//!             scores.update(who, |score| *score += 1);
//!         }
//!         for mut player in players.iter_mut() {
//!             player.update(|player| (0..3).for_each(|n| player.at[n] += player.speed[n]));
//!         }
//!     }
//! }
//!
//! fn play(dir: &std::path::Path, ticks: u64) -> Result<f32, StateError> {
//!     let mut builder = State::<Scheme>::builder();
//!     let game = Game { players: builder.array("players", 100), scores: builder.array("scores", 100) };
//!     let again = |cells: &mut Cells<Scheme>, _, actions: Actions<'_>| game.step(cells, actions);
//!     let (mut state, _) = builder.open(Environment::at(dir)?, &Config::default(), |_| {}, again)?;
//!     for _ in 0..ticks {
//!         state.log(&[7])?; // player 7 runs
//!         state.step(|cells, _, actions| game.step(cells, actions))?;
//!     }
//!     let east = state.read(game.players, 7).at[0];
//!     state.close()?;
//!     Ok(east)
//! }
//!
//! let dir = tempfile::tempdir().expect("a directory");
//! assert_eq!(play(dir.path(), 20)?, 20.0);
//! assert_eq!(play(dir.path(), 30)?, 50.0);
//! # Ok::<(), StateError>(())
//! ```

mod actions;
mod arrays;
mod background;
mod bits;
mod capture;
mod config;
mod error;
mod files;
mod frontier;
mod grid;
mod handover;
mod layout;
mod live_copy;
mod logger;
mod mailbox;
mod plain;
pub mod planted;
mod progress;
mod record;
mod recovery;
pub mod registry;
mod scheme;
pub mod schemes;
mod settle;
mod state;
mod views;
mod writer;

pub use actions::{ActionIter, Actions};
pub use arrays::{ARRAYS_MAX, Array, ArrayInfo, Arrays, ArraysBuilder, Cells, NAME_BYTES_MAX};
pub use capture::{Capture, PointOfConsistency};
pub use config::{Background, Config, Every, Merge};
pub use error::{ArraysError, StateError};
pub use files::Environment;
pub use frontier::{Frontier, Writing};
pub use grid::{CellRequirements, Grid, GridError, LINE_BYTES};
pub use layout::{BitArray, Interleaved, Layout, Naive, Packed};
pub use logger::TICK_BYTES_MAX;
pub use plain::{AnyGrid, CELL_BYTES_MAX, CellGrain, Field, FieldValue, Plain};
pub use progress::{Progress, ProgressSnapshot};
pub use recovery::Recovered;
pub use scheme::{Content, Extent, FreezeCost, Frozen, Intent, Last, LiveCopy, Scheme};
pub use state::{State, StateBuilder};
pub use stillpoint_io::{
    Clock, Disk, DiskError, ManualClock, Pace, RealClock, RealDisk, RealRng, Rng, SeededRng,
    SimDisk,
};
pub use stillpoint_mem::PageSize;
/// Makes a structure or an enumeration a cell of arrays, and a field of cells. The type has `Clone`, `Copy`
/// and `Debug`, too, and neither type parameters nor lifetimes.
///
/// The fields of a structure follow each other without gaps, little-endian. A field is a number, a
/// `bool`, an array of what may be a field, or another type with this derive. With `#[field(NAME)]`
/// a field gets an associated constant of that name. With that constant a program reads and writes
/// the field alone.
///
/// A structure as a cell takes a multiple of 8 bytes, with zeros behind the last field. The
/// structure takes 4096 bytes at most, or the compiler says which structure is too long.
///
/// An enumeration takes one byte for the number of its variant, and behind it room for the fields of the
/// longest variant. Variants are numbered from 0 in their order. So the cells of a new array hold the first
/// one, with zeros in its fields. A number that no variant has, left by a program that knew more of them, is
/// read as the first. An enumeration without any field is a cell of 4 bytes.
///
/// ```
/// use stillpoint_state::{Arrays, Interleaved, Plain, schemes::Hourglass};
/// /// What somebody does.
/// #[derive(Clone, Copy, Debug, PartialEq, Plain)]
/// enum Mood {
///     Idle,
///     Hunting { prey: u32 },
/// }
/// #[derive(Clone, Copy, Debug, PartialEq, Plain)]
/// struct Point(f32, f32);
/// /// One who walks about.
/// #[derive(Clone, Copy, Debug, PartialEq, Plain)]
/// struct Walker {
///     at: Point,
///     trail: [Point; 3],
///     health: u16,
///     #[field(MOOD)]
///     mood: Mood,
///     lives: bool,
/// }
/// let mut builder = Arrays::<Hourglass<Interleaved>>::builder();
/// let walkers = builder.array::<Walker>("walkers", 10);
/// let mut arrays = builder.build()?;
/// let at = Point(1.0, 2.0);
/// let walker = Walker { at, trail: [at; 3], health: 100, mood: Mood::Idle, lives: true };
/// arrays.write(walkers, 3, walker);
/// arrays.write_field(walkers, 3, Walker::MOOD, Mood::Hunting { prey: 7 });
/// arrays.update(walkers, 3, |walker| walker.health -= 1);
/// let wanted = Walker { health: 99, mood: Mood::Hunting { prey: 7 }, ..walker };
/// assert_eq!(arrays.read(walkers, 3), wanted);
/// # Ok::<(), stillpoint_state::ArraysError>(())
/// ```
///
/// ```compile_fail
/// #[derive(Clone, Copy, Debug, stillpoint_state::Plain)]
/// struct Atlas { pages: [u8; 5000] } // record `Atlas` has more than 4096 bytes
/// ```
pub use stillpoint_state_derive::Plain;
pub use views::{ArrayMut, ArrayRef, ArraySet, CellMut, ChunkMut, ChunksMut};
pub use writer::Advance;

#[doc(hidden)]
pub use arrays::RecordGrain as AtomicU64;
#[doc(hidden)]
pub use record::{load_record, store_record};
