//! Tables by name.

use stillpoint::{Config, Engine, Error};

#[test]
fn tables_are_made_together_and_found_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let engine = Engine::open(Config::new(dir.path())).expect("an empty directory");
    let one = engine.table("one").expect("a name");
    let made = engine.tables_named(&["two", "one", "three", "two"]).expect("names");
    assert_eq!(made[1], one);
    assert_eq!(made[0], made[3]);
    assert!(made[0] != one && made[2] != one && made[0] != made[2]);
    assert_eq!(engine.tables_named(&[]).expect("nothing to do"), []);
    // A bad name among good ones: nothing is made.
    let long = "x".repeat(256);
    for bad in ["", &long] {
        let refused = engine.tables_named(&["four", bad]);
        assert!(matches!(refused, Err(Error::TableName { .. })), "{refused:?}");
    }
    assert_eq!(engine.tables().len(), 3);
    engine.close().expect("closed");
    let engine = Engine::open(Config::new(dir.path())).expect("the same directory");
    assert_eq!(engine.tables_named(&["two", "one", "three"]).expect("known"), made[..3]);
    assert_eq!(engine.tables().len(), 3);
}
