//! Tests of the page store on the simulated disk, beside an oracle.

mod damage;
mod random;
mod seen;
mod states;
mod threads;
mod world;
