//! Tests of nodes: comparison with ordered maps, hostile words, and readers without a latch.

mod common;
mod edges;
mod hostile;
mod inner;
mod leaves;
mod optimistic;
