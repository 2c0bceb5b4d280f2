//! `EXEC` with commands over whole databases, as one transaction.
//!
//! The caller holds the keyspace lock alone. All keys of the databases that the queue lists or
//! empties become keys of the transaction, which a crash keeps or loses as a whole.

use stillpoint::{Call, KeySet, Procedure, Session, Stamp, Tx, TxError};

use super::call::name_exec;
use super::client::Multi;
use super::context::Context;
use super::exec::{answered, declare_range, is_unchanged, run_range, selected};
use super::spec::{Handler, Lists};
use crate::config::{DATABASES, Db};
use crate::error::{CmdError, CmdResult};
use crate::keyspace::{ListedKeys, ListedNames};
use crate::resp::Mark;

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

/// Runs an `EXEC` as one transaction. The caller holds the keyspace lock alone, and ends the queue.
pub(super) fn run_exec(ctx: &mut Context<'_>, session: &mut Session) -> CmdResult {
    let listed = ctx.client.multi.as_ref().map(|multi| listed(multi, ctx.client.db));
    let names = ListedNames::find(&ctx.shared.keyspace, session, listed.unwrap_or_default());
    names.and_then(|names| {
        let start = ctx.reply.mark();
        ctx.local.keys.serving.begin_batch(&ctx.shared.keyspace.waiters, false);
        let mut exec = Exec { ctx, names, listed: ListedKeys::default(), start, error: None };
        session.execute(std::slice::from_mut(&mut exec));
        exec.error.map_or(Ok(()), Err)
    })
}

struct Exec<'a, 'b> {
    ctx: &'a mut Context<'b>,
    names: ListedNames,
    listed: ListedKeys,
    start: Mark,
    error: Option<CmdError>,
}

impl Exec<'_, '_> {
    fn run_queue(&mut self, multi: &mut Multi, tx: &mut Tx<'_>) -> CmdResult {
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
            match (whole.run)(ctx, args, &self.listed, tx) {
                Err(CmdError::Store(error)) => return Err(CmdError::Store(error)),
                Err(error) => ctx.answer_error(mark, &error),
                Ok(()) => {}
            }
        }
        ctx.serve(tx)
    }
}

impl Procedure for Exec<'_, '_> {
    fn declare(&mut self, keys: &mut KeySet) {
        let ctx = &mut *self.ctx;
        let keyspace = &ctx.shared.keyspace;
        declare_range(ctx.client, 0, usize::MAX, keyspace, keys);
        self.listed = self.names.declare(keyspace, keys);
        ctx.local.keys.serving.declare(&keyspace.waiters, 0, keys);
    }

    fn call(&mut self, to: &mut Call) {
        // The keys of whole databases are none of the arguments, so a log of calls gets the writes.
        let may_serve = self.ctx.local.keys.serving.may_serve(0);
        if !self.ctx.shared.keyspace.logs_commands && !may_serve {
            name_exec(to, self.ctx.client, (0, usize::MAX), self.ctx.now_ms());
        }
    }

    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        self.ctx.local.keys.serving.begin(0);
        if !is_unchanged(self.ctx.client, tx, self.ctx.now_ms()) {
            self.ctx.reply.null_array();
            return Ok(());
        }
        let db = self.ctx.client.db;
        let mut multi = self.ctx.client.multi.take().ok_or_else(answered)?;
        let done = self.run_queue(&mut multi, tx);
        self.ctx.client.multi = Some(multi);
        let done = done.and_then(|()| self.ctx.check_reply());
        done.map_err(|error| {
            if let Some(again) = error.as_another_run() {
                self.ctx.reply.truncate(self.start);
                self.ctx.client.db = db;
                return again;
            }
            self.error = Some(error);
            answered()
        })
    }

    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        self.ctx.local.keys.end_serving(&result);
        if let Err(error) = result {
            self.ctx.reply.truncate(self.start);
            self.error.get_or_insert(error.into());
        }
    }
}
