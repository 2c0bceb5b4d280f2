//! One file for each scheme. The rows of the schemes are in [`crate::registry`].

pub(crate) mod calc;
pub(crate) mod naive;
pub(crate) mod partial;
pub(crate) mod zigzag;
