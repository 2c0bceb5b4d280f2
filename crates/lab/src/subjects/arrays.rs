//! State arrays as subjects: the schemes to measure, the baseline, and the check of a recovery. A
//! figure counts only if the recovered state equals the baseline's at the same tick.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;

use stillpoint_io::{RealClock, RealDisk, RealRng};
use stillpoint_mem::PageSize;
use stillpoint_state::registry::{LayoutRow, REGISTRY, Row};
use stillpoint_state::schemes::NoCheckpoints;
use stillpoint_state::{
    Arrays, Cells, Config, Content, Environment, Interleaved, Layout, Naive, Recovered, Scheme,
    State, StateError,
};

use crate::error::{LabError, LabResult};
use crate::measure::outcome::Recovery;
use crate::workloads::load::Load;

/// Processes that run each experiment on state arrays, one after the other. A process has one
/// placement in memory, which a median over several does not rest on.
pub(crate) const PROCESSES: usize = 5;

/// The scheme of the baseline.
pub(crate) type Raw = NoCheckpoints<Naive>;

/// The first layout of each scheme that takes images and can run on this system, in the registry's
/// order.
pub(crate) fn schemes() -> Vec<&'static str> {
    let takes_images = |row: &&Row| row.content != Content::Nothing && row.check_system().is_ok();
    REGISTRY.iter().filter(takes_images).map(|row| row.layouts[0].name).collect()
}

/// The reasons why schemes are missing from [`schemes`].
pub(crate) fn refusals() -> Vec<String> {
    let refusal = |row: &Row| {
        let error = row.check_system().err()?;
        Some(format!("{} is left out: {error}", row.layouts[0].name))
    };
    REGISTRY.iter().filter_map(refusal).collect()
}

/// The schemes of [`schemes`] that keep copies of their own: all but fork.
pub(crate) fn schemes_with_copies() -> Vec<&'static str> {
    let has_copies = |name: &&str| {
        let row = REGISTRY.find(name).expect("a name of the registry");
        row.needs(4).copies > 1
    };
    schemes().into_iter().filter(has_copies).collect()
}

/// The further layouts of the schemes of SIGMOD 2011.
pub(crate) fn further_layouts() -> Vec<&'static str> {
    further().map(|layout| layout.name).collect()
}

/// Those of [`further_layouts`] that place the copies of a cell side by side.
pub(crate) fn further_interleaved() -> Vec<&'static str> {
    let interleaved = further().filter(|layout| layout.layout == Interleaved::NAME);
    interleaved.map(|layout| layout.name).collect()
}

fn further() -> impl Iterator<Item = &'static LayoutRow> {
    REGISTRY.iter().filter(|row| is_of_2011(row)).flat_map(|row| &row.layouts[1..])
}

fn is_of_2011(row: &Row) -> bool {
    row.source.starts_with("SIGMOD 2011")
}

/// Whether the scheme or layout of this name comes from SIGMOD 2011.
pub(crate) fn is_from_2011(name: &str) -> bool {
    REGISTRY.find(name).is_ok_and(is_of_2011)
}

/// Whether the scheme or layout of this name comes from one of the papers.
pub(crate) fn is_from_a_paper(name: &str) -> bool {
    REGISTRY.find(name).is_ok_and(|row| is_of_2011(row) || row.source.starts_with("ICDE 2018"))
}

/// Whether the tick at which a capture begins costs the same for every size of the state.
pub(crate) fn has_constant_tick(name: &str) -> bool {
    REGISTRY.find(name).is_ok_and(|row| row.has_constant_tick)
}

/// The schemes of [`schemes`] whose tick costs the same for every size of the state.
pub(crate) fn flat_schemes() -> Vec<&'static str> {
    schemes().into_iter().filter(|name| has_constant_tick(name)).collect()
}

/// An error about a scheme.
pub(crate) fn failed(scheme: &str, reason: impl ToString) -> LabError {
    LabError::Engine { engine: format!("state scheme {scheme}"), reason: reason.to_string() }
}

/// The load on arrays that nothing captures.
///
/// # Errors
/// When the memory cannot be had.
pub(crate) fn raw<L: Load>(load: &L, pages: PageSize) -> LabResult<(Arrays<Raw>, L::Arrays)> {
    let mut builder = Arrays::<Raw>::builder();
    builder.pages(pages);
    let arrays = load.declare(&mut builder);
    let mut cells = builder.build().map_err(|e| failed("none", e))?;
    // The baseline stays the loop that nothing captures, also when fork is measured next to it.
    cells.keep_from_children();
    load.first(arrays, &mut cells);
    Ok((cells, arrays))
}

/// Opens the load's state in a directory, or creates it.
///
/// # Errors
/// A [`StateError`] of the state.
pub(crate) fn open<S: Scheme, L: Load>(
    load: &L,
    dir: &Path,
    pages: PageSize,
    config: &Config,
) -> Result<(State<S>, L::Arrays, Recovered), StateError> {
    let mut builder = State::<S>::builder();
    builder.pages(pages);
    let arrays = load.declare(&mut builder);
    let environment = Environment {
        disk: Arc::new(RealDisk::new(dir)?),
        clock: Arc::new(RealClock),
        rng: Arc::new(RealRng),
    };
    let first = |cells: &mut Cells<S>| load.first(arrays, cells);
    let (state, recovered) = builder.open(environment, config, first, |cells, tick, actions| {
        load.replay(arrays, cells, tick, actions);
    })?;
    Ok((state, arrays, recovered))
}

/// Opens a state whose process has ended, and compares it with the baseline at the recovered tick.
///
/// # Errors
/// When the state cannot be recovered, is at none of the given ticks, or differs.
pub(crate) fn recovers<S: Scheme, L: Load>(
    load: &L,
    name: &str,
    dir: &Path,
    pages: PageSize,
    config: &Config,
    ticks: RangeInclusive<u64>,
) -> LabResult<Recovery> {
    let opened = open::<S, L>(load, dir, pages, config).map_err(|e| failed(name, e))?;
    let (state, arrays, recovered) = opened;
    let tick = state.ticks();
    if !ticks.contains(&tick) {
        let durable = ticks.start();
        return Err(failed(name, format!("tick {durable} was durable, {tick} came back")));
    }
    let (mut raw, raw_arrays) = raw(load, pages)?;
    for tick in 1..=tick {
        load.step(raw_arrays, &mut raw, tick);
        raw.end_tick();
    }
    if let Some(place) = load.first_difference((arrays, &state), (raw_arrays, &raw)) {
        let reason = format!("what was recovered as of tick {tick} differs from the load: {place}");
        return Err(failed(name, reason));
    }
    Ok(Recovery {
        tick,
        image_bytes: recovered.image_bytes,
        image_s: recovered.image_ns as f64 / 1e9,
        replayed_ticks: recovered.replayed_ticks,
        replay_s: recovered.replay_ns as f64 / 1e9,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_schemes_come_from_the_registry() {
        let of_papers = |names: Vec<&'static str>| -> Vec<&'static str> {
            names.into_iter().filter(|name| *name != "uffd-wp").collect()
        };
        assert_eq!(of_papers(schemes()), ["ns", "bacou", "fork", "bazz", "ipp", "hg", "pb"]);
        assert_eq!(of_papers(schemes_with_copies()), ["ns", "bacou", "bazz", "ipp", "hg", "pb"]);
        assert_eq!(refusals().is_empty(), schemes().contains(&"uffd-wp"));
        assert_eq!(further_layouts(), ["cou", "nzz", "izz", "pzz", "npp"]);
        assert_eq!(further_interleaved(), ["izz"]);
        assert_eq!(flat_schemes(), ["ipp", "hg", "pb"]);
        let from = |is_from: fn(&str) -> bool| -> Vec<&'static str> {
            REGISTRY.iter().map(|row| row.layouts[0].name).filter(|name| is_from(name)).collect()
        };
        assert_eq!(from(is_from_2011), ["none", "ns", "bacou", "bazz", "ipp"]);
        assert_eq!(of_papers(from(is_from_a_paper)).len(), REGISTRY.len() - 1);
        assert!(!is_from_a_paper("uffd-wp") && !is_from_a_paper("izp"));
    }
}
