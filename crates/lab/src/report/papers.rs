//! The papers, figure by figure: which claims answer to each figure and table, and how
//! far the results agree.

use std::fmt::Write;

use crate::report::figure::escape;
use crate::report::result::{Agreement, Claim, ExperimentResult};

/// A figure, table or finding of a paper.
struct Item {
    /// The figure or table, as the sources of claims name it.
    name: &'static str,
    says: &'static str,
    /// The experiments that measure this item.
    measured_by: Measured,
}

enum Measured {
    /// Repeated by these experiments, whose claims name the item in their source.
    By(&'static [&'static str]),
    /// A remark on what the claims can and cannot compare.
    Remark(&'static str),
}

use Measured::{By, Remark};

struct PaperOf {
    /// How the sources of claims begin.
    name: &'static str,
    title: &'static str,
    items: &'static [Item],
}

const fn item(name: &'static str, says: &'static str, measured_by: Measured) -> Item {
    Item { name, says, measured_by }
}

static PAPERS: [PaperOf; 3] = [
    PaperOf {
        name: "CALC paper",
        title: "Ren et al.: Low-Overhead Asynchronous Checkpointing in Main-Memory Database Systems (SIGMOD 2016)",
        items: &[
            item(
                "Figure 2",
                "calc costs nothing at rest and 10 % within a checkpoint; zigzag costs 4 %, IPP 25 %",
                By(&["calc-fig2"]),
            ),
            item("Figure 3", "the cost follows what has changed", By(&["calc-fig3"])),
            item(
                "Figure 4",
                "checkpoints of changes are cheap, and a recovery is linear in their number",
                By(&["calc-fig4"]),
            ),
            item(
                "Figure 5",
                "latencies with calc are those without checkpoints",
                By(&["calc-fig5"]),
            ),
            item("Figure 6", "calc's peak of memory is 1.2 times the database", By(&["calc-fig6"])),
            item(
                "Figure 7",
                "TPC-C: as the microbenchmark, but zigzag costs more",
                By(&["calc-fig7"]),
            ),
            item("Figure 8", "duration and cost are linear in the size", By(&["calc-fig8"])),
            item(
                "fuzzy in Figure 6",
                "fuzzy needs almost no extra memory",
                Remark(
                    "the paper contradicts itself: the full form of §4.1.2 keeps an extra copy of the \
                     database in memory",
                ),
            ),
            item(
                "fuzzy in Figures 2, 3 and 5",
                "fuzzy stops for its table of dirty records and loses more than calc",
                Remark(
                    "fuzzy needs a log here, which the paper's system has not; it stands beside a baseline \
                     with the same log in calc-fig2, with a claim on its stop",
                ),
            ),
            item(
                "4 % and 25 % of Figure 2",
                "what zigzag and IPP cost at rest",
                Remark(
                    "the paper's workers ran on 15 cores, and two run here; the order is compared",
                ),
            ),
        ],
    },
    PaperOf {
        name: "SIGMOD 2011",
        title: "Cao et al.: Fast Checkpoint Recovery Algorithms for Frequently Consistent Applications",
        items: &[
            item("Figure 3", "the bit array is the best layout of zigzag", By(&["fc-words"])),
            item("Figure 4", "interleaving is six times better for ping-pong", By(&["fc-words"])),
            item(
                "Table 2",
                "ipp costs 43 % more than the raw mutator, npp 258 %",
                By(&["fc-words"]),
            ),
            item(
                "Figure 5",
                "ipp has the lowest overhead but at the highest rates",
                By(&["fc-words"]),
            ),
            item("Figure 6", "ipp is ten times below ns at every size", By(&["fc-words"])),
            item("Figure 7", "ns is below all others at a high rate", By(&["fc-words"])),
            item("Figure 8", "ns has peaks of 29 ms, ipp has none", By(&["fc-words"])),
            item("Figure 9", "at a high rate ns has the same peaks, ipp none", By(&["fc-words"])),
            item("Figure 10", "a game: ipp has a seventh of ns's overhead", By(&["fc-fig10"])),
            item("Figure 11", "a game: ipp's ticks are almost uniform", By(&["fc-fig11"])),
            item("Figure 12", "TPC-C: ipp is ahead of ns, and ns of ARIES", By(&["fc-fig12"])),
            item(
                "Figure 13",
                "TPC-C: ns has large peaks, ARIES more and larger",
                By(&["fc-fig13"]),
            ),
            item("§5.4, recovery", "8.1 s after a crash at worst", By(&["fc-fig10"])),
            item("Figure 14", "large pages save ipp 80 % and zigzag half", By(&["fc-words"])),
        ],
    },
    PaperOf {
        name: "ICDE 2018",
        title: "Li et al.: Consistent Snapshot Algorithms for In-Memory Database Systems",
        items: &[
            item(
                "Table I",
                "latency, throughput, complexity, memory in words",
                By(&["snap-table1"]),
            ),
            item("Figure 3", "hg, pb and ipp have no peaks", By(&["snap-fig3"])),
            item(
                "Figure 4",
                "the peaks of hg and pb do not grow with the state",
                By(&["snap-fig3"]),
            ),
            item(
                "finding 1",
                "fork is ahead of ns, cou, zigzag and ping-pong in latency and throughput",
                By(&["snap-fig3", "snap-table1"]),
            ),
            item(
                "finding 2",
                "the size does not affect the peaks of hg and pb",
                By(&["snap-fig3"]),
            ),
            item(
                "finding 3",
                "the older schemes do well in latency or in throughput, hg and pb in both",
                By(&["snap-table1"]),
            ),
            item(
                "Figure 5",
                "Redis with hg and pb has the throughput of Redis",
                By(&["snap-fig5"]),
            ),
            item(
                "Figure 6",
                "Redis's worst latency grows from 8 million records on, that of hg and pb does not",
                By(&["snap-fig6"]),
            ),
            item(
                "Redis-HG in Figures 5 and 6",
                "a changed Redis 3 with 1 to 16 million records, up to 50 GB",
                Remark(
                    "the schemes run in this project's server, with a quarter of a million to four million \
                     records, as many as the memory holds; redis-server stands beside them",
                ),
            ),
        ],
    },
];

/// True if a claim's source is this figure or table of this paper. `Figures 8 and 9` are two.
fn is_of(claim: &Claim, paper: &str, item: &str) -> bool {
    let Some(rest) = claim.source.strip_prefix(paper) else { return false };
    let names = |text: &str, name: &str| {
        text.match_indices(name).any(|(at, _)| {
            !text[at + name.len()..].starts_with(|next: char| next.is_alphanumeric())
        })
    };
    match item.strip_prefix("Figure ") {
        Some(number) if rest.contains("Figures ") => names(rest, number),
        _ => names(rest, item),
    }
}

/// A row of a paper's table.
pub(super) struct PaperRow {
    /// The figure or table.
    pub(super) item: &'static str,
    /// What the paper shows there.
    pub(super) says: &'static str,
    /// The experiments that measure it.
    pub(super) experiments: &'static [&'static str],
    /// How far the results agree, in words.
    pub(super) agreement: String,
}

/// The tables of all papers of which a result measures something: name, title, and rows.
pub(super) fn rows(
    results: &[ExperimentResult],
) -> Vec<(&'static str, &'static str, Vec<PaperRow>)> {
    let measured: Vec<&ExperimentResult> = results.iter().filter(|result| !result.quick).collect();
    let is_measured = |by: &str| measured.iter().any(|result| result.id == by);
    let is_there = |paper: &&PaperOf| {
        let mut items = paper.items.iter().map(|item| &item.measured_by);
        items.any(|by| matches!(by, By(ids) if ids.iter().any(|id| is_measured(id))))
    };
    let row = |paper: &PaperOf, item: &Item| {
        let (experiments, agreement) = match item.measured_by {
            By(ids) => (ids, of_claims(paper.name, item, ids, &measured)),
            Remark(text) => (&[][..], text.to_owned()),
        };
        PaperRow { item: item.name, says: item.says, experiments, agreement }
    };
    let table = |paper: &'static PaperOf| {
        let rows = paper.items.iter().map(|item| row(paper, item)).collect();
        (paper.name, paper.title, rows)
    };
    PAPERS.iter().filter(is_there).map(table).collect()
}

/// Writes a table for each paper of which a result measures something.
pub(super) fn tables(html: &mut String, results: &[ExperimentResult]) {
    for (name, title, rows) in rows(results) {
        let _ = write!(
            html,
            "<section><p class=\"eyebrow\">{}</p><h2>{}</h2><div class=\"wide\"><table class=\"data\">\
             <thead><tr><th>figure</th><th>what the paper shows</th><th>here</th><th>agreement</th></tr></thead><tbody>",
            escape(name),
            escape(title),
        );
        for row in rows {
            let link = |id: &&str| format!("<a href=\"#{0}\">{0}</a>", escape(id));
            let links: Vec<String> = row.experiments.iter().map(link).collect();
            let here = if links.is_empty() { "—".to_owned() } else { links.join(", ") };
            let _ = write!(
                html,
                "<tr><td>{}</td><td>{}</td><td>{here}</td><td>{}</td></tr>",
                escape(row.item),
                escape(row.says),
                escape(&row.agreement),
            );
        }
        html.push_str("</tbody></table></div></section>");
    }
}

/// The numbers of an item's claims by their agreement with the paper, in words.
fn of_claims(paper: &str, item: &Item, ids: &[&str], results: &[&ExperimentResult]) -> String {
    let is_asked = |result: &&&ExperimentResult| ids.contains(&&*result.id);
    let claims = results.iter().filter(is_asked).flat_map(|result| &result.claims);
    let claims: Vec<&Claim> = claims.filter(|claim| is_of(claim, paper, item.name)).collect();
    let mut words = Vec::new();
    for agreement in Agreement::ALL {
        let count = claims.iter().filter(|claim| Agreement::of(claim) == Some(agreement)).count();
        if count > 0 {
            words.push(format!("{count} {agreement}"));
        }
    }
    if words.is_empty() { "not measured".to_owned() } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments;
    use crate::report::result::Bound;

    fn claim(source: &str, measured: f64) -> Claim {
        let claim = Claim::new("c", source, Bound::AtLeast(1.0)).paper_ratio("2 ×", 2.0);
        claim.measured(measured)
    }

    #[test]
    fn a_source_is_that_of_its_figures_and_of_no_others() {
        let of = |source: &str, item: &str| is_of(&claim(source, 1.0), "SIGMOD 2011", item);
        assert!(of("SIGMOD 2011, §5.3, Figure 5", "Figure 5"));
        assert!(of("SIGMOD 2011, §5.3, Figures 8 and 9", "Figure 9"));
        assert!(of("SIGMOD 2011, §5.2, Table 2", "Table 2"));
        assert!(!of("SIGMOD 2011, §5.4, Figure 10", "Figure 1"));
        assert!(!of("SIGMOD 2011, §5.4, Figure 14", "Figure 4"));
        assert!(!of("ICDE 2018, §III-B, Figure 4", "Figure 4"));
    }

    #[test]
    fn every_item_has_a_row_with_its_verdict() {
        let result = ExperimentResult {
            id: "fc-words".into(),
            claims: vec![
                claim("SIGMOD 2011, §5.3, Figure 5", 2.0),
                claim("SIGMOD 2011, §5.3, Figure 5", 3.0),
                claim("SIGMOD 2011, §5.3, Figure 5", 0.5),
            ],
            ..crate::report::tests::sample()
        };
        let mut html = String::new();
        tables(&mut html, std::slice::from_ref(&result));
        assert!(html.contains("1 reproduced, 1 beaten, 1 reversed"), "{html}");
        assert_eq!(html.matches("<tr><td>").count(), PAPERS[1].items.len(), "only that paper");
        let mut html = String::new();
        tables(&mut html, &[ExperimentResult { quick: true, ..result }]);
        assert_eq!(html, "");
    }

    /// The sources that an experiment's code names.
    fn sources(id: &str) -> Vec<&'static str> {
        let code: &[&str] = match id {
            "calc-fig2" => &[include_str!("../experiments/calc_fig2/report.rs")],
            "calc-fig3" => &[include_str!("../experiments/calc_fig3.rs")],
            "calc-fig4" => &[include_str!("../experiments/calc_fig4.rs")],
            "calc-fig5" => &[include_str!("../experiments/calc_fig5.rs")],
            "calc-fig6" => &[include_str!("../experiments/calc_fig6.rs")],
            "calc-fig7" => &[include_str!("../experiments/calc_fig7.rs")],
            "calc-fig8" => &[include_str!("../experiments/calc_fig8.rs")],
            "fc-words" => &[
                include_str!("../experiments/fc_words/overhead.rs"),
                include_str!("../experiments/fc_words/latency.rs"),
            ],
            "fc-fig10" | "fc-fig11" => &[include_str!("../experiments/game.rs")],
            "fc-fig12" | "fc-fig13" => &[include_str!("../experiments/tpcc.rs")],
            "snap-fig3" => &[include_str!("../experiments/snap_fig3.rs")],
            "snap-table1" => &[include_str!("../experiments/snap_table1.rs")],
            "snap-fig5" => &[include_str!("../experiments/snap_redis/throughput.rs")],
            "snap-fig6" => &[include_str!("../experiments/snap_redis/latency.rs")],
            _ => panic!("{id} measures an item, and the test does not know its code"),
        };
        code.iter().flat_map(|code| code.split('"')).collect()
    }

    #[test]
    fn each_item_is_the_source_of_a_claim() {
        for paper in &PAPERS {
            for item in paper.items {
                let ids = if let By(ids) = item.measured_by { ids } else { &[] };
                for id in ids {
                    let mut sources = sources(id).into_iter();
                    assert!(
                        sources.any(|source| is_of(&claim(source, 1.0), paper.name, item.name)),
                        "{id} has no claim whose source is {}, {}",
                        paper.name,
                        item.name
                    );
                }
            }
        }
    }

    #[test]
    fn the_experiments_are_there() {
        for item in PAPERS.iter().flat_map(|paper| paper.items) {
            if let By(ids) = item.measured_by {
                assert!(ids.iter().all(|id| experiments::find(id).is_ok()), "{ids:?}");
            }
        }
    }
}
