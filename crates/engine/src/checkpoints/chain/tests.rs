//! Decisions about chains, on MANIFESTs without files.

use stillpoint_format::ident::StoreId;
use stillpoint_format::manifest::{Codec, PartEntry};

use super::*;

fn entry(epoch: u64, base: Option<u64>, bytes: u64) -> CheckpointEntry {
    CheckpointEntry {
        epoch,
        serial: 100 + epoch,
        kind: if base.is_some() { CheckpointKind::Partial } else { CheckpointKind::Full },
        base,
        scheme: "calc:partial".to_owned(),
        private: None,
        fuzzy: false,
        active: Vec::new(),
        codec: Codec::None,
        partitions_log2: 4,
        records: 0,
        table_records: Vec::new(),
        value_bytes: 0,
        parts: vec![PartEntry {
            file: "part-000".to_owned(),
            bytes: bytes << 20,
            records: 0,
            crc: 0,
        }],
        generations: Vec::new(),
        positions: Vec::new(),
        gsn_floor: 0,
        started_ms: 0,
        finished_ms: 0,
    }
}

/// Checkpoints from epoch 1 on. Without a number: a full one of 1,000 MiB. With a number: one of
/// changes, of as many MiB.
fn manifest(bytes: &[Option<u64>]) -> Manifest {
    let checkpoints = (1..).zip(bytes).map(|(epoch, bytes)| match bytes {
        None => entry(epoch, None, 1000),
        Some(bytes) => entry(epoch, Some(epoch - 1), *bytes),
    });
    let manifest = Manifest {
        store: StoreId([1; 16]),
        hash_seed: 0,
        created_ms: 0,
        next_epoch: 1000,
        next_serial: 1000,
        tables: Vec::new(),
        kinds: Vec::new(),
        checkpoints: checkpoints.collect(),
        incarnations: Vec::new(),
        clean_shutdown: None,
    };
    manifest.validate().expect("a chain");
    manifest
}

fn epochs(entries: &[CheckpointEntry]) -> Vec<u64> {
    entries.iter().map(|entry| entry.epoch).collect()
}

const FULL: Option<u64> = None;

#[test]
fn the_first_is_full_and_so_is_the_first_after_another_scheme() {
    let changes = Wanted::Changes { percent_max: 50 };
    assert_eq!(wanted(&manifest(&[]), "calc:partial", (50, true)), Wanted::Full);
    let mut chain = manifest(&[FULL, Some(10)]);
    assert_eq!(wanted(&chain, "calc:partial", (50, true)), changes);
    assert_eq!(wanted(&chain, "another", (50, true)), Wanted::Full);
    chain.checkpoints[0].scheme = "naive".to_owned();
    assert_eq!(wanted(&chain, "calc:partial", (50, true)), Wanted::Full);
}

#[test]
fn a_chain_that_is_long_or_heavy_ends() {
    let changes = Wanted::Changes { percent_max: 50 };
    let of = |links: usize, bytes| manifest(&[vec![FULL], vec![Some(bytes); links]].concat());
    assert_eq!(wanted(&of(15, 10), "calc:partial", (50, false)), changes);
    assert_eq!(wanted(&of(16, 10), "calc:partial", (50, false)), Wanted::Full);
    assert_eq!(wanted(&of(16, 10), "calc:partial", (50, true)), changes, "a merge will come");
    assert_eq!(wanted(&of(2, 500), "calc:partial", (50, true)), changes);
    assert_eq!(wanted(&of(2, 501), "calc:partial", (50, true)), Wanted::Full);
}

#[test]
fn a_merge_is_due_by_count_and_by_bytes() {
    let light = manifest(&[FULL, Some(10), Some(10), Some(10)]);
    assert_eq!(epochs(&due_run(&light, 1, 4, 0)), Vec::<u64>::new());
    assert_eq!(epochs(&due_run(&light, 1, 3, 0)), [2, 3, 4], "without the full one");
    let heavy = manifest(&[FULL, Some(400), Some(100)]);
    assert_eq!(epochs(&due_run(&heavy, 1, 8, 0)), [1, 2, 3]);
    assert_eq!(
        epochs(&due_run(&heavy, 2, 8, 0)),
        Vec::<u64>::new(),
        "the last point stays, the others are light"
    );
    assert_eq!(epochs(&due_run(&manifest(&[FULL]), 1, 2, 0)), Vec::<u64>::new());
    assert_eq!(
        epochs(&due_run(&manifest(&[FULL, Some(1)]), 1, 2, 0)),
        Vec::<u64>::new(),
        "one link alone"
    );
}

#[test]
fn a_merge_is_due_by_the_share_of_dead_records() {
    let mut chain = manifest(&[FULL, Some(10), Some(10), Some(10)]);
    for (checkpoint, records) in chain.checkpoints.iter_mut().zip([700, 100, 100, 100]) {
        checkpoint.records = records;
    }
    assert_eq!(epochs(&due_run(&chain, 1, 8, 500)), Vec::<u64>::new(), "half of them live");
    assert_eq!(epochs(&due_run(&chain, 1, 8, 499)), [1, 2, 3, 4]);
    assert_eq!(epochs(&due_run(&chain, 2, 8, 449)), [1, 2, 3], "of the run, not of the chain");
    assert_eq!(epochs(&due_run(&chain, 2, 8, 450)), Vec::<u64>::new());
    for checkpoint in &mut chain.checkpoints {
        checkpoint.parts.iter_mut().for_each(|part| part.bytes = 1000);
    }
    assert_eq!(epochs(&due_run(&chain, 1, 8, 0)), Vec::<u64>::new(), "too small to matter");
}

#[test]
fn a_chain_has_a_bound() {
    assert_eq!(links_max(1, Some(8)), 17);
    assert_eq!(links_max(3, Some(2)), 7, "two more points");
    assert_eq!(links_max(1, None), 1 + LINKS_MAX, "a full checkpoint ends it");
    assert_eq!(links_max(1, Some(usize::MAX)), usize::MAX);
}

#[test]
fn no_merge_goes_over_a_point_that_is_kept() {
    let chain = manifest(&[FULL, Some(1), Some(1), Some(1), Some(1)]);
    assert_eq!(epochs(&whole_run(&chain, 1)), [1, 2, 3, 4, 5]);
    assert_eq!(epochs(&whole_run(&chain, 3)), [1, 2, 3], "up to the oldest point that is kept");
    assert_eq!(epochs(&whole_run(&chain, 4)), [1, 2]);
    assert_eq!(epochs(&whole_run(&chain, 5)), Vec::<u64>::new());
    assert_eq!(epochs(&whole_run(&chain, 9)), Vec::<u64>::new());
}

#[test]
fn a_run_is_replaced_only_where_it_is_whole() {
    let chain = manifest(&[FULL, Some(1), Some(1), Some(1)]);
    let run = &chain.checkpoints[1..3];
    let merged = CheckpointEntry { serial: 900, ..entry(3, Some(1), 2) };
    let mut next = chain.clone();
    assert!(replace_run(&mut next, run, merged.clone()));
    assert_eq!(epochs(&next.checkpoints), [1, 3, 4]);
    next.validate().expect("a chain");
    assert!(!replace_run(&mut next, run, merged.clone()), "it is gone");
    let mut other = chain.clone();
    other.checkpoints[2].parts[0].crc = 1;
    assert!(!replace_run(&mut other, run, merged), "another checkpoint of that epoch");
    assert_eq!(epochs(&other.checkpoints), [1, 2, 3, 4]);
}

#[test]
fn what_a_kept_point_goes_on_from_is_kept() {
    let all = [FULL, Some(1), FULL, Some(1), Some(1), FULL];
    let kept = |keep, count: usize| {
        let mut manifest = manifest(&all[..count]);
        let dropped = drop_surplus(&mut manifest, keep);
        manifest.validate().expect("a chain");
        (epochs(&dropped), epochs(&manifest.checkpoints))
    };
    assert_eq!(kept(1, 6), (vec![1, 2, 3, 4, 5], vec![6]));
    assert_eq!(kept(2, 6), (vec![1, 2], vec![3, 4, 5, 6]));
    assert_eq!(kept(4, 6), (vec![1, 2], vec![3, 4, 5, 6]));
    assert_eq!(kept(5, 6), (vec![], vec![1, 2, 3, 4, 5, 6]));
    assert_eq!(kept(1, 5), (vec![1, 2], vec![3, 4, 5]));
    assert_eq!(kept(1, 2), (vec![], vec![1, 2]));
    assert_eq!(kept(1, 0), (vec![], vec![]));
    let mut fulls = manifest(&[FULL, FULL, FULL]);
    assert_eq!(epochs(&drop_surplus(&mut fulls, 2)), [1]);
}
