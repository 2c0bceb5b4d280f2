//! Typed errors.

use std::path::PathBuf;
use std::sync::Arc;

use stillpoint_format::DecodeError;
use stillpoint_io::{DiskError, ForkError, ThreadError, WrittenPagesError};
use stillpoint_mem::RegionError;

use crate::arrays::{ARRAYS_MAX, NAME_BYTES_MAX};

/// The reason why arrays cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ArraysError {
    /// There is no array, or there are too many.
    #[error("a state of {arrays} arrays: 1 to {ARRAYS_MAX} are allowed; put more into one cell")]
    Count {
        /// Number of named arrays.
        arrays: usize,
    },
    /// A name that is empty or too long.
    #[error("array name {name:?}: 1 to {NAME_BYTES_MAX} bytes are allowed")]
    Name {
        /// The name.
        name: String,
    },
    /// Two arrays have the same name.
    #[error("two arrays are named {name:?}; names tell them apart on the disk")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// The memory of an array cannot be had.
    #[error("array {name:?}: {source}")]
    Memory {
        /// The array.
        name: String,
        /// The reason.
        #[source]
        source: RegionError,
    },
    /// The scheme wants to know which pages were written, and the system does not tell.
    #[error("array {name:?}: {source}")]
    Tracking {
        /// The array.
        name: String,
        /// The reason.
        #[source]
        source: WrittenPagesError,
    },
    /// Cells are filled before the first tick only.
    #[error("cells are filled before the first tick, and {ticks} have ended; write them instead")]
    AlreadyTicking {
        /// Ticks ended so far.
        ticks: u64,
    },
}

/// The errors of a state on a disk.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StateError {
    /// The arrays cannot be made.
    #[error(transparent)]
    Arrays(Arc<ArraysError>),
    /// An option out of its range.
    #[error("option {option} is {value}; {allowed} is allowed")]
    Option {
        /// The option.
        option: &'static str,
        /// The value of the option.
        value: u64,
        /// The allowed values.
        allowed: &'static str,
    },
    /// The disk refused.
    #[error(transparent)]
    Disk(Arc<DiskError>),
    /// A file is damaged.
    #[error("{}: {source}; {cure}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The damage to the file.
        #[source]
        source: DecodeError,
        /// The cure.
        cure: &'static str,
    },
    /// The state was written by a release with another format.
    #[error(
        "{} has format version {found}, and this release reads version {reads}: open the state with the release that wrote it, and copy its cells into a new state from there",
        path.display()
    )]
    OtherVersion {
        /// The schema's file.
        path: PathBuf,
        /// The version of the file.
        found: u32,
        /// The version that this release reads.
        reads: u32,
    },
    /// The directory holds a state of other arrays.
    #[error(
        "{} describes other arrays: {difference}; open it with the arrays it was made with, or use another directory",
        path.display()
    )]
    OtherArrays {
        /// The schema's file.
        path: PathBuf,
        /// The first difference.
        difference: String,
    },
    /// The file that describes the state is missing, and other files of the state exist.
    #[error(
        "{} is missing, but other files of a state are there; restore it, or use another directory",
        path.display()
    )]
    SchemaMissing {
        /// The schema's file.
        path: PathBuf,
    },
    /// Another process has the state open.
    #[error("{} is locked: another process has this state open", path.display())]
    InUse {
        /// The lock file.
        path: PathBuf,
    },
    /// Ticks are missing from the log of actions.
    #[error(
        "the log of actions goes from tick {expected} to tick {found} in {}: a segment, or the newest image, is missing; restore it",
        path.display()
    )]
    Gap {
        /// The tick that should follow.
        expected: u64,
        /// The tick that follows instead.
        found: u64,
        /// The segment that holds the tick `found`.
        path: PathBuf,
    },
    /// The actions of one tick exceed what the log can hold.
    #[error("the actions of tick {tick} have {bytes} bytes; at most {max} are allowed")]
    ActionsTooLong {
        /// The tick.
        tick: u64,
        /// Bytes of the tick's actions, including the refused one.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The disk is full and so is the queue of actions: the tick has not ended.
    #[error(
        "the log of actions waits for space: {0}; make room on the disk, then end the tick again"
    )]
    LogFull(Arc<DiskError>),
    /// The log of actions cannot go on. Ticks that are durable stay durable.
    #[error(
        "the log of actions has failed: {0}; nothing more becomes durable: check the disk, and open the state again"
    )]
    LogFailed(Arc<DiskError>),
    /// No image becomes durable. Returned once, and again only after an image was durable.
    #[error(
        "{failures} images in a row have failed, the last one by: {source}; check the disk: the log of actions, if there is one, grows until an image is durable"
    )]
    ImagesFail {
        /// Captures that failed since the last durable image.
        failures: u64,
        /// The reason of the last failure.
        #[source]
        source: Box<StateError>,
    },
    /// The thread that writes images has panicked.
    #[error(
        "the thread that writes images has panicked; no further image is taken: close the state and open it again"
    )]
    WriterPanicked,
    /// Neither a log nor images make ticks durable.
    #[error(
        "tick {tick} cannot become durable: actions are not logged, and the scheme takes no images; set `logs_actions`, or choose another scheme"
    )]
    NothingKeepsTicks {
        /// The tick.
        tick: u64,
    },
    /// A tick that has not ended cannot become durable.
    #[error("tick {tick} has not ended; the last one that has is {ended}")]
    TickNotEnded {
        /// The tick that was asked for.
        tick: u64,
        /// The last tick that has ended.
        ended: u64,
    },
    /// No image and no actions lead to a tick any more.
    #[error(
        "tick {tick} is not retained: its actions were removed once images were durable; the next image is of tick {image}: ask for that tick or a later one, or restore older files"
    )]
    TickNotRetained {
        /// The tick that was asked for.
        tick: u64,
        /// The tick of the next image.
        image: u64,
    },
    /// Cells were changed since the last tick, so no image of that tick can be taken any more.
    #[error(
        "cells were changed after tick {ended} had ended, and no image of that tick is under way: end the tick first"
    )]
    CellsChanged {
        /// The last tick that has ended.
        ended: u64,
    },
    /// The step of a tick has run, and its tick has not ended.
    #[error("the step of tick {tick} has run already: end the tick by `tick`")]
    StepHasRun {
        /// The tick.
        tick: u64,
    },
    /// A step has panicked: its tick cannot end.
    #[error(
        "the step of tick {tick} has panicked and left cells half changed; close the state and open it again: it goes on from its durable ticks"
    )]
    StepPanicked {
        /// The tick.
        tick: u64,
    },
    /// The process could not be forked, or its child is gone.
    #[error(transparent)]
    Fork(#[from] ForkError),
    /// A thread could not be started, or panicked.
    #[error(transparent)]
    Thread(Arc<ThreadError>),
}

impl From<ArraysError> for StateError {
    fn from(error: ArraysError) -> Self {
        Self::Arrays(Arc::new(error))
    }
}

impl From<DiskError> for StateError {
    fn from(error: DiskError) -> Self {
        Self::Disk(Arc::new(error))
    }
}

impl From<ThreadError> for StateError {
    fn from(error: ThreadError) -> Self {
        Self::Thread(Arc::new(error))
    }
}
