//! The part with redis-benchmark, Redis's own load generator, which readers will try themselves.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Plan;
use crate::error::{LabError, LabResult};
use crate::subjects::server::Server;

/// The tool, where it is installed.
pub(crate) fn find() -> Option<PathBuf> {
    super::find_program("redis-benchmark")
}

/// Runs GET or SET and returns requests per second.
///
/// # Errors
/// When the tool fails, or its output holds no rate.
pub(crate) fn run(
    tool: &Path,
    plan: &Plan,
    server: &Server,
    operation: &str,
    pipeline: usize,
    requests: u64,
) -> LabResult<f64> {
    let mut command = Command::new(tool);
    command
        .args(["-p", &server.address.port().to_string()])
        .args(["-c", &plan.connections.to_string(), "--threads", &plan.threads.to_string()])
        .args(["-n", &requests.to_string(), "-r", &plan.keys.to_string()])
        .args(["-d", &plan.value_bytes.to_string(), "-P", &pipeline.to_string()])
        .args(["-t", &operation.to_lowercase(), "--csv"]);
    let line = format!("{command:?}");
    let output = command.output().map_err(|e| LabError::process(&line, e))?;
    let text = String::from_utf8_lossy(&output.stdout);
    rate_in_csv(&text, operation).ok_or_else(|| {
        let said = format!("{text}{}", String::from_utf8_lossy(&output.stderr));
        LabError::process(&line, format!("{}; printed {said:?}", output.status))
    })
}

/// The column `rps` of the row of this operation.
fn rate_in_csv(text: &str, operation: &str) -> Option<f64> {
    let cells = |line: &str| -> Vec<String> {
        line.split(',').map(|cell| cell.trim().trim_matches('"').to_owned()).collect()
    };
    let mut lines = text.lines().map(cells);
    let column = lines.find(|l| l.first().is_some_and(|c| c == "test"))?;
    let column = column.iter().position(|c| c == "rps")?;
    let row = lines.find(|l| l.first().is_some_and(|c| c == operation))?;
    row.get(column)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_found_by_its_head() {
        let text = "\"test\",\"rps\",\"avg_latency_ms\"\n\"SET\",\"98039.22\",\"0.3\"\n";
        assert_eq!(rate_in_csv(text, "SET"), Some(98039.22));
        assert_eq!(rate_in_csv(text, "GET"), None);
        assert_eq!(rate_in_csv("Could not connect", "SET"), None);
    }
}
