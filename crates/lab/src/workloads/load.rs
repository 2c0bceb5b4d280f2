//! What runs on a state, tick by tick.

use stillpoint_state::{Actions, Array, ArraysBuilder, Cells, Plain, Scheme, StateBuilder};

/// Whoever can be told of arrays: the builder of a state, or of arrays in memory alone.
pub(crate) trait Declare {
    /// An array of `cells` cells under this name.
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

/// What runs on a state, tick by tick: it must do the same on every scheme, and the same again when
/// a tick is replayed.
pub(crate) trait Load: Sync {
    /// The arrays that it works on.
    type Arrays: Copy;

    /// Says which arrays there are.
    fn declare(&self, builder: &mut impl Declare) -> Self::Arrays;

    /// Gives the cells their first values. No tick has ended yet, so [`Cells::fill`] works.
    fn first<S: Scheme>(&self, arrays: Self::Arrays, cells: &mut Cells<S>);

    /// Runs a tick; the first has number 1. Returns a number that depends on all that it read.
    fn step<S: Scheme>(&self, arrays: Self::Arrays, cells: &mut Cells<S>, tick: u64) -> u64;

    /// Hands what is to be logged for a tick to `log`, action by action. Nothing, unless a load has
    /// actions.
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

    /// Where two states of this load differ first, in words; `None` if nowhere.
    fn first_difference<A: Scheme, B: Scheme>(
        &self,
        one: (Self::Arrays, &Cells<A>),
        other: (Self::Arrays, &Cells<B>),
    ) -> Option<String>;
}

/// Where one array differs first in two states: for [`Load::first_difference`].
pub(crate) fn difference<T: Plain + PartialEq, A: Scheme, B: Scheme>(
    name: &str,
    one: (Array<T>, &Cells<A>),
    other: (Array<T>, &Cells<B>),
) -> Option<String> {
    let (one, other) = (one.1.iter(one.0), other.1.iter(other.0));
    let cell = one.zip(other).position(|(one, other)| one != other)?;
    Some(format!("cell {cell} of {name}"))
}
