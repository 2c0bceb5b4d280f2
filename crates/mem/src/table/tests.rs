use super::*;
use stillpoint_sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Number of marks of a cell: 3 in some shapes whose marks lie in columns, otherwise 1.
fn marks_per_cell(
    placement: Placement,
    cell_grains: usize,
    copies: usize,
    mark_columns: usize,
) -> usize {
    let is_large = cell_grains * 4 * copies + mark_columns > 64;
    let has_columns = placement == Placement::Apart || is_large;
    if mark_columns == 2 && has_columns { 3 } else { 1 }
}

/// Every shape of small and of large cells.
fn shapes() -> impl Iterator<Item = TableShape> {
    let cell_grains = [1, 2, 3, 8, 16, 512];
    let cells = [0, 1, 7, 8, 9, 65];
    let placements = [Placement::Apart, Placement::Rows, Placement::Lines];
    placements.into_iter().flat_map(move |placement| {
        cell_grains.into_iter().flat_map(move |cell_grains| {
            cells.into_iter().flat_map(move |cells| {
                (1..=3).flat_map(move |copies| {
                    (0..=3).map(move |mark_columns| TableShape {
                        cells,
                        cell_grains,
                        copies,
                        mark_columns,
                        // Some of the numbers divide the number of cells, some do not.
                        cells_per_mark: [1, 4, 1, 16][mark_columns],
                        marks_per_cell: marks_per_cell(
                            placement,
                            cell_grains,
                            copies,
                            mark_columns,
                        ),
                        placement,
                        pages: PageSize::Small,
                    })
                })
            })
        })
    })
}

/// Every byte belongs to at most one cell or mark, by every way of access.
fn bytes_belong_to_one<G: Grain>(shape: &TableShape) {
    let table = Table::<G>::new(shape).expect("address space");
    let mut owners = vec![None; table.len_bytes()];
    let base = table.backing_address();
    let mut own = |from: usize, len: usize, owner: (bool, usize, usize)| {
        assert!(from >= base && from + len <= base + table.len_bytes(), "{shape:?}");
        for at in from..from + len {
            let before = owners[at - base].replace(owner);
            assert_eq!(before, None, "{shape:?}: {owner:?} at {}", at - base);
        }
    };
    for index in 0..shape.cells {
        assert_eq!(table.spot(index).index(), index);
        for copy in 0..shape.copies {
            let cell = table.cell(copy, index);
            assert_eq!(table.spot(index).cell(copy).as_ptr_range(), cell.as_ptr_range());
            assert_eq!(cell.len(), shape.cell_grains);
            assert!(cell.as_ptr().addr().is_multiple_of(G::BYTES));
            own(cell.as_ptr().addr(), size_of_val(cell), (true, copy, index));
            let run = table.run(copy, index, shape.cells - index);
            assert_eq!(run.as_ptr(), cell.as_ptr(), "{shape:?}");
            let (more, rest) = (run.len() / shape.cell_grains, run.len() % shape.cell_grains);
            assert!(rest == 0 && (1..=shape.cells - index).contains(&more), "{shape:?}");
            let last = table.cell(copy, index + more - 1);
            assert_eq!(last.as_ptr_range().end, run.as_ptr_range().end, "{shape:?}");
        }
    }
    for first in [0, shape.cells / 2, shape.cells] {
        let mut walked = 0;
        for (index, spot) in (first..).zip(table.walk(first, shape.cells)) {
            assert_eq!(spot.index(), index);
            for copy in 0..shape.copies {
                assert_eq!(spot.cell(copy).as_ptr_range(), table.cell(copy, index).as_ptr_range());
            }
            if shape.cells_per_mark == 1 && shape.marks_per_cell == 1 {
                for column in 0..shape.mark_columns {
                    assert!(std::ptr::eq(spot.mark(column), table.mark(column, index)));
                }
            }
            walked += 1;
        }
        assert_eq!(walked, shape.cells - first, "{shape:?}");
    }
    let marks = shape.cells.div_ceil(shape.cells_per_mark) * shape.marks_per_cell;
    assert_eq!(table.marks_len(), marks);
    if shape.cells_per_mark == 1 && table.has_columns_of_marks() {
        for (column, number) in
            (0..shape.mark_columns).flat_map(|it| (0..marks).map(move |n| (it, n)))
        {
            let (index, part) = (number / shape.marks_per_cell, number % shape.marks_per_cell);
            let mark = table.spot(index).mark_of_part(column, part);
            assert!(std::ptr::eq(mark, table.mark(column, number)), "{shape:?}");
        }
    }
    for index in 0..table.marks_len() {
        for column in 0..shape.mark_columns {
            let mark: *const AtomicU8 = table.mark(column, index);
            own(mark.addr(), 1, (false, column, index));
            let run = table.marks(column, index, table.marks_len() - index);
            assert_eq!(run.as_ptr(), mark);
            let last: *const AtomicU8 = table.mark(column, index + run.len() - 1);
            assert_eq!(&raw const run[run.len() - 1], last, "{shape:?}");
        }
    }
}

impl<G: Grain> Table<G> {
    fn backing_address(&self) -> usize {
        if self.is_empty() { 0 } else { self.cell(0, 0).as_ptr().addr() }
    }
}

#[test]
fn no_two_places_meet() {
    for shape in shapes() {
        bytes_belong_to_one::<AtomicU32>(&shape);
        bytes_belong_to_one::<AtomicU64>(&shape);
    }
}

#[test]
fn a_line_holds_what_the_paper_says() {
    const CELLS: usize = 7680;
    // Approximate number of cells on a line.
    let lines = |placement, cell_grains, copies, mark_columns| {
        let pages = PageSize::Huge;
        let shape = TableShape {
            cells: CELLS,
            cell_grains,
            copies,
            mark_columns,
            cells_per_mark: 1,
            marks_per_cell: 1,
            placement,
            pages,
        };
        CELLS.div_ceil(Table::<AtomicU32>::new(&shape).expect("address space").len_bytes() / 64)
    };
    assert_eq!(lines(Placement::Rows, 1, 2, 2), 5, "two copies of a word and two bytes: 12 bytes");
    assert_eq!(lines(Placement::Lines, 1, 2, 2), 6, "column by column: 10 bytes");
    assert_eq!(lines(Placement::Rows, 1, 3, 2), 4, "three copies");
    assert_eq!(lines(Placement::Lines, 1, 2, 0), 8, "marks elsewhere");
}

#[test]
fn marks_of_large_cells_lie_side_by_side() {
    for placement in [Placement::Rows, Placement::Lines] {
        let shape = TableShape {
            cells: 1000,
            cell_grains: 40,
            copies: 3,
            mark_columns: 2,
            cells_per_mark: 1,
            marks_per_cell: 1,
            placement,
            pages: PageSize::Small,
        };
        let table = Table::<AtomicU64>::new(&shape).expect("address space");
        let address = |column, index| {
            let mark: *const AtomicU8 = table.mark(column, index);
            mark.addr()
        };
        assert_eq!(address(1, 999) - address(1, 0), 999, "{placement:?}");
        assert!(table.has_columns_of_marks(), "{placement:?}");
        let pieces = TableShape { marks_per_cell: 5, ..shape };
        let pieces = Table::<AtomicU64>::new(&pieces).expect("address space");
        assert_eq!((pieces.marks_len(), pieces.marks(0, 7, 4993).len()), (5000, 4993));
        let small = Table::<AtomicU64>::new(&TableShape { cell_grains: 1, ..shape });
        assert!(!small.expect("address space").has_columns_of_marks(), "{placement:?}");
    }
}

#[test]
fn cells_that_exceed_a_line_with_their_copies_are_dense() {
    let shape = |cell_grains| TableShape {
        cells: 1000,
        cell_grains,
        copies: 3,
        mark_columns: 2,
        cells_per_mark: 1,
        marks_per_cell: 1,
        placement: Placement::Rows,
        pages: PageSize::Small,
    };
    let stride = |cell_grains| {
        let table = Table::<AtomicU32>::new(&shape(cell_grains)).expect("address space");
        table.cell(0, 1).as_ptr().addr() - table.cell(0, 0).as_ptr().addr()
    };
    assert_eq!([4, 5, 6, 12].map(stride), [64, 64, 24, 48], "20 bytes and 2 marks fit thrice");
}

#[test]
fn a_line_holds_a_cell_with_its_copies_and_marks() {
    let mut met = 0;
    for shape in shapes() {
        let places = Places::of(&shape, 4).expect("it fits");
        if places.has_columns_of_marks() || shape.cells_per_mark != 1 {
            continue;
        }
        for index in 0..shape.cells {
            let line = places.line_at(index) / 64;
            let cells = (0..shape.copies).map(|copy| places.cell_at(copy, index));
            let ends = cells.clone().map(|at| at + shape.cell_grains * 4 - 1);
            let marks = (0..shape.mark_columns).map(|column| places.mark_at(column, index));
            assert!(cells.chain(ends).chain(marks).all(|at| at / 64 == line), "{shape:?} {index}");
            met += 1;
        }
    }
    assert!(met > 1000, "{met}");
}

#[test]
fn far_cells_are_reached() {
    // 2^33 cells in lines of five: the reciprocal equals the division up to this size.
    let shape = TableShape {
        cells: 1 << 33,
        cell_grains: 1,
        copies: 2,
        mark_columns: 2,
        cells_per_mark: 1,
        marks_per_cell: 1,
        placement: Placement::Rows,
        pages: PageSize::Small,
    };
    let places = Places::of(&shape, 4).expect("it fits");
    places.check(&shape, 4);
    for index in (0..100).flat_map(|k| [k, (1 << 33) - 1 - k, k * 85_899_345]) {
        let wanted = index / 5 * 64 + index % 5 * 12;
        assert_eq!(places.cell_at(1, index), wanted + 4);
        assert_eq!(places.mark_at(1, index), wanted + 9);
    }
}

#[test]
fn a_table_that_cannot_be_is_refused() {
    let shape = TableShape {
        cells: usize::MAX / 2,
        cell_grains: 512,
        copies: 3,
        mark_columns: 1,
        cells_per_mark: 1,
        marks_per_cell: 1,
        placement: Placement::Lines,
        pages: PageSize::Huge,
    };
    let error = Table::<AtomicU64>::new(&shape).expect_err("no machine has so much");
    assert!(error.to_string().contains("address space"), "{error}");
}

/// Every mark: its column and its number.
fn marks_of<G: Grain>(table: &Table<G>) -> impl Iterator<Item = (usize, usize)> {
    let marks = table.marks_len();
    (0..table.shape().mark_columns).flat_map(move |column| (0..marks).map(move |at| (column, at)))
}

#[test]
fn copies_and_marks_keep_what_they_are_given() {
    for shape in shapes().filter(|shape| shape.cells > 0) {
        let table = Table::<AtomicU32>::new(&shape).expect("address space");
        let value = |copy: usize, index: usize, at: usize| (copy * 7 + index * 31 + at) as u32;
        for index in 0..shape.cells {
            for copy in 0..shape.copies {
                for (at, grain) in table.cell(copy, index).iter().enumerate() {
                    grain.set(value(copy, index, at));
                }
            }
        }
        for (column, index) in marks_of(&table) {
            table.mark(column, index).store((index + column) as u8, Relaxed);
        }
        for index in 0..shape.cells {
            for copy in 0..shape.copies {
                for (at, grain) in table.cell(copy, index).iter().enumerate() {
                    assert_eq!(grain.get(), value(copy, index, at), "{shape:?}");
                }
            }
        }
        for (column, index) in marks_of(&table) {
            assert_eq!(table.mark(column, index).load(Relaxed), (index + column) as u8);
        }
    }
}

#[test]
#[should_panic(expected = "no such cell")]
fn a_cell_that_is_not_there_is_refused() {
    let shape = shapes().find(|shape| shape.cells == 7).expect("there is one");
    Table::<AtomicU32>::new(&shape).expect("address space").cell(0, 7);
}

#[test]
fn grains_are_copied_few_or_many() {
    for count in [0, 1, 7, 8, 9, 1000, 16_383, 16_384, 16_385, 40_001] {
        let grains = |seed: u32| {
            let of = |at| AtomicU32::new((at as u32).wrapping_mul(seed));
            (0..count + 1).map(of).collect::<Vec<_>>()
        };
        let (from, to) = (grains(7), grains(9));
        let behind = to[count].get();
        copy_grains(&from[..count], &to[..count]);
        let same = from[..count].iter().zip(&to[..count]).all(|(a, b)| a.get() == b.get());
        assert!(same && to[count].get() == behind, "{count}");
    }
}
