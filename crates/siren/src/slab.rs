//! Numbered places for values, used again once they are free.

/// The number of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot(u32);

impl Slot {
    /// No place.
    pub(crate) const NONE: Self = Self(u32::MAX);

    pub(crate) fn is_none(self) -> bool {
        self == Self::NONE
    }
}

/// Values at numbered places.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    values: Vec<Option<T>>,
    free: Vec<Slot>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { values: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    /// # Panics
    /// With 2³² − 1 values, which no memory holds here.
    pub(crate) fn insert(&mut self, value: T) -> Slot {
        if let Some(slot) = self.free.pop() {
            self.values[slot.0 as usize] = Some(value);
            return slot;
        }
        let slot = Slot(u32::try_from(self.values.len()).expect("fewer tuples than 2^32"));
        assert!(!slot.is_none(), "fewer tuples than 2^32");
        self.values.push(Some(value));
        slot
    }

    pub(crate) fn remove(&mut self, slot: Slot) -> T {
        let value = self.values[slot.0 as usize].take().expect("a used slot");
        self.free.push(slot);
        value
    }

    pub(crate) fn get(&self, slot: Slot) -> Option<&T> {
        self.values.get(slot.0 as usize)?.as_ref()
    }

    /// The place of a slot, without a look at it.
    pub(crate) fn get_place(&self, slot: Slot) -> Option<&Option<T>> {
        self.values.get(slot.0 as usize)
    }

    /// Number of values.
    pub(crate) fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }
}

impl<T> std::ops::Index<Slot> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, slot: Slot) -> &T {
        self.values[slot.0 as usize].as_ref().expect("a used slot")
    }
}

impl<T> std::ops::IndexMut<Slot> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, slot: Slot) -> &mut T {
        self.values[slot.0 as usize].as_mut().expect("a used slot")
    }
}
