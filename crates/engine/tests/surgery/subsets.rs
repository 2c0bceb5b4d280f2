//! Every subset of the files of a chain is missing, doubled, reordered or stale. A start gives the
//! whole state, or refuses and names a file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stillpoint::Engine;
use stillpoint_io::{Caching, Disk, OpenMode, SimDisk};

use crate::chained::{Chain, chain_config, entries, open, part_of};
use crate::store::{Files, Keys, files, scan};

const FILES: usize = 8;

/// A full checkpoint and seven of changes, each with one file, and some commits behind them.
/// `salt` is in every value.
fn chain_of_eight(dir: &Path, salt: u8) -> Chain {
    let mut chain = Chain::default();
    let mut store = open(dir);
    (0..12).for_each(|key| chain.put(&mut store, key, &[salt; 10]));
    chain.checkpoint(&store);
    for link in 1..FILES as u8 {
        chain.put(&mut store, 0, &[salt, link]);
        chain.put(&mut store, link, &[salt, link]);
        chain.delete(&mut store, link + 1);
        chain.put(&mut store, 100 + link, &[salt]);
        chain.checkpoint(&store);
    }
    chain.put(&mut store, 50, b"in the log");
    chain
}

/// The state that a start serves from these files.
fn served(all: &Files) -> Result<Keys, String> {
    let disk = SimDisk::new(1);
    for (path, bytes) in all {
        disk.create_dir_all(path.parent().expect("below the root")).expect("a directory");
        let file = disk.open(path, OpenMode::CreateNew, Caching::Buffered).expect("a file");
        file.write_at(bytes, 0).expect("writes");
    }
    let mut config = chain_config(Path::new("data"));
    config.environment.disk = Some(Arc::new(disk));
    let engine = Engine::open(config).map_err(|error| {
        assert!(error.is_damage(), "{error}");
        error.to_string()
    })?;
    Ok(scan(&engine))
}

/// What happens to the files of a subset.
#[derive(Clone, Copy, Debug)]
enum Harm {
    /// The files are missing.
    Missing,
    /// Each file holds the bytes of the file before it.
    Doubled,
    /// Each file holds the bytes of the next file of the subset.
    Reordered,
    /// Each file is of another life of the same store, which has taken the same checkpoints.
    Stale,
    /// Each file is in its directory once more, as a further part.
    Repeated,
}

fn harmed(sound: &Files, stale: &Files, parts: &[PathBuf], subset: &[usize], harm: Harm) -> Files {
    let mut all = sound.clone();
    for (at, &file) in subset.iter().enumerate() {
        let path = &parts[file];
        let bytes = match harm {
            Harm::Missing => {
                all.remove(path);
                continue;
            }
            Harm::Doubled => &sound[&parts[(file + FILES - 1) % FILES]],
            Harm::Reordered => &sound[&parts[subset[(at + 1) % subset.len()]]],
            Harm::Stale => &stale[path],
            Harm::Repeated => {
                all.insert(path.with_file_name("part-001"), sound[path].clone());
                continue;
            }
        };
        all.insert(path.clone(), bytes.clone());
    }
    all
}

#[test]
fn every_subset_of_a_chain_is_whole_or_refused() {
    // Both lives begin with the same MANIFEST, so they have the same store id and hash seed.
    let (first, second) = (tempfile::tempdir(), tempfile::tempdir());
    let (first, second) = (first.expect("a directory"), second.expect("a directory"));
    drop(open(first.path()));
    for (path, bytes) in files(first.path()) {
        let disk = stillpoint_io::RealDisk::new(second.path()).expect("a disk");
        disk.create_dir_all(path.parent().expect("below the root")).expect("a directory");
        let file = disk.open(&path, OpenMode::CreateNew, Caching::Buffered).expect("a file");
        file.write_at(&bytes, 0).expect("writes");
    }
    let chain = chain_of_eight(first.path(), 1);
    chain_of_eight(second.path(), 2);
    let (sound, stale) = (files(first.path()), files(second.path()));
    let parts: Vec<PathBuf> = entries(first.path()).iter().map(part_of).collect();
    assert_eq!(parts.len(), FILES);
    assert!(parts.iter().all(|part| sound[part] != stale[part]), "the lives differ");
    assert_eq!(served(&sound), Ok(chain.now.clone()));
    for harm in [Harm::Missing, Harm::Doubled, Harm::Reordered, Harm::Stale, Harm::Repeated] {
        for subset in 0..1u32 << FILES {
            let subset: Vec<usize> = (0..FILES).filter(|file| subset >> file & 1 == 1).collect();
            let all = harmed(&sound, &stale, &parts, &subset, harm);
            let is_same = parts.iter().all(|part| all.get(part) == sound.get(part));
            match served(&all) {
                Ok(found) => {
                    assert!(is_same, "{harm:?} {subset:?}: it is served");
                    assert!(found == chain.now, "{harm:?} {subset:?}: another state: {found:?}");
                }
                Err(told) => {
                    assert!(!is_same, "{harm:?} {subset:?}: {told}");
                    let names_one = subset.iter().any(|&file| {
                        let dir = parts[file].parent().expect("in a directory");
                        told.contains(&*dir.to_string_lossy())
                    });
                    assert!(names_one, "{harm:?} {subset:?}: no file is named: {told}");
                }
            }
        }
    }
}
