//! Latches, lock words, epochs and padded atomics, switchable to loom and shuttle. Knows no data layout.
