//! Arrays of plain data with one mutator.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use stillpoint_mem::PageSize;
use stillpoint_sync::atomic::AtomicU64;
use stillpoint_sync::{CachePadded, mutant};

use crate::capture::{Capture, CaptureState, PointOfConsistency};
use crate::error::ArraysError;
use crate::grid::{Grid, GridError, LINE_BYTES};
use crate::plain::{AnyGrid, CellGrain, Field, FieldValue, Plain, with_grid};
use crate::planted;
use crate::scheme::{Content, Extent, Frozen, Intent, Last, LiveCopy, Scheme};
use crate::views::{ArrayMut, ArrayRef, ArraySet, CellMut};

/// Longest name of an array, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Most arrays of a state.
pub const ARRAYS_MAX: usize = 32;

/// A handle of an array. [`ArraysBuilder::array`] makes the handle, which is valid for that state
/// only.
pub struct Array<T> {
    slot: u32,
    owner: u32,
    cell: PhantomData<fn() -> T>,
}

impl<T> Clone for Array<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Array<T> {}

impl<T> Array<T> {
    pub(crate) fn slot(self) -> u32 {
        self.slot
    }
}

impl<T> fmt::Debug for Array<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array({})", self.slot)
    }
}

/// The description of an array, for a program that looks at a state from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayInfo {
    /// The array's name, unique in the state.
    pub name: String,
    /// Bytes of a cell.
    pub cell_bytes: usize,
    /// Cells.
    pub cells: usize,
}

impl ArrayInfo {
    /// Bytes of one copy.
    pub fn bytes(&self) -> u64 {
        self.cell_bytes as u64 * self.cells as u64
    }
}

/// An array as both threads share it.
#[derive(Debug)]
pub(crate) struct Slot<S: Scheme> {
    pub(crate) info: ArrayInfo,
    pub(crate) grid: AnyGrid<S::Layout>,
}

/// Data that mutator and writer share. The writer changes the state of the capture, and the
/// reference count in front of this value. Neither shares a cache line with data that every access
/// reads.
#[derive(Debug)]
pub(crate) struct Shared<S: Scheme> {
    pub(crate) slots: CachePadded<Vec<Slot<S>>>,
    pub(crate) gate: CachePadded<CaptureState>,
}

type MakeGrid<S> = fn(&ArrayInfo, PageSize) -> Result<AnyGrid<<S as Scheme>::Layout>, GridError>;

/// Says which arrays there will be.
#[derive(Debug)]
pub struct ArraysBuilder<S: Scheme> {
    owner: u32,
    pages: PageSize,
    arrays: Vec<(ArrayInfo, MakeGrid<S>)>,
}

impl<S: Scheme> ArraysBuilder<S> {
    /// Adds an array of `cells` cells, all zero, under a name that no other array has.
    pub fn array<T: Plain>(&mut self, name: &str, cells: usize) -> Array<T> {
        let slot = self.arrays.len() as u32;
        let info = ArrayInfo { name: name.to_owned(), cell_bytes: T::BYTES, cells };
        self.arrays.push((info, |info, pages| {
            let grains = info.cell_bytes / <T::Grain as stillpoint_mem::Grain>::BYTES;
            let grid = Grid::new(info.cells, grains, S::needs(info.cell_bytes), pages)?;
            Ok(T::Grain::any(grid))
        }));
        Array { slot, owner: self.owner, cell: PhantomData }
    }

    /// Sets the pages of memory to use. The default is huge pages.
    pub fn pages(&mut self, pages: PageSize) -> &mut Self {
        self.pages = pages;
        self
    }

    /// Reserves the memory.
    ///
    /// # Errors
    /// No array, too many, a name that is empty, too long or taken, no address space, or a scheme that the
    /// system does not help.
    pub fn build(self) -> Result<Arrays<S>, ArraysError> {
        if self.arrays.is_empty() || self.arrays.len() > ARRAYS_MAX {
            return Err(ArraysError::Count { arrays: self.arrays.len() });
        }
        let turn = LiveCopy::FIRST;
        let mut slots: Vec<Slot<S>> = Vec::with_capacity(self.arrays.len());
        for (info, make) in self.arrays {
            if info.name.is_empty() || info.name.len() > NAME_BYTES_MAX {
                return Err(ArraysError::Name { name: info.name });
            }
            if slots.iter().any(|slot| slot.info.name == info.name) {
                return Err(ArraysError::NameTaken { name: info.name });
            }
            let made = make(&info, self.pages);
            let grid = made.map_err(|source| {
                let name = info.name.clone();
                match source {
                    GridError::Memory(source) => ArraysError::Memory { name, source },
                    GridError::Tracking(source) => ArraysError::Tracking { name, source },
                }
            })?;
            with_grid!(&grid, grid => S::start(grid, turn));
            slots.push(Slot { info, grid });
        }
        let (slots, gate) = (CachePadded::new(slots), CachePadded::new(CaptureState::new()));
        let shared = Arc::new(Shared { slots, gate });
        let (ticks, captures, capture_tick) = (0, 0, 0);
        Ok(Arrays(Cells { shared, owner: self.owner, turn, ticks, captures, capture_tick }))
    }
}

/// The cells of a state's arrays, owned by their one mutator. This type has no `Clone`, and every
/// change of a cell borrows it mutably. So the compiler forbids a second mutator.
#[derive(Debug)]
pub struct Cells<S: Scheme> {
    shared: Arc<Shared<S>>,
    owner: u32,
    turn: LiveCopy,
    ticks: u64,
    captures: u64,
    /// Ticks that had ended when the last capture began.
    capture_tick: u64,
}

impl<S: Scheme> Cells<S> {
    /// Ticks ended so far.
    pub fn ticks(&self) -> u64 {
        self.ticks
    }

    /// The descriptions of the arrays, in the order in which they were named.
    pub fn infos(&self) -> impl ExactSizeIterator<Item = &ArrayInfo> {
        self.shared.slots.iter().map(|slot| &slot.info)
    }

    /// Bytes of address space of all arrays, copies and marks included. Pages cost memory once they
    /// are touched.
    pub fn len_bytes(&self) -> usize {
        let slots = self.shared.slots.iter();
        slots.map(|slot| with_grid!(&slot.grid, grid => grid.len_bytes())).sum()
    }

    /// Leaves the cells out of child processes, for good: another state's fork then costs nothing
    /// for these cells. A child that touches these cells is killed.
    pub fn keep_from_children(&self) {
        for slot in self.shared.slots.iter() {
            with_grid!(&slot.grid, grid => grid.keep_from_children());
        }
    }

    /// Bytes of one copy of all cells: the size of an image's contents.
    pub fn state_bytes(&self) -> u64 {
        self.infos().map(ArrayInfo::bytes).sum()
    }

    #[inline(always)]
    fn grid<T: Plain>(&self, array: Array<T>) -> &Grid<T::Grain, S::Layout> {
        assert!(array.owner == self.owner, "an array of another state");
        let grid = T::Grain::grid(&self.shared.slots[array.slot as usize].grid);
        grid.expect("the type of the cells is that of the array")
    }

    /// An array to read from, found once for many reads.
    ///
    /// # Panics
    /// If the array is one of another state.
    #[inline]
    pub fn array<T: Plain>(&self, array: Array<T>) -> ArrayRef<'_, T, S> {
        ArrayRef { grid: self.grid(array), turn: self.turn }
    }

    /// An array to write to, found once for many writes.
    ///
    /// # Panics
    /// If the array is one of another state.
    #[inline]
    pub fn array_mut<T: Plain>(&mut self, array: Array<T>) -> ArrayMut<'_, T, S> {
        self.view_mut(array)
    }

    /// The caller makes sure that no second view of the same array exists.
    #[inline(always)]
    pub(crate) fn view_mut<T: Plain>(&self, array: Array<T>) -> ArrayMut<'_, T, S> {
        ArrayMut { grid: self.grid(array), turn: self.turn }
    }

    /// Two to four arrays at the same time, each to be read and written on its own.
    ///
    /// ```
    /// # use stillpoint_state::{Arrays, Interleaved, schemes::Hourglass};
    /// # let mut builder = Arrays::<Hourglass<Interleaved>>::builder();
    /// let places = builder.array::<[f32; 3]>("places", 100);
    /// let speeds = builder.array::<[f32; 3]>("speeds", 100);
    /// # let mut arrays = builder.build()?;
    /// let (mut places, mut speeds) = arrays.arrays_mut((places, speeds));
    /// speeds.write(7, [1.0, 0.0, -1.0]);
    /// for mut place in places.iter_mut() {
    ///     let speed = speeds.read(place.index());
    ///     place.update(|place| (0..3).for_each(|n| place[n] += speed[n]));
    /// }
    /// assert_eq!(places.read(7), [1.0, 0.0, -1.0]);
    /// # Ok::<(), stillpoint_state::ArraysError>(())
    /// ```
    ///
    /// # Panics
    /// If one is named twice, or is one of another state.
    #[inline]
    pub fn arrays_mut<A: ArraySet<S>>(&mut self, arrays: A) -> A::Muts<'_> {
        arrays.borrow(self)
    }

    /// The newest value of a cell.
    ///
    /// # Panics
    /// If there is no such cell, or the array is one of another state.
    #[inline]
    pub fn read<T: Plain>(&self, array: Array<T>, index: usize) -> T {
        self.array(array).read(index)
    }

    /// Reads the newest bytes at an offset of a cell, little-endian.
    ///
    /// # Panics
    /// If there are no such cell or bytes, or the array is one of another state.
    #[inline]
    pub fn read_part<T: Plain>(
        &self,
        array: Array<T>,
        index: usize,
        offset: usize,
        bytes: &mut [u8],
    ) {
        self.array(array).read_part(index, offset, bytes);
    }

    /// The newest value of a field of a cell.
    ///
    /// # Panics
    /// If there is no such cell, or the array is one of another state.
    #[inline]
    pub fn read_field<T: Plain, F: FieldValue>(
        &self,
        array: Array<T>,
        index: usize,
        field: Field<T, F>,
    ) -> F {
        self.array(array).read_field(index, field)
    }

    /// Gives a cell a new value.
    ///
    /// # Panics
    /// If there is no such cell, or the array is one of another state.
    #[inline]
    pub fn write<T: Plain>(&mut self, array: Array<T>, index: usize, value: T) {
        self.array_mut(array).write(index, value);
    }

    /// Changes a cell: reads its value, calls `change` with it, and writes the changed value. If
    /// that panics, the cell keeps its value.
    ///
    /// # Panics
    /// If there is no such cell, or the array is one of another state.
    #[inline]
    pub fn update<T: Plain, R>(
        &mut self,
        array: Array<T>,
        index: usize,
        change: impl FnOnce(&mut T) -> R,
    ) -> R {
        self.array_mut(array).update(index, change)
    }

    /// All cells of an array, in order, each to be read and written.
    ///
    /// # Panics
    /// If the array is one of another state.
    pub fn iter_mut<T: Plain>(
        &mut self,
        array: Array<T>,
    ) -> impl ExactSizeIterator<Item = CellMut<'_, T, S>> {
        self.view_mut(array).into_cells()
    }

    /// Gives a part of a cell new bytes, little-endian; the rest of it stays.
    ///
    /// # Panics
    /// If there are no such cell or bytes, or the array is one of another state.
    #[inline]
    pub fn write_part<T: Plain>(
        &mut self,
        array: Array<T>,
        index: usize,
        offset: usize,
        bytes: &[u8],
    ) {
        self.array_mut(array).write_part(index, offset, bytes);
    }

    /// Gives a field of a cell a new value; the rest of it stays.
    ///
    /// # Panics
    /// If there is no such cell, or the array is one of another state.
    #[inline]
    pub fn write_field<T: Plain, F: FieldValue>(
        &mut self,
        array: Array<T>,
        index: usize,
        field: Field<T, F>,
        value: F,
    ) {
        self.array_mut(array).write_field(index, field, value);
    }

    /// Prefetches the beginning of a cell, with all copies and marks that a read or a write of the
    /// cell touches. The prefetch pays if a program knows its next cells some hundred nanoseconds
    /// ahead. An index without a cell is ignored.
    ///
    /// # Panics
    /// If the array is one of another state.
    #[inline(always)]
    pub fn prefetch<T: Plain>(&self, array: Array<T>, index: usize, intent: Intent) {
        self.array(array).prefetch(index, intent);
    }

    /// As [`prefetch`](Self::prefetch), for a field of a cell.
    ///
    /// # Panics
    /// If the array is one of another state.
    #[inline(always)]
    pub fn prefetch_field<T: Plain, F: FieldValue>(
        &self,
        array: Array<T>,
        index: usize,
        field: Field<T, F>,
        intent: Intent,
    ) {
        self.array(array).prefetch_field(index, field, intent);
    }

    /// The newest values of all cells, in order.
    ///
    /// # Panics
    /// If the array is one of another state.
    pub fn iter<T: Plain>(&self, array: Array<T>) -> impl ExactSizeIterator<Item = T> {
        self.array(array).into_values()
    }

    /// The newest values of all cells of an array, side by side in `room`. The caller keeps `room` from
    /// tick to tick, so that no view after the first one allocates.
    ///
    /// The slice is contiguous and typed. A program can hand it to code that knows only a pointer, a
    /// length and a type, such as the buffer protocol of Python. The slice also borrows the cells, so
    /// it lives for one step at most. Nobody writes a cell, and no tick ends, before it is given back.
    ///
    /// ```
    /// # use stillpoint_state::{Arrays, Interleaved, schemes::Hourglass};
    /// # let mut builder = Arrays::<Hourglass<Interleaved>>::builder();
    /// let heights = builder.array::<f32>("heights", 1_000);
    /// # let mut arrays = builder.build()?;
    /// let mut room = Vec::new();
    /// arrays.write(heights, 7, 1.5);
    /// assert_eq!(arrays.view(heights, &mut room).iter().sum::<f32>(), 1.5);
    /// arrays.end_tick();
    /// # Ok::<(), stillpoint_state::ArraysError>(())
    /// ```
    ///
    /// ```compile_fail,E0502
    /// # use stillpoint_state::{Arrays, Interleaved, schemes::Hourglass};
    /// # let mut builder = Arrays::<Hourglass<Interleaved>>::builder();
    /// # let heights = builder.array::<f32>("heights", 1_000);
    /// # let mut arrays = builder.build().unwrap();
    /// # let mut room = Vec::new();
    /// let view = arrays.view(heights, &mut room);
    /// arrays.end_tick(); // the view is still there
    /// drop(view.iter().sum::<f32>());
    /// ```
    ///
    /// # Panics
    /// If the array is one of another state.
    pub fn view<'a, T: Plain>(&'a self, array: Array<T>, room: &'a mut Vec<T>) -> &'a [T] {
        room.clear();
        room.extend(self.iter(array));
        room
    }

    /// Gives every cell its first value, in all copies, which also brings the memory in.
    ///
    /// # Errors
    /// Once a tick has ended: from then on cells are written.
    ///
    /// # Panics
    /// If the array is one of another state.
    pub fn fill<T: Plain>(
        &mut self,
        array: Array<T>,
        mut value: impl FnMut(usize) -> T,
    ) -> Result<(), ArraysError> {
        if self.ticks > 0 || self.captures > 0 {
            return Err(ArraysError::AlreadyTicking { ticks: self.ticks });
        }
        let grid = self.grid(array);
        for index in 0..grid.cells() {
            let value = value(index);
            for copy in 0..grid.copies() {
                value.store(grid.cell(copy, index));
            }
        }
        Ok(())
    }

    /// How the last capture ended; `None` while one is under way.
    pub fn last_capture(&self) -> Option<Last> {
        self.shared.gate.last()
    }

    /// Whether the next capture repeats the last one, as of that capture's tick.
    pub(crate) fn captures_again(&self, last: Last) -> bool {
        S::CONTENT == Content::Changes && last == Last::Failed
    }

    /// Makes the next capture, one of changes, hold all cells. No capture is under way. The changes
    /// that a failed last capture should have held are forgotten, since the next capture holds all
    /// cells.
    fn mark_all_changed(&mut self) {
        for slot in self.shared.slots.iter() {
            with_grid!(&slot.grid, grid => {
                let bytes = grid.cell_bytes();
                for index in 0..grid.cells() {
                    if !S::MARKS_LINES || bytes <= LINE_BYTES {
                        S::handle_write(grid, self.turn, index, Extent::Part, |_| {});
                        continue;
                    }
                    for at in (0..bytes).step_by(LINE_BYTES) {
                        S::handle_write_lines(grid, self.turn, index, at..at, |_| {});
                    }
                }
                S::image_is_durable(grid, self.turn);
            });
        }
    }

    /// For recovery: sets the number of ended ticks.
    pub(crate) fn resume_at(&mut self, ticks: u64) {
        self.ticks = ticks;
    }

    pub(crate) fn shared(&self) -> &Arc<Shared<S>> {
        &self.shared
    }
}

/// Arrays in memory: their [`Cells`], ticks, and captures.
///
/// A *tick* ends a step; a point of consistency is a tick at which a capture begins. The capture is
/// handed to another thread, which turns it into an image while the mutator goes on.
///
/// ```
/// use stillpoint_state::{Arrays, Interleaved, schemes::Hourglass};
/// let mut builder = Arrays::<Hourglass<Interleaved>>::builder();
/// let heights = builder.array::<f32>("heights", 1000);
/// let pages = builder.array::<[u8; 64]>("pages", 10);
/// let mut arrays = builder.build()?;
/// arrays.write(heights, 7, 1.5);
/// arrays.write_part(pages, 9, 60, b"tail");
/// arrays.end_tick();
/// let capture = arrays.point_of_consistency().expect("no capture is under way");
/// arrays.write(heights, 7, 2.5); // after the point of consistency
/// let mut image = vec![0; 4000];
/// capture.copy_over();
/// capture.write_to_stable_storage(0, 0..1000, &mut image)?;
/// assert_eq!(image[28..32], 1.5f32.to_le_bytes());
/// capture.durable();
/// assert_eq!(arrays.read(heights, 7), 2.5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Arrays<S: Scheme>(Cells<S>);

impl<S: Scheme> Deref for Arrays<S> {
    type Target = Cells<S>;
    #[inline]
    fn deref(&self) -> &Cells<S> {
        &self.0
    }
}

impl<S: Scheme> DerefMut for Arrays<S> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Cells<S> {
        &mut self.0
    }
}

impl<S: Scheme> Arrays<S> {
    /// Begins to say which arrays there will be.
    pub fn builder() -> ArraysBuilder<S> {
        static OWNERS: AtomicU32 = AtomicU32::new(0);
        // Relaxed: all that counts is that numbers differ.
        let owner = OWNERS.fetch_add(1, Relaxed);
        ArraysBuilder { owner, pages: PageSize::default(), arrays: Vec::new() }
    }

    /// Ends a step.
    pub fn end_tick(&mut self) {
        self.0.ticks += 1;
    }

    /// A point of consistency, between two steps. If no capture is under way, one begins here, and
    /// its image will hold the present values of the arrays. If the last capture was one of changes
    /// and failed, the new one repeats it. The image will then hold the values as of that capture's
    /// tick ([`Capture::tick`]). `None` while a capture is under way, or if the scheme takes none.
    pub fn point_of_consistency(&mut self) -> Option<Capture<S>> {
        let point = S::point_of_consistency(self)?;
        Some(Capture::new(self.shared.clone(), point))
    }

    /// The body of [`Scheme::point_of_consistency`].
    pub(crate) fn begin_capture_if_writer_done(&mut self) -> Option<PointOfConsistency<S>> {
        let cells = &mut self.0;
        if S::CONTENT == Content::Nothing {
            return None;
        }
        let last = cells.shared.gate.last()?;
        let captures_again = mutant!(cells.captures_again(last), ForgetsAFailedCapture => false);
        if !captures_again {
            if S::CONTENT == Content::Changes && last == Last::BaseLost {
                mutant!(cells.mark_all_changed(), ForgetsALostBase => ());
            }
            for slot in cells.shared.slots.iter() {
                with_grid!(&slot.grid, grid => S::prepare_for_next_checkpoint(grid, cells.turn));
            }
            cells.turn = cells.turn.swapped();
            cells.captures += 1;
            cells.capture_tick = cells.ticks;
        }
        cells.shared.gate.begin();
        let (turn, tick) = (cells.turn, cells.capture_tick);
        Some(PointOfConsistency { turn, tick, frozen: S::Frozen::freeze() })
    }
}

/// The atomics of records, for the derive macro.
#[doc(hidden)]
pub type RecordGrain = AtomicU64;
