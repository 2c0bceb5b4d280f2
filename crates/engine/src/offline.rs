//! Looking at data directories that are not open.
