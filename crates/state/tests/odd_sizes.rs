//! Arrays of impossible, empty and odd sizes, under every scheme: a typed error or the right values, and
//! never a panic.

use stillpoint_state::{
    Array, Arrays, ArraysBuilder, ArraysError, Intent, Plain, Scheme, registry,
};

/// Names that are keywords, arrays of arrays, and fields without bytes, one of them at the very end.
#[derive(Clone, Copy, Debug, PartialEq, Plain)]
struct Odd {
    r#type: u8,
    r#fn: [[i16; 3]; 2],
    empty: [u32; 0],
    deep: [[[u8; 2]; 2]; 2],
    #[field(NOTHING)]
    nothing: [u8; 0],
}

/// Exactly two lines, and a field without bytes behind them.
#[derive(Clone, Copy, Debug, PartialEq, Plain)]
struct TwoLines {
    #[field(HEAD)]
    head: [u8; 128],
    #[field(TAIL)]
    tail: [u8; 0],
}

#[derive(Clone, Copy, Debug, PartialEq, Plain)]
struct OneByte(u8);

/// The longest cell.
type Longest = [u64; 512];

fn each_scheme<P: registry::Program<Output = ()>>(program: impl Fn(&'static str) -> P) {
    for name in registry::names_here() {
        registry::run(name, program(name)).expect("a name of the registry");
    }
}

fn declare<S: Scheme, T: Plain>(builder: &mut ArraysBuilder<S>, cells: usize) {
    builder.array::<T>("large", cells);
}

struct TooLarge(&'static str);

impl registry::Program for TooLarge {
    type Output = ();

    fn run<S: Scheme>(self) {
        type Declare<S> = fn(&mut ArraysBuilder<S>, usize);
        let kinds: [Declare<S>; 5] = [
            declare::<S, u32>,
            declare::<S, u64>,
            declare::<S, [f32; 3]>,
            declare::<S, TwoLines>,
            declare::<S, Longest>,
        ];
        let sizes =
            [usize::MAX, usize::MAX / 2, usize::MAX / 8 + 1, (1 << 61) + 1, 1 << 58, 1 << 50];
        for (kind, declare) in kinds.iter().enumerate() {
            for cells in sizes {
                let mut builder = Arrays::<S>::builder();
                declare(&mut builder, cells);
                let error = builder.build().expect_err("more than the address space");
                let Self(name) = self;
                assert!(
                    matches!(error, ArraysError::Memory { .. }),
                    "{name}, kind {kind}, {cells} cells: {error}"
                );
                assert!(error.to_string().contains("large"), "{error}");
            }
        }
    }
}

#[test]
fn arrays_beyond_the_address_space_are_refused_by_name() {
    each_scheme(TooLarge);
}

struct Odds(&'static str);

impl registry::Program for Odds {
    type Output = ();

    fn run<S: Scheme>(self) {
        let Self(name) = self;
        let mut builder = Arrays::<S>::builder();
        let none = builder.array::<u32>("none", 0);
        let no_lines = builder.array::<TwoLines>("no lines", 0);
        let longest = builder.array::<Longest>("longest", 1);
        let odd = builder.array::<Odd>("odd", 3);
        let lines = builder.array::<TwoLines>("lines", 1);
        let one = builder.array::<OneByte>("one", 1);
        let mut arrays = builder.build().expect("memory");
        for tick in 0..70_u64 {
            let low = tick as u8;
            let capture = arrays.point_of_consistency();
            arrays.write(longest, 0, [tick; 512]);
            let value = Odd {
                r#type: low,
                r#fn: [[-i16::from(low); 3]; 2],
                empty: [],
                deep: [[[low; 2]; 2]; 2],
                nothing: [],
            };
            arrays.write(odd, 2, value);
            arrays.write_field(odd, 2, Odd::NOTHING, []);
            arrays.write_part(lines, 0, 127, &[low]);
            arrays.write_part(lines, 0, 63, &[!low, low]);
            arrays.write_field(lines, 0, TwoLines::TAIL, []);
            arrays.write_part(lines, 0, 128, &[]);
            arrays.update(one, 0, |one| one.0 += 1);
            for intent in [Intent::Read, Intent::Write] {
                arrays.prefetch(none, 0, intent);
                arrays.prefetch(no_lines, usize::MAX, intent);
                arrays.prefetch(odd, usize::MAX, intent);
                arrays.prefetch_field(odd, 2, Odd::NOTHING, intent);
                arrays.prefetch_field(lines, 0, TwoLines::TAIL, intent);
                arrays.prefetch_field(lines, 1, TwoLines::HEAD, intent);
            }
            assert_eq!(arrays.read(longest, 0), [tick; 512], "{name}");
            assert_eq!(arrays.read(odd, 2), value, "{name}");
            assert_eq!(arrays.read(odd, 1).r#type, 0, "{name}");
            let head = arrays.read_field(lines, 0, TwoLines::HEAD);
            assert_eq!((head[63], head[64], head[127]), (!low, low, low), "{name}");
            assert_eq!(arrays.read_field(lines, 0, TwoLines::TAIL), [0_u8; 0], "{name}");
            assert_eq!(arrays.read(one, 0), OneByte(low + 1), "{name}");
            assert_eq!((arrays.iter(none).count(), arrays.iter_mut(no_lines).count()), (0, 0));
            assert_eq!(chunks(&mut arrays, none, usize::MAX), 0, "{name}");
            assert_eq!(chunks(&mut arrays, odd, usize::MAX), 1, "{name}");
            assert!((1..=3).contains(&chunks(&mut arrays, odd, 0)), "{name}");
            if let Some(capture) = capture {
                let infos: Vec<_> = capture.infos().cloned().collect();
                for (array, info) in infos.iter().enumerate() {
                    let mut image = vec![0; info.bytes() as usize];
                    let captured =
                        capture.write_to_stable_storage(array, 0..info.cells, &mut image);
                    captured.expect(name);
                }
                // A capture that is dropped has failed.
                if tick % 3 > 0 {
                    capture.durable();
                }
            }
            arrays.end_tick();
        }
    }
}

/// The number of chunks of so many cells.
fn chunks<S: Scheme, T: Plain>(arrays: &mut Arrays<S>, array: Array<T>, cells: usize) -> usize {
    arrays.array_mut(array).chunks_mut(cells).iter_mut().count()
}

#[test]
fn empty_arrays_and_odd_cells_work_in_every_scheme() {
    each_scheme(Odds);
}
