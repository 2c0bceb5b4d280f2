//! The files of a state, and the environment of all parts that touch files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stillpoint_format::state::{
    ACTIONS_DIR, ArraySchema, ImageHeader, ImageLayout, ImageTrailer, StateSchema, TRAILER_BYTES,
    actions_name, image_name, image_trailer_name, parse_actions_name,
};
use stillpoint_io::{Clock, Disk, DiskError, RealClock, RealDisk, RealRng, Rng};

use crate::arrays::ArrayInfo;
use crate::error::StateError;

/// The environment of a state: a disk, a clock, and a source of randomness.
#[derive(Clone, Debug)]
pub struct Environment {
    /// The disk. The state's files lie at its root.
    pub disk: Arc<dyn Disk>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Randomness for the state's id, and for the nonces that tell files of one name apart.
    pub rng: Arc<dyn Rng>,
}

impl Environment {
    /// A directory of the real disk, with real time and randomness. Makes the directory if it is
    /// missing.
    ///
    /// # Errors
    /// The directory cannot be made, or the path is that of a file.
    pub fn at(dir: impl AsRef<Path>) -> Result<Self, StateError> {
        let disk = Arc::new(RealDisk::new(dir)?);
        Ok(Self { disk, clock: Arc::new(RealClock), rng: Arc::new(RealRng) })
    }
}

/// The environment of a state with the state's schema.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) environment: Environment,
    pub(crate) schema: StateSchema,
}

/// An image with its trailer.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) header: ImageHeader,
    pub(crate) layout: ImageLayout,
    pub(crate) trailer: ImageTrailer,
}

impl Image {
    pub(crate) fn slot(&self) -> usize {
        self.header.slot as usize
    }

    /// The encoded trailer, of which there are two copies.
    pub(crate) fn encoded_trailer(&self) -> [u8; TRAILER_BYTES] {
        self.trailer.encode(self.header.identity(), self.layout.trailer_at())
    }
}

impl Files {
    pub(crate) fn disk(&self) -> &dyn Disk {
        &*self.environment.disk
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.environment.clock.monotonic_ns()
    }

    pub(crate) fn image_path(slot: usize) -> PathBuf {
        image_name(slot).into()
    }

    pub(crate) fn image_trailer_path(slot: usize) -> PathBuf {
        image_trailer_name(slot).into()
    }

    pub(crate) fn segment_path(first_tick: u64) -> PathBuf {
        Path::new(ACTIONS_DIR).join(actions_name(first_tick))
    }

    /// The first ticks of all segments, in ascending order.
    pub(crate) fn segments(&self) -> Result<Vec<u64>, DiskError> {
        let names = self.disk().list(Path::new(ACTIONS_DIR))?;
        Ok(names.iter().filter_map(|name| parse_actions_name(name)).collect())
    }

    /// Removes the segments that hold no tick above `tick`: those whose successor begins at or before
    /// `tick` + 1.
    pub(crate) fn remove_segments_up_to(&self, tick: u64) -> Result<(), DiskError> {
        let segments = self.segments()?;
        for pair in segments.windows(2) {
            if pair[1] <= tick.saturating_add(1) {
                self.disk().remove(&Self::segment_path(pair[0]))?;
            }
        }
        Ok(())
    }
}

/// How the format describes arrays.
pub(crate) fn array_schemas<'a>(infos: impl Iterator<Item = &'a ArrayInfo>) -> Vec<ArraySchema> {
    let schema = |info: &ArrayInfo| ArraySchema {
        name: info.name.clone(),
        cell_bytes: info.cell_bytes as u32,
        cells: info.cells as u64,
    };
    infos.map(schema).collect()
}
