use super::*;
use crate::machine::Machine;
use crate::result::{Figure, Series};

/// A result with a bit of everything.
pub(crate) fn sample() -> ExperimentResult {
    let claim = |text: &str, floor: Bound| Claim::new(text, "a paper, §5", floor);
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
        parameters: [("keys".to_owned(), serde_json::json!(1_000))].into(),
        series: vec![Series {
            name: "tps".into(),
            x_unit: "s".into(),
            y_unit: "1/s".into(),
            points: vec![[0.0, 1.0], [1.0, 2.5]],
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
        }],
        claims: vec![
            claim("reaches its aim", Bound::AtMost(1.2)).aim(Bound::AtMost(1.1)).measured(1.0),
            claim("meets its floor", Bound::AtLeast(2.0)).measured_runs(&[2.0, 2.5, 3.0]),
            claim("misses", Bound::AtMost(5.0)).unit("%").paper("10 %").measured(20.0),
            claim("was not measured", Bound::AtMost(5.0)),
        ],
        notes: vec!["Mind the \"gap\".".into()],
    }
}

#[test]
fn the_page_shows_every_claim_with_its_verdict() {
    let html = page(&[sample()]);
    for text in [
        "<b>2</b> of 4 claims met, <b>1</b> missed, 1 not measured",
        "badge aim\">aim",
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
    ] {
        assert!(html.contains(text), "{text:?} is missing in {html}");
    }
    assert_eq!(html.matches("<path").count(), 1);
}

#[test]
fn quick_runs_are_shown_and_not_judged() {
    let html = page(&[ExperimentResult { quick: true, ..sample() }]);
    assert!(html.contains("quick run") && html.contains("Nothing was judged"));
    assert!(!html.contains("badge met") && !html.contains("badge missed"));
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
    assert!(!html.contains("<h2>Claims</h2>"));
}

#[test]
fn gauges_point_to_the_better_side() {
    let x = |claim: &Claim| -> f64 {
        let svg = gauge(claim);
        let at = svg.find("cx=\"").expect("a dot") + 4;
        svg[at..].split('"').next().expect("a number").parse().expect("a number")
    };
    let most = Claim::new("c", "s", Bound::AtMost(2.0));
    assert!(x(&most.clone().measured(1.0)) > 55.0 && x(&most.clone().measured(4.0)) < 55.0);
    assert_eq!(x(&most.measured(0.0)), 105.0, "no cost at all is as good as can be");
    let least = Claim::new("c", "s", Bound::AtLeast(2.0));
    assert!(x(&least.clone().measured(3.0)) > 55.0 && x(&least.measured(1.0)) < 55.0);
}
