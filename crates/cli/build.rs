//! Compiles the commit into the program, so that result files of the lab name the measured source
//! wherever the program runs.
//!
//! The build asks `git`. A tree with changes to tracked files adds `-dirty`. Without git, or
//! outside of this project's own checkout, the environment variable `STILLPOINT_COMMIT` names the
//! commit. Without the variable the commit is `unknown`.

use std::io::Write;
use std::process::Command;

fn main() -> std::io::Result<()> {
    let commit = commit_of_checkout()
        .or_else(|| std::env::var("STILLPOINT_COMMIT").ok())
        .unwrap_or_else(|| "unknown".to_owned());
    let mut output = std::io::stdout().lock();
    writeln!(output, "cargo::rustc-env=STILLPOINT_COMMIT={commit}")?;
    writeln!(output, "cargo::rerun-if-env-changed=STILLPOINT_COMMIT")?;
    // A change of the sources makes the tree dirty. Each commit and checkout adds to the log of
    // HEAD. The index is not watched: git writes it whenever it looks at the tree.
    for path in ["..", "../../Cargo.toml", "../../Cargo.lock"] {
        writeln!(output, "cargo::rerun-if-changed={path}")?;
    }
    let log_of_head = git(&["rev-parse", "--git-path", "logs/HEAD"]);
    if let Some(path) = log_of_head.filter(|path| std::path::Path::new(path).exists()) {
        writeln!(output, "cargo::rerun-if-changed={path}")?;
    }
    Ok(())
}

fn commit_of_checkout() -> Option<String> {
    // If the sources lie inside another project's checkout, that project's commit says nothing
    // about them.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    let commit = git(&["rev-parse", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changes.is_empty() { commit } else { format!("{commit}-dirty") })
}

/// Output of git, run in this crate's folder.
fn git(arguments: &[&str]) -> Option<String> {
    // Other work in the checkout is not disturbed.
    let output = Command::new("git").arg("--no-optional-locks").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
