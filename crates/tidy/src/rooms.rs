//! The rule on modules of a crate: each module knows those below it and none above.

use crate::tokens::facts;
use crate::tree::TextFile;

/// Crate directory → its modules, lowest first. Modules of one entry may know each other.
pub const ROOMS: &[(&str, &[&[&str]])] = &[
    (
        "store",
        &[
            &["memory", "ordered"],
            &["deletions", "planted", "table", "unloaded"],
            &["chains", "phase", "read_stamps", "record", "rules", "sink"],
            &["catalog"],
            &["store"],
            &["dirty", "scheme_memory", "stable"],
            &["checkpointer"],
            &["capture", "held"],
            &["arrival", "participant", "reclaim", "relocate"],
            &["txn"],
            &["worker"],
            &["load"],
            &["models"],
        ],
    ),
    (
        "server",
        &[
            &["counter", "glob", "log", "planted", "resp"],
            &["config", "error"],
            &["args", "heap"],
            &["keyspace"],
            &["shared"],
            &["session"],
            &["families"],
            &["repeat"],
            &["net"],
            &["server"],
            &["fuzzing"],
        ],
    ),
    (
        "lab",
        &[
            &["error", "sys"],
            &["workloads"],
            &["measure"],
            &["subjects"],
            &["drivers"],
            &["report"],
            &["context"],
            &["harness"],
            &["crash"],
            &["advise"],
            &["experiments"],
            &["peers"],
            &["cli"],
        ],
    ),
];

/// Complaints about product code that names a module above its own, and about modules without a
/// place in the table.
pub fn complaints(files: &[TextFile], rooms: &[(&str, &[&[&str]])]) -> Vec<String> {
    let mut found = Vec::new();
    for (dir, order) in rooms {
        let height = |room: &str| order.iter().position(|level| level.contains(&room));
        let prefix = format!("crates/{dir}/src/");
        let sources = files.iter().filter(|file| file.is_rust() && !file.is_test());
        for file in sources.filter(|file| file.path.starts_with(&prefix)) {
            let own = room_of(&file.path[prefix.len()..]);
            if own == "lib" {
                continue;
            }
            let Some(own_height) = height(own) else {
                found.push(format!(
                    "{}: the module {own} has no place in ROOMS of crates/tidy/src/rooms.rs",
                    file.path
                ));
                continue;
            };
            for (line, room) in product_uses(file) {
                if height(room).is_some_and(|it| it > own_height) {
                    found.push(format!(
                        "{}:{line}: {own} lies below {room} and must not know it",
                        file.path
                    ));
                }
            }
        }
    }
    found
}

/// The module at the top of a path: `workloads` of `workloads/tpcc/mod.rs`, `cli` of `cli.rs`.
fn room_of(path: &str) -> &str {
    let first = path.split('/').next().unwrap_or(path);
    first.strip_suffix(".rs").unwrap_or(first)
}

/// The lines of a file outside of tests and comments, with their numbers.
pub(crate) fn product_lines(file: &TextFile) -> impl Iterator<Item = (usize, &str)> {
    let tests = facts(&file.text).map(|facts| facts.test_items).unwrap_or_default();
    let is_product = move |line: usize| !tests.iter().any(|items| items.contains(&line));
    let lines = file.text.lines().enumerate().map(|(index, text)| (index + 1, text));
    lines.filter(move |(line, text)| is_product(*line) && !text.trim_start().starts_with("//"))
}

/// The first name behind each `crate::` outside of tests and comments, with its line.
fn product_uses(file: &TextFile) -> Vec<(usize, &str)> {
    product_lines(file)
        .flat_map(|(line, text)| {
            text.split("crate::").skip(1).map(move |rest| {
                let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'));
                (line, &rest[..end.unwrap_or(rest.len())])
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[(&str, &[&[&str]])] = &[("house", &[&["cellar", "well"], &["roof"]])];

    fn judge(path: &str, text: &str) -> Vec<String> {
        complaints(&[TextFile::sample(path, text)], TABLE)
    }

    #[test]
    fn a_room_that_knows_one_above_is_found() {
        let found =
            judge("crates/house/src/cellar/wine.rs", "use crate::well;\nuse crate::roof::Tile;");
        assert_eq!(
            found,
            ["crates/house/src/cellar/wine.rs:2: cellar lies below roof and must not know it"]
        );
        assert!(judge("crates/house/src/roof.rs", "use crate::cellar;").is_empty());
    }

    #[test]
    fn tests_comments_and_other_crates_are_free() {
        let text = "// crate::roof\n#[cfg(test)]\nmod tests {\n    use crate::roof;\n}\n";
        assert!(judge("crates/house/src/cellar.rs", text).is_empty());
        assert!(judge("crates/house/src/cellar/tests.rs", "use crate::roof;").is_empty());
        assert!(judge("crates/hut/src/cellar.rs", "use crate::roof;").is_empty());
    }

    #[test]
    fn a_room_without_a_place_is_found() {
        assert_eq!(judge("crates/house/src/attic.rs", "").len(), 1);
        assert!(judge("crates/house/src/lib.rs", "mod attic;").is_empty());
    }
}
