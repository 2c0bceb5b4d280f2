//! check, inspect, dump, restore, repair.

use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};
use stillpoint::offline::{self, Extent, VerifiedSirenTable, VerifiedTree};
use stillpoint::{Config, Engine};
use stillpoint_server::{
    CollectionCheck, CollectionsOfKind, StoredValue, VerifiedCollections, logged_requests,
    with_commands,
};

use crate::DAMAGED;
use crate::dump::{Bytes, Dump, Record};
use crate::error::CliError;
use crate::units::show_size;

type Done = Result<ExitCode, CliError>;

/// Places that `check` shows of damaged collections.
const SHOWN: usize = 20;

/// Recovers a sound directory into memory and verifies its collections.
fn verify_collections(dir: &Path) -> Result<VerifiedCollections, CliError> {
    let mut check = CollectionCheck::default();
    with_commands(Engine::builder(Config::new(dir))).dump(None, &mut |table, key, value| {
        check.add(table, key, value);
        Ok(())
    })?;
    Ok(check.finish())
}

pub(crate) fn check(
    dir: &Path,
    with_collections: bool,
    as_json: bool,
    out: &mut dyn Write,
) -> Done {
    let mut checked = match offline::check(dir) {
        Ok(checked) => checked,
        // Without a MANIFEST nothing can be verified. The command reports just that.
        Err(error) if error.is_damage() => {
            offline::Checked { damage: vec![error.to_string()], ..Default::default() }
        }
        Err(error) => return Err(error.into()),
    };
    let mut collections = None;
    if with_collections && checked.damage.is_empty() {
        let verified = verify_collections(dir)?;
        let shown = verified.damage.iter().take(SHOWN);
        checked.damage.extend(shown.map(ToString::to_string));
        checked.damage_more += verified.damage.len().saturating_sub(SHOWN) as u64;
        collections = Some(verified);
    }
    let sound = checked.damage.is_empty();
    if as_json {
        let checkpoints: Vec<Value> = checked
            .checkpoints
            .iter()
            .map(|(epoch, records, bytes)| {
                json!({"epoch": epoch, "records": records, "bytes": bytes})
            })
            .collect();
        let procedures: Vec<Value> = checked
            .procedures
            .iter()
            .map(|(name, version)| json!({"name": name, "version": version}))
            .collect();
        let all = json!({
            "sound": sound,
            "extent": extent_json(checked.extent),
            "checkpoints": checkpoints,
            "log_bytes": checked.replay_bytes,
            "pages": checked.pages.map(|of| {
                json!({"pages": of.pages, "page_bytes": of.page_bytes, "slots": of.slots})
            }),
            "paged_tables": checked.trees.iter().map(tree_json).collect::<Vec<_>>(),
            "siren": checked.siren.map(|of| {
                json!({"pages": of.pages, "tuples": of.tuples, "page_bytes": of.page_bytes})
            }),
            "siren_tables": checked.siren_tables.iter().map(siren_json).collect::<Vec<_>>(),
            "procedures": procedures,
            "collections": collections.map(|found| {
                json!({
                    "verified": found.collections,
                    "nodes": found.nodes,
                    "being_removed": found.graves,
                })
            }),
            "damage": checked.damage,
            "damage_more": checked.damage_more,
            "harmless": checked.harmless,
        });
        writeln!(out, "{all}")?;
    } else {
        show_checked(&checked, collections.as_ref(), out)?;
    }
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::from(DAMAGED) })
}

/// Says what `check` found.
fn show_checked(
    checked: &offline::Checked,
    collections: Option<&VerifiedCollections>,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let sound = checked.damage.is_empty();
    for (epoch, records, bytes) in &checked.checkpoints {
        let size = show_size(*bytes);
        writeln!(
            out,
            "checkpoint {epoch}: {records} records, {size}, every checksum right, every key once"
        )?;
    }
    if let Some(of) = &checked.pages {
        let (pages, size, slots) = (of.pages, show_size(of.page_bytes as u64), of.slots);
        writeln!(
            out,
            "pages: {pages} of {size} in {slots} slots, every checksum right, every slot used once"
        )?;
    }
    for tree in &checked.trees {
        let VerifiedTree { name, records, pages, levels } = tree;
        writeln!(
            out,
            "paged table {name}: {records} records in {pages} pages of {levels} levels, every key in order"
        )?;
    }
    show_siren(checked, out)?;
    for harmless in &checked.harmless {
        writeln!(out, "harmless: {harmless}")?;
    }
    for damage in &checked.damage {
        writeln!(out, "damaged: {damage}")?;
    }
    if checked.damage_more > 0 {
        writeln!(out, "and {} more damaged places", checked.damage_more)?;
    }
    if let Some(said) = said_of(checked.extent) {
        writeln!(out, "{said}")?;
    }
    if let Some(bytes) = checked.replay_bytes.filter(|_| sound) {
        writeln!(out, "logs: {} to replay", show_size(bytes))?;
    }
    for (name, version) in &checked.procedures {
        writeln!(out, "a start needs procedure {name:?} version {version}")?;
    }
    if let Some(VerifiedCollections { collections, nodes, graves, .. }) = collections {
        writeln!(
            out,
            "collections: {collections} verified, with {nodes} nodes; {graves} being removed"
        )?;
    }
    if sound {
        writeln!(out, "sound")?;
    }
    Ok(())
}

/// Says what `check` found of SIREN tables.
fn show_siren(checked: &offline::Checked, out: &mut dyn Write) -> std::io::Result<()> {
    if let Some(of) = &checked.siren {
        let (pages, tuples, size) = (of.pages, of.tuples, show_size(of.page_bytes as u64));
        writeln!(
            out,
            "siren pages: {pages} with {tuples} tuples, of {size} or more, every checksum right, every disk \
             page used once"
        )?;
    }
    for table in &checked.siren_tables {
        let VerifiedSirenTable { name, records, pages } = table;
        writeln!(
            out,
            "siren table {name}: {records} records in {pages} pages, every key in order, every version in its \
             page"
        )?;
    }
    Ok(())
}

fn siren_json(table: &VerifiedSirenTable) -> Value {
    let VerifiedSirenTable { name, records, pages } = table;
    json!({"name": name, "records": records, "pages": pages})
}

fn tree_json(tree: &VerifiedTree) -> Value {
    let VerifiedTree { name, records, pages, levels } = tree;
    json!({"name": name, "records": records, "pages": pages, "levels": levels})
}

/// The examined part of the directory, if it is not all.
pub(crate) fn said_of(extent: Extent) -> Option<String> {
    match extent {
        Extent::Whole => None,
        Extent::Checkpoint(Some(epoch)) => {
            Some(format!("a process has the directory open: as of epoch {epoch}, without the log"))
        }
        Extent::Checkpoint(None) => {
            Some("a process has the directory open: no checkpoint yet, without the log".to_owned())
        }
    }
}

fn extent_json(extent: Extent) -> Value {
    match extent {
        Extent::Whole => json!("whole"),
        Extent::Checkpoint(epoch) => json!({ "checkpoint": epoch }),
    }
}

pub(crate) fn inspect(
    dir: &Path,
    with_collections: bool,
    as_json: bool,
    out: &mut dyn Write,
) -> Done {
    let inspection = offline::inspect(dir)?;
    let counts = with_collections && inspection.damage.is_none();
    let collections = counts.then(|| verify_collections(dir)).transpose()?;
    let is_sound = collections.as_ref().is_none_or(|found| found.damage.is_empty());
    if as_json {
        inspect_as_json(&inspection, collections.as_ref(), out)?;
    } else {
        show_inspected(&inspection, out)?;
        collections.map_or(Ok(()), |found| show_collections(&found, out))?;
        if let Some(said) = said_of(inspection.extent) {
            writeln!(out, "{said}")?;
        }
    }
    Ok(if is_sound { exit_of(&inspection) } else { ExitCode::from(DAMAGED) })
}

fn inspect_as_json(
    inspection: &offline::Inspection,
    collections: Option<&VerifiedCollections>,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let all = json!({
        "manifest": &inspection.manifest,
        "extent": extent_json(inspection.extent),
        "log_bytes": inspection.logs.map(|logs| logs.replay_bytes),
        "gsn_max": inspection.logs.map(|logs| logs.gsn_max),
        "pages": inspection.pages.as_ref().map(pages_json),
        "siren": inspection.siren.as_ref().map(|of| {
            json!({
                "level": of.level,
                "page_bytes": of.page_bytes,
                "pages": of.pages,
                "file_pages": of.file_pages,
            })
        }),
        "collections": collections.map(|found| {
            json!({
                "kinds": found.kinds.iter().map(kind_json).collect::<Vec<_>>(),
                "being_removed": found.graves,
                "damage": found.damage.iter().map(ToString::to_string).collect::<Vec<_>>(),
            })
        }),
        "damage": inspection.damage,
    });
    writeln!(out, "{all}")
}

fn kind_json(of: &CollectionsOfKind) -> Value {
    json!({
        "kind": of.name,
        "collections": of.collections,
        "elements": of.elements,
        "nodes": of.nodes,
        "bytes": of.bytes,
        "largest": {
            "table": of.largest_table,
            "key": of.largest_key,
            "elements": of.most_elements,
        },
    })
}

/// Says how many collections of each kind there are, and how large they are.
fn show_collections(found: &VerifiedCollections, out: &mut dyn Write) -> std::io::Result<()> {
    for of in &found.kinds {
        let CollectionsOfKind { name, collections, elements, nodes, .. } = of;
        let (bytes, most) = (show_size(of.bytes), of.most_elements);
        let (table, key) = (&of.largest_table, &of.largest_key);
        writeln!(
            out,
            "collections  {name}: {collections} with {elements} elements in {nodes} nodes, {bytes}; largest: \
             {most}, table {table}, key {key:?}"
        )?;
    }
    if found.graves > 0 {
        writeln!(out, "collections  {} being removed", found.graves)?;
    }
    for damage in &found.damage {
        writeln!(out, "damage       {damage}")?;
    }
    Ok(())
}

/// Says what `inspect` found, collections apart.
fn show_inspected(inspection: &offline::Inspection, out: &mut dyn Write) -> std::io::Result<()> {
    let manifest = &inspection.manifest;
    writeln!(out, "store        {}", manifest.store)?;
    writeln!(out, "next epoch   {}", manifest.next_epoch)?;
    let closed = if manifest.clean_shutdown.is_some() { "in order" } else { "no, or by a crash" };
    writeln!(out, "closed       {closed}")?;
    show_tables(inspection, out)?;
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
    if let Some(logs) = &inspection.logs {
        let bytes = show_size(logs.replay_bytes);
        match manifest.newest_chain().last() {
            Some(newest) => {
                writeln!(
                    out,
                    "log          {bytes} to replay, held by checkpoint {}",
                    newest.epoch
                )?;
            }
            None => writeln!(out, "log          {bytes} to replay, held until a checkpoint")?,
        }
        writeln!(out, "greatest gsn {}", logs.gsn_max)?;
    }
    if let Some(damage) = &inspection.damage {
        writeln!(out, "damage       {damage}")?;
    }
    Ok(())
}

fn pages_json(of: &offline::InspectedPages) -> Value {
    json!({
        "page_bytes": of.page_bytes,
        "map": of.map,
        "records": of.records,
        "pages": of.pages,
        "slots": of.slots,
    })
}

/// Lists the tables, with their kinds, and the pages of other kinds than memory.
fn show_tables(inspection: &offline::Inspection, out: &mut dyn Write) -> std::io::Result<()> {
    for table in &inspection.manifest.tables {
        let (name, id, generation) = (&table.name, table.id, table.generation);
        let kind = match json!(table.kind).as_str() {
            None | Some("memory") => String::new(),
            Some(kind) => format!(", {kind}"),
        };
        writeln!(out, "table        {name} (number {id}, generation {generation}{kind})")?;
    }
    inspection.pages.as_ref().map_or(Ok(()), |pages| show_pages(pages, inspection, out))?;
    inspection.siren.as_ref().map_or(Ok(()), |siren| show_siren_pages(siren, inspection, out))
}

/// Says what `inspect` found of the pages of SIREN tables.
fn show_siren_pages(
    of: &offline::InspectedSiren,
    inspection: &offline::Inspection,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let level = of.level;
    match (of.page_bytes, of.file_pages) {
        (Some(page_bytes), Some(file_pages)) => {
            let (size, bytes) =
                (show_size(page_bytes as u64), show_size(file_pages * page_bytes as u64));
            writeln!(
                out,
                "siren pages  of {size}, in {file_pages} disk pages of {bytes}, level {level}"
            )?;
        }
        _ => writeln!(out, "siren pages  of level {level}")?,
    }
    for (table, pages) in &of.pages {
        let name = inspection.manifest.table(*table).map_or("", |table| &table.name);
        writeln!(out, "in pages     table {name} in {pages} siren pages")?;
    }
    Ok(())
}

/// Says what `inspect` found of the pages of paged tables.
fn show_pages(
    of: &offline::InspectedPages,
    inspection: &offline::Inspection,
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let size = show_size(of.page_bytes as u64);
    match (of.pages, of.slots) {
        (Some(pages), Some(slots)) => {
            let bytes = show_size(slots * of.page_bytes as u64);
            writeln!(
                out,
                "pages        {pages} of {size}, in {slots} slots of {bytes}, round {} of the map",
                of.map
            )?;
        }
        _ => writeln!(out, "pages        of {size}, round {} of the map", of.map)?,
    }
    for (table, records) in &of.records {
        let name = inspection.manifest.table(*table).map_or("", |table| &table.name);
        writeln!(out, "in pages     {records} records of table {name}")?;
    }
    Ok(())
}

/// Writes the calls that the logs name, one JSON line each.
pub(crate) fn calls(dir: &Path, out: &mut dyn Write) -> Done {
    let mut out = BufWriter::new(out);
    offline::calls(dir, &mut |call| {
        let mut line = json!({
            "gsn": call.gsn,
            "log": call.log,
            "name": call.name,
            "version": call.version,
            "arguments": Bytes(call.arguments.into()),
            "inputs": Bytes(call.inputs.into()),
        });
        // The commands of the journal `command` are packed.
        if let Some(requests) = logged_requests(call.name, call.arguments) {
            let show = |(db, words): &(u16, Vec<Vec<u8>>)| {
                let words: Vec<_> = words.iter().map(|word| Bytes(word.into())).collect();
                json!({"database": db, "request": words})
            };
            line["requests"] = requests.iter().map(show).collect();
        }
        writeln!(out, "{line}")
    })?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn exit_of(inspection: &offline::Inspection) -> ExitCode {
    if inspection.damage.is_some() { ExitCode::from(DAMAGED) } else { ExitCode::SUCCESS }
}

pub(crate) fn dump(dir: &Path, table: Option<&str>, out: &mut dyn Write) -> Done {
    let mut dump = Dump::new(BufWriter::with_capacity(1 << 20, out))?;
    let mut bytes = Vec::new();
    let builder = with_commands(Engine::builder(Config::new(dir)));
    let mut dumped = builder.dump(table, &mut |table, key, value| {
        bytes.clear();
        let stored = StoredValue::of(table, value);
        stored.copy_to(&mut bytes);
        dump.record(&Record {
            table: table.into(),
            key: Bytes(key.into()),
            tag: stored.tag(),
            value: Bytes(bytes.as_slice().into()),
            expires_ms: stored.expires_ms(),
        })
    })?;
    // Tables are shown by name, since their numbers are internal.
    dumped.tables.sort_unstable();
    dump.end(&dumped.tables)?;
    if let Some(said) = said_of(dumped.extent) {
        writeln!(std::io::stderr(), "{said}")?;
    }
    Ok(ExitCode::SUCCESS)
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

pub(crate) fn merge(
    dir: &Path,
    copy: Option<&Path>,
    keep_points: usize,
    as_json: bool,
    out: &mut dyn Write,
) -> Done {
    let merged = match copy {
        Some(copy) => Some(offline::adopt(dir, copy, keep_points)?),
        None => offline::merge(dir, keep_points)?,
    };
    if as_json {
        let all = merged.map(|done| {
            json!({
                "epoch": done.epoch,
                "merged": done.merged,
                "bytes_before": done.bytes_before,
                "bytes": done.bytes,
            })
        });
        writeln!(out, "{}", json!({ "merged": all }))?;
        return Ok(ExitCode::SUCCESS);
    }
    match merged {
        Some(done) => {
            let (before, after) = (show_size(done.bytes_before), show_size(done.bytes));
            let (merged, epoch) = (done.merged, done.epoch);
            writeln!(
                out,
                "{merged} checkpoints of {before} merged into checkpoint {epoch}: {after}"
            )?;
        }
        None => writeln!(out, "nothing to merge")?,
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn repair(dir: &Path, accept_loss: bool, as_json: bool, out: &mut dyn Write) -> Done {
    let repair = offline::repair(dir, accept_loss)?;
    let sound = repair.gives_up.is_empty();
    if as_json {
        let all = json!({
            "gives_up": repair.gives_up,
            "checkpoint": repair.checkpoint,
            "checkpoint_records": repair.checkpoint_records,
            "log_bytes": repair.replay_bytes,
            "done": repair.done,
        });
        writeln!(out, "{all}")?;
    } else {
        let verb = if repair.done { "given up" } else { "would be given up" };
        for what in &repair.gives_up {
            writeln!(out, "{verb}: {what}")?;
        }
        let log = show_size(repair.replay_bytes);
        match repair.checkpoint {
            Some(epoch) => {
                let records = repair.checkpoint_records;
                writeln!(out, "left: checkpoint {epoch} with {records} records, {log} of log")?;
            }
            None => writeln!(out, "left: no checkpoint, {log} of log")?,
        }
        if sound {
            writeln!(out, "nothing has to be given up")?;
        } else if !repair.done {
            writeln!(out, "nothing was changed; --accept-loss gives it up")?;
        }
    }
    let ended_well = sound || repair.done;
    Ok(if ended_well { ExitCode::SUCCESS } else { ExitCode::from(DAMAGED) })
}
