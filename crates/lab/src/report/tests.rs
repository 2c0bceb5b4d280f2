use super::*;
use crate::measure::conditions::Conditions;
use crate::measure::machine::Machine;
use crate::report::result::{Bound, Claim};
use crate::report::result::{Figure, Note, Series};

/// A result with a claim, a figure, a table and a note of each kind.
pub(crate) fn sample() -> ExperimentResult {
    let claim = |text: &str, bound: Bound| Claim::new(text, "a paper, §5", bound);
    ExperimentResult {
        id: "sample".into(),
        title: "A <sample> of everything".into(),
        paper: "A paper, §5".into(),
        commit: "abc".into(),
        command: "stillpoint lab run sample".into(),
        quick: false,
        skipped: None,
        started_ms: 951_782_400_000,
        seconds: 12.0,
        machine: Machine {
            cores: 2,
            model: "A CPU".into(),
            memory_bytes: 24 << 30,
            last_level_cache_bytes: 32 << 20,
            kernel: "6.1".into(),
            build: "release".into(),
        },
        conditions: Conditions { load_average_before: 0.25, ..Conditions::default() },
        parameters: [("keys".to_owned(), serde_json::json!(1_000))].into(),
        series: vec![Series {
            name: "tps".into(),
            x_unit: "s".into(),
            y_unit: "1/s".into(),
            points: vec![[0.0, 1.0], [1.0, 2.5]],
            ..Series::default()
        }],
        figures: vec![Figure {
            title: "Throughput".into(),
            series: vec!["tps".into()],
            ..Figure::default()
        }],
        tables: vec![Table {
            title: "Numbers".into(),
            columns: vec!["what".into(), "how much".into()],
            rows: vec![vec!["a & b".into(), "17".into()]],
            ..Table::default()
        }],
        claims: vec![
            Claim {
                goal: Some(Bound::AtMost(1.1)),
                ..claim("reaches its goal", Bound::AtMost(1.2))
            }
            .measured(1.0),
            claim("meets its bound", Bound::AtLeast(2.0))
                .paper_ratio("8 ×", 8.0)
                .measured_runs(&[2.0, 2.5, 3.0]),
            claim("misses", Bound::AtMost(5.0)).unit("%").paper("10 %").measured(20.0),
            claim("was not measured", Bound::AtMost(5.0)),
        ],
        notes: vec![Note { part: String::new(), text: "Mind the \"gap\".".into() }],
        parts: Default::default(),
    }
}

#[test]
fn the_page_shows_every_claim_with_its_verdict() {
    let html = page(&[sample()]);
    for text in [
        "<b>2</b> of 4 claims met, <b>1</b> missed, 1 not measured",
        "badge goal\">goal met",
        "<td>8 ×<small>weaker</small></td>",
        "<td>10 %<small>not comparable</small></td>",
        "badge met\">met",
        "badge missed\">missed",
        "badge none\">not measured",
        "2.50 ×",
        "2.00 – 3.00, 3 runs",
        "20.0 %",
        "A &lt;sample&gt; of everything",
        "a &amp; b",
        "Mind the &quot;gap&quot;.",
        "2000-02-29 00:00 UTC",
        "24 GiB memory",
        "0.25 before",
    ] {
        assert!(html.contains(text), "{text:?} is missing in {html}");
    }
    assert_eq!(html.matches("<title>tps").count(), 1);
    assert!(html.contains("<details class=\"claims\" open>"), "one is missed");
    let figure = html.find("<figure>").expect("a figure");
    assert!(figure < html.find("misses").expect("a claim"), "figures first");
}

#[test]
fn quick_runs_are_shown_and_not_judged() {
    let html = page(&[ExperimentResult { quick: true, ..sample() }]);
    assert!(html.contains("quick run") && html.contains("Nothing was judged"));
    assert!(!html.contains("badge met") && !html.contains("badge missed"));
    assert!(!html.contains("worse | better"), "no column that would stay empty");
    let met = Claim::new("c", "s", Bound::AtMost(2.0)).measured(1.0);
    let html = page(&[ExperimentResult { claims: vec![met], ..sample() }]);
    assert!(html.contains("<details class=\"claims\"><summary>1 claim<"), "folded: {html}");
}

#[test]
fn every_result_names_its_own_machine() {
    let other = Machine { model: "ANOTHER MACHINE".into(), ..sample().machine };
    let older = ExperimentResult { id: "older".into(), machine: other.clone(), ..sample() };
    let html = page(&[older, sample()]);
    assert!(html.contains("different machines") && html.contains("ANOTHER MACHINE"), "{html}");
    assert!(html.matches("A CPU").count() == 1, "that of the other result");

    let mut whole = sample();
    whole.merge_part(
        "p",
        ExperimentResult { machine: other, commit: "another commit".into(), ..sample() },
    );
    let html = page(&[whole]);
    assert!(html.contains("different machines") && html.contains("ANOTHER MACHINE"));
    assert!(html.contains("Part p, run by itself") && html.contains("another commit"));
}

#[test]
fn the_page_needs_nothing_from_outside() {
    let html = page(&[sample()]);
    let outside = html.replace("http://www.w3.org/2000/svg", "");
    for banned in ["http:", "https:", "<script", "@import", "url(", "<link"] {
        assert!(!outside.contains(banned), "{banned}");
    }
}

#[test]
fn an_empty_folder_and_a_skipped_result_are_said_so() {
    assert!(page(&[]).contains("no results"));
    let skipped = ExperimentResult {
        skipped: Some("redis-server is not installed".into()),
        claims: Vec::new(),
        ..sample()
    };
    let html = page(&[skipped]);
    assert!(html.contains("Skipped: redis-server is not installed."));
    assert!(!html.contains("class=\"claims\""));
}

#[test]
fn gauges_point_to_the_better_side() {
    let x = |claim: &Claim| -> f64 {
        let svg = claims::gauge(claim);
        let at = svg.find("cx=\"").expect("a dot") + 4;
        svg[at..].split('"').next().expect("a number").parse().expect("a number")
    };
    let most = Claim::new("c", "s", Bound::AtMost(2.0));
    assert!(x(&most.clone().measured(1.0)) > 55.0 && x(&most.clone().measured(4.0)) < 55.0);
    assert_eq!(x(&most.measured(0.0)), 105.0, "no cost at all is as good as can be");
    let least = Claim::new("c", "s", Bound::AtLeast(2.0));
    assert!(x(&least.clone().measured(3.0)) > 55.0 && x(&least.measured(1.0)) < 55.0);
}
