//! Load, replay and verification after a stop of any kind. Knows no live engine.
//!
//! ```text
//! MANIFEST ─▶ plan: logs scanned, the cut found, the next incarnation's floor chosen
//!                │   (the caller makes the plan's MANIFEST durable: nothing is served before)
//!                ▼
//!             run: checkpoints loaded in parallel ─▶ logs replayed in parallel by key ─▶ checked
//! ```
//! Everything may be interrupted at any instant and begun again: nothing on disk changes but by
//! the caller's publication of the plan, and by trimming what the published plan has cut away.

mod error;
mod load;
mod plan;
mod progress;
mod replay;
mod run;

pub use error::RecoveryError;
pub use plan::{Plan, plan};
pub use progress::{Progress, Stage};
pub use run::{RecoverySummary, load, run};
