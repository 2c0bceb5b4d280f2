//! Random steps with crashes, faults and full disks.

use stillpoint_format::pages::PageId;
use stillpoint_io::{Call, Fault, FaultPlan, Lasts, Rng, SeededRng, seeded_rounds};

use super::world::World;
use crate::backing::Purpose;
use crate::pages::PagesError;

/// Most pages of a world.
const PAGES_MAX: usize = 40;

/// One random step.
fn step(world: &mut World, rng: &SeededRng) -> Result<(), PagesError> {
    let pages: Vec<u64> = world.pool.pages.lock().keys().copied().collect();
    let any = |rng: &SeededRng| pages[rng.below(pages.len() as u64) as usize];
    match rng.below(20) {
        0..=3 if pages.len() < PAGES_MAX => drop(world.allocate()?),
        4 if !pages.contains(&3) => world.make(3),
        5 if !pages.is_empty() => {
            let page = any(rng);
            if page >= PageId::FIRST.0 {
                world.free(page);
            }
        }
        6..=10 if !pages.is_empty() => {
            for _ in 0..rng.below(8) {
                let page = any(rng);
                world.change(page);
            }
        }
        11..=14 if !pages.is_empty() => {
            let frames: Vec<u32> = (0..rng.below(12)).map(|_| any(rng) as u32).collect();
            let busy = frames.iter().filter(|_| rng.below(4) == 0).map(|frame| u64::from(*frame));
            *world.pool.busy.lock() = busy.collect();
            let written = world.write(&frames, Purpose::Eviction);
            world.pool.busy.lock().clear();
            written?;
        }
        15 if world.open.is_none() => {
            world.write(&world.dirty(), Purpose::Checkpoint)?;
            world.begin_round()?;
        }
        16 if world.open.is_none() => world.begin_round()?,
        17 | 18 => world.end_round(rng.below(4) > 0)?,
        _ => world.check()?,
    }
    Ok(())
}

/// Steps until the machine dies, or for a while. Then a crash.
pub(super) fn live_once(world: &mut World, rng: &SeededRng) {
    if rng.below(3) > 0 {
        world.disk.fail_at(1 + rng.below(120), Fault::PowerLoss);
    }
    for _ in 0..rng.below(60) {
        match step(world, rng) {
            Ok(()) => {}
            Err(_) if world.disk.is_dead() => break,
            Err(error) => panic!("{error}"),
        }
    }
    world.crash(rng.next_u64()).expect("a crash leaves a store");
}

#[test]
pub(super) fn what_counts_survives_crashes_at_any_call() {
    seeded_rounds(60, |seed| {
        let rng = SeededRng::new(seed);
        let mut world = World::new(seed);
        for _ in 0..6 {
            live_once(&mut world, &rng);
        }
    });
}

#[test]
pub(super) fn a_failed_write_or_flush_is_final() {
    seeded_rounds(60, |seed| {
        let rng = SeededRng::new(seed);
        let mut world = World::new(seed);
        while world.pool.pages.lock().len() < 10 {
            step(&mut world, &rng).expect("no fault yet");
        }
        world.write(&world.dirty(), Purpose::Eviction).expect("no fault yet");
        let call = if rng.below(2) == 0 { Call::Write } else { Call::Sync };
        let plan = |nth| FaultPlan {
            calls: vec![call],
            nth,
            fault: Fault::InputOutput,
            lasts: Lasts::Once,
        };
        let page = *world.pool.pages.lock().keys().next().expect("a page");
        world.change(page);
        world.disk.inject(plan(1));
        let written = world.write(&[page as u32], Purpose::Eviction);
        if world.open.is_some() {
            world.end_round(false).expect("nothing is written");
        }
        let failed = match call {
            Call::Write => written.expect_err("a fault"),
            _ => written.map_or_else(Err, |_| world.begin_round()).expect_err("a fault"),
        };
        assert!(failed.to_string().contains("/sim/pages/data"), "{failed}");
        let refused = world.write(&[page as u32], Purpose::Checkpoint).expect_err("final");
        assert!(matches!(refused, PagesError::Failed(_)), "{refused}");
        assert!(matches!(world.store.allocate_page(), Err(PagesError::Failed(_))));
        assert!(matches!(world.begin_round(), Err(PagesError::Failed(_))));
        world.check().expect("reads go on");
        world.crash(rng.next_u64()).expect("a crash leaves a store");
    });
}

#[test]
fn a_failed_read_is_an_error_to_its_caller_alone() {
    let mut world = World::new(1);
    let page = world.allocate().expect("a page");
    world.write(&world.dirty(), Purpose::Eviction).expect("written");
    let calls = vec![Call::Read];
    let fault = Fault::InputOutput;
    world.disk.inject(FaultPlan { calls, nth: 1, fault, lasts: Lasts::Once });
    let failed = world.read(page).expect_err("a fault");
    assert!(failed.to_string().contains("/sim/pages/data"), "{failed}");
    world.read(page).expect("the next one reads");
    let missing = world.read(99).expect_err("no such page");
    assert!(matches!(missing, PagesError::NoSuchPage { .. }), "{missing}");
}

/// The replay of a start changes pages and evicts them, round after round, since its pool is small. No round of
/// the map ends before the machine stops. The next start needs the pages as they were.
#[test]
pub(super) fn a_start_that_stops_again_has_moved_nothing_that_counts() {
    let mut world = World::new(1);
    for _ in 0..16 {
        world.allocate().expect("room");
    }
    world.write(&world.dirty(), Purpose::Checkpoint).expect("written");
    world.begin_round().expect("room");
    world.end_round(true).expect("counts");
    for seed in 1..=3 {
        world.crash(seed).expect("a crash leaves a store");
        let pages: Vec<u64> = world.pool.pages.lock().keys().copied().collect();
        assert_eq!(pages.len(), 16);
        for _ in 0..6 {
            pages.iter().for_each(|page| world.change(*page));
            world.write(&world.dirty(), Purpose::GoOn).expect("written");
        }
        // A round that was written and does not count changes nothing, either.
        if seed == 2 {
            world.begin_round().expect("room");
        }
    }
    world.crash(4).expect("a crash leaves a store");
}

#[test]
fn a_page_may_be_freed_before_it_was_ever_placed() {
    let mut world = World::new(1);
    let page = world.allocate().expect("room");
    world.free(page);
    for _ in 0..3 {
        world.begin_round().expect("room");
        world.end_round(true).expect("counts");
    }
    assert_eq!(world.allocate().expect("room"), page, "its number is free again");
}

/// On a full disk evictions are refused, a checkpoint is not, and then there is room again.
#[test]
pub(super) fn a_full_disk_refuses_evictions_and_never_a_checkpoint() {
    let mut world = World::new(1);
    world.disk.set_capacity(Some(4 << 20));
    let full = loop {
        match world.allocate() {
            Ok(_) => world.write(&world.dirty(), Purpose::Eviction).map(drop).unwrap_or(()),
            Err(error) => break error,
        }
    };
    assert!(full.is_full() && full.to_string().contains("no space left"), "{full}");
    world.write(&world.dirty(), Purpose::Checkpoint).expect("slots are held back");
    world.begin_round().expect("the map has room");
    world.end_round(true).expect("counts");
    let pages: Vec<u64> = world.pool.pages.lock().keys().copied().take(6).collect();
    let mut refused = 0;
    for _ in 0..10 {
        pages.iter().for_each(|page| world.change(*page));
        match world.write(&world.dirty(), Purpose::Eviction) {
            Ok(_) => {}
            Err(error) if error.is_full() => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused > 0, "the disk is full");
    let others: Vec<u64> = world.pool.pages.lock().keys().copied().skip(6).take(40).collect();
    let refused = others.into_iter().find(|&page| {
        world.change(page);
        world.write(&[page as u32], Purpose::Eviction).is_err()
    });
    let refused = refused.expect("each eviction takes a slot");
    world.write(&[refused as u32], Purpose::GoOn).expect("slots are left to rollbacks");
    for _ in 0..5 {
        pages.iter().for_each(|page| world.change(*page));
        world.write(&world.dirty(), Purpose::Checkpoint).expect("slots are held back");
        world.begin_round().expect("the map has room");
        world.end_round(true).expect("counts");
    }
    world.check().expect("reads go on");
    world.disk.set_capacity(None);
    for _ in 0..20 {
        world.allocate().expect("there is space again");
    }
}
