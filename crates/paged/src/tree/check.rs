//! The check of a whole tree: nodes, fences, levels, and that each page is there once.

use std::collections::BTreeSet;
use std::sync::Arc;

use stillpoint_node::{Node, NodeKind};
use stillpoint_txn::TableId;

use super::copy_of;
use crate::backing::Purpose;
use crate::frame::State;
use crate::large::references;
use crate::pool::{Pool, PoolError};

/// What a check of a tree has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeSummary {
    /// Ids of all pages.
    pub pages: BTreeSet<u64>,
    /// Number of records.
    pub records: u64,
    /// Number of deleted records that keep their place.
    pub ghosts: u64,
    /// Number of values that have pages of their own.
    pub large: u64,
    /// Number of levels.
    pub levels: u8,
}

/// A defect of a tree, or a page that cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TreeError {
    /// The page cannot be read.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The page contradicts its parent, or itself.
    #[error("page {page} of table {}: {why}", .table.0)]
    Defect {
        /// Table.
        table: TableId,
        /// Page.
        page: u64,
        /// The defect.
        why: String,
    },
}

/// The keys that a page has to hold.
type Fences = (Vec<u8>, Option<Vec<u8>>);

impl Pool {
    /// Checks the tree of a table, while nobody changes it.
    ///
    /// # Errors
    /// The first defect.
    pub fn check_table(self: &Arc<Self>, table: TableId) -> Result<TreeSummary, TreeError> {
        let mut summary = TreeSummary::default();
        let level = self.root(table).map_or(0, |root| self.node(root).level());
        summary.levels = level + 1;
        self.check_below(table, level, (Vec::new(), None), &mut summary)?;
        self.check_frames(table)?;
        Ok(summary)
    }

    /// Checks that no page is in two frames.
    fn check_frames(&self, table: TableId) -> Result<(), TreeError> {
        let mut seen = BTreeSet::new();
        for frame in 0..self.frame_count() as u32 {
            let (state, page) = (self.header(frame).state(), self.header(frame).page());
            if state != State::Free && !seen.insert(page) {
                let why = "it is in two frames".to_owned();
                return Err(TreeError::Defect { table, page, why });
            }
        }
        Ok(())
    }

    fn check_below(
        self: &Arc<Self>,
        table: TableId,
        level: u8,
        (lower, upper): Fences,
        summary: &mut TreeSummary,
    ) -> Result<(), TreeError> {
        let (page, words) = self.copied(table, level, &lower)?;
        let node = Node::new(&words);
        let defect = |why: String| TreeError::Defect { table, page, why };
        node.check().map_err(|error| defect(error.to_string()))?;
        let (mut own_lower, mut own_upper) = (Vec::new(), Vec::new());
        node.read_lower_fence(&mut own_lower);
        let bounded = node.read_upper_fence(&mut own_upper);
        if node.level() != level || own_lower != lower || bounded.then_some(own_upper) != upper {
            return Err(defect("its level or its fences are not those of its parent".to_owned()));
        }
        if !summary.pages.insert(page) {
            return Err(defect("it is in the tree twice".to_owned()));
        }
        if node.kind() == Some(NodeKind::Leaf) {
            summary.records += node.records();
            summary.ghosts += node.ghost_count() as u64;
            for reference in references(&node) {
                summary.large += 1;
                for page in self.read_whole(table, reference)?.pages {
                    if !summary.pages.insert(page) {
                        return Err(defect(format!("its large value has page {page} twice")));
                    }
                }
            }
            return Ok(());
        }
        let mut lower = lower;
        for position in 0..node.child_count() {
            let mut next = upper.clone();
            if position < node.slot_count() {
                let mut separator = Vec::new();
                node.read_key(position, &mut separator);
                next = Some(separator);
            }
            let below = next.clone().unwrap_or_default();
            self.check_below(table, level - 1, (lower, next), summary)?;
            lower = below;
        }
        Ok(())
    }

    /// A copy of the node of this level that holds a key, and its page id.
    fn copied(
        self: &Arc<Self>,
        table: TableId,
        level: u8,
        key: &[u8],
    ) -> Result<(u64, Vec<stillpoint_sync::atomic::AtomicU64>), PoolError> {
        loop {
            match self.descend(table, key, level) {
                Ok(place) => {
                    let words = copy_of(self.node(place.seen.frame));
                    let page = self.header(place.seen.frame).page();
                    if self.is_still(place.seen) {
                        return Ok((page, words));
                    }
                }
                Err(missing) => {
                    if let Some(loading) = self.load(missing, Purpose::Eviction)? {
                        loading.arrive()?;
                    }
                }
            }
        }
    }
}
