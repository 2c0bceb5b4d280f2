//! The five transactions (specification, clauses 2.4 to 2.8).
//!
//! Like a stored procedure, a transaction sees all its parameters. A transaction detects an order
//! that must be rolled back before anything is written, so no undo is needed.

use stillpoint_state::Intent::{Read, Write};

use crate::workloads::tpcc::input::{CustomerKey, Line, Transaction};
use crate::workloads::tpcc::load::Population;
use crate::workloads::tpcc::memory::Memory;
use crate::workloads::tpcc::schema::{
    Counters, Customer, DISTRICTS, District, History, Item, LINES_MAX, NewOrder, Order, OrderLine,
    Scale, Stock, Warehouse,
};

/// Outcome of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    /// How the transaction ended.
    pub(crate) kind: Kind,
    /// Checksum of the answer to the client.
    pub(crate) answer: u64,
}

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A new order was taken.
    NewOrder,
    /// An item did not exist: rolled back.
    RolledBack,
    /// The ring had no room for a new order.
    Refused,
    /// A payment was made.
    Payment,
    /// An order's status was told.
    OrderStatus,
    /// Orders were delivered.
    Delivery,
    /// Short items were counted.
    StockLevel,
}

/// Folds a value into an answer.
fn fold(answer: u64, value: u64) -> u64 {
    (answer.rotate_left(7) ^ value).wrapping_mul(0x517c_c1b7_2722_0a95)
}

fn fold_text(answer: u64, text: &[u8]) -> u64 {
    text.iter().fold(answer, |answer, &byte| fold(answer, u64::from(byte)))
}

/// Runs a transaction.
pub(crate) fn run<M: Memory>(
    memory: &mut M,
    population: &Population,
    transaction: &Transaction,
) -> Done {
    match transaction {
        Transaction::NewOrder { district, customer, date, count, lines } => {
            let lines = &lines[..usize::from(*count)];
            new_order(memory, &population.scale, *district as usize, *customer, *date, lines)
        }
        Transaction::Payment { .. } => payment(memory, population, transaction),
        Transaction::OrderStatus { district, who } => {
            let customer = customer_of(memory, population, *district as usize, *who);
            order_status(memory, &population.scale, *district as usize, customer)
        }
        Transaction::Delivery { warehouse, carrier, date } => {
            let first = *warehouse as usize * DISTRICTS;
            announce_delivered(memory, &population.scale, first..first + DISTRICTS);
            let answer = (first..first + DISTRICTS).fold(0, |answer, district| {
                let order = deliver(memory, &population.scale, district, *carrier, *date);
                fold(answer, u64::from(order))
            });
            Done { kind: Kind::Delivery, answer }
        }
        Transaction::StockLevel { district, threshold } => {
            let (district, threshold) = (*district as usize, i32::from(*threshold));
            stock_level(memory, &population.scale, district, threshold)
        }
    }
}

/// Prefetches the rows that a transaction will touch, as far as its parameters tell.
pub(crate) fn announce<M: Memory>(memory: &M, population: &Population, transaction: &Transaction) {
    let scale = &population.scale;
    match transaction {
        Transaction::NewOrder { district, customer, count, lines, .. } => {
            let district = *district as usize;
            let customer = scale.customer_row(district, *customer);
            memory.announce(district, District::NEXT_ORDER, Write);
            memory.announce(customer, Customer::LAST_ORDER, Write);
            memory.announce(customer, Customer::LAST, Read);
            let lines = &lines[..usize::from(*count)];
            // The number may be outdated: the transactions before may take another order of this
            // district.
            let order = scale.order_row(district, memory.get(district, District::NEXT_ORDER));
            memory.announce(order, Order::ENTRY, Write);
            memory.announce(order, NewOrder::ORDER, Write);
            for (number, line) in lines.iter().enumerate() {
                let stock = scale.stock_row(usize::from(line.supply), line.item);
                memory.announce(stock, Stock::QUANTITY, Write);
                memory.announce(stock, Stock::district_text(district % DISTRICTS), Read);
                memory.announce(line.item as usize, Item::PRICE, Read);
                memory.announce(order * LINES_MAX + number, OrderLine::DELIVERED, Write);
            }
        }
        Transaction::Payment { district, customer_district, who, .. } => {
            let (district, of) = (*district as usize, *customer_district as usize);
            memory.announce(district / DISTRICTS, Warehouse::YTD, Write);
            memory.announce(district / DISTRICTS, Counters::HISTORY, Write);
            memory.announce(district, District::YTD, Write);
            let customer = scale.customer_row(of, customer_of(memory, population, of, *who));
            memory.announce(customer, Customer::BALANCE, Write);
            memory.announce(customer, Customer::LAST, Read);
        }
        Transaction::OrderStatus { district, who } => {
            let district = *district as usize;
            let customer =
                scale.customer_row(district, customer_of(memory, population, district, *who));
            memory.announce(customer, Customer::BALANCE, Read);
            memory.announce(customer, Customer::LAST, Read);
        }
        Transaction::Delivery { warehouse, .. } => {
            let first = *warehouse as usize * DISTRICTS;
            for district in first..first + DISTRICTS {
                memory.announce(district, District::OLDEST_NEW, Write);
            }
            for district in first..first + DISTRICTS {
                let order = memory.get(district, District::OLDEST_NEW);
                if order == memory.get(district, District::NEXT_ORDER) {
                    continue;
                }
                let order = scale.order_row(district, order);
                memory.announce(order, Order::CARRIER, Write);
                memory.announce(order, NewOrder::ORDER, Write);
            }
        }
        // Most rows of this transaction follow only from its first read.
        Transaction::StockLevel { .. } => {}
    }
}

fn customer_of<M: Memory>(
    memory: &M,
    population: &Population,
    district: usize,
    who: CustomerKey,
) -> u32 {
    match who {
        CustomerKey::Number(number) => number,
        CustomerKey::Name(name) => memory.named(population, district, name),
    }
}

fn new_order<M: Memory>(
    memory: &mut M,
    scale: &Scale,
    district: usize,
    customer: u32,
    date: u64,
    lines: &[Line],
) -> Done {
    let (warehouse, customer_row) = (district / DISTRICTS, scale.customer_row(district, customer));
    if lines.iter().any(|line| line.item as usize >= scale.items) {
        let last = memory.get(customer_row, Customer::LAST);
        return Done { kind: Kind::RolledBack, answer: fold_text(0, &last) };
    }
    let order = memory.get(district, District::NEXT_ORDER);
    if (order - memory.get(district, District::OLDEST_NEW)) as usize >= scale.ring {
        let refused = memory.get(warehouse, Counters::REFUSED) + 1;
        memory.set(warehouse, Counters::REFUSED, refused);
        return Done { kind: Kind::Refused, answer: 0 };
    }
    memory.set(district, District::NEXT_ORDER, order + 1);
    memory.set(customer_row, Customer::LAST_ORDER, order);
    let row = scale.order_row(district, order);
    let all_local = lines.iter().all(|line| usize::from(line.supply) == warehouse);
    let head = Order {
        entry: date,
        number: order,
        customer,
        carrier: 0,
        lines: lines.len() as u16,
        all_local: u16::from(all_local),
    };
    memory.put(row, head);
    memory.put(row, NewOrder { order: u64::from(order) });
    let (mut total, mut answer) = (0, 0);
    for (number, line) in lines.iter().enumerate() {
        let written = order_line(memory, scale, district, line);
        memory.put(row * LINES_MAX + number, written);
        total += u64::from(written.amount);
        answer = fold(answer, u64::from(written.amount));
    }
    let taxes = memory.get(warehouse, Warehouse::TAX) + memory.get(district, District::TAX);
    let discount = memory.get(customer_row, Customer::DISCOUNT);
    let last = memory.get(customer_row, Customer::LAST);
    let credit = memory.get(customer_row, Customer::CREDIT);
    let total = total * u64::from(10_000 - discount) * u64::from(10_000 + taxes) / 100_000_000;
    let answer = fold_text(fold_text(fold(answer, total), &last), &credit);
    Done { kind: Kind::NewOrder, answer }
}

/// Takes an item from the stock.
fn order_line<M: Memory>(memory: &mut M, scale: &Scale, district: usize, line: &Line) -> OrderLine {
    let stock = scale.stock_row(usize::from(line.supply), line.item);
    let quantity = i32::from(line.quantity);
    let mut counts = memory.get(stock, Stock::COUNTS);
    let there = counts.quantity;
    counts.quantity = if there >= quantity + 10 { there - quantity } else { there - quantity + 91 };
    counts.ytd += u32::from(line.quantity);
    counts.orders += 1;
    counts.remote += u32::from(usize::from(line.supply) != district / DISTRICTS);
    memory.set(stock, Stock::COUNTS, counts);
    OrderLine {
        delivered: 0,
        item: line.item,
        supply: u32::from(line.supply),
        quantity: u32::from(line.quantity),
        amount: u32::from(line.quantity) * memory.get(line.item as usize, Item::PRICE),
        district_text: memory.get(stock, Stock::district_text(district % DISTRICTS)),
    }
}

fn payment<M: Memory>(memory: &mut M, population: &Population, it: &Transaction) -> Done {
    let Transaction::Payment { district, customer_district, who, amount, date } = *it else {
        unreachable!("called for payments");
    };
    let scale = &population.scale;
    let (district, money) = (district as usize, i64::from(amount));
    let customer = customer_of(memory, population, customer_district as usize, who);
    let row = scale.customer_row(customer_district as usize, customer);
    let warehouse = district / DISTRICTS;
    let ytd = memory.get(warehouse, Warehouse::YTD) + money;
    memory.set(warehouse, Warehouse::YTD, ytd);
    let ytd = memory.get(district, District::YTD) + money;
    memory.set(district, District::YTD, ytd);
    let mut counts = memory.get(row, Customer::COUNTS);
    counts.balance -= money;
    counts.ytd_payment += money;
    counts.payments += 1;
    memory.set(row, Customer::COUNTS, counts);
    let mut answer = fold(counts.balance as u64, u64::from(customer));
    if memory.get(row, Customer::CREDIT) == *b"BC" {
        let old = memory.get(row, Customer::DATA);
        let numbers = [customer, customer_district, district as u32, amount];
        let data = noted(&old, &numbers);
        memory.set(row, Customer::DATA, data);
        answer = fold_text(answer, &data[..200]);
    }
    let names =
        (memory.get(warehouse, Warehouse::NAME_TEXT), memory.get(district, District::NAME_TEXT));
    let mut data = [b' '; 24];
    data[..10].copy_from_slice(&names.0);
    data[14..].copy_from_slice(&names.1);
    let written = memory.get(warehouse, Counters::HISTORY);
    memory.set(warehouse, Counters::HISTORY, written + 1);
    let history = History {
        date,
        amount: money,
        customer,
        customer_district,
        district: district as u32,
        is_there: 1,
        data,
    };
    memory.put(scale.history_row(warehouse, written), history);
    Done { kind: Kind::Payment, answer }
}

/// Writes the numbers, followed by the older notes as far as there is room (2.5.2.2).
fn noted(old: &[u8; 500], numbers: &[u32]) -> [u8; 500] {
    let mut data = [0; 500];
    let mut at = 0;
    for &number in numbers {
        let mut digits = [0; 10];
        let (mut first, mut rest) = (digits.len(), number);
        loop {
            first -= 1;
            digits[first] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        let digits = &digits[first..];
        data[at..at + digits.len()].copy_from_slice(digits);
        data[at + digits.len()] = b' ';
        at += digits.len() + 1;
    }
    data[at..].copy_from_slice(&old[..500 - at]);
    data
}

fn order_status<M: Memory>(memory: &mut M, scale: &Scale, district: usize, customer: u32) -> Done {
    let row = scale.customer_row(district, customer);
    let balance = memory.get(row, Customer::BALANCE);
    let mut answer = fold_text(balance as u64, &memory.get(row, Customer::LAST));
    let order = memory.get(row, Customer::LAST_ORDER);
    let at = scale.order_row(district, order);
    let head: Order = memory.row(at);
    // The ring may have overwritten the order since.
    if order != 0 && head.number == order {
        answer = fold(fold(answer, head.entry), u64::from(head.carrier));
        for line in 0..usize::from(head.lines) {
            let line: OrderLine = memory.row(at * LINES_MAX + line);
            let what = u64::from(line.item) << 32 | u64::from(line.amount);
            answer = fold(fold(answer, what), line.delivered);
        }
    }
    Done { kind: Kind::OrderStatus, answer }
}

/// Prefetches the rows that follow from the oldest waiting orders of some districts.
fn announce_delivered<M: Memory>(memory: &M, scale: &Scale, districts: std::ops::Range<usize>) {
    for district in districts {
        let order = memory.get(district, District::OLDEST_NEW);
        if order == memory.get(district, District::NEXT_ORDER) {
            continue;
        }
        let row = scale.order_row(district, order);
        let customer = scale.customer_row(district, memory.get(row, Order::CUSTOMER));
        memory.announce(customer, Customer::COUNTS, Write);
        let lines = usize::from(memory.get(row, Order::LINES));
        for line in row * LINES_MAX..row * LINES_MAX + lines {
            memory.announce(line, OrderLine::DELIVERED, Write);
        }
    }
}

/// Delivers the oldest waiting order. Returns 0 if none waits.
fn deliver<M: Memory>(
    memory: &mut M,
    scale: &Scale,
    district: usize,
    carrier: u8,
    date: u64,
) -> u32 {
    let order = memory.get(district, District::OLDEST_NEW);
    if order == memory.get(district, District::NEXT_ORDER) {
        return 0;
    }
    let row = scale.order_row(district, order);
    memory.set(district, District::OLDEST_NEW, order + 1);
    memory.put(row, NewOrder { order: 0 });
    memory.set(row, Order::CARRIER, u32::from(carrier));
    let customer = memory.get(row, Order::CUSTOMER);
    let lines = usize::from(memory.get(row, Order::LINES));
    let mut amount = 0;
    for line in row * LINES_MAX..row * LINES_MAX + lines {
        amount += i64::from(memory.get(line, OrderLine::AMOUNT));
        memory.set(line, OrderLine::DELIVERED, date);
    }
    let row = scale.customer_row(district, customer);
    let mut counts = memory.get(row, Customer::COUNTS);
    counts.balance += amount;
    counts.deliveries += 1;
    memory.set(row, Customer::COUNTS, counts);
    order
}

/// Counts the items of the last 20 orders of which the stock is short.
fn stock_level<M: Memory>(memory: &mut M, scale: &Scale, district: usize, threshold: i32) -> Done {
    let next = memory.get(district, District::NEXT_ORDER);
    let orders = next.saturating_sub(20).max(1)..next;
    let mut items = [0_u32; 20 * LINES_MAX];
    let count = memory.items_of(scale, district, orders, &mut items);
    let items = &mut items[..count];
    items.sort_unstable();
    let stock = |item: u32| scale.stock_row(district / DISTRICTS, item);
    let distinct = || items.chunk_by(|a, b| a == b).map(|same| stock(same[0]));
    distinct().for_each(|stock| memory.announce(stock, Stock::QUANTITY, Read));
    let short = distinct().filter(|&stock| memory.get(stock, Stock::QUANTITY) < threshold).count();
    Done { kind: Kind::StockLevel, answer: short as u64 }
}
