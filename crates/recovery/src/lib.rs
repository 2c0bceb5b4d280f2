//! Load, replay and verification after a stop of any kind. Knows no live engine.
//!
//! ```text
//! MANIFEST ─▶ plan: logs scanned, the cut found, the next incarnation's floor chosen
//!                ▼
//!             run: checkpoints loaded in parallel ─▶ lost commits undone ─▶ logs replayed in parallel by key
//!                ▼
//!             copy_ends: what may be in the page cache only is made durable, in files of its own
//!                ▼   (the caller publishes the successor of the MANIFEST: nothing is served before)
//!             trim: what the published MANIFEST has given up is removed
//! ```
//! A recovery may be interrupted at any instant and begun again. No file that the MANIFEST names
//! changes before the next MANIFEST is published.

#[cfg(not(shuttle))]
mod error;
#[cfg(not(shuttle))]
mod gather;
#[cfg(not(shuttle))]
mod gathered;
#[cfg(not(shuttle))]
mod load;
#[cfg(not(shuttle))]
mod newer;
#[cfg(not(shuttle))]
mod plan;
#[cfg(not(shuttle))]
mod progress;
#[cfg(not(shuttle))]
mod rebuild;
#[cfg(not(shuttle))]
mod repeat;
#[cfg(not(shuttle))]
mod replay;
#[cfg(not(shuttle))]
mod run;
#[cfg(not(shuttle))]
mod serve;
#[cfg(not(shuttle))]
mod undo;
#[cfg(not(shuttle))]
mod verify;

// The models are compiled without the disk, so of this crate the schedule alone.
#[cfg(all(test, shuttle))]
#[path = "repeat/schedule.rs"]
mod schedule;

#[cfg(not(shuttle))]
pub use error::{ProcedureNeeded, RecoveryError};
#[cfg(not(shuttle))]
pub use gather::plan_to_serve;
#[cfg(not(shuttle))]
pub use newer::{NewerCheckpoint, newer_checkpoints};
#[cfg(not(shuttle))]
pub use plan::{Plan, plan, plan_accepting_loss};
#[cfg(not(shuttle))]
pub use progress::{Progress, Stage};
#[cfg(not(shuttle))]
pub use rebuild::{Rebuilt, rebuild};
#[cfg(not(shuttle))]
pub use repeat::{CallAgain, Calls};
#[cfg(not(shuttle))]
pub use run::{Operations, RecoverySummary, load, run, run_with};
#[cfg(not(shuttle))]
pub use serve::{NotServed, Remaining, run_served};
