//! Commands in a log of calls. A start makes them again, and comes to the same records.

use std::collections::BTreeMap;
use std::time::Duration;

use stillpoint::{Config, Engine, Label};
use stillpoint_io::{Rng, SeededRng, SimDisk, seeded_rounds};

use super::alone::{Alone, Client, Server};
use super::sample_stream;
use crate::config::DATABASES;
use crate::planted::{Bug, plant};

/// Requests of every family that writes.
const SCRIPT: &str = "\
    SET s 10 EX 100\nINCR s\nINCRBYFLOAT s 0.1\nAPPEND s tail\nSETRANGE s 30 end\nSETBIT b 77 1\n\
    BITFIELD b SET u8 3 9 INCRBY i5 100 1\nBITOP XOR c b s\nGETSET s new\nGETDEL c\nGETEX s PX 5000\n\
    SET s other NX GET\nSETEX e 7 v\nPSETEX f 7000 v\nMSET m1 1 m2 2 m3 3\nMSETNX m3 4 m4 5\n\
    SETNX m5 5\nDECRBY m5 7\nINCR e\nEXPIRE m1 60\nPEXPIREAT m2 1790000100000\nPERSIST m1\nDEL m3\n\
    RPUSH l 1 2 3 4 5 6\nLPUSH l 0\nLINSERT l BEFORE 3 x\nLSET l 1 one\nLREM l 0 4\nLTRIM l 0 5\n\
    LMOVE l l2 LEFT RIGHT\nRPOPLPUSH l l2\nLPOP l 2\nBLPOP none l 1\nBLMOVE l l2 RIGHT LEFT 1\n\
    LMPOP 2 none l2 RIGHT COUNT 2\nLPUSHX none 1\nRPUSHX l2 9\n\
    SADD t a b c d e f g h\nSPOP t\nSPOP t 3\nSREM t a b\nSADD u b c z\nSMOVE u t z\n\
    SUNIONSTORE v t u\nSINTERSTORE w t u\nSDIFFSTORE x t u\n\
    ZADD z 1 a 2 b 3 c 4.5 d\nZADD z GT CH 9 a\nZINCRBY z 1.25 b\nZREM z c\nZPOPMIN z\nZADD y 1 a 2 q\n\
    BZPOPMAX none z 1\nZADD z 1 p 2 q 3 r\nZUNIONSTORE zu 2 z y WEIGHTS 2 3 AGGREGATE MAX\n\
    ZINTERSTORE zi 2 z y\nZDIFFSTORE zd 2 z y\nZRANGESTORE zr z 0 1\nZREMRANGEBYSCORE zu 2 3\n\
    HSET h f 1 g 2 i 3\nHINCRBY h f 5\nHINCRBYFLOAT h g 1.5\nHDEL h i\nHSETNX h j 4\n\
    HEXPIRE h 50 FIELDS 1 f\nHPERSIST h FIELDS 1 f\nHGETDEL h FIELDS 1 j\nHSETEX h EX 9 FIELDS 1 k 7\n\
    PFADD p1 a b c\nPFADD p2 c d\nPFMERGE p3 p1 p2\nGEOADD g 13.36 38.11 x 15.08 37.5 y\n\
    GEOSEARCHSTORE gs g FROMLONLAT 15 37 BYRADIUS 200 km\nSORT t ALPHA STORE sorted\n\
    SORT t BY w_* GET # STORE derived\nRENAME m4 m6\nCOPY t t2 REPLACE\nCOPY t t3 DB 2\nMOVE u 3\n\
    MULTI\nSET q 1\nINCR q\nGET q\nSPOP t2\nSRANDMEMBER t\nSELECT 4\nSET q 2 EX 10\nINCR nothing\n\
    HSET q f v\nSELECT 0\nLPUSH ql 1\nEXEC\n\
    WATCH q\nMULTI\nINCR q\nEXEC\nMULTI\nSET before 1\nDBSIZE\nSET behind 1\nEXEC\n\
    INCR q\nGET q\nAPPEND q x\nINCR q\nAPPEND q y\n\
    CONFIG SET hash-max-listpack-entries 2 zset-max-listpack-value 3\nHSET lh a 1 b 2\nHSET lh c 3\n\
    MULTI\nZADD lz 1 long\nEXEC\n\
    CONFIG SET hash-max-listpack-entries 512 zset-max-listpack-value 64\nHSET lh d 4\n\
    CONFIG SET proto-max-bulk-len 1mb\nMULTI\nSETRANGE q 2000000 x\nSET short 1\nEXEC\n\
    SWAPDB 0 5\nSET swapped 1\nSELECT 5\nINCR m5\nSWAPDB 5 0\nSELECT 0\nINCR m5\n";

/// The settings of a server whose calls run twice in every other seed.
fn config(seed: u64) -> Config {
    let mut config = Config::new("unused");
    // A client that asks for a checkpoint would wait for a thread that takes it.
    config.checkpoint = "none".to_owned();
    config.journal = "command".to_owned();
    config.recovery_threads = 2;
    config.run_calls_twice = seed % 4 < 2;
    config
}

type Records = BTreeMap<(String, Vec<u8>), (Label, Vec<u8>)>;

/// The records of all tables.
fn records(engine: &Engine) -> Records {
    let numbered = (0..DATABASES).flat_map(|db| [format!("db{db}"), format!("db{db}.nodes")]);
    let mut session = engine.session().expect("a session");
    let mut records = Records::new();
    for name in numbered.chain(["graves".to_owned(), "databases".to_owned()]) {
        let table = engine.table(&name).expect("a table");
        let mut cursor = 0;
        loop {
            let visit = &mut |key: &[u8], value: stillpoint::ValueRef<'_>| {
                records.insert((name.clone(), key.to_vec()), (value.label(), value.to_vec()));
            };
            cursor = session.scan(table, cursor, 1000, visit).expect("memory");
            if cursor == 0 {
                break;
            }
        }
    }
    records
}

/// Ends the process, starts again, and compares. Gives the number of commits that were replayed.
fn start_again(what: &str, alone: Alone, disk: &SimDisk) -> u64 {
    // Tables are emptied once all earlier commits are flushed.
    let unused = alone.engine.table("unused").expect("a table");
    alone.engine.flush_tables(&[unused]).expect("a flush");
    let before = records(&alone.engine);
    drop(alone);
    let alone = Alone::over(config(0), disk.kill());
    let after = records(&alone.engine);
    let differs = before.iter().find(|(key, value)| after.get(key) != Some(value));
    assert_eq!(differs, None, "{what}");
    assert_eq!(after.len(), before.len(), "{what}");
    alone.engine.stats().recovered.commits_replayed
}

fn send(server: &mut Server, clients: &mut [Client], requests: &str) {
    clients[0].send(requests.replace('\n', "\r\n").as_bytes());
    for _ in 0..20 {
        server.turn(clients);
    }
}

/// Checks that no call has done something else in its second run.
fn check_replies(clients: &[Client]) {
    for client in clients {
        let replies = String::from_utf8_lossy(&client.replies);
        for refused in ["gave other writes", "the second run"] {
            assert!(!replies.contains(refused), "{replies}");
        }
    }
}

fn run_script(seed: u64, script: &str) {
    let disk = SimDisk::new(seed);
    let alone = Alone::over(config(seed), disk.clone());
    let mut server = Server::new(&alone);
    let mut clients = [server.connect()];
    // Requests one by one are transactions of their own; those together are groups.
    if seed.is_multiple_of(2) {
        send(&mut server, &mut clients, script);
    } else {
        for line in script.lines() {
            clients[0].send(format!("{line}\r\n").as_bytes());
            server.turn(&mut clients);
        }
    }
    for _ in 0..100 {
        server.turn(&mut clients);
    }
    check_replies(&clients);
    drop((clients, server));
    assert!(start_again("the script", alone, &disk) > 0);
}

#[test]
fn commands_of_all_families_are_made_again() {
    (0..4).for_each(|seed| run_script(seed, SCRIPT));
}

/// Streams of random requests of two clients, and of work on large collections.
fn random(seed: u64) -> u64 {
    let disk = SimDisk::new(seed);
    let alone = Alone::over(config(seed), disk.clone());
    for part in 0..3 {
        alone.serve(&sample_stream(3 * seed + part));
    }
    let rng = SeededRng::new(seed);
    let mut server = Server::new(&alone);
    let mut clients = [server.connect()];
    for _ in 0..30 {
        clients[0].send(&super::crash::group(&rng));
        server.turn(&mut clients);
        server.turn(&mut clients);
        if rng.below(4) == 0 {
            server.clock.advance(Duration::from_millis(100));
        }
    }
    check_replies(&clients);
    drop((clients, server));
    start_again(&format!("seed {seed}"), alone, &disk)
}

/// Runs for the seconds of `STILLPOINT_FUZZ_SECONDS`.
#[test]
fn random_commands_are_made_again_for_long() {
    let mut replayed = 0;
    seeded_rounds(30, |seed| replayed += random(seed));
    assert!(replayed > 0);
}

/// Each planted bug refuses the start, or makes other records.
#[test]
fn each_planted_bug_of_logged_commands_is_seen() {
    let bugs =
        [Bug::TimeNotLogged, Bug::SwapForgotten, Bug::GroupCutOff, Bug::SmallLimitsForgotten];
    for bug in bugs {
        plant(Some(bug));
        let seen = std::panic::catch_unwind(|| (0..4).for_each(|seed| run_script(seed, SCRIPT)));
        plant(None);
        assert!(seen.is_err(), "{bug:?} is not seen");
    }
}
