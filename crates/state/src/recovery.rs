//! Recovery: the newest valid image, then the actions since. Everything that was read becomes
//! durable before the state is used (see [`crate::settle`]). Otherwise nothing on the disk changes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stillpoint_format::ident::{HEADER_BYTES, StoreId};
use stillpoint_format::state::{
    ACTIONS_DIR, ActionBatch, ActionBatchBuilder, ActionSegmentHeader, IMAGES, ImageHeader,
    ImageLayout, ImageTrailer, SCHEMA, StateSchema, TRAILER_BYTES, announced_batch_bytes,
    image_name, open_block, parse_actions_name, read_action_batch, valid_batch_behind,
};
use stillpoint_format::{DecodeCause, DecodeError};
use stillpoint_io::{
    AlignedBuf, Caching, Disk, DiskError, DiskFile, OpenMode, in_parallel, read_all,
    write_file_durably,
};
use stillpoint_sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use stillpoint_sync::mutant;

use crate::actions::Actions;
use crate::arrays::{Arrays, Cells, Shared};
use crate::error::StateError;
use crate::files::{Environment, Files, Image, array_schemas};
use crate::plain::with_grid;
use crate::planted;
use crate::scheme::Scheme;
use crate::settle::settle;

/// The result of a recovery.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// True if there was no state yet.
    pub is_new: bool,
    /// Tick of the image; `None` if there was none, and the replay began at the beginning.
    pub image_tick: Option<u64>,
    /// Bytes of the image read.
    pub image_bytes: u64,
    /// Nanoseconds for reading the image.
    pub image_ns: u64,
    /// Ticks that were replayed.
    pub replayed_ticks: u64,
    /// Nanoseconds that the replay took, the reading of the actions included.
    pub replay_ns: u64,
    /// The tick at which the state goes on.
    pub tick: u64,
    /// Damaged images. An older image, with more actions, led to the same state.
    pub damaged_images: Vec<StateError>,
}

/// The files of a state, as recovery has found them.
pub(crate) struct Found {
    /// The image that was loaded.
    pub(crate) image: Option<Image>,
    pub(crate) next_capture: u64,
    /// The newest tick of a damaged image.
    damaged_tick: u64,
    /// The tick of the first whole image after `until`.
    later_tick: Option<u64>,
    /// The last batch of the log.
    last_batch: Option<ActionBatchBuilder>,
    pub(crate) recovered: Recovered,
}

fn damaged(path: PathBuf, cure: &'static str) -> impl FnOnce(DecodeError) -> StateError {
    move |source| StateError::Damaged { path, source, cure }
}

/// Reads the schema and compares it; `None` if there is no state yet.
///
/// # Errors
/// A state of other arrays, files without a schema, a damaged schema, or the disk's.
pub(crate) fn read_schema<S: Scheme>(
    environment: &Environment,
    arrays: &Cells<S>,
) -> Result<Option<StateSchema>, StateError> {
    let (disk, path) = (&*environment.disk, Path::new(SCHEMA));
    let wanted = array_schemas(arrays.infos());
    if disk.exists(path)? {
        let bytes = read_all(disk, path)?;
        let described = disk.describe(path);
        let cure = "restore the file; without it the images cannot be read";
        let schema = StateSchema::decode(&bytes).map_err(|error| match error.cause {
            DecodeCause::UnknownVersion { found, reads } => {
                StateError::OtherVersion { path: described.clone(), found, reads }
            }
            _ => damaged(described.clone(), cure)(error),
        })?;
        if let Some(difference) = difference(&schema.arrays, &wanted) {
            return Err(StateError::OtherArrays { path: described, difference });
        }
        return Ok(Some(schema));
    }
    let leftovers = disk.list(Path::new(""))?;
    let is_image = |name: &String| (0..IMAGES).any(|slot| *name == image_name(slot));
    let has_actions = disk.exists(Path::new(ACTIONS_DIR))?
        && disk.list(Path::new(ACTIONS_DIR))?.iter().any(|it| parse_actions_name(it).is_some());
    if has_actions || leftovers.iter().any(is_image) {
        return Err(StateError::SchemaMissing { path: disk.describe(path) });
    }
    Ok(None)
}

/// Reads the schema and compares it, or makes a new state.
///
/// # Errors
/// As [`read_schema`].
pub(crate) fn open_schema<S: Scheme>(
    environment: &Environment,
    arrays: &Cells<S>,
) -> Result<(StateSchema, bool), StateError> {
    if let Some(schema) = read_schema(environment, arrays)? {
        return Ok((schema, false));
    }
    let (disk, path) = (&*environment.disk, Path::new(SCHEMA));
    let wanted = array_schemas(arrays.infos());
    let mut id = [0; 16];
    id[..8].copy_from_slice(&environment.rng.next_u64().to_le_bytes());
    id[8..].copy_from_slice(&environment.rng.next_u64().to_le_bytes());
    let created_ms = environment.clock.wall_ms();
    let schema = StateSchema { store: StoreId(id), created_ms, arrays: wanted };
    // The directory is made first, so that a state with a schema has all its parts.
    disk.create_dir_all(Path::new(ACTIONS_DIR))?;
    disk.sync_dir(Path::new(""))?;
    write_file_durably(disk, path, &schema.encode())?;
    Ok((schema, true))
}

fn difference(
    found: &[stillpoint_format::state::ArraySchema],
    wanted: &[stillpoint_format::state::ArraySchema],
) -> Option<String> {
    if found.len() != wanted.len() {
        return Some(format!("it has {}, the program {}", found.len(), wanted.len()));
    }
    found.iter().zip(wanted).find(|(found, wanted)| found != wanted).map(|(found, wanted)| {
        let show = |array: &stillpoint_format::state::ArraySchema| {
            format!("{:?} of {} cells of {} bytes", array.name, array.cells, array.cell_bytes)
        };
        format!("it has {}, the program {}", show(found), show(wanted))
    })
}

/// Brings the arrays to where they were, and makes everything durable that was read for that.
///
/// # Errors
/// Damage that no other file makes up for, a gap in the log, or the disk's.
pub(crate) fn recover<S: Scheme>(
    files: &Arc<Files>,
    arrays: &mut Arrays<S>,
    threads: usize,
    first: &mut dyn FnMut(&mut Cells<S>),
    step: &mut dyn FnMut(&mut Cells<S>, u64, Actions<'_>),
) -> Result<Found, StateError> {
    let mut found = restore(files, arrays, threads, u64::MAX, first, step)?;
    let last_batch = found.last_batch.take();
    mutant!(settle(files, found.image.as_ref(), last_batch)?, RecoversUnflushed => ());
    Ok(found)
}

/// Brings the arrays to where they were when a tick had ended.
///
/// # Errors
/// As [`recover`]; [`StateError::TickNotRetained`] or [`StateError::TickNotEnded`].
pub(crate) fn restore_at<S: Scheme>(
    files: &Arc<Files>,
    arrays: &mut Arrays<S>,
    threads: usize,
    tick: u64,
    first: &mut dyn FnMut(&mut Cells<S>),
    step: &mut dyn FnMut(&mut Cells<S>, u64, Actions<'_>),
) -> Result<(), StateError> {
    restore(files, arrays, threads, tick, first, step)?;
    match arrays.ticks() {
        ended if ended == tick => Ok(()),
        ended => Err(StateError::TickNotEnded { tick, ended }),
    }
}

/// Brings the arrays to where they were after the tick `until`, or after the last tick that the files
/// lead to. Changes nothing on the disk.
fn restore<S: Scheme>(
    files: &Arc<Files>,
    arrays: &mut Arrays<S>,
    threads: usize,
    until: u64,
    first: &mut dyn FnMut(&mut Cells<S>),
    step: &mut dyn FnMut(&mut Cells<S>, u64, Actions<'_>),
) -> Result<Found, StateError> {
    let mut found = Found {
        image: None,
        next_capture: 0,
        damaged_tick: 0,
        later_tick: None,
        last_batch: None,
        recovered: Recovered::default(),
    };
    let start_ns = files.now_ns();
    // The writer may overwrite an image that cannot be read: its file is used next.
    found.image = load_newest(files, arrays, (threads, until), &mut found)?;
    found.recovered.image_ns = files.now_ns() - start_ns;
    let image_tick = found.image.as_ref().map(|image| image.header.tick);
    found.recovered.image_tick = image_tick;
    if found.image.is_none() {
        if !found.recovered.damaged_images.is_empty() {
            clear(arrays.shared());
        }
        first(arrays);
    }
    let start_ns = files.now_ns();
    arrays.resume_at(image_tick.unwrap_or(0));
    let replayed = replay(files, arrays, until, step);
    let is_short = matches!(replayed, Err(StateError::Gap { .. })) || arrays.ticks() < until;
    if let Some(image) = found.later_tick.filter(|_| is_short) {
        return Err(StateError::TickNotRetained { tick: until, image });
    }
    found.last_batch = replayed.map_err(|error| match error {
        StateError::Gap { .. } => image_is_missed(&found.recovered.damaged_images).unwrap_or(error),
        error => error,
    })?;
    if arrays.ticks() < found.damaged_tick.min(until) {
        let missed = image_is_missed(&found.recovered.damaged_images);
        return Err(missed.expect("an image of that tick is damaged"));
    }
    found.recovered.replay_ns = files.now_ns() - start_ns;
    found.recovered.tick = arrays.ticks();
    found.recovered.replayed_ticks = arrays.ticks() - image_tick.unwrap_or(0);
    Ok(found)
}

/// The newest damaged image, whose tick no other files lead to.
fn image_is_missed(damaged_images: &[StateError]) -> Option<StateError> {
    let mut error = damaged_images.first()?.clone();
    if let StateError::Damaged { cure, .. } = &mut error {
        *cure = "no other file leads to its tick: restore the file from a copy, or remove it to go \
                 on from an earlier tick";
    }
    Some(error)
}

/// Loads the newest image that is whole and holds no tick after `until`.
fn load_newest<S: Scheme>(
    files: &Arc<Files>,
    arrays: &Arrays<S>,
    (threads, until): (usize, u64),
    found: &mut Found,
) -> Result<Option<Image>, StateError> {
    let mut candidates = Vec::new();
    for slot in 0..IMAGES {
        let path = Files::image_path(slot);
        let file = match files.disk().open(&path, OpenMode::Read, Caching::Direct) {
            Err(error) if error.is_not_found() => continue,
            opened => opened?,
        };
        let Some(header) = read_header(files, &*file, slot)? else {
            continue; // an image that was being written
        };
        found.next_capture = found.next_capture.max(header.capture + 1);
        let layout = ImageLayout::new(&files.schema.arrays, header.block_bytes);
        let layout = layout.map_err(damaged(file.path().to_owned(), "remove the file"))?;
        let trailer = read_trailer(files.disk(), &header, &layout, &*file)?;
        if trailer.is_some() && header.tick > until {
            let later = found.later_tick.unwrap_or(u64::MAX);
            found.later_tick = Some(later.min(header.tick));
        } else if let Some(trailer) = trailer {
            candidates.push((Image { header, layout, trailer }, file));
        }
    }
    candidates.sort_by_key(|(image, _)| std::cmp::Reverse(image.header.capture));
    for (image, file) in candidates {
        match load(files, &image, &file, arrays.shared(), threads) {
            Ok(()) => {
                found.recovered.image_bytes = image.layout.file_bytes();
                return Ok(Some(image));
            }
            Err(error @ StateError::Damaged { .. }) => {
                found.damaged_tick = found.damaged_tick.max(image.header.tick);
                found.recovered.damaged_images.push(error);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// `None` if the header is not whole, as while an image is begun.
fn read_header(
    files: &Files,
    file: &dyn DiskFile,
    slot: usize,
) -> Result<Option<ImageHeader>, StateError> {
    let mut page = AlignedBuf::zeroed(HEADER_BYTES);
    let read = file.read_at(&mut page, 0)?;
    let Ok(header) = ImageHeader::decode(&page[..read]) else {
        return Ok(None);
    };
    let cure = "the file belongs to another state, or was renamed; put the right one in its place";
    header.expect(&files.schema, slot as u32).map_err(damaged(file.path().to_owned(), cure))?;
    Ok(Some(header))
}

/// The trailer, or its second copy; `None` if the image was not finished.
fn read_trailer(
    disk: &dyn Disk,
    header: &ImageHeader,
    layout: &ImageLayout,
    file: &dyn DiskFile,
) -> Result<Option<ImageTrailer>, DiskError> {
    let mut page = AlignedBuf::zeroed(TRAILER_BYTES);
    let read = file.read_at(&mut page, layout.trailer_at())?;
    if let Ok(trailer) = ImageTrailer::decode(header, layout, &page[..read]) {
        return Ok(Some(trailer));
    }
    match read_all(disk, &Files::image_trailer_path(header.slot as usize)) {
        Err(error) if error.is_not_found() => Ok(None),
        copy => Ok(ImageTrailer::decode(header, layout, &copy?).ok()),
    }
}

/// Reads all blocks of an image, several threads at once, each verified before it is used.
fn load<S: Scheme>(
    files: &Arc<Files>,
    image: &Image,
    file: &Arc<dyn DiskFile>,
    shared: &Arc<Shared<S>>,
    threads: usize,
) -> Result<(), StateError> {
    let (next, gives_up) = (AtomicU64::new(0), AtomicBool::new(false));
    let work = || -> Result<Vec<(u64, u32)>, StateError> {
        let mut block = AlignedBuf::new();
        let mut checksums = Vec::new();
        // Relaxed: the numbers need only differ, and a hint may be late.
        while !gives_up.load(Relaxed) {
            let Some(place) = image.layout.place(next.fetch_add(1, Relaxed)) else { break };
            block.resize(place.len, 0);
            let loaded = file.read_at(&mut block, place.offset).map_err(StateError::from);
            let loaded = loaded.and_then(|read| {
                let opened = open_block(image.header.identity(), &place, &block[..read]);
                let cure = "the image before and the actions since are used, if they are whole";
                opened.map_err(damaged(file.path().to_owned(), cure))
            });
            let (bytes, checksum) = loaded.inspect_err(|_| gives_up.store(true, Relaxed))?;
            let cells = place.first_cell as usize..(place.first_cell + place.cells) as usize;
            let slot = &shared.slots[place.array as usize];
            with_grid!(&slot.grid, grid => grid.fill_bytes(cells, bytes));
            checksums.push((place.block, checksum));
        }
        Ok(checksums)
    };
    let jobs: Vec<_> = (0..threads.max(1)).map(|_| &work).collect();
    let mut checksums = Vec::new();
    for result in in_parallel("load", jobs)? {
        checksums.extend(result?);
    }
    checksums.sort_unstable();
    let checksums: Vec<u32> = checksums.into_iter().map(|(_, checksum)| checksum).collect();
    let cure = "the image before and the actions since are used, if they are whole";
    let path = files.disk().describe(&Files::image_path(image.slot()));
    image.trailer.verify_chain(&image.layout, &checksums).map_err(damaged(path, cure))
}

/// Makes all cells zero again.
fn clear<S: Scheme>(shared: &Shared<S>) {
    for slot in shared.slots.iter() {
        let zeros = vec![0; slot.info.cell_bytes];
        with_grid!(&slot.grid, grid => {
            for index in 0..grid.cells() {
                grid.fill_bytes(index..index + 1, &zeros);
            }
        });
    }
}

/// Runs the steps since the image again, up to the tick `until`. Returns the last batch read.
fn replay<S: Scheme>(
    files: &Files,
    arrays: &mut Arrays<S>,
    until: u64,
    step: &mut dyn FnMut(&mut Cells<S>, u64, Actions<'_>),
) -> Result<Option<ActionBatchBuilder>, StateError> {
    let image_tick = arrays.ticks();
    mutant!(ReplaysTheImagesTick => arrays.resume_at(image_tick.saturating_sub(1)));
    let segments = files.segments()?;
    let mut last_batch = None;
    for (at, &first) in segments.iter().enumerate() {
        let next = segments.get(at + 1).copied();
        let is_behind = next.is_some_and(|next| next <= arrays.ticks() + 1);
        if !is_behind && arrays.ticks() < until {
            last_batch = replay_segment(files, (first, next), arrays, until, step)?.or(last_batch);
        }
    }
    Ok(last_batch)
}

/// Replays a segment up to the tick with which the next one begins. Returns the last batch of the
/// segment.
fn replay_segment<S: Scheme>(
    files: &Files,
    (first_tick, next): (u64, Option<u64>),
    arrays: &mut Arrays<S>,
    until: u64,
    step: &mut dyn FnMut(&mut Cells<S>, u64, Actions<'_>),
) -> Result<Option<ActionBatchBuilder>, StateError> {
    let path = Files::segment_path(first_tick);
    let bytes = read_all(files.disk(), &path)?;
    let described = files.disk().describe(&path);
    let cure = "actions that were durable are lost: restore the file from a copy";
    let header = match ActionSegmentHeader::decode(&bytes) {
        Ok(header) => header,
        // The header is flushed with the first batch, and a second batch is written after that. So
        // without a second batch the segment was just being begun, and nothing in it was ever
        // durable.
        Err(_) if next.is_none() && !has_second_batch(&bytes) => return Ok(None),
        Err(error) => return Err(damaged(described, cure)(error)),
    };
    header.expect(files.schema.store, first_tick).map_err(damaged(described.clone(), cure))?;
    let identity = header.identity();
    let (mut offset, mut number, mut last) = (HEADER_BYTES, 0, None);
    loop {
        let rest = bytes.get(offset..).unwrap_or_default();
        let batch = match read_action_batch(identity, offset as u64, number, rest) {
            // The next segment holds these ticks, or other ticks in their place.
            Ok(batch) if next.is_some_and(|next| next <= batch.first_tick) => break,
            Ok(batch) => batch,
            Err(error) if valid_batch_behind(identity, offset as u64, number, rest).is_some() => {
                return Err(damaged(described, cure)(error));
            }
            Err(_) => break, // the end, or what was being written at the crash
        };
        replay_batch(&batch, &described, arrays, until, step)?;
        offset += batch.len;
        number += 1;
        last = Some(batch);
        if arrays.ticks() == until {
            break;
        }
    }
    Ok(last.as_ref().map(ActionBatchBuilder::copy_of))
}

/// True if a batch lies where a second one would.
fn has_second_batch(bytes: &[u8]) -> bool {
    let batch = bytes.get(HEADER_BYTES..).unwrap_or_default();
    announced_batch_bytes(batch)
        .and_then(|len| batch.get(len..))
        .is_some_and(|next| announced_batch_bytes(next).is_some())
}

fn replay_batch<S: Scheme>(
    batch: &ActionBatch<'_>,
    path: &Path,
    arrays: &mut Arrays<S>,
    until: u64,
    step: &mut dyn FnMut(&mut Cells<S>, u64, Actions<'_>),
) -> Result<(), StateError> {
    let expected = arrays.ticks() + 1;
    if batch.first_tick > expected {
        let found = batch.first_tick;
        return Err(StateError::Gap { expected, found, path: path.to_owned() });
    }
    let cure = "restore the file from a copy";
    batch.for_each_step(|frame| {
        let frame = frame.map_err(damaged(path.to_owned(), cure))?;
        run_up_to(arrays, until.min(frame.tick - 1), step);
        if frame.tick > arrays.ticks() && frame.tick <= until {
            step(arrays, frame.tick, Actions::of(frame.actions));
            arrays.end_tick();
        }
        Ok::<(), StateError>(())
    })?;
    run_up_to(arrays, until.min(batch.last_tick), step);
    Ok(())
}

/// Runs steps without actions.
fn run_up_to<S: Scheme>(
    arrays: &mut Arrays<S>,
    tick: u64,
    step: &mut dyn FnMut(&mut Cells<S>, u64, Actions<'_>),
) {
    while arrays.ticks() < tick {
        let tick = arrays.ticks() + 1;
        step(arrays, tick, Actions::of(&[]));
        arrays.end_tick();
    }
}
