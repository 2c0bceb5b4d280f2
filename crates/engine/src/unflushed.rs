//! What answers wait for.

use stillpoint_format::Stamp;

/// The commits that answers wait for in strict durability: the newest one of each log that they
/// depend on. [`Session::unflushed`](crate::Session::unflushed) returns this value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unflushed {
    /// At most one commit of each log.
    pub(crate) stamps: Vec<Stamp>,
    /// No commit that the answers depend on is of a later epoch. 0 if that is not known.
    pub(crate) epoch: u64,
}

impl Unflushed {
    /// The commits of these stamps, in epochs that are not known.
    pub fn of(stamps: Vec<Stamp>) -> Self {
        Self { stamps, epoch: 0 }
    }

    /// Whether there is nothing to wait for.
    pub fn is_empty(&self) -> bool {
        self.stamps.is_empty()
    }

    /// Adds the other's commits.
    pub fn join(&mut self, other: Self) {
        self.epoch = self.epoch.max(other.epoch);
        for stamp in other.stamps {
            match self.stamps.iter_mut().find(|known| known.log() == stamp.log()) {
                Some(known) if known.gsn() < stamp.gsn() => *known = stamp,
                Some(_) => {}
                None => self.stamps.push(stamp),
            }
        }
    }
}
