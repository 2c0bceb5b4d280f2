//! Rebuilds a lost manifest from the files that it named.
//!
//! | field | where it is found |
//! |---|---|
//! | store, seed of the key hash | header of a checkpoint's part; the store also in a segment's |
//! | checkpoints | their directories, each part read from end to end |
//! | what a checkpoint of changes goes on from | headers of its parts |
//! | where replay begins | a record carries its epoch, and a checkpoint holds all epochs before its own |
//! | whether the logs continue the newest checkpoint | no newer one was given up, or each log begins before that checkpoint's epoch |
//! | incarnations, logs, floors | names of the segments |
//! | cuts | found again for one incarnation after the other, as the starts had found them |
//! | copied ends | headers of the copies; a copy counts if the log does not reach further without it |
//! | tables, generations | checkpoints and records; names and kinds in nothing but the manifest |

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stillpoint_checkpoint::LoadError;
use stillpoint_format::LogGsn;
use stillpoint_format::ident::{HEADER_BYTES, StoreId};
use stillpoint_format::log::SegmentHeader;
use stillpoint_format::manifest::{
    CheckpointEntry, CheckpointKind, IncarnationEntry, LogPositions, LogTail, Manifest, TableEntry,
};
use stillpoint_format::names;
use stillpoint_io::{Caching, Disk, DiskError, OpenMode};
use stillpoint_journal::{ReplayStart, ScanInput, scan_accepting_loss, segment_begin};

use crate::error::RecoveryError;
use crate::run::unknown_kind;
use crate::verify::read_all;

/// A rebuilt manifest.
#[derive(Clone, Debug)]
pub struct Rebuilt {
    /// The manifest, whose latest incarnation is not over.
    pub manifest: Manifest,
    /// Losses with the old manifest, in sentences: facts that no file tells.
    pub gives_up: Vec<String>,
    /// Whether the logs may lack records after the newest checkpoint. Then no record of the logs
    /// counts.
    pub logs_are_lost: bool,
}

/// The files of a data directory, by their names and headers.
#[derive(Debug, Default)]
struct Found {
    store: Option<StoreId>,
    hash_seed: Option<u64>,
    /// The checkpoints, by epoch.
    checkpoints: Vec<CheckpointEntry>,
    next_serial: u64,
    given_up: Vec<GivenUp>,
    /// The log and the first gsn of each segment, by incarnation.
    segments: BTreeMap<u32, Vec<(u8, u64)>>,
    /// Copied ends of logs, each with the incarnation whose log it ends.
    tails: Vec<(u32, LogTail)>,
    /// The greatest incarnation in any header, also of prepared segments. None of these
    /// incarnations may write again.
    incarnation_max: u32,
    created_ms: u64,
}

/// A checkpoint that is damaged, or that goes on from a damaged one.
#[derive(Debug)]
struct GivenUp {
    dir: String,
    /// The checkpoint's epoch. `None` if no header tells the epoch.
    epoch: Option<u64>,
}

impl GivenUp {
    fn may_be_after(&self, epoch: u64) -> bool {
        self.epoch.is_none_or(|own| own > epoch)
    }
}

/// Rebuilds a manifest from the other files. Changes nothing on disk. `remembered` has remembered names
/// and kinds of tables. `None` if there is neither a checkpoint nor a segment.
///
/// # Errors
/// A disk that refuses. Damage is no error; the result states its cost.
pub fn rebuild(
    disk: &Arc<dyn Disk>,
    remembered: &[TableEntry],
    threads: usize,
) -> Result<Option<Rebuilt>, RecoveryError> {
    let mut gives_up = Vec::new();
    let mut found = Found { created_ms: u64::MAX, next_serial: 1, ..Found::default() };
    found.find_checkpoints(disk, &mut gives_up)?;
    found.find_segments(&**disk)?;
    let Some(store) = found.store else { return Ok(None) };
    found.checkpoints.sort_by_key(|entry| (entry.epoch, entry.serial));
    // Two checkpoints of one epoch are two attempts. A manifest may have named only the later
    // attempt.
    found.checkpoints.reverse();
    found.checkpoints.dedup_by_key(|entry| entry.epoch);
    found.checkpoints.reverse();
    found.drop_without_base(&mut gives_up);
    let mut manifest = Manifest {
        store,
        hash_seed: found
            .hash_seed
            .unwrap_or(u64::from_le_bytes(store.0[..8].try_into().expect("8 of 16"))),
        created_ms: found.created_ms,
        next_epoch: found.checkpoints.last().map_or(1, |entry| entry.epoch),
        next_serial: found.next_serial,
        tables: Vec::new(),
        kinds: Vec::new(),
        checkpoints: found.checkpoints.clone(),
        incarnations: found.incarnations(),
        clean_shutdown: None,
    };
    let gap = found.gap(&**disk, store, manifest.checkpoints.last())?;
    let logs_are_lost = gap.is_some();
    gives_up.extend(gap);
    match (manifest.checkpoints.last_mut(), manifest.incarnations.first()) {
        (None, _) => {
            gives_up.push("what was in a checkpoint only: no whole one was found".to_owned())
        }
        (Some(newest), Some(oldest)) if !logs_are_lost => {
            // Segments before the first existing one were freed, so the checkpoint holds their
            // records.
            let logs = found.first_gsns();
            newest.positions = vec![LogPositions { incarnation: oldest.number, logs }];
        }
        _ => {}
    }
    if !logs_are_lost {
        found.find_cuts(disk, &mut manifest, threads)?;
    }
    find_tables(disk, &mut manifest, logs_are_lost, threads)?;
    name_tables(&mut manifest, remembered, &mut gives_up);
    for checkpoint in &manifest.checkpoints {
        let (epoch, parts) = (checkpoint.epoch, checkpoint.parts.len());
        gives_up.push(format!(
            "the number of parts of checkpoint {epoch}: the {parts} that are there are taken for all"
        ));
    }
    gives_up.push(
        "flushes of whole tables, where nothing was written to the table since: what they removed \
         is there again"
            .to_owned(),
    );
    Ok(Some(Rebuilt { manifest, gives_up, logs_are_lost }))
}

impl Found {
    fn find_checkpoints(
        &mut self,
        disk: &Arc<dyn Disk>,
        gives_up: &mut Vec<String>,
    ) -> Result<(), RecoveryError> {
        for name in list(&**disk, Path::new(names::CHECKPOINT_DIR))? {
            let Some((serial, kind)) = names::parse_checkpoint_name(&name) else { continue };
            self.next_serial = self.next_serial.max(serial.saturating_add(1));
            match stillpoint_checkpoint::describe(disk, serial, kind) {
                Ok(described) if self.store.is_none_or(|store| store == described.store) => {
                    self.store = Some(described.store);
                    self.hash_seed = Some(described.hash_seed);
                    self.created_ms = self.created_ms.min(described.entry.started_ms);
                    self.checkpoints.push(described.entry);
                }
                Ok(_) => {
                    gives_up.push(format!("{}/{name}: of another store", names::CHECKPOINT_DIR))
                }
                Err(LoadError::Damaged(damage)) => {
                    let epoch = stillpoint_checkpoint::epoch_of(&**disk, serial, kind)?;
                    let dir = format!("{}/{name}", names::CHECKPOINT_DIR);
                    self.given_up.push(GivenUp { dir, epoch });
                    gives_up.push(damage.to_string());
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Gives up each checkpoint of changes that goes on from a damaged or a missing one.
    fn drop_without_base(&mut self, gives_up: &mut Vec<String>) {
        let mut kept: Vec<CheckpointEntry> = Vec::new();
        for entry in std::mem::take(&mut self.checkpoints) {
            let base = entry.base;
            let has_base = kept.iter().any(|before| Some(before.epoch) == base);
            if has_base || entry.kind == CheckpointKind::Full {
                kept.push(entry);
                continue;
            }
            let (epoch, dir) = (entry.epoch, names::checkpoint_dir(entry.serial, entry.kind));
            let base = base.map_or_else(String::new, |base| format!(" {base}"));
            gives_up.push(format!(
                "{dir}, the changes of checkpoint {epoch}: checkpoint{base}, from which it goes on, \
                 is damaged or missing"
            ));
            self.given_up.push(GivenUp { dir, epoch: Some(epoch) });
        }
        self.checkpoints = kept;
    }

    /// Why the logs may lack records that no remaining checkpoint has either; `None` if they
    /// cannot. A checkpoint was given up after `newest`, and its publication may have freed
    /// segments. The first remaining segment of each log tells. If that segment has a record of an
    /// epoch before that of `newest`, the checkpoint `newest` holds everything before the segment.
    fn gap(
        &self,
        disk: &dyn Disk,
        store: StoreId,
        newest: Option<&CheckpointEntry>,
    ) -> Result<Option<String>, RecoveryError> {
        let epoch = newest.map_or(0, |newest| newest.epoch);
        let later = self.given_up.iter().filter(|of| of.may_be_after(epoch));
        let later: Vec<&str> = later.map(|of| &*of.dir).collect();
        if later.is_empty() && newest.is_some() {
            return Ok(None);
        }
        let mut logs: BTreeMap<u8, Vec<(u32, u64)>> = BTreeMap::new();
        for (&incarnation, segments) in &self.segments {
            for &(log, first_gsn) in segments {
                logs.entry(log).or_default().push((incarnation, first_gsn));
            }
        }
        for (log, mut segments) in logs {
            segments.sort_unstable();
            let begins = begin_of_log(disk, store, log, &segments)?;
            let goes_on = match begins {
                Begin::OfStore => true,
                // Without any checkpoint the number of the first batch tells that some segments
                // were freed.
                Begin::At { batch, .. } if later.is_empty() => batch == 1,
                Begin::At { epoch: first, .. } => first.is_none_or(|first| first < epoch),
                Begin::Unknown => false,
            };
            if !goes_on {
                let left = match newest {
                    Some(_) => format!("checkpoint {epoch} is the newest that is left"),
                    None => "no checkpoint is left".to_owned(),
                };
                let cure = match later.is_empty() {
                    true => "a checkpoint".to_owned(),
                    false => later.join(" and "),
                };
                let dir = names::log_dir(log);
                return Ok(Some(format!(
                    "all logs: {left}, and {dir} may lack records after it, which were freed; a \
                     sound copy of {cure} would keep them"
                )));
            }
        }
        Ok(None)
    }

    fn find_segments(&mut self, disk: &dyn Disk) -> Result<(), RecoveryError> {
        for log in
            list(disk, Path::new(names::LOG_DIR))?.iter().filter_map(|n| names::parse_log_name(n))
        {
            let dir = PathBuf::from(names::log_dir(log));
            for name in list(disk, &dir)? {
                let header = header_of(disk, &dir.join(&name))?;
                if let Some(header) = &header {
                    self.store.get_or_insert(header.store);
                    self.created_ms = self.created_ms.min(header.created_ms);
                    self.incarnation_max = self.incarnation_max.max(header.incarnation);
                }
                if let Some((incarnation, first_gsn)) = names::parse_segment_name(&name) {
                    self.segments.entry(incarnation).or_default().push((log, first_gsn));
                } else if let Some((made_by, incarnation)) = names::parse_tail_name(&name)
                    && let Some(SegmentHeader { first_batch, first_gsn, .. }) = header
                {
                    self.tails
                        .push((incarnation, LogTail { log, made_by, first_batch, first_gsn }));
                }
            }
        }
        Ok(())
    }

    /// The incarnations that have segments, without cuts. Another entry follows if a file shows
    /// that there was a later incarnation.
    fn incarnations(&self) -> Vec<IncarnationEntry> {
        let entry = |number, gsn_floor, logs| IncarnationEntry {
            number,
            gsn_floor,
            logs,
            cut: None,
            calls: false,
            tails: Vec::new(),
            scheme: None,
        };
        let mut entries: Vec<_> = self
            .segments
            .iter()
            .map(|(&number, segments)| {
                let first_gsn = segments.iter().map(|of| of.1).min().unwrap_or(1);
                let logs = segments.iter().map(|of| of.0 + 1).max().unwrap_or(0);
                entry(number, first_gsn.saturating_sub(1), logs)
            })
            .collect();
        let last = entries.last().map_or((0, 0), |last| (last.number, last.gsn_floor));
        if self.incarnation_max > last.0 {
            entries.push(entry(self.incarnation_max, last.1, 0));
        }
        entries
    }

    /// For each log, the gsn before the first existing segment.
    fn first_gsns(&self) -> Vec<LogGsn> {
        let mut first: BTreeMap<u8, u64> = BTreeMap::new();
        for &(log, first_gsn) in self.segments.values().flatten() {
            let gsn = first.entry(log).or_insert(u64::MAX);
            *gsn = (*gsn).min(first_gsn.saturating_sub(1));
        }
        first.into_iter().map(|(log, gsn)| LogGsn { log, gsn }).collect()
    }

    /// Finds the cuts of all incarnations but the latest.
    fn find_cuts(
        &self,
        disk: &Arc<dyn Disk>,
        manifest: &mut Manifest,
        threads: usize,
    ) -> Result<(), RecoveryError> {
        for at in 0..manifest.incarnations.len().saturating_sub(1) {
            let floor_of_next = manifest.incarnations[at + 1].gsn_floor;
            let mut known = manifest.clone();
            known.incarnations.truncate(at + 1);
            let without = cut_of(disk, &known, threads)?;
            known.incarnations[at].tails = self.tails_of(known.incarnations[at].number);
            let with = cut_of(disk, &known, threads)?;
            let reaches = |end: &LogGsn| {
                with.iter().find(|of| of.log == end.log).map_or(0, |of| of.gsn) >= end.gsn
            };
            let entry = &mut manifest.incarnations[at];
            let mut cut = if without.iter().all(reaches) {
                entry.tails = known.incarnations.swap_remove(at).tails;
                with
            } else {
                without
            };
            cut.iter_mut().for_each(|end| end.gsn = end.gsn.min(floor_of_next));
            entry.tails.retain(|tail| {
                cut.iter().any(|end| end.log == tail.log && end.gsn >= tail.first_gsn)
            });
            entry.cut = Some(cut);
        }
        Ok(())
    }

    /// The copied ends of an incarnation's logs, the latest copy of each.
    fn tails_of(&self, incarnation: u32) -> Vec<LogTail> {
        let mut latest: BTreeMap<u8, LogTail> = BTreeMap::new();
        for (_, tail) in self.tails.iter().filter(|(of, _)| *of == incarnation) {
            let known = latest.entry(tail.log).or_insert(*tail);
            if tail.made_by > known.made_by {
                *known = *tail;
            }
        }
        latest.into_values().collect()
    }
}

/// Where a log begins.
enum Begin {
    /// The log's first batch is the first of the store.
    OfStore,
    /// The number of the log's first batch, and the epoch of its first record, if it has a record.
    At { batch: u64, epoch: Option<u64> },
    /// The log's first segment is damaged.
    Unknown,
}

/// Where the segments of a log begin, given by incarnation and first gsn, in order.
fn begin_of_log(
    disk: &dyn Disk,
    store: StoreId,
    log: u8,
    segments: &[(u32, u64)],
) -> Result<Begin, RecoveryError> {
    let mut first = None;
    for &(incarnation, first_gsn) in segments {
        let name = names::segment_name(incarnation, first_gsn);
        let path = Path::new(&names::log_dir(log)).join(name);
        let begin = match segment_begin(disk, &path, store, (incarnation, log, first_gsn)) {
            Ok(begin) => begin,
            Err(why) if why.is_damage() => return Ok(Begin::Unknown),
            Err(why) => return Err(why.into()),
        };
        if first.is_none() && incarnation == 1 && begin.first_batch == 1 {
            return Ok(Begin::OfStore);
        }
        let batch = *first.get_or_insert(begin.first_batch);
        if begin.first_epoch.is_some() {
            return Ok(Begin::At { batch, epoch: begin.first_epoch });
        }
    }
    Ok(first.map_or(Begin::Unknown, |batch| Begin::At { batch, epoch: None }))
}

/// The names in a directory. Empty if the directory is missing.
fn list(disk: &dyn Disk, dir: &Path) -> Result<Vec<String>, RecoveryError> {
    match disk.list(dir) {
        Ok(found) => Ok(found),
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        Err(error) => Err(refused(error)),
    }
}

/// The header of a file that may be a segment.
fn header_of(disk: &dyn Disk, path: &Path) -> Result<Option<SegmentHeader>, RecoveryError> {
    let file = disk.open(path, OpenMode::Read, Caching::Buffered).map_err(refused)?;
    let mut block = vec![0; HEADER_BYTES];
    let read = file.read_at(&mut block, 0).map_err(refused)?;
    Ok(SegmentHeader::decode(&block[..read]).ok())
}

fn refused(error: DiskError) -> RecoveryError {
    LoadError::from(error).into()
}

/// The records of the latest incarnation that a start would keep.
fn cut_of(
    disk: &Arc<dyn Disk>,
    manifest: &Manifest,
    threads: usize,
) -> Result<Vec<LogGsn>, RecoveryError> {
    let start = start_of(manifest);
    let (logs, _) = scan_accepting_loss(disk, &input(manifest, &start, threads), &[])?;
    Ok(logs.cut())
}

/// Adds the tables that checkpoints and logs know, each with its greatest generation, and raises
/// the next epoch above all that are there.
fn find_tables(
    disk: &Arc<dyn Disk>,
    manifest: &mut Manifest,
    logs_are_lost: bool,
    threads: usize,
) -> Result<(), RecoveryError> {
    let mut tables: BTreeMap<u16, u32> = BTreeMap::new();
    let mut note = |table: u16, generation: u32| {
        let known = tables.entry(table).or_insert(generation);
        *known = generation.max(*known);
    };
    for of in manifest.checkpoints.iter().flat_map(|entry| &entry.generations) {
        note(of.table, of.generation);
    }
    let start = ReplayStart { is_lost: logs_are_lost, ..start_of(manifest) };
    let (logs, _) = scan_accepting_loss(disk, &input(manifest, &start, threads), &[])?;
    let mut rounds = logs.replay(read_all(threads), &|_, _| 0);
    while let Some(round) = rounds.next_round()? {
        if let Some(record) = round.operations().first() {
            return Err(unknown_kind(record));
        }
        if let Some(call) = round.calls().first() {
            return Err(RecoveryError::CallsWithoutManifest { log: call.log, gsn: call.gsn });
        }
        for write in round.partition(0) {
            note(write.write.table, write.write.generation);
        }
    }
    manifest.next_epoch = manifest.next_epoch.max(logs.epoch_max().saturating_add(1));
    let entry = |(id, generation)| TableEntry::new(id, "", generation);
    manifest.tables = tables.into_iter().map(entry).collect();
    Ok(())
}

fn start_of(manifest: &Manifest) -> ReplayStart {
    let newest = manifest.checkpoints.last();
    newest.map_or_else(ReplayStart::default, |checkpoint| {
        ReplayStart::after(checkpoint, &manifest.incarnations)
    })
}

fn input<'a>(manifest: &'a Manifest, start: &'a ReplayStart, threads: usize) -> ScanInput<'a> {
    ScanInput {
        store: manifest.store,
        incarnations: &manifest.incarnations,
        clean_shutdown: None,
        next_epoch: u64::MAX,
        start,
        threads: threads.max(1),
        progress: &|_, _| {},
    }
}

/// Gives each table its remembered name and kind, or an invented name. Tables of which only a name is
/// known are added, too.
fn name_tables(manifest: &mut Manifest, remembered: &[TableEntry], gives_up: &mut Vec<String>) {
    let mut with_kind = BTreeSet::new();
    for entry in remembered {
        let is_taken = manifest.tables.iter().any(|table| table.name == entry.name);
        let is_free = !entry.name.is_empty() && !is_taken;
        match manifest.tables.iter_mut().find(|table| table.id == entry.id) {
            Some(table) => {
                if with_kind.insert(entry.id) {
                    table.kind.clone_from(&entry.kind);
                }
                if is_free && table.name.is_empty() {
                    table.name.clone_from(&entry.name);
                }
            }
            None if is_free => {
                with_kind.insert(entry.id);
                manifest.tables.push(entry.clone());
            }
            None => {}
        }
    }
    manifest.tables.sort_by_key(|table| table.id);
    let taken: Vec<String> = manifest.tables.iter().map(|table| table.name.clone()).collect();
    let mut unnamed = Vec::new();
    for table in manifest.tables.iter_mut().filter(|table| table.name.is_empty()) {
        let mut name = format!("table-{}", table.id);
        while taken.contains(&name) {
            name.push('-');
        }
        unnamed.push(name.clone());
        table.name = name;
    }
    if !unnamed.is_empty() {
        gives_up.push(format!("names of tables: they are called {} now", unnamed.join(", ")));
    }
    let of_no_kind = manifest.tables.iter().filter(|table| !with_kind.contains(&table.id));
    let of_no_kind: Vec<&str> = of_no_kind.map(|table| &*table.name).collect();
    if !of_no_kind.is_empty() {
        gives_up.push(format!(
            "which tables were ordered: {} have no order of keys now; copy the records of those that \
             need one into a new ordered table",
            of_no_kind.join(", ")
        ));
    }
}

#[cfg(test)]
mod tests {
    use stillpoint_format::manifest::TableKind;

    use super::*;

    #[test]
    fn a_name_goes_to_one_table() {
        let mut manifest = Manifest {
            store: StoreId([1; 16]),
            hash_seed: 0,
            created_ms: 0,
            next_epoch: 1,
            next_serial: 1,
            tables: [(4, 2), (0, 3), (5, 1)].map(|(id, of)| TableEntry::new(id, "", of)).to_vec(),
            kinds: Vec::new(),
            checkpoints: Vec::new(),
            incarnations: Vec::new(),
            clean_shutdown: None,
        };
        // The second name is taken, the third is no name, and the two of table 3 belong to an unknown
        // table. The name of table 5 is taken, and its kind counts.
        let names =
            [(0, "orders"), (1, "orders"), (2, ""), (3, "items"), (3, "others"), (5, "orders")];
        let mut remembered = names.map(|(id, name)| TableEntry::new(id, name, 1));
        remembered[0].kind = TableKind::Ordered;
        remembered[5].kind = TableKind::Ordered;
        let mut gives_up = Vec::new();
        name_tables(&mut manifest, &remembered, &mut gives_up);
        let expected = [
            TableEntry { kind: TableKind::Ordered, ..TableEntry::new(0, "orders", 3) },
            TableEntry::new(3, "items", 1),
            TableEntry::new(4, "table-4", 2),
            TableEntry { kind: TableKind::Ordered, ..TableEntry::new(5, "table-5", 1) },
        ];
        assert_eq!(manifest.tables, expected);
        let [names, kinds] = &gives_up[..] else { panic!("{gives_up:?}") };
        assert_eq!(names, "names of tables: they are called table-4, table-5 now");
        assert!(kinds.starts_with("which tables were ordered: table-4 have no order"), "{kinds}");
    }
}
