//! Declared transactions, which change their keys at their commit.

use std::collections::BTreeSet;

use stillpoint_txn::DeferredLog;

use super::*;

/// The commit of a transaction, whose records are appended together.
struct Together<'l> {
    log: &'l mut Log,
    touched: Vec<Stamp>,
    bodies: Vec<Vec<u8>>,
    /// Called once the log has the commit.
    amid: &'l dyn Fn(),
}

impl DeferredLog for Together<'_> {
    fn add(&mut self, _: TableId, _: u32, encode: &mut dyn FnMut(&mut Vec<u8>)) {
        self.bodies.push(Vec::new());
        encode(self.bodies.last_mut().expect("it was added"));
    }

    fn commit(&mut self) -> Result<Stamp, LogRefused> {
        let Log { logs, number, run, refusals, last, .. } = &mut *self.log;
        if *refusals > 0 {
            *refusals -= 1;
            return Err(LogRefused::NoRoom);
        }
        let mut logs = logs.lock();
        for body in &self.bodies {
            let touched = self.touched.iter().map(|stamp| stamp.gsn());
            *last = logs.append(*number, touched, (*run, Sort::Operation, body));
        }
        let end = logs.append(*number, std::iter::empty(), (*run, Sort::End, &[]));
        drop(logs);
        (self.amid)();
        Ok(end)
    }
}

impl Session {
    /// Locks keys for writing, as a declared transaction does. Gives their slots.
    pub(super) fn declare(&mut self, keys: &[&[u8]], waits: bool) -> Result<Vec<u32>, TxError> {
        self.new_run();
        let (mut asked, mut slots) = (KeyList::default(), Vec::new());
        keys.iter().for_each(|key| asked.push(KindKey { table: TABLE, key, mode: Mode::Write }));
        self.part.ask(&asked, &mut |_, _| {});
        self.part.begin(Priority::DECLARED, Discipline::Declared);
        here(self.part.lock_all(&asked, &|| waits, &mut slots))?;
        Ok(slots)
    }

    /// The value of a slot.
    pub(super) fn value(&mut self, slot: u32) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        self.part.value(slot, &mut out).map(|_| out)
    }

    pub(super) fn set(&mut self, slot: u32, value: Option<&[u8]>) -> Result<(), TxError> {
        let Self { part, log, .. } = self;
        here(part.put(slot, value.map(|value| (0, value)), log, &|| false))
    }

    /// Commits a declared transaction. Calls `amid` between its records and its changes.
    pub(super) fn commit_deferred(&mut self, amid: &dyn Fn()) {
        let mut touched = Vec::new();
        self.part.touched(&mut touched);
        self.part.prepare().expect("nothing fails");
        let Self { part, log, .. } = self;
        let end = loop {
            let bodies = Vec::new();
            let log = &mut Together { log, touched: touched.clone(), bodies, amid };
            match part.commit_deferred(log) {
                Ok(end) => break end,
                Err(LogRefused::NoRoom) => {}
                Err(error) => panic!("{error}"),
            }
        };
        part.install(end);
        part.release(Some(end));
    }

    /// Reads and writes random keys; `map` has the effect. The caller ends the transaction.
    pub(super) fn run_declared(
        &mut self,
        rng: &SeededRng,
        key: impl Fn(&SeededRng) -> Vec<u8>,
        map: &mut Map,
    ) -> Result<(), TxError> {
        let keys: BTreeSet<_> = (0..1 + rng.below(8)).map(|_| key(rng)).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let slots = self.declare(&keys, false)?;
        for _ in 0..1 + rng.below(8) {
            let at = rng.below(keys.len() as u64) as usize;
            let value = (rng.below(3) > 0).then(|| value(rng));
            self.set(slots[at], value.as_deref())?;
            match value {
                Some(value) => drop(map.insert(keys[at].to_vec(), value)),
                None => drop(map.remove(keys[at])),
            }
        }
        for (&key, &slot) in keys.iter().zip(&slots) {
            assert_eq!(self.value(slot).as_ref(), map.get(key), "it reads its own writes");
        }
        if rng.below(4) == 0 {
            // As beside operations that were logged before.
            self.part.log_deferred(&mut self.log)?;
        }
        Ok(())
    }
}

/// A checkpoint begins when the log has the records of a declared transaction, and before the keys change. The
/// checkpoint holds the transaction, since a start leaves its records out.
#[cfg(not(shuttle))]
pub(crate) fn a_checkpoint_that_begins_amid_a_commit_holds_it() {
    for removes in [Removes::Pend, Removes::ToPages] {
        let world = World::new(removes);
        let mut session = world.session(0);
        session.transact(|tx| tx.put(b"changed", Some(b"before"))).expect("commits");
        world.checkpoint(true);
        let slots = session.declare(&[b"changed", b"new"], false).expect("free");
        slots.iter().for_each(|&slot| session.set(slot, Some(b"after")).expect("free"));
        let (kind, level) = (&world.kind, world.kind.stats().level);
        let taken = std::thread::scope(|scope| {
            let checkpoint = Mutex::new(None);
            session.commit_deferred(&|| {
                *checkpoint.lock() = Some(scope.spawn(|| world.checkpoint(true)));
                while kind.stats().level == level {
                    std::thread::yield_now();
                }
            });
            let checkpoint = checkpoint.into_inner().expect("it was begun");
            checkpoint.join().expect("no panic")
        });
        let found = world.restart(Some(&taken), 1).content();
        let expected: Map =
            [&b"changed"[..], b"new"].map(|key| (key.to_vec(), b"after".to_vec())).into();
        assert_eq!(found, expected, "{removes:?}");
    }
}
