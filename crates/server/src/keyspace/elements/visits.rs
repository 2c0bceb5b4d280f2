//! Visits of the elements of a collection.

use stillpoint::{Tx, TxError};

use super::{Contents, Elements, TxNodes};
use crate::error::CmdResult;
use crate::heap::Heap;

/// Bytes of heap for a copied element, beside its content: its place, and an entry of a set of members.
const COPY_BYTES: usize = 64;

impl Elements {
    /// Visits `count` elements from position `from` on, forwards or backwards.
    ///
    /// # Errors
    /// A node cannot be locked or read.
    pub(crate) fn visit(
        &mut self,
        tx: &mut Tx<'_>,
        (from, count): (u64, u64),
        back: bool,
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<(), TxError> {
        let mut nodes = TxNodes { keys: &mut self.keys, tx };
        self.tree.visit(&mut nodes, from, count, back, visit)
    }

    /// As [`visit`](Self::visit), until the visitor says false.
    ///
    /// # Errors
    /// A node cannot be locked or read.
    pub(crate) fn visit_while(
        &mut self,
        tx: &mut Tx<'_>,
        (from, count): (u64, u64),
        back: bool,
        visit: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<(), TxError> {
        let mut nodes = TxNodes { keys: &mut self.keys, tx };
        self.tree.visit_while(&mut nodes, from, count, back, visit)
    }

    /// As [`visit_all`](Self::visit_all), for a visitor that copies the elements.
    ///
    /// # Errors
    /// A node cannot be locked or read, or the command has no heap for the copies.
    pub(crate) fn copy_all(
        &mut self,
        tx: &mut Tx<'_>,
        heap: &mut Heap,
        visit: &mut dyn FnMut(&[u8]),
    ) -> CmdResult {
        let judge = self.judge();
        let mut visit_live = |content: &[u8]| {
            let is_live = judge.is_live(content);
            if is_live && heap.take(content.len() + COPY_BYTES) {
                visit(content);
            }
            heap.check().is_ok()
        };
        self.visit_while(tx, (0, u64::MAX), false, &mut visit_live)?;
        heap.check()
    }

    /// Visits all elements in their order, but those that have expired.
    ///
    /// # Errors
    /// A node cannot be locked or read.
    pub(crate) fn visit_all(
        &mut self,
        tx: &mut Tx<'_>,
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<(), TxError> {
        let judge = self.judge();
        let mut visit_live = |content: &[u8]| {
            if judge.is_live(content) {
                visit(content);
            }
        };
        self.visit(tx, (0, u64::MAX), false, &mut visit_live)
    }

    /// Visits about `count` elements, in the order of the hashes of their names, from `cursor` on;
    /// gives the next cursor, 0 at the end. An element that stays is visited by a walk over all
    /// cursors, however the collection changes meanwhile. Expired elements are left out.
    ///
    /// # Errors
    /// A node cannot be locked or read.
    pub(crate) fn scan(
        &mut self,
        tx: &mut Tx<'_>,
        (cursor, count): (u64, u64),
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<u64, TxError> {
        if self.has_index() {
            let mut indexed = Contents::default();
            let hashes = self.member_hashes();
            let mut nodes = TxNodes { keys: &mut self.keys, tx };
            let mut keep = |content: &[u8]| indexed.push(content);
            let next = self.index.scan(&mut nodes, &hashes, (cursor, count), &mut keep)?;
            indexed.iter().try_for_each(|element| self.visit_indexed(tx, element, visit))?;
            return Ok(next);
        }
        let (hashes, judge) = (self.hashes(), self.judge());
        let mut visit_live = |content: &[u8]| {
            if judge.is_live(content) {
                visit(content);
            }
        };
        let mut nodes = TxNodes { keys: &mut self.keys, tx };
        self.tree.scan(&mut nodes, &hashes, (cursor, count), &mut visit_live)
    }
}
