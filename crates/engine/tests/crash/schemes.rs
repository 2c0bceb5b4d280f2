//! A store that changes its checkpoint scheme from one opening to the next.

use std::sync::Arc;

use stillpoint::{Durability, Engine, Session, TableId};
use stillpoint_checkpoint::registry::{REGISTRY, Row};
use stillpoint_format::manifest::CheckpointKind;
use stillpoint_io::{SeededRng, SimDisk};

use crate::history::State;
use crate::lives::{configure, open_and_read};
use crate::settings::Setting;

const KEYS: u8 = 40;

fn setting(row: &Row) -> Setting {
    let journal = if row.capabilities.needs_before_images() { "undo-redo" } else { "redo" };
    Setting { scheme: row.name, journal, durability: Durability::Strict }
}

fn open(row: &Row, disk: &SimDisk) -> (Arc<Engine>, TableId, Session) {
    let mut config = configure(&setting(row), disk, &SeededRng::new(1), 4);
    (config.merge_after, config.keep_checkpoints) = (None, 1);
    let engine = Arc::new(Engine::open(config).expect("opens"));
    let table = engine.table("things").expect("a table");
    let session = engine.session().expect("a session");
    (engine, table, session)
}

/// Writes some keys, one of them with a large value, and deletes one.
fn change(session: &mut Session, table: TableId, round: u8, state: &mut State) {
    for key in (round % 5..KEYS).step_by(5) {
        let len = if key == 10 { 5000 } else { usize::from(key) };
        let value = vec![round; len];
        session.transact(|tx| tx.put(table, &[key], &value)).expect("commits");
        state.insert((table.0, vec![key]), (0, value));
    }
    let gone = round % KEYS;
    session.transact(|tx| tx.delete(table, &[gone]).map(|_| ())).expect("commits");
    state.remove(&(table.0, vec![gone]));
}

/// Each scheme opens what each other one has left: a checkpoint, and commits after it. The first
/// checkpoint then holds every record, and a scheme of changes goes on from there.
pub(crate) fn each_scheme_opens_what_another_has_left() {
    let rows: Vec<&Row> =
        REGISTRY.iter().filter(|row| row.capabilities.takes_checkpoints()).collect();
    let (mut disk, mut state, mut round) = (SimDisk::new(1), State::new(), 0u8);
    let all = 0..rows.len();
    let pairs = all.clone().flat_map(|from| all.clone().map(move |to| (from, to)));
    for (from, to) in pairs.filter(|(from, to)| from != to) {
        let context = format!("{} after {}", rows[to].name, rows[from].name);
        for (at, is_other) in [(from, false), (to, true)] {
            let (engine, table, mut session) = open(rows[at], &disk);
            let takes_changes = rows[at].build().checkpointer.is_some_and(|it| it.takes_changes());
            for is_first in [true, false] {
                round = round.wrapping_add(1);
                change(&mut session, table, round, &mut state);
                let done = engine.checkpoint().expect("space");
                let partial = takes_changes && !is_first;
                let kind = if partial { CheckpointKind::Partial } else { CheckpointKind::Full };
                assert!(!is_other || done.kind == kind, "{context}: {:?}", done.kind);
            }
            round = round.wrapping_add(1);
            change(&mut session, table, round, &mut state);
            drop((session, engine));
            disk = disk.crash(u64::from(round));
            let found = open_and_read(&setting(rows[at]), &disk, &SeededRng::new(9));
            assert!(found.expect("recovers").state == state, "{context}: the state differs");
        }
    }
}
