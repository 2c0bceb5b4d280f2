//! Visits of the elements of a tree.

use std::ops::Range;

use stillpoint::TxError;

use super::super::node::{elements, entries};
use super::super::sorting::Hashes;
use super::{Nodes, Tree, is_from};

impl Tree {
    /// Visits `count` elements from position `from` on, forwards or backwards.
    pub(in crate::keyspace::elements) fn visit(
        &self,
        nodes: &mut dyn Nodes,
        from: u64,
        count: u64,
        back: bool,
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<(), TxError> {
        let mut visit_on = |content: &[u8]| {
            visit(content);
            true
        };
        self.visit_while(nodes, from, count, back, &mut visit_on)
    }

    /// As [`visit`](Self::visit), until the visitor says false.
    pub(in crate::keyspace::elements) fn visit_while(
        &self,
        nodes: &mut dyn Nodes,
        from: u64,
        count: u64,
        back: bool,
        visit: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<(), TxError> {
        let (mut at, mut left) = (from, count.min(self.len));
        while left > 0 && at < self.len {
            let needed = if back { (at + 1).saturating_sub(left)..at + 1 } else { at..at + left };
            let place = self.with_others(nodes, needed, |nodes| self.place_at(nodes, at))?;
            let leaf = self.leaf(&place);
            let mut seen = 0;
            if back {
                let mut contents: Vec<&[u8]> = elements(leaf, 0)
                    .take_while(|e| e.at <= place.offset)
                    .map(|e| e.content)
                    .collect();
                while let Some(content) = contents.pop().filter(|_| seen < left) {
                    if !visit(content) {
                        return Ok(());
                    }
                    seen += 1;
                }
            } else {
                for element in elements(leaf, place.offset).take(left as usize) {
                    if !visit(element.content) {
                        return Ok(());
                    }
                    seen += 1;
                }
            }
            if seen == 0 || (back && seen > at) {
                return Ok(());
            }
            left -= seen;
            at = if back { at - seen } else { at + seen };
        }
        Ok(())
    }

    /// Reads nodes. If one of them is not in memory, asks for all nodes of those positions. So few runs
    /// load them all: each asks for those below the nodes that are in memory.
    pub(in crate::keyspace::elements) fn with_others<R>(
        &self,
        nodes: &mut dyn Nodes,
        positions: Range<u64>,
        read: impl FnOnce(&mut dyn Nodes) -> Result<R, TxError>,
    ) -> Result<R, TxError> {
        let done = read(nodes);
        if matches!(done, Err(TxError::NotLoaded)) {
            // The run ends in any case.
            let _ = self.ask_for(nodes, positions);
        }
        done
    }

    #[cold]
    pub(super) fn ask_for(
        &self,
        nodes: &mut dyn Nodes,
        positions: Range<u64>,
    ) -> Result<(), TxError> {
        let mut left = vec![(0, self.height, 0)];
        while let Some((node, height, mut at)) = left.pop() {
            let bytes = if node == 0 { None } else { Some(nodes.read(node)?) };
            for entry in entries(bytes.as_deref().unwrap_or(&self.root), 0) {
                let next = at + entry.below;
                let is_in = at < positions.end && next > positions.start;
                if (is_in || !self.is_counted) && nodes.ask_for(entry.child) && height > 1 {
                    left.push((entry.child, height - 1, at));
                }
                at = next;
            }
        }
        Ok(())
    }

    /// Visits about `count` elements in the order of their hashes, from `cursor` on; gives the next
    /// cursor, 0 at the end. A single leaf is visited whole.
    pub(in crate::keyspace::elements) fn scan(
        &self,
        nodes: &mut dyn Nodes,
        hashes: &Hashes,
        (mut cursor, count): (u64, u64),
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<u64, TxError> {
        let mut seen = 0;
        loop {
            let place = self.descend(nodes, |entry, _| is_from(entry.separator, cursor))?;
            for element in self.elements_at(&place) {
                if self.height == 0 || *hashes.of(element.content).end() >= cursor {
                    visit(element.content);
                }
                seen += 1;
            }
            let (_, upper) = self.bounds(&place.levels, place.upper);
            let next = upper.and_then(|upper| upper.first_chunk());
            cursor = next.map_or(0, |next| u64::from_be_bytes(*next));
            if cursor == 0 || seen >= count {
                return Ok(cursor);
            }
        }
    }
}
