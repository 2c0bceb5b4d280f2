//! Clients that wait, and that the transaction which makes their key serves at its end.
//!
//! ```text
//! declare ─ keys of the command, and the lists that its waiters move elements to
//! run ───── the command; then, for each key that it has made: claim, take, reply, for each waiter
//! ended ─── commit: the waiters get their replies; rollback: they wait again
//! ```
//! A waiter may have come, or a list may have been named, since the keys were declared. Then the command runs
//! again, and declares anew.

use std::collections::VecDeque;

use stillpoint::{KeySet, Mode, Slot, Stamp, TableId, TxError};

use super::kinds::Kind;
use super::waiters::{Claim, Served, Waiters};
use crate::config::Db;
use crate::error::CmdError;

/// Runs of commands of an event loop that ask for further keys, in succession. Then the waiter is woken.
const RERUNS_MAX: u32 = 16;
/// Most keys that one transaction declares for waiters.
const TARGETS_MAX: usize = 64;

/// A key that the transaction has made, and that somebody may wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadyKey {
    pub(crate) db: Db,
    pub(crate) slot: Slot,
    pub(crate) hash: u64,
    pub(crate) kind: Kind,
}

/// A list that a waiter moves an element to.
#[derive(Debug)]
struct Target {
    /// The number of the transaction that has declared it.
    transaction: usize,
    table: TableId,
    key: Box<[u8]>,
    slot: Slot,
}

/// What an event loop knows of the waiters that its transactions serve.
#[derive(Debug, Default)]
pub(crate) struct Serving {
    has_waiters: bool,
    has_movers: bool,
    /// The transactions of the batch that may serve somebody, in ascending order.
    serves: Vec<usize>,
    targets: Vec<Target>,
    /// The number of the transaction that runs.
    transaction: usize,
    ready: VecDeque<ReadyKey>,
    claims: Vec<(Claim, Result<Vec<u8>, CmdError>)>,
    /// Whether a command of the batch may run again.
    may_rerun: bool,
    reruns: u32,
}

impl Serving {
    /// Begins a batch of transactions. `may_rerun` says that their commands may run again with further keys.
    pub(crate) fn begin_batch(&mut self, waiters: &Waiters, may_rerun: bool) {
        self.serves.clear();
        self.targets.clear();
        self.may_rerun = may_rerun;
        (self.has_waiters, self.has_movers) = (waiters.has_any(), waiters.has_movers());
    }

    /// Declares what waiters of the declared keys of a transaction change beside them.
    #[inline]
    pub(crate) fn declare(&mut self, waiters: &Waiters, transaction: usize, keys: &mut KeySet) {
        if self.has_waiters {
            self.declare_for_waiters(waiters, transaction, keys);
        }
    }

    #[cold]
    fn declare_for_waiters(&mut self, waiters: &Waiters, transaction: usize, keys: &mut KeySet) {
        let first = keys.declared().len() - keys.len();
        let mut at = first;
        let mut serves = false;
        let most = keys.declared().len() + TARGETS_MAX;
        // What an element is moved to may be waited for itself.
        while let Some(key) = keys.declared().get(at).copied() {
            at += 1;
            if key.mode != Mode::Write || !waiters.may_wait(key.hash) {
                continue;
            }
            serves = true;
            let targets = if self.has_movers { waiters.targets(key.hash) } else { Vec::new() };
            for target in targets {
                if keys.declared().len() == most
                    || self.slot_of(transaction, key.table, &target).is_some()
                {
                    continue;
                }
                let slot = keys.push(key.table, &target, Mode::Write, 0);
                self.targets.push(Target { transaction, table: key.table, key: target, slot });
            }
        }
        if serves {
            self.serves.push(transaction);
        }
    }

    fn slot_of(&self, transaction: usize, table: TableId, key: &[u8]) -> Option<Slot> {
        // Those of a transaction lie together, and a batch has many.
        let first = self.targets.partition_point(|target| target.transaction < transaction);
        let own = self.targets[first..].iter().take_while(|it| it.transaction == transaction);
        let mut same_table = own.filter(|target| target.table == table);
        same_table.find(|target| *target.key == *key).map(|target| target.slot)
    }

    /// Whether a transaction may serve somebody, and then writes more than its commands do.
    pub(crate) fn may_serve(&self, transaction: usize) -> bool {
        self.serves.binary_search(&transaction).is_ok()
    }

    /// Begins a run of a transaction.
    #[inline]
    pub(crate) fn begin(&mut self, transaction: usize) {
        self.transaction = transaction;
        self.ready.clear();
        self.claims.clear();
    }

    /// Notes a key that the transaction has made.
    pub(super) fn note_ready(&mut self, key: ReadyKey) {
        self.ready.push_back(key);
    }

    /// Whether there is nobody to serve.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.ready.is_empty()
    }

    /// The next key that the transaction has made.
    pub(crate) fn next_ready(&mut self) -> Option<ReadyKey> {
        self.ready.pop_front()
    }

    /// Whether the running transaction may serve somebody.
    pub(crate) fn is_on(&self) -> bool {
        self.may_serve(self.transaction)
    }

    /// The slot of a list that the running transaction has declared for waiters.
    pub(crate) fn target(&self, table: TableId, key: &[u8]) -> Option<Slot> {
        self.slot_of(self.transaction, table, key)
    }

    /// Whether the command may run again to declare further keys. Otherwise somebody is woken.
    pub(crate) fn may_run_again(&mut self) -> bool {
        self.reruns += 1;
        self.may_rerun && self.reruns <= RERUNS_MAX
    }

    /// Notes the reply of a waiter.
    pub(crate) fn note_reply(&mut self, claim: Claim, reply: Result<Vec<u8>, CmdError>) {
        self.claims.push((claim, reply));
    }

    /// Lets all waiters of the running transaction wait again.
    pub(crate) fn release(&mut self) {
        self.claims.clear();
    }

    /// Ends a transaction. Appends the event loops of the clients that it has served to `wakes`.
    #[inline]
    pub(crate) fn end(&mut self, result: &Result<Option<Stamp>, TxError>, wakes: &mut Vec<usize>) {
        if !self.claims.is_empty() {
            self.end_claims(result, wakes);
        }
    }

    #[cold]
    fn end_claims(&mut self, result: &Result<Option<Stamp>, TxError>, wakes: &mut Vec<usize>) {
        let Ok(commit) = *result else { return self.claims.clear() };
        self.reruns = 0;
        for (claim, reply) in self.claims.drain(..) {
            let reply = reply.map_err(|error| error.message().to_owned());
            wakes.push(claim.serve(Served { reply, commit }));
        }
    }
}
