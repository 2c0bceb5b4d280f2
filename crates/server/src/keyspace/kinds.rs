//! The kinds of values: one row each. `TYPE`, `OBJECT ENCODING` and the layout of the elements follow
//! from the row.

use super::fields::{self, Field};
use crate::resp::parse_i64;

/// The kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind(u8);

/// The bits of a tag that name the kind of the value.
const KIND_MASK: u8 = 0x0f;

/// The order of the elements of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The order in which they were put.
    Position,
    /// No order that a client may rely on. Elements have names, and are found by their names.
    Names,
    /// The order of the elements' bytes. Elements also have names, and are found by their names.
    Contents,
}

/// The properties of the elements of a kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct ElementRules {
    pub(super) order: Order,
    /// The name in the content of an element.
    pub(super) name: fn(&[u8]) -> &[u8],
    /// The reply of `OBJECT ENCODING` for a small collection, and for a larger one.
    pub(super) encodings: [&'static str; 2],
    /// Whether a collection of that many elements, with an element of that content, still is small.
    pub(super) is_small: fn(&SmallLimits, u64, &[u8]) -> bool,
    /// How elements expire; `None` if they do not.
    pub(super) times: Option<TimeRules>,
}

/// Up to where `OBJECT ENCODING` calls a collection small. Redis has parameters of these names. How
/// elements are stored does not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SmallLimits {
    /// Most fields of a hash.
    pub(crate) hash_max_entries: u64,
    /// Most bytes of a field or of its value.
    pub(crate) hash_max_value: u64,
    /// Most members of a set of integers.
    pub(crate) set_max_entries: u64,
    /// Most members of a sorted set.
    pub(crate) zset_max_entries: u64,
    /// Most bytes of a member of a sorted set.
    pub(crate) zset_max_value: u64,
}

impl SmallLimits {
    /// The limits of Redis 7.0.
    pub(crate) const DEFAULT: Self = Self {
        hash_max_entries: 512,
        hash_max_value: 64,
        set_max_entries: 512,
        zset_max_entries: 128,
        zset_max_value: 64,
    };
    /// The limits of releases before those that could change them.
    pub(crate) const EARLIER: Self = Self { hash_max_entries: 128, ..Self::DEFAULT };
}

/// Most members of a set of integers, whatever the limit is, as in Redis.
const INTEGERS_MAX: u64 = 1 << 30;

/// Gives the expiry of the element with a content, in milliseconds since the Unix epoch.
pub(super) type ExpiryOf = fn(&[u8]) -> Option<u64>;

/// How the elements of a kind expire.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeRules {
    pub(super) expiry: ExpiryOf,
    /// What `OBJECT ENCODING` answers of a small collection in which an element has had an expiry.
    pub(super) encoding: &'static str,
}

/// A kind of values.
struct KindRow {
    kind: Kind,
    /// The name that `TYPE` answers.
    name: &'static str,
    /// `None`: the value is a string of bytes.
    elements: Option<ElementRules>,
}

impl Kind {
    /// A string of bytes.
    pub(crate) const STRING: Self = Self(0);
    /// A list of strings.
    pub(crate) const LIST: Self = Self(1);
    /// A set of strings.
    pub(crate) const SET: Self = Self(2);
    /// A set of strings in the order of their scores.
    pub(crate) const SORTED_SET: Self = Self(3);
    /// Fields with a value each.
    pub(crate) const HASH: Self = Self(4);

    /// The kind that a tag names.
    pub(super) fn of(tag: u8) -> Self {
        Self(tag & KIND_MASK)
    }

    pub(super) fn tag(self) -> u8 {
        self.0
    }

    /// Whether commands wait until a key has a value of this kind.
    pub(super) fn is_waited_for(self) -> bool {
        self == Self::LIST || self == Self::SORTED_SET
    }

    fn row(self) -> Option<&'static KindRow> {
        KINDS.iter().find(|row| row.kind == self)
    }

    /// The name that `TYPE` answers.
    pub(crate) fn name(self) -> &'static str {
        self.row().map_or("unknown", |row| row.name)
    }

    /// The properties of the elements. `None` for a value that is no collection.
    pub(super) fn elements(self) -> Option<&'static ElementRules> {
        self.row().and_then(|row| row.elements.as_ref())
    }
}

const KINDS: &[KindRow] = &[
    KindRow { kind: Kind::STRING, name: "string", elements: None },
    KindRow {
        kind: Kind::LIST,
        name: "list",
        elements: Some(ElementRules {
            order: Order::Position,
            name: |content| content,
            encodings: ["quicklist", "quicklist"],
            is_small: |_, _, _| true,
            times: None,
        }),
    },
    KindRow {
        kind: Kind::SET,
        name: "set",
        elements: Some(ElementRules {
            order: Order::Names,
            name: |content| content,
            encodings: ["intset", "hashtable"],
            is_small: |limits, len, content| {
                len <= limits.set_max_entries.min(INTEGERS_MAX) && parse_i64(content).is_some()
            },
            times: None,
        }),
    },
    KindRow {
        kind: Kind::SORTED_SET,
        name: "zset",
        elements: Some(ElementRules {
            order: Order::Contents,
            name: |content| content.get(SCORE_BYTES..).unwrap_or_default(),
            encodings: ["listpack", "skiplist"],
            is_small: |limits, len, content| {
                let bytes = content.len().saturating_sub(SCORE_BYTES) as u64;
                len <= limits.zset_max_entries && bytes <= limits.zset_max_value
            },
            times: None,
        }),
    },
    KindRow {
        kind: Kind::HASH,
        name: "hash",
        elements: Some(ElementRules {
            order: Order::Names,
            name: fields::name,
            encodings: ["listpack", "hashtable"],
            is_small: |limits, len, content| {
                let field = Field::of(content);
                let bytes = field.name.len().max(field.value.len()) as u64;
                len <= limits.hash_max_entries && bytes <= limits.hash_max_value
            },
            times: Some(TimeRules { expiry: fields::expiry, encoding: "listpackex" }),
        }),
    },
];

/// Bytes of a score before the member that has it.
pub(crate) const SCORE_BYTES: usize = 8;
