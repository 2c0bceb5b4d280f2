//! One file for each scheme, with its full form and that of changes. The rows of the schemes are in
//! [`crate::registry`].

pub(crate) mod calc;
pub(crate) mod calc_stored;
pub(crate) mod cou;
pub(crate) mod fork;
pub(crate) mod fuzzy;
pub(crate) mod fuzzy_undo;
pub(crate) mod hourglass;
pub(crate) mod naive;
pub(crate) mod partial;
pub(crate) mod piggyback;
pub(crate) mod ping_pong;
pub(crate) mod zigzag;
