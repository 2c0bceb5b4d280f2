//! How long a long value holds up others when its key is renamed or copied, or gets an expiry.
//!
//! `cargo bench -p stillpoint --bench long_value -- [MIB] [TIMES]`: a value of MIB (default 512) under the
//! journal `redo`, strict. The log gets the whole value of a renamed key, encoded outside of the read
//! section. Meanwhile snapshots begin one after the other, and each waits for two grace periods. So no read
//! section was longer than the longest of these waits. The line `nothing` tells what they take at rest.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use stillpoint::{
    Config, Durability, Engine, KeySet, Mode, Procedure, Session, Slot, Stamp, TableId, Tx, TxError,
};
use stillpoint_io::{Clock, RealClock};

/// A time far ahead, in milliseconds since the Unix epoch.
const LATER_MS: u64 = 32_503_680_000_000;

/// Gives one key the value of another, whose key goes if `moves`.
struct Shares {
    table: TableId,
    keys: [&'static [u8]; 2],
    moves: bool,
    result: Option<Result<Option<Stamp>, TxError>>,
}

impl Procedure for Shares {
    fn declare(&mut self, keys: &mut KeySet) {
        for key in self.keys {
            keys.push(self.table, key, Mode::Write, 0);
        }
    }

    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let label = tx.value(Slot(0)).map(|value| value.label()).unwrap_or_default();
        assert!(tx.share_slot(Slot(0), Slot(1), label)?, "a large value");
        if self.moves {
            tx.delete_slot(Slot(0))?;
        }
        Ok(())
    }

    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        self.result = Some(result);
    }
}

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn share(
    session: &mut Session,
    table: TableId,
    keys: [&'static [u8]; 2],
    moves: bool,
) -> Outcome<()> {
    let mut shares = [Shares { table, keys, moves, result: None }];
    session.execute(&mut shares[..]);
    let [shares] = shares;
    shares.result.ok_or("the transaction has not run")??;
    Ok(session.flush()?)
}

/// The longest begin of a snapshot until `over`, in microseconds.
fn longest_begin(engine: &Engine, over: &AtomicBool) -> u64 {
    let mut longest = 0;
    while !over.load(Relaxed) {
        let start_ns = RealClock.monotonic_ns();
        // The capture of the one before may not have ended yet.
        if engine.snapshot().is_ok() {
            longest = longest.max((RealClock.monotonic_ns() - start_ns) / 1_000);
        }
        RealClock.sleep(Duration::from_micros(200));
    }
    longest
}

/// Runs an operation so many times. Gives the milliseconds of each.
fn repeat(
    name: &str,
    times: usize,
    session: &mut Session,
    table: TableId,
    value: &[u8],
) -> Outcome<Vec<u64>> {
    let mut taken = Vec::new();
    for time in 0..times as u64 {
        let start_ns = RealClock.monotonic_ns();
        match name {
            "expiry" => {
                session.transact(|tx| tx.set_deadline(table, b"first", LATER_MS + time))?;
                session.flush()?;
            }
            "rename there, and back" => {
                share(session, table, [b"first", b"second"], true)?;
                share(session, table, [b"second", b"first"], true)?;
            }
            "copy" => share(session, table, [b"first", b"second"], false)?,
            "set" => {
                session.transact(|tx| tx.put_until(table, b"first", value, LATER_MS))?;
                session.flush()?;
            }
            _ => RealClock.sleep(Duration::from_millis(300)),
        }
        taken.push((RealClock.monotonic_ns() - start_ns) / 1_000_000);
        session.idle();
    }
    Ok(taken)
}

fn main() -> Outcome<()> {
    let mut numbers = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let mib: usize = numbers.next().map_or(Ok(512), |text| text.parse())?;
    let times: usize = numbers.next().map_or(Ok(3), |text| text.parse())?;
    let home = tempfile::tempdir()?;
    let mut config = Config::new(home.path());
    config.checkpoint = "calc".to_owned();
    config.checkpoint_every = None;
    config.durability = Durability::Strict;
    config.max_memory_bytes = (4 * mib + 64) << 20;
    let engine = Engine::open(config)?;
    let table = engine.table("values")?;
    let mut session = engine.session()?;
    let value: Vec<u8> = (0..mib << 20).map(|at| (at / 3) as u8).collect();
    session.transact(|tx| tx.put(table, b"first", &value))?;
    session.flush()?;
    println!("{:<22} {:>12} {:>24}", "operation", "median_ms", "longest_wait_us");
    for name in ["nothing", "expiry", "rename there, and back", "copy", "set"] {
        let over = AtomicBool::new(false);
        let (taken, longest) = std::thread::scope(|scope| {
            let waits = scope.spawn(|| longest_begin(&engine, &over));
            let taken = repeat(name, times, &mut session, table, &value);
            over.store(true, Relaxed);
            (taken, waits.join())
        });
        let (mut taken, longest) = (taken?, longest.map_err(|_| "a thread has panicked")?);
        taken.sort_unstable();
        println!("{name:<22} {:>12} {longest:>24}", taken[taken.len() / 2]);
    }
    drop(session);
    engine.close()?;
    Ok(())
}
