//! The Redis-protocol server. Knows no files.
