//! Load, replay and verification after a stop of any kind. Knows no live engine.
