//! The tools on a directory with paged tables.

use std::path::Path;

use stillpoint::{Config, Durability, Engine, Kind};
use stillpoint_io::{Caching, Disk, OpenMode, RealDisk, read_all};

use crate::common::{Serving, load_elsewhere, run, stillpoint};

fn config(dir: &Path) -> Config {
    let mut config = Config::new(dir);
    (config.durability, config.checkpoint_every) = (Durability::Strict, None);
    (config.pool_bytes, config.page_bytes) = (Some(64 * 4096), Some(4096));
    config.page_growth_bytes = 1 << 20;
    config
}

/// A table of 1,000 orders, half of them in pages and half in the log alone, as `kill -9` leaves it.
fn killed(dir: &Path) {
    let engine = Engine::open(config(dir)).expect("an empty directory");
    let orders = engine.table_with("orders", Kind::Paged).expect("a table");
    let customers = engine.table("customers").expect("a table");
    let mut session = engine.session().expect("a session");
    for order in 0u32..1000 {
        let put = session.transact(|tx| {
            tx.put(customers, &(order % 10).to_be_bytes(), b"name")?;
            tx.put(orders, format!("order {order:04}").as_bytes(), &[7; 200])
        });
        put.expect("commits");
        if order == 500 {
            engine.checkpoint().expect("a checkpoint");
        }
    }
}

#[test]
fn the_tools_know_paged_tables() {
    let home = tempfile::tempdir().expect("a directory");
    let dir = &home.path().join("data");
    killed(dir);
    let (code, said) = run(&["check"], dir);
    assert!(code == Some(0) && said.ends_with("sound\n"), "{said}");
    assert!(said.contains(" of 4.0 KiB in ") && said.contains("every slot used once"), "{said}");
    assert!(said.contains("paged table orders: 1000 records in "), "{said}");
    let (_, json) = run(&["check", "--json"], dir);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["paged_tables"][0]["records"], 1000, "{json}");
    assert_eq!(json["pages"]["page_bytes"], 4096, "{json}");

    let (code, said) = run(&["inspect"], dir);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("table        orders (number 0, generation 1, paged)\n"), "{said}");
    assert!(said.contains("in pages     501 records of table orders\n"), "{said}");
    assert!(said.contains(", round 1 of the map\n"), "{said}");
    let (_, json) = run(&["inspect", "--json"], dir);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json["pages"]["map"], &json["pages"]["records"]["0"]), (&1.into(), &501.into()));

    let (code, said) = run(&["dump", "--table", "orders"], dir);
    assert_eq!((code, said.matches("\"order ").count()), (Some(0), 1000), "{said}");
    // A dump is loaded into tables in memory.
    let said = load_elsewhere(dir, &home.path().join("loaded"));
    assert!(said.contains("1010 records"), "{said}");

    let (code, said) = run(&["repair"], dir);
    assert!(code == Some(0) && said.contains("nothing has to be given up"), "{said}");
    let to = home.path().join("restored").display().to_string();
    let (code, said) = run(&["restore", "--checkpoint", "2", "--to", &to], dir);
    assert!(code == Some(2) && said.contains("paged tables (orders)"), "{said}");
    let (code, said) = run(&["load"], dir);
    assert!(code == Some(2) && said.contains("such tables need the log"), "{said}");

    let mut serve = stillpoint();
    let serve = serve.args(["serve", "--port", "0", "--data"]).arg(dir).output();
    let said = String::from_utf8(serve.expect("the binary runs").stderr).expect("text");
    assert!(said.contains("setting pool: the store has paged tables (orders)"), "{said}");
    let serving = Serving::start(dir, &["--pool", "1MiB", "--page-size", "4KiB"]);
    assert_eq!(serving.client().ask(&["SET", "key", "value"]), "OK");
    let (code, said) = run(&["check"], dir);
    assert!(code == Some(0) && said.contains("a process has the directory open"), "{said}");
    let (code, said) = run(&["dump"], dir);
    assert!(code == Some(2) && said.contains("a process has the directory open"), "{said}");
    let (code, said) = run(&["dump", "--table", "customers"], dir);
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn damage_is_told_with_file_slot_page_and_table() {
    let home = tempfile::tempdir().expect("a directory");
    let dir = &home.path().join("data");
    killed(dir);
    let disk = RealDisk::new(dir).expect("a disk");
    let data = Path::new("pages/data");
    let mut bytes = read_all(&disk, data).expect("it is there");
    // The last page that was written is a leaf of the table.
    let used = bytes.iter().rposition(|&byte| byte != 0).expect("pages");
    let slot = used / 4096;
    bytes[slot * 4096 + 2000] ^= 1;
    let file = disk.open(data, OpenMode::ReadWrite, Caching::Buffered).expect("it is there");
    file.write_at(&bytes, 0).expect("room");
    let (code, said) = run(&["check"], dir);
    assert_eq!(code, Some(1), "{said}");
    let damaged: Vec<&str> = said.lines().filter(|line| line.starts_with("damaged: ")).collect();
    assert_eq!(damaged.len(), 1, "{said}");
    let named = format!("pages/data: slot {slot}, page ");
    assert!(damaged[0].contains(&named), "{said}");
    assert!(damaged[0].contains(" of table 0: ") && damaged[0].ends_with("(table \"orders\")"));
    let (code, said) = run(&["dump"], dir);
    assert!(code == Some(1) && said.contains(&named), "{said}");
    let (code, said) = run(&["repair", "--accept-loss"], dir);
    assert!(code == Some(2) && said.contains("put a copy of the data directory back"), "{said}");
}
