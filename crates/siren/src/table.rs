//! A table: its index of proxies and its pages, and the three operations on versions.

use std::sync::Arc;

use stillpoint_format::Stamp;
use stillpoint_io::return_freed_memory;
use stillpoint_sync::atomic::{AtomicU64, Ordering::Relaxed};
use stillpoint_sync::mutant;

use crate::gates::Gates;
use crate::index::Index;
use crate::latch::Latch;
use crate::pages::Pages;
use crate::planted;
use crate::proxy::{Proxy, Value, Version, Versions};
use crate::slab::Slot;

/// So many keys a transaction commits while it has the latch of the pages.
const COMMITS_A_TURN: usize = 16;

/// A table.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) id: u16,
    pub(crate) name: String,
    /// The generation of a table of the engine, which counts how often it was emptied.
    pub(crate) generation: u32,
    /// Pages up to this number belong to earlier generations.
    pub(crate) numbers_before: u64,
    pub(crate) index: Index,
    pub(crate) pages: Latch<Pages>,
    /// Locks of the whole table and of the gap above all keys.
    pub(crate) gates: Gates,
    /// Keys with a committed value. The last field, so all else is freed when this one is dropped.
    records: Records,
}

/// So many records are worth a look of the allocator at its heaps.
const RETURNED_RECORDS_MIN: u64 = 1000;

/// The number of a table's records.
#[derive(Debug, Default)]
struct Records(AtomicU64);

impl Drop for Records {
    /// Gives the memory of an emptied table back. What other tables have lies between, so the allocator would keep
    /// it.
    fn drop(&mut self) {
        // Relaxed: nobody else has the table any more.
        if self.0.load(Relaxed) >= RETURNED_RECORDS_MIN {
            return_freed_memory();
        }
    }
}

/// A transaction's statement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Author {
    pub(crate) transaction: u64,
    pub(crate) statement: u32,
}

impl Table {
    pub(crate) fn new(id: u16, name: &str, generation: u32, pages: Pages) -> Arc<Self> {
        Arc::new(Self {
            id,
            name: name.to_owned(),
            generation,
            numbers_before: pages.numbers(),
            index: Index::new(pages.hash_seed()),
            pages: Latch::new(pages),
            gates: Gates::new(),
            records: Records::default(),
        })
    }

    pub(crate) fn records(&self) -> u64 {
        // Relaxed: a count, which publishes no other memory; its partner is `commit`.
        self.records.0.load(Relaxed)
    }

    /// Gives a key a new open version, in place of an earlier one of the same statement.
    pub(crate) fn write(&self, level: u64, proxy: &Arc<Proxy>, value: Value, author: Author) {
        self.write_on(&mut self.pages.lock(), level, (proxy, value), author);
    }

    fn write_on(
        &self,
        pages: &mut Pages,
        level: u64,
        (proxy, value): (&Arc<Proxy>, Value),
        author: Author,
    ) {
        let Author { transaction, statement } = author;
        proxy.set_delimits();
        let mut versions = proxy.versions.lock();
        let previous = match versions.last() {
            Some(last) => last,
            None => self.index.predecessor(&proxy.key).unwrap_or(Slot::NONE),
        };
        let open = (transaction, statement);
        let tuple = pages.add(level, previous, proxy, value.clone(), open);
        let version = Version { tuple, statement, value };
        match versions.open.last_mut().filter(|last| last.statement == statement) {
            Some(last) => {
                let replaced = std::mem::replace(last, version);
                pages.remove(level, replaced.tuple);
            }
            None => versions.open.push(version),
        }
    }

    /// Commits the newest open version of a key and removes all others. The stamp is that of the commit.
    /// Whoever reads the value without the key's lock must find the stamp, too.
    pub(crate) fn commit(&self, level: u64, proxy: &Proxy, stamp: Option<Stamp>) {
        self.commit_on(&mut self.pages.lock(), level, proxy, stamp);
    }

    /// As [`commit`](Self::commit), for some keys of a transaction.
    pub(crate) fn commit_all<'p>(
        &self,
        level: u64,
        proxies: impl Iterator<Item = &'p Arc<Proxy>>,
        stamp: Stamp,
    ) {
        let mut proxies = proxies.peekable();
        while proxies.peek().is_some() {
            let mut pages = self.pages.lock();
            for proxy in proxies.by_ref().take(COMMITS_A_TURN) {
                self.commit_on(&mut pages, level, proxy, Some(stamp));
            }
        }
    }

    /// Gives keys of a transaction new values, which are committed at once. On a page that is not frozen a new
    /// value takes the place of the old one. Elsewhere this writes and commits.
    pub(crate) fn write_committed<'p>(
        &self,
        level: u64,
        keys: impl Iterator<Item = (&'p Arc<Proxy>, Option<&'p [u8]>)>,
        author: Author,
        stamp: Stamp,
    ) {
        let mut keys = keys.peekable();
        while keys.peek().is_some() {
            let mut pages = self.pages.lock();
            for (proxy, value) in keys.by_ref().take(COMMITS_A_TURN) {
                if !overwrite(&mut pages, level, (proxy, value), stamp) {
                    self.write_on(&mut pages, level, (proxy, value.map(Arc::from)), author);
                    self.commit_on(&mut pages, level, proxy, Some(stamp));
                }
            }
        }
    }

    fn commit_on(&self, pages: &mut Pages, level: u64, proxy: &Proxy, stamp: Option<Stamp>) {
        let mut versions = proxy.versions.lock();
        if let Some(stamp) = stamp {
            mutant!(proxy.set_stamp(stamp), CommitWithoutStamp => ());
        }
        let Versions { committed, open, .. } = &mut *versions;
        let Some(mut newest) = open.pop() else {
            return;
        };
        let has_value = newest.value.is_some();
        let before = committed.take();
        let had_value = before.is_some();
        let mut is_committed = false;
        let mut earlier = before.into_iter().chain(open.take()).peekable();
        while let Some(Version { tuple, .. }) = earlier.next() {
            let may_replace = has_value && earlier.peek().is_none();
            if may_replace && pages.replace(level, tuple, newest.tuple) {
                (newest.tuple, is_committed) = (tuple, true);
            } else {
                pages.remove(level, tuple);
            }
        }
        match has_value {
            true if is_committed => {}
            true => pages.commit(level, newest.tuple),
            false => pages.remove(level, newest.tuple),
        }
        *committed = has_value.then_some(newest);
        if had_value != has_value {
            proxy.set_has_value(has_value);
            // Relaxed: counts, see `records`.
            match has_value {
                true => self.records.0.fetch_add(1, Relaxed),
                false => self.records.0.fetch_sub(1, Relaxed),
            };
        }
    }

    /// The transaction that has written a key and that is not known to have ended.
    pub(crate) fn author(&self, proxy: &Proxy) -> Option<u64> {
        let pages = self.pages.lock();
        let versions = proxy.versions.lock();
        versions.open.last().and_then(|last| pages.author(last.tuple))
    }

    /// Removes the open versions of a key from a statement on.
    pub(crate) fn roll_back(&self, level: u64, proxy: &Proxy, statement: u32) {
        let mut pages = self.pages.lock();
        let mut versions = proxy.versions.lock();
        while versions.open.last().is_some_and(|last| last.statement >= statement) {
            let version = versions.open.pop().expect("it was looked at");
            pages.remove(level, version.tuple);
        }
    }

    /// Adds a version of a checkpoint to its key. `false` if the key has such a version already.
    pub(crate) fn load_version(
        &self,
        proxy: &Proxy,
        tuple: Slot,
        value: Value,
        statement: Option<u32>,
    ) -> bool {
        let mut versions = proxy.versions.lock();
        proxy.set_delimits();
        let version = Version { tuple, statement: statement.unwrap_or(0), value };
        match statement {
            None if versions.committed.is_some() || version.value.is_none() => return false,
            None => {
                versions.committed = Some(version);
                proxy.set_has_value(true);
                // Relaxed: a count, see `records`.
                self.records.0.fetch_add(1, Relaxed);
            }
            Some(_) => {
                if !versions.open.insert(version) {
                    return false;
                }
            }
        }
        true
    }

    /// Checks the pages, and that each version has its tuple.
    pub(crate) fn check(&self) -> Result<(), String> {
        let pages = self.pages.lock();
        pages.check()?;
        let mut versions = 0;
        self.index.each(|proxy| {
            let of_key = proxy.versions.lock();
            versions += of_key.open.len() + usize::from(of_key.committed.is_some());
        });
        let visible = pages.visible();
        match versions == visible {
            true => Ok(()),
            false => Err(format!("table {}: {versions} versions, {visible} tuples", self.id)),
        }
    }
}

/// Gives a key with a value another one, in place. `false` if nothing was done: the key has no value or gets none,
/// or its page is frozen.
fn overwrite(
    pages: &mut Pages,
    level: u64,
    (proxy, value): (&Proxy, Option<&[u8]>),
    stamp: Stamp,
) -> bool {
    let mut versions = proxy.versions.lock();
    let (Some(committed), Some(value)) = (versions.committed.as_mut(), value) else {
        return false;
    };
    let is_done = pages.overwrite(level, committed.tuple, &mut committed.value, value);
    if is_done {
        mutant!(proxy.set_stamp(stamp), CommitWithoutStamp => ());
    }
    is_done
}
