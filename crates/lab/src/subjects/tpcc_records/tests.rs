use super::*;
use crate::drivers::transactions::{Drive, run_clients};
use crate::subjects::records::records_commits;
use crate::workloads::tpcc::schema::Scale;

fn population(warehouses: usize) -> Arc<Population> {
    Arc::new(Population::new(Scale::small(warehouses).unbounded(), 3))
}

fn directory() -> LabResult<tempfile::TempDir> {
    tempfile::tempdir().map_err(|e| crate::LabError::process("tempdir", e))
}

fn driven(subject: &TpccRecords, workers: usize) -> LabResult<u64> {
    let drive = Drive { workers, seconds: 0.3, warm_up_s: 0.0, batch: 8, ..Drive::new(0) };
    let outcome = run_clients(subject, &drive, &|worker| subject.client(workers, worker, 5))?;
    Ok(outcome.transactions)
}

#[test]
fn conditions_hold_after_a_run_and_after_reopening() -> LabResult<()> {
    for &row in ROWS.iter() {
        let (dir, population) = (directory()?, population(2));
        let subject = TpccRecords::open(row, &population, dir.path(), None)?;
        subject.load()?;
        let at_first = subject.check()?;
        assert_eq!((at_first.orders, at_first.balances), (20 * 120, 20 * 120));
        assert_eq!(subject.committed()?, 0);
        let transactions = driven(&subject, 2)?;
        let committed = subject.committed()?;
        assert_eq!(committed, transactions, "what was told is there, once");
        let checked = subject.check()?;
        assert!(checked.orders > at_first.orders && checked.history);
        assert_eq!(subject.retries(), 0, "each worker has warehouses of its own");
        if !row.takes_checkpoints {
            continue;
        }
        if !records_commits(row.journal) {
            let before = subject.status().checkpoints;
            subject.start_checkpoint()?;
            while subject.status().checkpoints == before {
                crate::sys::sleep(std::time::Duration::from_millis(1));
            }
        } else {
            crate::sys::sleep(std::time::Duration::from_millis(1_200));
        }
        drop(subject);
        let subject = TpccRecords::open(row, &population, dir.path(), None)?;
        assert_eq!(subject.committed()?, committed, "{}", row.name);
        assert_eq!(subject.check()?, checked, "{}", row.name);
    }
    Ok(())
}

#[test]
fn workers_of_one_warehouse_ask_again_and_lose_nothing() -> LabResult<()> {
    let (dir, population) = (directory()?, population(1));
    let subject = TpccRecords::open(ROWS[0], &population, dir.path(), None)?;
    subject.load()?;
    let transactions = driven(&subject, 2)?;
    assert_eq!(subject.committed()?, transactions);
    subject.check()?;
    Ok(())
}

#[test]
fn procedures_are_called_by_name() -> LabResult<()> {
    let (dir, population) = (directory()?, population(2));
    let subject = TpccRecords::open(row("calc"), &population, dir.path(), None)?;
    subject.load()?;
    let mut one = Terminal::new(&subject, 1, 0, 1)?;
    let mut other = Terminal::new(&subject, 1, 0, 2)?;
    // Each terminal invalidates the other's expectations.
    for _ in 0..300 {
        one.call()?;
        other.call()?;
    }
    let committed = subject.committed()?;
    assert!((580..=600).contains(&committed), "{committed}");
    subject.check()?;
    Ok(())
}

#[test]
fn the_records_hold_what_the_arrays_would() -> LabResult<()> {
    use crate::workloads::tpcc::memory::{InCells, Rows};
    use crate::workloads::tpcc::schema::{Customer, District, Stock, Tables, Warehouse};
    use stillpoint_state::{Arrays, Naive, schemes::NoCheckpoints};

    let (dir, population) = (directory()?, population(1));
    let subject = TpccRecords::open(ROWS[0], &population, dir.path(), None)?;
    subject.load()?;
    let small = Scale { ring: 1_024, history: 4_096, ..population.scale };
    let arrays_population = Population::new(small, 3);
    let mut builder = Arrays::<NoCheckpoints<Naive>>::builder();
    let tables = Tables::declare(&mut builder, &small);
    let mut arrays = builder.build().expect("memory");
    arrays_population.fill(&mut arrays, &tables).expect("no tick has ended");
    let mut memory = InCells { cells: &mut arrays, tables: &tables };
    let mut terminal = Terminal::new(&subject, 1, 0, 4)?;
    let mut same = Terminal::new(&subject, 1, 0, 4)?;
    for number in 0..1_000 {
        let transaction = same.draw();
        let done = crate::workloads::tpcc::transactions::run(
            &mut memory,
            &arrays_population,
            &transaction,
        );
        assert_eq!(terminal.call()?, done.answer, "transaction {number}: {transaction:?}");
    }
    let records = check::InStore::new(&subject.bed)?;
    for row in 0..small.customers * 10 {
        assert_eq!(records.row::<Customer>(row), memory.row::<Customer>(row));
    }
    for row in 0..small.items {
        assert_eq!(records.row::<Stock>(row), memory.row::<Stock>(row));
    }
    assert_eq!(records.row::<District>(7), memory.row::<District>(7));
    assert_eq!(records.row::<Warehouse>(0), memory.row::<Warehouse>(0));
    Ok(())
}

#[test]
fn a_last_name_means_the_customer_in_the_middle() -> LabResult<()> {
    let (dir, population) = (directory()?, population(1));
    let subject = TpccRecords::open(ROWS[0], &population, dir.path(), None)?;
    subject.load()?;
    let mut terminal = Terminal::new(&subject, 1, 0, 1)?;
    for (district, name) in [(0, 0), (3, 17), (9, 119)] {
        let named = population.by_name(district, name);
        assert_eq!(terminal.named(district, name)?, named[(named.len() - 1) / 2]);
    }
    assert!(terminal.named(0, 120).is_err(), "nobody has the name of this number");
    Ok(())
}
