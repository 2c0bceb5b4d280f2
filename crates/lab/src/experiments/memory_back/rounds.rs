//! Records that come and go in many rounds, one length of values after the other.
//!
//! The last state is compared with a fresh store that gets the same records at once. Memory is what the
//! engine holds for records, free memory included.

use std::collections::VecDeque;

use stillpoint::{Config, Engine, Session, TableId};

use super::{Plan, SOURCE};
use crate::context::Context;
use crate::error::{LabError, LabResult};
use crate::report::result::{Bound, ClaimRow, ExperimentResult, Table};
use crate::sys;
use crate::workloads::random::Random;

/// Lengths of values, a round each.
const LENGTHS: [usize; 7] = [8, 100, 1_000, 4_096, 20_000, 100_000, 1 << 20];
/// Memory beyond which memory counts, in bytes.
const FREE_BYTES: f64 = (64 << 20) as f64;
/// Records of one transaction.
const BATCH: usize = 64;
/// Calls of an idle session at the end, which move records together.
const SETTLING_CALLS: usize = 20_000;

/// The order in which records go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// The oldest first.
    Fifo,
    /// Any of them.
    Random,
    /// Nine of ten of a round go with it.
    TenthStays,
}

/// The claim. The memory beyond 64 MiB counts.
const CLAIM: ClaimRow = ClaimRow::new(
    "memory beyond 64 MiB ÷ that of a fresh store with the same records",
    SOURCE,
    Bound::AtMost(1.25),
);

/// A record: its number, and the length of its value.
type Record = (u64, usize);

/// A store, and the records that it has.
struct Bed {
    // Declared before the engine, so that the session is dropped first.
    session: Session,
    engine: Engine,
    table: TableId,
}

impl Bed {
    fn open(context: &Context, name: &str) -> LabResult<Bed> {
        let mut config = Config::new(context.fresh_dir(name)?);
        (config.journal, config.checkpoint) = ("none".to_owned(), "none".to_owned());
        config.checkpoint_every = None;
        let engine = Engine::open(config).map_err(failed)?;
        let table = engine.table("records").map_err(failed)?;
        let session = engine.session().map_err(failed)?;
        Ok(Bed { session, engine, table })
    }

    fn put(&mut self, records: &[Record]) -> LabResult<()> {
        let table = self.table;
        let value = vec![7; records.iter().map(|record| record.1).max().unwrap_or(0)];
        for batch in records.chunks(BATCH) {
            let put = self.session.transact(|tx| {
                batch.iter().try_for_each(|&(number, len)| {
                    tx.put(table, &number.to_be_bytes(), &value[..len])
                })
            });
            put.map_err(failed)?;
        }
        Ok(())
    }

    fn delete(&mut self, records: &[Record]) -> LabResult<()> {
        let table = self.table;
        for batch in records.chunks(BATCH) {
            let deleted = self.session.transact(|tx| {
                batch
                    .iter()
                    .try_for_each(|(number, _)| tx.delete(table, &number.to_be_bytes()).map(drop))
            });
            deleted.map_err(failed)?;
        }
        self.session.idle();
        self.session.relocate();
        Ok(())
    }

    /// Bytes held, once records lie close together.
    fn settled_bytes(&mut self) -> f64 {
        for call in 0..SETTLING_CALLS {
            let has_more = self.session.idle() | self.session.relocate();
            if !has_more && call % 100 == 99 {
                let before = self.engine.stats().memory_bytes;
                sys::sleep(std::time::Duration::from_millis(20));
                self.session.idle();
                if !self.session.relocate() && self.engine.stats().memory_bytes == before {
                    break;
                }
            }
        }
        self.engine.stats().memory_bytes as f64
    }
}

fn failed(error: impl std::fmt::Display) -> LabError {
    LabError::Engine { engine: "stillpoint".into(), reason: error.to_string() }
}

/// Runs the part and adds its claims and its table.
///
/// # Errors
/// The engine refuses, or does not hold exactly the records that live.
pub(super) fn run(context: &Context, plan: &Plan, result: &mut ExperimentResult) -> LabResult<()> {
    let mut table = Table {
        title: "Memory after rounds of records that come and go".into(),
        columns: ["order", "records", "MB", "MB at most", "MB, fresh store"]
            .map(String::from)
            .into(),
        ..Table::default()
    };
    for (name, order) in [
        ("first in, first out", Order::Fifo),
        ("random", Order::Random),
        ("every tenth stays", Order::TenthStays),
    ] {
        let mut bed = Bed::open(context, "rounds")?;
        let (live, most) = rounds(&mut bed, plan, order)?;
        let bytes = bed.settled_bytes();
        let found = bed.engine.len(bed.table);
        if found != live.len() as u64 {
            return Err(failed(format!("{found} records are there, {} live", live.len())));
        }
        drop(bed);
        let mut fresh = Bed::open(context, "fresh")?;
        fresh.put(&live)?;
        let fresh_bytes = fresh.settled_bytes();
        drop(fresh);
        let ratio = (bytes - FREE_BYTES).max(0.0) / fresh_bytes;
        context.note(format!("rounds: {name}: {ratio:.3} of a fresh store"));
        result.claims.push(CLAIM.claim(name).measured(ratio));
        let mb = |bytes: f64| format!("{:.1}", bytes / 1e6);
        table.rows.push(vec![
            name.into(),
            live.len().to_string(),
            mb(bytes),
            mb(most),
            mb(fresh_bytes),
        ]);
    }
    result.tables.push(table);
    Ok(())
}

/// Runs all rounds. Returns the records that live, and the most bytes held.
fn rounds(bed: &mut Bed, plan: &Plan, order: Order) -> LabResult<(Vec<Record>, f64)> {
    let mut random = Random::new(7);
    let (mut live, mut live_bytes) = (VecDeque::<Record>::new(), 0);
    let (mut next, mut most) = (0u64, 0.0f64);
    let bytes_of = |record: &Record| record.1 + 8;
    for round in 0..plan.rounds {
        let len = LENGTHS[round % LENGTHS.len()];
        let count = (plan.round_bytes / (len + 8)).max(1);
        let new: Vec<Record> = (next..next + count as u64).map(|number| (number, len)).collect();
        next += count as u64;
        bed.put(&new)?;
        let stays = |at: usize| order != Order::TenthStays || (at + round).is_multiple_of(10);
        let (kept, mut gone): (Vec<_>, Vec<_>) =
            new.into_iter().enumerate().partition(|(at, _)| stays(*at));
        live_bytes += kept.iter().map(|(_, record)| bytes_of(record)).sum::<usize>();
        live.extend(kept.into_iter().map(|(_, record)| record));
        let mut leaving: Vec<Record> = gone.drain(..).map(|(_, record)| record).collect();
        while live_bytes > plan.live_bytes {
            let record = match order {
                Order::Random => live.swap_remove_back(random.below(live.len() as u64) as usize),
                _ => live.pop_front(),
            };
            let Some(record) = record else { break };
            live_bytes -= bytes_of(&record);
            leaving.push(record);
        }
        bed.delete(&leaving)?;
        most = most.max(bed.engine.stats().memory_bytes as f64);
    }
    Ok((live.into(), most))
}
