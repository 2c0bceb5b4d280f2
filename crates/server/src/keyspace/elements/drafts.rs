//! Collections that are built before a key has them.
//!
//! `COPY`, `RESTORE` and the `STORE` forms may make a large collection. One transaction reads what such a
//! command needs, and is rolled back. It leaves a draft: the header and the nodes of the result. Bounded
//! transactions write the nodes, and a last one gives the key the header.
//!
//! ```text
//! read, roll back ─ grave and nodes ─ nodes ─ … ─ nodes ─ nothing has changed? header, and no grave
//! ```
//! The collection has a grave from its first node on. So the reclaimer of a later start removes what a crash
//! leaves, and the reclaimer of this start leaves the graves of drafts alone. Each of the transactions writes
//! the grave, so each depends on the one before it. Parents are written before their children: no node is
//! there without a way to it from the grave.
//!
//! The last transaction compares the stamps of all keys of the command with those of the first. If one of
//! them has changed, the draft is given up, and the command makes another one.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use stillpoint::{Batch, KeySet, Mode, Session, Slot, Stamp, Tx, TxError};

use super::reclaim::{Remains, grave_of_header};
use super::tree::{NodeBytes, Nodes, damaged};
use super::{Contents, Elements, earliest_expiry, node_key};
use crate::config::Db;
use crate::keyspace::databases::Keyspace;
use crate::keyspace::value::Entry;
use crate::planted::mutant;

/// Nodes that one transaction writes, at most.
const STEP_NODES: usize = 64;
/// Bytes of nodes after which a transaction writes no further one.
const STEP_BYTES: usize = 64 << 10;
/// A collection of this many elements, or of this many bytes, is built before its key has it.
const DRAFT_ELEMENTS: usize = if cfg!(test) { 200 } else { 8192 };
const DRAFT_BYTES: usize = 1 << 20;
/// Drafts that one command makes, at most. Then it is one transaction.
const TRIES: u8 = 3;

/// The incarnations of the collections that are being built.
#[derive(Debug, Default)]
pub(in crate::keyspace) struct Constructions(Mutex<HashSet<u64>>);

impl Constructions {
    /// The number of collections that are being built, and may have graves.
    pub(in crate::keyspace) fn len(&self) -> u64 {
        self.0.lock().len() as u64
    }

    /// Whether the collection of an incarnation is being built.
    pub(super) fn has(&self, incarnation: u64) -> bool {
        self.0.lock().contains(&incarnation)
    }
}

/// The mark of a collection that is being built, until the value is dropped.
#[derive(Debug)]
struct UnderConstruction {
    incarnation: u64,
    among: Arc<Constructions>,
}

impl UnderConstruction {
    fn new(incarnation: u64, among: &Arc<Constructions>) -> Self {
        mutant!(among.0.lock().insert(incarnation), ConstructionSwept => true);
        Self { incarnation, among: Arc::clone(among) }
    }
}

impl Drop for UnderConstruction {
    fn drop(&mut self) {
        self.among.0.lock().remove(&self.incarnation);
    }
}

/// The nodes of a collection that no record has yet. Node `n` is at `n - 1`.
#[derive(Debug, Default)]
struct DraftNodes(Vec<Box<[u8]>>);

impl Nodes for DraftNodes {
    fn read(&mut self, node: u64) -> Result<NodeBytes, TxError> {
        let at = usize::try_from(node).ok().and_then(|node| node.checked_sub(1));
        at.and_then(|at| self.0.get(at)).map(|node| Arc::new(node.to_vec())).ok_or_else(damaged)
    }

    fn write(&mut self, _: u64, _: Vec<u8>) -> Result<(), TxError> {
        Err(damaged())
    }

    fn splice(&mut self, _: u64, _: Range<usize>, _: &[u8]) -> Result<(), TxError> {
        Err(damaged())
    }

    fn add(&mut self, bytes: Vec<u8>) -> Result<u64, TxError> {
        self.0.push(bytes.into_boxed_slice());
        Ok(self.0.len() as u64)
    }

    fn remove(&mut self, _: u64) -> Result<(), TxError> {
        Err(damaged())
    }

    fn ask_for(&mut self, _: u64) -> bool {
        true
    }
}

/// What the first transaction of a command has seen.
#[derive(Debug)]
pub(in crate::keyspace) struct KeyStamps {
    /// For each key the stamp of its last writer; `None` if the key was missing or had expired.
    stamps: Vec<Option<Stamp>>,
    /// Flushes and exchanges of databases that had ended.
    flushes: u64,
}

impl KeyStamps {
    /// Looks at the first `keys` keys of a transaction. `None` if one of them has elements that have expired:
    /// what it holds changes with the time.
    pub(in crate::keyspace) fn now(
        tx: &mut Tx<'_>,
        keys: u32,
        keyspace: &Keyspace,
        now_ms: u64,
    ) -> Option<Self> {
        let flushes = keyspace.flushes().now();
        let mut stamps = Vec::with_capacity(keys as usize);
        for slot in (0..keys).map(Slot) {
            let entry = tx.value(slot).map(Entry::new).filter(|entry| !entry.is_expired(now_ms));
            let is_there = entry.is_some();
            if entry.is_some_and(|entry| earliest_expiry(&entry).is_some_and(|at| at <= now_ms)) {
                return None;
            }
            stamps.push(is_there.then(|| tx.stamp(slot)));
        }
        Some(Self { stamps, flushes })
    }

    /// Whether no database was emptied or exchanged since.
    fn has_databases(&self, keyspace: &Keyspace) -> bool {
        mutant!(keyspace.flushes().none_since(self.flushes), FlushUnseen => true)
    }

    fn is_unchanged(&self, tx: &mut Tx<'_>, keyspace: &Keyspace, now_ms: u64) -> bool {
        let keys = self.stamps.len() as u32;
        let same = |now: Self| mutant!(now.stamps == self.stamps, DraftOutdated => true);
        self.has_databases(keyspace) && Self::now(tx, keys, keyspace, now_ms).is_some_and(same)
    }
}

/// A collection whose nodes are written before its key has it.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(in crate::keyspace) db: Db,
    /// The slot of the key.
    pub(in crate::keyspace) slot: Slot,
    pub(in crate::keyspace) elements: Elements,
    /// The nodes that are not written yet.
    nodes: Vec<Box<[u8]>>,
    remains: Remains,
    grave: Vec<u8>,
    has_grave: bool,
    seen: KeyStamps,
    /// The reply of the command.
    pub(crate) reply: Vec<u8>,
    _mark: UnderConstruction,
}

/// What became of a transaction that writes nodes of a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    Some,
    All,
    /// The store has refused it, or a database was emptied or exchanged.
    Refused,
}

impl Draft {
    /// A draft of a new collection with these elements. `None` if the collection has no nodes.
    ///
    /// # Errors
    /// There are too many elements.
    pub(in crate::keyspace) fn new(
        mut elements: Elements,
        contents: &Contents,
        (db, slot, remains): (Db, Slot, Remains),
        seen: KeyStamps,
        among: &Arc<Constructions>,
    ) -> Result<Option<Self>, TxError> {
        let mut nodes = DraftNodes::default();
        elements.fill_into(&mut nodes, contents.iter().collect())?;
        elements.keys.last = nodes.0.len() as u64;
        let header = elements.value();
        let Some((incarnation, grave)) = grave_of_header(remains.place, elements.kind(), &header)
            .filter(|_| !nodes.0.is_empty())
        else {
            return Ok(None);
        };
        let mark = UnderConstruction::new(incarnation, among);
        Ok(Some(Self {
            db,
            slot,
            elements,
            nodes: nodes.0,
            remains,
            grave,
            has_grave: false,
            seen,
            reply: Vec::new(),
            _mark: mark,
        }))
    }

    /// Writes some of the nodes, in one transaction.
    pub(crate) fn step(&mut self, session: &mut Session, keyspace: &Keyspace) -> Written {
        let mut bytes = 0;
        let last = self.nodes.iter().rev().take(STEP_NODES);
        let count = last.take_while(|node| {
            let goes = bytes < STEP_BYTES;
            bytes += node.len();
            goes
        });
        let first = self.nodes.len() - count.count();
        let mut step = Step { draft: self, keyspace, first, done: false };
        session.execute(&mut step);
        if !step.done {
            return Written::Refused;
        }
        self.nodes.truncate(first);
        self.has_grave = true;
        if first == 0 { Written::All } else { Written::Some }
    }

    /// Whether the keys of the command are as they were when the draft was made.
    pub(in crate::keyspace) fn is_current(
        &self,
        tx: &mut Tx<'_>,
        keyspace: &Keyspace,
        now_ms: u64,
    ) -> bool {
        self.seen.is_unchanged(tx, keyspace, now_ms)
    }

    /// The slot of the grave, in a transaction of the command.
    ///
    /// # Errors
    /// The grave cannot be locked.
    pub(in crate::keyspace) fn grave(&self, tx: &mut Tx<'_>) -> Result<Slot, TxError> {
        let incarnation = self.elements.keys.incarnation.to_be_bytes();
        tx.key_under(self.slot, self.remains.graves, &incarnation, 0)
    }
}

/// One transaction of a [`Draft`]: the nodes from `first` on.
struct Step<'a> {
    draft: &'a Draft,
    keyspace: &'a Keyspace,
    first: usize,
    done: bool,
}

impl Batch for Step<'_> {
    fn len(&self) -> usize {
        1
    }

    fn declare(&mut self, _: usize, keys: &mut KeySet) {
        let Draft { elements, nodes, remains, grave, .. } = self.draft;
        let incarnation = elements.keys.incarnation;
        keys.push(remains.graves, &incarnation.to_be_bytes(), Mode::Write, grave.len());
        for (i, node) in nodes.iter().enumerate().skip(self.first) {
            keys.push(remains.nodes, &node_key(incarnation, i as u64 + 1), Mode::Write, node.len());
        }
    }

    fn run(&mut self, _: usize, tx: &mut Tx<'_>) -> Result<(), TxError> {
        let Draft { nodes, grave, has_grave, seen, .. } = self.draft;
        // A flush takes the parents of these nodes, or the grave.
        if !seen.has_databases(self.keyspace) {
            return Err(TxError::abandon("a database was emptied or exchanged"));
        }
        match has_grave {
            false => mutant!(tx.put_slot(Slot(0), grave), DraftUngraved => Ok(()))?,
            true => mutant!(tx.patch_slot(Slot(0), 0, &grave[..1]), DraftUngraved => Ok(()))?,
        }
        for (slot, node) in (1..).map(Slot).zip(&nodes[self.first..]) {
            tx.put_slot(slot, node)?;
        }
        Ok(())
    }

    fn ended(&mut self, _: usize, result: Result<Option<Stamp>, TxError>) {
        self.done = result.is_ok();
    }
}

/// The draft of the command that runs on a thread for long commands.
#[derive(Debug, Default)]
pub(crate) struct Drafting {
    /// Drafts that the command may still make.
    tries: u8,
    /// Keys that the command has declared.
    pub(crate) keys: u32,
    /// A draft that the command has just made.
    pub(crate) made: Option<Box<Draft>>,
    /// A draft whose nodes are written.
    pub(crate) built: Option<Box<Draft>>,
}

impl Keyspace {
    /// The state of a command on a thread for long commands. A log of calls makes each call again as one
    /// transaction, and compares what it writes. So there are no drafts with such a log.
    pub(crate) fn drafting(&self) -> Drafting {
        let engine = self.engine();
        let logs_calls = engine.logs_calls() || engine.config().log_calls;
        Drafting { tries: if logs_calls { 0 } else { TRIES }, ..Drafting::default() }
    }
}

impl Drafting {
    /// Whether the command may make drafts, or has made one.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.tries > 0 || self.built.is_some()
    }

    /// Makes no further draft: the command is one transaction.
    pub(crate) fn end(&mut self) {
        *self = Self::default();
    }

    /// Whether a collection of these elements is to be a draft. Counts the draft.
    pub(in crate::keyspace) fn begins(&mut self, contents: &Contents) -> bool {
        let is_large = contents.len() >= DRAFT_ELEMENTS || contents.bytes() >= DRAFT_BYTES;
        let begins = self.tries > 0 && is_large;
        self.tries -= u8::from(begins);
        begins
    }
}
