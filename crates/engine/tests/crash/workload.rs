//! The workload: sessions that take turns, with the events that they remember.

use std::collections::BTreeSet;
use std::sync::Arc;

use stillpoint::{
    Durability, Engine, Error, KeySet, Mode, Procedure, Session, Stamp, TableId, Tx, TxError,
};
use stillpoint_io::{Rng, SeededRng};

use crate::history::{Event, History, Key, MARKS, Value};
use crate::stage::{Guest, Moment, elsewhere, while_visiting};
use crate::steps::{Asked, take_written};

/// The tables, in the order in which they are made.
pub(crate) const TABLES: [&str; 4] = ["marks", "accounts", "lists", "things"];
const ACCOUNTS: u16 = 1;
const LISTS: u16 = 2;
const THINGS: u16 = 3;
const KEYS: [u64; 4] = [0, 8, 4, 24];

/// The reason why a workload ends early: the machine has stopped, or the store has failed.
#[derive(Debug)]
pub(crate) struct Ended(pub(crate) Error);

/// A session, with its commits that are not acknowledged yet.
pub(crate) struct Player {
    pub(crate) session: Session,
    pub(crate) mark: Key,
    /// Events that the session's answers since the last flush depend on.
    unanswered: BTreeSet<usize>,
}

/// All actors on a store.
pub(crate) struct Workload {
    pub(crate) engine: Arc<Engine>,
    pub(crate) history: History,
    pub(crate) rng: Arc<SeededRng>,
    pub(crate) next_id: u64,
    pub(crate) players: Vec<Option<Player>>,
    /// Keys that open transactions hold.
    held: BTreeSet<Key>,
    /// Transactions and checkpoints that are open around the present step.
    depth: usize,
    logs: usize,
    strict: bool,
    /// Flushes are rare, so that much is unflushed when the crash comes.
    lazy: bool,
    journal: bool,
    checkpoints: bool,
    /// Whether the log holds calls.
    calls: bool,
    /// The first failure, after which nothing is done.
    pub(crate) ended: Option<Error>,
}

/// A transaction's action on a key.
#[derive(Clone, Debug)]
pub(crate) enum Do {
    Read,
    Put(Value),
    /// Overwrites from an offset on, if there is a value.
    Patch(usize, Vec<u8>),
    /// Replaces bytes: offset and number of them, as far as the value has so many.
    Splice(usize, usize, Vec<u8>),
    Append(Vec<u8>),
    Add(i64),
    Delete,
}

/// Effects of a transaction.
#[derive(Debug, Default)]
pub(crate) struct Done {
    needs: BTreeSet<usize>,
    /// Values found, key by key.
    reads: Vec<(Key, Option<Value>)>,
    /// Whether a read was outdated when the body ended.
    stale: bool,
    pub(crate) writes: Vec<(Key, Option<Value>)>,
}

impl Workload {
    pub(crate) fn new(
        engine: Arc<Engine>,
        history: History,
        rng: Arc<SeededRng>,
        next_id: u64,
        sessions: usize,
    ) -> Result<Self, Error> {
        let config = engine.config();
        let logs = config.logs;
        let journal = config.durability != Durability::Checkpoint;
        let strict = config.durability == Durability::Strict;
        // Only this scheme takes no checkpoints.
        let checkpoints = config.checkpoint != "none";
        let calls = config.journal == "command";
        let lazy = rng.below(3) == 0;
        let players = (0..sessions).map(|at| {
            let (session, mark) = (engine.session()?, (MARKS, vec![at as u8]));
            Ok(Some(Player { session, mark, unanswered: BTreeSet::new() }))
        });
        let players = players.collect::<Result<Vec<_>, Error>>()?;
        Ok(Self {
            players,
            engine,
            history,
            rng,
            next_id,
            held: BTreeSet::new(),
            depth: 0,
            logs,
            strict,
            lazy,
            journal,
            checkpoints,
            calls,
            ended: None,
        })
    }

    /// Runs random steps until their end, or until the machine stops.
    pub(crate) fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            self.step();
            if self.ended.is_some() {
                return;
            }
        }
    }

    fn below(&self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    fn step(&mut self) {
        if self.ended.is_some() {
            return;
        }
        let free: Vec<usize> =
            (0..self.players.len()).filter(|&at| self.players[at].is_some()).collect();
        let Some(&at) = free.get(self.below(free.len().max(1) as u64) as usize) else {
            return;
        };
        let result = match self.below(40) {
            0..=9 if !self.lazy => self.transact(at),
            0..=19 if self.calls && self.below(3) > 0 => self.call(at),
            0..=19 => self.execute(at),
            20..=21 => self.look(at),
            22 => self.count(at),
            23..=24 => self.scan(at),
            25..=29 => self.flush(at),
            30 if self.checkpoints && self.depth < 2 => self.checkpoint(),
            31 if self.depth < 2 => self.flush_tables(),
            32 => self.fail_on_purpose(at),
            33 => {
                let player = self.players[at].as_mut().expect("free");
                player.session.idle();
                Ok(())
            }
            _ if self.lazy => self.execute(at),
            _ => self.transact(at),
        };
        if let Err(Ended(error)) = result {
            self.ended.get_or_insert(error);
        }
    }

    /// Some different keys that no open transaction holds, with an action on each.
    fn choose(&self) -> Vec<(Key, Do)> {
        let mut chosen: Vec<(Key, Do)> = Vec::new();
        let account = |rng: &SeededRng| (ACCOUNTS, vec![b'a', rng.below(KEYS[1]) as u8]);
        if self.below(3) == 0 {
            let amount = self.below(50) as i64;
            chosen.push((account(&self.rng), Do::Add(-amount)));
            chosen.push((account(&self.rng), Do::Add(amount)));
        } else {
            for _ in 0..1 + self.below(4) {
                let table = 1 + self.below(3) as u16;
                let key = (table, vec![b'k', self.below(KEYS[usize::from(table)]) as u8]);
                let action = match (table, self.below(6)) {
                    (_, 0) => Do::Read,
                    (LISTS, _) => {
                        Do::Append(self.next_id.to_le_bytes().repeat(1 + self.below(30) as usize))
                    }
                    (THINGS, 1) => Do::Delete,
                    (THINGS, 2) => Do::Patch(self.below(300) as usize, self.bytes(40)),
                    (THINGS, 3) => {
                        let (at, removed) = (self.below(300) as usize, self.below(20) as usize);
                        Do::Splice(at, removed, self.bytes(8))
                    }
                    _ => Do::Put((self.below(256) as u8, self.bytes(0))),
                };
                chosen.push((key, action));
            }
        }
        let mut seen = BTreeSet::new();
        chosen.retain(|(key, _)| !self.held.contains(key) && seen.insert(key.clone()));
        chosen
    }

    /// A value that names its origin.
    fn bytes(&self, len: usize) -> Vec<u8> {
        let len = match self.below(20) {
            _ if len > 0 => len,
            0 => 0,
            1..=12 => 8 + self.below(60) as usize,
            13..=17 => 200 + self.below(1500) as usize,
            18 => 5_000 + self.below(20_000) as usize,
            _ => 20_000 + self.below(60_000) as usize,
        };
        let seed = self.next_id.wrapping_mul(0x9e37_79b9) as u8;
        (0..len).map(|at| seed ^ (at as u8).wrapping_mul(31)).collect()
    }

    /// Runs a transaction that finds its keys on the way. Other sessions may act while the
    /// transaction is open.
    fn transact(&mut self, at: usize) -> Result<(), Ended> {
        let steps = self.choose();
        let pause =
            (self.depth < 2 && self.below(4) == 0).then(|| self.below(steps.len() as u64 + 1));
        let mut player = self.players[at].take().expect("free");
        let id = self.take_id();
        let held: Vec<Key> = steps.iter().map(|step| step.0.clone()).collect();
        let mut done = Done::default();
        let mut paused = false;
        let result = player.session.transact(|tx| {
            done = Done::default();
            for (index, (key, action)) in steps.iter().enumerate() {
                if pause == Some(index as u64) && !std::mem::replace(&mut paused, true) {
                    // Only keys locked so far are stable. Later keys may still change.
                    self.held.extend(held[..index].iter().cloned());
                    self.depth += 1;
                    (0..1 + self.below(6)).for_each(|_| self.step());
                    self.depth -= 1;
                    self.held.retain(|key| !held.contains(key));
                }
                act(Some(&self.history), tx, None, key, action, &mut done).map_err(give_way)?;
            }
            if !done.writes.is_empty() {
                put_mark(tx, &player.mark, id, &mut done)?;
            }
            // With all locks held the read values cannot change, except by a flush of tables, which
            // takes no locks.
            done.stale =
                done.reads.iter().any(|(key, value)| self.history.value(key) != value.as_ref());
            Ok(())
        });
        let (stale, wrote) = (done.stale, !done.writes.is_empty());
        let committed = self.note(&mut player, id, done);
        let result = match result {
            Ok(()) => {
                assert!(!stale, "committed, though a flush of tables took away what it had read");
                assert!(committed, "transact returned Ok, but its mark is not there");
                self.answer(&mut player);
                Ok(())
            }
            Err(Error::Transaction(error)) if !is_refusal(&error) => {
                assert!(
                    !committed || !wrote,
                    "transact failed with {error}, but its mark is there"
                );
                // The error has revealed something of the read values.
                self.answer(&mut player);
                Ok(())
            }
            Err(error) => Err(Ended(error)),
        };
        self.players[at] = Some(player);
        result
    }

    /// Finds out whether the transaction with this mark has committed, and records it.
    fn note(&mut self, player: &mut Player, id: u64, done: Done) -> bool {
        let Done { needs, writes, .. } = done;
        if writes.is_empty() {
            player.unanswered.extend(needs);
            return true;
        }
        let mut mark = Vec::new();
        let seen = match player.session.read(TableId(MARKS), &player.mark.1, &mut mark) {
            // What was written is in memory, so a mark that must be read from the disk was not.
            Err(error) if is_unreadable(&error) => None,
            seen => seen.expect("reads of memory are served whatever happens"),
        };
        let Some(seen) = seen.filter(|_| mark == id.to_le_bytes()) else {
            player.unanswered.extend(needs);
            return false;
        };
        self.record(player, id, seen.stamp, Done { needs, writes, ..Done::default() });
        true
    }

    fn record(&mut self, player: &mut Player, id: u64, stamp: Stamp, done: Done) {
        let log = usize::from(player.mark.1[0]) % self.logs;
        assert!(!self.journal || usize::from(stamp.log()) == log, "a session keeps to its log");
        let epoch = self.engine.stats().epoch;
        let Done { needs, writes, .. } = done;
        let event = Event { id, stamp: Some(stamp), epoch, needs, writes, emptied: Vec::new() };
        let event = self.history.happened(event);
        player.unanswered.insert(event);
    }

    /// Flushes the session, which may answer afterwards.
    fn answer(&mut self, player: &mut Player) {
        let answered = std::mem::take(&mut player.unanswered);
        if self.strict {
            self.history.acknowledged.extend(answered);
        }
    }

    fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Runs a few transactions with declared keys as a batch. The next flush acknowledges the
    /// transactions.
    fn execute(&mut self, at: usize) -> Result<(), Ended> {
        let mut player = self.players[at].take().expect("free");
        let mut failed = None;
        for _ in 0..1 + self.below(3) {
            let id = self.take_id();
            let mut call = Declared {
                history: &self.history,
                steps: self.choose(),
                mark: &player.mark,
                id,
                done: Done::default(),
                ended: None,
            };
            player.session.execute(std::slice::from_mut(&mut call));
            let (done, ended) = (call.done, call.ended.expect("told how it ended"));
            match ended {
                Ok(Some(stamp)) => self.record(&mut player, id, stamp, done),
                Ok(None) => player.unanswered.extend(done.needs),
                Err(error) => {
                    failed = Some(Ended(error.into()));
                    break;
                }
            }
        }
        self.players[at] = Some(player);
        failed.map_or(Ok(()), Err)
    }

    /// Calls the procedure.
    fn call(&mut self, at: usize) -> Result<(), Ended> {
        let mut player = self.players[at].take().expect("free");
        let id = self.take_id();
        let asked = Asked { mark: player.mark.clone(), id, steps: self.choose() };
        let mut done = Done::default();
        let mut keys: Vec<&Key> = asked.steps.iter().map(|step| &step.0).collect();
        keys.push(&asked.mark);
        done.needs.extend(keys.iter().filter_map(|key| self.history.writer(key)));
        take_written();
        let result = player.session.call::<_, ()>("steps", &asked.encode());
        done.writes = take_written();
        let result = match result {
            Ok(()) => {
                assert!(
                    self.note(&mut player, id, done),
                    "a call returned, but its mark is not there"
                );
                self.answer(&mut player);
                Ok(())
            }
            Err(error) => {
                // The commit may be in the log and not be flushed.
                self.note(&mut player, id, done);
                Err(Ended(error))
            }
        };
        self.players[at] = Some(player);
        result
    }

    /// Reads a key without a lock.
    fn look(&mut self, at: usize) -> Result<(), Ended> {
        let mut player = self.players[at].take().expect("free");
        for (key, _) in self.choose() {
            let mut out = Vec::new();
            let seen = match player.session.read(TableId(key.0), &key.1, &mut out) {
                Err(error) if is_unreadable(&error) => {
                    self.players[at] = Some(player);
                    return Err(Ended(error));
                }
                seen => seen.expect("reads of memory are served whatever happens"),
            };
            let seen = seen.map(|seen| (seen.tag, out));
            assert_eq!(seen.as_ref(), self.history.value(&key), "read of {key:?}");
            player.unanswered.extend(self.history.writer(&key));
        }
        self.players[at] = Some(player);
        Ok(())
    }

    /// Reads a table from end to end.
    fn scan(&mut self, at: usize) -> Result<(), Ended> {
        let mut player = self.players[at].take().expect("free");
        let table = self.below(4) as u16;
        let found = match scan_table(&mut player.session, table) {
            Err(error) if is_unreadable(&error) => {
                self.players[at] = Some(player);
                return Err(Ended(error));
            }
            found => found.expect("scans of memory are served whatever happens"),
        };
        assert!(
            found.iter().eq(self.history.now.iter().filter(|(key, _)| key.0 == table)),
            "a scan of table {table} differs"
        );
        // A key that a scan does not show is an answer, too.
        player.unanswered.extend(self.history.writers_of(table));
        self.players[at] = Some(player);
        Ok(())
    }

    /// Counts the records of a table. Each commit so far may have changed the number.
    fn count(&mut self, at: usize) -> Result<(), Ended> {
        let mut player = self.players[at].take().expect("free");
        let table = self.below(4) as u16;
        let count = player.session.len(TableId(table)).expect("reads are served");
        let known = self.history.now.keys().filter(|key| key.0 == table).count();
        assert_eq!(count, known as u64, "count of table {table}");
        player.unanswered.extend(0..self.history.events.len());
        self.players[at] = Some(player);
        Ok(())
    }

    fn flush(&mut self, at: usize) -> Result<(), Ended> {
        let mut player = self.players[at].take().expect("free");
        let flushed = player.session.flush();
        if flushed.is_ok() {
            self.answer(&mut player);
        }
        self.players[at] = Some(player);
        flushed.map_err(Ended)
    }

    /// Runs a transaction that writes and then rolls back.
    fn fail_on_purpose(&mut self, at: usize) -> Result<(), Ended> {
        let mut player = self.players[at].take().expect("free");
        let steps = self.choose();
        let history = &self.history;
        let mut done = Done::default();
        let result = player.session.transact(|tx| {
            done = Done::default();
            for (key, action) in &steps {
                act(Some(history), tx, None, key, action, &mut done).map_err(give_way)?;
            }
            Err::<(), _>(TxError::abandon("on purpose"))
        });
        player.unanswered.extend(done.needs);
        let result = match result {
            Err(Error::Transaction(TxError::Abandoned(_))) => {
                self.answer(&mut player);
                Ok(())
            }
            Err(error) => Err(Ended(error)),
            Ok(()) => panic!("an abandoned transaction returned Ok"),
        };
        self.players[at] = Some(player);
        result
    }

    fn flush_tables(&mut self) -> Result<(), Ended> {
        let emptied = if self.below(2) == 0 { vec![THINGS] } else { vec![LISTS, THINGS] };
        let tables: Vec<TableId> = emptied.iter().map(|&table| TableId(table)).collect();
        let engine = self.engine.clone();
        let result = elsewhere(move || engine.flush_tables(&tables));
        let epoch = self.engine.stats().epoch;
        let needs =
            if self.journal { (0..self.history.events.len()).collect() } else { BTreeSet::new() };
        let id = self.take_id();
        let event = Event { id, stamp: None, epoch, needs, writes: Vec::new(), emptied };
        match result {
            Ok(()) => {
                self.history.happened(event);
                if self.journal {
                    self.history.acknowledge_all();
                }
                Ok(())
            }
            Err(error) => {
                // In memory nothing was emptied. The disk may hold the flush, unless the store says
                // that it does not.
                let uncertain = self.journal && self.engine.health().is_err();
                self.history.uncertain_flush = uncertain.then_some(event);
                Err(Ended(error))
            }
        }
    }

    /// Takes a checkpoint, while other sessions go on where they can.
    fn checkpoint(&mut self) -> Result<(), Ended> {
        let engine = self.engine.clone();
        let before = self.history.events.len();
        let epoch = engine.stats().epoch;
        let hollow = Self {
            engine: engine.clone(),
            history: History::default(),
            rng: self.rng.clone(),
            next_id: 0,
            players: Vec::new(),
            held: BTreeSet::new(),
            depth: 0,
            logs: self.logs,
            strict: self.strict,
            lazy: self.lazy,
            journal: self.journal,
            checkpoints: self.checkpoints,
            calls: self.calls,
            ended: None,
        };
        let mut guest = std::mem::replace(self, hollow);
        guest.depth += 2;
        guest.history.checkpoints_begun.insert(epoch + 1);
        let guest: Box<dyn Guest> = Box::new(guest);
        let (result, guest) = elsewhere(move || while_visiting(guest, || engine.checkpoint()));
        let guest: Box<dyn std::any::Any> = guest;
        *self = *guest.downcast::<Self>().expect("the same comes back");
        self.depth -= 2;
        let done = result.map_err(Ended)?;
        assert_eq!(done.epoch, epoch + 1);
        self.history.published = Some(done.epoch);
        if self.journal {
            self.history.acknowledged.extend(0..before);
        }
        Ok(())
    }
}

impl Guest for Workload {
    fn act(&mut self, moment: Moment) {
        for _ in 0..self.below(4) {
            let at = self.below(self.players.len() as u64) as usize;
            if self.ended.is_some() || self.players[at].is_none() {
                return;
            }
            let result = match moment {
                Moment::Quiet => {
                    self.step();
                    Ok(())
                }
                // The guest does nothing that calls the disk, since such calls would race with the
                // writers'.
                Moment::Phases if self.strict || self.below(2) == 0 => self.execute(at),
                Moment::Phases => self.transact(at),
            };
            if let Err(Ended(error)) = result {
                self.ended.get_or_insert(error);
            }
        }
    }
}

/// A transaction cannot wait here for the lock of a transaction further out on the same thread.
fn give_way(error: TxError) -> TxError {
    match error {
        TxError::Conflict => TxError::abandon("met the lock of an open transaction"),
        error => error,
    }
}

/// Whether the journal refused the commit, as opposed to an error of the transaction.
fn is_refusal(error: &TxError) -> bool {
    matches!(error, TxError::Log(_))
}

/// Whether a record that was not loaded yet cannot be read: the machine has stopped.
fn is_unreadable(error: &Error) -> bool {
    matches!(error, Error::Transaction(TxError::Unreadable(_)))
}

/// Carries out one action, by slot or by key. Compares the present value with that of the history, if
/// there is one.
pub(crate) fn act(
    history: Option<&History>,
    tx: &mut Tx<'_>,
    slot: Option<stillpoint::Slot>,
    key: &Key,
    action: &Do,
    done: &mut Done,
) -> Result<(), TxError> {
    let mode = if matches!(action, Do::Read) { Mode::Read } else { Mode::Write };
    let slot = match slot {
        Some(slot) => slot,
        None => tx.key(TableId(key.0), &key.1, mode)?,
    };
    let found: Option<Value> = tx.value(slot).map(|value| (value.tag(), value.to_vec()));
    if let Some(history) = history {
        assert_eq!(found.as_ref(), history.value(key), "read of {key:?} in a transaction");
        done.needs.extend(history.writer(key));
    }
    done.reads.push((key.clone(), found.clone()));
    let written = match action {
        Do::Read => return Ok(()),
        Do::Delete => {
            let existed = tx.delete_slot(slot)?;
            assert_eq!(existed, found.is_some());
            if !existed {
                return Ok(());
            }
            None
        }
        Do::Put((tag, bytes)) => {
            tx.put_slot_tagged(slot, *tag, bytes)?;
            Some((*tag, bytes.clone()))
        }
        Do::Add(amount) => {
            let now = found.map_or(1000, |(_, bytes)| {
                i64::from_le_bytes(bytes[..8].try_into().unwrap_or([0; 8]))
            });
            let bytes = (now + amount).to_le_bytes();
            tx.put_slot_tagged(slot, 1, &bytes)?;
            Some((1, bytes.to_vec()))
        }
        Do::Splice(at, removed, bytes) if found.is_some() => {
            let Some((tag, mut value)) = found else { return Ok(()) };
            let offset = *at % (value.len() + 1);
            let removed = *removed % (value.len() - offset + 1);
            tx.splice_slot(slot, offset, removed, bytes)?;
            value.splice(offset..offset + removed, bytes.iter().copied());
            Some((tag, value))
        }
        Do::Append(bytes) | Do::Patch(_, bytes) | Do::Splice(.., bytes) => {
            let Some((tag, mut value)) = found else {
                tx.put_slot_tagged(slot, 2, bytes)?;
                done.writes.push((key.clone(), Some((2, bytes.clone()))));
                return Ok(());
            };
            let offset = if let Do::Patch(offset, _) = action {
                *offset % (value.len() + 1)
            } else {
                value.len()
            };
            tx.patch_slot(slot, offset, bytes)?;
            value.resize(value.len().max(offset + bytes.len()), 0);
            value[offset..offset + bytes.len()].copy_from_slice(bytes);
            Some((tag, value))
        }
    };
    done.writes.push((key.clone(), written));
    Ok(())
}

fn put_mark(tx: &mut Tx<'_>, mark: &Key, id: u64, done: &mut Done) -> Result<(), TxError> {
    tx.put(TableId(mark.0), &mark.1, &id.to_le_bytes())?;
    done.writes.push((mark.clone(), Some((0, id.to_le_bytes().to_vec()))));
    Ok(())
}

/// A transaction with declared keys.
struct Declared<'a> {
    history: &'a History,
    steps: Vec<(Key, Do)>,
    mark: &'a Key,
    id: u64,
    done: Done,
    ended: Option<Result<Option<Stamp>, TxError>>,
}

impl Procedure for Declared<'_> {
    fn declare(&mut self, keys: &mut KeySet) {
        for (key, action) in &self.steps {
            let mode = if matches!(action, Do::Read) { Mode::Read } else { Mode::Write };
            keys.push(TableId(key.0), &key.1, mode, 0);
        }
        if self.steps.iter().any(|step| !matches!(step.1, Do::Read)) {
            keys.push(TableId(self.mark.0), &self.mark.1, Mode::Write, 8);
        }
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        self.done = Done::default();
        for (slot, (key, action)) in (0..).zip(&self.steps) {
            act(Some(self.history), tx, Some(stillpoint::Slot(slot)), key, action, &mut self.done)?;
        }
        if !self.done.writes.is_empty() {
            put_mark(tx, self.mark, self.id, &mut self.done)?;
        }
        Ok(())
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        self.ended = Some(result);
    }
}

/// All records of a table.
pub(crate) fn scan_table(
    session: &mut Session,
    table: u16,
) -> Result<crate::history::State, Error> {
    let mut found = crate::history::State::new();
    let mut cursor = 0;
    loop {
        let next = session.scan(TableId(table), cursor, 64, &mut |key, value| {
            found.insert((table, key.to_vec()), (value.tag(), value.to_vec()));
        });
        cursor = next?;
        if cursor == 0 {
            return Ok(found);
        }
    }
}
