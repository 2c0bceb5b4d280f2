//! Numbered places for values, used again once they are free.

use std::num::NonZeroU32;

use stillpoint_mem::prefer_huge_pages;

/// The number of a place, plus one. So an option of something with a slot takes no further memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot(NonZeroU32);

impl Slot {
    /// No place.
    pub(crate) const NONE: Self = Self(NonZeroU32::MAX);

    pub(crate) fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// # Panics
    /// With 2³² − 2 places, which no memory holds here.
    fn new(place: usize) -> Self {
        let number = u32::try_from(place + 1).ok().and_then(NonZeroU32::new);
        let slot = Self(number.unwrap_or(NonZeroU32::MAX));
        assert!(!slot.is_none(), "fewer tuples than 2^32");
        slot
    }

    fn place(self) -> usize {
        self.0.get() as usize - 1
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
    pub(crate) fn insert(&mut self, value: T) -> Slot {
        if let Some(slot) = self.free.pop() {
            self.values[slot.place()] = Some(value);
            return slot;
        }
        let slot = Slot::new(self.values.len());
        if self.values.len() == self.values.capacity() {
            self.values.reserve(1);
            prefer_huge_pages(&self.values);
        }
        self.values.push(Some(value));
        slot
    }

    pub(crate) fn remove(&mut self, slot: Slot) -> T {
        let value = self.values[slot.place()].take().expect("a used slot");
        self.free.push(slot);
        value
    }

    pub(crate) fn get(&self, slot: Slot) -> Option<&T> {
        self.values.get(slot.place())?.as_ref()
    }

    /// The place of a slot, without a look at it.
    pub(crate) fn get_place(&self, slot: Slot) -> Option<&Option<T>> {
        self.values.get(slot.place())
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
        self.values[slot.place()].as_ref().expect("a used slot")
    }
}

impl<T> std::ops::IndexMut<Slot> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, slot: Slot) -> &mut T {
        self.values[slot.place()].as_mut().expect("a used slot")
    }
}
