//! Orders of customers in an ordered table. The newest orders of one customer are found, a page of the
//! list, and the number of orders before a key. An invoice misses no order.
//!
//! `cargo run --release -p stillpoint --example orders`

use std::error::Error;
use std::io::Write;

use stillpoint::{Config, Engine, Kind, Session, TableId};

const CUSTOMERS: u32 = 200;
const ORDERS: u32 = 10_000;

/// Customer first and order second, so that the orders of a customer follow each other.
fn key(customer: u32, order: u32) -> [u8; 8] {
    let mut key = [0; 8];
    key[..4].copy_from_slice(&customer.to_be_bytes());
    key[4..].copy_from_slice(&order.to_be_bytes());
    key
}

fn order_of(key: &[u8]) -> u32 {
    u32::from_be_bytes(key[4..].try_into().expect("keys have eight bytes"))
}

/// The newest orders of a customer, the newest first.
fn newest(
    session: &mut Session,
    orders: TableId,
    customer: u32,
    most: usize,
) -> Result<Vec<u32>, stillpoint::Error> {
    session.transact(|tx| {
        let (mut found, end) = (Vec::new(), key(customer + 1, 0));
        let mut range = tx.range_descending(orders, &key(customer, 0)[..]..&end[..])?;
        while found.len() < most
            && let Some((key, _)) = range.next_record()?
        {
            found.push(order_of(key));
        }
        Ok(found)
    })
}

/// Sums the orders of a customer and deletes them. An order that arrives meanwhile waits, and is in the
/// next invoice.
fn invoice(
    session: &mut Session,
    (orders, invoices): (TableId, TableId),
    customer: u32,
) -> Result<u64, stillpoint::Error> {
    session.transact(|tx| {
        let (mut sum, mut keys) = (0, Vec::new());
        let mut range = tx.range(orders, &key(customer, 0)[..]..&key(customer + 1, 0)[..])?;
        while let Some((key, amount)) = range.next_record()? {
            sum += amount.u64_at(0).unwrap_or(0);
            keys.push(key.to_vec());
        }
        for key in &keys {
            tx.delete(orders, key)?;
        }
        tx.put(invoices, &customer.to_be_bytes(), &sum.to_le_bytes())?;
        Ok(sum)
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    let directory = tempfile::tempdir()?;
    let engine = Engine::open(Config::new(directory.path()))?;
    let orders = engine.table_with("orders", Kind::Ordered)?;
    let invoices = engine.table("invoices")?;
    let mut session = engine.session()?;
    for order in 0..ORDERS {
        let amount = u64::from(order % 90 + 10);
        let key = key(order.wrapping_mul(7919) % CUSTOMERS, order);
        session.transact(|tx| tx.put(orders, &key, &amount.to_le_bytes()))?;
    }
    writeln!(out, "newest orders of customer 7: {:?}", newest(&mut session, orders, 7, 3)?)?;

    // The middle page of all orders, found by its number and not by a scan.
    let middle = session.transact(|tx| {
        let first = tx.nth(orders, u64::from(ORDERS / 2))?.expect("there are so many");
        let mut page = Vec::new();
        let mut range = tx.range(orders, &first[..]..)?;
        while page.len() < 5
            && let Some((key, _)) = range.next_record()?
        {
            page.push(order_of(key));
        }
        Ok(page)
    })?;
    writeln!(out, "a page from the middle: {middle:?}")?;
    let before = session.transact(|tx| tx.count(orders, ..&key(7, 0)[..]))?;
    writeln!(out, "orders of the customers before 7: {before}")?;

    let sum = invoice(&mut session, (orders, invoices), 7)?;
    writeln!(out, "invoice of customer 7: {sum}")?;
    drop(session);
    engine.close()?;

    // The order of keys is not on disk: the opening builds it again.
    let engine = Engine::open(Config::new(directory.path()))?;
    let orders = engine.table_with("orders", Kind::Ordered)?;
    let mut session = engine.session()?;
    let left = session.transact(|tx| tx.count(orders, ..))?;
    assert_eq!(left, u64::from(ORDERS - ORDERS / CUSTOMERS), "one customer has no orders any more");
    assert!(newest(&mut session, orders, 7, 3)?.is_empty());
    writeln!(out, "orders after a restart: {left}")?;
    drop(session);
    engine.close()?;
    Ok(())
}
