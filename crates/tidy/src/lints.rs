//! The rule on lints: every crate takes the workspace's lints. The three crates with unsafe code
//! repeat the table.

use std::collections::BTreeMap;

use crate::forbidden::UNSAFE_CRATES;
use crate::tree::TextFile;

/// The line of the workspace's table that crates with unsafe code leave out.
const BAN: (&str, &str) = ("rust.unsafe_code", "\"forbid\"");
/// The line that crates with unsafe code have in place of [`BAN`].
const IN_ITS_PLACE: (&str, &str) = ("rust.unsafe_op_in_unsafe_fn", "\"deny\"");

type Table = BTreeMap<String, String>;

/// Complaints about the lint tables of the manifests among `files`.
pub fn complaints(files: &[TextFile]) -> Vec<String> {
    let Some(root) = files.iter().find(|file| file.path == "Cargo.toml") else {
        return vec!["Cargo.toml of the workspace is missing".to_owned()];
    };
    let workspace = lints(&root.text, "workspace.lints.");
    let mut found = Vec::new();
    if workspace.get(BAN.0).map(String::as_str) != Some(BAN.1) {
        found.push(format!("Cargo.toml: [workspace.lints] must hold {} = {}", BAN.0, BAN.1));
    }
    for file in files {
        let Some(dir) = crate_of_manifest(&file.path) else {
            continue;
        };
        if UNSAFE_CRATES.contains(&dir) {
            found.extend(differences(file, &workspace));
        } else if section(&file.text, "lints").get("workspace").map(String::as_str) != Some("true")
        {
            found.push(format!("{}: needs [lints] workspace = true", file.path));
        }
    }
    found
}

fn crate_of_manifest(path: &str) -> Option<&str> {
    let dir = path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")?;
    (!dir.contains('/')).then_some(dir)
}

fn differences(file: &TextFile, workspace: &Table) -> Vec<String> {
    let mut wanted = workspace.clone();
    wanted.remove(BAN.0);
    wanted.insert(IN_ITS_PLACE.0.to_owned(), IN_ITS_PLACE.1.to_owned());
    let own = lints(&file.text, "lints.");
    let mut names: Vec<&String> = wanted.keys().chain(own.keys()).collect();
    names.sort();
    names.dedup();
    names
        .into_iter()
        .filter(|name| wanted.get(*name) != own.get(*name))
        .map(|name| {
            let show = |table: &Table| table.get(name).cloned().unwrap_or_else(|| "absent".into());
            format!("{}: lint {name} is {}, must be {}", file.path, show(&own), show(&wanted))
        })
        .collect()
}

/// Both lint tables below `prefix`, names written `rust.x` and `clippy.x`.
fn lints(manifest: &str, prefix: &str) -> Table {
    let mut all = Table::new();
    for tool in ["rust", "clippy"] {
        for (name, level) in section(manifest, &format!("{prefix}{tool}")) {
            all.insert(format!("{tool}.{name}"), level);
        }
    }
    all
}

/// The lines `key = value` of one section of a manifest, comments left out.
fn section(manifest: &str, name: &str) -> Table {
    let heading = format!("[{name}]");
    manifest
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .skip_while(|line| *line != heading)
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "[workspace.lints.rust]\nunsafe_code = \"forbid\" # but\nmissing_docs = \"warn\"\n\n[workspace.lints.clippy]\ntodo = \"deny\"\n";
    const WITH_UNSAFE: &str = "[lints.rust]\nunsafe_op_in_unsafe_fn = \"deny\"\nmissing_docs = \"warn\"\n[lints.clippy]\ntodo = \"deny\"\n";

    fn judge(dir: &str, manifest: &str) -> Vec<String> {
        complaints(&[
            TextFile::sample("Cargo.toml", ROOT),
            TextFile::sample(&format!("crates/{dir}/Cargo.toml"), manifest),
        ])
    }

    #[test]
    fn tables_as_they_should_be_pass() {
        assert_eq!(judge("store", "[lints]\nworkspace = true\n"), [""; 0]);
        assert_eq!(judge("mem", WITH_UNSAFE), [""; 0]);
    }

    #[test]
    fn a_crate_outside_the_lints_is_found() {
        assert_eq!(judge("store", "[package]\n").len(), 1);
        assert_eq!(judge("store", "[lints]\nworkspace = false\n").len(), 1);
        assert_eq!(judge("store", WITH_UNSAFE).len(), 1);
    }

    #[test]
    fn each_way_to_differ_is_found() {
        let weaker = WITH_UNSAFE.replace("todo = \"deny\"", "todo = \"warn\"");
        let missing = WITH_UNSAFE.replace("todo = \"deny\"\n", "");
        let more = format!("{WITH_UNSAFE}style = \"allow\"\n");
        for manifest in [weaker, missing, more] {
            assert_eq!(judge("io", &manifest).len(), 1, "{manifest}");
        }
        let no_rule = WITH_UNSAFE.replace("unsafe_op_in_unsafe_fn = \"deny\"\n", "");
        assert_eq!(judge("io", &no_rule).len(), 1);
    }

    #[test]
    fn a_workspace_without_the_ban_is_found() {
        let weak = ROOT.replace("forbid", "deny");
        assert_eq!(complaints(&[TextFile::sample("Cargo.toml", &weak)]).len(), 1);
        assert_eq!(complaints(&[]).len(), 1);
    }
}
