//! Tests of `stillpoint check` on a sound directory, and on damaged ones whose checksums were made
//! right again.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use stillpoint::{Config, Engine};
use stillpoint_format::hash::{KeyHasher, partition_of};
use stillpoint_format::manifest::Manifest;
use stillpoint_format::names::checkpoint_dir;
use stillpoint_format::part::{
    BlockBuilder, BlockReader, Codec, Compressor, Content, IndexBuilder, KeyRef, PartHeader,
    PartIndex,
};
use stillpoint_io::{Caching, Disk, OpenMode, RealDisk, read_all};

/// Partition, table, generation, key, value.
type Record = (u32, u16, u32, Vec<u8>, Vec<u8>);

fn check(dir: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_stillpoint"))
        .arg("check")
        .arg(dir)
        .args(arguments)
        .output()
        .expect("the binary runs");
    let said = [stdout, stderr].concat();
    (status.code(), String::from_utf8(said).expect("text"))
}

/// A directory with one checkpoint of 40 records.
fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = Engine::open(Config::new(dir.path())).expect("an empty directory");
    let table = engine.table("t").expect("a table");
    let mut session = engine.session().expect("a session");
    for number in 0..40u32 {
        let put = session.transact(|tx| tx.put(table, format!("key {number}").as_bytes(), b"v"));
        put.expect("memory");
    }
    engine.checkpoint().expect("a checkpoint");
    drop(session);
    engine.close().expect("closed");
    dir
}

struct Files {
    disk: RealDisk,
    manifest: Manifest,
    part: PathBuf,
    header: PartHeader,
    records: Vec<Record>,
}

impl Files {
    fn of(dir: &Path) -> Self {
        let disk = RealDisk::new(dir).expect("it is there");
        let manifest = read_all(&disk, Path::new("MANIFEST")).expect("it is there");
        let manifest = Manifest::decode(&manifest).expect("sound");
        let entry = &manifest.checkpoints[0];
        let part =
            PathBuf::from(checkpoint_dir(entry.serial, entry.kind)).join(&entry.parts[0].file);
        let bytes = read_all(&disk, &part).expect("it is there");
        let header = PartHeader::decode(&bytes).expect("sound");
        let index = PartIndex::of_file(header.identity(), &bytes, header.partitions_log2);
        let mut reader = BlockReader::new(header.identity());
        let mut records = Vec::new();
        for block in index.expect("sound").blocks() {
            let at = block.offset as usize;
            for item in reader.open_indexed(block, &bytes[at..]).expect("sound").entries() {
                let item = item.expect("sound");
                let Content::Value(value) = item.content else { panic!("a small value") };
                let KeyRef { table, generation, key } = item.key;
                records.push((block.partition, table, generation, key.to_vec(), value.to_vec()));
            }
        }
        Self { disk, manifest, part, header, records }
    }

    /// Rewrites part and MANIFEST, with each record in a block of its own.
    fn write(mut self) {
        let identity = self.header.identity();
        let mut file = self.header.encode().to_vec();
        let mut index = IndexBuilder::default();
        let mut compressor = Compressor::new(Codec::None, 0).expect("no codec");
        for (partition, table, generation, key, value) in &self.records {
            let mut block = BlockBuilder::new(*partition);
            let key = KeyRef { table: *table, generation: *generation, key };
            block.push_value(key, 0, value).expect("it fits");
            let offset = file.len() as u64;
            let entry = block.seal(&mut compressor, identity, offset, &mut file);
            index.push(entry.expect("no codec"));
        }
        let totals = index.totals();
        let (end, crc) = index.finish(identity, file.len() as u64);
        file.extend_from_slice(&end);
        let entry = &mut self.manifest.checkpoints[0];
        let before = entry.parts[0].records;
        let part = &mut entry.parts[0];
        (part.bytes, part.records, part.crc) = (file.len() as u64, totals.values, crc);
        entry.records = entry.records - before + totals.values;
        // Each value is one byte.
        entry.value_bytes = entry.parts.iter().map(|part| part.records).sum();
        let manifest = self.manifest.encode().expect("consistent");
        for (path, bytes) in [(&*self.part, file), (Path::new("MANIFEST"), manifest)] {
            self.disk.remove(path).expect("it is there");
            let file = self.disk.open(path, OpenMode::CreateNew, Caching::Buffered);
            file.and_then(|file| file.write_at(&bytes, 0)).expect("room");
        }
    }
}

/// Damages a directory and returns the report of `check`.
fn told(spoil: impl FnOnce(&mut Files)) -> String {
    let dir = directory();
    let mut files = Files::of(dir.path());
    spoil(&mut files);
    files.write();
    let (code, said) = check(dir.path(), &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.starts_with("damaged: ") && !said.contains("sound"), "{said}");
    let (code, json) = check(dir.path(), &["--json"]);
    assert_eq!(code, Some(1), "{json}");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["sound"], false);
    let damage = json["damage"].as_array().expect("a list").iter();
    let line =
        |damage: &serde_json::Value| format!("damaged: {}\n", damage.as_str().expect("text"));
    assert_eq!(damage.map(line).collect::<String>(), said);
    said
}

#[test]
fn a_sound_directory_is_sound_and_stays_so_when_written_anew() {
    let dir = directory();
    for _ in 0..2 {
        let (code, said) = check(dir.path(), &[]);
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("40 records") && said.ends_with("sound\n"), "{said}");
        Files::of(dir.path()).write();
    }
}

#[test]
fn a_key_that_comes_twice_is_damage() {
    let said = told(|files| {
        files.records.push(files.records[0].clone());
        files.manifest.checkpoints[0].table_records[0].records += 1;
    });
    assert!(said.contains(" is damaged at byte "), "{said}");
    assert!(said.contains("has the key \"key ") && said.contains("again"), "{said}");
}

#[test]
fn a_key_in_another_partition_is_damage() {
    let said = told(|files| {
        let hash =
            KeyHasher::new(files.header.hash_seed).hash(files.records[0].1, &files.records[0].3);
        let home = partition_of(hash, files.header.partitions_log2);
        assert_eq!(files.records[0].0, home);
        files.records[0].0 = home ^ 1;
    });
    assert!(said.contains(" is damaged at byte 4096: "), "{said}");
    assert!(said.contains("a key in the block of another partition"), "{said}");
}

#[test]
fn records_that_the_manifest_counts_for_another_table_are_damage() {
    let said = told(|files| files.manifest.checkpoints[0].table_records[0].table += 1);
    assert!(said.contains("records of table") && said.contains("the manifest says 0"), "{said}");
}

#[test]
fn each_damaged_place_is_told_up_to_a_hundred() {
    let dir = directory();
    let mut files = Files::of(dir.path());
    let again = files.records[0].clone();
    files.records.extend(vec![again; 120]);
    files.manifest.checkpoints[0].table_records[0].records += 120;
    files.write();
    let (code, said) = check(dir.path(), &[]);
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(said.lines().filter(|line| line.starts_with("damaged: ")).count(), 100, "{said}");
    assert!(said.ends_with("\nand 20 more damaged places\n"), "{said}");
    let (code, json) = check(dir.path(), &["--json"]);
    assert_eq!(code, Some(1), "{json}");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let told = json["damage"].as_array().map(Vec::len);
    assert_eq!((told, json["damage_more"].as_u64()), (Some(100), Some(20)));
}
