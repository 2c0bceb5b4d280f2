//! Serials: what a session calls durable is there after any crash, with all that it has read. A named
//! session resumes exactly behind the last of its commits that a crash has left.
//!
//! Each commit puts a key of its own, and puts the name of that key under shared keys. So who reads
//! a shared key learns on which commit the answer depends. After a crash the own keys say which
//! commits are there.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use stillpoint::{
    Config, Durability, Engine, Error, KeySet, Mode, Procedure, Session, Slot, Stamp,
    StoredProcedure, TableId, Tx, TxError,
};
use stillpoint_io::{Fault, Rng, SeededRng, SimDisk};

use crate::lives::configure;
use crate::settings::Setting;

const SETTINGS: [Setting; 6] = [
    Setting { scheme: "calc:partial", journal: "none", durability: Durability::Checkpoint },
    Setting { scheme: "calc:partial", journal: "redo", durability: Durability::Relaxed },
    Setting { scheme: "naive", journal: "redo", durability: Durability::Strict },
    Setting { scheme: "fuzzy-undo", journal: "undo-redo", durability: Durability::Relaxed },
    Setting { scheme: "calc", journal: "command", durability: Durability::Relaxed },
    Setting { scheme: "none", journal: "redo", durability: Durability::Relaxed },
];
/// Sessions with a name, and all of them.
const NAMED: usize = 2;
const PLAYERS: usize = 4;
const SHARED: u64 = 3;
/// Lives of a store, one after the other.
const LIVES: u64 = 3;
/// Crash states that are judged after each life.
const STATES: u64 = 3;
/// Stores of each setting. `STILLPOINT_SERIAL_SEEDS` names another number.
const SEEDS: u64 = 4;

pub(crate) fn what_a_session_calls_durable_is_there() {
    let wanted = std::env::var("STILLPOINT_SERIAL_SEEDS").ok();
    let seeds = wanted.map_or(SEEDS, |text| text.parse().expect("a number"));
    for setting in &SETTINGS {
        (0..seeds).for_each(|seed| run(seed, setting));
    }
    a_read_is_durable_when_its_writer_is();
}

/// The own log of a reader has nothing to flush. What it has read is in another log.
fn a_read_is_durable_when_its_writer_is() {
    for waits in [false, true] {
        let disk = SimDisk::new(1);
        let config = |disk: &SimDisk| {
            let mut config = configure(&SETTINGS[1], disk, &SeededRng::new(1), PLAYERS);
            config.logs = 2;
            config
        };
        let engine = open(config(&disk)).expect("opens");
        let table = engine.table("t").expect("a table");
        let (mut writer, mut reader) =
            (engine.session().expect("a session"), engine.session().expect("a session"));
        assert_eq!(reader.durable_serial(), 0);
        writer.transact(|tx| tx.put(table, b"key", b"")).expect("commits");
        assert!(reader.transact(|tx| Ok(tx.get(table, b"key")?.is_some())).expect("reads"));
        if waits {
            reader.wait_durable(1).expect("durable");
        }
        let durable = reader.durable_serial();
        assert!(durable == 1 || !waits);
        for seed in 0..10 {
            let engine = open(config(&disk.crash(seed))).expect("recovers");
            let table = engine.table("t").expect("a table");
            assert!(durable == 0 || engine.len(table) == 1, "crash {seed}: what was read is lost");
        }
    }
}

/// A transaction that has ended well.
#[derive(Clone, Debug)]
struct Event {
    /// The key of its own that it has put.
    own: Option<Vec<u8>>,
    /// The own keys of the commits that it has seen.
    saw: Vec<Vec<u8>>,
}

struct Player {
    session: Session,
    /// The number of the session, and of the life if the session has no name.
    label: String,
    /// The serial before the first of `events`.
    first: u64,
    events: Vec<Event>,
    /// The greatest serial that was called durable.
    durable: u64,
}

/// What is known of a session at the crash.
struct Told {
    label: String,
    first: u64,
    events: Vec<Event>,
    durable: u64,
}

fn name(player: usize) -> String {
    format!("session-{player}")
}

/// Puts an own key, and its name under a shared key. Shows the name that the shared key had.
struct Leave {
    table: TableId,
}

impl StoredProcedure for Leave {
    type Input = (Vec<u8>, Vec<u8>);
    type Output = Option<Vec<u8>>;

    fn declare(&self, (own, shared): &Self::Input, keys: &mut KeySet) {
        keys.push(self.table, own, Mode::Write, 0);
        keys.push(self.table, shared, Mode::Write, own.len());
    }

    fn run(&self, (own, _): &Self::Input, tx: &mut Tx<'_>) -> Result<Self::Output, TxError> {
        let seen = tx.value(Slot(1)).map(|value| value.to_vec());
        tx.put_slot(Slot(0), b"")?;
        tx.put_slot(Slot(1), own)?;
        Ok(seen)
    }
}

/// As [`Leave`], in a batch. Without an own key it only reads.
struct Declared<'a> {
    table: TableId,
    own: Option<&'a [u8]>,
    shared: &'a [u8],
    seen: Option<Vec<u8>>,
    ended: Option<Result<Option<Stamp>, TxError>>,
}

impl Procedure for Declared<'_> {
    fn declare(&mut self, keys: &mut KeySet) {
        let mode = if self.own.is_some() { Mode::Write } else { Mode::Read };
        keys.push(self.table, self.shared, mode, 0);
        if let Some(own) = self.own {
            keys.push(self.table, own, Mode::Write, 0);
        }
    }
    fn run(&mut self, tx: &mut Tx<'_>) -> Result<(), TxError> {
        self.seen = tx.value(Slot(0)).map(|value| value.to_vec());
        if let Some(own) = self.own {
            tx.put_slot(Slot(0), own)?;
            tx.put_slot(Slot(1), b"")?;
        }
        Ok(())
    }
    fn ended(&mut self, result: Result<Option<Stamp>, TxError>) {
        self.ended = Some(result);
    }
}

fn open(config: Config) -> Result<Engine, Error> {
    let procedure = |of: &mut stillpoint::Tables<'_>| Ok(Leave { table: of.table("t")? });
    Engine::builder(config).procedure("leave", procedure).open()
}

/// The lives of one store.
fn run(seed: u64, setting: &Setting) {
    let rng = Arc::new(SeededRng::new(seed));
    let mut disk = SimDisk::new(rng.next_u64());
    // The commits of named sessions that the last crash has left, by player.
    let mut kept: Vec<Vec<(u64, Vec<u8>)>> = vec![Vec::new(); NAMED];
    for life in 1..=LIVES {
        let config = configure(setting, &disk, &rng, PLAYERS);
        if rng.below(2) == 0 {
            disk.fail_at(1 + rng.below(150), Fault::PowerLoss);
        }
        let told = live(config, setting, life, &rng, &kept, &disk);
        let mut next = None;
        for state in 0..STATES {
            let context = format!("{setting:?}, seed {seed}, life {life}, crash state {state}");
            let after = if rng.below(6) == 0 { disk.kill() } else { disk.crash(rng.next_u64()) };
            let recovered = open(configure(setting, &after, &rng, PLAYERS));
            let engine = recovered.unwrap_or_else(|error| panic!("{context}: {error}"));
            let still = judge(&engine, &told, &kept, &context);
            drop(engine);
            next = Some((after, still));
        }
        (disk, kept) = next.expect("some states");
    }
}

/// Opens the store and works until the machine dies or the steps are over.
fn live(
    config: Config,
    setting: &Setting,
    life: u64,
    rng: &SeededRng,
    kept: &[Vec<(u64, Vec<u8>)>],
    disk: &SimDisk,
) -> Vec<Told> {
    let begin = || {
        let engine = open(config)?;
        let table = engine.table("t")?;
        let mut players = Vec::new();
        for at in 0..PLAYERS {
            let (session, label) = match at < NAMED {
                true => (engine.session_named(&name(at))?, format!("{at}")),
                false => (engine.session()?, format!("{at} of life {life}")),
            };
            let first = session.serial();
            let last = kept.get(at).and_then(|kept| kept.last()).map_or(0, |(serial, _)| *serial);
            assert_eq!(first, last, "{setting:?}, life {life}: session {label}");
            players.push(Player { session, label, first, events: Vec::new(), durable: 0 });
        }
        Ok::<_, Error>((engine, table, players))
    };
    let (engine, table, mut players) = match begin() {
        Ok(begun) => begun,
        Err(error) => {
            assert!(disk.is_dead(), "{setting:?}, life {life}: {error}");
            return Vec::new();
        }
    };
    for _ in 0..20 + rng.below(60) {
        let at = rng.below(PLAYERS as u64) as usize;
        let ended = step(&engine, table, &mut players[at], rng);
        if let Err(error) = ended {
            assert!(disk.is_dead(), "{setting:?}, life {life}: {error}");
            break;
        }
    }
    let told =
        |Player { label, first, events, durable, .. }| Told { label, first, events, durable };
    players.into_iter().map(told).collect()
}

/// One random call of a session.
fn step(
    engine: &Engine,
    table: TableId,
    player: &mut Player,
    rng: &SeededRng,
) -> Result<(), Error> {
    let last = player.first + player.events.len() as u64;
    assert_eq!(player.session.serial(), last, "session {}", player.label);
    let own = format!("{}-{}", player.label, last + 1).into_bytes();
    let shared = vec![b'x', rng.below(SHARED) as u8];
    let session = &mut player.session;
    let event = match rng.below(20) {
        14 => return abandon(session, table, &own, &shared),
        15..=18 => return ask(player, last, rng),
        19 if engine.takes_checkpoints() => return engine.checkpoint().map(drop),
        0..=2 | 19 => {
            let saw = session.transact(|tx| leave(tx, table, &own, &shared))?;
            Event { own: Some(own), saw }
        }
        3..=5 => declared(session, table, Some(own), &shared)?,
        6..=7 => {
            let mut open = session.begin()?;
            let saw = leave(&mut open.tx()?, table, &own, &shared)?;
            open.commit()?;
            Event { own: Some(own), saw }
        }
        8..=9 => {
            let saw: Option<Vec<u8>> = session.call("leave", &(own.clone(), shared))?;
            Event { own: Some(own), saw: saw.into_iter().collect() }
        }
        10..=11 => {
            let read = |tx: &mut Tx<'_>| Ok(tx.get(table, &shared)?.map(|value| value.to_vec()));
            let saw = session.transact(read)?;
            Event { own: None, saw: saw.into_iter().collect() }
        }
        12 => declared(session, table, None, &shared)?,
        _ => {
            let mut seen = Vec::new();
            let found = session.read(table, &shared, &mut seen)?;
            Event { own: None, saw: found.map(|_| seen).into_iter().collect() }
        }
    };
    player.events.push(event);
    Ok(())
}

/// Runs a transaction that writes and then fails. It has no serial.
fn abandon(session: &mut Session, table: TableId, own: &[u8], shared: &[u8]) -> Result<(), Error> {
    let abandoned = session.transact(|tx| {
        leave(tx, table, own, shared)?;
        Err::<(), _>(TxError::abandon("on purpose"))
    });
    match abandoned {
        Err(Error::Transaction(TxError::Abandoned(_))) => Ok(()),
        other => other,
    }
}

/// Asks what is durable, and perhaps waits for some of it.
fn ask(player: &mut Player, last: u64, rng: &SeededRng) -> Result<(), Error> {
    let wanted = rng.below(last + 1);
    match rng.below(8) {
        0 => player.session.wait_durable(wanted)?,
        1 => {
            let mut wait = pin!(player.session.durable(wanted)?);
            match wait.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(ended) => ended?,
                Poll::Pending => panic!("without threads nobody else works"),
            }
        }
        _ => {
            note_durable(player, last);
            return Ok(());
        }
    }
    note_durable(player, last);
    assert!(player.durable >= wanted, "waited for {wanted}, and found {}", player.durable);
    Ok(())
}

fn note_durable(player: &mut Player, last: u64) {
    let durable = player.session.durable_serial();
    assert!((player.durable..=last).contains(&durable), "{durable} after {}", player.durable);
    player.durable = durable;
}

/// Does what [`Leave`] does, with keys found on the way.
fn leave(
    tx: &mut Tx<'_>,
    table: TableId,
    own: &[u8],
    shared: &[u8],
) -> Result<Vec<Vec<u8>>, TxError> {
    let seen = tx.get(table, shared)?.map(|value| value.to_vec());
    tx.put(table, own, b"")?;
    tx.put(table, shared, own)?;
    Ok(seen.into_iter().collect())
}

fn declared(
    session: &mut Session,
    table: TableId,
    own: Option<Vec<u8>>,
    shared: &[u8],
) -> Result<Event, Error> {
    let mut call = Declared { table, own: own.as_deref(), shared, seen: None, ended: None };
    session.execute(std::slice::from_mut(&mut call));
    let Declared { seen, ended, .. } = call;
    ended.expect("told how it ended")?;
    Ok(Event { own, saw: seen.into_iter().collect() })
}

/// Judges a recovered store. Returns the commits of named sessions that it has.
fn judge(
    engine: &Engine,
    told: &[Told],
    kept: &[Vec<(u64, Vec<u8>)>],
    context: &str,
) -> Vec<Vec<(u64, Vec<u8>)>> {
    let table = engine.table("t").expect("a table");
    assert_eq!(engine.tables().len(), 1, "{context}: {:?}", engine.tables());
    let mut found = BTreeSet::new();
    let mut session = engine.session().expect("a session");
    let next = session.scan(table, 0, usize::MAX, &mut |key, _| {
        found.insert(key.to_vec());
    });
    assert_eq!(next.expect("scans"), 0);
    for Told { label, first, events, durable } in told {
        let durable = durable.saturating_sub(*first) as usize;
        for (serial, event) in (first + 1..).zip(&events[..durable]) {
            for key in event.own.iter().chain(&event.saw) {
                let key_text = String::from_utf8_lossy(key);
                assert!(
                    found.contains(key),
                    "{context}: session {label} called {serial} durable, and {key_text} is lost"
                );
            }
        }
    }
    (0..NAMED)
        .map(|at| {
            let mut commits = kept[at].clone();
            if let Some(Told { first, events, .. }) = told.get(at) {
                let own = (first + 1..).zip(events);
                commits.extend(own.filter_map(|(serial, of)| Some((serial, of.own.clone()?))));
            }
            let is_there = |(_, own): &(u64, Vec<u8>)| found.contains(own);
            let there = commits.iter().take_while(|commit| is_there(commit)).count();
            assert!(
                !commits[there..].iter().any(is_there),
                "{context}: {at} lost one in the middle"
            );
            commits.truncate(there);
            let last = commits.last().map_or(0, |(serial, _)| *serial);
            let session = engine.session_named(&name(at)).expect("a name");
            let told_serial = session.serial();
            // A commit that was under way at the crash may be there, too.
            let under_way = format!("{at}-{told_serial}").into_bytes();
            if told_serial != last && found.contains(&under_way) {
                commits.push((told_serial, under_way));
                return commits;
            }
            assert_eq!(told_serial, last, "{context}: session {at}");
            commits
        })
        .collect()
}
