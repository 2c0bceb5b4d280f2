//! What a checkpoint scheme asks of the cells of a store, as data. The store reads it once, when the
//! store is made, so that a commit calls no scheme.
//!
//! | status bit | meaning | rule |
//! |---|---|---|
//! | [`CAPTURED`](status::CAPTURED) | the checkpoint of epochs of this parity has the record | [`WriteRule::SaveBeforeImage`] |
//! | [`SHADOW`](status::SHADOW) | copy 1 is a before-image that the scan has not met | [`WriteRule::KeepShadow`] |
//! | [`DIRTY_EVEN`](status::DIRTY_EVEN), [`DIRTY_ODD`](status::DIRTY_ODD) | copy 1 or 2 was written in the epoch of this parity, and no capture has merged it | [`WriteRule::WriteBoth`] |
//! | [`NEXT_COPY`](status::NEXT_COPY) | number of the copy that the next commit writes | [`WriteRule::SwitchCopies`] |

/// The status bits of a cell that the store gives a meaning.
pub mod status {
    /// The present checkpoint has the record if this bit is the parity of the epoch.
    pub const CAPTURED: u8 = 1;
    /// The next commit writes copy 1 if this bit is set, else copy 0. The scheme sets the bit.
    pub const NEXT_COPY: u8 = 1 << 1;
    /// Copy 1 has the value of the point of consistency, and the capture scan has not met it yet.
    pub const SHADOW: u8 = 1 << 2;
    /// Copy 1 was written in an even epoch, and no capture has merged it into copy 3.
    pub const DIRTY_EVEN: u8 = 1 << 3;
    /// Copy 2 was written in an odd epoch, and no capture has merged it into copy 3.
    pub const DIRTY_ODD: u8 = 1 << 4;
}

/// What a commit does with the value that it overwrites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteRule {
    /// The new value replaces the old one.
    InPlace,
    /// As [`InPlace`](Self::InPlace). The first commit after a point of consistency that changes a
    /// record gives the old value to the checkpoint's output before.
    SaveBeforeImage,
    /// The new value goes to the copy that [`status::NEXT_COPY`] names. The other copy stays.
    SwitchCopies,
    /// As [`InPlace`](Self::InPlace), in copy 0. The first commit after a point of consistency that
    /// changes a record copies the old value to copy 1 before.
    KeepShadow,
    /// The new value goes to copy 0, and whole to the copy of the epoch's parity: 1 or 2. Copy 3
    /// belongs to the capture scan, which merges the copies of ended epochs into it.
    WriteBoth,
}

/// When a thread other than the holder of a record's lock may change the record's status bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusChanges {
    /// At no time: locks are given back by a plain store.
    Never,
    /// While the store is quiesced: a plain store suffices inside of a read section.
    WhileQuiesced,
    /// In CAPTURE: a plain store suffices in all other phases.
    InCapture,
}

/// When the cell of a deleted key may be reused, once no crash can bring the key back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// At once.
    Always,
    /// Not from RESOLVE to COMPLETE, unless no copy has a value: a capture reads the other copies.
    OutsideOfCaptures,
    /// When captures have merged all that commits wrote, or no copy has a value.
    WhenMerged,
}

/// How the cells of a store are laid out, written and reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellRules {
    /// Copies of the value in each cell, side by side; as many as the write rule names.
    pub copies: usize,
    /// What a commit does with the value that it overwrites.
    pub write: WriteRule,
    /// When others than the holder of the lock may change the status bits.
    pub status_changes: StatusChanges,
    /// When the cell of a deleted key may be reused.
    pub reuse: Reuse,
}

impl CellRules {
    /// One copy, written in place. Nothing is kept for a checkpoint.
    pub const IN_PLACE: Self = Self {
        copies: 1,
        write: WriteRule::InPlace,
        status_changes: StatusChanges::Never,
        reuse: Reuse::Always,
    };

    /// One copy. A capture scan and the commits claim each record once in every epoch.
    pub const BEFORE_IMAGES: Self = Self {
        write: WriteRule::SaveBeforeImage,
        status_changes: StatusChanges::InCapture,
        ..Self::IN_PLACE
    };

    /// The status of a cell that is made in `epoch`.
    #[inline]
    pub(crate) fn first_status(&self, epoch: u64) -> u8 {
        match self.write {
            WriteRule::SaveBeforeImage | WriteRule::KeepShadow => captured_in(epoch),
            WriteRule::InPlace | WriteRule::SwitchCopies | WriteRule::WriteBoth => 0,
        }
    }
}

/// The status of records that the checkpoint which began `epoch` has.
#[inline]
pub(crate) fn captured_in(epoch: u64) -> u8 {
    (epoch & 1) as u8 * status::CAPTURED
}

/// The copy that commits of `epoch` write besides copy 0, and its dirty bit. Only for
/// [`WriteRule::WriteBoth`].
#[inline]
pub(crate) fn copy_of(epoch: u64) -> (usize, u8) {
    match epoch & 1 {
        0 => (1, status::DIRTY_EVEN),
        _ => (2, status::DIRTY_ODD),
    }
}
