//! Tests of kinds of tables. Each kind must pass one suite, alone and together with the memory
//! store in one transaction. Crashes of a simulated machine come in the middle of such
//! transactions.
//!
//! The second kind is `in_place`. A further kind gets its row in `suite::KINDS`.
//!
//! One seed of the crashes again: `STILLPOINT_KINDS_SEED=<seed> cargo test -p stillpoint --test kinds`
//! More of them: `STILLPOINT_KINDS_SEEDS=1000`

mod crash;
mod in_place;
mod suite;
mod world;

#[test]
fn transactions_on_two_kinds_survive_crashes() {
    crash::transactions_on_two_kinds();
}

#[test]
fn a_crash_during_the_undo_is_survived() {
    crash::a_crash_during_the_undo();
}
