use super::axis::{Axis, grouped, short};
use super::curves::thin;
use super::*;
use crate::result::{Bar, Scale, Span};
use crate::stats::Spread;

fn series(name: &str, points: Vec<[f64; 2]>) -> Series {
    Series { name: name.into(), x_unit: "s".into(), y_unit: "1/s".into(), points }
}

#[test]
fn numbers_are_short() {
    let cases = [
        (0.0, "0"),
        (0.05, "0.05"),
        (2.5, "2.5"),
        (9_999.0, "9999"),
        (12_000.0, "12 k"),
        (1_250_000.0, "1.25 M"),
        (-3e9, "-3 G"),
    ];
    for (value, expected) in cases {
        assert_eq!(short(value), expected);
    }
}

#[test]
fn counts_have_their_thousands_apart() {
    let cases = [(0, "0"), (999, "999"), (1_000, "1,000"), (12_345_678, "12,345,678")];
    for (count, expected) in cases {
        assert_eq!(grouped(count), expected);
    }
}

#[test]
fn axes_are_round_and_hold_their_values() {
    let axis = Axis::new(Scale::Linear, &[3.0, 97.0], 0.0, 100.0, true);
    assert_eq!(axis.ticks(), vec![0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
    assert!((axis.place(50.0) - 50.0).abs() < 1e-9);
    let axis = Axis::new(Scale::Log, &[0.02, 700.0, 0.0, f64::NAN], 0.0, 5.0, true);
    assert_eq!(axis.ticks().len(), 6, "{:?}", axis.ticks());
    assert!((axis.place(1.0) - 2.0).abs() < 1e-9);
    assert!(!axis.shows(0.0));
    let noise = Axis::new(Scale::Linear, &[-0.3, 90.0], 0.0, 1.0, true);
    assert_eq!(noise.ticks()[0], 0.0);
    let empty = Axis::new(Scale::Linear, &[], 0.0, 1.0, true);
    assert!(empty.place(1.0).is_finite());
}

#[test]
fn thinning_keeps_the_dip() {
    let mut points: Vec<[f64; 2]> = (0..100_000).map(|i| [f64::from(i) / 1_000.0, 5.0]).collect();
    points[54_321][1] = 0.25;
    let kept = thin(&points);
    assert!(kept.len() < 1_000, "{}", kept.len());
    assert!(kept.iter().any(|p| p[1] == 0.25), "the one low point must be drawn");
    assert!(kept.is_sorted_by(|a, b| a[0] <= b[0]));
}

#[test]
fn curves_name_their_series_and_escape_text() {
    let figure = Figure {
        title: "a < b & \"c\"".into(),
        series: vec!["one".into(), "absent".into()],
        spans: vec![Span { label: "<capture>".into(), from: 1.0, to: 2.0, series: None }],
        ..Figure::default()
    };
    let all = [series("one", vec![[0.0, 1.0], [1.0, f64::NAN], [3.0, 2.0]]), series("two", vec![])];
    let svg = render(&figure, &all, Place::Standalone);
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>") && svg.contains("<style>"));
    assert!(svg.contains("a &lt; b &amp; &quot;c&quot;") && svg.contains("&lt;capture&gt;"));
    assert_eq!(svg.matches("<path").count(), 1, "only the series that is named and there");
    assert!(!svg.contains("NaN"));
    assert!(!render(&figure, &all, Place::Page).contains("<style>"));
}

#[test]
fn spans_apart_share_a_row_and_those_that_meet_do_not() {
    let span = |from: f64, to: f64| Span { label: "s".into(), from, to, series: None };
    let all = [series("one", vec![[0.0, 1.0], [100.0, 2.0]])];
    let rows = |spans: Vec<Span>| {
        let figure = Figure { series: vec!["one".into()], spans, ..Figure::default() };
        let svg = render(&figure, &all, Place::Page);
        svg.matches("y=\"59\" width").count()
    };
    assert_eq!(rows(vec![span(10.0, 20.0), span(60.0, 70.0)]), 0);
    assert_eq!(rows(vec![span(10.0, 20.0), span(15.0, 70.0)]), 1);
}

#[test]
fn bars_stand_in_groups_with_whiskers() {
    let bar = |group: &str, name: &str, value: f64| Bar {
        group: group.into(),
        name: name.into(),
        value: Spread { median: value, low: value * 0.9, high: value * 1.1, runs: 5 },
    };
    let bars = vec![bar("GET", "ours", 3e5), bar("GET", "redis", 1e5), bar("SET", "ours", 2e5)];
    let svg = render(&Figure { bars, ..Figure::default() }, &[], Place::Page);
    assert_eq!(svg.matches("class=\"whisker\"").count(), 3);
    assert!(svg.contains("300 k") && svg.contains(">redis<") && svg.contains(">SET<"));
}
