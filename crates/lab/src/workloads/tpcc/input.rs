//! Requests of clients: drawn from a seed, and encoded as the bytes of a logical action
//! (specification, clauses 2.4.1 to 2.8.1).

use crate::workloads::random::Random;
use crate::workloads::tpcc::schema::{DISTRICTS, LINES_MAX, Scale};

/// A line of a requested order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    /// Number of the item. An item that does not exist rolls the order back.
    pub(crate) item: u32,
    /// The supplying warehouse.
    pub(crate) supply: u16,
    /// Number of pieces.
    pub(crate) quantity: u8,
}

/// A customer of a district.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CustomerKey {
    /// The customer's number.
    Number(u32),
    /// The number of the customer's last name.
    Name(u32),
}

/// A requested transaction. Districts are numbered through all warehouses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transaction {
    /// An order (2.4).
    NewOrder {
        /// The district of the order.
        district: u32,
        /// The customer who orders.
        customer: u32,
        /// The date of the order.
        date: u64,
        /// Number of lines.
        count: u8,
        /// The lines of the order.
        lines: [Line; LINES_MAX],
    },
    /// A payment (2.5).
    Payment {
        /// The district that takes the payment.
        district: u32,
        /// The customer's own district.
        customer_district: u32,
        /// The customer who pays.
        who: CustomerKey,
        /// Amount in cents.
        amount: u32,
        /// The date of the payment.
        date: u64,
    },
    /// The status of a customer's last order (2.6).
    OrderStatus {
        /// The customer's district.
        district: u32,
        /// The customer.
        who: CustomerKey,
    },
    /// A delivery of the oldest order of each district of a warehouse (2.7).
    Delivery {
        /// The warehouse that delivers.
        warehouse: u32,
        /// Number of the carrier.
        carrier: u8,
        /// The date of the delivery.
        date: u64,
    },
    /// A count of the items of the last orders that run short (2.8).
    StockLevel {
        /// The district of the orders.
        district: u32,
        /// An item runs short below this stock.
        threshold: u8,
    },
}

/// The mix per 1,000 transactions: at least 43 % payments and 4 % of each of the last three
/// (5.2.3). A delivery delivers ten orders. The mix delivers slightly more than it orders, so that
/// waiting orders do not grow without bound.
const NEW_ORDER: u64 = 444;
const PAYMENT: u64 = 431;
const ORDER_STATUS: u64 = 40;
const DELIVERY: u64 = 45;

/// NURand of clause 2.1.6.
pub(crate) fn nurand(random: &mut Random, a: u64, count: u64) -> u64 {
    let c = 42 % (a + 1);
    ((random.below(a + 1) | random.below(count)) + c) % count
}

/// Number of last names in a district: 1,000 if there are enough customers.
pub(crate) fn names(scale: &Scale) -> u64 {
    scale.customers.min(1_000) as u64
}

impl Transaction {
    /// Draws the `number`-th transaction.
    pub(crate) fn draw(scale: &Scale, random: &mut Random, number: u64) -> Self {
        let warehouse = random.below(scale.warehouses as u64) as u32;
        Self::draw_of(scale, random, warehouse, number)
    }

    /// Draws the `number`-th transaction of a terminal of this warehouse.
    pub(crate) fn draw_of(scale: &Scale, random: &mut Random, warehouse: u32, number: u64) -> Self {
        let district = warehouse * DISTRICTS as u32 + random.below(DISTRICTS as u64) as u32;
        let date = number + 2;
        let deck = random.below(1_000);
        if deck < NEW_ORDER {
            new_order(scale, random, warehouse, district, date)
        } else if deck < NEW_ORDER + PAYMENT {
            payment(scale, random, warehouse, district, date)
        } else if deck < NEW_ORDER + PAYMENT + ORDER_STATUS {
            Transaction::OrderStatus { district, who: who(scale, random) }
        } else if deck < NEW_ORDER + PAYMENT + ORDER_STATUS + DELIVERY {
            Transaction::Delivery { warehouse, carrier: 1 + random.below(10) as u8, date }
        } else {
            Transaction::StockLevel { district, threshold: 10 + random.below(11) as u8 }
        }
    }

    /// Draws an order or a payment of a terminal of this warehouse, with equal probability (SIGMOD
    /// 2016, §5.2).
    pub(crate) fn draw_half(
        scale: &Scale,
        random: &mut Random,
        warehouse: u32,
        number: u64,
    ) -> Self {
        let district = warehouse * DISTRICTS as u32 + random.below(DISTRICTS as u64) as u32;
        let date = number + 2;
        if random.chance(0.5) {
            new_order(scale, random, warehouse, district, date)
        } else {
            payment(scale, random, warehouse, district, date)
        }
    }

    /// Encodes the transaction.
    pub(crate) fn encode(&self, bytes: &mut Vec<u8>) {
        match *self {
            Transaction::NewOrder { district, customer, date, count, lines } => {
                put(bytes, 0, district, date);
                bytes.extend(customer.to_le_bytes());
                bytes.push(count);
                for line in &lines[..usize::from(count)] {
                    bytes.extend(line.item.to_le_bytes());
                    bytes.extend(line.supply.to_le_bytes());
                    bytes.push(line.quantity);
                }
            }
            Transaction::Payment { district, customer_district, who, amount, date } => {
                put(bytes, 1, district, date);
                bytes.extend(customer_district.to_le_bytes());
                bytes.extend(who.code().to_le_bytes());
                bytes.extend(amount.to_le_bytes());
            }
            Transaction::OrderStatus { district, who } => {
                put(bytes, 2, district, 0);
                bytes.extend(who.code().to_le_bytes());
            }
            Transaction::Delivery { warehouse, carrier, date } => {
                put(bytes, 3, warehouse, date);
                bytes.push(carrier);
            }
            Transaction::StockLevel { district, threshold } => {
                put(bytes, 4, district, 0);
                bytes.push(threshold);
            }
        }
    }

    /// Decodes a transaction. `None` if the bytes are no transaction.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = Bytes(bytes);
        let (kind, place, date) = (rest.u8()?, rest.u32()?, rest.u64()?);
        Some(match kind {
            0 => {
                let (customer, count) = (rest.u32()?, rest.u8()?);
                let mut lines = [Line::default(); LINES_MAX];
                for line in lines.get_mut(..usize::from(count))? {
                    *line = Line { item: rest.u32()?, supply: rest.u16()?, quantity: rest.u8()? };
                }
                Transaction::NewOrder { district: place, customer, date, count, lines }
            }
            1 => Transaction::Payment {
                district: place,
                customer_district: rest.u32()?,
                who: CustomerKey::of(rest.u32()?),
                amount: rest.u32()?,
                date,
            },
            2 => Transaction::OrderStatus { district: place, who: CustomerKey::of(rest.u32()?) },
            3 => Transaction::Delivery { warehouse: place, carrier: rest.u8()?, date },
            4 => Transaction::StockLevel { district: place, threshold: rest.u8()? },
            _ => return None,
        })
    }
}

fn put(bytes: &mut Vec<u8>, kind: u8, place: u32, date: u64) {
    bytes.push(kind);
    bytes.extend(place.to_le_bytes());
    bytes.extend(date.to_le_bytes());
}

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }
    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|it| it[0])
    }
    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }
    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

const BY_NAME: u32 = 1 << 31;

impl CustomerKey {
    fn code(self) -> u32 {
        match self {
            CustomerKey::Number(number) => number,
            CustomerKey::Name(name) => name | BY_NAME,
        }
    }

    fn of(code: u32) -> Self {
        if code & BY_NAME == 0 {
            CustomerKey::Number(code)
        } else {
            CustomerKey::Name(code & !BY_NAME)
        }
    }
}

fn who(scale: &Scale, random: &mut Random) -> CustomerKey {
    if random.chance(0.6) {
        CustomerKey::Name(nurand(random, 255, names(scale)) as u32)
    } else {
        CustomerKey::Number(nurand(random, 1_023, scale.customers as u64) as u32)
    }
}

/// A random warehouse other than this one.
fn elsewhere(scale: &Scale, random: &mut Random, warehouse: u32) -> u32 {
    let other = random.below(scale.warehouses as u64 - 1) as u32;
    if other < warehouse { other } else { other + 1 }
}

fn payment(
    scale: &Scale,
    random: &mut Random,
    warehouse: u32,
    district: u32,
    date: u64,
) -> Transaction {
    let remote = scale.warehouses > 1 && random.chance(0.15);
    let customer_district = if remote {
        let other = elsewhere(scale, random, warehouse);
        other * DISTRICTS as u32 + random.below(DISTRICTS as u64) as u32
    } else {
        district
    };
    let who = who(scale, random);
    let amount = 100 + random.below(499_901) as u32;
    Transaction::Payment { district, customer_district, who, amount, date }
}

fn new_order(
    scale: &Scale,
    random: &mut Random,
    warehouse: u32,
    district: u32,
    date: u64,
) -> Transaction {
    let customer = nurand(random, 1_023, scale.customers as u64) as u32;
    let count = 5 + random.below(11) as u8;
    let mut lines = [Line::default(); LINES_MAX];
    for line in &mut lines[..usize::from(count)] {
        let remote = scale.warehouses > 1 && random.chance(0.01);
        let supply = if remote { elsewhere(scale, random, warehouse) } else { warehouse };
        *line = Line {
            item: nurand(random, 8_191, scale.items as u64) as u32,
            supply: supply as u16,
            quantity: 1 + random.below(10) as u8,
        };
    }
    if random.chance(0.01) {
        lines[usize::from(count) - 1].item = scale.items as u32; // no transaction has this number
    }
    Transaction::NewOrder { district, customer, date, count, lines }
}

/// Encoded transactions in memory, drawn before the run. After the last one the first follows
/// again.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Trace {
    /// Draws the given number of transactions.
    ///
    /// # Panics
    /// If `transactions` is zero, or a warehouse's number needs more than 16 bits.
    pub(crate) fn new(scale: &Scale, seed: u64, transactions: usize) -> Self {
        assert!(transactions > 0, "a trace has transactions");
        assert!(scale.warehouses <= usize::from(u16::MAX), "warehouses have 16 bits");
        let mut random = Random::new(seed);
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(transactions));
        for number in 0..transactions as u64 {
            Transaction::draw(scale, &mut random, number).encode(&mut bytes);
            ends.push(bytes.len());
        }
        Trace { bytes, ends }
    }

    /// The `number`-th transaction, counted from 0.
    pub(crate) fn get(&self, number: u64) -> &[u8] {
        let number = (number % self.ends.len() as u64) as usize;
        let begin = if number == 0 { 0 } else { self.ends[number - 1] };
        &self.bytes[begin..self.ends[number]]
    }
}
