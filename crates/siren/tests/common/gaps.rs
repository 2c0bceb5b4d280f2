//! Writers that add and remove two neighbours together, beside a reader of their range. For the model of
//! threads.

use std::sync::Arc;

use shuttle::thread;

use super::{Session, Tx, TxError, World};
use stillpoint_siren::Removes;

/// Writers and transactions of each, and transactions of the reader.
const WRITERS: u8 = 2;
const TOGGLES: usize = 2;
const READS: usize = 2;

/// Removes the two keys if they are there, and adds them if not.
fn toggle(tx: &mut Tx<'_>) -> Result<(), TxError> {
    if tx.get(b"b")?.is_some() {
        tx.put(b"b", None)?;
        tx.put(b"d", None)
    } else {
        tx.put(b"d", Some(b"second"))?;
        tx.put(b"b", Some(b"first"))
    }
}

/// As [`toggle`], in a declared transaction.
fn toggle_declared(session: &mut Session) {
    loop {
        let toggled = session.declare(&[b"b", b"d"], true).and_then(|slots| {
            let value = session.value(slots[0]).is_none().then_some(&b"declared"[..]);
            slots.iter().try_for_each(|&slot| session.set(slot, value))
        });
        session.end(toggled.is_ok());
        match toggled {
            Ok(()) => return,
            Err(TxError::Conflict) => thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Reads the range twice in one transaction.
fn read(session: &mut Session, is_descending: bool) {
    let bounds = &b"a"[..]..&b"e"[..];
    let twice = session.transact(|tx| {
        let first = tx.read(bounds.clone(), usize::MAX, is_descending)?;
        thread::yield_now();
        Ok((first, tx.read(bounds.clone(), usize::MAX, is_descending)?))
    });
    let (first, second) = twice.expect("reads");
    assert!(first == second, "a phantom: {first:?}, and then {second:?}");
    assert!(first.len() % 2 == 0, "half a transaction: {first:?}");
}

/// One random schedule.
pub(crate) fn side_by_side() {
    let world = Arc::new(World::new(Removes::Pend));
    let writers = (0..WRITERS).map(|number| {
        let world = world.clone();
        thread::spawn(move || {
            let mut session = world.session(number);
            (0..TOGGLES).for_each(|_| match number {
                0 => session.transact(toggle).expect("commits"),
                _ => toggle_declared(&mut session),
            });
        })
    });
    let writers: Vec<_> = writers.collect();
    let reader = {
        let world = world.clone();
        thread::spawn(move || {
            let mut session = world.session(WRITERS);
            (0..READS).for_each(|number| read(&mut session, number % 2 == 1));
        })
    };
    writers.into_iter().chain([reader]).for_each(|thread| thread.join().expect("no panic"));
    // Each key was added and removed equally often.
    assert!(world.content().is_empty(), "an even number of toggles");
}
