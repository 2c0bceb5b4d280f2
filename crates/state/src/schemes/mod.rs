//! One file for each scheme, and one row below: see [`crate::registry`].

pub(crate) mod copy_on_update;
pub(crate) mod fork;
pub(crate) mod hourglass;
pub(crate) mod naive_snapshot;
pub(crate) mod none;
pub(crate) mod piggyback;
pub(crate) mod ping_pong;
pub(crate) mod written_pages;
pub(crate) mod zigzag;

pub use copy_on_update::CopyOnUpdate;
pub use fork::{Fork, Forked};
pub use hourglass::Hourglass;
pub use naive_snapshot::NaiveSnapshot;
pub use none::NoCheckpoints;
pub use piggyback::Piggyback;
pub use ping_pong::PingPong;
pub use written_pages::CopyWrittenPages;
pub use zigzag::Zigzag;

use stillpoint_format::registry::{Registry, UnknownName};

use crate::layout::{BitArray, Interleaved, Layout, Naive, Packed};
use crate::registry::{LayoutRow, Program, Row, registry};
use crate::scheme::Scheme;

registry! {
    {
        scheme: "none",
        about: "no checkpoints: the baseline",
        source: "SIGMOD 2011, §5.2 (raw mutator)",
        constant_tick: true,
        run: none::NoCheckpoints,
        layouts: { "none" => Naive },
    }
    {
        scheme: "naive snapshot",
        about: "copies everything at a point of consistency; free in between",
        source: "SIGMOD 2011, §2.3",
        constant_tick: false,
        run: naive_snapshot::NaiveSnapshot,
        layouts: { "ns" => Naive },
    }
    {
        scheme: "copy-on-update",
        about: "the first write to a block in a period saves its old value, under a latch",
        source: "SIGMOD 2011, §2.3 and §4.1",
        constant_tick: false,
        run: copy_on_update::CopyOnUpdate,
        layouts: { "bacou" => BitArray, "cou" => Naive },
    }
    {
        scheme: "fork",
        about: "a child process keeps the memory of a point of consistency; the system copies pages",
        source: "ICDE 2018, §II-A.2",
        constant_tick: false,
        run: fork::Fork,
        layouts: { "fork" => Naive },
    }
    {
        scheme: "written pages",
        about: "at a point of consistency copies the pages that were written, which the system finds",
        source: "Stillpoint (userfaultfd, PAGEMAP_SCAN)",
        constant_tick: false,
        run: written_pages::CopyWrittenPages,
        layouts: { "uffd-wp" => Naive },
    }
    {
        scheme: "zigzag",
        about: "two copies; two bits say which one to read and which to write; no lock",
        source: "SIGMOD 2011, §3.2 and §4.2",
        constant_tick: false,
        run: zigzag::Zigzag,
        layouts: { "bazz" => BitArray, "nzz" => Naive, "izz" => Interleaved, "pzz" => Packed },
    }
    {
        scheme: "ping-pong",
        about: "three copies; every write goes to two; a point of consistency swaps pointers",
        source: "SIGMOD 2011, §3.3 and §4.3",
        constant_tick: true,
        run: ping_pong::PingPong,
        layouts: { "ipp" => Interleaved, "npp" => Naive },
    }
    {
        scheme: "hourglass",
        about: "two copies that are swapped, each with the period of its last write; images of changes",
        source: "ICDE 2018, §II-B.1",
        constant_tick: true,
        run: hourglass::Hourglass,
        layouts: {
            "hg" => Packed,
            "hg-interleaved" => Interleaved,
            "hg-naive" => Naive,
        },
    }
    {
        scheme: "piggyback",
        about: "two copies that are swapped, and a copier that keeps them complete; full images",
        source: "ICDE 2018, §II-B.2",
        constant_tick: true,
        run: piggyback::Piggyback,
        layouts: {
            "pb" => Naive,
            "pb-bits" => BitArray,
            "pb-interleaved" => Interleaved,
            "pb-packed" => Packed,
        },
    }
}
