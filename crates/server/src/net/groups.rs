//! Groups of calls: successive calls of one client on one key are one transaction.
//!
//! ```text
//! calls    ZADD z 1 a   ZADD z 2 b   GET s   ZADD z 3 c   HSET h f v
//! groups   └───────────────────────┘ └─────┘ └──────────┘ └────────┘
//! ```
//! A group locks its key once, and appends one record to the log. The record has each node of a
//! collection once, however many of the calls change the node. A client sees no difference. Nothing
//! of a group is answered before all of it has committed. A call that fails by itself changes
//! nothing.

use std::ops::Range;

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
        let mut first = 0;
        for next in 1..self.calls.len() {
            if !groups_calls || !self.may_join(conns, first, next) {
                self.group_ends.push(next as u32);
                first = next;
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

    /// Whether call `next` joins the group that begins with call `first`.
    fn may_join(&self, conns: &Connections, first: usize, next: usize) -> bool {
        let (head, call) = (&self.calls[first], &self.calls[next]);
        if head.conn != call.conn || next - first >= GROUP_CALLS_MAX {
            return false;
        }
        let may_be_joined = |call: &Call| !call.is_alone && call.spec.may_be_joined();
        if !may_be_joined(head) || !may_be_joined(call) {
            return false;
        }
        let Some(conn) = conns.get(call.conn as usize) else { return false };
        let (head_args, args) = (self.args(head, &conn.input), self.args(call, &conn.input));
        // The last request before `next` ends where `next` begins.
        let bytes = (call.base - head.base) as usize + args.total_len();
        bytes <= GROUP_BYTES_MAX
            && conn.client.reply_mode == ReplyMode::On
            && head_args.at(1) == args.at(1)
    }
}
