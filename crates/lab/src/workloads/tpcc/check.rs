//! The consistency conditions of the specification, clauses 3.3.2.1 to 3.3.2.12.
//!
//! Conditions over history (8, 9, 10) and over all orders of a customer (10, 12) need complete
//! rings. These conditions are left out once a ring has overwritten its first rows.

use crate::workloads::tpcc::memory::Rows;
use crate::workloads::tpcc::schema::{
    Counters, Customer, DISTRICTS, District, History, LINES_MAX, NewOrder, Order, OrderLine, Scale,
    Warehouse,
};

/// Counts of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checked {
    /// Existing orders.
    pub(crate) orders: u64,
    /// Customers whose balance could be judged.
    pub(crate) balances: u64,
    /// Whether the sums over history could be judged.
    pub(crate) history: bool,
}

/// Checks all conditions.
///
/// # Errors
/// The first condition that does not hold, in words.
pub(crate) fn check<M: Rows>(memory: &M, scale: &Scale) -> Result<Checked, String> {
    let mut checked = Checked::default();
    for warehouse in 0..scale.warehouses {
        let districts = warehouse * DISTRICTS..(warehouse + 1) * DISTRICTS;
        let sum: i64 = districts.map(|district| memory.get(district, District::YTD)).sum();
        let ytd = memory.get(warehouse, Warehouse::YTD);
        same("3.3.2.1: W_YTD and the sum of D_YTD", warehouse, ytd, sum)?;
    }
    let mut warehouses = 0..scale.warehouses;
    checked.history = warehouses
        .all(|warehouse| memory.get(warehouse, Counters::HISTORY) <= scale.history as u64);
    let mut paid = vec![0; scale.districts() * scale.customers];
    if checked.history {
        check_history(memory, scale, &mut paid)?;
    }
    for district in 0..scale.districts() {
        let mut delivered = vec![0; scale.customers];
        let mut deliveries = 0;
        checked.orders += check_orders(memory, scale, district, &mut delivered, &mut deliveries)?;
        let has_all = memory.get(district, District::NEXT_ORDER) as usize <= scale.ring;
        if !has_all {
            continue;
        }
        let first = scale.customer_row(district, 0);
        let counts = first..first + scale.customers;
        let counted: i64 = counts.map(|row| i64::from(memory.get(row, Customer::DELIVERIES))).sum();
        let at_first = scale.delivered_at_first() as i64;
        same("3.3.2.11: orders that do not wait", district, deliveries, at_first + counted)?;
        for (customer, &delivered) in delivered.iter().enumerate() {
            let row = first + customer;
            let balance = memory.get(row, Customer::BALANCE);
            let payments = memory.get(row, Customer::YTD_PAYMENT);
            same("3.3.2.12: C_BALANCE + C_YTD_PAYMENT", row, balance + payments, delivered)?;
            if checked.history {
                same("3.3.2.10: C_BALANCE", row, balance, delivered - paid[row])?;
                checked.balances += 1;
            }
        }
    }
    Ok(checked)
}

fn same(what: &str, row: usize, found: i64, expected: i64) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    Err(format!("condition {what}, row {row}: {found} and {expected}"))
}

/// Checks 3.3.2.8 and 3.3.2.9, and returns every customer's payments.
fn check_history<M: Rows>(memory: &M, scale: &Scale, paid: &mut [i64]) -> Result<(), String> {
    let mut districts = vec![0; scale.districts()];
    for warehouse in 0..scale.warehouses {
        for number in 0..memory.get(warehouse, Counters::HISTORY) {
            let row = scale.history_row(warehouse, number);
            let history: History = memory.row(row);
            same("of no clause: a row of history", row, i64::from(history.is_there), 1)?;
            districts[history.district as usize] += history.amount;
            let customer = scale.customer_row(history.customer_district as usize, history.customer);
            paid[customer] += history.amount;
        }
    }
    for warehouse in 0..scale.warehouses {
        let first = warehouse * DISTRICTS;
        let sum = districts[first..first + DISTRICTS].iter().sum();
        same("3.3.2.8: W_YTD", warehouse, memory.get(warehouse, Warehouse::YTD), sum)?;
    }
    for (district, &sum) in districts.iter().enumerate() {
        same("3.3.2.9: D_YTD", district, memory.get(district, District::YTD), sum)?;
    }
    Ok(())
}

/// Checks 3.3.2.2 to 3.3.2.7. Adds up the amounts delivered to each customer, and the orders that
/// do not wait. Returns the number of existing orders.
fn check_orders<M: Rows>(
    memory: &M,
    scale: &Scale,
    district: usize,
    delivered: &mut [i64],
    deliveries: &mut i64,
) -> Result<u64, String> {
    let next = memory.get(district, District::NEXT_ORDER);
    let oldest = memory.get(district, District::OLDEST_NEW);
    let (mut waiting, mut there, mut newest) = (Vec::new(), 0, 0);
    // A ring that has not wrapped holds no order beyond the next one. The check reads one row more.
    for slot in 0..scale.ring.min(next as usize + 2) {
        let row = district * scale.ring + slot;
        let order: Order = memory.row(row);
        let new = memory.get(row, NewOrder::ORDER);
        if order.number == 0 {
            same("3.3.2.5: a new order without its order", row, new as i64, 0)?;
            continue;
        }
        there += 1;
        newest = newest.max(order.number);
        if new != 0 {
            same("3.3.2.5: the number of a new order", row, new as i64, i64::from(order.number))?;
            waiting.push(order.number);
        }
        let waits = i64::from(new != 0);
        same("3.3.2.5: without carrier if it waits", row, i64::from(order.carrier == 0), waits)?;
        *deliveries += i64::from(new == 0);
        let lines = row * LINES_MAX..(row + 1) * LINES_MAX;
        let mut count = 0;
        for line in lines.take(usize::from(order.lines)) {
            let line: OrderLine = memory.row(line);
            count += i64::from(line.quantity > 0);
            let has_date = i64::from(line.delivered != 0);
            same("3.3.2.7: a delivered line has a date", row, has_date, i64::from(new == 0))?;
            if new == 0 {
                delivered[order.customer as usize] += i64::from(line.amount);
            }
        }
        same("3.3.2.4 and 3.3.2.6: lines of an order", row, count, i64::from(order.lines))?;
    }
    same("3.3.2.2: D_NEXT_O_ID - 1", district, i64::from(next) - 1, i64::from(newest))?;
    let (min, max) = (waiting.iter().min().copied(), waiting.iter().max().copied());
    if let (Some(min), Some(max)) = (min, max) {
        same("3.3.2.2: the newest that waits", district, i64::from(max), i64::from(newest))?;
        let between = i64::from(max - min) + 1;
        same("3.3.2.3: new orders without gaps", district, between, waiting.len() as i64)?;
        same("the index of new orders", district, i64::from(oldest), i64::from(min))?;
    } else {
        same("the index of new orders", district, i64::from(oldest), i64::from(next))?;
    }
    Ok(there)
}
