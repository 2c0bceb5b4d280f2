//! The rule on dependencies between crates: arrows point down only.
//!
//! The table is the picture of ARCHITECTURE.md. Development dependencies are free, since a
//! journal's tests may open a store. Dependencies of shipped code are not.

use std::collections::BTreeMap;

use serde_json::Value;

/// The crates of the engine, lowest first.
const PARTS: &[&str] = &[
    "stillpoint-format",
    "stillpoint-sync",
    "stillpoint-mem",
    "stillpoint-io",
    "stillpoint-txn",
    "stillpoint-paged",
    "stillpoint-siren",
    "stillpoint-store",
    "stillpoint-checkpoint",
    "stillpoint-journal",
    "stillpoint-recovery",
];

/// Crate → the crates of ours that it may depend on.
pub const ARROWS: &[(&str, &[&str])] = &[
    ("stillpoint-format", &[]),
    ("stillpoint-sync", &[]),
    ("stillpoint-mem", &["stillpoint-sync"]),
    // A queue reads into the frames of mem by their addresses.
    ("stillpoint-io", &["stillpoint-mem"]),
    ("stillpoint-txn", &["stillpoint-sync", "stillpoint-format", "stillpoint-io"]),
    ("stillpoint-node", &["stillpoint-format", "stillpoint-mem", "stillpoint-sync"]),
    (
        "stillpoint-siren",
        &[
            "stillpoint-txn",
            "stillpoint-format",
            "stillpoint-io",
            "stillpoint-mem",
            "stillpoint-sync",
        ],
    ),
    (
        "stillpoint-paged",
        &[
            "stillpoint-node",
            "stillpoint-txn",
            "stillpoint-sync",
            "stillpoint-mem",
            "stillpoint-io",
            "stillpoint-format",
        ],
    ),
    (
        "stillpoint-store",
        &[
            "stillpoint-node",
            "stillpoint-txn",
            "stillpoint-sync",
            "stillpoint-mem",
            "stillpoint-io",
            "stillpoint-format",
        ],
    ),
    (
        "stillpoint-checkpoint",
        &[
            "stillpoint-store",
            "stillpoint-format",
            "stillpoint-io",
            "stillpoint-mem",
            "stillpoint-sync",
        ],
    ),
    (
        "stillpoint-journal",
        &["stillpoint-format", "stillpoint-io", "stillpoint-mem", "stillpoint-sync"],
    ),
    (
        "stillpoint-recovery",
        &[
            "stillpoint-checkpoint",
            "stillpoint-journal",
            "stillpoint-store",
            "stillpoint-format",
            "stillpoint-io",
            "stillpoint-mem",
            "stillpoint-sync",
        ],
    ),
    (
        "stillpoint-state",
        &[
            "stillpoint-state-derive",
            "stillpoint-format",
            "stillpoint-io",
            "stillpoint-mem",
            "stillpoint-sync",
        ],
    ),
    ("stillpoint-state-derive", &[]),
    ("stillpoint", PARTS),
    // The server uses the clock and threads of io. `forbidden` checks that it uses no file from
    // there.
    ("stillpoint-server", &["stillpoint", "stillpoint-io"]),
    (
        "stillpoint-lab",
        &[
            "stillpoint",
            "stillpoint-server",
            "stillpoint-siren",
            "stillpoint-state",
            // The lab's rows come from the registries.
            "stillpoint-checkpoint",
            "stillpoint-journal",
            "stillpoint-store",
            "stillpoint-format",
            "stillpoint-io",
            "stillpoint-mem",
            "stillpoint-sync",
        ],
    ),
    ("stillpoint-arrow", &["stillpoint"]),
    (
        "stillpoint-cli",
        &[
            "stillpoint",
            "stillpoint-arrow",
            "stillpoint-server",
            "stillpoint-lab",
            "stillpoint-recovery",
            "stillpoint-checkpoint",
            "stillpoint-journal",
            "stillpoint-store",
            "stillpoint-format",
            "stillpoint-io",
        ],
    ),
    ("stillpoint-lab-peers", &["stillpoint", "stillpoint-lab", "stillpoint-io"]),
    ("stillpoint-mutants", &[]),
    ("stillpoint-tidy", &[]),
];

/// Complaints about the output of `cargo metadata --no-deps`, against `arrows`.
pub fn complaints(metadata: &Value, arrows: &[(&str, &[&str])]) -> Vec<String> {
    let allowed: BTreeMap<&str, &[&str]> = arrows.iter().copied().collect();
    let mut found = Vec::new();
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    if packages.is_empty() {
        found.push("cargo metadata lists no package: was it run in the workspace?".to_owned());
    }
    for package in packages {
        let name = package["name"].as_str().unwrap_or("?");
        let Some(may) = allowed.get(name) else {
            found.push(format!(
                "{name}: no row in ARROWS of crates/tidy/src/arrows.rs; add one that says what it may depend on"
            ));
            continue;
        };
        for target in own_dependencies(package) {
            if !may.contains(&target) {
                found.push(format!(
                    "{name} depends on {target}, which its row in crates/tidy/src/arrows.rs does not allow"
                ));
            }
        }
    }
    found
}

/// Dependencies on crates of this workspace, without those of tests.
fn own_dependencies(package: &Value) -> Vec<&str> {
    let all = package["dependencies"].as_array().map_or(&[][..], Vec::as_slice);
    all.iter()
        .filter(|dependency| dependency["path"].is_string() && dependency["kind"] != "dev")
        .filter_map(|dependency| dependency["name"].as_str())
        .collect()
}

/// Complaints about the table itself: arrows that close a circle, or lead to an unknown crate.
pub fn circles(arrows: &[(&str, &[&str])]) -> Vec<String> {
    let mut settled: Vec<&str> = Vec::new();
    let mut open: Vec<(&str, &[&str])> = arrows.to_vec();
    loop {
        let before = open.len();
        open.retain(|(name, may)| {
            let done = may.iter().all(|target| settled.contains(target));
            if done {
                settled.push(name);
            }
            !done
        });
        if open.len() == before {
            break;
        }
    }
    open.iter()
        .map(|(name, may)| format!("{name}: its arrows {may:?} close a circle or name no crate"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn package(name: &str, dependencies: Value) -> Value {
        json!({ "packages": [{ "name": name, "dependencies": dependencies }] })
    }

    #[test]
    fn an_upward_arrow_is_found() {
        let up = json!([{ "name": "stillpoint", "kind": null, "path": "crates/engine" }]);
        let found = complaints(&package("stillpoint-store", up), ARROWS);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("stillpoint-store depends on stillpoint,"));
    }

    #[test]
    fn build_dependencies_count_and_those_of_tests_do_not() {
        let build = json!([{ "name": "stillpoint-io", "kind": "build", "path": "crates/io" }]);
        assert_eq!(complaints(&package("stillpoint-format", build), ARROWS).len(), 1);
        let dev = json!([{ "name": "stillpoint-io", "kind": "dev", "path": "crates/io" }]);
        assert!(complaints(&package("stillpoint-format", dev), ARROWS).is_empty());
    }

    #[test]
    fn foreign_crates_are_not_ours_to_judge() {
        let foreign = json!([{ "name": "crc32c", "kind": null, "source": "registry" }]);
        assert!(complaints(&package("stillpoint-format", foreign), ARROWS).is_empty());
    }

    #[test]
    fn a_crate_without_a_row_is_found() {
        let found = complaints(&package("stillpoint-misc", json!([])), ARROWS);
        assert!(found[0].starts_with("stillpoint-misc: no row"), "{found:?}");
    }

    #[test]
    fn empty_metadata_is_not_a_pass() {
        assert_eq!(complaints(&json!({}), ARROWS).len(), 1);
    }

    #[test]
    fn a_circle_in_the_table_is_found() {
        let table: &[(&str, &[&str])] = &[("a", &["b"]), ("b", &["a"]), ("c", &[])];
        assert_eq!(circles(table).len(), 2);
        assert!(circles(ARROWS).is_empty());
    }
}
