//! No checkpoints: the baseline of every comparison, and the choice of a cache that may be lost.
//!
//! Its cells have no hook and no mark; a commit does not even look at the phase for it.

use std::sync::Arc;

use stillpoint_store::NoPolicy;

use crate::registry::{Scheme, SchemeOptions};

pub(crate) fn build(_: &SchemeOptions) -> Scheme {
    Scheme { policy: Arc::new(NoPolicy), checkpointer: None }
}
