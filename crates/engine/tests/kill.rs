//! Tests that kill a real process with threads on a real disk. Transfers acknowledged through a
//! pipe survive, and the sums are right.
//!
//! A child (this binary again) runs bank transfers and takes checkpoints. The parent kills the
//! child with SIGKILL at a random moment, also during recovery. Then the parent itself opens and
//! checks the store. Each transfer leaves a receipt in the same transaction, so the balances must
//! follow exactly from the recovered receipts. The receipts lie in an ordered table in memory. With journal
//! redo they lie in a paged table, which outgrows its pool, or in a SIREN table.
//!
//! 200 kills over all schemes and journals:  `cargo test -p stillpoint --test kill`
//! More:  `STILLPOINT_KILLS=10000 cargo test -p stillpoint --test kill`
//! The moments from a seed:  `STILLPOINT_KILL_SEED=<seed> cargo test -p stillpoint --test kill`

#[path = "crash/settings.rs"]
mod settings;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use settings::{Setting, matrix};
use stillpoint::{Config, Durability, Engine, Kind, Session, TableId, Tx, TxError};
use stillpoint_io::{Clock, RealClock, RealRng, Rng, SeededRng, spawn};

const ACCOUNTS: u64 = 40;
const OPENING_BALANCE: i64 = 1000;
/// Threads of the child that transfer.
const CLERKS: u64 = 3;
/// Kills of one store, before the next store begins.
const KILLS_PER_STORE: u64 = 10;
/// Name of the variable that tells the child its task.
const CHILD: &str = "STILLPOINT_KILL_CHILD";

/// A transfer: from, to, amount.
type Transfer = (u64, u64, i64);

#[test]
fn strict() {
    kill_often(Durability::Strict);
}

#[test]
fn relaxed() {
    kill_often(Durability::Relaxed);
}

#[test]
fn checkpoint() {
    kill_often(Durability::Checkpoint);
}

/// Not a test: the child process.
#[test]
#[ignore = "the other tests start it, and kill it"]
fn child() {
    let Ok(orders) = std::env::var(CHILD) else {
        return;
    };
    let mut orders = orders.split(' ');
    let mut number = || orders.next().and_then(|text| text.parse::<u64>().ok()).expect("a number");
    let (setting, seed, life) = (number(), number(), number());
    // The line break ends the line that the test harness has begun.
    say("");
    let directory = orders.next().expect("a directory");
    work(matrix()[setting as usize], Path::new(directory), &SeededRng::new(seed), life);
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn configure(setting: Setting, directory: &Path, rng: &dyn Rng) -> Config {
    let mut config = Config::new(directory);
    config.checkpoint = setting.scheme.to_owned();
    config.journal = setting.journal.to_owned();
    config.durability = setting.durability;
    config.checkpoint_every = None;
    config.sessions = 8;
    config.logs = 1 + rng.below(3) as usize;
    config.recovery_threads = 1 + rng.below(2) as usize;
    config.max_memory_bytes = 256 << 20;
    config.log_segment_bytes = 256 << 10;
    config.page_bytes = Some(4096);
    config.page_growth_bytes = 1 << 20;
    match receipts_kind(setting) {
        Kind::Paged => config.pool_bytes = Some(16 * 4096),
        Kind::Siren => config.siren_bytes = Some(64 << 20),
        Kind::Memory | Kind::Ordered => {}
    }
    config
}

/// The kind of the table of receipts.
fn receipts_kind(setting: Setting) -> Kind {
    match (setting.journal, setting.scheme.len() % 2) {
        ("redo", 0) => Kind::Siren,
        ("redo", _) => Kind::Paged,
        _ => Kind::Ordered,
    }
}

// ── the child ──

/// Sends a line to the parent, in one write.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes())
        .and_then(|()| out.flush())
        .expect("the parent listens");
}

fn work(setting: Setting, directory: &Path, rng: &SeededRng, life: u64) {
    let engine = Engine::open(configure(setting, directory, rng)).expect("opens");
    let (accounts, receipts) = tables(&engine, setting);
    let mut session = engine.session().expect("a session");
    session
        .transact(|tx| {
            if tx.get(accounts, &key(0))?.is_none() {
                for account in 0..ACCOUNTS {
                    tx.put(accounts, &key(account), &OPENING_BALANCE.to_le_bytes())?;
                }
            }
            Ok(())
        })
        .expect("opens the accounts");
    say("open");
    let engine = Arc::new(engine);
    let clerks: Vec<_> = (0..CLERKS)
        .map(|clerk| {
            let (engine, rng) = (engine.clone(), SeededRng::new(rng.next_u64()));
            let first = (life * CLERKS + clerk) << 32;
            let run = move || transfers(&engine, (accounts, receipts), first, &rng);
            spawn("clerk", run).expect("a thread")
        })
        .collect();
    for _ in 0.. {
        RealClock.sleep(Duration::from_millis(rng.below(40)));
        if setting.row().capabilities.takes_checkpoints() {
            say("begin");
            engine.checkpoint().expect("a checkpoint");
            say("published");
        }
    }
    clerks.into_iter().for_each(|clerk| clerk.join().expect("no panic"));
}

fn transfers(engine: &Engine, tables: (TableId, TableId), first: u64, rng: &SeededRng) {
    let mut session = engine.session().expect("a session");
    for id in first.. {
        let (from, to) = (rng.below(ACCOUNTS), rng.below(ACCOUNTS));
        let (to, amount) = ((from + 1 + to % (ACCOUNTS - 1)) % ACCOUNTS, rng.below(100) as i64);
        transfer(&mut session, tables, id, (from, to, amount)).expect("a transfer");
        say(&format!("ok {id} {from} {to} {amount}"));
    }
}

fn transfer(
    session: &mut Session,
    (accounts, receipts): (TableId, TableId),
    id: u64,
    (from, to, amount): Transfer,
) -> Result<(), stillpoint::Error> {
    session.transact(|tx| {
        let add = |tx: &mut Tx<'_>, account: u64, amount: i64| {
            let balance = tx.get(accounts, &key(account))?.and_then(|value| value.u64_at(0));
            let balance = balance.ok_or_else(|| TxError::abandon("no such account"))? as i64;
            tx.put(accounts, &key(account), &(balance + amount).to_le_bytes())
        };
        add(tx, from, -amount)?;
        add(tx, to, amount)?;
        let words = [from.to_le_bytes(), to.to_le_bytes(), amount.to_le_bytes()];
        tx.put(receipts, &key(id), &words.concat())
    })
}

fn key(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

fn tables(engine: &Engine, setting: Setting) -> (TableId, TableId) {
    let accounts = engine.table("accounts").expect("a table");
    (accounts, engine.table_with("receipts", receipts_kind(setting)).expect("a table"))
}

// ── the parent ──

/// Reports of the child.
#[derive(Debug, Default)]
struct Reported {
    open: bool,
    /// Transfers in the order in which they were reported.
    reported: Vec<(u64, Transfer)>,
    /// Number of transfers when the last checkpoint began, and when the last published one began.
    at_begin: usize,
    at_published: usize,
}

impl Reported {
    fn hear(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["open"] => self.open = true,
            ["begin"] => self.at_begin = self.reported.len(),
            ["published"] => self.at_published = self.at_begin,
            ["ok", id, from, to, amount] => {
                let number = |text: &str| text.parse::<u64>().ok();
                let transfer = || Some((number(from)?, number(to)?, number(amount)? as i64));
                // The last line may be cut off. A line that was cut off does not count.
                self.reported.extend(number(id).zip(transfer()));
            }
            _ => {}
        }
    }
}

/// Kills processes of every scheme and journal of this durability.
fn kill_often(durability: Durability) {
    let settings = matrix();
    let kills = number("STILLPOINT_KILLS").unwrap_or(200).div_ceil(settings.len() as u64);
    let seed = number("STILLPOINT_KILL_SEED").unwrap_or_else(|| RealRng.next_u64());
    for (at, setting) in settings.iter().enumerate() {
        if setting.durability == durability {
            kill_one_setting(at, *setting, kills, seed);
        }
    }
}

fn kill_one_setting(at: usize, setting: Setting, kills: u64, seed: u64) {
    let rng = SeededRng::new(seed.wrapping_add(at as u64));
    let mut done = 0;
    while done < kills {
        let directory = tempfile::tempdir().expect("a directory");
        let mut promised = BTreeMap::new();
        for life in 0..KILLS_PER_STORE.min(kills - done) {
            let heard = live_and_die(at, directory.path(), &rng, life);
            let strict = setting.durability == Durability::Strict;
            let upto = if strict { heard.reported.len() } else { heard.at_published };
            promised.extend(heard.reported[..upto].iter().copied());
            if let Err(why) = check(setting, directory.path(), &rng, &promised) {
                let kept = directory.keep();
                let kept = kept.display();
                panic!("{setting:?}, seed {seed}, kill {done}, store kept in {kept}: {why}");
            }
            done += 1;
        }
    }
}

/// Starts the child and kills it at a random moment.
fn live_and_die(setting: usize, directory: &Path, rng: &SeededRng, life: u64) -> Reported {
    let orders = format!("{setting} {} {life} {}", rng.next_u64(), directory.display());
    let mut child = Command::new(std::env::current_exe().expect("this binary"))
        .args(["child", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(CHILD, orders)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts itself");
    let heard = Arc::new(Mutex::new(Reported::default()));
    let (listener, out) = (heard.clone(), child.stdout.take().expect("piped"));
    let listening = spawn("listen", move || {
        let lines = BufReader::new(out).lines().map_while(Result::ok);
        lines.for_each(|line| listener.lock().hear(&line));
    });
    if rng.below(4) == 0 {
        RealClock.sleep(Duration::from_millis(rng.below(60)));
    } else {
        let start_ns = RealClock.monotonic_ns();
        while !heard.lock().open && RealClock.monotonic_ns() - start_ns < 60_000_000_000 {
            RealClock.sleep(Duration::from_millis(1));
            if child.try_wait().expect("asks").is_some() {
                break;
            }
        }
        RealClock.sleep(Duration::from_micros(rng.below(150_000)));
    }
    let ended = child.try_wait().expect("asks");
    child.kill().expect("SIGKILL");
    let output = child.wait_with_output().expect("waits");
    listening.expect("a thread").join().expect("no panic");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(ended.is_none(), "the child ended by itself, {ended:?}: {complaint}");
    let mut heard = heard.lock();
    std::mem::take(&mut *heard)
}

/// Opens the child's store and checks it.
fn check(
    setting: Setting,
    directory: &Path,
    rng: &SeededRng,
    promised: &BTreeMap<u64, Transfer>,
) -> Result<(), String> {
    if receipts_kind(setting) == Kind::Paged && directory.join("MANIFEST").exists() {
        let checked = stillpoint::offline::check(directory).map_err(|error| error.to_string())?;
        if !checked.damage.is_empty() {
            return Err(format!("check calls the store damaged: {:?}", checked.damage));
        }
    }
    let config = configure(setting, directory, rng);
    let engine = Engine::open(config).map_err(|error| format!("does not open: {error}"))?;
    let (accounts, receipts) = tables(&engine, setting);
    let mut session = engine.session().map_err(|error| error.to_string())?;
    let balances = read_all(&mut session, accounts)?;
    let found = read_all(&mut session, receipts)?;
    let found: BTreeMap<u64, Transfer> = found
        .into_iter()
        .map(|(id, words)| (id, (words[0] as u64, words[1] as u64, words[2])))
        .collect();
    for (id, transfer) in promised {
        if found.get(id) != Some(transfer) {
            return Err(format!("transfer {id} is {:?}, promised {transfer:?}", found.get(id)));
        }
    }
    let in_order = keys_in_order(&mut session, receipts)?;
    if !in_order.iter().eq(found.keys()) {
        return Err(format!("the receipts are {:?}, and in order {in_order:?}", found.keys()));
    }
    if balances.is_empty() && found.is_empty() {
        return Ok(());
    }
    let mut expected: BTreeMap<u64, i64> = (0..ACCOUNTS).map(|at| (at, OPENING_BALANCE)).collect();
    for &(from, to, amount) in found.values() {
        *expected.entry(from).or_default() -= amount;
        *expected.entry(to).or_default() += amount;
    }
    let balances: BTreeMap<u64, i64> =
        balances.into_iter().map(|(at, words)| (at, words[0])).collect();
    if balances != expected {
        return Err(format!("balances {balances:?} do not follow from the receipts: {expected:?}"));
    }
    Ok(())
}

/// The keys of an ordered table, in their order.
fn keys_in_order(session: &mut Session, table: TableId) -> Result<Vec<u64>, String> {
    let keys = session.transact(|tx| {
        let (mut keys, mut range) = (Vec::new(), tx.range(table, ..)?);
        while let Some((key, _)) = range.next_record()? {
            keys.push(u64::from_be_bytes(key.try_into().expect("eight bytes")));
        }
        Ok(keys)
    });
    keys.map_err(|error| error.to_string())
}

fn read_all(session: &mut Session, table: TableId) -> Result<BTreeMap<u64, Vec<i64>>, String> {
    let mut found = BTreeMap::new();
    let mut cursor = 0;
    loop {
        let next = session.scan(table, cursor, 256, &mut |key, value| {
            let key = u64::from_be_bytes(key.try_into().expect("eight bytes"));
            let words = (0..value.len() / 8).filter_map(|at| value.u64_at(8 * at));
            found.insert(key, words.map(|word| word as i64).collect());
        });
        cursor = next.map_err(|error| error.to_string())?;
        if cursor == 0 {
            return Ok(found);
        }
    }
}
