//! Replies that wait until they are durable: those of strict clients, and those of `WAITAOF`.

use std::sync::Arc;

use stillpoint::Unflushed;

use super::{Flusher, Worker};
use crate::error::{CmdError, ServerError};
use crate::session::client::{AwaitedFlush, Client, take_met};
use crate::shared::registry::FlushWait;

/// A client whose `WAITAOF` waits.
#[derive(Debug)]
pub(super) struct Parked {
    /// Number of the client in the loop.
    id: usize,
    /// Number of the client in the server.
    client: u64,
    /// The flush that it waits for.
    flush: u64,
    /// The end of the wait, in monotonic milliseconds.
    until_ms: u64,
}

impl Worker {
    /// Sends the replies of a pass. Those of strict clients wait for a flush.
    pub(super) fn settle_pass(&mut self, executed: bool) -> Result<(), ServerError> {
        let mut touched = std::mem::take(&mut self.touched);
        let conns = &self.conns;
        let is_relaxed = |&id: &usize| conns.get(id).is_some_and(|c| !c.client.is_strict());
        // Without other clients there is nothing to do during a flush.
        let meanwhile = conns.len() > touched.len()
            || !self.waiting.is_empty()
            || !self.parked.is_empty()
            || touched.iter().any(is_relaxed);
        let met = if executed { self.take_met(&touched) } else { None };
        if executed {
            self.park(&touched)?;
        }
        if let Some(met) = met
            && let Some(number) = self.flush(met, meanwhile)?
        {
            let conns = &self.conns;
            let waits = |id: &mut usize| conns.get(*id).is_some_and(|c| c.client.is_strict());
            let waiting = touched.extract_if(.., waits).collect();
            self.waiting.push_back((number, waiting));
        }
        for &id in &touched {
            self.finish(id);
        }
        self.touched = touched;
        self.touched.clear();
        Ok(())
    }

    /// Takes what the pass has met, if a client must know. Returns it if a client is strict.
    fn take_met(&mut self, touched: &[usize]) -> Option<Unflushed> {
        let Self { conns, session, is_strict, plan, .. } = self;
        let served_by = std::mem::take(&mut plan.met);
        let client = |&id: &usize| conns.get(id).map(|conn| &conn.client);
        if !touched.iter().filter_map(client).any(Client::needs_met) {
            return None;
        }
        let mut met = take_met(session, *is_strict);
        met.join(served_by);
        let mut waits = false;
        for &id in touched {
            if let Some(conn) = conns.get_mut(id) {
                conn.client.note_met(&met);
                waits |= conn.client.is_strict();
            }
        }
        waits.then_some(met)
    }

    /// Asks for the flushes that commands `WAITAOF` of the pass wait for.
    fn park(&mut self, touched: &[usize]) -> Result<(), ServerError> {
        for &id in touched {
            let Some(conn) = self.conns.get(id) else { continue };
            let Some(awaited) = &conn.client.awaited_flush else { continue };
            let (client, until_ms) = (conn.client.info.id, awaited.until_ms);
            if self.parked.iter().any(|parked| parked.client == client) {
                continue;
            }
            conn.client.info.flush_wait.begin();
            let wanted = awaited.local.then(|| awaited.wanted.clone());
            let flush = match wanted {
                Some(wanted) => self.flusher()?.ask(wanted),
                None => 0,
            };
            self.parked.push(Parked { id, client, flush, until_ms });
        }
        Ok(())
    }

    /// When the next wait of a `WAITAOF` is over, in monotonic milliseconds. A client whose replies
    /// wait for a flush is looked at after the flush, which wakes the loop.
    pub(super) fn parked_until_ms(&self) -> u64 {
        let may_answer = |id| self.conns.get(id).is_some_and(|conn| !conn.touched);
        let open = self.parked.iter().filter(|parked| may_answer(parked.id));
        open.map(|parked| parked.until_ms).min().unwrap_or(u64::MAX)
    }

    /// Answers the clients whose `WAITAOF` has waited long enough.
    fn answer_parked(&mut self) {
        let Self { parked, conns, flusher, shared, local, ready, now_ms, .. } = self;
        let done = flusher.as_ref().map_or(0, Flusher::done);
        parked.retain(|&Parked { id, client, flush, until_ms }| {
            let conn = conns.get_mut(id).filter(|conn| conn.client.info.id == client);
            let Some(conn) = conn.filter(|conn| conn.client.awaited_flush.is_some()) else {
                return false;
            };
            if conn.touched {
                return true;
            }
            let wait = &conn.client.info.flush_wait;
            let has_it = |awaited: &AwaitedFlush| !awaited.replicas && flush <= done;
            let is_over = |awaited: &mut Box<AwaitedFlush>| {
                has_it(awaited) || *now_ms >= until_ms || wait.is_unblocked()
            };
            let Some(awaited) = conn.client.awaited_flush.take_if(is_over) else {
                return true;
            };
            let with_error = wait.end() == FlushWait::UNBLOCKED_WITH_ERROR;
            let error = CmdError::UNBLOCKED;
            if with_error {
                local.stats.count_error(error.message());
            }
            match (awaited.replies, with_error) {
                (false, _) => {}
                (true, false) => awaited.answer(&mut conn.reply, shared),
                (true, true) => conn.reply.error(error.message()),
            }
            ready.push(id);
            false
        });
    }

    /// The thread that flushes for this loop. The first call starts it.
    fn flusher(&mut self) -> Result<&mut Flusher, ServerError> {
        let flusher = match self.flusher.take() {
            Some(flusher) => flusher,
            None => Flusher::start(self.number, Arc::clone(&self.shared))?,
        };
        Ok(self.flusher.insert(flusher))
    }

    /// Writes the replies whose flush has ended.
    pub(super) fn send_flushed(&mut self) -> Result<(), ServerError> {
        if self.waiting.is_empty() && self.parked.is_empty() {
            return Ok(());
        }
        let Some(flusher) = &self.flusher else {
            self.answer_parked();
            return Ok(());
        };
        let (flushes, flush_ns) = flusher.settle()?;
        self.local.stats.flushes.add(flushes);
        self.local.stats.flush_nanoseconds.add(flush_ns);
        let done = flusher.done();
        while let Some((_, ids)) = self.waiting.pop_front_if(|(number, _)| *number <= done) {
            for id in ids {
                let missed = self.conns.get_mut(id).is_some_and(|conn| conn.missed);
                self.finish(id);
                if missed {
                    self.ready.push(id);
                }
            }
        }
        self.answer_parked();
        Ok(())
    }

    /// Starts the flush that replies wait for. If `meanwhile`, the loop has other work during the
    /// flush: the flusher's thread makes the flush, and this returns its number. Otherwise this
    /// function makes the flush.
    pub(super) fn flush(
        &mut self,
        unflushed: Unflushed,
        meanwhile: bool,
    ) -> Result<Option<u64>, ServerError> {
        if self.shared.keyspace.engine().is_durable(&unflushed) {
            return Ok(None);
        }
        if meanwhile {
            return Ok(Some(self.flusher()?.ask(unflushed)));
        }
        let engine = self.shared.keyspace.engine();
        let clock = &self.shared.config.clock;
        let start_ns = clock.monotonic_ns();
        let done = engine.make_durable(&unflushed);
        self.local.stats.flushes.add(1);
        self.local.stats.flush_nanoseconds.add(clock.monotonic_ns() - start_ns);
        done.map(|()| None).map_err(|error| ServerError::Flush(error.to_string()))
    }
}
