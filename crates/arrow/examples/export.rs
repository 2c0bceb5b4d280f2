//! Exports a table as an Arrow IPC file while transactions go on, and reads the file back.
//!
//! `cargo run --release -p stillpoint-arrow --example export`

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow_array::cast::AsArray;
use arrow_ipc::reader::FileReader;
use stillpoint::{Config, Engine};

const ACCOUNTS: u64 = 100_000;
const AMOUNT: u64 = 100;

#[expect(clippy::disallowed_methods, reason = "a program of a user has files of its own")]
fn export(engine: &Engine, path: &Path) -> Result<u64, Box<dyn Error>> {
    let file = BufWriter::new(File::create(path)?);
    let (records, file) = stillpoint_arrow::export_table(engine, "accounts", file)?;
    file.into_inner()?.sync_all()?;
    Ok(records)
}

#[expect(clippy::disallowed_methods, reason = "a program of a user has files of its own")]
fn open(path: &Path) -> std::io::Result<File> {
    File::open(path)
}

fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let engine = Engine::open(Config::new(directory.path().join("data")))?;
    let accounts = engine.table("accounts")?;
    let mut session = engine.session()?;
    for first in (0..ACCOUNTS).step_by(1_000) {
        session.transact(|tx| {
            (first..first + 1_000)
                .try_for_each(|id| tx.put(accounts, &id.to_be_bytes(), &AMOUNT.to_le_bytes()))
        })?;
    }

    let path = directory.path().join("accounts.arrow");
    let is_over = AtomicBool::new(false);
    let (records, transfers) = std::thread::scope(|scope| {
        let mover = scope.spawn(|| {
            let mut transfers = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                let (from, to) = (transfers * 7_919 % ACCOUNTS, transfers * 104_729 % ACCOUNTS);
                session.transact(|tx| {
                    let [from, to] = [from, to].map(u64::to_be_bytes);
                    let left =
                        tx.get(accounts, &from)?.and_then(|value| value.u64_at(0)).unwrap_or(0);
                    if left == 0 || from == to {
                        return Ok(());
                    }
                    let had = tx.get(accounts, &to)?.and_then(|value| value.u64_at(0)).unwrap_or(0);
                    tx.put(accounts, &from, &(left - 1).to_le_bytes())?;
                    tx.put(accounts, &to, &(had + 1).to_le_bytes())
                })?;
                transfers += 1;
            }
            Ok::<u64, stillpoint::Error>(transfers)
        });
        let exported = export(&engine, &path);
        is_over.store(true, Ordering::Relaxed);
        let transfers = mover.join().expect("the mover does not panic");
        Ok::<_, Box<dyn Error>>((exported?, transfers?))
    })?;

    let (mut read, mut sum) = (0, 0);
    for batch in FileReader::try_new(open(&path)?, None)? {
        let batch = batch?;
        for value in batch.column(2).as_binary::<i32>().iter().flatten() {
            sum += u64::from_le_bytes(value.try_into()?);
            read += 1;
        }
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "{records} records exported beside {transfers} transfers")?;
    writeln!(out, "{read} read back, whose sum is {sum}: {} expected", ACCOUNTS * AMOUNT)?;
    if (read, sum) != (ACCOUNTS, ACCOUNTS * AMOUNT) || records != read {
        return Err("the file is not consistent".into());
    }
    engine.close()?;
    Ok(())
}
