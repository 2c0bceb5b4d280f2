//! Queues of absent cells. A queue lies in pieces, so that no step moves all of its entries.

use std::collections::VecDeque;

use crate::catalog::Absent;
use crate::memory::arena::class_bytes;

/// Entries of a piece.
const PIECE: usize = if cfg!(test) { 4 } else { 1024 };

/// Absent cells, oldest first. All pieces but the last are full.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pieces: VecDeque<Vec<Absent>>,
    /// Entries of the first piece that were taken.
    taken: usize,
    /// Bytes of the cells.
    cell_bytes: usize,
}

impl Queue {
    pub(super) fn push(&mut self, absent: Absent) {
        self.cell_bytes += class_bytes(absent.class);
        match self.pieces.back_mut().filter(|piece| piece.len() < PIECE) {
            Some(piece) => piece.push(absent),
            None => {
                let mut piece = Vec::with_capacity(PIECE);
                piece.push(absent);
                self.pieces.push_back(piece);
            }
        }
    }

    pub(super) fn first(&self) -> Option<Absent> {
        self.pieces.front().map(|piece| piece[self.taken])
    }

    pub(super) fn pop(&mut self) -> Option<Absent> {
        let piece = self.pieces.front()?;
        let (first, is_last) = (piece[self.taken], self.taken + 1 == piece.len());
        if is_last {
            self.pieces.pop_front();
        }
        self.taken = if is_last { 0 } else { self.taken + 1 };
        self.cell_bytes -= class_bytes(first.class);
        Some(first)
    }

    pub(super) fn len(&self) -> usize {
        let last = self.pieces.back().map_or(0, Vec::len);
        self.pieces.len().saturating_sub(1) * PIECE + last - self.taken
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Bytes of the entries.
    pub(super) fn bytes(&self) -> usize {
        self.pieces.len() * PIECE * size_of::<Absent>()
    }

    /// Bytes of the cells.
    pub(super) fn cell_bytes(&self) -> usize {
        self.cell_bytes
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = Absent> + use<> {
        let pieces = std::mem::take(&mut self.pieces);
        self.cell_bytes = 0;
        pieces.into_iter().flatten().skip(std::mem::take(&mut self.taken))
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&Absent) -> bool) {
        self.drain().filter(keep).collect::<Vec<_>>().into_iter().for_each(|it| self.push(it));
    }
}

/// The absent cells that a checkpoint needs, in a queue for each moment since which they wait.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    queues: Vec<Since>,
}

#[derive(Debug)]
struct Since {
    moment: u64,
    /// Whether the cells may be free now, so that they are looked at.
    is_over: bool,
    queue: Queue,
}

impl Waiting {
    pub(super) fn push(&mut self, moment: u64, absent: Absent) {
        let is_it = |since: &&mut Since| since.moment == moment && !since.is_over;
        match self.queues.iter_mut().find(is_it) {
            Some(since) => since.queue.push(absent),
            None => {
                let mut queue = Queue::default();
                queue.push(absent);
                self.queues.push(Since { moment, is_over: false, queue });
            }
        }
    }

    /// Notes which of the waits are over.
    pub(super) fn end(&mut self, is_over: impl Fn(u64) -> bool) {
        for since in &mut self.queues {
            since.is_over |= is_over(since.moment);
        }
    }

    /// Takes a cell whose wait is over.
    pub(super) fn pop(&mut self) -> Option<Absent> {
        let at = self.queues.iter().position(|since| since.is_over)?;
        let queue = &mut self.queues[at].queue;
        let absent = queue.pop();
        if queue.is_empty() {
            self.queues.swap_remove(at);
        }
        absent
    }

    /// Whether the wait of a cell is over.
    pub(super) fn has_over(&self) -> bool {
        self.queues.iter().any(|since| since.is_over)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.queues.iter().map(|since| since.queue.len()).sum()
    }

    /// Bytes of the entries.
    pub(super) fn bytes(&self) -> usize {
        self.queues.iter().map(|since| since.queue.bytes()).sum()
    }

    /// Bytes of the cells.
    pub(super) fn cell_bytes(&self) -> usize {
        self.queues.iter().map(|since| since.queue.cell_bytes()).sum()
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = Absent> + use<> {
        std::mem::take(&mut self.queues).into_iter().flat_map(|mut since| since.queue.drain())
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&Absent) -> bool) {
        for since in &mut self.queues {
            since.queue.retain(&keep);
        }
        self.queues.retain(|since| !since.queue.is_empty());
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use stillpoint_txn::TableId;

    use super::*;

    fn absent(cell: u64) -> Absent {
        let class = cell as u8 % 4;
        Absent { owner: (cell % 2) as u32, table: TableId(0), is_noted: false, class, cell }
    }

    #[test]
    fn entries_leave_in_the_order_in_which_they_came() {
        let mut queue = Queue::default();
        (0..10).for_each(|cell| queue.push(absent(cell)));
        assert_eq!((queue.len(), queue.bytes()), (10, 3 * PIECE * 16));
        for cell in 0..5 {
            assert_eq!(queue.first(), Some(absent(cell)));
            assert_eq!(queue.pop(), Some(absent(cell)));
        }
        assert_eq!((queue.len(), queue.bytes()), (5, 2 * PIECE * 16), "a piece is freed");
        let cells: usize = (5..10).map(|cell| class_bytes(absent(cell).class)).sum();
        assert_eq!(queue.cell_bytes(), cells);
        queue.retain(|absent| absent.owner == 1);
        assert_eq!(queue.drain().map(|absent| absent.cell).collect::<Vec<_>>(), [5, 7, 9]);
        assert_eq!((queue.pop(), queue.len(), queue.bytes()), (None, 0, 0));
        assert_eq!(queue.cell_bytes(), 0);
        queue.push(absent(3));
        assert_eq!(queue.pop(), Some(absent(3)));
    }

    #[test]
    fn each_wait_ends_as_a_whole() {
        let mut waiting = Waiting::default();
        for (moment, cell) in [(1, 10), (2, 20), (1, 11), (3, 30)] {
            waiting.push(moment, absent(cell));
        }
        assert_eq!((waiting.len(), waiting.has_over(), waiting.pop()), (4, false, None));
        waiting.end(|moment| moment == 1);
        assert_eq!(waiting.pop(), Some(absent(10)));
        // The cell waits anew, behind those whose wait is over.
        waiting.push(1, absent(10));
        assert_eq!((waiting.pop(), waiting.pop()), (Some(absent(11)), None));
        waiting.end(|_| true);
        let cells: Vec<u64> = std::iter::from_fn(|| waiting.pop()).map(|it| it.cell).collect();
        assert_eq!((cells.len(), waiting.is_empty()), (3, true));
    }
}
