//! Options of a state on a disk.

use std::time::Duration;

use stillpoint_format::state::{BLOCK_BYTES_MAX, BLOCK_BYTES_MIN};
use stillpoint_io::Pace;

use crate::error::StateError;

/// How the writer makes an image of changes full (SIGMOD 2011, §3.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Merge {
    /// The writer keeps a copy of the whole state in memory and lays the changes over it.
    Copy,
    /// The writer reads the last image from the disk and lays the changes over it.
    #[default]
    FromDisk,
}

/// How often the writer takes an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Every {
    /// As soon as the last image is durable.
    #[default]
    Continuous,
    /// This long after the last image has begun, but not before that image is durable.
    Interval(Duration),
    /// When [`State::checkpoint`](crate::State::checkpoint) asks for one.
    OnRequest,
}

/// Who runs the writer and the logger: threads, or the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Background {
    /// Threads of the state.
    #[default]
    Threads,
    /// The caller, by [`State::advance_writer`](crate::State::advance_writer) and
    /// [`State::flush_actions`](crate::State::flush_actions): for simulations that replay from a
    /// seed.
    Manual,
}

/// Options of a state on a disk. The defaults suit most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How the writer makes an image of changes full.
    pub merge: Merge,
    /// How often the writer takes an image.
    pub every: Every,
    /// How fast the writer writes an image.
    pub pace: Pace,
    /// Bytes of a block of an image: a multiple of 4096 from 8192 to 16 MiB.
    pub block_bytes: u32,
    /// True if the state logs actions. Without a log a crash loses the ticks since the last image.
    pub logs_actions: bool,
    /// Longest time that an ended tick waits for its flush while nobody asks for the flush.
    pub flush_interval: Duration,
    /// Bytes of ended ticks that may wait for a flush, 8 for each tick included. Beyond, the end of a
    /// tick waits.
    pub queue_bytes_max: usize,
    /// Bytes of a segment of the log of actions. A full segment is followed by another.
    pub segment_bytes: u64,
    /// Threads that read an image at recovery.
    pub recovery_threads: usize,
    /// Who runs the writer and the logger: threads, or the caller.
    pub background: Background,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            merge: Merge::default(),
            every: Every::default(),
            pace: Pace::default(),
            block_bytes: 1 << 20,
            logs_actions: true,
            flush_interval: Duration::from_millis(5),
            queue_bytes_max: 64 << 20,
            segment_bytes: 8 << 20,
            recovery_threads: 4,
            background: Background::default(),
        }
    }
}

impl Config {
    pub(crate) fn check(&self) -> Result<(), StateError> {
        let block = self.block_bytes;
        let is_legal = (BLOCK_BYTES_MIN..=BLOCK_BYTES_MAX).contains(&block);
        if !is_legal || !block.is_multiple_of(4096) {
            let allowed = "a multiple of 4096 from 8192 to 16777216";
            let value = u64::from(block);
            return Err(StateError::Option { option: "block_bytes", value, allowed });
        }
        Ok(())
    }
}
