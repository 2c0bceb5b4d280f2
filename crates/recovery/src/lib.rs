//! Load, replay and verification after a stop of any kind. Knows no live engine.
//!
//! ```text
//! MANIFEST ─▶ plan: logs scanned, the cut found, the next incarnation's floor chosen
//!                ▼
//!             run: checkpoints loaded in parallel ─▶ logs replayed in parallel by key ─▶ checked
//!                ▼
//!             copy_ends: what may be in the page cache only is made durable, in files of its own
//!                ▼   (the caller publishes the successor of the MANIFEST: nothing is served before)
//!             trim: what the published MANIFEST has given up is removed
//! ```
//! A recovery may be interrupted at any instant and begun again. No file that the MANIFEST names
//! changes before the next MANIFEST is published.

mod error;
mod load;
mod newer;
mod plan;
mod progress;
mod rebuild;
mod repeat;
mod replay;
mod run;
mod verify;

pub use error::{ProcedureNeeded, RecoveryError};
pub use newer::{NewerCheckpoint, newer_checkpoints};
pub use plan::{Plan, plan, plan_accepting_loss};
pub use progress::{Progress, Stage};
pub use rebuild::{Rebuilt, rebuild};
pub use repeat::{CallAgain, Calls};
pub use run::{Operations, RecoverySummary, load, run, run_with};
