//! Logs of commands that earlier releases have written: a start makes the same records of them.
//!
//! A fixture has the files of a killed server, and then the records that its start must make. To add one
//! for a release, run this test with `STILLPOINT_GOLDEN=NAME` in the environment.

#![expect(clippy::disallowed_methods, reason = "fixtures are no files of an engine that runs")]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use stillpoint::{Config as EngineConfig, Durability, Engine, FoundCall};
use stillpoint_server::{logged_requests, with_commands};

use crate::common::{Client, TestServer, Value, config, encode, opened};

/// One file: its name and its bytes.
const FILE: &str = "file";
/// One record: table, key, tag, deadline, value.
const RECORD: &str = "record";

/// Commands of every family that writes.
const SCRIPT: &str = "\
    SET s 10 EX 100000000\nINCR s\nINCRBYFLOAT s 0.1\nAPPEND s tail\nSETRANGE s 30 end\nSETBIT b 77 1\n\
    BITFIELD b SET u8 3 9 INCRBY i5 100 1\nBITOP XOR c b s\nGETDEL c\nMSET m1 1 m2 2\nDECRBY m2 7\n\
    RPUSH l 1 2 3 4 5 6\nLINSERT l BEFORE 3 x\nLSET l 1 one\nLREM l 0 4\nLMOVE l l2 LEFT RIGHT\nLPOP l 2\n\
    SADD t a b c d e f g h\nSPOP t\nSPOP t 3\nSADD u b c z\nSMOVE u t z\nSUNIONSTORE v t u\n\
    ZADD z 1 a 2 b 3 c 4.5 d\nZINCRBY z 1.25 b\nZPOPMIN z\nZADD y 1 a 2 q\n\
    ZUNIONSTORE zu 2 z y WEIGHTS 2 3 AGGREGATE MAX\nZRANGESTORE zr z 0 1\n\
    HSET h f 1 g 2 i 3\nHINCRBY h f 5\nHINCRBYFLOAT h g 1.5\nHEXPIRE h 100000000 FIELDS 1 f\n\
    PFADD p1 a b c\nPFADD p2 c d\nPFMERGE p3 p1 p2\nGEOADD g 13.36 38.11 x 15.08 37.5 y\n\
    GEOSEARCHSTORE gs g FROMLONLAT 15 37 BYRADIUS 200 km\nSORT t ALPHA STORE sorted\n\
    RENAME m1 m3\nCOPY t t2 REPLACE\nMULTI\nSET q 1\nINCR q\nSPOP t2\nHSET q f v\nEXEC\n\
    GETSET s new\nGETEX s PX 100000000000\nPSETEX f 100000000000 v\nMSETNX m4 4 m5 5\nSETNX m6 6\n\
    SET m4 9 KEEPTTL GET\nLPUSH l 0\nLTRIM l 0 3\nRPOPLPUSH l l2\nLMPOP 2 none l2 RIGHT COUNT 2\n\
    ZADD z GT CH 9 a\nZREMRANGEBYSCORE zu 2 3\nZINTERSTORE zi 2 z y\nZDIFFSTORE zd 2 z y\n\
    HSETNX h j 4\nHGETDEL h FIELDS 1 j\nHSETEX h EX 100000000 FIELDS 1 k 7\nHDEL h i\n\
    SORT t2 ALPHA DESC LIMIT 0 2 STORE sorted2\nCOPY t t3 DB 2\nMOVE u 3\n\
    GEOSEARCHSTORE gd g FROMLONLAT 15 37 BYRADIUS 200 km STOREDIST\n\
    CONFIG SET proto-max-bulk-len 1mb\nAPPEND limited x";

/// Commands that come together. Those on one key are one transaction, and those of one round share the
/// beginnings of their arguments in the log.
const PIPELINE: &str = "\
    INCR grouped\nAPPEND grouped x\nGET grouped\nAPPEND grouped y\nSET user:0000001:name Ada\n\
    SET user:0000001:year 1815\nSET user:0000002:name Grace\nRPUSH many 1\nRPUSH many 2\nLPOP many";

/// The forms of calls in a log.
#[derive(Debug, Default)]
struct Forms {
    groups: usize,
    queues: usize,
    limits: usize,
    /// Calls with the first eight bytes of the call before, which a batch leaves out.
    prefixes: usize,
    before: Vec<u8>,
}

impl Forms {
    #[expect(clippy::unnecessary_wraps, reason = "the visitor of calls may fail")]
    fn add(&mut self, call: &FoundCall<'_>) -> std::io::Result<()> {
        let requests = logged_requests(call.name, call.arguments).expect("of commands");
        let kind = call.arguments[0];
        self.groups += usize::from(kind & 1 == 0 && requests.len() > 1);
        self.queues += usize::from(kind & 1 != 0);
        self.limits += usize::from(kind & 2 != 0);
        self.prefixes += usize::from(self.before.starts_with(&call.arguments[..8]));
        self.before = call.arguments.to_vec();
        Ok(())
    }

    fn has_all(&self) -> bool {
        let Self { groups, queues, limits, prefixes, .. } = *self;
        [groups, queues, limits, prefixes].iter().all(|&count| count > 0)
    }
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server/fixtures/logs")
}

fn engine_config() -> EngineConfig {
    let mut engine = EngineConfig::new("unused");
    engine.journal = "command".to_owned();
    engine.durability = Durability::Strict;
    engine.checkpoint_every = None;
    engine.logs = 1;
    engine.log_segment_bytes = 16 << 10;
    engine
}

/// Bytes in base 16 behind a hyphen. `z40.` stands for so many zeros.
fn to_base16(bytes: &[u8]) -> String {
    let mut text = String::from("-");
    let mut rest = bytes;
    while let Some(byte) = rest.first() {
        let zeros = rest.iter().take_while(|&&byte| byte == 0).count();
        let written =
            if zeros > 4 { write!(text, "z{zeros}.") } else { write!(text, "{byte:02x}") };
        written.expect("memory");
        rest = &rest[if zeros > 4 { zeros } else { 1 }..];
    }
    text
}

fn of_base16(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), text.strip_prefix('-').expect("a hyphen"));
    while !rest.is_empty() {
        if let Some((zeros, behind)) = rest.strip_prefix('z').and_then(|rest| rest.split_once('.'))
        {
            bytes.resize(bytes.len() + zeros.parse::<usize>().expect("a number"), 0);
            rest = behind;
        } else {
            let (digits, behind) = rest.split_at(2);
            bytes.push(u8::from_str_radix(digits, 16).expect("two digits"));
            rest = behind;
        }
    }
    bytes
}

/// The records of all tables, as lines.
fn records(engine: &Engine) -> Vec<String> {
    let mut session = engine.session().expect("a session");
    let mut lines = Vec::new();
    for (name, table) in engine.tables() {
        let mut cursor = 0;
        loop {
            let visit = &mut |key: &[u8], value: stillpoint::ValueRef<'_>| {
                let (tag, deadline) = (value.tag(), value.deadline().unwrap_or(0));
                let (key, value) = (to_base16(key), to_base16(&value.to_vec()));
                lines.push(format!("{RECORD} {name} {key} {tag} {deadline} {value}"));
            };
            cursor = session.scan(table, cursor, 1000, visit).expect("a scan");
            if cursor == 0 {
                break;
            }
        }
    }
    lines.sort_unstable();
    lines
}

fn files(dir: &Path, under: &str, found: &mut BTreeMap<String, Vec<u8>>) {
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let entry = entry.expect("an entry");
        let name = format!("{under}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            files(&entry.path(), &format!("{name}/"), found);
        } else {
            found.insert(name, std::fs::read(entry.path()).expect("a file"));
        }
    }
}

/// Writes a fixture: the script is run, and the files are taken while the server is open.
fn write_fixture(name: &str) {
    let home = tempfile::tempdir().expect("a directory");
    let engine = EngineConfig { data: home.path().join("data"), ..engine_config() };
    let engine = opened(engine);
    let server = TestServer::around(config(), engine, None);
    let mut client: Client = server.client();
    for line in SCRIPT.lines() {
        let reply = client.call(&line.split(' ').collect::<Vec<_>>());
        assert!(!matches!(reply, Value::Error(_)), "{line}: {reply:?}");
    }
    let requests: Vec<Vec<&[u8]>> =
        PIPELINE.lines().map(|line| line.split(' ').map(str::as_bytes).collect()).collect();
    let together: Vec<Vec<u8>> = requests.iter().map(|words| encode(words)).collect();
    client.send_whole(&together.concat());
    for words in requests {
        let reply = client.read();
        assert!(!matches!(reply, Value::Error(_)), "{words:?}: {reply:?}");
    }
    let mut found = BTreeMap::new();
    files(&home.path().join("data"), "", &mut found);
    let records = server.look(records);
    drop(server);
    let mut text = String::new();
    for (name, bytes) in &found {
        writeln!(text, "{FILE} {name} {}", to_base16(bytes)).expect("memory");
    }
    records.iter().for_each(|line| writeln!(text, "{line}").expect("memory"));
    std::fs::create_dir_all(fixtures()).expect("a directory");
    std::fs::write(fixtures().join(format!("{name}.txt")), text).expect("a fixture");
}

/// Writes the files of a fixture into a directory. Returns its other lines.
fn unpack(path: &Path, home: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).expect("a fixture");
    let mut others = Vec::new();
    for line in text.lines() {
        let Some(file) = line.strip_prefix(FILE) else {
            others.push(line.to_owned());
            continue;
        };
        let (name, bytes) = file.trim().split_once(' ').expect("a name and bytes");
        let target = home.join(name);
        std::fs::create_dir_all(target.parent().expect("a directory")).expect("made");
        std::fs::write(target, of_base16(bytes)).expect("written");
    }
    others
}

/// In version 1 of the commands, expiries were bytes of the values. A start refuses a log of that version, says what to
/// do, and changes no file.
#[test]
fn a_log_of_an_older_version_of_the_commands_is_refused() {
    let home = tempfile::tempdir().expect("a directory");
    let fixture = fixtures().with_file_name("refused").join("commands-1.txt");
    assert_eq!(unpack(&fixture, home.path()), [""; 0]);
    let found = || {
        let mut found = BTreeMap::new();
        files(home.path(), "", &mut found);
        found
    };
    let before = found();
    assert!(before.len() > 20 && before.contains_key("MANIFEST"), "{:?}", before.keys());
    for _ in 0..2 {
        let config = EngineConfig { data: home.path().to_owned(), ..engine_config() };
        let error = with_commands(Engine::builder(config)).open().expect_err("an older version");
        assert!(matches!(error, stillpoint::Error::Recovery(_)), "{error:?}");
        let said = error.to_string();
        for part in
            ["\"commands\" version 1", "open the store with the program", "close it in order"]
        {
            assert!(said.contains(part), "{said}");
        }
        assert!(found() == before, "a refused start changes nothing");
    }
}

#[test]
fn logs_of_earlier_releases_make_the_same_records() {
    if let Ok(name) = std::env::var("STILLPOINT_GOLDEN") {
        write_fixture(&name);
    }
    let mut count = 0;
    for fixture in std::fs::read_dir(fixtures()).expect("fixtures") {
        let path = fixture.expect("an entry").path();
        let home = tempfile::tempdir().expect("a directory");
        let mut expected = unpack(&path, home.path());
        let mut forms = Forms::default();
        stillpoint::offline::calls(home.path(), &mut |call| forms.add(call)).expect("readable");
        assert!(forms.has_all(), "{}: {forms:?}", path.display());
        let engine = opened(EngineConfig { data: home.path().to_owned(), ..engine_config() });
        assert!(engine.stats().recovered.commits_replayed > 30, "{}", path.display());
        let found = records(&engine);
        expected.sort_unstable();
        let differs = found.iter().zip(&expected).find(|(found, expected)| found != expected);
        assert_eq!(differs, None, "{}", path.display());
        assert_eq!(found.len(), expected.len(), "{}", path.display());
        count += 1;
    }
    assert!(count > 0, "there is no fixture");
}
