//! Tests of the redo journal and its reader, on a simulated disk with crashes, faults and damage,
//! and with threads on a real disk.

mod basics;
mod crash;
mod damage;
mod faults;
mod space;
mod support;
mod threads;
