//! Reads of pages that fail, and batches that need more pages than the pool has.

use stillpoint::{Error, KeySet, Mode, Procedure, Session, Slot, Stamp, TableId, Tx, TxError};
use stillpoint_io::{Call, Fault, FaultPlan, Lasts, SimDisk};

use super::{Records, all, fill, open, put};

fn fail_reads(disk: &SimDisk, nth: u64, lasts: Lasts) {
    disk.inject(FaultPlan { calls: vec![Call::Read], nth, fault: Fault::InputOutput, lasts });
}

fn get(session: &mut Session, table: TableId, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
    session.transact(|tx| Ok(tx.get(table, key)?.map(|value| value.to_vec())))
}

/// Reads its keys, or writes them. All lie on different pages.
struct Many<'k> {
    table: TableId,
    keys: &'k [Vec<u8>],
    value: Option<&'static [u8]>,
    found: Vec<Option<Vec<u8>>>,
    result: Option<Result<(), String>>,
}

impl<'k> Many<'k> {
    fn new(table: TableId, keys: &'k [Vec<u8>], value: Option<&'static [u8]>) -> Self {
        Self { table, keys, value, found: Vec::new(), result: None }
    }
}

impl Procedure for Many<'_> {
    fn declare(&mut self, keys: &mut KeySet) {
        let mode = if self.value.is_some() { Mode::Write } else { Mode::Read };
        for key in self.keys {
            keys.push(self.table, key, mode, 0);
        }
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        self.found.clear();
        for slot in (0..self.keys.len() as u32).map(Slot) {
            self.found.push(tx.value(slot).map(|value| value.to_vec()));
            if let Some(value) = self.value {
                tx.put_slot(slot, value)?;
            }
        }
        Ok(())
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        self.result = Some(result.map(drop).map_err(|error| error.to_string()));
    }
}

/// One read of the device fails. The transaction that needs the page gets the error, and all others what they
/// ask for. So do the transactions of one batch.
pub(crate) fn a_failed_read_is_an_error_to_its_caller_alone() {
    let disk = SimDisk::new(5);
    let (engine, table) = open(&disk);
    let mut session = engine.session().expect("a session");
    let records = fill(&mut session, table, 1);
    engine.checkpoint().expect("a sound disk");
    let mut failed = 0;
    for nth in [1, 4, 9] {
        fail_reads(&disk, nth, Lasts::Once);
        let before = failed;
        for (key, value) in &records {
            match get(&mut session, table, key) {
                Ok(found) => assert_eq!(found.as_ref(), Some(value)),
                Err(error) => {
                    assert!(error.to_string().contains("pages/data"), "{error}");
                    assert!(!error.is_damage(), "{error}");
                    assert_eq!(get(&mut session, table, key).expect("again"), Some(value.clone()));
                    failed += 1;
                }
            }
        }
        assert_eq!(failed, before + 1, "read {nth}");
    }
    let keys: Vec<Vec<u8>> = records.keys().step_by(60).cloned().collect();
    fail_reads(&disk, 3, Lasts::Once);
    let mut batch: Vec<_> = keys.chunks(1).map(|keys| Many::new(table, keys, None)).collect();
    session.execute(&mut batch[..]);
    let mut refused = 0;
    for one in &batch {
        match one.result.as_ref().expect("it has ended") {
            Ok(()) => assert_eq!(one.found[0].as_ref(), records.get(&one.keys[0])),
            Err(error) => {
                assert!(error.contains("pages/data"), "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused < 2 && batch.len() > 10, "{refused} of {}", batch.len());
    engine.health().expect("a failed read is no failure of the store");
    assert!(all(&mut session, table) == records);
}

/// A declared transaction names keys on more pages than the pool has frames. It commits, as does one that only
/// reads. So does a batch of such transactions.
pub(crate) fn a_batch_may_name_more_pages_than_the_pool_has() {
    let (engine, table) = open(&SimDisk::new(5));
    let mut session = engine.session().expect("a session");
    let mut records = fill(&mut session, table, 1);
    let keys: Vec<Vec<u8>> = records.keys().step_by(9).cloned().collect();
    assert!(keys.len() > 80);
    let (first, second) = keys.split_at(keys.len() / 2);
    let mut batch = [
        Many::new(table, &keys, None),
        Many::new(table, &keys, Some(b"first")),
        Many::new(table, first, Some(b"second")),
        Many::new(table, second, None),
    ];
    session.execute(&mut batch[..]);
    for (number, one) in batch.iter().enumerate() {
        assert_eq!(one.result, Some(Ok(())), "transaction {number}");
        for (key, found) in one.keys.iter().zip(&one.found) {
            assert_eq!(found.as_ref(), records.get(key), "transaction {number}");
        }
        if let Some(value) = one.value {
            records.extend(one.keys.iter().map(|key| (key.clone(), value.to_vec())));
        }
    }
    assert!(all(&mut session, table) == records);
}

/// The pages that a rollback needs cannot be read. Nothing more is acknowledged, and the next start undoes the
/// transaction.
pub(crate) fn a_failed_read_amid_a_rollback_fails_the_store() {
    let disk = SimDisk::new(5);
    let (engine, table) = open(&disk);
    let mut session = engine.session().expect("a session");
    let records: Records = fill(&mut session, table, 1);
    let ended = session.transact(|tx| {
        for key in records.keys() {
            tx.put(table, key, b"never")?;
        }
        fail_reads(&disk, 1, Lasts::UntilCleared);
        Err::<(), _>(TxError::abandon("as the test wants it"))
    });
    assert!(ended.is_err());
    disk.clear_faults();
    let why = engine.health().expect_err("it cannot go on").to_string();
    assert!(why.contains("cannot be undone") && why.contains("pages/data"), "{why}");
    let refused = session.transact(|tx| tx.put(table, b"more", b"more"));
    assert!(refused.is_err(), "nothing more is acknowledged");
    let (engine, table) = open(&disk.crash_image(1));
    let mut session = engine.session().expect("a session");
    assert!(all(&mut session, table) == records);
    put(&mut session, table, b"more", b"more");
}
