//! Calls that did not run, or whose transaction was rolled back, go back to their clients.

use std::ops::Range;

use super::Round;
use crate::resp::Mark;

impl Round<'_> {
    /// Gives a group that has not begun back to its clients. The calls of these clients run by
    /// themselves then.
    pub(super) fn separate(&mut self, group: Range<usize>) {
        for i in group.clone() {
            let client = self.plan.calls[i].conn;
            let behind = self.plan.calls[i..].iter_mut();
            behind.filter(|call| call.conn == client).for_each(|call| call.is_alone = true);
        }
        self.postpone(group);
    }

    /// Takes back that calls have run.
    pub(super) fn uncount(&self, calls: Range<usize>) {
        for call in &self.plan.calls[calls] {
            self.local.stats.uncount_call(call.spec.id);
        }
    }

    /// Gives calls back to their clients, to run in a later round.
    pub(super) fn postpone(&mut self, calls: Range<usize>) {
        for i in calls {
            if let Some(conn) = self.conns.get_mut(self.plan.calls[i].conn as usize) {
                // The calls behind them wait, too.
                conn.runs_again = true;
                self.plan.postponed.push(i as u32);
            }
        }
    }

    /// Gives the calls of a group back to their clients: it was rolled back, or could not begin and has no
    /// `mark`. Each of them runs again by itself.
    pub(super) fn dissolve(&mut self, group: Range<usize>, mark: Option<Mark>) {
        let calls = &mut self.plan.calls[group.clone()];
        calls.iter_mut().for_each(|call| call.is_alone = true);
        if let Some(mark) = mark {
            self.take_replies_back(group.start, mark);
            self.uncount(group.start..self.ran_to);
        }
        self.postpone(group);
    }

    /// Takes the replies back of the running group, whose first call is `first`.
    pub(super) fn take_replies_back(&mut self, first: usize, mark: Mark) {
        if let Some(conn) = self.conns.get_mut(self.plan.calls[first].conn as usize) {
            conn.reply.truncate(mark);
        }
        for (client, mark) in self.joined.drain(..) {
            if let Some(conn) = self.conns.get_mut(client as usize) {
                conn.reply.truncate(mark);
            }
        }
    }
}
