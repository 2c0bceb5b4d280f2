use std::collections::BTreeMap;

use stillpoint_state::schemes::NoCheckpoints;
use stillpoint_state::{Arrays, Naive, Plain};

use super::check::{Checked, check};
use super::input::{Trace, Transaction};
use super::load::{Population, digest, last_name};
use super::memory::{InCells, Memory, Rows};
use super::schema::{
    Counters, Customer, DISTRICTS, District, History, NewOrder, OrderLine, Scale, Stock, TableRow,
    Tables, Visit, Warehouse, data_bytes,
};
use super::transactions::{Kind, run};
use super::written::{Noting, Written};

type Bare = NoCheckpoints<Naive>;
/// A way to break a database.
type Spoil = fn(&mut InCells<'_, Bare>);

struct World {
    arrays: Arrays<Bare>,
    tables: Tables,
    population: Population,
}

impl World {
    fn new(scale: Scale, seed: u64) -> Self {
        let mut builder = Arrays::<Bare>::builder();
        let tables = Tables::declare(&mut builder, &scale);
        let mut arrays = builder.build().expect("memory");
        let population = Population::new(scale, seed);
        population.fill(&mut arrays, &tables).expect("no tick has ended");
        World { arrays, tables, population }
    }

    fn memory(&mut self) -> InCells<'_, Bare> {
        InCells { cells: &mut self.arrays, tables: &self.tables }
    }

    fn check(&mut self) -> Result<Checked, String> {
        let scale = self.population.scale;
        check(&self.memory(), &scale)
    }

    fn run(&mut self, trace: &Trace, count: u64) -> BTreeMap<String, u64> {
        let mut kinds = BTreeMap::new();
        let mut memory = InCells { cells: &mut self.arrays, tables: &self.tables };
        for number in 0..count {
            let transaction = Transaction::decode(trace.get(number)).expect("of the trace");
            let done = run(&mut memory, &self.population, &transaction);
            *kinds.entry(format!("{:?}", done.kind)).or_default() += 1;
        }
        kinds
    }
}

#[test]
fn the_load_is_consistent_and_follows_from_the_seed() {
    let mut world = World::new(Scale::small(2), 1);
    let checked = world.check().expect("consistent");
    assert_eq!(checked, Checked { orders: 20 * 120, balances: 20 * 120, history: true });
    let again = World::new(Scale::small(2), 1);
    let sums = digest(&world.arrays, &world.tables);
    assert_eq!(sums, digest(&again.arrays, &again.tables));
    let other = World::new(Scale::small(2), 2);
    assert_ne!(sums, digest(&other.arrays, &other.tables));
}

#[test]
fn a_row_counts_once_and_each_write_counts() {
    let mut world = World::new(Scale::small(1), 1);
    let mut noting = Noting::new(world.memory());
    noting.set(7, Stock::YTD, 1);
    noting.set(7, Stock::ORDERS, 2);
    noting.put(9, NewOrder { order: 5 });
    assert_eq!((noting.get(7, Stock::ORDERS), noting.row::<NewOrder>(9).order), (2, 5));
    let bytes = (Stock::BYTES + NewOrder::BYTES) as u64;
    assert_eq!(noting.written, Written { writes: 3, bytes });
}

#[test]
fn all_transactions_keep_all_conditions() {
    // A ring of 512 holds all orders of this run, so that every condition can be judged.
    let scale = Scale { ring: 512, history: 8_192, ..Scale::small(2) };
    let mut world = World::new(scale, 3);
    let trace = Trace::new(&scale, 4, 10_000);
    let kinds = world.run(&trace, 10_000);
    for (kind, share) in [
        ("NewOrder", 0.4396),
        ("RolledBack", 0.0044),
        ("Payment", 0.431),
        ("OrderStatus", 0.04),
        ("Delivery", 0.045),
        ("StockLevel", 0.04),
    ] {
        let found = kinds[kind] as f64 / 10_000.0;
        assert!((found - share).abs() < 0.25 * share + 0.005, "{kind}: {found}");
    }
    assert_eq!(kinds.get("Refused"), None);
    let checked = world.check().expect("consistent");
    assert_eq!(checked.orders, 2_400 + kinds["NewOrder"]);
    assert_eq!((checked.balances, checked.history), (2_400, true));
}

#[test]
fn rings_go_round_and_nothing_that_waits_is_passed_over() {
    let scale = Scale::small(1);
    let mut world = World::new(scale, 5);
    let trace = Trace::new(&scale, 6, 20_000);
    // The run is longer than the trace, so the trace wraps.
    let kinds = world.run(&trace, 50_000);
    assert_eq!(kinds.get("Refused"), None);
    assert!(kinds["NewOrder"] > 10 * 256 * 5, "{kinds:?}");
    let checked = world.check().expect("consistent");
    assert_eq!(checked, Checked { orders: 10 * 256, balances: 0, history: false });
}

#[test]
fn without_deliveries_a_full_ring_refuses_orders() {
    let scale = Scale::small(1);
    let mut world = World::new(scale, 7);
    let trace = Trace::new(&scale, 8, 20_000);
    let (mut refused, mut taken) = (0, 0);
    for number in 0..20_000 {
        let transaction = Transaction::decode(trace.get(number)).expect("of the trace");
        if matches!(transaction, Transaction::NewOrder { .. }) {
            let mut memory = InCells { cells: &mut world.arrays, tables: &world.tables };
            match run(&mut memory, &world.population, &transaction).kind {
                Kind::Refused => refused += 1,
                Kind::NewOrder => taken += 1,
                kind => assert_eq!(kind, Kind::RolledBack),
            }
        }
    }
    // The ring of each of 10 districts has 256 places, and 36 orders waited at first.
    assert_eq!(taken, 10 * (256 - 36));
    assert!(refused > 0);
    assert_eq!(world.memory().get(0, Counters::REFUSED), refused);
    world.check().expect("consistent");
}

#[test]
fn every_condition_sees_what_breaks_it() {
    let breaks: [(&str, Spoil); 8] = [
        ("3.3.2.1", |m| m.set(0, Warehouse::YTD, 1)),
        ("3.3.2.2", |m| m.set(3, District::NEXT_ORDER, 7)),
        ("3.3.2.5", |m| m.set(100, NewOrder::ORDER, 0)),
        ("3.3.2.7", |m| m.set(100 * 15, OrderLine::DELIVERED, 9)),
        ("3.3.2.4 and 3.3.2.6", |m| m.set(100 * 15, OrderLine::QUANTITY, 0)),
        ("3.3.2.9", |m| m.set(5, History::DISTRICT, 1)),
        ("3.3.2.11", |m| m.set(5, Customer::DELIVERIES, 1)),
        ("3.3.2.12", |m| m.set(5, Customer::BALANCE, 1)),
    ];
    for (condition, spoil) in breaks {
        let mut world = World::new(Scale::small(1), 9);
        spoil(&mut world.memory());
        let error = world.check().expect_err(condition);
        assert!(error.contains(condition), "{condition}: {error}");
    }
}

#[test]
fn an_order_and_its_delivery_do_what_the_specification_says() {
    let mut world = World::new(Scale::small(2), 11);
    let scale = world.population.scale;
    let mut lines = [super::input::Line::default(); 15];
    lines[0] = super::input::Line { item: 5, supply: 0, quantity: 3 };
    lines[1] = super::input::Line { item: 6, supply: 1, quantity: 10 };
    let order = Transaction::NewOrder { district: 4, customer: 17, date: 99, count: 2, lines };
    let before: Vec<Stock> = [(0, 5), (1, 6)]
        .map(|(warehouse, item)| world.memory().row(scale.stock_row(warehouse, item)))
        .into();
    let population = world.population.clone();
    let done = run(&mut world.memory(), &population, &order);
    assert_eq!(done.kind, Kind::NewOrder);
    let memory = world.memory();
    let near: Stock = memory.row(scale.stock_row(0, 5));
    let far: Stock = memory.row(scale.stock_row(1, 6));
    assert_eq!((near.ytd, near.orders, near.remote), (3, 1, 0));
    assert_eq!((far.ytd, far.orders, far.remote), (10, 1, 1));
    let left = |stock: &Stock, taken: i32| {
        if stock.quantity >= taken + 10 {
            stock.quantity - taken
        } else {
            stock.quantity - taken + 91
        }
    };
    assert_eq!((near.quantity, far.quantity), (left(&before[0], 3), left(&before[1], 10)));
    let customer: Customer = memory.row(scale.customer_row(4, 17));
    assert_eq!(customer.last_order, 121);
    let row = scale.order_row(4, 121);
    let amount: i64 =
        [0, 1].map(|l| i64::from(memory.get(row * 15 + l, OrderLine::AMOUNT))).iter().sum();
    // 36 orders wait before this one.
    let delivery = Transaction::Delivery { warehouse: 0, carrier: 7, date: 100 };
    for _ in 0..37 {
        run(&mut world.memory(), &population, &delivery);
    }
    let memory = world.memory();
    assert_eq!(memory.get(row, super::schema::Order::CARRIER), 7);
    let after: Customer = memory.row(scale.customer_row(4, 17));
    let own_first: i64 = after.balance - customer.balance - amount;
    assert!(after.deliveries >= 1 && own_first >= 0, "{after:?}");
    world.check().expect("consistent");
}

#[test]
fn bytes_come_back_as_the_transaction_they_were() {
    let scale = Scale::small(3);
    let mut random = crate::workloads::random::Random::new(12);
    for number in 0..5_000 {
        let transaction = Transaction::draw(&scale, &mut random, number);
        let mut bytes = Vec::new();
        transaction.encode(&mut bytes);
        assert_eq!(Transaction::decode(&bytes), Some(transaction));
        assert_eq!(Transaction::decode(&bytes[..bytes.len() - 1]), None);
    }
    assert_eq!(Transaction::decode(&[9; 40]), None);
}

#[test]
fn names_and_columns_are_those_of_the_specification() {
    assert_eq!(&last_name(371)[..12], b"PRICALLYOUGH");
    assert_eq!(&last_name(0)[..9], b"BARBARBAR");
    let population = Population::new(Scale::small(1), 13);
    for district in 0..DISTRICTS {
        let named: usize = (0..120).map(|name| population.by_name(district, name).len()).sum();
        assert_eq!(named, 120, "every customer has one name");
    }
    struct Columns(usize);
    impl Visit for Columns {
        fn table<T: TableRow>(&mut self, _: stillpoint_state::Array<T>) {
            let columns = T::columns();
            let ends = columns.iter().fold(0, |end, &(at, len)| {
                assert_eq!(at, end, "{}: columns follow each other", T::NAME);
                at + len
            });
            assert_eq!(ends, <T as Plain>::BYTES);
            assert_eq!(usize::from(T::TABLE), self.0, "tables are numbered in order");
            self.0 += 1;
        }
    }
    assert_eq!(Stock::QUANTITY.offset(), Stock::COUNTS.offset());
    assert_eq!(Stock::DISTRICT_TEXTS.offset(), Stock::COUNTS.offset() + 16);
    assert_eq!(Customer::BALANCE.offset(), Customer::COUNTS.offset());
    assert_eq!(Customer::LAST_ORDER.offset(), Customer::COUNTS.offset() + 24);
    let world = World::new(Scale::small(1), 14);
    let mut columns = Columns(0);
    world.tables.each(&mut columns);
    assert_eq!(columns.0, 10);
    assert!(data_bytes(&Scale::small(1)) < world.arrays.state_bytes() + 1_000);
    let ten = data_bytes(&Scale::full(10)) as f64 / 10.0;
    assert!((80e6..110e6).contains(&ten), "bytes of a warehouse: {ten}");
}
