//! The halves of a node that has grown too long.

use super::ENTRIES_MIN;
use crate::keyspace::elements::node::{Element, all_below, elements, entries};
use crate::keyspace::elements::sorting::Sorting;
use crate::keyspace::elements::tags::SCORE_BYTES;

/// Two halves of a node, with the elements below each, and the separator of the second.
pub(super) struct Halves {
    pub(super) left: (Vec<u8>, u64),
    pub(super) right: (Vec<u8>, u64),
    pub(super) separator: Vec<u8>,
}

/// The end of the tree at which an element was put, if any. The next elements will probably be put
/// there, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Neither,
    First,
    Last,
}

/// Cuts a leaf in two; `None` if nothing separates its elements.
pub(super) fn halve_leaf(leaf: &[u8], sorting: &Sorting, end: End) -> Option<Halves> {
    let mut all: Vec<(u64, Element<'_>)> = elements(leaf, 0)
        .map(|e| {
            let hash = match sorting {
                Sorting::Hashes(hashes) => *hashes.of(e.content).start(),
                _ => 0,
            };
            (hash, e)
        })
        .collect();
    let is_hashed = matches!(sorting, Sorting::Hashes(_));
    match sorting {
        Sorting::Hashes(_) => all.sort_by_key(|element| element.0),
        Sorting::Contents => all.sort_by_key(|element| element.1.content),
        Sorting::Positions => {}
    }
    let can_cut = |at: usize| !is_hashed || all[at - 1].0 != all[at].0;
    let mut bytes = 0;
    let middle = all.iter().position(|element| {
        bytes += element.1.end - element.1.at;
        bytes * 2 >= leaf.len()
    })?;
    let wanted = match end {
        End::First if !is_hashed => 1,
        End::Last if !is_hashed => all.len() - 1,
        _ if matches!(sorting, Sorting::Contents) => {
            between_scores(&all, leaf.len()).unwrap_or(middle)
        }
        _ => middle,
    };
    let cut = (wanted.max(1)..all.len())
        .find(|&at| can_cut(at))
        .or_else(|| (1..wanted).rev().find(|&at| can_cut(at)))?;
    let (before, behind) = (all[cut - 1].1.content, all[cut].1.content);
    let separator = sorting.separator(before, behind).into_owned();
    // The left half keeps its order, since the log gets what it has lost.
    all[..cut].sort_by_key(|element| element.1.at);
    let part = |from: usize, to: usize| {
        let bytes = all[from..to].iter().flat_map(|(_, e)| &leaf[e.at..e.end]).copied().collect();
        (bytes, (to - from) as u64)
    };
    Some(Halves { left: part(0, cut), right: part(cut, all.len()), separator })
}

/// Where the elements of a leaf of `bytes` bytes, which are in order, are cut between two scores. It
/// is the place next to the middle, if there is one in the middle half.
fn between_scores(all: &[(u64, Element<'_>)], bytes: usize) -> Option<usize> {
    let (mut before, mut best) = (0, None);
    for (at, pair) in (1..).zip(all.windows(2)) {
        let ((_, left), (_, right)) = (pair[0], pair[1]);
        before += left.end - left.at;
        let off = (2 * before).abs_diff(bytes);
        let divides = right.content.starts_with(left.content.first_chunk::<SCORE_BYTES>()?);
        if !divides && off <= bytes / 2 && best.is_none_or(|(least, _)| off < least) {
            best = Some((off, at));
        }
    }
    best.map(|(_, at)| at)
}

/// Cuts an inner node in two; `None` if it has few entries.
pub(super) fn halve_inner(inner: &[u8]) -> Option<Halves> {
    let all: Vec<(usize, &[u8])> =
        entries(inner, 0).map(|entry| (entry.at, entry.separator)).collect();
    if all.len() < ENTRIES_MIN {
        return None;
    }
    let middle = all.iter().position(|entry| entry.0 * 2 >= inner.len())?;
    let (at, separator) = all[middle.clamp(1, all.len() - 1)];
    let (left, right) = (inner[..at].to_vec(), inner[at..].to_vec());
    let (left_below, right_below) = (all_below(&left), all_below(&right));
    Some(Halves {
        left: (left, left_below),
        right: (right, right_below),
        separator: separator.to_vec(),
    })
}
