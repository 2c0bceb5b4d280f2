//! The names of a simulated disk. For every directory it holds the present names, the durable
//! names, and the changes between the two in their order.
//!
//! A power loss keeps a prefix of each directory's changes. A rename from one directory to another
//! is one change of both, kept as a whole or not at all. A flush of either directory makes the
//! rename durable, together with all earlier changes of the other.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::sync::Arc;

use super::content::Content;
use super::crash::Outcome;
use crate::rng::SeededRng;

/// Number of a file or directory, which no rename changes.
pub(super) type NodeId = u64;
pub(super) const ROOT: NodeId = 0;

type Names = Arc<BTreeMap<String, NodeId>>;

#[derive(Clone, Debug, Default)]
pub(super) struct Directory {
    now: Names,
    durable: Names,
    pub(super) flush_failed: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct FileNode {
    pub(super) content: Content,
    pub(super) flush_failed: bool,
    pub(super) handles: u32,
}

#[derive(Clone, Debug)]
enum Node {
    Directory(Directory),
    File(FileNode),
}

/// A change of names that is not durable yet.
#[derive(Clone, Debug)]
enum Change {
    Link { directory: NodeId, name: String, node: NodeId },
    Unlink { directory: NodeId, name: String },
    Rename { from: (NodeId, String), to: (NodeId, String), node: NodeId },
}

impl Change {
    fn directories(&self) -> [NodeId; 2] {
        match self {
            Change::Link { directory, .. } | Change::Unlink { directory, .. } => [*directory; 2],
            Change::Rename { from, to, .. } => [from.0, to.0],
        }
    }

    fn node(&self) -> Option<NodeId> {
        match self {
            Change::Link { node, .. } | Change::Rename { node, .. } => Some(*node),
            Change::Unlink { .. } => None,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Tree {
    nodes: BTreeMap<NodeId, Node>,
    /// Pending changes of all directories, oldest first.
    pending: Vec<Change>,
    next_id: NodeId,
}

impl Tree {
    pub(super) fn new() -> Self {
        let root = Node::Directory(Directory::default());
        Self { nodes: BTreeMap::from([(ROOT, root)]), pending: Vec::new(), next_id: ROOT + 1 }
    }

    pub(super) fn lookup(&self, parts: &[&str]) -> io::Result<NodeId> {
        parts.iter().try_fold(ROOT, |node, part| {
            let names = &self.directory(node)?.now;
            names.get(*part).copied().ok_or_else(|| ErrorKind::NotFound.into())
        })
    }

    pub(super) fn directory(&self, node: NodeId) -> io::Result<&Directory> {
        match self.nodes.get(&node) {
            Some(Node::Directory(directory)) => Ok(directory),
            Some(Node::File(_)) => Err(ErrorKind::NotADirectory.into()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    pub(super) fn directory_mut(&mut self, node: NodeId) -> io::Result<&mut Directory> {
        match self.nodes.get_mut(&node) {
            Some(Node::Directory(directory)) => Ok(directory),
            Some(Node::File(_)) => Err(ErrorKind::NotADirectory.into()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    pub(super) fn file(&self, node: NodeId) -> io::Result<&FileNode> {
        match self.nodes.get(&node) {
            Some(Node::File(file)) => Ok(file),
            Some(Node::Directory(_)) => Err(ErrorKind::IsADirectory.into()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    pub(super) fn file_mut(&mut self, node: NodeId) -> io::Result<&mut FileNode> {
        match self.nodes.get_mut(&node) {
            Some(Node::File(file)) => Ok(file),
            Some(Node::Directory(_)) => Err(ErrorKind::IsADirectory.into()),
            None => Err(ErrorKind::NotFound.into()),
        }
    }

    pub(super) fn list(&self, node: NodeId) -> io::Result<Vec<String>> {
        Ok(self.directory(node)?.now.keys().cloned().collect())
    }

    /// Creates an empty file of a free name.
    pub(super) fn create_file(&mut self, parts: &[&str]) -> io::Result<NodeId> {
        let (directory, name) = self.entry(parts)?;
        if self.directory(directory)?.now.contains_key(name) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        self.link(directory, name, Node::File(FileNode::default()))
    }

    pub(super) fn create_dir_all(&mut self, parts: &[&str]) -> io::Result<()> {
        let mut node = ROOT;
        for part in parts {
            node = match self.directory(node)?.now.get(*part) {
                Some(&node) => node,
                None => self.link(node, part, Node::Directory(Directory::default()))?,
            };
        }
        self.directory(node).map(|_| ())
    }

    /// Removes a name and everything below it; a missing one is no error.
    pub(super) fn remove(&mut self, parts: &[&str]) -> io::Result<()> {
        let (directory, name) = match self.entry(parts) {
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(());
            }
            found => found?,
        };
        let Some(&node) = self.directory(directory)?.now.get(name) else {
            return Ok(());
        };
        if matches!(self.nodes.get(&node), Some(Node::Directory(_))) {
            for below in self.list(node)? {
                let path: Vec<&str> = parts.iter().copied().chain([below.as_str()]).collect();
                self.remove(&path)?;
            }
        }
        Arc::make_mut(&mut self.directory_mut(directory)?.now).remove(name);
        self.pending.push(Change::Unlink { directory, name: name.to_owned() });
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &[&str], to: &[&str]) -> io::Result<()> {
        if from.is_empty() || to.is_empty() {
            return Err(is_root());
        }
        let (from_directory, from_name) = self.entry(from)?;
        let (to_directory, to_name) = self.entry(to)?;
        let node = self.lookup(from)?;
        if let Some(&target) = self.directory(to_directory)?.now.get(to_name) {
            if target == node {
                return Ok(());
            }
            match (self.directory(node), self.directory(target)) {
                (Ok(_), Ok(replaced)) if !replaced.now.is_empty() => {
                    return Err(ErrorKind::DirectoryNotEmpty.into());
                }
                (Ok(_), Err(_)) => return Err(ErrorKind::NotADirectory.into()),
                (Err(_), Ok(_)) => return Err(ErrorKind::IsADirectory.into()),
                _ => {}
            }
        }
        if to.len() > from.len() && to.starts_with(from) {
            return Err(ErrorKind::InvalidInput.into());
        }
        Arc::make_mut(&mut self.directory_mut(from_directory)?.now).remove(from_name);
        Arc::make_mut(&mut self.directory_mut(to_directory)?.now).insert(to_name.to_owned(), node);
        self.pending.push(Change::Rename {
            from: (from_directory, from_name.to_owned()),
            to: (to_directory, to_name.to_owned()),
            node,
        });
        Ok(())
    }

    /// Makes the names of a directory durable, with the changes of other directories that they
    /// presuppose.
    pub(super) fn flush_directory(&mut self, node: NodeId) {
        let mut concerned = BTreeSet::from([node]);
        let mut kept = vec![false; self.pending.len()];
        for (change, kept) in self.pending.iter().zip(&mut kept).rev() {
            let directories = change.directories();
            if directories.iter().any(|directory| concerned.contains(directory)) {
                concerned.extend(directories);
                *kept = true;
            }
        }
        self.make_durable(&kept);
        self.forget_unreachable();
    }

    /// The names after a power loss, drawn from `outcome`.
    pub(super) fn after_power_loss(&self, outcome: &Outcome, rng: &SeededRng) -> Tree {
        let mut left: BTreeMap<NodeId, u64> = BTreeMap::new();
        for change in &self.pending {
            let [one, other] = change.directories();
            *left.entry(one).or_default() += 1;
            if other != one {
                *left.entry(other).or_default() += 1;
            }
        }
        for count in left.values_mut() {
            *count = outcome.pick_prefix(*count, rng);
        }
        let kept: Vec<bool> = self
            .pending
            .iter()
            .map(|change| {
                let [one, other] = change.directories();
                let keep = left[&one] > 0 && left[&other] > 0;
                // A lost change ends the prefix of each of its directories.
                for directory in BTreeSet::from([one, other]) {
                    if let Some(count) = left.get_mut(&directory) {
                        *count = if keep { *count - 1 } else { 0 };
                    }
                }
                keep
            })
            .collect();
        let mut names = self.names_only();
        names.make_durable(&kept);
        names.pending.clear();
        for node in names.nodes.values_mut() {
            if let Node::Directory(directory) = node {
                directory.now = directory.durable.clone();
                directory.flush_failed = false;
            }
        }
        names.forget_unreachable();
        for (id, node) in &mut names.nodes {
            if let (Node::File(left), Ok(file)) = (node, self.file(*id)) {
                left.content = file.content.after_power_loss(outcome, rng);
            }
        }
        names
    }

    /// The names that the next process finds after the death of this one: all changes, flushed or
    /// not.
    pub(super) fn after_kill(&self) -> Tree {
        let mut tree = self.clone();
        for node in tree.nodes.values_mut() {
            match node {
                Node::Directory(directory) => directory.flush_failed = false,
                Node::File(file) => (file.flush_failed, file.handles) = (false, 0),
            }
        }
        tree.forget_unreachable();
        tree
    }

    /// Pages of space of all files that have a name or are open.
    pub(super) fn footprint_pages(&self) -> u64 {
        let named = self.reachable([ROOT], |directory| vec![&directory.now]);
        let files = self.nodes.iter().filter_map(|(id, node)| match node {
            Node::File(file) if file.handles > 0 || named.contains(id) => Some(file),
            _ => None,
        });
        files.map(|file| file.content.footprint_pages()).sum()
    }

    /// The contents of every file that may still be found after a crash.
    pub(super) fn contents(&self) -> impl Iterator<Item = &Content> {
        self.nodes.values().filter_map(|node| match node {
            Node::File(file) => Some(&file.content),
            Node::Directory(_) => None,
        })
    }

    /// Changes of names that are not durable yet.
    pub(super) fn unflushed_names(&self) -> usize {
        self.pending.len()
    }

    /// A copy with empty files.
    fn names_only(&self) -> Tree {
        let nodes = self.nodes.iter().map(|(id, node)| {
            let node = match node {
                Node::Directory(directory) => Node::Directory(directory.clone()),
                Node::File(_) => Node::File(FileNode::default()),
            };
            (*id, node)
        });
        Tree { nodes: nodes.collect(), pending: self.pending.clone(), next_id: self.next_id }
    }

    /// The directory of a path's last part, and that part.
    fn entry<'a>(&self, parts: &[&'a str]) -> io::Result<(NodeId, &'a str)> {
        let Some((name, above)) = parts.split_last() else {
            return Err(is_root());
        };
        let directory = self.lookup(above)?;
        self.directory(directory)?;
        Ok((directory, name))
    }

    fn link(&mut self, directory: NodeId, name: &str, node: Node) -> io::Result<NodeId> {
        let id = self.next_id;
        let names = &mut self.directory_mut(directory)?.now;
        Arc::make_mut(names).insert(name.to_owned(), id);
        self.next_id += 1;
        self.nodes.insert(id, node);
        self.pending.push(Change::Link { directory, name: name.to_owned(), node: id });
        Ok(id)
    }

    /// Applies the chosen pending changes to the durable names.
    fn make_durable(&mut self, kept: &[bool]) {
        let mut chosen = kept.iter();
        let changes: Vec<Change> =
            self.pending.extract_if(.., |_| chosen.next().copied().unwrap_or(false)).collect();
        for change in changes {
            match change {
                Change::Link { directory, name, node } => {
                    self.durable_names(directory, |names| names.insert(name, node));
                }
                Change::Unlink { directory, name } => {
                    self.durable_names(directory, |names| names.remove(&name));
                }
                Change::Rename { from, to, node } => {
                    self.durable_names(from.0, |names| names.remove(&from.1));
                    self.durable_names(to.0, |names| names.insert(to.1, node));
                }
            }
        }
    }

    fn durable_names<T>(
        &mut self,
        directory: NodeId,
        change: impl FnOnce(&mut BTreeMap<String, NodeId>) -> T,
    ) {
        if let Ok(directory) = self.directory_mut(directory) {
            change(Arc::make_mut(&mut directory.durable));
        }
    }

    /// Drops files that no name, now or after any power loss, and no handle leads to.
    fn forget_unreachable(&mut self) {
        let open = self.nodes.iter().filter_map(|(id, node)| match node {
            Node::File(file) if file.handles > 0 => Some(*id),
            _ => None,
        });
        let pending = self.pending.iter().filter_map(Change::node);
        // A directory with pending changes may be found again, even if nothing names it now.
        let changed = self.pending.iter().flat_map(Change::directories);
        let starts: Vec<NodeId> =
            [ROOT].into_iter().chain(open).chain(pending).chain(changed).collect();
        let reachable =
            self.reachable(starts, |directory| vec![&directory.now, &directory.durable]);
        self.nodes.retain(|id, _| reachable.contains(id));
    }

    fn reachable<'a>(
        &'a self,
        starts: impl IntoIterator<Item = NodeId>,
        names: impl Fn(&'a Directory) -> Vec<&'a Names>,
    ) -> BTreeSet<NodeId> {
        let mut found = BTreeSet::new();
        let mut todo: Vec<NodeId> = starts.into_iter().collect();
        while let Some(node) = todo.pop() {
            if found.insert(node)
                && let Ok(directory) = self.directory(node)
            {
                todo.extend(names(directory).into_iter().flat_map(|names| names.values()));
            }
        }
        found
    }
}

fn is_root() -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, "this is the disk's root")
}
