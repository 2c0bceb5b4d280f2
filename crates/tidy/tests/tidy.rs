//! The rules, run over this repository.

use std::process::Command;

use stillpoint_tidy::tree::{TextFile, root, text_files};
use stillpoint_tidy::{
    arrows, circles, forbidden, glossary, links, lints, partners, registry, rooms, sentences,
    sizes, words,
};

fn files() -> Vec<TextFile> {
    text_files(&root()).expect("the files of the repository can be read")
}

fn expect_none(complaints: &[String]) {
    assert!(
        complaints.is_empty(),
        "{} complaints:\n  {}",
        complaints.len(),
        complaints.join("\n  ")
    );
}

/// What cargo says of the workspace.
fn metadata() -> serde_json::Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo metadata starts");
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "cargo metadata failed: {complaint}");
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}

#[test]
fn arrows_point_down() {
    expect_none(&arrows::complaints(&metadata(), arrows::ARROWS));
    expect_none(&arrows::circles(arrows::ARROWS));
}

/// `cargo run`, the first command of the README, refuses to choose between two binaries.
#[test]
fn cargo_run_means_the_product() {
    let metadata = metadata();
    let members = metadata["workspace_default_members"].as_array().expect("default members");
    let packages = metadata["packages"].as_array().expect("packages").iter();
    let targets = packages
        .filter(|package| members.contains(&package["id"]))
        .flat_map(|package| package["targets"].as_array().expect("targets"));
    let binaries: Vec<&serde_json::Value> = targets
        .filter(|target| target["kind"].as_array().is_some_and(|kinds| kinds[0] == "bin"))
        .map(|target| &target["name"])
        .collect();
    assert_eq!(binaries, ["stillpoint"]);
}

#[test]
fn files_and_functions_keep_their_sizes() {
    expect_none(&sizes::complaints(&files(), sizes::LONG_FILES, sizes::LONG_FUNCTIONS));
}

#[test]
fn each_scheme_is_one_file_and_one_row() {
    let files = files();
    let found: Vec<String> = registry::REGISTRIES
        .iter()
        .flat_map(|(source, rows)| registry::complaints(&files, source, rows))
        .collect();
    expect_none(&found);
}

#[test]
fn crates_do_not_know_what_they_must_not() {
    expect_none(&forbidden::complaints(&files()));
}

#[test]
fn rooms_know_only_those_below() {
    expect_none(&rooms::complaints(&files(), rooms::ROOMS));
}

#[test]
fn circles_of_imports_stay_small() {
    expect_none(&circles::complaints(&files(), circles::CIRCLES));
}

#[test]
fn no_machine_paths_and_no_marks() {
    expect_none(&words::complaints(&files()));
}

#[test]
fn sentences_are_short() {
    expect_none(&sentences::complaints(&files()));
}

#[test]
fn every_crate_keeps_the_lint_table() {
    expect_none(&lints::complaints(&files()));
}

#[test]
fn links_and_names_in_the_documents_lead_somewhere() {
    expect_none(&links::complaints(&files()));
}

#[test]
fn partners_of_ordering_notes_exist() {
    expect_none(&partners::complaints(&files()));
}

#[test]
fn retired_words_stay_away() {
    expect_none(&glossary::complaints(&files()));
}
