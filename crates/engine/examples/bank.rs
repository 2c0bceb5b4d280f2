//! A small bank: tables, transactions, a procedure, a checkpoint under way, a restart.
//!
//! `cargo run --release -p stillpoint --example bank`

use std::error::Error;
use std::io::Write;

use stillpoint::{Config, Engine, KeySet, Mode, Slot, StoredProcedure, TableId, Tx, TxError};

const ACCOUNTS: u32 = 1_000;
const OPENING_BALANCE: u64 = 100;

/// Moves money from one account to another, if there is enough. The procedure's keys follow from
/// its arguments, so no lock ever aborts it.
struct Transfer {
    accounts: TableId,
}

impl StoredProcedure for Transfer {
    /// From, to, amount.
    type Input = (u32, u32, u64);
    type Output = bool;

    fn declare(&self, &(from, to, _): &Self::Input, keys: &mut KeySet) {
        for account in [from, to] {
            keys.push(self.accounts, &account.to_be_bytes(), Mode::Write, 8);
        }
    }

    fn run(&self, &(_, _, amount): &Self::Input, tx: &mut Tx<'_>) -> Result<bool, TxError> {
        let (from, to) = (Slot(0), Slot(1));
        let mut balance = |slot| tx.value(slot).and_then(|value| value.u64_at(0)).unwrap_or(0);
        let (rich, poor) = (balance(from), balance(to));
        if rich < amount {
            return Ok(false);
        }
        tx.put_slot(from, &(rich - amount).to_le_bytes())?;
        tx.put_slot(to, &(poor + amount).to_le_bytes())?;
        Ok(true)
    }
}

fn total(engine: &Engine, accounts: TableId) -> Result<u64, Box<dyn Error>> {
    let mut session = engine.session()?;
    // One transaction sees all accounts at one moment.
    Ok(session.transact(|tx| {
        let mut total = 0;
        for account in 0..ACCOUNTS {
            let balance = tx.get(accounts, &account.to_be_bytes())?;
            total += balance.and_then(|value| value.u64_at(0)).unwrap_or(0);
        }
        Ok(total)
    })?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    let directory = tempfile::tempdir()?;
    let engine = Engine::builder(Config::new(directory.path()))
        .procedure("transfer", |tables| Ok(Transfer { accounts: tables.table("accounts")? }))
        .open()?;
    let accounts = engine.table("accounts")?;

    let mut session = engine.session()?;
    session.transact(|tx| {
        (0..ACCOUNTS).try_for_each(|account| {
            tx.put(accounts, &account.to_be_bytes(), &OPENING_BALANCE.to_le_bytes())
        })
    })?;
    writeln!(out, "{} accounts, {} in all", engine.len(accounts), total(&engine, accounts)?)?;

    // The engine now takes a checkpoint in the background, and no transaction waits for it.
    engine.checkpoint_in_background();
    let mut done = 0;
    for at in 0..100_000u32 {
        let (from, to) = (at.wrapping_mul(7919) % ACCOUNTS, at.wrapping_mul(104_729) % ACCOUNTS);
        if from != to {
            done += u32::from(
                session.call::<_, bool>("transfer", &(from, to, 1 + u64::from(at % 50)))?,
            );
        }
    }
    let checkpoint = engine.checkpoint()?;
    let stats = engine.stats();
    writeln!(out, "{done} transfers, {} in all", total(&engine, accounts)?)?;
    writeln!(
        out,
        "checkpoint {}: {} records, {} bytes, {:?}; {} commits in the log",
        checkpoint.epoch, checkpoint.records, checkpoint.bytes, checkpoint.duration, stats.commits,
    )?;
    drop(session);
    engine.close()?;

    let engine = Engine::open(Config::new(directory.path()))?;
    let accounts = engine.table("accounts")?;
    writeln!(
        out,
        "reopened: {} accounts, {} in all",
        engine.len(accounts),
        total(&engine, accounts)?
    )?;
    engine.close()?;
    Ok(())
}
