//! check, inspect, dump, restore.

use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};
use stillpoint::offline;

use crate::DAMAGED;
use crate::error::CliError;
use crate::units::show_size;

type Done = Result<ExitCode, CliError>;

pub(crate) fn check(dir: &Path, as_json: bool, out: &mut dyn Write) -> Done {
    let checked = match offline::check(dir) {
        Ok(checked) => checked,
        // Without a MANIFEST there is nothing to verify: that is the finding.
        Err(error) if error.is_damage() => {
            offline::Checked { damage: vec![error.to_string()], ..Default::default() }
        }
        Err(error) => return Err(error.into()),
    };
    let sound = checked.damage.is_empty();
    if as_json {
        let checkpoints: Vec<Value> = checked
            .checkpoints
            .iter()
            .map(|(epoch, records, bytes)| {
                json!({"epoch": epoch, "records": records, "bytes": bytes})
            })
            .collect();
        let all = json!({
            "sound": sound,
            "checkpoints": checkpoints,
            "log_bytes": checked.replay_bytes,
            "damage": checked.damage,
            "damage_more": checked.damage_more,
        });
        writeln!(out, "{all}")?;
    } else {
        for (epoch, records, bytes) in &checked.checkpoints {
            let size = show_size(*bytes);
            writeln!(
                out,
                "checkpoint {epoch}: {records} records, {size}, every checksum right, every key once"
            )?;
        }
        for damage in &checked.damage {
            writeln!(out, "damaged: {damage}")?;
        }
        if checked.damage_more > 0 {
            writeln!(out, "and {} more damaged places", checked.damage_more)?;
        }
        if sound {
            let log = show_size(checked.replay_bytes);
            writeln!(out, "logs: {log} to replay\nsound")?;
        }
    }
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::from(DAMAGED) })
}

pub(crate) fn inspect(dir: &Path, as_json: bool, out: &mut dyn Write) -> Done {
    let inspection = offline::inspect(dir)?;
    let manifest = &inspection.manifest;
    if as_json {
        let all = json!({
            "manifest": manifest,
            "log_bytes": inspection.replay_bytes,
            "gsn_max": inspection.gsn_max,
        });
        writeln!(out, "{all}")?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(out, "store        {}", manifest.store)?;
    writeln!(out, "next epoch   {}", manifest.next_epoch)?;
    let closed = if manifest.clean_shutdown.is_some() { "in order" } else { "no, or by a crash" };
    writeln!(out, "closed       {closed}")?;
    for table in &manifest.tables {
        let (name, id, generation) = (&table.name, table.id, table.generation);
        writeln!(out, "table        {name} (number {id}, generation {generation})")?;
    }
    for checkpoint in &manifest.checkpoints {
        let bytes = checkpoint.parts.iter().map(|part| part.bytes).sum();
        writeln!(
            out,
            "checkpoint   {} {} by {}: {} records, {} in {} parts, taken in {:.1} s",
            checkpoint.epoch,
            checkpoint.kind.as_str(),
            checkpoint.scheme,
            checkpoint.records,
            show_size(bytes),
            checkpoint.parts.len(),
            checkpoint.finished_ms.saturating_sub(checkpoint.started_ms) as f64 / 1000.0,
        )?;
    }
    for incarnation in &manifest.incarnations {
        let (number, floor) = (incarnation.number, incarnation.gsn_floor);
        writeln!(out, "incarnation  {number}, gsns above {floor}")?;
    }
    writeln!(out, "log          {} to replay", show_size(inspection.replay_bytes))?;
    writeln!(out, "greatest gsn {}", inspection.gsn_max)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn dump(dir: &Path, table: Option<&str>, out: &mut dyn Write) -> Done {
    let mut out = BufWriter::with_capacity(1 << 20, out);
    let mut bytes = Vec::new();
    offline::dump(dir, table, &mut |table, key, value| {
        bytes.clear();
        value.copy_to(&mut bytes);
        let line = json!({
            "table": table,
            "key": show(key),
            "tag": value.tag(),
            "value": show(&bytes),
        });
        writeln!(out, "{line}")
    })?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Text as it is; other bytes as an object that says so.
fn show(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => Value::from(text),
        Err(_) => {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            json!({ "base16": digits })
        }
    }
}

pub(crate) fn restore(
    dir: &Path,
    epoch: u64,
    to: &Path,
    as_json: bool,
    out: &mut dyn Write,
) -> Done {
    let (records, bytes) = offline::restore(dir, epoch, to)?;
    if as_json {
        writeln!(out, "{}", json!({"epoch": epoch, "records": records, "bytes": bytes, "to": to}))?;
    } else {
        let size = show_size(bytes);
        writeln!(
            out,
            "checkpoint {epoch}: {records} records, {size}, restored to {}",
            to.display()
        )?;
    }
    Ok(ExitCode::SUCCESS)
}
