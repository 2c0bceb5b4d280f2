//! The commits that the answers of a thread depend on.

use stillpoint_format::Stamp;

/// The newest commit of every log that a thread's answers depend on.
#[derive(Debug)]
pub struct Dependencies {
    stamps: Vec<Stamp>,
    are_wanted: bool,
}

impl Dependencies {
    /// No dependencies yet. `are_wanted` says whether anybody asks for dependencies.
    pub fn new(are_wanted: bool) -> Self {
        Self { stamps: Vec::new(), are_wanted }
    }

    /// From here on somebody asks for dependencies.
    pub fn want(&mut self) {
        self.are_wanted = true;
    }

    /// Notes that an answer depends on a commit, if the log wants to know.
    #[inline]
    pub fn add(&mut self, stamp: Stamp) {
        if self.are_wanted && !stamp.is_none() {
            match self.stamps.iter_mut().find(|known| known.log() == stamp.log()) {
                Some(known) => *known = (*known).max(stamp),
                None => self.stamps.push(stamp),
            }
        }
    }

    /// The stamps noted since the last call.
    pub fn take(&mut self) -> Vec<Stamp> {
        std::mem::take(&mut self.stamps)
    }
}
