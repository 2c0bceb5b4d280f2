//! The one binary, `stillpoint`.
fn main() {}
