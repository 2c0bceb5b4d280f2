//! Tests of the types of cells, and of the ways to read and write them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use stillpoint_state::schemes::{CopyOnUpdate, Hourglass, PingPong};
use stillpoint_state::{Array, Arrays, FieldValue, Interleaved, Packed, Plain, Scheme};

/// Three values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Plain)]
enum Kind {
    A,
    B,
    C,
}

/// Seven bytes.
#[derive(Clone, Copy, Debug, PartialEq, Plain)]
struct Inner {
    #[field(X)]
    x: f32,
    #[field(KIND)]
    kind: Kind,
    #[field(FLAGS)]
    flags: [bool; 2],
}

/// 4 + 21 + 6 + 12 + 1 bytes: 44, and 48 as a cell.
#[derive(Clone, Copy, Debug, PartialEq, Plain)]
struct Outer {
    id: u32,
    #[field(INNER)]
    inner: [Inner; 3],
    #[field(GRID)]
    grid: [[u16; 1]; 3],
    #[field(PLACE)]
    place: [f32; 3],
    #[field(LAST)]
    last: u8,
}

/// 1 + 12 bytes: 13, and 16 as a cell.
#[derive(Clone, Copy, Debug, PartialEq, Plain)]
enum Order {
    Wait,
    Walk([f32; 3]),
    Hit { whom: u16, with: Kind },
}

/// 1 + 13 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Plain)]
struct Unit(bool, #[field(ORDER)] Order);

fn inner(x: f32) -> Inner {
    Inner { x, kind: Kind::C, flags: [true, false] }
}

fn outer(id: u32) -> Outer {
    let inner = [inner(1.0), inner(2.5), inner(-3.0)];
    Outer { id, inner, grid: [[1], [2], [3]], place: [0.5, 1.5, 2.5], last: 9 }
}

#[test]
fn lengths_are_rounded_up_where_cells_are_and_only_there() {
    assert_eq!((<Inner as FieldValue>::PACKED_BYTES, <Inner as Plain>::BYTES), (7, 8));
    assert_eq!((<Outer as FieldValue>::PACKED_BYTES, <Outer as Plain>::BYTES), (44, 48));
    assert_eq!((<Order as FieldValue>::PACKED_BYTES, <Order as Plain>::BYTES), (13, 16));
    assert_eq!((<Unit as FieldValue>::PACKED_BYTES, <Unit as Plain>::BYTES), (14, 16));
    let arrays = [
        <[f32; 3] as FieldValue>::PACKED_BYTES,
        <[f32; 5] as FieldValue>::PACKED_BYTES,
        <[u8; 28] as FieldValue>::PACKED_BYTES,
        <[bool; 9] as FieldValue>::PACKED_BYTES,
    ];
    assert_eq!(arrays, [12, 20, 28, 9]);
    let cells = [
        <[f32; 3] as Plain>::BYTES,
        <[f32; 5] as Plain>::BYTES,
        <[u8; 28] as Plain>::BYTES,
        <[bool; 9] as Plain>::BYTES,
        <Kind as Plain>::BYTES,
        <bool as Plain>::BYTES,
    ];
    assert_eq!(cells, [16, 24, 32, 16, 4, 4]);
}

fn cells_of_every_kind<S: Scheme>() {
    let mut builder = Arrays::<S>::builder();
    let outers: Array<Outer> = builder.array("outers", 50);
    let threes = builder.array::<[f32; 3]>("threes", 50);
    let bytes = builder.array::<[u8; 28]>("bytes", 50);
    let kinds = builder.array::<Kind>("kinds", 50);
    let flags = builder.array::<bool>("flags", 50);
    let units = builder.array::<Unit>("units", 50);
    let mut arrays = builder.build().expect("memory");
    assert_eq!(arrays.read(outers, 3), Outer::ZERO);
    for index in [3, 49] {
        arrays.write(outers, index, outer(index as u32));
        arrays.write(threes, index, [1.0, -2.0, f32::MAX]);
        arrays.write(bytes, index, std::array::from_fn(|n| n as u8 + 1));
        arrays.write(kinds, index, Kind::B);
        arrays.write(flags, index, true);
        assert_eq!(arrays.read(outers, index), outer(index as u32));
        assert_eq!(arrays.read(threes, index), [1.0, -2.0, f32::MAX]);
        assert_eq!(arrays.read(bytes, index)[27], 28);
        assert_eq!((arrays.read(kinds, index), arrays.read(flags, index)), (Kind::B, true));
    }
    assert_eq!((arrays.read(kinds, 48), arrays.read(flags, 48)), (Kind::A, false));

    assert_eq!(arrays.read(units, 3), Unit(false, Order::Wait));
    arrays.write(units, 3, Unit(true, Order::Walk([0.5; 3])));
    arrays.write_field(units, 3, Unit::ORDER, Order::Hit { whom: 9, with: Kind::C });
    assert_eq!(arrays.read(units, 3), Unit(true, Order::Hit { whom: 9, with: Kind::C }));

    let mut changed = outer(3);
    changed.inner[1] = inner(7.0);
    arrays.write_field(outers, 3, Outer::INNER, changed.inner);
    assert_eq!(arrays.read_field(outers, 3, Outer::INNER), changed.inner);
    changed.grid = [[7], [8], [9]];
    arrays.write_field(outers, 3, Outer::GRID, changed.grid);
    assert_eq!(arrays.read_field(outers, 3, Outer::GRID), changed.grid);
    (changed.place, changed.last) = ([9.0; 3], 1);
    arrays.write_field(outers, 3, Outer::PLACE, changed.place);
    arrays.write_field(outers, 3, Outer::LAST, changed.last);
    assert_eq!(arrays.read(outers, 3), changed);

    assert_eq!(arrays.update(outers, 3, |it| std::mem::replace(&mut it.id, 77)), 3);
    assert_eq!(arrays.read(outers, 3), Outer { id: 77, ..changed });
    let panics = AssertUnwindSafe(|| {
        arrays.update(outers, 3, |it| {
            it.id = 78;
            panic!("half changed");
        });
    });
    catch_unwind(panics).expect_err("it panics");
    assert_eq!(arrays.read(outers, 3).id, 77, "the cell keeps its value");

    let (mut outers, mut threes) = arrays.arrays_mut((outers, threes));
    for mut three in threes.iter_mut() {
        let id = outers.read(three.index()).id;
        three.update(|it| it[0] += id as f32);
        outers.update(three.index(), |it| it.id += 1);
    }
    assert_eq!((threes.read(3)[0], threes.read(4)[0], outers.read(49).id), (78.0, 0.0, 50));
    let twice = AssertUnwindSafe(|| arrays.arrays_mut((kinds, kinds)).0.read(0));
    catch_unwind(twice).expect_err("an array is borrowed once");
}

#[test]
fn cells_are_read_and_written_whole_and_in_part() {
    cells_of_every_kind::<Hourglass<Packed>>();
    cells_of_every_kind::<PingPong<Interleaved>>();
    cells_of_every_kind::<CopyOnUpdate<Packed>>();
}

#[test]
fn a_variant_takes_the_bytes_of_its_fields_and_zeros_behind_them() {
    let bytes = |order: Order| {
        let mut bytes = [7; 13];
        order.into_bytes(&mut bytes);
        assert_eq!(Order::from_bytes(&bytes), order);
        bytes
    };
    assert_eq!(bytes(Order::Wait), [0; 13]);
    assert_eq!(bytes(Order::Hit { whom: 0x102, with: Kind::B })[..5], [2, 2, 1, 1, 0]);
    let walk = bytes(Order::Walk([1.0, 0.0, -2.0]));
    assert_eq!(
        (walk[0], &walk[1..5], &walk[9..]),
        (1, &1f32.to_le_bytes()[..], &(-2f32).to_le_bytes()[..])
    );
}

#[test]
fn a_number_that_no_value_has_is_read_as_the_first() {
    assert_eq!(Order::from_bytes(&[3; 13]), Order::Wait);
    assert_eq!(Kind::from_bytes(&[2]), Kind::C);
    assert_eq!(Kind::from_bytes(&[3]), Kind::A);
    assert!(bool::from_bytes(&[2]));
}
