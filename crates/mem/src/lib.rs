//! Reserved memory regions, aligned buffers, huge pages, prefetch. Knows no transactions.
