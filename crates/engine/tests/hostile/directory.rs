//! Applies a script of edits to the data directory of a small store, and runs the offline tools on
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use stillpoint::offline::{self, Checked};
use stillpoint::{Config, Durability, Engine, Error};
use stillpoint_format::log::SegmentHeader;
use stillpoint_format::manifest::{Codec, Manifest};
use stillpoint_format::names;
use stillpoint_format::part::PartHeader;
use stillpoint_io::{Caching, Disk, OpenMode, RealDisk, read_all};

use super::forge::{blocks_of, forge_batches, forge_file_header, forge_manifest, forge_part};

const MANIFEST: &str = "MANIFEST";
const TABLES: [&str; 2] = ["pets", "plants"];

/// Table and key.
type Key = (String, Vec<u8>);
/// Files by path.
type Files = BTreeMap<String, Vec<u8>>;

/// A store after a crash: two checkpoints, logs of two incarnations, an emptied table.
pub(crate) struct Sample {
    files: Files,
    /// Every value that a key ever had.
    written: BTreeMap<Key, BTreeSet<Vec<u8>>>,
    /// The present files of the directory.
    there: Files,
    disk: RealDisk,
    directory: tempfile::TempDir,
}

/// Results of the offline tools on a directory.
pub(crate) struct Verdict {
    pub(crate) checked: Result<Checked, Error>,
    /// The dumped keys and values.
    pub(crate) dumped: Result<Vec<(Key, Vec<u8>)>, Error>,
}

impl Sample {
    /// Makes the store, and a directory for copies of it in `scratch`.
    pub(crate) fn new(scratch: &Path) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let mut written = BTreeMap::new();
        live(home.path(), 0, &mut written).close().expect("closed");
        let open = live(home.path(), 1, &mut written);
        let mut files = Files::new();
        gather(&RealDisk::new(home.path()).expect("a disk"), Path::new(""), &mut files);
        drop(open);
        files.remove("LOCK");
        let directory = tempfile::tempdir_in(scratch).expect("a directory");
        let disk = RealDisk::new(directory.path()).expect("a disk");
        Self { files, written, there: Files::new(), disk, directory }
    }

    /// The directory after the edits of `script`, as the offline tools see it.
    ///
    /// With an odd first byte the checksums of the changed files are made right again. The edits
    /// follow, see [`edit`].
    pub(crate) fn judge(&mut self, script: &[u8]) -> Verdict {
        let mut files = self.files.clone();
        let mut script = Script(script);
        let forge = script.byte().is_some_and(|byte| byte % 2 == 1);
        while edit(&mut files, &mut script).is_some() {}
        if forge {
            forge_all(&mut files, &self.files);
        }
        self.write(files);
        let directory = self.directory.path();
        let checked = offline::check(directory);
        // Both tools refuse, or neither does, except for damage that only the logs show.
        let inspected = offline::inspect(directory);
        assert!(inspected.is_err() || checked.is_ok(), "{checked:?}");
        let mut rows = Vec::new();
        let dumped = offline::dump(directory, None, &mut |table, key, value| {
            let mut bytes = Vec::new();
            value.copy_to(&mut bytes);
            rows.push(((table.to_owned(), key.to_vec()), bytes));
            Ok(())
        });
        Verdict { checked, dumped: dumped.map(|_| rows) }
    }

    /// Whether the key ever had this value.
    pub(crate) fn was_written(&self, key: &Key, value: &[u8]) -> bool {
        self.written.get(key).is_some_and(|values| values.contains(value))
    }

    /// Makes the directory hold exactly `files`.
    fn write(&mut self, files: Files) {
        for name in self.there.keys().filter(|name| !files.contains_key(*name)) {
            self.disk.remove(Path::new(name)).expect("removed");
        }
        for (name, bytes) in &files {
            if self.there.get(name) == Some(bytes) {
                continue;
            }
            let path = Path::new(name);
            self.disk.remove(path).expect("removed");
            if let Some(parent) = path.parent() {
                self.disk.create_dir_all(parent).expect("a directory");
            }
            let file = self.disk.open(path, OpenMode::CreateNew, Caching::Buffered).expect(name);
            file.write_at(bytes, 0).expect("written");
        }
        self.there = files;
    }
}

/// The work of one incarnation. All commits of the incarnation are on the disk.
fn live(home: &Path, life: u32, written: &mut BTreeMap<Key, BTreeSet<Vec<u8>>>) -> Engine {
    let mut config = Config::new(home);
    config.durability = Durability::Strict;
    config.checkpoint_every = None;
    config.keep_checkpoints = 2;
    config.checkpoint_threads = 1;
    config.codec = [Codec::None, Codec::Lz4][life as usize];
    config.logs = 2;
    config.sessions = 2;
    config.log_segment_bytes = 16 << 10;
    config.environment.background = false;
    let engine = Engine::open(config).expect("the store opens");
    let tables = engine.tables_named(&TABLES).expect("tables");
    let mut sessions = [engine.session().expect("one"), engine.session().expect("two")];
    for n in 0..60u32 {
        let (table, key) = ((n % 2) as usize, format!("key {:02}", n * 7 % 23).into_bytes());
        let value = format!("value {life} {n} {}", "x".repeat(n as usize % 50)).into_bytes();
        sessions[(n / 2 % 2) as usize]
            .transact(|tx| match n % 9 {
                8 => tx.delete(tables[table], &key).map(|_| ()),
                _ => tx.put_tagged(tables[table], &key, n as u8 % 3, &value),
            })
            .expect("committed");
        written.entry((TABLES[table].to_owned(), key)).or_default().insert(value);
        if n == 30 {
            engine.checkpoint().expect("a checkpoint");
        }
        if n == 45 && life == 1 {
            engine.flush_tables(&tables[1..]).expect("emptied");
        }
    }
    engine
}

fn gather(disk: &RealDisk, path: &Path, files: &mut Files) {
    for name in disk.list(path).expect("a directory") {
        let path: PathBuf = path.join(name);
        if disk.list(&path).is_ok() {
            gather(disk, &path, files);
        } else {
            let bytes = read_all(disk, &path).expect("a file");
            files.insert(path.to_str().expect("text").to_owned(), bytes);
        }
    }
}

/// The bytes of the script.
struct Script<'a>(&'a [u8]);

impl<'a> Script<'a> {
    fn byte(&mut self) -> Option<u8> {
        self.0.split_off_first().copied()
    }

    /// A position from 0 to `len`.
    fn place(&mut self, len: usize) -> Option<usize> {
        let (low, high) = (self.byte()?, self.byte()?);
        Some(usize::from(u16::from_le_bytes([low, high])) % (len + 1))
    }

    /// Up to 31 bytes.
    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::from(self.byte()? % 32).min(self.0.len());
        self.0.split_off(..len)
    }
}

/// Carries out one edit: its kind, file, position and bytes.
fn edit(files: &mut Files, script: &mut Script<'_>) -> Option<()> {
    let what = script.byte()?;
    let number = usize::from(script.byte()?);
    let name = files.keys().nth(number % files.len().max(1))?.clone();
    let file = files.get_mut(&name)?;
    match what % 8 {
        0..3 => {
            let (at, bytes) = (script.place(file.len())?, script.bytes()?);
            let end = (at + bytes.len()).max(file.len());
            file.resize(end, 0);
            file[at..at + bytes.len()].copy_from_slice(bytes);
        }
        3 => {
            let at = script.place(file.len())?;
            file.splice(at..at, script.bytes()?.iter().copied());
        }
        4 => {
            let from = script.place(file.len())?;
            let to = (from + usize::from(script.byte()?)).min(file.len());
            file.drain(from..to);
        }
        5 => file.truncate(script.place(file.len())?),
        6 => {
            files.remove(&name);
        }
        _ => {
            let other = usize::from(script.byte()?) % files.len();
            let bytes = files.values().nth(other)?.clone();
            files.insert(name, bytes);
        }
    }
    Some(())
}

/// Corrects the checksums of the files that differ from `before`, and their copies in the manifest.
fn forge_all(files: &mut Files, before: &Files) {
    let mut indexes = Vec::new();
    for (name, bytes) in files.iter_mut().filter(|(name, bytes)| before.get(*name) != Some(bytes)) {
        if name == MANIFEST {
            let start = bytes.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            *bytes = forge_manifest(&bytes[start..]);
            continue;
        }
        forge_file_header(bytes);
        if let Ok(header) = SegmentHeader::decode(bytes) {
            forge_batches(&header, bytes);
        } else if let Ok(header) = PartHeader::decode(bytes) {
            let (part, crc) = forge_part(&header, blocks_of(bytes));
            *bytes = part;
            indexes.push((name.clone(), bytes.len() as u64, crc));
        }
    }
    let Some(bytes) = files.get_mut(MANIFEST) else { return };
    let Ok(mut manifest) = Manifest::decode(bytes) else { return };
    for checkpoint in &mut manifest.checkpoints {
        let dir = names::checkpoint_dir(checkpoint.serial, checkpoint.kind);
        for part in &mut checkpoint.parts {
            let path = format!("{dir}/{}", part.file);
            if let Some((_, len, crc)) = indexes.iter().find(|(name, ..)| *name == path) {
                (part.bytes, part.crc) = (*len, *crc);
            }
        }
    }
    if let Ok(encoded) = manifest.encode() {
        *bytes = encoded;
    }
}

/// A script of one seed: one to three edits, each with up to eight bytes.
pub(crate) fn sample_script(seed: u64, forge: bool) -> Vec<u8> {
    let mut stream = super::mutate::Stream(seed);
    let mut script = vec![u8::from(forge)];
    for _ in 0..1 + stream.below(3) {
        // Half of the edits or more are overwrites: they leave the most of a file to be read.
        let what = if stream.below(2) == 0 { 0 } else { stream.below(8) as u8 };
        script.extend([what, stream.next() as u8, stream.next() as u8, stream.next() as u8]);
        let bytes = 1 + stream.below(8);
        script.push(bytes as u8);
        let nasty = [0, 1, 0x7F, 0x80, 0xFF][stream.below(5)];
        let random = stream.below(2) == 0;
        script.extend((0..bytes).map(|_| if random { stream.next() as u8 } else { nasty }));
    }
    script
}
