//! The clients of an event loop.

use super::conn::Conn;

/// The clients of an event loop by number. The number of a client that is gone is used again.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    slots: Vec<Option<Box<Conn>>>,
    free: Vec<usize>,
}

impl Connections {
    pub(crate) fn insert(&mut self, make: impl FnOnce(usize) -> Option<Conn>) -> Option<usize> {
        let id = self.free.pop().unwrap_or(self.slots.len());
        match make(id) {
            Some(conn) if id == self.slots.len() => self.slots.push(Some(Box::new(conn))),
            Some(conn) => self.slots[id] = Some(Box::new(conn)),
            None => {
                if id < self.slots.len() {
                    self.free.push(id);
                }
                return None;
            }
        }
        Some(id)
    }

    pub(crate) fn insert_boxed(&mut self, conn: Box<Conn>) -> usize {
        let id = self.free.pop().unwrap_or(self.slots.len());
        self.slots.resize_with(self.slots.len().max(id + 1), || None);
        self.slots[id] = Some(conn);
        id
    }

    /// Takes out a client that will come back. Meanwhile the client is counted, and no other client
    /// gets its number.
    pub(crate) fn lend(&mut self, id: usize) -> Option<Box<Conn>> {
        self.slots.get_mut(id)?.take()
    }

    /// Takes a lent client back; `None` if it is lost.
    pub(crate) fn take_back(&mut self, id: usize, conn: Option<Box<Conn>>) {
        match conn {
            Some(conn) => self.slots[id] = Some(conn),
            None => self.free.push(id),
        }
    }

    pub(crate) fn get(&self, id: usize) -> Option<&Conn> {
        self.slots.get(id)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, id: usize) -> Option<&mut Conn> {
        self.slots.get_mut(id)?.as_deref_mut()
    }

    pub(crate) fn remove(&mut self, id: usize) -> Option<Box<Conn>> {
        let conn = self.slots.get_mut(id)?.take()?;
        self.free.push(id);
        Some(conn)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = usize> {
        self.slots.iter().enumerate().filter(|(_, c)| c.is_some()).map(|(id, _)| id)
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}
