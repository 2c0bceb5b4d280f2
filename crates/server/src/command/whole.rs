//! Commands over whole databases inside an `EXEC` that writes in several steps: one
//! transaction, which a crash keeps or loses as a whole.
//!
//! While the gate keeps everybody else out, all keys of the databases that are listed or
//! emptied are looked up and become keys of the transaction. So KEYS sees what the
//! commands before it wrote, and FLUSHDB deletes key by key, in the same commit as the
//! commands around it. That takes time and memory for each key, so there is a limit,
//! beyond which the transaction is refused: better than one that is not atomic.

use std::collections::HashSet;

use stillpoint::{KeySet, Mode, Procedure, Session, Slot, Stamp, Tx, TxError};

use super::exec::{answered, declare_range, run_range, selected};
use super::keyspace::{ScanOptions, check_flush_option, cursor};
use super::transactions::unchanged;
use super::{Handler, is};
use crate::client::Multi;
use crate::config::{DATABASES, Db};
use crate::context::Context;
use crate::error::{CmdError, CmdResult};
use crate::glob::{COMMAND_BUDGET, matches};
use crate::resp::{Args, Mark};
use crate::value::{Entry, type_name};

/// Most keys of the databases concerned, and most bytes of them.
const KEYS_MAX: u64 = 100_000;
const KEY_BYTES_MAX: usize = 64 << 20;
/// Keys looked up at a time.
const CHUNK: usize = 1024;

/// A command over whole databases, as a part of a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whole {
    lists: Lists,
    run: fn(&mut Context<'_>, Args<'_>, &Keyspace, &mut Tx<'_>) -> CmdResult,
}

/// Databases whose keys a command must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lists {
    Nothing,
    Own,
    All,
}

pub(crate) const DBSIZE: Whole = Whole { lists: Lists::Nothing, run: dbsize };
pub(crate) const KEYS: Whole = Whole { lists: Lists::Own, run: keys };
pub(crate) const SCAN: Whole = Whole { lists: Lists::Own, run: scan };
pub(crate) const RANDOMKEY: Whole = Whole { lists: Lists::Own, run: randomkey };
pub(crate) const FLUSHDB: Whole = Whole { lists: Lists::Own, run: flushdb };
pub(crate) const FLUSHALL: Whole = Whole { lists: Lists::All, run: flushall };

/// The databases, as the transaction knows them.
#[derive(Debug, Default)]
pub(crate) struct Keyspace {
    /// Each key once, with its slot: all keys of the listed databases, and those that
    /// the commands of the queue name.
    keys: Vec<(Db, Box<[u8]>, Slot)>,
    /// Keys of each database before.
    len_before: [u64; DATABASES as usize],
}

impl Keyspace {
    fn of(&self, db: Db) -> impl Iterator<Item = (&[u8], Slot)> {
        let own = self.keys.iter().filter(move |(of, ..)| *of == db);
        own.map(|(_, key, slot)| (&**key, *slot))
    }

    /// The keys of a database that have a value which `fits`.
    fn present<'k>(
        &'k self,
        ctx: &Context<'_>,
        tx: &mut Tx<'_>,
        mut fits: impl FnMut(&[u8], &Entry<'_>) -> Result<bool, CmdError>,
    ) -> Result<Vec<&'k [u8]>, CmdError> {
        let mut found = Vec::new();
        for (key, slot) in self.of(ctx.db()) {
            let Some(value) = tx.value(slot) else { continue };
            let entry = Entry::new(value);
            if !entry.is_expired(ctx.now_ms()) && fits(key, &entry)? {
                found.push(key);
            }
        }
        Ok(found)
    }

    /// Deletes all keys of a database.
    fn empty(&self, ctx: &mut Context<'_>, tx: &mut Tx<'_>, db: Db) -> CmdResult {
        let (own_db, own_slot) = (ctx.client.db, ctx.first_slot);
        ctx.client.db = db;
        let deleted = self.of(db).try_for_each(|(_, slot)| {
            ctx.first_slot = slot.0;
            ctx.delete(tx, 0)
        });
        (ctx.client.db, ctx.first_slot) = (own_db, own_slot);
        Ok(deleted?)
    }
}

fn dbsize(ctx: &mut Context<'_>, _: Args<'_>, keyspace: &Keyspace, tx: &mut Tx<'_>) -> CmdResult {
    let mut len = keyspace.len_before[usize::from(ctx.db())] as i64;
    for (_, slot) in keyspace.of(ctx.db()) {
        len += i64::from(tx.value(slot).is_some()) - i64::from(tx.existed(slot));
    }
    ctx.reply.int(len.max(0));
    Ok(())
}

fn array(ctx: &mut Context<'_>, keys: &[&[u8]]) {
    ctx.reply.array(keys.len());
    for key in keys {
        ctx.reply.bulk(key);
    }
}

fn keys(ctx: &mut Context<'_>, args: Args<'_>, keyspace: &Keyspace, tx: &mut Tx<'_>) -> CmdResult {
    let pattern = args.at(1);
    let mut budget = COMMAND_BUDGET;
    let found = keyspace.present(ctx, tx, |key, _| {
        matches(pattern, key, &mut budget).map_err(|_| CmdError::PATTERN)
    })?;
    array(ctx, &found);
    Ok(())
}

/// Any walk ends at once, with all keys.
fn scan(ctx: &mut Context<'_>, args: Args<'_>, keyspace: &Keyspace, tx: &mut Tx<'_>) -> CmdResult {
    cursor(args.at(1)).ok_or(CmdError::fixed("ERR invalid cursor"))?;
    let options = ScanOptions::parse(args)?;
    let mut budget = COMMAND_BUDGET;
    let found = keyspace.present(ctx, tx, |key, entry| {
        let kind_fits = options.kind.is_none_or(|kind| is(kind, type_name(entry.tag())));
        let fits = |pattern| matches(pattern, key, &mut budget).map_err(|_| CmdError::PATTERN);
        Ok(kind_fits && options.pattern.map_or(Ok(true), fits)?)
    })?;
    ctx.reply.array(2);
    ctx.reply.bulk(b"0");
    array(ctx, &found);
    Ok(())
}

fn randomkey(
    ctx: &mut Context<'_>,
    _: Args<'_>,
    keyspace: &Keyspace,
    tx: &mut Tx<'_>,
) -> CmdResult {
    let found = keyspace.present(ctx, tx, |_, _| Ok(true))?;
    let random = ctx.shared.config.rng.next_u64();
    match found.len() as u64 {
        0 => ctx.reply.null(),
        count => ctx.reply.bulk(found[(random % count) as usize]),
    }
    Ok(())
}

fn flushdb(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    keyspace: &Keyspace,
    tx: &mut Tx<'_>,
) -> CmdResult {
    check_flush_option(args)?;
    keyspace.empty(ctx, tx, ctx.db())?;
    ctx.reply.ok();
    Ok(())
}

fn flushall(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    keyspace: &Keyspace,
    tx: &mut Tx<'_>,
) -> CmdResult {
    check_flush_option(args)?;
    for db in 0..DATABASES {
        keyspace.empty(ctx, tx, db)?;
    }
    ctx.reply.ok();
    Ok(())
}

/// Databases whose keys the queue must know.
fn listed(multi: &Multi, mut db: Db) -> [bool; DATABASES as usize] {
    let mut listed = [false; DATABASES as usize];
    for i in 0..multi.len() {
        let (spec, args) = multi.command(i);
        if let Handler::Store(_, whole) = spec.handler {
            match whole.lists {
                Lists::Nothing => {}
                Lists::Own => listed[usize::from(db)] = true,
                Lists::All => listed = [true; DATABASES as usize],
            }
        }
        db = selected(spec, args, db);
    }
    listed
}

/// A key that is there before the transaction.
type Found = (Db, Box<[u8]>);

/// Looks up all keys of some databases.
fn look_up(
    ctx: &Context<'_>,
    session: &mut Session,
    listed: [bool; DATABASES as usize],
) -> Result<Vec<Found>, CmdError> {
    let databases = &ctx.shared.databases;
    let dbs = || (0..DATABASES).filter(|&db| listed[usize::from(db)]);
    let mut found = Vec::new();
    let mut bytes = 0;
    let mut count = 0;
    for db in dbs() {
        count += session.len(databases.table(db))?;
    }
    for db in dbs().take_while(|_| count <= KEYS_MAX) {
        let mut cursor = 0;
        loop {
            cursor = session.scan(databases.table(db), cursor, CHUNK, &mut |key, _| {
                bytes += key.len();
                if bytes <= KEY_BYTES_MAX {
                    found.push((db, key.into()));
                }
            })?;
            if cursor == 0 {
                break;
            }
        }
    }
    if count > KEYS_MAX || bytes > KEY_BYTES_MAX {
        return Err(CmdError::text(format!(
            "EXECABORT Transaction discarded because it writes, and lists or empties databases of \
             {count} keys: that is atomic up to {KEYS_MAX} keys of {KEY_BYTES_MAX} bytes in all. \
             Send KEYS, SCAN, RANDOMKEY, FLUSHDB and FLUSHALL outside of it."
        )));
    }
    Ok(found)
}

/// Runs an `EXEC` as one transaction. The caller holds the gate, so nothing else runs
/// between the looking up of keys and the end.
pub(super) fn run_exec(ctx: &mut Context<'_>, session: &mut Session) -> CmdResult {
    let listed = ctx.client.multi.as_ref().map(|multi| listed(multi, ctx.client.db));
    let found = look_up(ctx, session, listed.unwrap_or_default());
    let result = found.and_then(|found| {
        let databases = &ctx.shared.databases;
        let mut len_before = [0; DATABASES as usize];
        for (len, db) in len_before.iter_mut().zip(0..) {
            *len = session.len(databases.table(db))?;
        }
        let keyspace = Keyspace { keys: Vec::new(), len_before };
        let start = ctx.reply.mark();
        let mut exec = Exec { ctx, found, keyspace, start, error: None };
        session.execute(std::slice::from_mut(&mut exec));
        exec.error.map_or(Ok(()), Err)
    });
    ctx.client.multi = None;
    ctx.client.watched.clear();
    result
}

struct Exec<'a, 'b> {
    ctx: &'a mut Context<'b>,
    found: Vec<Found>,
    keyspace: Keyspace,
    start: Mark,
    error: Option<CmdError>,
}

impl Exec<'_, '_> {
    fn run_queue(&mut self, multi: &Multi, tx: &mut Tx<'_>) -> CmdResult {
        let ctx = &mut *self.ctx;
        let mut slot = ctx.client.watched.len() as u32;
        ctx.reply.array(multi.len());
        for i in 0..multi.len() {
            let (spec, args) = multi.command(i);
            let Handler::Store(_, whole) = spec.handler else {
                run_range(ctx, multi, i, i + 1, slot, tx)?;
                slot += multi.key_count(i);
                continue;
            };
            let mark = ctx.reply.mark();
            ctx.count_call(spec);
            match (whole.run)(ctx, args, &self.keyspace, tx) {
                Err(CmdError::Store(error)) => return Err(CmdError::Store(error)),
                Err(error) => ctx.answer_error(mark, &error),
                Ok(()) => {}
            }
        }
        Ok(())
    }
}

impl Procedure for Exec<'_, '_> {
    fn declare(&mut self, keys: &mut KeySet) {
        let databases = &self.ctx.shared.databases;
        declare_range(self.ctx.client, 0, usize::MAX, databases, keys);
        let db_of = |table| (0..DATABASES).find(|&db| databases.table(db) == table);
        let named = keys.iter().filter_map(|(table, key)| Some((db_of(table)?, key.into())));
        let all: Vec<Found> = self.found.drain(..).chain(named).collect();
        let mut seen: HashSet<&Found> = HashSet::with_capacity(all.len());
        for found @ (db, key) in &all {
            if seen.insert(found) {
                // A second slot of a key that a command has named is the same record.
                let slot = keys.push(databases.table(*db), key, Mode::Write, 0);
                self.keyspace.keys.push((*db, key.clone(), slot));
            }
        }
    }

    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        if !unchanged(self.ctx.client, tx, self.ctx.now_ms()) {
            self.ctx.reply.null_array();
            return Ok(());
        }
        let multi = self.ctx.client.multi.take().ok_or_else(answered)?;
        let done = self.run_queue(&multi, tx);
        self.ctx.client.multi = Some(multi);
        done.map_err(|error| {
            self.error = Some(error);
            answered()
        })
    }

    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        if let Err(error) = result {
            self.ctx.reply.truncate(self.start);
            self.error.get_or_insert(error.into());
        }
    }
}
