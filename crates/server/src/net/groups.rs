//! Groups of calls: successive calls of a round on one key are one transaction.
//!
//! ```text
//! clients  one          one          one     one          two          two
//! calls    ZADD z 1 a   ZADD z 2 b   GET s   ZADD z 3 c   ZADD z 4 d   HSET h f v
//! groups   └───────────────────────┘ └─────┘ └───────────────────────┘ └────────┘
//! ```
//! A group locks its key once, and appends one record to the log. The record has each node of a
//! collection once, however many of the calls change the node. A client sees no difference. Nothing
//! of a group is answered before all of it has committed. A call that fails by itself changes
//! nothing.
//!
//! A log of commands names the client of a transaction. With it a group has the calls of one client alone.

use std::ops::Range;

use super::conn::Conn;
use super::connections::Connections;
use super::plan::{Call, Plan};
use crate::keyspace::Keyspace;
use crate::session::client::ReplyMode;

/// Most calls of a group. Other event loops wait for the lock of its key meanwhile.
const GROUP_CALLS_MAX: usize = 32;
/// Most bytes of the requests of a group.
const GROUP_BYTES_MAX: usize = 64 << 10;

impl Plan {
    /// Makes groups of the calls of the round.
    pub(super) fn group(&mut self, conns: &Connections, keyspace: &Keyspace) {
        self.group_ends.clear();
        let groups_calls = !keyspace.engine().config().log_calls;
        let joins_clients = !keyspace.logs_commands;
        let (mut first, mut bytes) = (0, 0);
        for next in 1..self.calls.len() {
            let is_possible = groups_calls
                && (joins_clients || self.calls[first].conn == self.calls[next].conn)
                && next - first < GROUP_CALLS_MAX;
            let joined = if is_possible { self.joined_bytes(conns, first, next) } else { None };
            match joined.filter(|joined| bytes + joined <= GROUP_BYTES_MAX) {
                Some(joined) => bytes += joined,
                None => {
                    self.group_ends.push(next as u32);
                    (first, bytes) = (next, 0);
                }
            }
        }
        if !self.calls.is_empty() {
            self.group_ends.push(self.calls.len() as u32);
        }
    }

    /// Number of groups.
    pub(super) fn groups(&self) -> usize {
        self.group_ends.len()
    }

    /// The calls of a group, of which there is one at least.
    pub(super) fn group_calls(&self, group: usize) -> Range<usize> {
        let start = group.checked_sub(1).map_or(0, |before| self.group_ends[before] as usize);
        start..self.group_ends[group] as usize
    }

    /// Bytes that call `next` adds to the requests of the group that begins with call `first`, if the call may join
    /// the group. The first to join adds those of the first call, too.
    fn joined_bytes(&self, conns: &Connections, first: usize, next: usize) -> Option<usize> {
        let (head, call) = (&self.calls[first], &self.calls[next]);
        let may_be_joined = |call: &Call| !call.is_alone && call.spec.may_be_joined();
        if !may_be_joined(head) || !may_be_joined(call) {
            return None;
        }
        let (head_conn, conn) = (conns.get(head.conn as usize)?, conns.get(call.conn as usize)?);
        let (head_args, args) = (self.args(head, &head_conn.input), self.args(call, &conn.input));
        let answers = |conn: &Conn| conn.client.reply_mode == ReplyMode::On;
        let is_possible = answers(head_conn)
            && answers(conn)
            && head_conn.client.db == conn.client.db
            && head_args.at(1) == args.at(1);
        let head_bytes = if next == first + 1 { head_args.total_len() } else { 0 };
        is_possible.then(|| head_bytes + args.total_len())
    }
}
