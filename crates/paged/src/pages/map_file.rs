//! The map file: rounds that write what has changed, and the start that reads it all.
//!
//! ```text
//! begin ─▶ header and changed blocks ─▶ flush ─▶ [the MANIFEST names the round] ─▶ the same bytes
//!          into the place that does not count           │ or: given up              into the other place
//! ```
//! 1. Of each block and of the header, the place that counts is not written before the MANIFEST
//!    names a later round. So a crash leaves one whole copy that counts.
//! 2. After a round that counts both places have the same bytes. So damage of one of them is
//!    harmless. A start finds the blocks that a crash has kept from this, and the next round writes
//!    them.
//! 3. Numbers of rounds are never used twice, also after a crash. So what a given-up round has left
//!    never counts later: the next round writes those blocks, too.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use stillpoint_format::ident::{HEADER_BYTES, StoreId};
use stillpoint_format::pages::{
    MAP_BLOCK_BYTES, MAP_HEADER_PLACES, MapBlock, MapHeader, encode_map_block, map_block_offset,
    map_file_bytes,
};
use stillpoint_format::{DecodeCause, DecodeError};
use stillpoint_io::{AlignedBuf, DiskFile, DiskResult, Queue, Transfer};
use stillpoint_sync::mutant;

use super::error::PagesError;
use super::map::{Entries, PageMap};
use super::planted;

/// Blocks whose writes are under way at a time.
const WRITES_AT_ONCE: usize = 64;
/// Blocks that a start reads at once, both places of each.
const BLOCKS_AT_ONCE: u64 = 128;
/// The map file grows in steps of so many blocks.
const GROWTH_BLOCKS: u64 = 64;

/// The map file of an open store.
#[derive(Debug)]
pub(super) struct MapFile {
    file: Arc<dyn DiskFile>,
    queue: Arc<Queue>,
    store: StoreId,
    /// The greatest number of a round that the file may hold.
    number: u64,
    /// Blocks of which the file has room for both places.
    room: u64,
    /// For each block, the place that the next round writes. A missing one is 0.
    places: Vec<u8>,
    header_place: usize,
    /// The round that was written and does not count yet.
    round: Option<Round>,
}

/// A round.
#[derive(Debug)]
struct Round {
    header: MapHeader,
    blocks: Vec<(u64, Entries)>,
}

/// What a start has found in the map file.
#[derive(Debug)]
pub(super) struct LoadedMap {
    pub(super) file: MapFile,
    pub(super) header: MapHeader,
    /// Copies that cannot be used. Their other copies are whole.
    pub(super) unused_copies: Vec<DecodeError>,
}

impl MapFile {
    /// The map of an empty store, in an empty file.
    pub(super) fn empty(file: Arc<dyn DiskFile>, queue: Arc<Queue>, store: StoreId) -> Self {
        Self {
            file,
            queue,
            store,
            number: 0,
            room: 0,
            places: Vec::new(),
            header_place: 0,
            round: None,
        }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.file.path().to_owned()
    }

    /// Writes and flushes a round: a header and the changed blocks. `header` has no number yet.
    /// Returns the number. Room must be there ([`make_room`](Self::make_room)).
    ///
    /// # Errors
    /// The disk has failed. Then nothing is known of the file.
    pub(super) fn write_round(
        &mut self,
        mut header: MapHeader,
        blocks: Vec<(u64, Entries)>,
    ) -> DiskResult<u64> {
        assert!(self.round.is_none(), "one round at a time");
        self.number += 1;
        header.number = self.number;
        header.written = blocks.len() as u64;
        self.places.resize(header.blocks as usize, 0);
        let round = Round { header, blocks };
        self.write(&round, |place| place)?;
        mutant!(MapInPlace => self.write(&round, |place| 1 - place)?);
        mutant!(self.file.sync()?, MapNotFlushed => ());
        self.round = Some(round);
        Ok(self.number)
    }

    /// Makes room for so many blocks.
    ///
    /// # Errors
    /// The disk is full, or has failed.
    pub(super) fn make_room(&mut self, blocks: u64) -> DiskResult<()> {
        if blocks > self.room {
            let room = blocks.next_multiple_of(GROWTH_BLOCKS);
            self.file.allocate(map_file_bytes(room))?;
            self.room = room;
        }
        Ok(())
    }

    /// Writes a round into the places that the function makes of the next ones. The header comes
    /// last.
    fn write(&self, round: &Round, place_of: impl Fn(u8) -> u8) -> DiskResult<()> {
        let number = round.header.number;
        for blocks in round.blocks.chunks(WRITES_AT_ONCE) {
            let write = |(block, entries): &(u64, Entries)| {
                let place = u64::from(place_of(self.places[*block as usize]));
                let bytes = encode_map_block(self.store, (*block, place), number, entries);
                self.write_bytes(&bytes, map_block_offset(*block, place))
            };
            self.end_writes(blocks.iter().map(write).collect())?;
        }
        let place = usize::from(place_of(self.header_place as u8));
        let header = self.write_bytes(&round.header.encode(), MAP_HEADER_PLACES[place]);
        self.end_writes(vec![header])
    }

    fn write_bytes(&self, bytes: &[u8], offset: u64) -> Transfer {
        let mut buf = AlignedBuf::with_capacity(bytes.len());
        buf.extend_from_slice(bytes);
        self.queue.write(&self.file, buf, offset)
    }

    /// Waits for all of the writes, also after a failure.
    fn end_writes(&self, writes: Vec<Transfer>) -> DiskResult<()> {
        self.queue.submit();
        let mut failed = None;
        for write in writes {
            self.queue.wait(&write);
            failed = failed.or(write.take().and_then(|ended| ended.result.err()));
        }
        failed.map_or(Ok(()), Err)
    }

    /// The round counts: its bytes go to the other place, too.
    ///
    /// # Errors
    /// The disk has failed.
    ///
    /// # Panics
    /// If this is not the last round.
    pub(super) fn round_counts(&mut self, number: u64) -> DiskResult<()> {
        let Some(round) = self.round.take() else { panic!("no round is open") };
        assert_eq!(round.header.number, number, "another round");
        self.write(&round, |place| 1 - place)?;
        self.file.sync()
    }

    /// The round will never count. Returns its blocks, which the next round writes.
    pub(super) fn give_up_round(&mut self) -> Vec<u64> {
        let round = self.round.take();
        round
            .map(|round| round.blocks.iter().map(|(block, _)| *block).collect())
            .unwrap_or_default()
    }

    /// Reads the map as the round `counts` has left it, into an empty map in memory.
    ///
    /// # Errors
    /// A defect of the file, a contradiction to the MANIFEST, or an error of the disk.
    pub(super) fn load(
        file: Arc<dyn DiskFile>,
        queue: Arc<Queue>,
        store: StoreId,
        counts: u64,
        map: &PageMap,
    ) -> Result<LoadedMap, PagesError> {
        let mut unused_copies = Vec::new();
        let (header, header_place, newest) =
            read_header(&*file, store, counts, &mut unused_copies)?;
        let mut loaded = Self::empty(file, queue, store);
        loaded.number = newest.max(counts);
        loaded.header_place = header_place;
        let mut written = 0;
        let mut first = 0;
        while first < header.blocks {
            let blocks = (header.blocks - first).min(BLOCKS_AT_ONCE);
            written +=
                loaded.load_blocks(first..first + blocks, counts, map, &mut unused_copies)?;
            first += blocks;
        }
        let written = mutant!(written, RoundNotCounted => header.written);
        if written != header.written {
            let reason = format!(
                "round {counts} of the map has written {} blocks, and {written} of them are there",
                header.written
            );
            return Err(PagesError::Map { file: loaded.path(), reason });
        }
        loaded.room = loaded.file.len()?.saturating_sub(map_file_bytes(0))
            / (map_file_bytes(1) - map_file_bytes(0));
        loaded.look_beyond(header.blocks)?;
        Ok(LoadedMap { file: loaded, header, unused_copies })
    }

    /// Reads some blocks. Returns how many of them are of the round that counts.
    fn load_blocks(
        &mut self,
        blocks: Range<u64>,
        counts: u64,
        map: &PageMap,
        unused_copies: &mut Vec<DecodeError>,
    ) -> Result<u64, PagesError> {
        let start = map_block_offset(blocks.start, 0);
        let bytes = (map_block_offset(blocks.end, 0) - start) as usize;
        let mut buf = AlignedBuf::zeroed(bytes);
        let found = self.file.read_at(&mut buf, start)?;
        buf.truncate(found);
        let mut written = 0;
        for block in blocks {
            let copy = |place| {
                let at = (map_block_offset(block, place) - start) as usize;
                let end = (at + MAP_BLOCK_BYTES).min(buf.len());
                MapBlock::decode(self.store, (block, place), buf.get(at..end).unwrap_or(&[]))
            };
            let copies = [copy(0), copy(1)];
            let newest = copies.iter().flatten().map(|copy| copy.number).max().unwrap_or(0);
            self.number = self.number.max(newest);
            let chosen = choose(&copies, counts);
            let Some(place) = chosen else {
                let [first, second] = copies;
                let cause = first.err().or(second.err()).unwrap_or(DecodeError {
                    what: "page map block",
                    offset: map_block_offset(block, 0),
                    cause: DecodeCause::Inconsistent("both copies are newer than the MANIFEST"),
                });
                return Err(PagesError::MapBlock { file: self.path(), cause });
            };
            let [first, second] = &copies;
            let Ok(counting) = [first, second][place] else { unreachable!("it was chosen") };
            written += u64::from(counting.number == counts);
            map.load(block, counting.entries())?;
            self.places.push(1 - place as u8);
            let are_equal = matches!(
                (first, second),
                (Ok(first), Ok(second)) if first.number == second.number
            );
            if !are_equal {
                map.mark_changed([block]);
            }
            unused_copies.extend(copies.into_iter().filter_map(Result::err));
        }
        Ok(written)
    }

    /// Looks for the numbers of rounds in blocks that the round that counts does not have.
    fn look_beyond(&mut self, blocks: u64) -> DiskResult<()> {
        let mut buf = AlignedBuf::zeroed(MAP_BLOCK_BYTES);
        for block in blocks..self.room {
            for place in 0..2 {
                let found = self.file.read_at(&mut buf, map_block_offset(block, place))?;
                if let Ok(copy) = MapBlock::decode(self.store, (block, place), &buf[..found]) {
                    self.number = self.number.max(copy.number);
                }
            }
        }
        Ok(())
    }
}

/// The place of the newest copy that counts.
fn choose(copies: &[Result<MapBlock<'_>, DecodeError>; 2], counts: u64) -> Option<usize> {
    let counts = mutant!(counts, NewestBlockTaken => u64::MAX);
    let number = |place: usize| copies[place].as_ref().ok().map(|copy| copy.number);
    let places = (0..2).filter(|place| number(*place).is_some_and(|number| number <= counts));
    places.max_by_key(|place| number(*place))
}

/// Reads the header of the round that counts. Returns it with the place that the next round writes,
/// and the newest number in both places.
fn read_header(
    file: &dyn DiskFile,
    store: StoreId,
    counts: u64,
    unused_copies: &mut Vec<DecodeError>,
) -> Result<(MapHeader, usize, u64), PagesError> {
    let mut buf = AlignedBuf::zeroed(HEADER_BYTES);
    let mut headers = Vec::new();
    for offset in MAP_HEADER_PLACES {
        let found = file.read_at(&mut buf, offset)?;
        headers.push(MapHeader::decode(&buf[..found]));
    }
    let path = || file.path().to_owned();
    let newest = headers.iter().flatten().map(|header| header.number).max().unwrap_or(0);
    let is_chosen = |header: &&MapHeader| header.number == counts;
    let Some(header) = headers.iter().flatten().find(is_chosen) else {
        return Err(match headers.into_iter().find_map(Result::err) {
            Some(cause) => PagesError::MapBlock { file: path(), cause },
            None => {
                let reason = format!("MANIFEST names round {counts}, the file has round {newest}");
                PagesError::Map { file: path(), reason }
            }
        });
    };
    if header.store != store {
        let (found, expected) = (header.store, store);
        let cause = DecodeCause::WrongStore { found, expected };
        let cause = DecodeError { what: "page map header", offset: 0, cause };
        return Err(PagesError::MapBlock { file: path(), cause });
    }
    let other =
        headers.iter().position(|other| !other.as_ref().is_ok_and(|other| other.number == counts));
    let header = *header;
    unused_copies.extend(headers.into_iter().filter_map(Result::err));
    Ok((header, other.unwrap_or(0), newest))
}
