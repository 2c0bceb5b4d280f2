//! What a command's handler works with.

use std::sync::Arc;

use stillpoint::{Slot, Tx, TxError};

use crate::client::Client;
use crate::command::Spec;
use crate::config::Db;
use crate::error::CmdError;
use crate::resp::{Mark, Reply};
use crate::shared::Shared;
use crate::stats::WorkerStats;
use crate::value::{EXPIRY_BYTES, Entry, HAS_EXPIRY};

/// Expired keys noted per pass for deletion; the others are found again.
const NOTED_MAX: usize = 256;

/// What belongs to one event loop and is handed to each of its commands.
#[derive(Debug)]
pub(crate) struct Local {
    /// Number of the event loop.
    pub(crate) worker: usize,
    /// Wall time of this pass, in milliseconds since the Unix epoch.
    pub(crate) now_ms: u64,
    pub(crate) stats: Arc<WorkerStats>,
    /// Expired keys that were met and wait for their deletion.
    pub(crate) expired: Vec<(Db, Box<[u8]>)>,
    scratch: Vec<u8>,
    prefixed: Vec<u8>,
    was_there: bool,
}

impl Local {
    pub(crate) fn new(worker: usize, stats: Arc<WorkerStats>) -> Self {
        Self {
            worker,
            now_ms: 0,
            stats,
            expired: Vec::new(),
            scratch: Vec::new(),
            prefixed: Vec::new(),
            was_there: false,
        }
    }
}

/// Scratch memory kept between commands.
const SCRATCH_KEEP: usize = 1 << 20;

/// One command's surroundings.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) client: &'a mut Client,
    pub(crate) reply: &'a mut Reply,
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) local: &'a mut Local,
    /// Slot of the command's first key; beyond 0 only inside `EXEC`.
    pub(crate) first_slot: u32,
}

impl Context<'_> {
    /// Wall time of this pass, in milliseconds since the Unix epoch.
    pub(crate) fn now_ms(&self) -> u64 {
        self.local.now_ms
    }

    /// The client's database.
    pub(crate) fn db(&self) -> Db {
        self.client.db
    }

    /// The slot of the command's `i`-th key.
    pub(crate) fn slot(&self, i: u32) -> Slot {
        Slot(self.first_slot + i)
    }

    /// Counts a call of a command.
    pub(crate) fn count_call(&self, spec: &Spec) {
        self.local.stats.count_call(spec.id);
    }

    /// Replaces what was written since `mark` by an error.
    pub(crate) fn answer_error(&mut self, mark: Mark, error: &CmdError) {
        self.reply.truncate(mark);
        self.reply.error(error.message());
        self.local.stats.count_error(error.message());
    }

    /// The value of the `i`-th key, unless it is missing or expired.
    pub(crate) fn lookup<'t>(
        &mut self,
        tx: &'t mut Tx<'_>,
        i: u32,
        key: &[u8],
    ) -> Option<Entry<'t>> {
        let entry = Entry::new(tx.value(self.slot(i))?);
        if entry.is_expired(self.local.now_ms) {
            if self.local.expired.len() < NOTED_MAX {
                self.local.expired.push((self.client.db, key.into()));
            }
            return None;
        }
        Some(entry)
    }

    /// As [`lookup`](Self::lookup), counted as a hit or a miss.
    pub(crate) fn read<'t>(&mut self, tx: &'t mut Tx<'_>, i: u32, key: &[u8]) -> Option<Entry<'t>> {
        let entry = self.lookup(tx, i, key);
        self.local.stats.count_lookup(entry.is_some());
        entry
    }

    /// Sets the `i`-th key: type, expiry, value. A moment that has passed deletes.
    pub(crate) fn put(
        &mut self,
        tx: &mut Tx<'_>,
        i: u32,
        kind: u8,
        expire_at_ms: Option<u64>,
        value: &[u8],
    ) -> Result<(), TxError> {
        let slot = self.slot(i);
        self.note_made(tx, slot);
        let Some(at) = expire_at_ms else {
            self.note_expiry(tx, slot, false);
            return tx.put_slot_tagged(slot, kind, value);
        };
        if at <= self.local.now_ms {
            return self.delete(tx, i);
        }
        self.note_expiry(tx, slot, true);
        // The end of a long value is not copied twice.
        let (first, rest) = value.split_at(value.len().min(SCRATCH_KEEP - EXPIRY_BYTES));
        let buffer = &mut self.local.prefixed;
        buffer.clear();
        buffer.extend_from_slice(&at.to_le_bytes());
        buffer.extend_from_slice(first);
        let put = tx.put_slot_tagged(slot, kind | HAS_EXPIRY, buffer);
        buffer.clear();
        if rest.is_empty() {
            put
        } else {
            put.and_then(|()| tx.patch_slot(slot, SCRATCH_KEEP, rest))
        }
    }

    /// Deletes the `i`-th key, expired or not.
    pub(crate) fn delete(&mut self, tx: &mut Tx<'_>, i: u32) -> Result<(), TxError> {
        let slot = self.slot(i);
        self.note_expiry(tx, slot, false);
        tx.delete_slot(slot)?;
        Ok(())
    }

    /// Overwrites part of the stored value of the `i`-th key.
    pub(crate) fn patch(
        &mut self,
        tx: &mut Tx<'_>,
        i: u32,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), TxError> {
        tx.patch_slot(self.slot(i), offset, bytes)
    }

    /// Changes the expiry of the `i`-th key, which exists. A moment that has passed deletes.
    pub(crate) fn set_expiry(
        &mut self,
        tx: &mut Tx<'_>,
        i: u32,
        expire_at_ms: Option<u64>,
    ) -> Result<(), TxError> {
        let slot = self.slot(i);
        let Some(value) = tx.value(slot) else {
            return Ok(());
        };
        if expire_at_ms.is_some_and(|at| at <= self.local.now_ms) {
            return self.delete(tx, i);
        }
        let entry = Entry::new(value);
        if let (Some(at), Some(_)) = (expire_at_ms, entry.expire_at_ms) {
            return tx.patch_slot(slot, 0, &at.to_le_bytes());
        }
        let kind = entry.tag() & !HAS_EXPIRY;
        let mut bytes = self.take_scratch();
        entry.copy_to(&mut bytes);
        self.put(tx, i, kind, expire_at_ms, &bytes)?;
        self.give_scratch(bytes);
        Ok(())
    }

    /// Tells those who watch a missing key that it is being made. If its transaction does not
    /// commit, theirs is tried again in vain.
    fn note_made(&mut self, tx: &mut Tx<'_>, slot: Slot) {
        let (missing_keys, now_ms) = (&self.shared.missing_keys, self.local.now_ms);
        let hash = tx.key_hash(slot);
        if missing_keys.may_watch(hash)
            && tx.value(slot).is_none_or(|old| Entry::new(old).is_expired(now_ms))
        {
            missing_keys.made(hash);
        }
    }

    /// Keeps the count of keys with an expiry.
    fn note_expiry(&mut self, tx: &mut Tx<'_>, slot: Slot, will_have: bool) {
        let has = tx.value(slot).is_some_and(|old| old.tag() & HAS_EXPIRY != 0);
        if has != will_have {
            self.local.stats.expiring_changed(self.client.db, if will_have { 1 } else { -1 });
        }
    }

    /// Appends the string at the `i`-th key to `out` and gives its expiry;
    /// [`was_there`](Self::was_there) tells missing from empty.
    pub(crate) fn load_string(
        &mut self,
        tx: &mut Tx<'_>,
        i: u32,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<u64>, CmdError> {
        let entry = self.lookup(tx, i, key);
        self.local.was_there = entry.is_some();
        let Some(entry) = entry else { return Ok(None) };
        if !entry.is_string() {
            return Err(CmdError::WRONG_TYPE);
        }
        entry.copy_to(out);
        Ok(entry.expire_at_ms)
    }

    /// True if the last [`load_string`](Self::load_string) found its key.
    pub(crate) fn was_there(&self) -> bool {
        self.local.was_there
    }

    /// An empty buffer, to be given back.
    pub(crate) fn take_scratch(&mut self) -> Vec<u8> {
        let mut buffer = std::mem::take(&mut self.local.scratch);
        buffer.clear();
        buffer
    }

    /// Gives a buffer back for the next command.
    pub(crate) fn give_scratch(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        buffer.shrink_to(SCRATCH_KEEP);
        self.local.scratch = buffer;
    }
}
