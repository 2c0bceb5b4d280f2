//! Bytes of log per transaction, of calls and of redo. The padding of the batches counts.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{Plan, SOURCE, WRITTEN, compared, table};
use crate::error::{LabError, LabResult};
use crate::harness::Harness;
use crate::report::result::{Bound, ClaimRow, ExperimentResult};
use crate::subjects::adapter::Checkpointed;
use crate::subjects::resp::admin::Admin;
use crate::subjects::server::Peer;
use crate::subjects::tpcc_records::{self, TpccRecords};
use crate::sys;
use crate::workloads::calc::{CalcTransaction, Change, KEYS_PER_TRANSACTION, Mix, Transactions};
use crate::workloads::tpcc::load::Population;
use crate::workloads::tpcc::schema::Scale;

const JOURNALS: [&str; 2] = ["command", "redo"];
/// Transactions of a batch, and requests that a client sends at once.
const BATCH: usize = 16;
/// Records of the microbenchmark.
const RECORDS: u64 = 20_000;
const PATIENCE: Duration = Duration::from_secs(60);

const ORDERS: ClaimRow = ClaimRow::new("bytes of log of a NewOrder", SOURCE, Bound::AtMost(0.25))
    .between("command", "redo");

/// A kind of transaction, and a function that runs so many with a journal and gives the bytes of log.
type Measured<'a> = (&'a str, &'a dyn Fn(&str) -> LabResult<u64>);

pub(super) fn bytes(
    bench: &Harness<'_>,
    plan: &Plan,
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let count = plan.logged;
    let columns = ["transaction", "command B", "redo B", "command ÷ redo"];
    let mut table = table("Bytes of log of a transaction", &columns);
    let calc =
        |writes, change| move |journal: &str| calc_bytes(bench, journal, (writes, change), count);
    let all = KEYS_PER_TRANSACTION;
    let orders = |journal: &str| order_bytes(bench, journal, count);
    let set = |journal: &str| server_bytes(bench, journal, "SET", count);
    let incr = |journal: &str| server_bytes(bench, journal, "INCR", count);
    let rows: [Measured<'_>; 6] = [
        ("CALC, 10 counters of 8 bytes", &calc(all, Change::Counter)),
        ("CALC, 10 values of 100 bytes", &calc(all, Change::Whole)),
        ("CALC, 8 reads and 2 values of 100 bytes", &calc(2, Change::Whole)),
        ("TPC-C, NewOrder", &orders),
        ("SET of 20 bytes, 16 at once", &set),
        ("INCR, 16 at once", &incr),
    ];
    for (name, measure) in rows {
        let of_server = name.starts_with("SET") || name.starts_with("INCR");
        if of_server && !bench.children {
            result.note("The commands of the server were left out: there is no server to start.");
            continue;
        }
        let [command, redo] = JOURNALS.map(measure);
        let of = |bytes: u64| bytes as f64 / count as f64;
        let (command, redo) = (of(command?), of(redo?));
        let cells = [command, redo].map(|bytes| format!("{bytes:.1}"));
        let ratio = format!("{:.2}", command / redo);
        table.rows.push([&[name.to_owned()], &cells[..], &[ratio]].concat());
        if name.starts_with("TPC-C") {
            result.claims.push(ORDERS.claim("").measured(command / redo));
        }
    }
    result.tables.push(table);
    Ok(())
}

/// The bytes that a journal has written, once it has written all.
fn written(of: &dyn Checkpointed) -> u64 {
    sys::sleep(WRITTEN);
    of.status().journal_bytes
}

fn calc_bytes(
    bench: &Harness<'_>,
    journal: &str,
    (writes, change): (usize, Change),
    count: u64,
) -> LabResult<u64> {
    let bed = bench.open_loaded(compared(), RECORDS, journal)?;
    let before = written(&*bed.engine);
    let mut drawn = Transactions::new(RECORDS, 1, 0).of_mix(Mix { writes, all_read_one: false });
    let transactions: Vec<CalcTransaction> = (0..count).map(|_| drawn.draw()).collect();
    let mut session = bed.engine.session()?;
    for batch in transactions.chunks(BATCH) {
        session.run(batch, change)?;
    }
    drop(session);
    let bytes = written(&*bed.engine) - before;
    bed.clear()?;
    Ok(bytes)
}

fn order_bytes(bench: &Harness<'_>, journal: &str, count: u64) -> LabResult<u64> {
    let dir = bench.context.fresh_dir("orders")?;
    let population = Arc::new(Population::new(Scale::small(1).unbounded(), 1));
    let row = tpcc_records::row(&format!("calc, {journal} relaxed"));
    let subject = TpccRecords::open(row, &population, &dir, None)?;
    subject.load()?;
    let before = written(&subject);
    let mut client = subject.orders(1)?;
    for _ in 0..count.div_ceil(BATCH as u64) {
        client.run(BATCH)?;
    }
    drop(client);
    let bytes = written(&subject) - before;
    drop(subject);
    sys::remove_dir_all(&dir)?;
    Ok(bytes)
}

fn server_bytes(bench: &Harness<'_>, journal: &str, command: &str, count: u64) -> LabResult<u64> {
    let arguments =
        "serve --data {dir} --port {port} --checkpoint-every 86400s --durability relaxed \
                     --journal"
            .split_whitespace()
            .chain([journal])
            .map(str::to_owned)
            .collect();
    let program: PathBuf = bench.context.binary.clone();
    let peer = Peer { name: journal.to_owned(), program, arguments };
    let dir = bench.context.fresh_dir("server-bytes")?;
    let server = peer.start(&dir, PATIENCE)?;
    let mut admin = server.admin()?;
    let before = log_bytes(&mut admin)?;
    let keys: Vec<String> =
        (0..count).map(|n| format!("key:{:08}", n * 7919 % 1_000_000)).collect();
    for some in keys.chunks(BATCH) {
        let request = |key: &'_ String| match command {
            "INCR" => vec![b"INCR".to_vec(), key.clone().into_bytes()],
            _ => vec![b"SET".to_vec(), key.clone().into_bytes(), vec![b'v'; 20]],
        };
        let requests: Vec<Vec<Vec<u8>>> = some.iter().map(request).collect();
        let borrowed: Vec<Vec<&[u8]>> =
            requests.iter().map(|words| words.iter().map(Vec::as_slice).collect()).collect();
        admin.call_all(&borrowed)?;
    }
    let bytes = log_bytes(&mut admin)? - before;
    drop(server);
    sys::remove_dir_all(&dir)?;
    Ok(bytes)
}

/// Bytes that the log of a server has got, once it has got all.
fn log_bytes(admin: &mut Admin) -> LabResult<u64> {
    sys::sleep(WRITTEN);
    let fields = admin.info("persistence")?;
    let bytes = fields.get("aof_current_size").and_then(|text| text.parse().ok());
    bytes.ok_or_else(|| LabError::process("INFO persistence", "it has no aof_current_size"))
}
