//! Orders of customers in an ordered table. The newest orders of one customer are found, a page of the
//! list, and the number of orders before a key. An invoice misses no order.
//!
//! The invoices with all their lines go to a paged table of ten times its pool. An invoice and the deletion
//! of its orders are one transaction on tables of both kinds.
//!
//! `cargo run --release -p stillpoint --example orders`

use std::error::Error;
use std::io::Write;

use stillpoint::{Config, Engine, Kind, Session, TableId};

const CUSTOMERS: u32 = 200;
const ORDERS: u32 = 10_000;
/// The pool holds a tenth of the archive.
const POOL_BYTES: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;
/// Documents of the archive, and bytes of one.
const DOCUMENTS: u32 = 12_000;
const DOCUMENT_BYTES: usize = 800;

fn config(directory: &std::path::Path) -> Config {
    let mut config = Config::new(directory);
    config.pool_bytes = Some(POOL_BYTES);
    config.page_bytes = Some(PAGE_BYTES);
    config
}

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

/// Sums the orders of a customer, archives the invoice, and deletes them. An order that arrives meanwhile
/// waits, and is in the next invoice.
fn invoice(
    session: &mut Session,
    (orders, archive): (TableId, TableId),
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
        tx.put(archive, &key(customer, u32::MAX), &document(sum))?;
        Ok(sum)
    })
}

/// A document of the archive: the sum, and the text of the invoice.
fn document(sum: u64) -> Vec<u8> {
    let mut bytes = vec![b'.'; DOCUMENT_BYTES];
    bytes[..8].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Fills the archive with older invoices, and shows what its pool does.
fn fill_archive(
    engine: &Engine,
    session: &mut Session,
    archive: TableId,
    out: &mut impl Write,
) -> Result<(), Box<dyn Error>> {
    for first in (0..DOCUMENTS).step_by(100) {
        session.transact(|tx| {
            (first..first + 100).try_for_each(|number| {
                let at = number.wrapping_mul(7919) % DOCUMENTS;
                tx.put(archive, &key(at % CUSTOMERS, at), &document(u64::from(at)))
            })
        })?;
    }
    engine.checkpoint()?;
    let data_bytes = DOCUMENTS as usize * DOCUMENT_BYTES;
    writeln!(out, "archive: {} KiB in a pool of {} KiB", data_bytes >> 10, POOL_BYTES >> 10)?;
    let pool = engine.stats().pool.ok_or("there is a pool")?;
    assert!(data_bytes > 9 * POOL_BYTES && pool.evictions > 1000, "{pool:?}");
    Ok(())
}

/// Number and sum of the archived documents of a customer, from a range of the paged table.
fn archived(
    session: &mut Session,
    archive: TableId,
    customer: u32,
) -> Result<(u32, u64), stillpoint::Error> {
    session.transact(|tx| {
        let (mut count, mut sum) = (0, 0);
        let mut range = tx.range(archive, &key(customer, 0)[..]..&key(customer + 1, 0)[..])?;
        while let Some((_, document)) = range.next_record()? {
            sum += document.u64_at(0).unwrap_or(0);
            count += 1;
        }
        Ok((count, sum))
    })
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let mut out = std::io::stdout().lock();
    let directory = tempfile::tempdir()?;
    let engine = Engine::open(config(directory.path()))?;
    let orders = engine.table_with("orders", Kind::Ordered)?;
    let archive = engine.table_with("archive", Kind::Paged)?;
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

    fill_archive(&engine, &mut session, archive, &mut out)?;
    let (before, _) = archived(&mut session, archive, 7)?;
    let sum = invoice(&mut session, (orders, archive), 7)?;
    writeln!(out, "invoice of customer 7: {sum}")?;
    drop(session);
    engine.close()?;

    // The order of keys is not on disk: the opening builds it again.
    let engine = Engine::open(config(directory.path()))?;
    let orders = engine.table_with("orders", Kind::Ordered)?;
    let archive = engine.table_with("archive", Kind::Paged)?;
    let mut session = engine.session()?;
    let left = session.transact(|tx| tx.count(orders, ..))?;
    assert_eq!(left, u64::from(ORDERS - ORDERS / CUSTOMERS), "one customer has no orders any more");
    assert!(newest(&mut session, orders, 7, 3)?.is_empty());
    writeln!(out, "orders after a restart: {left}")?;
    let (documents, sums) = archived(&mut session, archive, 7)?;
    assert_eq!(documents, before + 1);
    writeln!(out, "archived invoices of customer 7: {documents}, together {sums}")?;
    drop(session);
    engine.close()?;
    Ok(())
}
