//! Bytes of memory for each element of a collection, and bytes of the log for each command.
//!
//! The memory of a collection is by how much the process has grown, in resident anonymous bytes.
//! So memory that a server reserves counts too, and the mean over several sizes evens out memory
//! that grows in steps.

use super::super::peers_redis::PATIENCE;
use super::{Plan, SOURCE};
use crate::context::Context;
use crate::error::LabResult;
use crate::measure::process::anonymous_bytes;
use crate::measure::stats::median;
use crate::report::result::{Bound, ClaimRow, ExperimentResult, Table};
use crate::subjects::resp::admin::Admin;
use crate::subjects::server::{Peer, Server};
use crate::workloads::elements::element;

/// Elements of one command of a fill.
const BATCH: usize = 100;
/// Commands that are sent together.
const PIPELINE: usize = 50;

/// Makes the arguments of an element behind the key.
type Parts = fn(u64) -> Vec<Vec<u8>>;

/// A collection that is filled.
struct Family {
    name: &'static str,
    command: &'static str,
    parts: Parts,
    /// The bound of our bytes ÷ Redis's.
    ratio_max: f64,
    /// The bound of the log of a command with one element, in bytes.
    log_bytes_max: Option<f64>,
}

fn name(number: u64) -> Vec<u8> {
    element(number).to_vec()
}

const FAMILIES: &[Family] = &[
    Family {
        name: "set of 16 B",
        command: "SADD",
        parts: |n| vec![name(n)],
        ratio_max: 0.42,
        log_bytes_max: None,
    },
    Family {
        name: "hash of 16 + 16 B",
        command: "HSET",
        parts: |n| vec![name(n), name(!n)],
        ratio_max: 0.45,
        log_bytes_max: Some(120.0),
    },
    Family {
        name: "sorted set of 16 B",
        command: "ZADD",
        parts: |n| {
            vec![(n.wrapping_mul(0x9e37_79b9) % 1_000_003).to_string().into_bytes(), name(n)]
        },
        ratio_max: 0.45,
        log_bytes_max: Some(200.0),
    },
    Family {
        name: "list of 16 B",
        command: "RPUSH",
        parts: |n| vec![name(n)],
        ratio_max: 1.15,
        log_bytes_max: Some(80.0),
    },
];

/// The bound of hashes of ten fields of 8 + 8 B: our bytes ÷ Redis's.
const SMALL_HASHES_RATIO_MAX: f64 = 0.9;
const SMALL_HASHES: &str = "hashes of 10 × (8 + 8) B";

/// The claim on memory. Each family gives its bound.
const MEMORY: ClaimRow =
    ClaimRow::new("memory of each element", SOURCE, Bound::AtMost(1.0)).between("ours", "Redis's");
/// The claim on the log. Each family gives its bound.
const LOG: ClaimRow =
    ClaimRow::new("log of each command of one element", SOURCE, Bound::AtMost(1.0)).unit("B");

/// Runs the part and adds its claims and tables.
///
/// # Errors
/// When a server fails or answers wrongly.
pub(super) fn run(
    context: &Context,
    plan: &Plan,
    peers: &[Peer],
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let mut table = Table {
        title: "Bytes of memory for each element, or for each small hash".into(),
        columns: ["collection", "server", "bytes"].map(str::to_owned).into(),
        ..Table::default()
    };
    let mut measure = |name: &str, bound: f64, of: &dyn Fn(&Server) -> LabResult<f64>| {
        // Indexed by peer and run. A further setting of our server has no claim.
        let mut bytes = vec![Vec::new(); peers.len().min(2)];
        for _ in 0..plan.runs {
            for (peer, bytes) in peers.iter().zip(&mut bytes) {
                let server = peer.start(&context.fresh_dir("memory")?, PATIENCE)?;
                bytes.push(of(&server)?);
            }
        }
        for (peer, bytes) in peers.iter().zip(&bytes) {
            let bytes = median(bytes);
            context.note(format!("memory: {name}: {} {bytes:.1} B", peer.name));
            table.rows.push(vec![name.to_owned(), peer.name.clone(), format!("{bytes:.1}")]);
        }
        let ratios: Vec<f64> = bytes[0].iter().zip(&bytes[1]).map(|(a, b)| a / b).collect();
        let row = ClaimRow { bound: Bound::AtMost(bound), ..MEMORY };
        result.claims.push(row.claim(name).measured_runs(&ratios));
        LabResult::Ok(())
    };
    for family in FAMILIES {
        measure(family.name, family.ratio_max, &|server| element_bytes(plan, family, server))?;
    }
    measure(SMALL_HASHES, SMALL_HASHES_RATIO_MAX, &|server| small_hash_bytes(plan, server))?;
    result.tables.push(table);
    match peers.get(2) {
        Some(logged) => log(context, plan, logged, result),
        None => Ok(()),
    }
}

/// Resident bytes of a server.
fn resident(server: &Server) -> LabResult<f64> {
    let bytes = anonymous_bytes(server.pid());
    bytes.map(|bytes| bytes as f64).ok_or_else(|| server.failure("has no size any more"))
}

/// Adds elements `from..to` to the collection `k`, by commands of `batch` elements.
fn add(
    admin: &mut Admin,
    family: &Family,
    (from, to): (usize, usize),
    batch: usize,
) -> LabResult<()> {
    let mut at = from;
    while at < to {
        let mut commands: Vec<Vec<Vec<u8>>> = Vec::with_capacity(PIPELINE);
        while at < to && commands.len() < PIPELINE {
            let end = to.min(at + batch);
            let mut command = vec![family.command.as_bytes().to_vec(), b"k".to_vec()];
            (at..end).for_each(|n| command.extend((family.parts)(n as u64)));
            commands.push(command);
            at = end;
        }
        let borrowed: Vec<Vec<&[u8]>> =
            commands.iter().map(|words| words.iter().map(Vec::as_slice).collect()).collect();
        admin.call_all(&borrowed)?;
    }
    Ok(())
}

/// Bytes for each element: the mean over the sizes of the plan.
fn element_bytes(plan: &Plan, family: &Family, server: &Server) -> LabResult<f64> {
    let before = resident(server)?;
    let mut admin = server.admin()?;
    let (mut elements, mut all) = (0, Vec::new());
    for size in (plan.elements_min..=plan.elements_max).step_by(plan.elements_step) {
        add(&mut admin, family, (elements, size), BATCH)?;
        elements = size;
        all.push((resident(server)? - before) / size as f64);
    }
    Ok(all.iter().sum::<f64>() / all.len() as f64)
}

/// Bytes for each small hash.
fn small_hash_bytes(plan: &Plan, server: &Server) -> LabResult<f64> {
    let before = resident(server)?;
    let mut admin = server.admin()?;
    let short = |n: usize| name(n as u64)[..8].to_vec();
    for first in (0..plan.small_hashes).step_by(PIPELINE) {
        let commands: Vec<Vec<Vec<u8>>> = (first..plan.small_hashes.min(first + PIPELINE))
            .map(|hash| {
                let mut command = vec![b"HSET".to_vec(), format!("hash:{hash:08}").into_bytes()];
                let fields = (0..10).flat_map(|field| [short(field), short(hash * 10 + field)]);
                command.extend(fields);
                command
            })
            .collect();
        let borrowed: Vec<Vec<&[u8]>> =
            commands.iter().map(|words| words.iter().map(Vec::as_slice).collect()).collect();
        admin.call_all(&borrowed)?;
    }
    Ok((resident(server)? - before) / plan.small_hashes as f64)
}

/// Measures the bytes of the log for each command of one element, while a collection grows from
/// none.
fn log(
    context: &Context,
    plan: &Plan,
    peer: &Peer,
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let mut table = Table {
        title: "Bytes of the log for each command of one element".into(),
        columns: ["command", "bytes"].map(str::to_owned).into(),
        ..Table::default()
    };
    for family in FAMILIES {
        let mut all = Vec::new();
        for _ in 0..plan.runs {
            let server = peer.start(&context.fresh_dir("memory-log")?, PATIENCE)?;
            let mut admin = server.admin()?;
            let before = written(&server, &mut admin)?;
            add(&mut admin, family, (0, plan.logged_commands), 1)?;
            let bytes = written(&server, &mut admin)? - before;
            all.push(bytes / plan.logged_commands as f64);
        }
        context.note(format!("memory: log of {}: {:.1} B", family.command, median(&all)));
        table.rows.push(vec![family.command.to_owned(), format!("{:.1}", median(&all))]);
        if let Some(most) = family.log_bytes_max {
            let row = ClaimRow { bound: Bound::AtMost(most), ..LOG };
            result.claims.push(row.claim_of((family.command, ""), "").measured_runs(&all));
        }
    }
    result.tables.push(table);
    Ok(())
}

/// Bytes that a server has put into its log.
fn written(server: &Server, admin: &mut Admin) -> LabResult<f64> {
    let info = admin.info("persistence")?;
    let bytes = info.get("aof_current_size").and_then(|bytes| bytes.parse().ok());
    bytes.ok_or_else(|| server.failure("tells no bytes of its log"))
}
