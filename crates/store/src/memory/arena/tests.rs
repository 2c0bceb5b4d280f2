use super::*;
use std::collections::HashSet;

#[test]
fn cells_are_distinct_and_come_back() {
    let arena = Arena::new(64 << 20, &Arc::default(), ReadSections::new(1)).expect("address space");
    let mut cache = CellCache::default();
    let mut seen = HashSet::new();
    let per_slab = SLAB_BYTES / 128;
    for _ in 0..3 * per_slab {
        let number = cache.allocate(&arena, 5, Kind::Record, 120).expect("memory");
        assert!(seen.insert(number));
        assert_eq!(arena.cell(number).len(), 16);
    }
    assert_eq!(arena.held_bytes(), 3 * SLAB_BYTES);
    for &number in &seen {
        cache.free(&arena, number);
    }
    for _ in 0..3 * per_slab {
        let number = cache.allocate(&arena, 5, Kind::Record, 128).expect("memory");
        assert!(seen.contains(&number));
    }
    assert_eq!(arena.held_bytes(), 3 * SLAB_BYTES, "freed cells are used again");
    assert_eq!(spare(&arena), held_free(&arena) + (64 << 20) - 3 * SLAB_BYTES);
    arena.drop_owner(5);
    assert_eq!((arena.held_bytes(), arena.spare_bytes()), (0, 64 << 20));
}

fn spare(arena: &Arena) -> usize {
    arena.spare_bytes()
}

/// Bytes of free cells and of empty slabs, counted one by one.
fn held_free(arena: &Arena) -> usize {
    let pools = arena.pools.lock();
    let slabs = 1..arena.slab_count();
    let of = |index: usize| {
        let description = arena.slabs[index].load(Relaxed);
        match Slab::described(index, description) {
            Some(slab) => pools.cells[index].free(&slab) * slab.cell_units * UNIT_BYTES,
            None if description == 0 => 0,
            None => SLAB_BYTES,
        }
    };
    slabs.map(of).sum()
}

/// Slabs whose cells are all free serve other sizes and large values, within the limit.
#[test]
fn an_empty_slab_serves_any_size() {
    let read_sections = ReadSections::new(2);
    let arena =
        Arena::new(4 * SLAB_BYTES, &Arc::default(), read_sections.clone()).expect("address space");
    let mut cache = CellCache::default();
    for (kind, bytes) in
        [(Kind::Record, 120), (Kind::Record, 1_000), (Kind::Block, 60_000), (Kind::Record, 32)]
    {
        let mut numbers = Vec::new();
        while let Ok(number) = cache.allocate(&arena, 5, kind, bytes) {
            numbers.push(number);
        }
        assert!(numbers.len() >= 4 * (SLAB_BYTES / (bytes + bytes / 4)), "{bytes}");
        // One cell stays until the end, so only its slab is not free.
        for &number in &numbers[1..] {
            cache.free(&arena, number);
        }
        cache.drain(&arena);
        assert!(arena.has_record_cell(numbers[0], 5) == (kind == Kind::Record));
        let other = cache.allocate(&arena, 5, Kind::Block, 5_000).expect("empty slabs");
        cache.free(&arena, other);
        cache.free(&arena, numbers[0]);
        cache.drain(&arena);
        assert!(!arena.has_record_cell(numbers[0], 5));
        assert_eq!(spare(&arena), held_free(&arena), "{bytes}");
    }
    assert_eq!(arena.held_bytes(), 4 * SLAB_BYTES, "memory that is kept counts");
    for _ in 0..2 * TRIMS_KEPT {
        arena.trim();
    }
    assert_eq!(arena.held_bytes(), 0);
}

/// While a read section may still reach its cells, an empty slab serves only cells of the same
/// kind and size.
#[test]
fn a_read_section_keeps_an_empty_slab_as_it_was() {
    let read_sections = ReadSections::new(2);
    let arena = Arena::new(SLAB_BYTES, &Arc::default(), read_sections.clone()).expect("space");
    let mut cache = CellCache::default();
    let number = cache.allocate(&arena, 5, Kind::Record, 128).expect("memory");
    arena.cell(number)[3].store(7, Relaxed);
    read_sections.enter(0);
    cache.free(&arena, number);
    cache.drain(&arena);
    assert!(cache.allocate(&arena, 5, Kind::Block, 1_000).is_err(), "somebody may look at it");
    for _ in 0..2 * TRIMS_KEPT {
        arena.trim();
    }
    assert_eq!(arena.cell(number)[3].load(Relaxed), 7);
    let again = cache.allocate(&arena, 5, Kind::Record, 128).expect("the same kind and size");
    cache.free(&arena, again);
    cache.drain(&arena);
    read_sections.exit(0);
    let block = cache.allocate(&arena, 5, Kind::Block, 1_000).expect("nobody looks at it");
    assert_eq!(arena.cell(block)[3].load(Relaxed), 0, "nothing of the cells is left");
}

#[test]
fn access_marks_belong_to_cells() {
    let space = Arc::default();
    let arena = Arena::new(64 << 20, &space, ReadSections::new(1)).expect("address space");
    let mut cache = CellCache::default();
    let allocate = |cache: &mut CellCache, count: usize| -> Vec<u64> {
        let sizes = [32, 120, 1_000].into_iter().cycle().take(count);
        sizes.map(|bytes| cache.allocate(&arena, 5, Kind::Record, bytes).expect("memory")).collect()
    };
    let mut numbers = allocate(&mut cache, 300);
    arena.set_access(numbers[0], 7);
    assert_eq!((arena.access(numbers[0]), arena.access_bytes()), (None, 0), "nobody has asked");
    arena.keep_accesses(&space).expect("address space");
    arena.keep_accesses(&space).expect("it is done");
    // Slabs that are taken later have marks, too.
    numbers.extend(allocate(&mut cache, 90_000));
    for (mark, &number) in (1..).zip(&numbers) {
        arena.set_access(number, mark);
    }
    for (mark, &number) in (1u32..).zip(&numbers) {
        assert_eq!(arena.access(number), Some(mark));
    }
    assert!(arena.access_bytes() >= 4 * numbers.len());
    for number in [0, 1, u64::MAX, 1 << 35] {
        let _ = arena.access(number);
        arena.set_access(number, 1);
    }
}

#[test]
fn the_limit_is_a_typed_error_and_invented_numbers_are_harmless() {
    let arena =
        Arena::new(2 * SLAB_BYTES, &Arc::default(), ReadSections::new(1)).expect("address space");
    let mut cache = CellCache::default();
    let cells = std::iter::from_fn(|| cache.allocate(&arena, 1, Kind::Block, CELL_BYTES_MAX).ok());
    assert_eq!(cells.count(), 2 * (SLAB_BYTES / CELL_BYTES_MAX));
    let error = cache.allocate(&arena, 1, Kind::Block, 32).expect_err("full");
    assert_eq!(error.limit, 2 * SLAB_BYTES);
    for number in [0, 1, u64::MAX, 1 << 35, UNITS_PER_SLAB - 1] {
        let _ = arena.cell(number);
        arena.prefetch(number);
    }
}
