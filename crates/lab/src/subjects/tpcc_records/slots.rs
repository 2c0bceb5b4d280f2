//! The keys that a transaction declares, in order, and the row of each slot.

use stillpoint::{KeySet, Mode, Slot};

use crate::subjects::tpcc_records::procedure::{Asked, Tpcc};
use crate::workloads::tpcc::input::{CustomerKey, Line, Transaction};
use crate::workloads::tpcc::load::last_name;
use crate::workloads::tpcc::schema::{
    Counters, Customer, DISTRICTS, District, History, Item, LINES_MAX, NewOrder, Order, OrderLine,
    Scale, Stock, TableRow, Warehouse,
};

/// Number of slots before those of the lines.
const HEAD: usize = 5;
/// Number of slots of a line: stock, item, line.
const LINE: usize = 3;

/// The rows of a transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots<'a> {
    scale: Scale,
    warehouse: usize,
    district: usize,
    customer: usize,
    kind: Kind<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Kind<'a> {
    /// The rows of order, new order and lines.
    NewOrder { order: usize, lines: &'a [Line] },
    /// Whether an item does not exist. Then the transaction writes nothing.
    RolledBack,
    /// Counters, history, and the secondary record of a last name.
    Payment { history: usize, customer_district: usize, who: CustomerKey },
}

/// The key of a row.
pub(super) fn key(row: usize) -> [u8; 8] {
    (row as u64).to_be_bytes()
}

/// The key of the secondary record of a last name.
pub(super) fn name_key(district: usize, name: u32) -> [u8; 20] {
    let mut key = [0; 20];
    key[..4].copy_from_slice(&(district as u32).to_be_bytes());
    key[4..].copy_from_slice(&last_name(u64::from(name)));
    key
}

impl<'a> Slots<'a> {
    /// The slots of a transaction. `None` if the transaction is neither an order nor a payment.
    #[inline]
    pub(super) fn of(scale: &Scale, asked: &'a Asked) -> Option<Self> {
        let (district, customer, kind) = match &asked.transaction {
            Transaction::NewOrder { district, customer, count, lines, .. } => {
                let (district, lines) = (*district as usize, &lines[..usize::from(*count)]);
                let kind = if lines.iter().any(|line| line.item as usize >= scale.items) {
                    Kind::RolledBack
                } else {
                    let order = scale.order_row(district, asked.expected as u32);
                    Kind::NewOrder { order, lines }
                };
                (district, scale.customer_row(district, *customer), kind)
            }
            Transaction::Payment { district, customer_district, who, .. } => {
                let (district, customer_district) =
                    (*district as usize, *customer_district as usize);
                let history = scale.history_row(district / DISTRICTS, asked.expected);
                let customer = scale.customer_row(customer_district, asked.customer);
                let kind = Kind::Payment { history, customer_district, who: *who };
                (district, customer, kind)
            }
            _ => return None,
        };
        let warehouse = district / DISTRICTS;
        Some(Slots { scale: *scale, warehouse, district, customer, kind })
    }

    /// The slot of a row. `None` if the transaction has not declared the row.
    #[inline]
    pub(super) fn slot<T: TableRow>(&self, row: usize) -> Option<Slot> {
        let is = |expected: usize, slot: usize| (row == expected).then_some(slot);
        let table = T::TABLE;
        let slot = if table == Warehouse::TABLE {
            is(self.warehouse, 0)
        } else if table == District::TABLE {
            is(self.district, 1)
        } else if table == Customer::TABLE {
            is(self.customer, 2)
        } else {
            match self.kind {
                Kind::NewOrder { order, lines } => self.of_order::<T>(row, order, lines),
                Kind::Payment { .. } if table == Counters::TABLE => is(self.warehouse, 3),
                Kind::Payment { history, .. } if table == History::TABLE => is(history, 4),
                _ => None,
            }
        };
        slot.map(|slot| Slot(slot as u32))
    }

    #[inline]
    fn of_order<T: TableRow>(&self, row: usize, order: usize, lines: &[Line]) -> Option<usize> {
        let table = T::TABLE;
        if table == Order::TABLE {
            return (row == order).then_some(3);
        }
        if table == NewOrder::TABLE {
            return (row == order).then_some(4);
        }
        let (line, place) = if table == Stock::TABLE {
            let is = |line: &Line| self.scale.stock_row(usize::from(line.supply), line.item) == row;
            (lines.iter().position(is)?, 0)
        } else if table == Item::TABLE {
            (lines.iter().position(|line| line.item as usize == row)?, 1)
        } else if table == OrderLine::TABLE {
            let line = row.checked_sub(order * LINES_MAX)?;
            (line < lines.len()).then_some((line, 2))?
        } else {
            return None;
        };
        Some(HEAD + LINE * line + place)
    }

    /// Whether the transaction writes nothing, since an item does not exist.
    pub(super) fn rolls_back(&self) -> bool {
        matches!(self.kind, Kind::RolledBack)
    }

    /// The slot of the secondary record, for a customer given by last name.
    pub(super) fn name(&self) -> Option<Slot> {
        let is_named = matches!(self.kind, Kind::Payment { who: CustomerKey::Name(_), .. });
        is_named.then_some(Slot(HEAD as u32))
    }

    /// Declares all keys, in the order of the slots.
    pub(super) fn declare(&self, tpcc: &Tpcc, keys: &mut KeySet) {
        let mut row = Declaring { tpcc, keys };
        let pays = matches!(self.kind, Kind::Payment { .. });
        row.push::<Warehouse>(self.warehouse, if pays { Mode::Write } else { Mode::Read });
        row.push::<District>(self.district, Mode::Write);
        row.push::<Customer>(self.customer, Mode::Write);
        match self.kind {
            Kind::RolledBack => {}
            Kind::NewOrder { order, lines } => {
                row.push::<Order>(order, Mode::Write);
                row.push::<NewOrder>(order, Mode::Write);
                for (number, line) in lines.iter().enumerate() {
                    let stock = self.scale.stock_row(usize::from(line.supply), line.item);
                    row.push::<Stock>(stock, Mode::Write);
                    row.push::<Item>(line.item as usize, Mode::Read);
                    row.push::<OrderLine>(order * LINES_MAX + number, Mode::Write);
                }
            }
            Kind::Payment { history, customer_district, who } => {
                row.push::<Counters>(self.warehouse, Mode::Write);
                row.push::<History>(history, Mode::Write);
                if let CustomerKey::Name(name) = who {
                    let key = name_key(customer_district, name);
                    row.keys.push(tpcc.names, &key, Mode::Read, 0);
                }
            }
        }
    }
}

struct Declaring<'a> {
    tpcc: &'a Tpcc,
    keys: &'a mut KeySet,
}

impl Declaring<'_> {
    #[inline]
    fn push<T: TableRow>(&mut self, row: usize, mode: Mode) {
        self.keys.push(self.tpcc.table::<T>(), &key(row), mode, T::PACKED_BYTES);
    }
}
