//! The microbenchmark of the CALC paper (§5.1): 20 million records of an 8-byte key and 100 bytes.
//! A transaction reads and updates ten of them, "and does some simple computing operations". In the
//! second version one in 100,000 transactions is a batch write that takes about two seconds.
//!
//! A value is a counter (8 bytes, little-endian) and a body. The body follows from the key, and in
//! whole-value mode from the counter too. Each update adds one to a counter, so the recovered state
//! can be checked. Every body must match its key, and the sum of all counters must be a multiple of
//! the keys per transaction.

use crate::workloads::random::{Keys, Random, splitmix64};

/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 8;
/// Bytes of a value.
pub(crate) const VALUE_BYTES: usize = 100;
/// Bytes of a value in runs whose limit is the log, not the processor.
pub(crate) const LARGE_VALUE_BYTES: usize = 1000;
/// Records that a transaction reads and updates.
pub(crate) const KEYS_PER_TRANSACTION: usize = 10;
/// Bytes that an update changes in [`Change::Counter`] mode, from the start of the value.
pub(crate) const COUNTER_BYTES: usize = 8;

/// How much of a value an update changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The counter only: 8 of 100 bytes.
    Counter,
    /// All bytes.
    Whole,
}

/// A transaction: read these records and update the first of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CalcTransaction {
    /// Record numbers, all different.
    pub(crate) keys: [u64; KEYS_PER_TRANSACTION],
    /// How many of the records are updated. The paper's transaction updates all.
    pub(crate) writes: usize,
}

/// What the transactions of a run do with their records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mix {
    /// Records that a transaction updates; it only reads the others.
    pub(crate) writes: usize,
    /// Whether record 0 is read by every transaction, and updated by none.
    pub(crate) all_read_one: bool,
}

impl Mix {
    /// The paper's: every record is updated.
    pub(crate) const OF_THE_PAPER: Mix = Mix { writes: KEYS_PER_TRANSACTION, all_read_one: false };
}

/// A batch write, which stays open for about [`LongTransactions::seconds`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LongTransaction {
    /// Different record numbers in ascending order. The count of the numbers is a multiple of
    /// [`KEYS_PER_TRANSACTION`].
    pub(crate) keys: Vec<u64>,
}

/// The second version's long transactions.
///
/// The paper keeps contention low in both versions, so that throughput shows
/// the cost of checkpoints and not of waiting for locks. Hence the last
/// hundredth of the records belongs to the batch writes alone.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(crate) struct LongTransactions {
    /// Seconds for which each long transaction stays open. The writes of a transaction are spread
    /// evenly over this time.
    pub(crate) seconds: f64,
    /// Records that each long transaction writes.
    pub(crate) writes: usize,
    /// Share of long transactions among all.
    pub(crate) share: f64,
    /// Most long transactions that are open at a time, each with a session of its own. On a fast
    /// engine this limit, not the share, bounds their number.
    pub(crate) open_max: usize,
}

impl LongTransactions {
    /// The paper's long transactions: 0.001 % of all, two seconds each.
    pub(crate) fn of_the_paper() -> LongTransactions {
        LongTransactions { seconds: 2.0, writes: 1_000, share: 1e-5, open_max: 2 }
    }
}

/// The key of a record. Big-endian keys sort in the order of their numbers.
pub(crate) fn key(record: u64) -> [u8; KEY_BYTES] {
    record.to_be_bytes()
}

/// The first word is a hash, and the others follow from it by additions. So a value costs less to
/// make than to write.
fn fill(body: &mut [u8], record: u64, version: u64) {
    let mut mix = record.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ version;
    let (first, step) = (splitmix64(&mut mix), splitmix64(&mut mix) | 1);
    let word = |n: usize| first.wrapping_add(step.wrapping_mul(n as u64)).to_le_bytes();
    let (words, rest) = body.as_chunks_mut::<8>();
    let count = words.len();
    for (n, to) in words.iter_mut().enumerate() {
        *to = word(n);
    }
    rest.copy_from_slice(&word(count)[..rest.len()]);
}

/// The value of a record before any update.
pub(crate) fn initial_value<const BYTES: usize>(record: u64) -> [u8; BYTES] {
    let mut value = [0; BYTES];
    fill(&mut value[COUNTER_BYTES..], record, 0);
    value
}

/// Number of updates of a value.
///
/// # Panics
/// When the value is shorter than a counter.
pub(crate) fn counter(value: &[u8]) -> u64 {
    u64::from_le_bytes(value[..COUNTER_BYTES].try_into().expect("eight bytes"))
}

/// The "simple computing" on a read value: the sum of its bytes.
pub(crate) fn compute(value: &[u8]) -> u64 {
    let (words, rest) = value.as_chunks::<8>();
    let sum = words.iter().fold(0_u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
    rest.iter().fold(sum, |sum, &byte| sum.rotate_left(5).wrapping_add(u64::from(byte)))
}

/// Updates a value in place. Returns how many bytes changed, counted from its start.
///
/// # Panics
/// When the value is shorter than a counter.
pub(crate) fn update(record: u64, value: &mut [u8], change: Change) -> usize {
    let next = counter(value) + 1;
    value[..COUNTER_BYTES].copy_from_slice(&next.to_le_bytes());
    match change {
        Change::Counter => COUNTER_BYTES,
        Change::Whole => {
            fill(&mut value[COUNTER_BYTES..], record, next);
            value.len()
        }
    }
}

/// The generator of one worker's transactions.
#[derive(Debug)]
pub(crate) struct Transactions {
    keys: Keys,
    /// Distance between two records in use.
    stride: u64,
    mix: Mix,
    random: Random,
}

impl Transactions {
    /// Transactions over the records `0..records`, all equally likely.
    ///
    /// # Panics
    /// When there are fewer records than a transaction touches.
    pub(crate) fn new(records: u64, seed: u64, worker: usize) -> Transactions {
        Transactions::of_hot(records, 1.0, seed, worker)
    }

    /// Transactions over a share of the records `0..records` (§5.1.2). The hot records lie
    /// scattered among the others, and all are equally likely.
    ///
    /// # Panics
    /// When there are fewer hot records than a transaction touches.
    pub(crate) fn of_hot(records: u64, hot_share: f64, seed: u64, worker: usize) -> Transactions {
        let hot = ((records as f64 * hot_share) as u64).min(records);
        assert!(hot >= KEYS_PER_TRANSACTION as u64, "{hot} of {records} records are too few");
        let (stride, mix) = (records / hot, Mix::OF_THE_PAPER);
        Transactions { keys: Keys::new(hot), stride, mix, random: Random::for_thread(seed, worker) }
    }

    /// The same records for transactions of this mix.
    pub(crate) fn of_mix(self, mix: Mix) -> Transactions {
        Transactions { mix, ..self }
    }

    /// The next transaction.
    pub(crate) fn draw(&mut self) -> CalcTransaction {
        let Mix { writes, all_read_one } = self.mix;
        let mut keys = [0; KEYS_PER_TRANSACTION];
        let drawn = KEYS_PER_TRANSACTION - usize::from(all_read_one);
        let mut count = 0;
        while count < drawn {
            let key = self.keys.next(&mut self.random) * self.stride;
            let is_kept_apart = all_read_one && key == 0;
            if !keys[..count].contains(&key) && !is_kept_apart {
                keys[count] = key;
                count += 1;
            }
        }
        CalcTransaction { keys, writes }
    }
}

/// Division of the records between short and long transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Partition {
    /// Short transactions use the records `0..short`.
    pub(crate) short: u64,
    /// Long transactions use the records `short..records`.
    pub(crate) records: u64,
}

impl Partition {
    /// All records for short transactions, or the last hundredth for long ones.
    pub(crate) fn new(records: u64, with_long: bool) -> Partition {
        Partition { short: if with_long { records - records / 100 } else { records }, records }
    }

    /// The keys of the `n`-th batch write of session `session` out of `sessions`. The keys are a
    /// run within the session's own part, so that batch writes do not conflict.
    ///
    /// # Panics
    /// When the session's part is smaller than one transaction's worth of keys.
    pub(crate) fn long(&self, long: &LongTransactions, session: usize, n: u64) -> LongTransaction {
        let part = (self.records - self.short) / long.open_max.max(1) as u64;
        let most = part - part % KEYS_PER_TRANSACTION as u64;
        assert!(most > 0, "too few records for long transactions");
        let writes = (long.writes as u64).next_multiple_of(KEYS_PER_TRANSACTION as u64).min(most);
        let first = self.short + session as u64 * part;
        let offset = n.wrapping_mul(writes) % (part - writes + 1);
        LongTransaction { keys: (first + offset..first + offset + writes).collect() }
    }
}

/// Checks a recovered state, record by record, then as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Check {
    /// Number of checked records.
    pub(crate) records: u64,
    /// Sum of all counters, which is the number of updates in the state.
    pub(crate) updates: u64,
    /// Buffer for the expected body.
    body: Vec<u8>,
}

impl Check {
    /// Checks one record.
    ///
    /// # Errors
    /// What is wrong with the record.
    pub(crate) fn record(
        &mut self,
        record: u64,
        value: &[u8],
        value_bytes: usize,
        change: Change,
    ) -> Result<(), String> {
        if value.len() != value_bytes {
            return Err(format!("record {record} has {} bytes", value.len()));
        }
        let version = match change {
            Change::Counter => 0,
            Change::Whole => counter(value),
        };
        self.body.resize(value_bytes - COUNTER_BYTES, 0);
        fill(&mut self.body, record, version);
        if value[COUNTER_BYTES..] != self.body {
            return Err(format!("record {record} does not match its counter {}", counter(value)));
        }
        self.records += 1;
        self.updates += counter(value);
        Ok(())
    }

    /// Checks the state as a whole: every record exists, every transaction is whole, and the number
    /// of transactions lies in the given range.
    ///
    /// # Errors
    /// What is wrong.
    pub(crate) fn finish(
        &self,
        records: u64,
        updates_min: u64,
        updates_max: u64,
    ) -> Result<(), String> {
        let updates = self.updates;
        if self.records != records {
            return Err(format!("{} of {records} records", self.records));
        }
        if !updates.is_multiple_of(KEYS_PER_TRANSACTION as u64) {
            return Err(format!("{updates} updates: some transaction is there in part"));
        }
        if !(updates_min..=updates_max).contains(&updates) {
            return Err(format!("{updates} updates, expected {updates_min} to {updates_max}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(records: u64) -> Vec<[u8; VALUE_BYTES]> {
        (0..records).map(initial_value).collect()
    }

    fn check(state: &[[u8; VALUE_BYTES]], change: Change) -> Result<Check, String> {
        let mut check = Check::default();
        for (record, value) in state.iter().enumerate() {
            check.record(record as u64, value, VALUE_BYTES, change)?;
        }
        Ok(check)
    }

    #[test]
    fn transactions_touch_ten_different_records() {
        let mut transactions = Transactions::new(12, 1, 0);
        for _ in 0..1_000 {
            let mut keys = transactions.draw().keys.to_vec();
            keys.sort_unstable();
            keys.dedup();
            assert_eq!(keys.len(), KEYS_PER_TRANSACTION);
            assert!(keys.iter().all(|&k| k < 12));
        }
    }

    #[test]
    fn a_mix_reads_one_record_in_every_transaction() {
        let mix = Mix { writes: 2, all_read_one: true };
        let mut transactions = Transactions::new(30, 1, 0).of_mix(mix);
        for _ in 0..1_000 {
            let CalcTransaction { keys, writes } = transactions.draw();
            let others = &keys[..KEYS_PER_TRANSACTION - 1];
            assert!(writes == 2 && keys.ends_with(&[0]) && !others.contains(&0), "{keys:?}");
        }
    }

    #[test]
    fn hot_records_are_scattered_and_no_others_are_touched() {
        let mut transactions = Transactions::of_hot(1_000, 0.1, 1, 0);
        let mut seen = std::collections::BTreeSet::new();
        (0..1_000).for_each(|_| seen.extend(transactions.draw().keys));
        assert!(seen.len() == 100 && seen.iter().all(|key| key % 10 == 0), "{seen:?}");
    }

    #[test]
    fn a_sound_state_passes_and_a_torn_one_does_not() {
        for change in [Change::Counter, Change::Whole] {
            let mut values = state(100);
            let mut transactions = Transactions::new(100, 2, 0);
            for _ in 0..50 {
                for record in transactions.draw().keys {
                    update(record, &mut values[record as usize], change);
                }
            }
            let sound = check(&values, change).expect("sound");
            assert_eq!(sound.finish(100, 500, 500), Ok(()));
            assert!(sound.finish(101, 500, 500).is_err(), "a record is missing");
            assert!(sound.finish(100, 510, 600).is_err(), "an acknowledged transaction is lost");

            update(7, &mut values[7], change);
            let torn = check(&values, change).expect("each record alone is sound");
            assert!(torn.finish(100, 0, 1_000).is_err(), "half a transaction");

            values[8][50] ^= 1;
            assert!(check(&values, change).is_err(), "a flipped bit");
        }
    }

    #[test]
    fn updates_say_how_much_they_changed() {
        let mut value: [u8; VALUE_BYTES] = initial_value(5);
        let before = value;
        assert_eq!(update(5, &mut value, Change::Counter), COUNTER_BYTES);
        assert_eq!(value[COUNTER_BYTES..], before[COUNTER_BYTES..]);
        assert_ne!(compute(&value), compute(&before));
        assert_eq!(update(5, &mut value, Change::Whole), VALUE_BYTES);
        assert_ne!(value[COUNTER_BYTES..], before[COUNTER_BYTES..]);
        assert_eq!(counter(&value), 2);
    }

    #[test]
    fn long_transactions_keep_to_themselves() {
        let long = LongTransactions { writes: 95, ..LongTransactions::of_the_paper() };
        let partition = Partition::new(100_000, true);
        assert_eq!(partition.short, 99_000);
        for n in 0..50 {
            let (a, b) = (partition.long(&long, 0, n), partition.long(&long, 1, n));
            assert_eq!(a.keys.len(), 100, "a whole multiple of ten");
            assert!(a.keys.iter().all(|&k| (99_000..99_500).contains(&k)));
            assert!(b.keys.iter().all(|&k| (99_500..100_000).contains(&k)));
        }
    }
}
