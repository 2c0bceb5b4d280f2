//! One file for each scheme; each has its row in [`crate::registry`].

pub(crate) mod calc;
pub(crate) mod naive;
pub(crate) mod partial;
pub(crate) mod zigzag;
