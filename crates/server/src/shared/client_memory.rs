//! Memory of the clients' buffers, counted for each client and in total, and the choice of the
//! client to disconnect.
//!
//! Beyond the limit of all clients together the largest holder is disconnected, and nobody else.
//! The event loop of the largest holder disconnects it. Until its buffers are freed they count as
//! *leaving*, so that no second client is disconnected for the same bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::resp::Room;
use crate::shared::Shared;
use crate::shared::registry::ClientInfo;

/// Bounds of the clients' limit. The upper one applies only to a limit derived from the limit of
/// data.
const DERIVED_BYTES_MIN: u64 = 256 << 20;
const DERIVED_BYTES_MAX: u64 = 4 << 30;
/// Least effective limit, as in Redis. With a lower one nobody could connect to raise it.
const WORKING_BYTES_MIN: u64 = 128 << 10;
/// Bytes of replies that each client may always leave unread.
const ALLOWANCE_BYTES_MIN: u64 = 128 << 10;

/// Bytes of all clients. Every access is Relaxed, since no other memory depends on these sums.
#[derive(Debug)]
pub(crate) struct ClientMemory {
    total: AtomicU64,
    /// Part of `total` that belongs to clients on their way out.
    leaving: AtomicU64,
    limit: AtomicU64,
    /// Clients disconnected for their memory.
    pub(crate) evicted: AtomicU64,
}

impl ClientMemory {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            total: AtomicU64::new(0),
            leaving: AtomicU64::new(0),
            limit: AtomicU64::new(limit),
            evicted: AtomicU64::new(0),
        }
    }

    /// The default limit of a server whose data may take `data_bytes`: half of that.
    pub(crate) fn derived_limit(data_bytes: usize) -> u64 {
        (data_bytes as u64 / 2).clamp(DERIVED_BYTES_MIN, DERIVED_BYTES_MAX)
    }

    pub(crate) fn total(&self) -> u64 {
        self.total.load(Relaxed)
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    pub(crate) fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Relaxed);
    }

    /// Limit of all clients' buffers, in bytes.
    fn working_limit(&self) -> u64 {
        self.limit().max(WORKING_BYTES_MIN)
    }

    /// Whether the clients hold more than their limit.
    pub(crate) fn is_over(&self) -> bool {
        self.total() > self.working_limit()
    }

    /// Bytes of replies that a client may leave unread before its next request waits: the free
    /// bytes of half of the limit. So clients that read nothing hold equal shares of that half,
    /// however many they are. The other half is for requests.
    pub(crate) fn allowance(&self) -> usize {
        let free = (self.working_limit() / 2).saturating_sub(self.total());
        usize::try_from(free.max(ALLOWANCE_BYTES_MIN)).unwrap_or(usize::MAX)
    }

    /// Whether a client is to be disconnected, or has left buffers that are not yet freed.
    pub(crate) fn has_leaving(&self) -> bool {
        self.leaving.load(Relaxed) > 0
    }

    /// Replaces the bytes counted for a client.
    fn count(&self, info: &ClientInfo, bytes: usize) {
        let before = info.memory_bytes.swap(bytes, Relaxed);
        match bytes.checked_sub(before) {
            Some(0) => {}
            Some(more) => drop(self.total.fetch_add(more as u64, Relaxed)),
            None => drop(self.total.fetch_sub((before - bytes) as u64, Relaxed)),
        }
    }

    /// Notes that a client is gone. `kept` bytes of its buffers are freed later, by
    /// [`freed`](Self::freed).
    pub(crate) fn leave(&self, info: &ClientInfo, kept: usize) {
        self.leaving.fetch_add(kept as u64, Relaxed);
        self.total.fetch_add(kept as u64, Relaxed);
        self.leaving.fetch_sub(info.evicted_bytes.swap(0, Relaxed) as u64, Relaxed);
        self.count(info, 0);
    }

    /// Notes that bytes of a client that has left are freed.
    pub(crate) fn freed(&self, bytes: usize) {
        self.total.fetch_sub(bytes as u64, Relaxed);
        self.leaving.fetch_sub(bytes as u64, Relaxed);
    }

    fn is_too_much(&self) -> bool {
        self.total().saturating_sub(self.leaving.load(Relaxed)) > self.working_limit()
    }
}

impl Shared {
    /// Sets the bytes that a client holds. If all clients together hold too much, chooses the
    /// largest holder for disconnection. Returns false if that is this client.
    pub(crate) fn count_client_memory(&self, info: &ClientInfo, bytes: usize) -> bool {
        self.client_memory.count(info, bytes);
        !self.client_memory.is_too_much() || self.make_room(info)
    }

    /// Disconnects the largest holders until the others are within the limit. Returns false if
    /// `asking` is among the disconnected clients.
    #[cold]
    fn make_room(&self, asking: &ClientInfo) -> bool {
        let memory = &self.client_memory;
        // One thread at a time chooses, so that two threads do not disconnect two clients for the
        // same bytes.
        let clients = self.registry.lock();
        while memory.is_too_much() {
            let may_go = |info: &&Arc<ClientInfo>| {
                info.evicted_bytes.load(Relaxed) == 0 && !info.no_evict.load(Relaxed)
            };
            let size = |info: &&Arc<ClientInfo>| info.memory_bytes.load(Relaxed);
            let Some(largest) = clients.values().filter(may_go).max_by_key(size) else {
                break;
            };
            let bytes = size(&largest).max(1);
            tracing::warn!(client = %largest.address, bytes, limit_bytes = memory.working_limit(), "client closed: all clients hold too much, and it holds most");
            largest.evicted_bytes.store(bytes, Relaxed);
            memory.leaving.fetch_add(bytes as u64, Relaxed);
            memory.evicted.fetch_add(1, Relaxed);
            largest.killed.store(true, std::sync::atomic::Ordering::Release);
            if largest.id != asking.id {
                self.mailboxes.wake(largest.worker);
            }
        }
        asking.evicted_bytes.load(Relaxed) == 0
    }
}

/// The memory of one client, as its output asks for it.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) shared: Arc<Shared>,
    pub(crate) info: Arc<ClientInfo>,
}

impl Room for Account {
    fn grow(&self, bytes: usize) -> bool {
        let held = self.info.memory_bytes.load(Relaxed);
        self.shared.count_client_memory(&self.info, held + bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_follows_that_of_the_data() {
        assert_eq!(ClientMemory::derived_limit(64 << 20), 256 << 20);
        assert_eq!(ClientMemory::derived_limit(2 << 30), 1 << 30);
        assert_eq!(ClientMemory::derived_limit(usize::MAX), 4 << 30);
    }

    #[test]
    fn what_is_counted_is_given_back() {
        // A limit below the least effective one.
        let memory = ClientMemory::new(100);
        let info = ClientInfo::blank(([127, 0, 0, 1], 1).into());
        memory.count(&info, WORKING_BYTES_MIN as usize);
        assert!(!memory.is_over() && !memory.is_too_much());
        memory.count(&info, WORKING_BYTES_MIN as usize + 50);
        assert!(memory.is_over() && memory.is_too_much() && !memory.has_leaving());
        info.evicted_bytes.store(WORKING_BYTES_MIN as usize + 50, Relaxed);
        memory.leaving.fetch_add(WORKING_BYTES_MIN + 50, Relaxed);
        assert!(memory.is_over() && !memory.is_too_much());
        memory.leave(&info, 120);
        assert_eq!((memory.total(), memory.has_leaving()), (120, true));
        memory.freed(120);
        assert_eq!((memory.total(), memory.has_leaving()), (0, false));
    }
}
