//! The actions of a tick.

use stillpoint_format::state::ActionBatchBuilder;

/// The actions of a tick, in the order in which they were logged.
#[derive(Clone, Copy, Debug)]
pub struct Actions<'a>(&'a [u8]);

impl<'a> Actions<'a> {
    /// Actions that [`ActionLog`] has put together, or a checked frame.
    pub(crate) fn of(encoded: &'a [u8]) -> Self {
        Self(encoded)
    }

    /// True if the tick has no actions.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> IntoIterator for Actions<'a> {
    type Item = &'a [u8];
    type IntoIter = ActionIter<'a>;

    fn into_iter(self) -> ActionIter<'a> {
        ActionIter(self.0)
    }
}

/// Iterator over the actions of a tick.
#[derive(Clone, Debug)]
pub struct ActionIter<'a>(&'a [u8]);

impl<'a> Iterator for ActionIter<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (len, rest) = self.0.split_first_chunk::<4>()?;
        let (action, rest) = rest.split_at(u32::from_le_bytes(*len) as usize);
        self.0 = rest;
        Some(action)
    }
}

/// The actions of the tick that has not ended.
#[derive(Debug, Default)]
pub(crate) struct ActionLog(Vec<u8>);

impl ActionLog {
    /// Bytes of all actions, if another action of `action` bytes is added.
    pub(crate) fn bytes_with(&self, action: usize) -> usize {
        self.0.len().saturating_add(4).saturating_add(action)
    }

    pub(crate) fn push(&mut self, action: &[u8]) {
        ActionBatchBuilder::put_action(&mut self.0, action);
    }

    pub(crate) fn encoded(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_come_back_in_order() {
        let mut log = ActionLog::default();
        assert!(Actions::of(log.encoded()).is_empty());
        for action in [&b"one"[..], b"", b"three"] {
            log.push(action);
        }
        let found: Vec<&[u8]> = Actions::of(log.encoded()).into_iter().collect();
        assert_eq!(found, [&b"one"[..], b"", b"three"]);
    }
}
