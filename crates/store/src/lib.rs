//! Records, indexes, transactions and the phase driver. Knows no checkpoint algorithm's name and no journal.
