//! The index of a large sorted set: its elements by their members.
//!
//! ```text
//! short   0 (u8), tag (u32, big-endian), score without the zero bytes at its end
//! whole   score, member
//! ```
//! A tag is the first 27 bits of the hash of a member. No score begins as a short element does. The
//! score leads from a short element to the leaf of the tree that has the member.
//!
//! Invariants:
//! 1. If elements have the same tag and the same score, all of them are whole. So a short element
//!    stands for one member.
//! 2. If a separator of the tree divides the elements of a score, all of them are whole. So a short
//!    element's score leads to one leaf.
//!
//! A split that divides a score makes its elements whole. They were in one leaf until then, so each
//! element is made whole once at most.

use stillpoint::{KeyHasher, Tx, TxError};

use super::bulk::Contents;
use super::sorting::{Hashes, Sorting};
use super::tags::{Score, hashes_of, short, short_parts, tag};
use super::tree::{Nodes, TreePosition, damaged};
use super::{Elements, IS_LARGE, TxNodes};
use crate::planted::mutant;

/// An element that was found by its name, or the place where it belongs.
#[derive(Debug)]
pub(super) struct Found {
    /// The place in the index; in the tree of a collection without one.
    pub(super) place: TreePosition,
    /// The content, if the element exists.
    pub(super) content: Option<Vec<u8>>,
    /// The place in the tree of a collection with an index, if the search has come there.
    pub(super) in_tree: Option<TreePosition>,
}

impl Elements {
    /// The hashes by which the index of a sorted set is in order.
    pub(super) fn member_hashes(&self) -> Hashes {
        let hasher = KeyHasher::new(self.keys.incarnation);
        Hashes { hasher, name: self.rules.name, are_tags: true }
    }

    /// Finds the element of a member by the index.
    pub(super) fn find_member(&mut self, tx: &mut Tx<'_>, name: &[u8]) -> Result<Found, TxError> {
        let hash = self.member_hashes().of_name(name);
        let mut nodes = TxNodes { keys: &mut self.keys, tx };
        let place = self.index.leaf_of_hash(&mut nodes, hash)?;
        let (mut whole, mut candidates, mut end) = (None, Vec::new(), 0);
        for element in self.index.elements_at(&place) {
            end = element.end;
            match short_parts(element.content) {
                Some((other, score)) if other == tag(hash) => {
                    candidates.push((element.at, [&score[..], name].concat()));
                }
                None if (self.rules.name)(element.content) == name => {
                    whole = Some((element.at, element.content.to_vec()));
                }
                _ => {}
            }
        }
        if let Some((at, content)) = whole {
            return Ok(Found { place: place.moved(at), content: Some(content), in_tree: None });
        }
        for (at, content) in candidates {
            let in_tree = self.tree.place_of(&mut nodes, &content)?;
            if in_tree.is_there {
                let (place, in_tree) = (place.moved(at), Some(in_tree));
                return Ok(Found { place, content: Some(content), in_tree });
            }
        }
        Ok(Found { place: place.behind(end), content: None, in_tree: None })
    }

    /// The place of a content in the index, and whether the element there is whole.
    fn place_in_index(
        &mut self,
        tx: &mut Tx<'_>,
        content: &[u8],
    ) -> Result<(TreePosition, bool), TxError> {
        let hash = self.member_hashes().of_name((self.rules.name)(content));
        let mut nodes = TxNodes { keys: &mut self.keys, tx };
        let place = self.index.leaf_of_hash(&mut nodes, hash)?;
        let short = short(tag(hash), content);
        let at = |sought: &[u8]| {
            self.index.elements_at(&place).find(|e| e.content == sought).map(|element| element.at)
        };
        let (whole, short) = (at(content), at(&short));
        let place = match whole.or(short) {
            Some(at) => place.moved(at),
            None => place,
        };
        Ok((place, whole.is_some()))
    }

    /// Puts an element of a collection in the order of contents. `found` is that of its name.
    pub(super) fn put_content(
        &mut self,
        tx: &mut Tx<'_>,
        found: Found,
        content: &[u8],
    ) -> Result<(), TxError> {
        let Some(old) = found.content.clone() else { return self.put_in(tx, found.place, content) };
        let was_large = self.flags & IS_LARGE;
        // The tree of a single element would become a leaf in between.
        if self.has_index() && self.tree.len > 1 {
            self.exchange(tx, found, (&old, content))?;
        } else {
            self.take_out(tx, found, &old)?;
            let found = self.find(tx, (self.rules.name)(content))?;
            self.put_in(tx, found.place, content)?;
        }
        // As in Redis, a new score makes no sorted set large.
        self.flags = (self.flags & !IS_LARGE) | was_large;
        Ok(())
    }

    /// Takes an element that was found, of that content, out of a tree in the order of contents.
    pub(super) fn take_out(
        &mut self,
        tx: &mut Tx<'_>,
        found: Found,
        content: &[u8],
    ) -> Result<(), TxError> {
        self.has_changed = true;
        let has_index = self.has_index();
        let mut nodes = TxNodes { keys: &mut self.keys, tx };
        if has_index {
            self.index.remove(&mut nodes, found.place)?;
        }
        let place = match found.in_tree {
            Some(place) => place,
            None => self.tree.place_of(&mut nodes, content)?,
        };
        if !place.is_there {
            return Err(damaged());
        }
        self.tree.remove(&mut nodes, place)
    }

    /// Takes the element of that content out of a tree in the order of contents.
    pub(super) fn take_content_out(
        &mut self,
        tx: &mut Tx<'_>,
        content: &[u8],
    ) -> Result<(), TxError> {
        let place = if self.has_index() {
            self.place_in_index(tx, content)?.0
        } else {
            self.tree.place_of(&mut TxNodes { keys: &mut self.keys, tx }, content)?
        };
        if !place.is_there {
            return Err(damaged());
        }
        let found = Found { place, content: None, in_tree: None };
        self.take_out(tx, found, content)
    }

    /// Replaces an element of a tree in the order of contents by another of the same name.
    fn exchange(
        &mut self,
        tx: &mut Tx<'_>,
        found: Found,
        (old, content): (&[u8], &[u8]),
    ) -> Result<(), TxError> {
        self.prepare_for(content, false)?;
        let mut nodes = TxNodes { keys: &mut self.keys, tx };
        let in_tree = match found.in_tree {
            Some(place) => place,
            None => self.tree.place_of(&mut nodes, old)?,
        };
        let is_divided = self.tree.exchange(&mut nodes, in_tree, (old, content))?;
        self.put_in_index(tx, (found.place, true), content, is_divided)
    }

    /// Puts a new element into a tree in the order of contents. `place` is where it belongs in the
    /// index.
    fn put_in(
        &mut self,
        tx: &mut Tx<'_>,
        place: TreePosition,
        content: &[u8],
    ) -> Result<(), TxError> {
        self.prepare_for(content, true)?;
        let had_index = self.has_index();
        let mut nodes = TxNodes { keys: &mut self.keys, tx };
        let is_divided = self.tree.insert_content(&mut nodes, content)?;
        if had_index {
            return self.put_in_index(tx, (place, false), content, is_divided);
        }
        if !self.has_index() {
            return Ok(());
        }
        let mut all = Contents::default();
        let mut nodes = TxNodes { keys: &mut self.keys, tx };
        self.tree.visit(&mut nodes, 0, u64::MAX, false, &mut |content| all.push(content))?;
        let mut keys = self.keys.lend();
        let all = all.iter().collect::<Vec<_>>();
        self.fill_index(&mut TxNodes { keys: &mut keys, tx }, &all)?;
        self.keys.give_back(keys);
        Ok(())
    }

    /// Puts an element into the index, or replaces the one at its place. `is_divided` says whether a
    /// separator of the tree divides the elements of its score.
    fn put_in_index(
        &mut self,
        tx: &mut Tx<'_>,
        (place, replaces): (TreePosition, bool),
        content: &[u8],
        is_divided: bool,
    ) -> Result<(), TxError> {
        let hashes = self.member_hashes();
        let (score, name) = content.split_first_chunk().ok_or_else(damaged)?;
        let tag = tag(hashes.of_name(name));
        let short = short(tag, content);
        let (mut has_short_twin, mut is_whole) = (false, is_divided);
        for element in self.index.elements_at(&place).filter(|_| !is_divided) {
            if replaces && place.is_at(element.at) {
                continue;
            }
            if element.content == short {
                (has_short_twin, is_whole) = (true, true);
            }
            is_whole |=
                element.content.starts_with(score) && hashes.of(element.content) == hashes_of(tag);
        }
        let is_whole = mutant!(is_whole, TwinsStayShort => is_divided);
        let element = if is_whole { content } else { &short };
        let sorting = Sorting::Hashes(hashes);
        let mut nodes = TxNodes { keys: &mut self.keys, tx };
        if replaces {
            self.index.replace(&mut nodes, &sorting, place, element)?;
        } else {
            self.index.insert(&mut nodes, &sorting, place, element)?;
        }
        if has_short_twin && is_whole {
            self.make_whole(tx, score, Some(tag))?;
        }
        let divided = self.tree.divided.take();
        match mutant!(divided, DividedStayShort => None) {
            Some(score) => self.make_whole(tx, &score, None),
            None => Ok(()),
        }
    }

    /// Makes the elements of a score whole; those of one tag, if one is given.
    fn make_whole(
        &mut self,
        tx: &mut Tx<'_>,
        score: &Score,
        only: Option<u32>,
    ) -> Result<(), TxError> {
        let hashes = self.member_hashes();
        let mut of_score = Contents::default();
        let mut nodes = TxNodes { keys: &mut self.keys, tx };
        let from = self.tree.count_before(&mut nodes, &|content| *content < score[..])?;
        let mut keep = |content: &[u8]| {
            let has_score = content.starts_with(score);
            if has_score {
                of_score.push(content);
            }
            has_score
        };
        self.tree.visit_while(&mut nodes, from, u64::MAX, false, &mut keep)?;
        for content in of_score.iter() {
            let tag = tag(hashes.of_name((self.rules.name)(content)));
            if only.is_some_and(|only| only != tag) {
                continue;
            }
            let (place, is_whole) = self.place_in_index(tx, content)?;
            if place.is_there && !is_whole {
                let mut nodes = TxNodes { keys: &mut self.keys, tx };
                self.index.replace(&mut nodes, &Sorting::Hashes(hashes), place, content)?;
            }
        }
        Ok(())
    }

    /// Makes the index of a sorted set, which is empty, for the elements of the tree, in any order.
    pub(super) fn fill_index(
        &mut self,
        nodes: &mut dyn Nodes,
        contents: &[&[u8]],
    ) -> Result<(), TxError> {
        let hashes = self.member_hashes();
        let divided = self.tree.divided_scores(nodes)?;
        let elements = index_elements(&hashes, &divided, contents);
        let elements: Vec<&[u8]> = elements.iter().collect();
        self.index.fill(nodes, &Sorting::Hashes(hashes), &elements)
    }

    /// Visits the members that an element of the index stands for, with their scores before them.
    pub(super) fn visit_indexed(
        &mut self,
        tx: &mut Tx<'_>,
        indexed: &[u8],
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<(), TxError> {
        let Some((tag, score)) = short_parts(indexed) else {
            visit(indexed);
            return Ok(());
        };
        let hashes = self.member_hashes();
        let mut nodes = TxNodes { keys: &mut self.keys, tx };
        let place = self.tree.place_of(&mut nodes, &score)?;
        for element in self.tree.elements_at(&place) {
            let is_it =
                element.content.starts_with(&score) && hashes.of(element.content) == hashes_of(tag);
            if is_it {
                visit(element.content);
            }
        }
        Ok(())
    }
}

/// The elements of the index for contents, in the order of their hashes. `divided` has the scores
/// that separators of the tree divide, in order.
pub(super) fn index_elements(hashes: &Hashes, divided: &[Score], contents: &[&[u8]]) -> Contents {
    let with_hash = |content: &&'_ [u8]| hashes.of_name((hashes.name)(content));
    let mut hashed: Vec<(u64, &[u8])> =
        contents.iter().map(|content| (with_hash(content), *content)).collect();
    hashed.sort_unstable_by_key(|(hash, _)| *hash);
    let mut elements = Contents::default();
    for same_tag in hashed.chunk_by(|(a, _), (b, _)| tag(*a) == tag(*b)) {
        for (i, (hash, content)) in same_tag.iter().enumerate() {
            let score: Option<&Score> = content.first_chunk();
            let is_divided = score.is_none_or(|score| divided.binary_search(score).is_ok());
            let mut others = same_tag.iter().enumerate().filter(|(other, _)| *other != i);
            let has_twin = others.any(|(_, (_, other))| other.first_chunk() == score);
            if is_divided || has_twin {
                elements.push(content);
            } else {
                elements.push(&short(tag(*hash), content));
            }
        }
    }
    elements
}

#[cfg(test)]
mod tests;
