//! Journals, their registry and their commit rules. Knows no store.
