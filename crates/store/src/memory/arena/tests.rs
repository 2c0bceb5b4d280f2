use super::*;
use std::collections::HashSet;

fn new(limit_bytes: usize) -> Arena {
    Arena::new(limit_bytes, &Arc::default(), ReadSections::new(2)).expect("address space")
}

/// Bytes of free cells, and of slabs that are empty or free in groups that are held, counted one by one.
fn held_free(arena: &Arena) -> usize {
    let mut pools = arena.pools.lock();
    let held = arena.groups_held.load(Relaxed) * GROUP_BYTES;
    let used = |index: usize| {
        let slab = arena.slab(index)?;
        let key = PoolKey::of(arena.description(index));
        let free = pools.space.cells(index).free(slab.cells) * key.cell_bytes();
        Some(width_of(key.class) * SLAB_BYTES - free)
    };
    held - (SLABS_PER_GROUP..arena.slabs()).filter_map(used).sum::<usize>()
}

fn check_spare(arena: &Arena) {
    let spare = arena.limit_bytes() - arena.held_bytes() + held_free(arena);
    assert_eq!(arena.spare_bytes(), spare);
}

#[test]
fn cells_are_distinct_and_come_back() {
    let arena = new(64 << 20);
    let mut cache = CellCache::default();
    let mut seen = HashSet::new();
    let per_group = GROUP_BYTES / 128;
    for _ in 0..3 * per_group {
        let number = cache.allocate(&arena, 5, Kind::Record, 120).expect("memory");
        assert!(seen.insert(number));
        assert_eq!(arena.cell(number).len(), 16);
    }
    assert_eq!(arena.held_bytes(), 3 * GROUP_BYTES);
    check_spare(&arena);
    for &number in &seen {
        cache.free(&arena, number);
    }
    for _ in 0..3 * per_group {
        let number = cache.allocate(&arena, 5, Kind::Record, 128).expect("memory");
        assert!(seen.contains(&number));
    }
    assert_eq!(arena.held_bytes(), 3 * GROUP_BYTES, "freed cells are used again");
    check_spare(&arena);
    arena.drop_owner(5);
    assert_eq!((arena.held_bytes(), arena.spare_bytes()), (0, 64 << 20));
}

/// Others hold so much by now that groups are held beyond the limit. Their free slabs serve all the same.
#[test]
fn free_slabs_serve_though_groups_are_held_beyond_the_limit() {
    const LIMIT: usize = 16 * GROUP_BYTES;
    let arena = new(LIMIT);
    let mut cache = CellCache::default();
    let cells = std::iter::from_fn(|| cache.allocate(&arena, 5, Kind::Record, 100).ok());
    // A cell of each group stays, so that no group goes to the system.
    let mut groups = HashSet::new();
    let numbers: Vec<u64> = cells.collect();
    for number in numbers {
        if !groups.insert(number / (GROUP_BYTES / UNIT_BYTES) as u64) {
            cache.free(&arena, number);
        }
    }
    cache.drain(&arena);
    arena.trim();
    assert_eq!((groups.len(), arena.held_bytes()), (16, LIMIT));
    arena.set_other_bytes(GROUP_BYTES);
    let spare = arena.spare_bytes();
    assert!(spare > 13 * GROUP_BYTES, "{spare}");
    let (mut others, before) = (0, arena.held_bytes());
    while cache.allocate(&arena, 5, Kind::Record, 1_000).is_ok() {
        others += 1;
    }
    assert!(others * 1_000 > spare * 9 / 10, "{others} cells of 1,000 bytes, {spare} bytes spare");
    assert_eq!(arena.held_bytes(), before, "no group was taken");
    assert!(arena.given_out_bytes() <= LIMIT);
    // What is given out is the measure.
    arena.set_other_bytes(8 * GROUP_BYTES);
    assert!(cache.allocate(&arena, 5, Kind::Block, 1_000).is_err());
}

/// After the limit was lowered, each writer that takes a slab gives a few groups back, and no more: others wait for
/// the pools meanwhile.
#[test]
fn a_writer_beyond_the_limit_returns_a_few_groups() {
    const GROUPS: usize = 40;
    let arena = new(2 * GROUPS * GROUP_BYTES);
    let mut cache = CellCache::default();
    let one = |_| cache.allocate(&arena, 5, Kind::Record, 120).expect("memory");
    let numbers: Vec<u64> = (0..GROUPS * (GROUP_BYTES / 128)).map(one).collect();
    numbers.iter().for_each(|&number| cache.free(&arena, number));
    cache.drain(&arena);
    arena.set_limit_bytes(4 * GROUP_BYTES);
    for (round, bytes) in (1..).zip([100, 300, 600, 900]) {
        cache.allocate(&arena, 6, Kind::Block, bytes).expect("memory");
        let held = GROUPS - round * RELEASED_AT_ONCE;
        assert_eq!(arena.held_bytes(), held * GROUP_BYTES, "round {round}");
    }
}

/// A few cells of each size take a few groups.
#[test]
fn few_cells_take_little_memory() {
    let arena = new(64 << 20);
    let mut cache = CellCache::default();
    for kind in [Kind::Record, Kind::Block] {
        for bytes in (32..4_096).step_by(100) {
            cache.allocate(&arena, 5, kind, bytes).expect("memory");
        }
    }
    assert!(arena.held_bytes() <= 4 * GROUP_BYTES, "{} bytes", arena.held_bytes());
    for bytes in [5_000, 10_000, 20_000, 40_000, 65_536] {
        cache.allocate(&arena, 5, Kind::Block, bytes).expect("memory");
    }
    assert!(arena.held_bytes() <= 6 * GROUP_BYTES, "{} bytes", arena.held_bytes());
    check_spare(&arena);
}

/// Slabs whose cells are all free serve other sizes and large values, within the limit.
#[test]
fn an_empty_slab_serves_any_size() {
    let arena = new(4 * GROUP_BYTES);
    let mut cache = CellCache::default();
    for (kind, bytes) in
        [(Kind::Record, 120), (Kind::Record, 1_000), (Kind::Block, 60_000), (Kind::Record, 32)]
    {
        let mut numbers = Vec::new();
        while let Ok(number) = cache.allocate(&arena, 5, kind, bytes) {
            numbers.push(number);
        }
        assert!(numbers.len() >= 4 * (GROUP_BYTES / (bytes + bytes / 6)), "{bytes}");
        // One cell stays until the end, so only its slab is not free.
        for &number in &numbers[1..] {
            cache.free(&arena, number);
        }
        cache.drain(&arena);
        check_spare(&arena);
        assert!(arena.has_record_cell(numbers[0], 5) == (kind == Kind::Record));
        let other = cache.allocate(&arena, 5, Kind::Block, 5_000).expect("empty slabs");
        cache.free(&arena, other);
        cache.free(&arena, numbers[0]);
        cache.drain(&arena);
        assert!(!arena.has_record_cell(numbers[0], 5));
        check_spare(&arena);
    }
    assert_eq!(arena.held_bytes(), 4 * GROUP_BYTES, "memory that is kept counts");
    for _ in 0..2 * TRIMS_KEPT {
        arena.trim();
    }
    assert_eq!((arena.held_bytes(), arena.spare_bytes()), (0, 4 * GROUP_BYTES));
}

/// Cells come from the fullest slab, so that a nearly empty one becomes empty.
#[test]
fn the_fullest_slab_gives_its_cells_first() {
    let arena = new(64 << 20);
    let mut cache = CellCache::default();
    let allocate = |cache: &mut CellCache, count| -> Vec<u64> {
        let one = |_| cache.allocate(&arena, 5, Kind::Record, 1_000).expect("memory");
        (0..count).map(one).collect()
    };
    let numbers = allocate(&mut cache, 4_000);
    let slab_of = |number: &u64| number / UNITS_PER_SLAB;
    let first = slab_of(&numbers[0]);
    // The first slab keeps one cell. Of the others, every fourth cell goes.
    let (keeps, mut of_first) = (numbers[0], 0);
    for (i, number) in numbers.iter().enumerate() {
        of_first += usize::from(slab_of(number) == first);
        if *number != keeps && (slab_of(number) == first || i % 4 == 0) {
            cache.free(&arena, *number);
        }
    }
    cache.drain(&arena);
    let again = allocate(&mut cache, 500);
    assert!(of_first > 10 && again.iter().all(|number| slab_of(number) != first));
}

/// While a read section may still reach its cells, an empty slab serves only cells of the same
/// kind and size.
#[test]
fn a_read_section_keeps_an_empty_slab_as_it_was() {
    let read_sections = ReadSections::new(2);
    let arena = Arena::new(GROUP_BYTES, &Arc::default(), read_sections.clone()).expect("space");
    let mut cache = CellCache::default();
    let all: Vec<u64> =
        std::iter::from_fn(|| cache.allocate(&arena, 5, Kind::Record, 128).ok()).collect();
    let number = all[0];
    arena.cell(number)[3].store(7, Relaxed);
    read_sections.enter(0);
    all.iter().for_each(|&number| cache.free(&arena, number));
    cache.drain(&arena);
    for bytes in [1_000, 50_000] {
        assert!(cache.allocate(&arena, 5, Kind::Block, bytes).is_err(), "somebody may look at it");
    }
    for _ in 0..2 * TRIMS_KEPT {
        arena.trim();
    }
    assert_eq!(arena.cell(number)[3].load(Relaxed), 7);
    let again = cache.allocate(&arena, 5, Kind::Record, 128).expect("the same kind and size");
    cache.free(&arena, again);
    cache.drain(&arena);
    read_sections.exit(0);
    let block = cache.allocate(&arena, 5, Kind::Block, 50_000).expect("nobody looks at it");
    assert!(arena.cell(block).len() * 8 >= 50_000);
    check_spare(&arena);
}

/// Records in a slab that had other cells before begin as zeros, and those of a wide slab, too.
#[test]
fn nothing_of_earlier_cells_is_left_in_a_slab_of_records() {
    let arena = new(2 * GROUP_BYTES);
    let mut cache = CellCache::default();
    let sizes = [120, 5_000, 48, 3_000, 6_000, 32];
    for bytes in sizes {
        let numbers: Vec<u64> =
            std::iter::from_fn(|| cache.allocate(&arena, 5, Kind::Record, bytes).ok()).collect();
        for &number in &numbers {
            for word in arena.cell(number) {
                assert_eq!(word.swap(u64::MAX, Relaxed), 0, "cells of {bytes}");
            }
        }
        numbers.iter().for_each(|&number| cache.free(&arena, number));
        cache.drain(&arena);
        check_spare(&arena);
    }
}

#[test]
fn access_marks_belong_to_cells() {
    let space = Arc::default();
    let arena = Arena::new(64 << 20, &space, ReadSections::new(1)).expect("address space");
    let mut cache = CellCache::default();
    let allocate = |cache: &mut CellCache, count: usize| -> Vec<u64> {
        let sizes = [32, 120, 2_000, 6_000].into_iter().cycle().take(count);
        let one = |bytes| cache.allocate(&arena, 5, Kind::Record, bytes).expect("memory");
        sizes.map(one).collect()
    };
    let mut numbers = allocate(&mut cache, 300);
    arena.set_access(numbers[0], 7);
    assert_eq!((arena.access(numbers[0]), arena.access_bytes()), (None, 0), "nobody has asked");
    arena.keep_accesses(&space).expect("address space");
    arena.keep_accesses(&space).expect("it is done");
    // Slabs that are taken later have marks, too.
    numbers.extend(allocate(&mut cache, 20_000));
    for (mark, &number) in (1..).zip(&numbers) {
        arena.set_access(number, mark);
    }
    for (mark, &number) in (1u32..).zip(&numbers) {
        assert_eq!(arena.access(number), Some(mark));
    }
    let counted = || -> usize {
        let slabs = (1..arena.slabs()).filter_map(|index| arena.slab(index));
        slabs.filter(|slab| slab.kind == Kind::Record as u8).map(|slab| slab.cells() * 4).sum()
    };
    assert!(arena.access_bytes() >= 4 * numbers.len());
    assert_eq!(arena.access_bytes(), counted());
    for number in [0, 1, u64::MAX, 1 << 35] {
        let _ = arena.access(number);
        arena.set_access(number, 1);
    }
    numbers.drain(..10_000).for_each(|number| cache.free(&arena, number));
    cache.drain(&arena);
    assert_eq!(arena.access_bytes(), counted());
    arena.drop_owner(5);
    assert_eq!((arena.access_bytes(), counted()), (0, 0));
}

#[test]
fn the_limit_is_a_typed_error_and_invented_numbers_are_harmless() {
    let arena = new(2 * GROUP_BYTES);
    let mut cache = CellCache::default();
    let cells = std::iter::from_fn(|| cache.allocate(&arena, 1, Kind::Block, 65_536).ok());
    assert_eq!(cells.count(), 2 * (GROUP_BYTES / 65_536));
    let error = cache.allocate(&arena, 1, Kind::Block, 32).expect_err("full");
    assert_eq!(error.limit, 2 * GROUP_BYTES);
    for number in [0, 1, u64::MAX, 1 << 35, UNITS_PER_SLAB - 1] {
        let _ = arena.cell(number);
        arena.prefetch(number);
    }
}
