//! Random transactions that remember what they read.

use crate::checker::{Observed, Read};
use crate::common::{Key, Random};
use stillpoint_store::{KeySet, Mode, Procedure, Slot, Stamp, TableId, Tx, TxError, Worker};

/// Action of a transaction on one key after its read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Step {
    Read,
    /// Appends the transaction's number to the value, which is a list.
    Append,
    /// A new value of about this length.
    Put(usize),
    Delete,
}

/// A transaction under way, declared or not.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    id: u64,
    pub(crate) steps: Vec<(Key, Step)>,
    yields: bool,
    abandons: bool,
    slots: Vec<Slot>,
    reads: Vec<Read>,
    ended: Option<Option<Stamp>>,
}

impl Attempt {
    /// A few random steps on some of the keys; new values have up to about `longest` bytes.
    pub(crate) fn random(random: &mut Random, id: u64, keys: &[Key], longest: usize) -> Self {
        let most = if random.one_in(20) { keys.len() } else { 4 };
        let mut steps: Vec<(Key, Step)> = Vec::new();
        for _ in 0..1 + random.below(most) {
            let key = &keys[random.below(keys.len())];
            if steps.iter().any(|(known, _)| known == key) {
                continue;
            }
            let step = match random.below(20) {
                0..=8 => Step::Read,
                9..=14 => Step::Append,
                15..=16 => Step::Delete,
                17 if random.one_in(4) => Step::Put(random.below(longest)),
                _ => Step::Put(random.below(longest.min(200))),
            };
            steps.push((key.clone(), step));
        }
        Self {
            id,
            steps,
            yields: random.one_in(3),
            abandons: random.one_in(20),
            slots: Vec::new(),
            reads: Vec::new(),
            ended: None,
        }
    }

    fn mode(step: Step) -> Mode {
        if step == Step::Read { Mode::Read } else { Mode::Write }
    }

    fn step(&mut self, tx: &mut Tx<'_>, slot: Slot, at: usize) -> Result<(), TxError> {
        let (key, step) = self.steps[at].clone();
        let value = tx.value(slot).map(|value| (value.label(), value.to_vec()));
        let len = value.as_ref().map(|value| value.1.len());
        let locked = self.steps.len() > 1 || step != Step::Read;
        self.reads.push(Read { key, stamp: tx.stamp(slot), value, locked });
        let number = self.id.to_le_bytes();
        match (step, len) {
            (Step::Append, Some(len)) if len < 4_000 => tx.patch_slot(slot, len, &number)?,
            (Step::Append, _) => tx.put_slot_tagged(slot, 1, &number)?,
            (Step::Put(len), _) => {
                let filled = number.iter().copied().cycle().take(len);
                tx.put_slot_tagged(slot, 2, &filled.collect::<Vec<u8>>())?;
            }
            (Step::Delete, _) => assert_eq!(tx.delete_slot(slot)?, len.is_some()),
            (Step::Read, _) => {}
        }
        if self.yields {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Runs the attempt as a transaction that finds its keys on the way.
    pub(crate) fn run_undeclared(&mut self, worker: &mut Worker) {
        let ended = worker.transact_stamped(|tx| {
            self.reads.clear();
            for at in 0..self.steps.len() {
                let ((table, key), step) = self.steps[at].clone();
                // Half of the writers read first and upgrade the lock later.
                if (self.id as usize + at).is_multiple_of(2) {
                    tx.key(TableId(table), &key, Mode::Read)?;
                }
                let slot = tx.key(TableId(table), &key, Self::mode(step))?;
                self.step(tx, slot, at)?;
                self.reads.last_mut().expect("just read").locked = true;
            }
            self.end()
        });
        self.ended(ended.map(|((), stamp)| stamp));
    }

    /// The caller's observation. A transaction that gave up has still read a consistent state.
    pub(crate) fn observed(self, began: u64, ended: u64) -> Observed {
        Observed { began, ended, stamp: self.ended.flatten(), reads: self.reads }
    }

    fn end(&self) -> Result<(), TxError> {
        match self.abandons {
            true => Err(TxError::abandon("by chance")),
            false => Ok(()),
        }
    }
}

impl Procedure for Attempt {
    fn declare(&mut self, keys: &mut KeySet) {
        for (key, step) in &self.steps {
            let slot = keys.push(TableId(key.0), &key.1, Self::mode(*step), 8);
            self.slots.push(slot);
        }
    }

    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        for at in 0..self.steps.len() {
            self.step(tx, self.slots[at], at)?;
        }
        self.end()
    }

    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        match result {
            Ok(stamp) => self.ended = Some(stamp),
            Err(TxError::Abandoned(_)) => assert!(self.abandons),
            Err(error) => panic!("{error}"),
        }
    }
}
