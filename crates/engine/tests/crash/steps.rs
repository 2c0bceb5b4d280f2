//! The transactions of the workload as a procedure, which a log of calls holds by its arguments.

use std::cell::RefCell;

use stillpoint::{
    Config, Engine, Error, KeySet, Mode, Slot, StoredProcedure, TableId, Tx, TxError,
};

use crate::history::{Key, Value};
use crate::workload::{Do, Done, act};

/// Opens a store that has the procedure.
pub(crate) fn open(config: Config) -> Result<Engine, Error> {
    Engine::builder(config).procedure("steps", |_| Ok(Steps)).open()
}

/// Takes the steps of its arguments, and then leaves a mark if it has written.
struct Steps;

/// What the procedure is asked for: mark and number of the transaction, and its steps.
pub(crate) struct Asked {
    pub(crate) mark: Key,
    pub(crate) id: u64,
    pub(crate) steps: Vec<(Key, Do)>,
}

impl Asked {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_key(&mut out, &self.mark);
        out.extend(self.id.to_le_bytes());
        for (key, action) in &self.steps {
            put_key(&mut out, key);
            let (code, numbers, bytes) = match action {
                Do::Read => (0, [0, 0], &[][..]),
                Do::Put((tag, bytes)) => (1, [u64::from(*tag), 0], &bytes[..]),
                Do::Patch(offset, bytes) => (2, [*offset as u64, 0], &bytes[..]),
                Do::Splice(at, removed, bytes) => (3, [*at as u64, *removed as u64], &bytes[..]),
                Do::Append(bytes) => (4, [0, 0], &bytes[..]),
                Do::Add(amount) => (5, [*amount as u64, 0], &[][..]),
                Do::Delete => (6, [0, 0], &[][..]),
            };
            out.push(code);
            numbers.iter().for_each(|number| out.extend(number.to_le_bytes()));
            put_bytes(&mut out, bytes);
        }
        out
    }

    fn decode(mut from: &[u8]) -> Self {
        let from = &mut from;
        let (mark, id) = (key(from), number(from));
        let mut steps = Vec::new();
        while !from.is_empty() {
            let key = key(from);
            let code = take(from, 1)[0];
            let [first, second] = [number(from), number(from)];
            let bytes = bytes(from);
            let action = match code {
                0 => Do::Read,
                1 => Do::Put((first as u8, bytes)),
                2 => Do::Patch(first as usize, bytes),
                3 => Do::Splice(first as usize, second as usize, bytes),
                4 => Do::Append(bytes),
                5 => Do::Add(first as i64),
                _ => Do::Delete,
            };
            steps.push((key, action));
        }
        Self { mark, id, steps }
    }

    /// The key of the mark comes last, if anything may be written.
    fn marks(&self) -> bool {
        self.steps.iter().any(|step| !matches!(step.1, Do::Read))
    }
}

thread_local! {
    /// What the last run of the procedure on this thread has written.
    static WRITTEN: RefCell<Vec<(Key, Option<Value>)>> = const { RefCell::new(Vec::new()) };
}

/// The writes of the last run of the procedure on this thread.
pub(crate) fn take_written() -> Vec<(Key, Option<Value>)> {
    WRITTEN.take()
}

impl StoredProcedure for Steps {
    type Input = Vec<u8>;
    type Output = ();

    fn declare(&self, input: &Vec<u8>, keys: &mut KeySet) {
        let asked = Asked::decode(input);
        for (key, action) in &asked.steps {
            let mode = if matches!(action, Do::Read) { Mode::Read } else { Mode::Write };
            keys.push(TableId(key.0), &key.1, mode, 0);
        }
        if asked.marks() {
            keys.push(TableId(asked.mark.0), &asked.mark.1, Mode::Write, 8);
        }
    }

    fn run(&self, input: &Vec<u8>, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let asked = Asked::decode(input);
        let mut done = Done::default();
        for (slot, (key, action)) in (0..).zip(&asked.steps) {
            act(None, tx, Some(Slot(slot)), key, action, &mut done)?;
        }
        if !done.writes.is_empty() {
            tx.put_slot(Slot(asked.steps.len() as u32), &asked.id.to_le_bytes())?;
            done.writes.push((asked.mark, Some((0, asked.id.to_le_bytes().to_vec()))));
        }
        WRITTEN.set(done.writes);
        Ok(())
    }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

fn put_key(out: &mut Vec<u8>, (table, key): &Key) {
    out.extend(table.to_le_bytes());
    put_bytes(out, key);
}

fn take<'a>(from: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (head, rest) = from.split_at(len);
    *from = rest;
    head
}

fn number(from: &mut &[u8]) -> u64 {
    u64::from_le_bytes(take(from, 8).try_into().expect("eight"))
}

fn bytes(from: &mut &[u8]) -> Vec<u8> {
    let len = number(from) as usize;
    take(from, len).to_vec()
}

fn key(from: &mut &[u8]) -> Key {
    let table = u16::from_le_bytes(take(from, 2).try_into().expect("two"));
    (table, bytes(from))
}
