//! Random procedures beside the sequential model: sessions over several logs on one thread. Among
//! them come transactions without a call, checkpoints, flushes of tables, kills and changes of the
//! journal.
//!
//! `STILLPOINT_COMMAND_CALLS=10000000 cargo test -p stillpoint --test command random` for more calls.
//! With `STILLPOINT_COMMAND_STEPS=5000` beside it, a store has up to so many between two starts.

use stillpoint::{Engine, Session};
use stillpoint_io::{Rng, SeededRng, SimDisk};

use crate::mix::{Asked, Key, RANDOM, State, TABLES, TIME, call, config, key, state, with_mix};

const KEYS: u64 = 12;

fn some_keys(rng: &SeededRng, most: u64) -> Vec<Key> {
    let mut keys: Vec<Key> =
        (0..rng.below(most + 1)).map(|_| key(rng.below(2) as u8, rng.below(KEYS))).collect();
    keys.sort();
    keys.dedup();
    keys
}

fn some_call(rng: &SeededRng) -> Asked {
    let flags = [0, 0, TIME, RANDOM, TIME | RANDOM][rng.below(5) as usize];
    let writes = some_keys(rng, 4);
    let mut reads = some_keys(rng, 3);
    reads.retain(|read| !writes.contains(read));
    Asked { seed: rng.next_u64(), flags, reads, writes }
}

/// A transaction without a call, which writes what it has read elsewhere.
fn transact(engine: &Engine, session: &mut Session, rng: &SeededRng, model: &mut State) {
    let table = |of: &Key| engine.table(TABLES[usize::from(of.0)]).expect("a table");
    let (reads, writes) = (some_keys(rng, 3), some_keys(rng, 3));
    let removes = rng.below(4) == 0;
    let mut value = rng.next_u64().to_le_bytes().to_vec();
    for read in &reads {
        value.extend(model.get(read).into_iter().flat_map(|value| value.iter().take(8)));
    }
    let done = session.transact(|tx| {
        for read in &reads {
            let found = tx.get(table(read), &read.1)?.map(|value| value.to_vec());
            assert_eq!(found.as_ref(), model.get(read));
        }
        for write in &writes {
            if removes {
                tx.delete(table(write), &write.1)?;
            } else {
                tx.put(table(write), &write.1, &value)?;
            }
        }
        Ok(())
    });
    done.expect("commits");
    for write in writes {
        if removes {
            model.remove(&write);
        } else {
            model.insert(write, value.clone());
        }
    }
}

/// One life of the store.
fn live(engine: &Engine, rng: &SeededRng, steps: u64, model: &mut State) {
    let sessions = 1 + rng.below(5);
    let mut sessions: Vec<Session> =
        (0..sessions).map(|_| engine.session().expect("a session")).collect();
    for _ in 0..steps {
        let at = rng.below(sessions.len() as u64) as usize;
        match rng.below(100) {
            0 => drop(engine.checkpoint()),
            1 => {
                let number = rng.below(2) as u8;
                let table = engine.table(TABLES[usize::from(number)]).expect("a table");
                engine.flush_tables(&[table]).expect("emptied");
                model.retain(|key, _| key.0 != number);
            }
            2..=14 => transact(engine, &mut sessions[at], rng, model),
            15..=17 => drop(sessions[at].idle()),
            _ => call(&mut sessions[at], &some_call(rng), model),
        }
    }
}

fn run_seed(seed: u64, steps_max: u64) -> u64 {
    let rng = SeededRng::new(seed);
    let mut disk = SimDisk::new(rng.next_u64());
    let mut model = State::new();
    let mut done = 0;
    for life in 0..6 {
        let journal = if rng.below(4) == 0 { "redo" } else { "command" };
        let mut config = config(&disk, journal, 1 + rng.below(4) as usize);
        config.checkpoint = ["calc:partial", "calc", "naive", "none"][rng.below(4) as usize].into();
        config.run_calls_twice = rng.below(4) == 0;
        let engine = with_mix(config).open();
        let engine = engine.unwrap_or_else(|error| panic!("seed {seed}, life {life}: {error}"));
        let found = state(&engine);
        if found != model {
            let keys: Vec<_> = found.keys().chain(model.keys()).collect();
            let differs = keys.into_iter().find(|key| found.get(*key) != model.get(*key));
            panic!("seed {seed}, life {life}: {differs:?} differs");
        }
        let steps = 20 + rng.below(steps_max);
        live(&engine, &rng, steps, &mut model);
        done += steps;
        assert!(state(&engine) == model, "seed {seed}, life {life}: differs before the end");
        if rng.below(4) == 0 {
            engine.close().expect("closes");
        } else {
            drop(engine);
            disk = disk.kill();
        }
    }
    done
}

#[test]
fn random_calls_come_back() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let steps_max = number("STILLPOINT_COMMAND_STEPS").unwrap_or(200).max(1);
    if let Some(seed) = number("STILLPOINT_COMMAND_SEED") {
        run_seed(seed, steps_max);
        return;
    }
    let wanted = number("STILLPOINT_COMMAND_CALLS").unwrap_or(20_000);
    let (mut done, mut seed) = (0, 0);
    while done < wanted {
        let ran = std::panic::catch_unwind(|| run_seed(seed, steps_max));
        let again =
            || format!("STILLPOINT_COMMAND_STEPS={steps_max} STILLPOINT_COMMAND_SEED={seed}");
        done += ran.unwrap_or_else(|_| panic!("again: {}", again()));
        seed += 1;
    }
}
