//! One engine and one run in a process of its own, for a profiler.

use std::io::Write;
use std::path::PathBuf;

use crate::drivers::transactions::{self, Drive};
use crate::error::{LabError, LabResult};
use crate::measure::durations;
use crate::subjects::adapter::{OpenEngine, Setup};
use crate::workloads::calc::{Change, LARGE_VALUE_BYTES, VALUE_BYTES};

/// Arguments of the profiled run.
#[derive(clap::Args, Clone, Debug, PartialEq)]
pub(crate) struct Profiled {
    /// The scheme's registered name.
    #[arg(long, default_value = "calc")]
    pub(crate) scheme: String,
    /// The journal's registered name.
    #[arg(long, default_value = "none")]
    pub(crate) journal: String,
    /// Bytes per second that checkpoints may write. Without a number, checkpoints write as fast as
    /// they can.
    #[arg(long)]
    pub(crate) pace: Option<u64>,
    /// Transactions per second. Without a number the workers are saturated.
    #[arg(long)]
    pub(crate) rate: Option<f64>,
    /// Records with keys of 8 bytes.
    #[arg(long, default_value_t = 20_000_000)]
    pub(crate) records: u64,
    /// Whether updates replace whole values, of 1,000 bytes instead of 100.
    #[arg(long)]
    pub(crate) large: bool,
    /// Seconds of the run.
    #[arg(long, default_value_t = 12.0, value_parser = durations::seconds)]
    pub(crate) seconds: f64,
    /// Times at which checkpoints begin.
    #[arg(long, value_parser = durations::moment)]
    pub(crate) checkpoint_at: Vec<f64>,
    /// Directory of the engine's files.
    #[arg(long)]
    pub(crate) dir: PathBuf,
}

/// Carries out the run. Prints the rate of every window of 100 ms and the durations of the
/// checkpoints.
///
/// # Errors
/// When the engine refuses, or the output cannot be written.
pub(crate) fn child(open: &OpenEngine, what: &Profiled, output: &mut dyn Write) -> LabResult<()> {
    let engine = open(&Setup {
        dir: what.dir.clone(),
        scheme: what.scheme.clone(),
        journal: what.journal.clone(),
        pace_bytes_per_s: what.pace,
        records: what.records,
        value_bytes: if what.large { LARGE_VALUE_BYTES } else { VALUE_BYTES },
        sessions: 8,
        published_points: false,
        stable_pool_bytes: None,
    })?;
    engine.load(what.records)?;
    let drive = Drive {
        seconds: what.seconds,
        rate_per_s: what.rate,
        checkpoints_at_s: what.checkpoint_at.clone(),
        change: if what.large { Change::Whole } else { Change::Counter },
        ..Drive::new(what.records)
    };
    let outcome = transactions::run(&*engine, &drive)?;
    let thousands = outcome.windows.rates().into_iter().map(|rate| format!("{:.0}", rate / 1e3));
    let thousands: Vec<String> = thousands.collect();
    let checkpoints: Vec<String> =
        outcome.captures.iter().map(|c| format!("{:.2}-{:.2} s", c.from_s, c.to_s)).collect();
    writeln!(
        output,
        "thousands/s per window: {}\nrate {:.0}/s, checkpoints [{}], background {:.2} CPU s",
        thousands.join(" "),
        outcome.rate(),
        checkpoints.join(", "),
        outcome.background_cpu_s
    )
    .map_err(|e| LabError::process("the output of a profiled run", e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::transactions::tests::Toy;

    #[test]
    fn windows_and_checkpoints_are_printed() -> LabResult<()> {
        let what = Profiled {
            scheme: "calc".into(),
            journal: "none".into(),
            pace: None,
            rate: None,
            records: 1000,
            large: false,
            seconds: 0.5,
            checkpoint_at: vec![0.1],
            dir: "unused".into(),
        };
        let mut output = Vec::new();
        child(&Toy::open, &what, &mut output)?;
        let text = String::from_utf8_lossy(&output);
        assert!(text.contains("per window: ") && text.contains("checkpoints [0."), "{text}");
        Ok(())
    }
}
