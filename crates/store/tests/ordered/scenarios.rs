//! Scenarios of one thread. The tests of planted bugs run them, too.

use std::collections::BTreeMap;
use std::ops::Bound;

use stillpoint_store::{KeyImage, Loader, Mode, Replayed, TxError};

use crate::common::Random;
use crate::worlds::{T, all, ordered_store, worker_of};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(random: &mut Random) -> Vec<u8> {
    format!("key:{}", random.below(300)).into_bytes()
}

fn bound(random: &mut Random) -> Bound<Vec<u8>> {
    match random.below(4) {
        0 => Bound::Unbounded,
        1 => Bound::Included(key(random)),
        _ => Bound::Excluded(key(random)),
    }
}

/// Transactions with writes, ranges, counts and numbers, some of which are abandoned, in comparison with
/// a map.
pub(crate) fn like_a_map(seed: u64) {
    let store = ordered_store(1, seed);
    let mut worker = worker_of(&store);
    let (mut random, mut model) = (Random::new(seed), Model::new());
    for turn in 0..600 {
        let mut next = model.clone();
        let is_abandoned = random.one_in(4);
        let ended = worker.transact(|tx| {
            next.clone_from(&model);
            for _ in 0..1 + random.below(12) {
                let key = key(&mut random);
                match random.below(8) {
                    0..=2 => {
                        let value = random.bytes(1 + turn % 200);
                        tx.put(T, &key, &value)?;
                        next.insert(key, value);
                    }
                    3 | 4 => {
                        assert_eq!(tx.delete(T, &key)?, next.remove(&key).is_some());
                    }
                    5 => {
                        let found = tx.get(T, &key)?.map(|value| value.to_vec());
                        assert_eq!(found.as_ref(), next.get(&key));
                    }
                    6 => {
                        let number = random.below(next.len() + 2);
                        let found = tx.nth(T, number as u64)?;
                        assert_eq!(found.as_ref(), next.keys().nth(number), "turn {turn}");
                    }
                    _ => compare_range(tx, &next, &mut random)?,
                }
            }
            if is_abandoned { Err(TxError::abandon("at random")) } else { Ok(()) }
        });
        match ended {
            Ok(()) => model = next,
            Err(TxError::Abandoned(_)) => assert!(is_abandoned),
            Err(error) => panic!("turn {turn}: {error}"),
        }
        if turn % 50 == 0 {
            worker.idle();
        }
    }
    let found = worker.transact(all).expect("no other transaction");
    assert_eq!(found, model.into_iter().collect::<Vec<_>>());
}

fn compare_range(
    tx: &mut stillpoint_store::Tx<'_>,
    model: &Model,
    random: &mut Random,
) -> Result<(), TxError> {
    let (lower, upper) = (bound(random), bound(random));
    let bounds = (lower.as_ref().map(|key| &key[..]), upper.as_ref().map(|key| &key[..]));
    let is_within = |key: &Vec<u8>| std::ops::RangeBounds::contains(&bounds, &&key[..]);
    let mut expected: Vec<_> = model.iter().filter(|(key, _)| is_within(key)).collect();
    assert_eq!(tx.count(T, bounds)?, expected.len() as u64, "{bounds:?}");
    let is_descending = random.one_in(2);
    let mut range =
        if is_descending { tx.range_descending(T, bounds)? } else { tx.range(T, bounds)? };
    if is_descending {
        expected.reverse();
    }
    let most = random.below(60);
    for (number, (key, value)) in expected.iter().enumerate().take(most) {
        let found = range.next_record()?.map(|(key, value)| (key.to_vec(), value.to_vec()));
        assert_eq!(
            found.as_ref().map(|(key, value)| (key, value)),
            Some((*key, *value)),
            "{number}"
        );
    }
    if expected.len() < most {
        assert!(range.next_record()?.is_none() && range.next_record()?.is_none());
    }
    Ok(())
}

/// The keys of aborted insertions, of deletions and of failed lookups take no memory in the end.
pub(crate) fn reclaimed_keys_leave_the_index() {
    let store = ordered_store(1, 7);
    let mut worker = worker_of(&store);
    let keys = || (0..10_000u32).map(u32::to_be_bytes);
    let held_bytes = |store: &stillpoint_store::Store| {
        store.maintain();
        store.held_bytes()
    };
    for round in 0..2 {
        for key in keys() {
            let ended = worker.transact(|tx| {
                tx.put(T, &key, b"value")?;
                Err::<(), _>(TxError::abandon("an abort"))
            });
            assert!(matches!(ended, Err(TxError::Abandoned(_))));
            let has_value = worker.transact(|tx| Ok(tx.get(T, &key)?.is_some()));
            assert!(!has_value.expect("a read"), "the insertion was aborted");
        }
        while worker.idle() {}
        assert_eq!(store.cell_count(T), 0, "round {round}");
        assert_eq!(store.ordered_key_count(T), 0, "round {round}: aborted keys are left");
        for key in keys() {
            worker.transact(|tx| tx.put(T, &key, b"value")).expect("memory");
        }
        assert_eq!(store.ordered_key_count(T), 10_000);
        for key in keys() {
            worker.transact(|tx| tx.delete(T, &key)).expect("memory");
        }
        while worker.idle() {}
        assert_eq!(store.ordered_key_count(T), 0, "round {round}: deleted keys are left");
    }
    assert!(held_bytes(&store) < 8 << 20, "{}", held_bytes(&store));
}

/// Records of a checkpoint and of a log are in the ordered index, and deleted ones are not.
pub(crate) fn what_was_loaded_and_replayed_is_in_order() {
    let store = ordered_store(2, 9);
    let mut expected = Model::new();
    {
        let mut loader = Loader::new(store.clone()).expect("a free slot");
        let keys: Vec<Vec<u8>> =
            (0..500u32).map(|n| (n * 7919 % 1000).to_be_bytes().to_vec()).collect();
        for chunk in keys.chunks(32) {
            let images: Vec<KeyImage<'_>> = chunk
                .iter()
                .map(|key| {
                    let (hash, value) = (loader.hash(T, key), Some(&b"loaded"[..]));
                    KeyImage { hash, key, label: 0u8.into(), value, gsn: 0 }
                })
                .collect();
            loader.load(T, images.iter().copied()).expect("memory");
        }
        expected.extend(keys.into_iter().map(|key| (key, b"loaded".to_vec())));
        let mut random = Random::new(5);
        for gsn in 1..2_000 {
            let key = (random.below(1000) as u32).to_be_bytes();
            let hash = loader.hash(T, &key);
            let len = 1 + random.below(3000);
            let value = random.bytes(len);
            let change = match random.one_in(3) {
                true => {
                    expected.remove(&key[..]);
                    Replayed::Delete
                }
                false => {
                    expected.insert(key.to_vec(), value.clone());
                    Replayed::Put { label: 0u8.into(), value: &value }
                }
            };
            loader.apply(T, hash, &key, gsn, change).expect("memory");
        }
    }
    let mut worker = worker_of(&store);
    let found = worker.transact(all).expect("no other transaction");
    assert_eq!(found.len(), expected.len(), "records in order");
    assert_eq!(found, expected.iter().map(|(k, v)| (k.clone(), v.clone())).collect::<Vec<_>>());
    let count = worker.transact(|tx| tx.count(T, ..)).expect("no other transaction");
    assert_eq!(count, expected.len() as u64);
    // Writes go on.
    worker
        .transact(|tx| tx.key(T, b"zzzz", Mode::Write).and_then(|slot| tx.put_slot(slot, b"new")))
        .expect("memory");
    assert_eq!(worker.transact(|tx| tx.nth(T, count)).expect("no error"), Some(b"zzzz".to_vec()));
}
