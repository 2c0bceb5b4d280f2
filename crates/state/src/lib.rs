//! Arrays of plain data with one mutator and ticks, for games, simulations and trading: captured
//! while they change, by the schemes of two papers. Knows no transactions.
//!
//! | paper | schemes |
//! |---|---|
//! | "Fast Checkpoint Recovery Algorithms for Frequently Consistent Applications", SIGMOD 2011 | naive snapshot, copy-on-update, wait-free zigzag, wait-free ping-pong |
//! | "Consistent Snapshot Algorithms for In-Memory Database Systems", ICDE 2018 | hourglass, piggyback |
//!
//! [`State`] is the whole: arrays on a disk, with a writer that takes images in two files in turn, a
//! logger for the actions between them, and recovery.
//!
//! [`Arrays`] is the memory alone: cells that one thread reads and writes, and whose image as of a tick
//! another thread takes meanwhile ([`Capture`]). A [`Scheme`] says how, a [`Layout`] where copies
//! and marks lie; [`registry`] has them by name.
//!
//! A game that goes on where it was, however it ended:
//!
//! ```
//! use stillpoint_state::{Actions, Array, Cells, Config, Environment, Interleaved, State};
//! use stillpoint_state::{StateError, plain_enum, plain_record, schemes::Piggyback};
//!
//! type Scheme = Piggyback<Interleaved>;
//!
//! plain_enum! { enum Mood { Idle, Running } }
//! plain_record! { struct Player { at: [f32; 3], speed: [f32; 3], mood: Mood, lives: bool } }
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
pub use config::{Background, Config, Every, Merge, Pace};
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
    Clock, Disk, DiskError, ManualClock, RealClock, RealDisk, RealRng, Rng, SeededRng, SimDisk,
};
pub use stillpoint_mem::PageSize;
pub use views::{ArrayMut, ArrayRef, ArraySet, CellMut};
pub use writer::Advance;

#[doc(hidden)]
pub use arrays::RecordGrain as AtomicU64;
#[doc(hidden)]
pub use record::{load_record, store_record};
