//! Threads on one paged table that is larger than its pool: transfers keep their sum, and no transaction
//! sees a phantom.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use super::{Session, TABLE, World};
use stillpoint_io::{Rng, SeededRng};
use stillpoint_txn::TxError;

const ACCOUNTS: u64 = 300;
const BALANCE: u64 = 1000;

fn account(number: u64) -> Vec<u8> {
    format!("account {number:06}").into_bytes()
}

fn balance(value: Option<Vec<u8>>) -> u64 {
    let value = value.expect("an account");
    u64::from_le_bytes(value[..8].try_into().expect("eight bytes"))
}

fn value(balance: u64, padding: usize) -> Vec<u8> {
    let mut value = balance.to_le_bytes().to_vec();
    value.resize(8 + padding, 7);
    value
}

pub(crate) fn transfer(session: &mut Session, rng: &SeededRng) {
    let (from, to) = (rng.below(ACCOUNTS), rng.below(ACCOUNTS));
    let (padding, fails) = (rng.below(60) as usize, rng.below(5) == 0);
    let moved = session.transact(|tx| {
        let have = balance(tx.get(&account(from))?);
        tx.put(&account(from), Some(&value(have - 1, padding)))?;
        let there = balance(tx.get(&account(to))?);
        tx.put(&account(to), Some(&value(there + 1, padding)))?;
        if fails { Err(TxError::abandon("as the test wants it")) } else { Ok(()) }
    });
    assert_eq!(moved.is_err(), fails, "{moved:?}");
}

/// Gives each account its first balance.
pub(crate) fn open_accounts(session: &mut Session) {
    for number in 0..ACCOUNTS {
        let put = session.transact(|tx| tx.put(&account(number), Some(&value(BALANCE, 40))));
        put.expect("commits");
    }
}

/// Checks that no transfer has changed the sum.
pub(crate) fn check_sum(session: &mut Session) {
    assert_eq!(sum(session), ACCOUNTS * BALANCE, "the sum of all accounts");
}

fn sum(session: &mut Session) -> u64 {
    let all = session.transact(|tx| tx.range(.., usize::MAX)).expect("reads");
    assert_eq!(all.len() as u64, ACCOUNTS);
    all.into_values().map(|value| balance(Some(value))).sum()
}

pub(crate) fn transfers_keep_the_sum_while_pages_come_and_go() {
    for seed in 1..=4 {
        let world = Arc::new(World::new(16, 1024, seed));
        let mut session = world.session(0);
        open_accounts(&mut session);
        let threads: Vec<_> = (1..=3)
            .map(|number| {
                let world = world.clone();
                let run = move || {
                    let (mut session, rng) =
                        (world.session(number), SeededRng::new(seed * 10 + u64::from(number)));
                    (0..300).for_each(|_| transfer(&mut session, &rng));
                };
                stillpoint_io::spawn("transfers", run).expect("a thread")
            })
            .collect();
        for turn in 0..8 {
            assert_eq!(sum(&mut session), ACCOUNTS * BALANCE, "seed {seed}");
            if turn % 4 == 0 {
                world.checkpoint(true);
            }
        }
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        check_sum(&mut session);
        assert!(world.kind.is_unlocked());
        assert!(world.kind.stats().evictions > 0, "larger than its pool");
        world.kind.pool().check_table(TABLE).expect("a sound tree");
    }
}

/// Each thread adds a key of its own to a range that it has found empty. The ranges overlap, so one of
/// them is first.
pub(crate) fn a_range_that_was_found_empty_stays_empty() {
    for seed in 1..=40 {
        let world = Arc::new(World::new(16, 512, seed));
        let mut session = world.session(0);
        for number in (0..200).filter(|number| !(90..110).contains(number)) {
            session.transact(|tx| tx.put(&account(number), Some(&[7; 30]))).expect("commits");
        }
        let added = Arc::new(AtomicU64::new(0));
        let threads: Vec<_> = [93u64, 97, 104]
            .into_iter()
            .map(|own| {
                let (world, added) = (world.clone(), added.clone());
                let run = move || {
                    let mut session = world.session((own % 7) as u8);
                    let alone = session.transact(|tx| {
                        let (lower, upper) = (account(90), account(109));
                        let is_alone = tx.range(&lower[..]..=&upper[..], usize::MAX)?.is_empty();
                        if is_alone {
                            std::thread::yield_now();
                            tx.put(&account(own), Some(b"mine"))?;
                        }
                        Ok(is_alone)
                    });
                    added.fetch_add(u64::from(alone.expect("it ends")), SeqCst);
                };
                stillpoint_io::spawn("adds", run).expect("a thread")
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(added.load(SeqCst), 1, "seed {seed}: more than one has found the range empty");
        assert!(world.kind.is_unlocked());
    }
}

/// A checkpoint begins after a record was appended and before its page has changed. The positions in the
/// logs cover the record, so the pages of the checkpoint must have the change.
pub(crate) fn a_checkpoint_waits_for_a_page_that_is_being_changed() {
    for seed in 1..=6 {
        let world = Arc::new(World::new(16, 512, seed));
        let mut session = world.session(0);
        for number in 0..40 {
            session.transact(|tx| tx.put(&account(number), Some(&[1; 30]))).expect("commits");
        }
        world.checkpoint(true);
        let (taking, taken) = (world.clone(), Arc::new(stillpoint_sync::Mutex::new(None)));
        let (result, mut thread) = (taken.clone(), None);
        session.log.on_append = Some(Box::new(move || {
            if thread.is_some() {
                return;
            }
            let (world, result) = (taking.clone(), result.clone());
            let take = move || *result.lock() = Some(world.checkpoint(true));
            thread = Some(stillpoint_io::spawn("checkpoint", take).expect("a thread"));
            // The checkpoint gets time to overlook the page.
            stillpoint_io::Clock::sleep(
                &stillpoint_io::RealClock,
                std::time::Duration::from_millis(20),
            );
        }));
        // Every second seed splits a page instead.
        let key = if seed % 2 == 0 { account(7) } else { b"account 000007 and more".to_vec() };
        session.transact(|tx| tx.put(&key, Some(&[2; 100]))).expect("commits");
        let section = loop {
            if let Some(section) = taken.lock().take() {
                break section;
            }
            std::thread::yield_now();
        };
        let expected = world.content();
        let after = world.restart(16, 512, Some(&section), seed);
        assert!(after.content() == expected, "seed {seed}: the checkpoint lacks the change");
    }
}

/// Ends the threads of a test, also after a panic.
struct Ends(Arc<AtomicBool>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// Writers give few keys values of one repeated byte that tells the key, and add and remove keys between
/// them. Or they give up an odd value. Readers without locks see whole even values of their keys.
pub(crate) fn unlocked_reads_see_whole_committed_values() {
    const HOT: u64 = 4;
    for seed in 1..=6 {
        let world = Arc::new(World::new(16, 1024, seed));
        let mut session = world.session(0);
        let even = |number: u64, turn: u64| {
            vec![2 * (number % HOT + HOT * (turn % 30)) as u8; 100 + (turn % 50) as usize]
        };
        for number in 0..ACCOUNTS {
            let put = session.transact(|tx| tx.put(&account(number), Some(&even(number, 0))));
            put.expect("commits");
        }
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Ends(is_over.clone());
        let threads: Vec<_> = (1..=2)
            .map(|thread| {
                let (world, is_over) = (world.clone(), is_over.clone());
                let run = move || {
                    let (mut session, rng) =
                        (world.session(thread), SeededRng::new(seed * 10 + u64::from(thread)));
                    while !is_over.load(SeqCst) {
                        let (number, fails) = (rng.below(HOT), rng.below(4) == 0);
                        let value = if fails { vec![1; 40] } else { even(number, rng.below(30)) };
                        let between = [account(number), vec![thread]].concat();
                        let put = session.transact(|tx| {
                            tx.put(&account(number), Some(&value))?;
                            tx.put(&between, (!fails).then_some(&value))?;
                            if fails {
                                Err(TxError::abandon("as the test wants it"))
                            } else {
                                Ok(())
                            }
                        });
                        assert_eq!(put.is_err(), fails);
                    }
                };
                stillpoint_io::spawn("writes", run).expect("a thread")
            })
            .collect();
        let (rng, mut seen, mut reader) = (SeededRng::new(seed), 0, world.session(3));
        for _ in 0..10_000 {
            // Some reads evict the pages of others.
            let any = || if rng.below(64) == 0 { rng.below(ACCOUNTS) } else { rng.below(HOT) };
            let numbers = [any(), any(), any(), any()];
            let found = match rng.below(2) {
                0 => numbers.map(|number| world.read(&account(number))).to_vec(),
                _ => reader.read_alone(&numbers.map(account)),
            };
            for (number, value) in numbers.into_iter().zip(found) {
                let Some(value) = value else { continue };
                let value = value.expect("an account");
                assert!(value.iter().all(|byte| *byte == value[0]), "a torn value: {value:?}");
                assert_eq!(value[0] % 2, 0, "a value that no transaction has committed");
                assert_eq!(u64::from(value[0] / 2) % HOT, number % HOT, "a value of another key");
                seen += 1;
            }
        }
        drop(ends);
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert!(seen > 1000 && world.kind.is_unlocked());
    }
}
