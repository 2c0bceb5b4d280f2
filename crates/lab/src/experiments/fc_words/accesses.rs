//! Table 2 without counters of a processor: instructions and cache lines of an access, by
//! callgrind's model of caches. The counts repeat exactly on any machine.
//!
//! For each kind of access, a child process on one thread runs that kind alone. Callgrind counts what one
//! function does, and knows the function by its name.

use std::collections::BTreeMap;
use std::fmt;
use std::hint::black_box;
use std::process::Command;

use clap::ValueEnum;
use stillpoint_state::{Array, Arrays, Scheme, registry};

use super::Plan;
use crate::error::{LabError, LabResult};
use crate::harness::Harness;
use crate::report::result::{Bound, ClaimRow, ExperimentResult, Paper, Table};
use crate::subjects::arrays::failed;

/// Accesses that are counted.
const ACCESSES: usize = 20_000;
/// A level 1 cache of 32 KiB and a last-level cache of 512 KiB, so that a small state is far larger. The
/// simulated caches are the same on all machines.
const CACHES: [&str; 4] =
    ["--cache-sim=yes", "--I1=32768,8,64", "--D1=32768,8,64", "--LL=524288,16,64"];

const TABLE_2: &str = "SIGMOD 2011, §5.2, Table 2";

/// Misses of the level 1 data cache per update: the second column of the table. The values of NZZ and
/// NPP that §5.2 repeats stand in the same lines.
///
/// The raw mutator of the paper has 2.0 misses itself, since it reads each update from a trace. So only
/// the order of two schemes compares. Each scheme's own count stands beside the paper's.
const LINES: [ClaimRow; 4] = [
    ClaimRow::new(UPDATE_LINES, TABLE_2, Bound::AtLeast(1.0))
        .between("npp", "ipp")
        .paper(Paper::words("1.9 and 1.7 misses: ipp has fewer")),
    lines("ipp", "1.7 misses, raw 2.0", 1.2),
    lines("npp", "1.9 misses, raw 2.0", 3.5),
    lines("ns", "2.1 misses, raw 2.0", 1.1),
];

const UPDATE_LINES: &str = "cache lines of an update, beyond 32 KiB";

const fn lines(subject: &'static str, words: &'static str, bound: f64) -> ClaimRow {
    ClaimRow::new(UPDATE_LINES, TABLE_2, Bound::AtMost(bound))
        .between(subject, "")
        .paper(Paper::words(words))
        .unit("lines")
}

/// A scheme of ours takes no more instructions for a write than one of the paper's.
const INSTRUCTIONS: ClaimRow =
    ClaimRow::new("instructions of a write", "Stillpoint", Bound::AtMost(1.2)).between("hg", "ipp");

/// The kind of access that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Reads of random words.
    Read,
    /// Writes of random words, while a capture is open and its copier is done.
    Write,
    /// Writes of random words, before the copier has begun.
    Begun,
    /// Writes of 8 bytes of random cells of 312 bytes: a row of TPC-C's stock.
    Row,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Read, Kind::Write, Kind::Begun, Kind::Row];

    fn title(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Begun => "write before the copier",
            Kind::Row => "8 bytes of 312",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.write_str(value.as_ref().map_or("", |value| value.get_name()))
    }
}

/// Counts of one access.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Count {
    instructions: f64,
    /// Lines that the level 1 cache did not have.
    lines: f64,
    /// Lines that no cache had.
    far_lines: f64,
}

/// Counts for every scheme and layout, if valgrind is installed. Otherwise adds a note.
///
/// # Errors
/// When a child fails, or its output cannot be read.
pub(super) fn run(
    bench: &Harness<'_>,
    plan: &Plan,
    result: &mut ExperimentResult,
) -> LabResult<()> {
    let is_installed = Command::new("valgrind").arg("--version").output().is_ok();
    if !bench.children || !is_installed {
        result.note("Instructions and cache lines were not counted: valgrind is not installed.");
        return Ok(());
    }
    let mut table = Table {
        title: "Instructions and cache lines of an access (Table 2)".into(),
        columns: vec!["scheme".into(), "layout".into()],
        ..Table::default()
    };
    for kind in Kind::ALL {
        let title = kind.title();
        let columns = [
            format!("{title}: instructions"),
            format!("{title}: lines beyond 32 KiB"),
            format!("{title}: lines beyond 512 KiB"),
        ];
        table.columns.extend(columns);
    }
    let mut writes = BTreeMap::new();
    // Written pages run no code of a scheme: only the kernel works, which callgrind does not see.
    for row in registry::REGISTRY.iter().filter(|row| !row.needs(4).tracks_writes) {
        for layout in row.layouts {
            let mut cells = vec![layout.name.to_owned(), layout.layout.to_owned()];
            for kind in Kind::ALL {
                let count = count(bench, layout.name, kind, plan.counted_words)?;
                if kind == Kind::Write {
                    writes.insert(layout.name, count);
                }
                cells.push(format!("{:.1}", count.instructions));
                cells.push(format!("{:.2}", count.lines));
                cells.push(format!("{:.2}", count.far_lines));
            }
            bench.context.note(format!("counted: {}", cells.join(" ")));
            table.rows.push(cells);
        }
    }
    result.tables.push(table);
    claims(&writes, result);
    result.note(
        "Instructions and lines are those of the whole loop: the choice of a random cell is among them, \
         and is the same for all schemes. Fork costs page faults besides, which the model does not see.",
    );
    Ok(())
}

fn claims(writes: &BTreeMap<&str, Count>, result: &mut ExperimentResult) {
    type Of = fn(&Count) -> f64;
    let all = LINES.iter().map(|row| (row, (|it| it.lines) as Of));
    for (row, of) in all.chain([(&INSTRUCTIONS, (|it| it.instructions) as Of)]) {
        let count = |name: &str| match name {
            "" => 1.0,
            name => writes.get(name).map_or(f64::NAN, of),
        };
        let ratio = count(row.subject) / count(row.baseline);
        result.claims.push(row.claim("callgrind's model of caches").measured(ratio));
    }
}

fn count(bench: &Harness<'_>, scheme: &str, kind: Kind, words: usize) -> LabResult<Count> {
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .args(CACHES)
        .args(["--collect-atstart=no", "--toggle-collect=*counted_accesses*"])
        .arg(&bench.context.binary)
        .args(["lab", "child", "accesses", "--scheme", scheme])
        .args(["--kind", &kind.to_string(), "--words", &words.to_string()]);
    let line = format!("{command:?}");
    let output = command.output().map_err(|e| LabError::process(&line, e))?;
    let text = String::from_utf8_lossy(&output.stderr);
    collected(&text).filter(|_| output.status.success()).ok_or_else(|| {
        let tail: Vec<&str> = text.lines().rev().take(8).collect();
        LabError::process(line, format!("{}: {}", output.status, tail.join(" | ")))
    })
}

/// The numbers of `==7== Collected : 1 2 3`, whose names are those of `==7== Events    : Ir Dr Dw`.
/// Callgrind leaves out zeros at the end.
fn collected(text: &str) -> Option<Count> {
    let behind = |name: &str| {
        let line = text.lines().find(|line| line.contains(name))?;
        Some(line.split_once(name)?.1.trim_start_matches([' ', ':']).split_whitespace())
    };
    let events: BTreeMap<&str, f64> = behind("Events")?
        .zip(behind("Collected")?.chain(std::iter::repeat("0")))
        .map(|(event, count)| Some((event, count.parse().ok()?)))
        .collect::<Option<_>>()?;
    let per_access = |names: [&str; 2]| {
        let sum: Option<f64> = names.iter().map(|name| events.get(name)).sum::<Option<f64>>();
        Some(sum? / ACCESSES as f64)
    };
    Some(Count {
        instructions: events.get("Ir")? / ACCESSES as f64,
        lines: per_access(["D1mr", "D1mw"])?,
        far_lines: per_access(["DLmr", "DLmw"])?,
    })
    .filter(|count| count.instructions > 0.0)
}

/// The arguments of the child.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Child {
    /// The scheme's registered name.
    #[arg(long)]
    scheme: String,
    /// The kind of access that is counted.
    #[arg(long)]
    kind: Kind,
    /// Words of 4 bytes of the state.
    #[arg(long)]
    words: usize,
}

/// The child's work: it fills a state, runs accesses to warm up, and then the counted ones.
///
/// # Errors
/// An unknown scheme, and no memory.
pub(crate) fn child(what: &Child) -> LabResult<()> {
    registry::run(&what.scheme, Accesses(what)).map_err(|e| failed(&what.scheme, e))?
}

struct Accesses<'a>(&'a Child);

impl registry::Program for Accesses<'_> {
    type Output = LabResult<()>;

    fn run<S: Scheme>(self) -> LabResult<()> {
        let Child { scheme, kind, words } = self.0;
        let rows = words * 4 / size_of::<StockRow>();
        let mut builder = Arrays::<S>::builder();
        let array = builder.array::<u32>("words", *words);
        let long = builder.array::<StockRow>("rows", if *kind == Kind::Row { rows } else { 1 });
        let mut arrays = builder.build().map_err(|e| failed(scheme, e))?;
        arrays.fill(array, |index| index as u32).map_err(|e| failed(scheme, e))?;
        arrays.fill(long, |index| [index as u64; 39]).map_err(|e| failed(scheme, e))?;
        // The first capture is full.
        if let Some(capture) = arrays.point_of_consistency() {
            capture.durable();
        }
        arrays.end_tick();
        let capture = arrays.point_of_consistency();
        if *kind != Kind::Begun
            && let Some(capture) = &capture
        {
            capture.copy_over();
        }
        let mut draw = Draw(1);
        warm_up(&mut arrays, (array, *words), &mut draw);
        match kind {
            Kind::Read => counted_accesses_read(&arrays, (array, *words), &mut draw),
            Kind::Write | Kind::Begun => {
                counted_accesses_write(&mut arrays, (array, *words), &mut draw);
            }
            Kind::Row => counted_accesses_row(&mut arrays, (long, rows), &mut draw),
        }
        Ok(())
    }
}

/// A row of TPC-C's stock: 312 bytes.
type StockRow = [u64; 39];

/// Random numbers by SplitMix64.
struct Draw(u64);

impl Draw {
    #[inline(always)]
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((u128::from(z ^ (z >> 31)) * bound as u128) >> 64) as usize
    }
}

#[inline(never)]
fn warm_up<S: Scheme>(
    arrays: &mut Arrays<S>,
    (array, words): (Array<u32>, usize),
    draw: &mut Draw,
) {
    for _ in 0..ACCESSES {
        let index = draw.below(words);
        let value = black_box(arrays.read(array, index));
        arrays.write(array, index, value);
    }
}

#[inline(never)]
fn counted_accesses_read<S: Scheme>(
    arrays: &Arrays<S>,
    (array, words): (Array<u32>, usize),
    draw: &mut Draw,
) {
    let reader = arrays.array(array);
    for _ in 0..ACCESSES {
        black_box(reader.read(draw.below(words)));
    }
}

#[inline(never)]
fn counted_accesses_write<S: Scheme>(
    arrays: &mut Arrays<S>,
    (array, words): (Array<u32>, usize),
    draw: &mut Draw,
) {
    let mut writer = arrays.array_mut(array);
    for _ in 0..ACCESSES {
        let index = draw.below(words);
        writer.write(index, index as u32);
    }
}

#[inline(never)]
fn counted_accesses_row<S: Scheme>(
    arrays: &mut Arrays<S>,
    (array, rows): (Array<StockRow>, usize),
    draw: &mut Draw,
) {
    let mut writer = arrays.array_mut(array);
    for _ in 0..ACCESSES {
        let index = draw.below(rows);
        writer.write_part(index, index % 39 * 8, &index.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::result::Agreement;

    #[test]
    fn the_counts_are_found_in_what_callgrind_says() {
        let text = "==9== Events    : Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw\n\
                    ==9== Collected : 400000 7 7 0 10000 20000 0 5000 5000\n==9== \n";
        let wanted = Count { instructions: 20.0, lines: 1.5, far_lines: 0.5 };
        assert_eq!(collected(text), Some(wanted));
        // Callgrind leaves out counts of zero at the end.
        let text = "==9== Events    : Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw\n\
                    ==9== Collected : 400000 7 7 4 10000 0 4\n==9== \n";
        let wanted = Count { instructions: 20.0, lines: 0.5, far_lines: 0.0 };
        assert_eq!(collected(text), Some(wanted));
        assert_eq!(collected("==9== Events    : Ir\n==9== Collected : 400000\n"), None);
        assert_eq!(collected(""), None);
    }

    #[test]
    fn each_claim_has_its_ratio() {
        let count = |lines: f64| Count { instructions: 10.0 * lines, lines, far_lines: 0.0 };
        let names = [("none", 2.0), ("ns", 2.0), ("ipp", 2.0), ("npp", 6.0), ("hg", 3.0)];
        let writes = names.map(|(name, lines)| (name, count(lines))).into();
        let mut result = crate::report::tests::sample();
        result.claims.clear();
        claims(&writes, &mut result);
        let measured: Vec<_> = result.claims.iter().map(|it| it.measured).collect();
        assert_eq!(measured, [3.0, 2.0, 6.0, 2.0, 1.5].map(Some));
        let agreements: Vec<_> = result.claims.iter().map(Agreement::of).collect();
        let count = Some(Agreement::NotComparable);
        assert_eq!(agreements, [Some(Agreement::Reproduced), count, count, count, None]);
    }

    #[test]
    fn the_child_runs_every_scheme_and_kind() -> LabResult<()> {
        for scheme in registry::names_here() {
            for kind in Kind::ALL {
                child(&Child { scheme: scheme.into(), kind, words: 10_000 })?;
            }
        }
        Ok(())
    }
}
