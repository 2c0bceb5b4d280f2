//! The first rows of the tables (specification, clause 4.3.3.1). Every row follows from its number
//! and the seed, so an oracle can have the same rows.

use stillpoint_state::{Array, ArraysError, Cells, Plain, Scheme};

use crate::workloads::random::{Random, splitmix64};
use crate::workloads::tpcc::input::{names, nurand};
use crate::workloads::tpcc::schema::{
    Counters, Customer, DISTRICTS, District, History, Item, LINES_MAX, NewOrder, Order, OrderLine,
    Scale, Stock, TableRow, Tables, Visit, Warehouse,
};

/// Amount of every payment of the load, in cents.
const FIRST_PAYMENT: i64 = 1_000;
/// Sum of a district's payments in the load, in cents.
const SYLLABLES: [&str; 10] =
    ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];

/// The last name of this number (4.3.2.3), filled with zeros.
pub(crate) fn last_name(number: u64) -> [u8; 16] {
    let mut text = [0; 16];
    let mut at = 0;
    for digit in [number / 100 % 10, number / 10 % 10, number % 10] {
        let syllable = SYLLABLES[digit as usize].as_bytes();
        text[at..at + syllable.len()].copy_from_slice(syllable);
        at += syllable.len();
    }
    text
}

/// The first rows of the database, and the parts that never change: the customers' names, and the
/// customers of the first orders.
#[derive(Clone, Debug)]
pub(crate) struct Population {
    /// Size of the database.
    pub(crate) scale: Scale,
    seed: u64,
    /// The customer of the n-th order, district by district.
    customer_of: Vec<u32>,
    /// The order of each customer, district by district.
    order_of: Vec<u32>,
    /// Customers sorted by name. The customers of name n of district d begin at `starts[d * names +
    /// n]`.
    by_name: Vec<u32>,
    starts: Vec<usize>,
}

impl Population {
    /// The database of this size and seed.
    pub(crate) fn new(scale: Scale, seed: u64) -> Self {
        let mut population = Population {
            scale,
            seed,
            customer_of: Vec::new(),
            order_of: vec![0; scale.districts() * scale.customers],
            by_name: Vec::new(),
            starts: vec![0],
        };
        for district in 0..scale.districts() {
            population.add_orders(district);
            population.add_names(district);
        }
        population
    }

    fn random<T: TableRow>(&self, row: usize) -> Random {
        let mut mix = self.seed ^ ((u64::from(T::TABLE) + 1) << 56) ^ row as u64;
        Random::new(splitmix64(&mut mix))
    }

    fn add_orders(&mut self, district: usize) {
        let (customers, begin) = (self.scale.customers, self.customer_of.len());
        let mut random = Random::for_thread(self.seed, district);
        self.customer_of.extend(0..customers as u32);
        let order = &mut self.customer_of[begin..];
        for last in (1..customers).rev() {
            order.swap(last, random.below(last as u64 + 1) as usize);
        }
        for (order, &customer) in order.iter().enumerate() {
            self.order_of[begin + customer as usize] = order as u32 + 1;
        }
    }

    fn add_names(&mut self, district: usize) {
        let mut named: Vec<(u64, [u8; 16], u32)> = (0..self.scale.customers as u32)
            .map(|customer| {
                let (name, first) = self.name(self.scale.customer_row(district, customer));
                (name, first, customer)
            })
            .collect();
        named.sort_unstable();
        let mut at = 0;
        for name in 0..names(&self.scale) {
            while at < named.len() && named[at].0 == name {
                self.by_name.push(named[at].2);
                at += 1;
            }
            self.starts.push(self.by_name.len());
        }
    }

    /// Number of the last name, and the first name, of the customer in this row.
    fn name(&self, row: usize) -> (u64, [u8; 16]) {
        let mut random = self.random::<Customer>(row);
        let customer = (row % self.scale.customers) as u64;
        let names = names(&self.scale);
        let name = if customer < names { customer } else { nurand(&mut random, 255, names) };
        (name, text(&mut random, 8))
    }

    /// Customers of a district that have this last name, by first name.
    pub(crate) fn by_name(&self, district: usize, name: u32) -> &[u32] {
        let at = district * names(&self.scale) as usize + name as usize;
        &self.by_name[self.starts[at]..self.starts[at + 1]]
    }

    fn warehouse(&self, row: usize) -> Warehouse {
        let mut random = self.random::<Warehouse>(row);
        let payments = (DISTRICTS * self.scale.customers) as i64;
        Warehouse {
            ytd: payments * FIRST_PAYMENT,
            tax: random.below(2_001) as u32,
            name: text(&mut random, 6),
            street_1: text(&mut random, 10),
            street_2: text(&mut random, 10),
            city: text(&mut random, 10),
            state: text(&mut random, 2),
            zip: text(&mut random, 9),
            pad: [0; 3],
        }
    }

    fn district(&self, row: usize) -> District {
        let mut random = self.random::<District>(row);
        District {
            ytd: self.scale.customers as i64 * FIRST_PAYMENT,
            tax: random.below(2_001) as u32,
            next_order: self.scale.customers as u32 + 1,
            oldest_new: self.scale.delivered_at_first() as u32 + 1,
            name: text(&mut random, 6),
            street_1: text(&mut random, 10),
            street_2: text(&mut random, 10),
            city: text(&mut random, 10),
            state: text(&mut random, 2),
            zip: text(&mut random, 9),
            pad: [0; 3],
        }
    }

    fn customer(&self, row: usize) -> Customer {
        let (name, first) = self.name(row);
        let mut random = Random::new(self.seed ^ !(row as u64));
        Customer {
            balance: -FIRST_PAYMENT,
            ytd_payment: FIRST_PAYMENT,
            payments: 1,
            deliveries: 0,
            last_order: self.order_of[row],
            discount: random.below(5_001) as u32,
            credit_limit: 5_000_000,
            since: 1,
            credit: if random.chance(0.1) { *b"BC" } else { *b"GC" },
            first,
            middle: *b"OE",
            last: last_name(name),
            street_1: text(&mut random, 10),
            street_2: text(&mut random, 10),
            city: text(&mut random, 10),
            state: text(&mut random, 2),
            zip: text(&mut random, 9),
            phone: text(&mut random, 16),
            data: text(&mut random, 300),
            pad: [0; 1],
        }
    }

    /// The first payment of each customer of a warehouse, in the order of the customers. The rest
    /// of the warehouse's ring is empty.
    fn history(&self, row: usize) -> History {
        let (customers, mut random) = (self.scale.customers, self.random::<History>(row));
        let (warehouse, number) = (row / self.scale.history, row % self.scale.history);
        if number >= DISTRICTS * customers {
            let district = 0;
            let (date, amount, customer, data) = (0, 0, 0, [0; 24]);
            let (customer_district, is_there) = (0, 0);
            return History { date, amount, customer, customer_district, district, is_there, data };
        }
        let district = (warehouse * DISTRICTS + number / customers) as u32;
        History {
            date: 1,
            amount: FIRST_PAYMENT,
            customer: (number % customers) as u32,
            customer_district: district,
            district,
            is_there: 1,
            data: text(&mut random, 12),
        }
    }

    /// District and number of the first order in a row of the ring, if there is one.
    fn first_order(&self, row: usize) -> Option<(usize, usize)> {
        let (district, slot) = (row / self.scale.ring, row % self.scale.ring);
        (1..=self.scale.customers).contains(&slot).then_some((district, slot))
    }

    fn is_delivered(&self, order: usize) -> bool {
        order <= self.scale.delivered_at_first()
    }

    fn new_order(&self, row: usize) -> NewOrder {
        let waiting = self.first_order(row).filter(|&(_, order)| !self.is_delivered(order));
        NewOrder { order: waiting.map_or(0, |(_, order)| order as u64) }
    }

    fn order(&self, row: usize) -> Order {
        let Some((district, number)) = self.first_order(row) else {
            return Order { entry: 0, number: 0, customer: 0, carrier: 0, lines: 0, all_local: 0 };
        };
        let mut random = self.random::<Order>(row);
        Order {
            entry: 1,
            number: number as u32,
            lines: 5 + random.below(11) as u16,
            customer: self.customer_of[district * self.scale.customers + number - 1],
            carrier: if self.is_delivered(number) { 1 + random.below(10) as u32 } else { 0 },
            all_local: 1,
        }
    }

    fn order_line(&self, row: usize) -> OrderLine {
        let (order_row, line) = (row / LINES_MAX, row % LINES_MAX);
        let order = self.order(order_row);
        if line >= usize::from(order.lines) {
            let (delivered, item, supply, quantity, amount) = (0, 0, 0, 0, 0);
            return OrderLine { delivered, item, supply, quantity, amount, district_text: [0; 24] };
        }
        let mut random = self.random::<OrderLine>(row);
        let is_delivered = self.is_delivered(order.number as usize);
        OrderLine {
            delivered: u64::from(is_delivered),
            item: random.below(self.scale.items as u64) as u32,
            supply: (order_row / self.scale.ring / DISTRICTS) as u32,
            quantity: 5,
            amount: if is_delivered { 0 } else { 1 + random.below(999_999) as u32 },
            district_text: text(&mut random, 24),
        }
    }

    fn item(&self, row: usize) -> Item {
        let mut random = self.random::<Item>(row);
        Item {
            image: 1 + random.below(10_000) as u32,
            price: 100 + random.below(9_901) as u32,
            name: text(&mut random, 14),
            data: original(&mut random),
            pad: [0; 6],
        }
    }

    fn stock(&self, row: usize) -> Stock {
        let mut random = self.random::<Stock>(row);
        let (ytd, orders, remote) = (0, 0, 0);
        let quantity = 10 + random.below(91) as i32;
        let districts = text(&mut random, 240);
        Stock { quantity, ytd, orders, remote, districts, data: original(&mut random), pad: [0; 6] }
    }

    fn counters(&self, _: usize) -> Counters {
        Counters { history: (DISTRICTS * self.scale.customers) as u64, refused: 0 }
    }

    /// Gives every row its first value.
    ///
    /// # Errors
    /// When a tick has already ended.
    pub(crate) fn fill<S: Scheme>(
        &self,
        cells: &mut Cells<S>,
        tables: &Tables,
    ) -> Result<(), ArraysError> {
        cells.fill(tables.warehouse, |row| Warehouse::first(self, row))?;
        cells.fill(tables.district, |row| District::first(self, row))?;
        cells.fill(tables.customer, |row| Customer::first(self, row))?;
        cells.fill(tables.history, |row| History::first(self, row))?;
        cells.fill(tables.new_order, |row| NewOrder::first(self, row))?;
        cells.fill(tables.order, |row| Order::first(self, row))?;
        cells.fill(tables.order_line, |row| OrderLine::first(self, row))?;
        cells.fill(tables.item, |row| Item::first(self, row))?;
        cells.fill(tables.stock, |row| Stock::first(self, row))?;
        cells.fill(tables.counters, |row| Counters::first(self, row))
    }
}

/// A row with a first value.
pub(crate) trait First: TableRow {
    /// The first value of the row of this number. Zeros if the load has none.
    fn first(population: &Population, row: usize) -> Self;
}

macro_rules! first {
    ($($row:ident by $method:ident),+ $(,)?) => {
        $( impl First for $row {
            fn first(population: &Population, row: usize) -> Self {
                population.$method(row)
            }
        } )+
    };
}

first! {
    Warehouse by warehouse,
    District by district,
    Customer by customer,
    History by history,
    NewOrder by new_order,
    Order by order,
    OrderLine by order_line,
    Item by item,
    Stock by stock,
    Counters by counters,
}

/// Random text of at least `least` letters, padded with zeros.
fn text<const N: usize>(random: &mut Random, least: usize) -> [u8; N] {
    const LETTERS: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .";
    let len = least + random.below((N - least) as u64 + 1) as usize;
    let mut text = [0; N];
    for letters in text[..len].chunks_mut(10) {
        let mut bits = random.next_u64();
        for letter in letters {
            *letter = LETTERS[(bits & 63) as usize];
            bits >>= 6;
        }
    }
    text
}

/// Random text. A tenth of these texts contains "ORIGINAL" (4.3.3.1).
fn original(random: &mut Random) -> [u8; 50] {
    let mut data = text(random, 26);
    if random.chance(0.1) {
        let at = random.below(18) as usize;
        data[at..at + 8].copy_from_slice(b"ORIGINAL");
    }
    data
}

/// Checksum of each table.
pub(crate) fn digest<S: Scheme>(cells: &Cells<S>, tables: &Tables) -> Vec<(&'static str, u64)> {
    let mut sums = Digest { cells, sums: Vec::new() };
    tables.each(&mut sums);
    sums.sums
}

struct Digest<'a, S: Scheme> {
    cells: &'a Cells<S>,
    sums: Vec<(&'static str, u64)>,
}

impl<S: Scheme> Visit for Digest<'_, S> {
    fn table<T: TableRow>(&mut self, array: Array<T>) {
        let rows = self.cells.array(array);
        let mut bytes = vec![0; <T as Plain>::BYTES];
        let mut sum = 0x9e37_79b9_7f4a_7c15_u64;
        for row in 0..rows.len() {
            rows.read_part(row, 0, &mut bytes);
            for word in bytes.as_chunks::<8>().0 {
                let word = u64::from_le_bytes(*word);
                sum = (sum.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
            }
        }
        self.sums.push((T::NAME, sum));
    }
}
