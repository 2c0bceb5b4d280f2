//! The nine tables of TPC-C as arrays of rows (specification 5.11, clause 1.3), and their sizes.
//!
//! Key columns are not stored, since a row's position determines them. Rows of a warehouse lie
//! together in the order of their numbers. Numbers begin at 0, those of orders at 1. Orders, their
//! lines and new orders lie in one ring per district, history in one ring per warehouse. Money is
//! in cents, rates in 1/10,000. Columns marked "index" stand for what a database would keep in an
//! index.

use stillpoint_state::{Array, Cells, Field, FieldValue, Plain, Scheme};

use crate::workloads::load::Declare;

/// Districts of a warehouse.
pub(crate) const DISTRICTS: usize = 10;
/// Most lines of an order, and the lines that an order has room for.
pub(crate) const LINES_MAX: usize = 15;

/// Size of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Scale {
    /// Number of warehouses.
    pub(crate) warehouses: usize,
    /// Items: 100,000 in the specification.
    pub(crate) items: usize,
    /// Customers of a district: 3,000 in the specification. A district begins with the same number
    /// of orders.
    pub(crate) customers: usize,
    /// Capacity of a district's ring of orders. A new order replaces the oldest delivered one.
    pub(crate) ring: usize,
    /// Capacity of a warehouse's ring of history. A new row replaces the oldest one.
    pub(crate) history: usize,
}

impl Scale {
    /// The specification's database, with rings for a third more orders than it begins with.
    pub(crate) fn full(warehouses: usize) -> Self {
        Scale { warehouses, items: 100_000, customers: 3_000, ring: 4_096, history: 40_960 }
    }

    /// About a thirtieth of the specification's database, for tests and quick runs.
    pub(crate) fn small(warehouses: usize) -> Self {
        Scale { warehouses, items: 2_000, customers: 120, ring: 256, history: 4_096 }
    }

    /// The database for records, whose orders and history are unbounded.
    pub(crate) fn unbounded(self) -> Self {
        Scale { ring: 1 << 24, history: 1 << 28, ..self }
    }

    /// Districts in all.
    pub(crate) fn districts(&self) -> usize {
        self.warehouses * DISTRICTS
    }

    /// Rows of history.
    pub(crate) fn history_rows(&self) -> usize {
        self.warehouses * self.history
    }

    /// Orders that are delivered at first: the older 70 % (clause 4.3.3.1).
    pub(crate) fn delivered_at_first(&self) -> usize {
        self.customers * 7 / 10
    }

    /// Row of a district's order of this number. Orders are numbered from 1.
    pub(crate) fn order_row(&self, district: usize, order: u32) -> usize {
        district * self.ring + order as usize % self.ring
    }

    /// Row of the history that a warehouse writes after `written` others.
    pub(crate) fn history_row(&self, warehouse: usize, written: u64) -> usize {
        warehouse * self.history + (written % self.history as u64) as usize
    }

    /// Row of a customer.
    pub(crate) fn customer_row(&self, district: usize, customer: u32) -> usize {
        district * self.customers + customer as usize
    }

    /// Row of an item's stock.
    pub(crate) fn stock_row(&self, warehouse: usize, item: u32) -> usize {
        warehouse * self.items + item as usize
    }
}

/// A row of a table.
pub(crate) trait TableRow: Plain + FieldValue + PartialEq {
    /// The number of the row's table.
    const TABLE: u8;
    /// The name of the row's table.
    const NAME: &'static str;
    /// The array of the row's table.
    fn array(tables: &Tables) -> Array<Self>;
    /// Number of rows in the table.
    fn count(scale: &Scale) -> usize;
    /// Bytes of the first columns, if these are also written together. 0 if they are not.
    const TOGETHER_BYTES: usize;
    /// Offset and length of the columns, in bytes.
    fn columns() -> Vec<(usize, usize)>;
}

/// A visitor of all tables.
pub(crate) trait Visit {
    /// Visits one table.
    fn table<T: TableRow>(&mut self, array: Array<T>);
}

macro_rules! tables {
    ($(
        $(#[$doc:meta])*
        $row:ident in $slot:ident, $count:expr $(, $together:ident)? => {
            $( $(#[$field_doc:meta])* $field:ident : $type:ty => $constant:ident ),+ $(,)?
        }
    )+) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Plain)]
            pub(crate) struct $row { $( $(#[$field_doc])* #[field($constant)] pub(crate) $field: $type, )+ }

            impl TableRow for $row {
                const TABLE: u8 = TableNumber::$row as u8;
                const NAME: &'static str = stringify!($slot);
                const TOGETHER_BYTES: usize = 0 $( + <$together as FieldValue>::PACKED_BYTES )?;
                fn array(tables: &Tables) -> Array<Self> {
                    tables.$slot
                }
                fn count(scale: &Scale) -> usize {
                    let count: fn(&Scale) -> usize = $count;
                    count(scale)
                }
                fn columns() -> Vec<(usize, usize)> {
                    vec![ $( (Self::$constant.offset(), <$type as FieldValue>::PACKED_BYTES), )+ ]
                }
            }
        )+

        enum TableNumber { $( $row ),+ }

        /// Rows of each table, and bytes of one row.
        fn sizes(scale: &Scale) -> Vec<(usize, usize)> {
            vec![ $( ($row::count(scale), $row::BYTES), )+ ]
        }

        /// The arrays of the tables.
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct Tables { $( $(#[$doc])* pub $slot: Array<$row>, )+ }

        impl Tables {
            /// Declares all tables.
            pub(crate) fn declare(builder: &mut impl Declare, scale: &Scale) -> Self {
                Tables { $( $slot: builder.array($row::NAME, $row::count(scale)), )+ }
            }

            /// Visits each table, in the order of their numbers.
            pub(crate) fn each(&self, visit: &mut impl Visit) {
                $( visit.table(self.$slot); )+
            }

            /// Overwrites a part of a row in the table of this number. Returns false if there is no
            /// such table, row or part.
            pub(crate) fn write<S: Scheme>(
                &self,
                cells: &mut Cells<S>,
                table: u8,
                row: usize,
                offset: usize,
                bytes: &[u8],
            ) -> bool {
                $(
                    if table == $row::TABLE {
                        let is_there = row < cells.array(self.$slot).len()
                            && offset + bytes.len() <= <$row as Plain>::BYTES;
                        if is_there {
                            cells.write_part(self.$slot, row, offset, bytes);
                        }
                        return is_there;
                    }
                )+
                false
            }
        }
    };
}

tables! {
    /// WAREHOUSE.
    Warehouse in warehouse, |scale| scale.warehouses => {
        /// Payments of the year to date, in cents.
        ytd: i64 => YTD,
        /// Sales tax in 1/10,000.
        tax: u32 => TAX,
        /// Name.
        name: [u8; 10] => NAME_TEXT,
        /// First line of the address.
        street_1: [u8; 20] => STREET_1,
        /// Second line of the address.
        street_2: [u8; 20] => STREET_2,
        /// City.
        city: [u8; 20] => CITY,
        /// State.
        state: [u8; 2] => STATE,
        /// Post code.
        zip: [u8; 9] => ZIP,
        /// Padding.
        pad: [u8; 3] => PAD,
    }
    /// DISTRICT.
    District in district, |scale| scale.districts() => {
        /// Payments of the year to date, in cents.
        ytd: i64 => YTD,
        /// Sales tax in 1/10,000.
        tax: u32 => TAX,
        /// The number of the next order.
        next_order: u32 => NEXT_ORDER,
        /// Index: the oldest order that is not delivered.
        oldest_new: u32 => OLDEST_NEW,
        /// Name.
        name: [u8; 10] => NAME_TEXT,
        /// First line of the address.
        street_1: [u8; 20] => STREET_1,
        /// Second line of the address.
        street_2: [u8; 20] => STREET_2,
        /// City.
        city: [u8; 20] => CITY,
        /// State.
        state: [u8; 2] => STATE,
        /// Post code.
        zip: [u8; 9] => ZIP,
        /// Padding.
        pad: [u8; 3] => PAD,
    }
    /// CUSTOMER.
    Customer in customer, |scale| scale.districts() * scale.customers, CustomerCounts => {
        /// Balance that the customer owes, in cents.
        balance: i64 => BALANCE,
        /// Paid in the year.
        ytd_payment: i64 => YTD_PAYMENT,
        /// Number of payments.
        payments: u32 => PAYMENTS,
        /// Number of deliveries.
        deliveries: u32 => DELIVERIES,
        /// Index: the customer's last order, 0 for none.
        last_order: u32 => LAST_ORDER,
        /// Discount in 1/10,000.
        discount: u32 => DISCOUNT,
        /// Limit of credit in cents.
        credit_limit: i64 => CREDIT_LIMIT,
        /// Date of the first contact.
        since: u64 => SINCE,
        /// "GC" or "BC".
        credit: [u8; 2] => CREDIT,
        /// First name.
        first: [u8; 16] => FIRST,
        /// "OE".
        middle: [u8; 2] => MIDDLE,
        /// Last name.
        last: [u8; 16] => LAST,
        /// First line of the address.
        street_1: [u8; 20] => STREET_1,
        /// Second line of the address.
        street_2: [u8; 20] => STREET_2,
        /// City.
        city: [u8; 20] => CITY,
        /// State.
        state: [u8; 2] => STATE,
        /// Post code.
        zip: [u8; 9] => ZIP,
        /// Telephone.
        phone: [u8; 16] => PHONE,
        /// Notes about the customer.
        data: [u8; 500] => DATA,
        /// Padding.
        pad: [u8; 1] => PAD,
    }
    /// HISTORY.
    History in history, |scale| scale.history_rows() => {
        /// Date of the payment.
        date: u64 => DATE,
        /// Amount in cents.
        amount: i64 => AMOUNT,
        /// Number of the customer within the customer's district.
        customer: u32 => CUSTOMER,
        /// The customer's district, numbered through all warehouses.
        customer_district: u32 => CUSTOMER_DISTRICT,
        /// The district that took the payment, numbered through all warehouses.
        district: u32 => DISTRICT,
        /// 1 if the row exists.
        is_there: u32 => IS_THERE,
        /// Names of the warehouse and the district.
        data: [u8; 24] => DATA,
    }
    /// NEW-ORDER.
    NewOrder in new_order, |scale| scale.districts() * scale.ring => {
        /// The order's number, 0 for none.
        order: u64 => ORDER,
    }
    /// ORDER.
    Order in order, |scale| scale.districts() * scale.ring => {
        /// Date of the order.
        entry: u64 => ENTRY,
        /// The order's number, 0 for an empty row.
        number: u32 => NUMBER,
        /// Number of the customer within the district.
        customer: u32 => CUSTOMER,
        /// Number of the carrier, 0 for none.
        carrier: u32 => CARRIER,
        /// Number of lines.
        lines: u16 => LINES,
        /// 1 if the order's own warehouse supplies all lines.
        all_local: u16 => ALL_LOCAL,
    }
    /// ORDER-LINE: [`LINES_MAX`] for each order.
    OrderLine in order_line, |scale| scale.districts() * scale.ring * LINES_MAX => {
        /// Date of the delivery, 0 if not delivered.
        delivered: u64 => DELIVERED,
        /// Number of the item.
        item: u32 => ITEM,
        /// Number of the supplying warehouse.
        supply: u32 => SUPPLY,
        /// Number of pieces.
        quantity: u32 => QUANTITY,
        /// Amount in cents.
        amount: u32 => AMOUNT,
        /// The stock's text for the district.
        district_text: [u8; 24] => DISTRICT_TEXT,
    }
    /// ITEM.
    Item in item, |scale| scale.items => {
        /// Number of the picture.
        image: u32 => IMAGE,
        /// Price in cents.
        price: u32 => PRICE,
        /// Name of the item.
        name: [u8; 24] => NAME_TEXT,
        /// Description.
        data: [u8; 50] => DATA,
        /// Padding.
        pad: [u8; 6] => PAD,
    }
    /// STOCK.
    Stock in stock, |scale| scale.warehouses * scale.items, StockCounts => {
        /// Pieces in stock.
        quantity: i32 => QUANTITY,
        /// Pieces ordered in the year.
        ytd: u32 => YTD,
        /// Number of orders.
        orders: u32 => ORDERS,
        /// Number of orders from other warehouses.
        remote: u32 => REMOTE,
        /// A text for each district.
        districts: [u8; 240] => DISTRICT_TEXTS,
        /// Description.
        data: [u8; 50] => DATA,
        /// Padding.
        pad: [u8; 6] => PAD,
    }
    /// Counters of a warehouse.
    Counters in counters, |scale| scale.warehouses => {
        /// Rows of history ever written.
        history: u64 => HISTORY,
        /// New orders that found no room in the ring of their district.
        refused: u64 => REFUSED,
    }
}

/// Counts of a stock that a new order changes together: the first columns of [`Stock`].
#[derive(Clone, Copy, Debug, PartialEq, Plain)]
pub(crate) struct StockCounts {
    /// Pieces in stock.
    pub(crate) quantity: i32,
    /// Pieces ordered in the year.
    pub(crate) ytd: u32,
    /// Number of orders.
    pub(crate) orders: u32,
    /// Number of orders from other warehouses.
    pub(crate) remote: u32,
}

/// Amounts of a customer that a payment or a delivery changes together: the first columns of
/// [`Customer`].
#[derive(Clone, Copy, Debug, PartialEq, Plain)]
pub(crate) struct CustomerCounts {
    /// Balance that the customer owes, in cents.
    pub(crate) balance: i64,
    /// Paid in the year.
    pub(crate) ytd_payment: i64,
    /// Number of payments.
    pub(crate) payments: u32,
    /// Number of deliveries.
    pub(crate) deliveries: u32,
}

impl Customer {
    /// The amounts that change together.
    pub(crate) const COUNTS: Field<Customer, CustomerCounts> = Field::at(0);
}

impl Stock {
    /// The counts that change together.
    pub(crate) const COUNTS: Field<Stock, StockCounts> = Field::at(0);

    /// The stock's text for a district of the warehouse.
    pub(crate) fn district_text(district: usize) -> Field<Stock, [u8; 24]> {
        Field::at(Stock::DISTRICT_TEXTS.offset() + 24 * district)
    }
}

/// Rows of all tables.
pub(crate) fn row_count(scale: &Scale) -> u64 {
    sizes(scale).iter().map(|(rows, _)| *rows as u64).sum()
}

/// Bytes of one copy of the database.
pub(crate) fn data_bytes(scale: &Scale) -> u64 {
    sizes(scale).iter().map(|(rows, bytes)| (rows * bytes) as u64).sum()
}
