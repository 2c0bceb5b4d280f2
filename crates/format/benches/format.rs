//! What encoding costs: log records, checkpoint blocks, checksums, key hashes.
fn main() {}
