//! The workloads on another store.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Embedded, EmbeddedSession, Row, Setup};
use crate::error::{LabError, LabResult};
use crate::subjects::adapter::{Checkpointed, Client, Status};
use crate::workloads::random::Random;
use crate::workloads::ycsb::{
    Action, FIELD_BYTES, Mix, Operation, Operations, check, first_record, write_field,
};

/// Records that one loading transaction writes.
const LOAD_RECORDS: u64 = 1_000;

/// A store that is being measured.
pub(super) struct Peer {
    name: String,
    store: Box<dyn Embedded>,
    updates: AtomicU64,
}

fn key(record: u64) -> [u8; 8] {
    record.to_be_bytes()
}

/// The counter at the begin of a value.
fn count_of(value: &[u8]) -> u64 {
    value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

impl Peer {
    pub(super) fn open(row: &Row, setup: &Setup) -> LabResult<Peer> {
        let failed = |reason| LabError::Engine { engine: row.name.clone(), reason };
        let store = (row.open)(setup).map_err(failed)?;
        Ok(Peer { name: row.name.clone(), store, updates: AtomicU64::new(0) })
    }

    fn failed(&self, reason: String) -> LabError {
        LabError::Engine { engine: self.name.clone(), reason }
    }

    fn session(&self) -> LabResult<Box<dyn EmbeddedSession + '_>> {
        self.store.session().map_err(|reason| self.failed(reason))
    }

    /// Writes records by their numbers.
    fn load(&self, records: u64, value: impl Fn(u64) -> Vec<u8>) -> LabResult<()> {
        let mut session = self.session()?;
        let mut first = 0;
        while first < records {
            let end = records.min(first + LOAD_RECORDS);
            let batch: Vec<_> = (first..end).map(|record| (key(record), value(record))).collect();
            session.load(&batch).map_err(|reason| self.failed(reason))?;
            first = end;
        }
        Ok(())
    }

    /// Records with counters at 0.
    pub(super) fn load_counters(&self, records: u64, value_bytes: usize) -> LabResult<()> {
        self.load(records, |record| {
            let mut value = vec![record as u8; value_bytes];
            value[..8].fill(0);
            value
        })
    }

    /// YCSB's records.
    pub(super) fn load_ycsb(&self, records: u64) -> LabResult<()> {
        self.load(records, |record| first_record(record).to_vec())
    }

    /// A client whose transactions add one to the counters of so many records.
    pub(super) fn counting(
        &self,
        records: u64,
        touched: usize,
        (worker, seed): (usize, u64),
    ) -> LabResult<Box<dyn Client + '_>> {
        let random = Random::for_thread(seed, worker);
        let session = self.session()?;
        Ok(Box::new(Counting { peer: self, session, random, records, touched, computed: 0 }))
    }

    /// A client of a mix that reads and updates.
    pub(super) fn ycsb(
        &self,
        mix: Mix,
        records: u64,
        worker: usize,
        seed: u64,
    ) -> LabResult<Box<dyn Client + '_>> {
        let operations = Operations::new(mix, records, 1, worker, 0, seed);
        let writes = seed << 48 | (worker as u64) << 40;
        Ok(Box::new(Ycsb { peer: self, session: self.session()?, operations, writes, computed: 0 }))
    }

    /// Reads every record. Compares the sum of the counters with the number of updates.
    pub(super) fn check_counters(&self, records: u64) -> LabResult<()> {
        let mut session = self.session()?;
        let mut found = 0;
        for record in 0..records {
            let read = session.read(key(record), &mut |value| found += count_of(value));
            read.map_err(|reason| self.failed(format!("record {record}: {reason}")))?;
        }
        // Relaxed: all clients have ended.
        let expected = self.updates.load(Ordering::Relaxed);
        if found == expected {
            return Ok(());
        }
        Err(self.failed(format!("{found} updates are there, {expected} have committed")))
    }

    /// Reads and checks every record of YCSB.
    pub(super) fn check_ycsb(&self, records: u64) -> LabResult<()> {
        let mut session = self.session()?;
        for record in 0..records {
            let mut found = Ok(());
            let read = session.read(key(record), &mut |value| found = check(record, value));
            read.map_err(|reason| self.failed(format!("record {record}: {reason}")))?;
            found.map_err(|wrong| self.failed(wrong.to_string()))?;
        }
        Ok(())
    }
}

impl Checkpointed for Peer {
    fn start_checkpoint(&self) -> LabResult<()> {
        Err(self.failed("the comparison asks for no checkpoints".to_owned()))
    }

    fn status(&self) -> Status {
        Status::default()
    }
}

struct Counting<'a> {
    peer: &'a Peer,
    session: Box<dyn EmbeddedSession + 'a>,
    random: Random,
    records: u64,
    touched: usize,
    computed: u64,
}

impl Client for Counting<'_> {
    fn run(&mut self, count: usize) -> LabResult<usize> {
        let mut keys: Vec<[u8; 8]> = Vec::with_capacity(self.touched);
        for _ in 0..count {
            keys.clear();
            while keys.len() < self.touched {
                let key = key(self.random.below(self.records));
                if !keys.contains(&key) {
                    keys.push(key);
                }
            }
            // Stores with locks take them in this order.
            keys.sort_unstable();
            let computed = &mut self.computed;
            let mut change = |value: &mut [u8]| {
                *computed =
                    value.iter().fold(*computed, |sum, byte| sum.wrapping_add((*byte).into()));
                let next = count_of(value) + 1;
                value[..8].copy_from_slice(&next.to_le_bytes());
            };
            let updated = self.session.update(&keys, &mut change);
            updated.map_err(|reason| self.peer.failed(reason))?;
            // Relaxed: a statistic.
            self.peer.updates.fetch_add(self.touched as u64, Ordering::Relaxed);
        }
        std::hint::black_box(self.computed);
        Ok(count)
    }
}

struct Ycsb<'a> {
    peer: &'a Peer,
    session: Box<dyn EmbeddedSession + 'a>,
    operations: Operations,
    /// Gives each write of all workers and runs a number of its own.
    writes: u64,
    computed: u64,
}

impl Client for Ycsb<'_> {
    fn run(&mut self, count: usize) -> LabResult<usize> {
        for _ in 0..count {
            let Operation { record, action } = self.operations.draw();
            let computed = &mut self.computed;
            let done = match action {
                Action::Update(field) => {
                    self.writes += 1;
                    let write = self.writes;
                    self.session.update(&[key(record)], &mut |value| {
                        write_field(&mut value[field * FIELD_BYTES..], record, field, write);
                    })
                }
                _ => self.session.read(key(record), &mut |value| {
                    *computed = computed.wrapping_add(value.last().copied().unwrap_or(0).into());
                }),
            };
            done.map_err(|reason| self.peer.failed(reason))?;
        }
        std::hint::black_box(self.computed);
        Ok(count)
    }
}
