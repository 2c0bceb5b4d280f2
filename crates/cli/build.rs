//! Puts the commit into the program: result files of the lab name what was measured, wherever the
//! program is run later.
//!
//! `git` is asked while the program is built. A tree with changes to tracked files adds `-dirty`.
//! Without git, or outside of this project's own checkout, the environment variable
//! `STILLPOINT_COMMIT` tells; else the commit is `unknown`.

use std::io::Write;
use std::process::Command;

fn main() -> std::io::Result<()> {
    let commit = commit_of_checkout()
        .or_else(|| std::env::var("STILLPOINT_COMMIT").ok())
        .unwrap_or_else(|| "unknown".to_owned());
    let mut output = std::io::stdout().lock();
    writeln!(output, "cargo::rustc-env=STILLPOINT_COMMIT={commit}")?;
    writeln!(output, "cargo::rerun-if-env-changed=STILLPOINT_COMMIT")?;
    // Sources that change make the tree dirty; each commit and checkout adds to the log of HEAD.
    for path in ["..", "../../Cargo.toml", "../../Cargo.lock"] {
        writeln!(output, "cargo::rerun-if-changed={path}")?;
    }
    for name in ["logs/HEAD", "index"] {
        let path = git(&["rev-parse", "--git-path", name]);
        if let Some(path) = path.filter(|path| std::path::Path::new(path).exists()) {
            writeln!(output, "cargo::rerun-if-changed={path}")?;
        }
    }
    Ok(())
}

fn commit_of_checkout() -> Option<String> {
    // Sources unpacked inside of another project's checkout are not that project's commit.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    let commit = git(&["rev-parse", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changes.is_empty() { commit } else { format!("{commit}-dirty") })
}

/// What git says, run in this crate's folder.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
