//! What transactions beside a range may do, and what is refused.

use stillpoint_store::{KeySet, Mode, Patience, Procedure, Stamp, TableId, Tx, TxError};

use crate::worlds::{PLAIN, T, all, ordered_store, worker_of};

/// Declares a key, and reads a range or asks for a further key.
struct Declared(Option<TxError>);

impl Procedure for Declared {
    fn declare(&mut self, keys: &mut KeySet) {
        keys.push(T, b"b", Mode::Write, 8);
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        assert!(matches!(tx.count(T, ..), Err(TxError::RangeDeclared)));
        assert!(matches!(tx.nth(T, 0), Err(TxError::RangeDeclared)));
        let under = tx.key_under(stillpoint_store::Slot(0), T, b"c", 8);
        assert!(matches!(under, Err(TxError::NotDeclared)), "{under:?}");
        tx.range(T, ..).map(|_| ())
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        self.0 = result.err();
    }
}

#[test]
fn what_cannot_be_read_is_refused() {
    let store = ordered_store(1, 1);
    let mut worker = worker_of(&store);
    let mut declared = Declared(None);
    worker.execute(std::slice::from_mut(&mut declared));
    assert!(matches!(declared.0, Some(TxError::RangeDeclared)), "{:?}", declared.0);
    let plain = worker.transact(|tx| tx.range(PLAIN, ..).map(|_| ()));
    assert!(matches!(plain, Err(TxError::NotOrdered(PLAIN))), "{plain:?}");
    let none = worker.transact(|tx| tx.count(TableId(9), ..));
    assert!(matches!(none, Err(TxError::NoSuchTable(TableId(9)))), "{none:?}");
    // The longest key fits, and a longer one is refused and leaves nothing.
    let longest = [7; 512];
    worker.transact(|tx| tx.put(T, &longest, b"v")).expect("as long as a key may be");
    let long = worker.transact(|tx| tx.put(T, &[7; 513], b"v"));
    assert!(matches!(long, Err(TxError::OrderedKeyTooLong { len: 513, limit: 512 })), "{long:?}");
    worker.transact(|tx| tx.put(PLAIN, &[7; 513], b"v")).expect("the other table takes it");
    let has_value = worker.transact(|tx| Ok(tx.get(T, &[7; 513])?.is_some()));
    assert!(!has_value.expect("a read"), "no such key");
    let found = worker.transact(all).expect("a read");
    assert_eq!(found, [(longest.to_vec(), b"v".to_vec())]);
    while worker.idle() {}
    assert_eq!((store.cell_count(T), store.ordered_key_count(T)), (1, 1));
}

/// A transaction holds a range, or a number. `write` is what another one does beside it: true if it had
/// to wait.
fn waits(
    read: impl Fn(&mut Tx<'_>) -> Result<(), TxError>,
    write: impl Fn(&mut Tx<'_>) -> Result<(), TxError>,
) -> bool {
    let store = ordered_store(2, 3);
    let mut first = worker_of(&store);
    first
        .transact(|tx| ["b", "d", "f"].iter().try_for_each(|key| tx.put(T, key.as_bytes(), b"1")))
        .expect("memory");
    let mut second = worker_of(&store);
    second.set_patience(Patience::Short);
    first.begin();
    read(&mut first.open().tx()).expect("nobody else is there");
    let beside = second.transact(|tx| write(tx));
    let ended = first.open().commit();
    first.end(ended).expect("commits");
    if let Err(error) = &beside {
        assert!(matches!(error, TxError::WaitsForItself), "{error}");
        second.transact(|tx| write(tx)).expect("nobody is in the way");
    }
    beside.is_err()
}

/// Reads `most` records of a range.
fn read(tx: &mut Tx<'_>, from: &str, to: &str, down: bool, most: usize) -> Result<(), TxError> {
    let bounds = from.as_bytes()..to.as_bytes();
    let mut range = if down { tx.range_descending(T, bounds)? } else { tx.range(T, bounds)? };
    for _ in 0..most {
        range.next_record()?;
    }
    Ok(())
}

#[test]
fn a_range_locks_its_keys_and_gaps_and_no_more() {
    let put = |key: &'static str| move |tx: &mut Tx<'_>| tx.put(T, key.as_bytes(), b"2");
    for down in [false, true] {
        let range = |tx: &mut Tx<'_>| read(tx, "c", "e", down, 9);
        // The gap below d reaches down to b, and the gap below f is the one beyond.
        for key in ["bb", "c", "d", "dd", "e", "ee"] {
            assert!(waits(range, put(key)), "{key} {down}");
        }
        for key in ["a", "b", "f", "g"] {
            assert!(!waits(range, put(key)), "{key} {down}");
        }
        assert!(waits(range, |tx| tx.delete(T, b"d").map(|_| ())));
        assert!(!waits(range, |tx| tx.get(T, b"d").map(|_| ())));
        assert!(!waits(range, |tx| tx.get(T, b"cc").map(|_| ())), "a missing key may be read");
        // The end of the table.
        let last = |tx: &mut Tx<'_>| read(tx, "e", "zz", down, 9);
        assert!(waits(last, put("x")) && waits(last, put("zzz")) && !waits(last, put("c")));
        let empty = |tx: &mut Tx<'_>| read(tx, "dd", "de", down, 9);
        assert!(waits(empty, put("dda")) && waits(empty, put("e")) && !waits(empty, put("f")));
    }
    let unread = |tx: &mut Tx<'_>| tx.range(T, ..).map(|_| ());
    assert!(!waits(unread, put("c")), "nothing was read");
}

#[test]
fn a_number_keeps_all_others_from_adding_and_removing() {
    let count = |tx: &mut Tx<'_>| tx.count(T, ..).map(|count| assert_eq!(count, 3));
    assert!(waits(count, |tx| tx.put(T, b"c", b"2")));
    assert!(waits(count, |tx| tx.delete(T, b"d").map(|_| ())));
    assert!(!waits(count, |tx| tx.get(T, b"d").map(|_| ())));
    assert!(!waits(count, |tx| tx.put(PLAIN, b"d", b"2")));
    let nth = |tx: &mut Tx<'_>| tx.nth(T, 1).map(|key| assert_eq!(key.as_deref(), Some(&b"d"[..])));
    assert!(waits(nth, |tx| tx.put(T, b"z", b"2")));
    assert!(waits(|tx| tx.put(T, b"c", b"2"), |tx| tx.count(T, ..).map(|_| ())));
}

/// Who has read a gap and adds a key to it keeps both new gaps.
#[test]
fn an_own_insertion_keeps_what_was_read() {
    let store = ordered_store(2, 5);
    let mut first = worker_of(&store);
    let mut second = worker_of(&store);
    second.set_patience(Patience::Short);
    first.begin();
    read(&mut first.open().tx(), "a", "z", false, 9).expect("an empty range");
    first.open().tx().put(T, b"m", b"1").expect("its own gap");
    for key in [&b"c"[..], b"x"] {
        let beside = second.transact(|tx| tx.put(T, key, b"2"));
        assert!(matches!(beside, Err(TxError::WaitsForItself)), "{beside:?}");
    }
    let found = all(&mut first.open().tx()).expect("nobody else");
    assert_eq!(found, [(b"m".to_vec(), b"1".to_vec())]);
    let ended = first.open().commit();
    first.end(ended).expect("commits");
    second.transact(|tx| tx.put(T, b"x", b"2")).expect("nobody is in the way");
}

/// A range of a table that is emptied meanwhile does not commit.
#[test]
fn a_range_of_a_table_that_is_emptied_does_not_commit() {
    let store = ordered_store(2, 6);
    let mut first = worker_of(&store);
    first.begin();
    read(&mut first.open().tx(), "a", "z", false, 9).expect("an empty range");
    let empty = store.new_table(T, 2).expect("address space");
    let quiesced = store.driver().quiesce();
    store.replace_tables(&quiesced, vec![empty], stillpoint_store::Replaced::Forgotten);
    drop(quiesced);
    let ended = first.open().commit();
    assert!(matches!(first.end(ended), Err(TxError::Conflict)));
    first.transact(|tx| tx.put(T, b"m", b"1")).expect("memory");
    assert_eq!(first.transact(all).expect("it is ordered still").len(), 1);
}

/// The cell of a deleted key waits for who has read the gap below the key. Other cells do not wait.
#[test]
fn a_gap_that_was_read_holds_up_one_cell() {
    let store = ordered_store(2, 8);
    let mut first = worker_of(&store);
    let mut second = worker_of(&store);
    second.transact(|tx| tx.put(T, b"k", b"1")).expect("memory");
    first.begin();
    read(&mut first.open().tx(), "a", "c", false, 9).expect("an empty range");
    second.transact(|tx| tx.delete(T, b"k")).expect("the key itself was not read");
    for number in 0..100u32 {
        let key = number.to_be_bytes();
        second.transact(|tx| tx.put(PLAIN, &key, b"1")).expect("memory");
        second.transact(|tx| tx.delete(PLAIN, &key)).expect("a deletion");
    }
    // The cell of k stays, so there is always work left.
    assert!((0..3).all(|_| second.idle()));
    assert_eq!((store.cell_count(PLAIN), store.ordered_key_count(T)), (0, 1));
    let beside = second.transact(|tx| {
        tx.put(T, b"m", b"1")?;
        Err::<(), _>(TxError::abandon("enough"))
    });
    assert!(matches!(beside, Err(TxError::Abandoned(_))), "the gap above k is free: {beside:?}");
    let ended = first.open().commit();
    first.end(ended).expect("commits");
    while second.idle() {}
    assert_eq!((store.cell_count(T), store.ordered_key_count(T)), (0, 0));
}

/// A body that goes on after a refused key ends at once, and holds nobody up.
#[test]
fn a_swallowed_refusal_ends_the_transaction() {
    let store = ordered_store(2, 4);
    let (mut first, mut second) = (worker_of(&store), worker_of(&store));
    let mut runs = 0;
    let ended = first.transact(|tx| {
        runs += 1;
        assert!(tx.put(T, &[0; 513], b"v").is_err());
        tx.put(PLAIN, b"rejects", b"v")
    });
    assert!(
        matches!(ended, Err(TxError::Abandoned(_))) && runs == 1,
        "{ended:?} after {runs} runs"
    );
    second.transact(|tx| tx.put(PLAIN, b"other", b"v")).expect("nobody has the permit");
}
