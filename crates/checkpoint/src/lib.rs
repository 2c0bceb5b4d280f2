//! Checkpoint schemes, their registry, the writer and the reader of checkpoints. Knows no journal and no sockets.
