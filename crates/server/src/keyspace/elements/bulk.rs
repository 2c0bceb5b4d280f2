//! Many elements of a collection at once.

use std::ops::Range;

use stillpoint::{Tx, TxError};

use super::tree::bulk::{Doomed, Gone, is_packed};
use super::tree::{Nodes, damaged};
use super::{Elements, IS_LARGE, TxNodes};
use crate::keyspace::kinds::Order;

/// Contents in one buffer.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Contents {
    /// Adds a content.
    pub(crate) fn push(&mut self, content: &[u8]) {
        self.push_parts(&[content]);
    }

    /// Adds a content that lies in several parts.
    pub(crate) fn push_parts(&mut self, parts: &[&[u8]]) {
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.ends.push(self.bytes.len());
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of all contents.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// All contents, in the order in which they were added.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| &self.bytes[start..end])
    }
}

/// The ranges that positions in ascending order make up.
pub(crate) fn ranges_of(positions: &[u64]) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for &position in positions {
        match ranges.last_mut() {
            Some(last) if last.end == position => last.end += 1,
            _ => ranges.push(position..position + 1),
        }
    }
    ranges
}

impl Elements {
    /// Puts elements into an empty collection. Elements of a list come in their order. Elements of
    /// other kinds have different names, and come in any order.
    ///
    /// # Errors
    /// A node cannot be written, or these are too many elements.
    pub(in crate::keyspace) fn fill(
        &mut self,
        tx: &mut Tx<'_>,
        contents: Vec<&[u8]>,
    ) -> Result<(), TxError> {
        let mut keys = self.keys.lend();
        keys.incarnation = self.next_incarnation;
        self.fill_into(&mut TxNodes { keys: &mut keys, tx }, contents)?;
        self.keys.give_back(keys);
        Ok(())
    }

    /// As [`fill`](Self::fill), with nodes of the incarnation that comes next.
    pub(super) fn fill_into(
        &mut self,
        nodes: &mut dyn Nodes,
        mut contents: Vec<&[u8]>,
    ) -> Result<(), TxError> {
        debug_assert_eq!(self.tree.len, 0, "only an empty collection is filled");
        if contents.is_empty() {
            return Ok(());
        }
        let len = contents.len() as u64;
        if len > u64::from(u32::MAX) {
            return Err(TxError::abandon("a collection has at most 4294967295 elements"));
        }
        self.has_changed = true;
        self.keys.incarnation = self.next_incarnation;
        if !contents.iter().all(|content| (self.rules.is_small)(&self.small, len, content)) {
            self.flags |= IS_LARGE;
        }
        match self.rules.order {
            Order::Position => {}
            // A small collection shows its elements in the order in which they came.
            Order::Names if is_packed(&contents) => {}
            Order::Names => self.sort_by_names(&mut contents),
            Order::Contents => contents.sort(),
        }
        let sorting = self.sorting();
        self.tree.fill(nodes, &sorting, &contents)?;
        if self.has_index() {
            self.fill_index(nodes, &contents)?;
        }
        self.note_all_times(nodes, &contents)
    }

    /// Removes up to `count` elements from the end, or from the beginning. Gives the contents of
    /// the removed elements, the outermost first.
    ///
    /// # Errors
    /// A node cannot be locked, read or written.
    pub(crate) fn take_end(
        &mut self,
        tx: &mut Tx<'_>,
        from_end: bool,
        count: u64,
    ) -> Result<Vec<Vec<u8>>, TxError> {
        let (len, mut taken) = (self.tree.len, Vec::new());
        let count = count.min(len);
        if count == 1 {
            taken.extend(self.remove_at(tx, if from_end { len - 1 } else { 0 })?);
        } else if count > 1 {
            let range = if from_end { len - count..len } else { 0..count };
            let mut keep = |content: &[u8]| taken.push(content.to_vec());
            self.remove_ranges(tx, &[range], Some(&mut keep))?;
            if from_end {
                taken.reverse();
            }
        }
        Ok(taken)
    }

    fn sort_by_names(&self, contents: &mut Vec<&[u8]>) {
        let hashes = self.hashes();
        let mut hashed: Vec<(u64, &[u8])> =
            contents.iter().map(|content| (*hashes.of(content).start(), *content)).collect();
        hashed.sort_unstable_by_key(|(hash, _)| *hash);
        contents.clear();
        contents.extend(hashed.into_iter().map(|(_, content)| content));
    }

    /// Removes the elements at ranges of positions, which are in ascending order and neither touch
    /// nor overlap each other. `gone` is called with each content. Gives the number of removed
    /// elements.
    ///
    /// # Errors
    /// A node cannot be locked, read or written.
    pub(crate) fn remove_ranges(
        &mut self,
        tx: &mut Tx<'_>,
        ranges: &[Range<u64>],
        mut gone: Gone<'_>,
    ) -> Result<u64, TxError> {
        let ends = ranges.partition_point(|range| range.start < self.tree.len);
        let ranges = &ranges[..ends];
        if ranges.is_empty() {
            return Ok(0);
        }
        self.has_changed = true;
        let doomed = Doomed::Positions(ranges);
        if !self.has_index() {
            let mut nodes = TxNodes { keys: &mut self.keys, tx };
            return self.tree.remove_all(&mut nodes, doomed, gone);
        }
        let mut removed = Contents::default();
        let mut keep = |content: &[u8]| {
            removed.push(content);
            if let Some(gone) = &mut gone {
                gone(content);
            }
        };
        let mut nodes = TxNodes { keys: &mut self.keys, tx };
        let count = self.tree.remove_all(&mut nodes, doomed, Some(&mut keep))?;
        let hashes = self.member_hashes();
        let mut names: Vec<(u64, &[u8])> = removed
            .iter()
            .map(|content| (hashes.of_name((hashes.name)(content)), content))
            .collect();
        names.sort_unstable_by_key(|(hash, _)| *hash);
        let doomed = Doomed::Names { hashes, names: &names };
        let mut nodes = TxNodes { keys: &mut self.keys, tx };
        if self.index.remove_all(&mut nodes, doomed, None)? != count {
            return Err(damaged());
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_make_ranges_that_do_not_touch() {
        assert_eq!(ranges_of(&[]), []);
        let three = 3..4;
        assert_eq!(ranges_of(&[3]), [three]);
        assert_eq!(ranges_of(&[0, 1, 2, 5, 7, 8]), [0..3, 5..6, 7..9]);
    }

    #[test]
    fn contents_come_back() {
        let mut contents = Contents::default();
        contents.push(b"one");
        contents.push(b"");
        contents.push_parts(&[b"th", b"ree"]);
        assert_eq!(contents.iter().collect::<Vec<_>>(), [&b"one"[..], b"", b"three"]);
        assert_eq!(contents.len(), 3);
    }
}
