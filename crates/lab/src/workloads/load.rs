//! A load of a state, tick by tick.

use stillpoint_state::{Actions, Array, ArraysBuilder, Cells, Plain, Scheme, StateBuilder};

/// A builder that takes declarations of arrays: of a state, or of arrays in memory alone.
pub(crate) trait Declare {
    /// Declares an array of `cells` cells with this name.
    fn array<T: Plain>(&mut self, name: &str, cells: usize) -> Array<T>;
}

impl<S: Scheme> Declare for ArraysBuilder<S> {
    fn array<T: Plain>(&mut self, name: &str, cells: usize) -> Array<T> {
        self.array(name, cells)
    }
}

impl<S: Scheme> Declare for StateBuilder<S> {
    fn array<T: Plain>(&mut self, name: &str, cells: usize) -> Array<T> {
        self.array(name, cells)
    }
}

/// A load that runs on a state, tick by tick. A load must do the same on every scheme, and the same
/// again in a replay.
pub(crate) trait Load: Sync {
    /// The arrays of the load.
    type Arrays: Copy;

    /// Declares the arrays.
    fn declare(&self, builder: &mut impl Declare) -> Self::Arrays;

    /// Gives the cells their first values. No tick has ended yet, so [`Cells::fill`] works.
    fn first<S: Scheme>(&self, arrays: Self::Arrays, cells: &mut Cells<S>);

    /// Runs a tick. The first tick has number 1. Returns a checksum of all reads.
    fn step<S: Scheme>(&self, arrays: Self::Arrays, cells: &mut Cells<S>, tick: u64) -> u64;

    /// Passes the actions of a tick to `log`, one by one. A load without actions passes none.
    fn actions(&self, tick: u64, log: &mut dyn FnMut(&[u8])) {
        let _ = (tick, log);
    }

    /// Runs a tick again, with the actions that were logged for it.
    fn replay<S: Scheme>(
        &self,
        arrays: Self::Arrays,
        cells: &mut Cells<S>,
        tick: u64,
        actions: Actions<'_>,
    ) {
        let _ = actions;
        self.step(arrays, cells, tick);
    }

    /// The first difference of two states of this load, in words. `None` if they are equal.
    fn first_difference<A: Scheme, B: Scheme>(
        &self,
        one: (Self::Arrays, &Cells<A>),
        other: (Self::Arrays, &Cells<B>),
    ) -> Option<String>;
}

/// The first difference of one array in two states, for [`Load::first_difference`].
pub(crate) fn difference<T: Plain + PartialEq, A: Scheme, B: Scheme>(
    name: &str,
    one: (Array<T>, &Cells<A>),
    other: (Array<T>, &Cells<B>),
) -> Option<String> {
    let (one, other) = (one.1.iter(one.0), other.1.iter(other.0));
    let cell = one.zip(other).position(|(one, other)| one != other)?;
    Some(format!("cell {cell} of {name}"))
}
