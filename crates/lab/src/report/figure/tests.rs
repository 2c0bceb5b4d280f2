use super::axis::{Axis, grouped, short};
use super::curves::thin;
use super::*;
use crate::measure::stats::Spread;
use crate::report::result::{Bar, PaperPoint, Scale, Span};

fn series(name: &str, points: Vec<[f64; 2]>) -> Series {
    Series {
        name: name.into(),
        x_unit: "s".into(),
        y_unit: "1/s".into(),
        points,
        ..Series::default()
    }
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
    assert!((axis.position(50.0) - 50.0).abs() < 1e-9);
    let axis = Axis::new(Scale::Log, &[0.02, 700.0, 0.0, f64::NAN], 0.0, 5.0, true);
    assert_eq!(axis.ticks().len(), 6, "{:?}", axis.ticks());
    assert!((axis.position(1.0) - 2.0).abs() < 1e-9);
    assert!(!axis.shows(0.0));
    let noise = Axis::new(Scale::Linear, &[-0.3, 90.0], 0.0, 1.0, true);
    assert_eq!(noise.ticks()[0], 0.0);
    let empty = Axis::new(Scale::Linear, &[], 0.0, 1.0, true);
    assert!(empty.position(1.0).is_finite());
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
    let svg = render(&figure, &all, Embedding::Standalone);
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>") && svg.contains("<style>"));
    assert!(svg.contains("a &lt; b &amp; &quot;c&quot;") && svg.contains("&lt;capture&gt;"));
    assert_eq!(svg.matches("<title>one").count(), 1);
    assert!(!svg.contains("<title>two"), "only the series that is named and there");
    assert!(!svg.contains("NaN"));
    assert!(!svg.contains("var(") && svg.contains(".line-1 { stroke: #0b6e99; }"), "plain colours");
    assert!(svg.contains(".line-1 { stroke: #58b6e0; }"), "and those of dark mode");
    assert!(!render(&figure, &all, Embedding::Page).contains("<style>"));
}

#[test]
fn spans_apart_share_a_row_and_those_that_meet_do_not() {
    let span = |from: f64, to: f64| Span { label: "s".into(), from, to, series: None };
    let all = [series("one", vec![[0.0, 1.0], [100.0, 2.0]])];
    let rows = |spans: Vec<Span>| {
        let figure = Figure { series: vec!["one".into()], spans, ..Figure::default() };
        let svg = render(&figure, &all, Embedding::Page);
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
    let svg = render(&Figure { bars, ..Figure::default() }, &[], Embedding::Page);
    assert_eq!(svg.matches("class=\"whisker\"").count(), 3);
    assert!(svg.contains("300 k") && svg.contains(">Redis<") && svg.contains(">SET<"));
}

/// `class` and `stroke-dasharray` of the curve of this name.
fn look_of(svg: &str, name: &str) -> String {
    let end = svg.find(&format!("><title>{name}</title>")).expect("the curve is drawn");
    let start = svg[..end].rfind("class=").expect("a class");
    svg[start..end].to_owned()
}

#[test]
fn a_scheme_looks_the_same_in_every_figure_and_unlike_all_others() {
    let names = ["none", "ns", "bacou", "fork", "bazz", "ipp", "hg", "pb", "aries"];
    let draw = |names: &[&str]| {
        let all: Vec<Series> =
            names.iter().map(|name| series(name, vec![[0.0, 1.0], [1.0, 2.0]])).collect();
        let series = names.iter().map(|&name| name.to_owned()).collect();
        render(&Figure { series, ..Figure::default() }, &all, Embedding::Page)
    };
    let all = draw(&names);
    let looks: Vec<String> = names.iter().map(|name| look_of(&all, name)).collect();
    for (number, look) in looks.iter().enumerate() {
        assert!(!looks[..number].contains(look), "{}: {look}", names[number]);
    }
    assert_eq!(look_of(&draw(&["pb", "ipp"]), "ipp"), looks[5]);
}

#[test]
fn the_label_decides_the_look_and_stands_in_the_legend() {
    let label = |name: &str| Series { label: "ipp".into(), ..series(name, vec![[0.0, 1.0]]) };
    let all = [label("ipp, 200 MB"), label("ipp, 1.6 GB")];
    let draw = |name: &str| {
        let figure = Figure { series: vec![name.into()], ..Figure::default() };
        render(&figure, &all, Embedding::Page)
    };
    let (one, other) = (draw("ipp, 200 MB"), draw("ipp, 1.6 GB"));
    assert_eq!(look_of(&one, "ipp, 200 MB"), look_of(&other, "ipp, 1.6 GB"));
    assert!(one.contains(">ping-pong, interleaved <tspan class=\"short\">ipp<"), "{one}");
}

/// `(y, height)` of each bar.
fn bars_of(svg: &str) -> Vec<(f64, f64)> {
    let number = |rect: &str, name: &str| -> f64 {
        let at = rect.find(&format!(" {name}=\"")).expect("an attribute") + name.len() + 3;
        rect[at..].split('"').next().and_then(|text| text.parse().ok()).expect("a number")
    };
    let rects = svg.split("<rect").filter(|rect| rect.contains("rx=\"2\""));
    let bars = rects.filter(|rect| !rect.contains("width=\"12\""));
    bars.map(|rect| (number(rect, "y"), number(rect, "height"))).collect()
}

#[test]
fn bars_stand_on_zero_whatever_their_sign() {
    let bar = |name: &str, median: f64| Bar {
        group: "lost".into(),
        name: name.into(),
        value: Spread { median, low: median - 30.0, high: median + 10.0, runs: 5 },
    };
    let bars = vec![bar("a", 0.0), bar("b", -200.0), bar("c", 100.0)];
    let svg = render(&Figure { bars, ..Figure::default() }, &[], Embedding::Page);
    let [zero, below, above] = bars_of(&svg)[..] else { panic!("three bars: {svg}") };
    assert!(zero.1 <= 0.5, "a bar of zero has no height: {zero:?}");
    assert!((below.1 / above.1 - 2.0).abs() < 0.02, "{below:?} {above:?}");
    assert!((below.0 - zero.0).abs() < 0.2 && (above.0 + above.1 - zero.0).abs() < 0.2);
    assert!(svg.contains(">-300<"), "the scale goes down to the lowest run: {svg}");
}

#[test]
fn values_that_a_logarithmic_axis_cannot_show_are_told_and_not_drawn() {
    let points = vec![[1.0, 2.0], [10.0, -0.5], [100.0, 3.0], [1000.0, 0.0]];
    let all = [series("pb", points)];
    let mut figure = Figure { series: vec!["pb".into()], ..Figure::default() };
    assert_eq!(hidden_values(&figure, &all), None);
    figure.y_scale = Scale::Log;
    let said = hidden_values(&figure, &all).expect("two are hidden");
    assert!(said.contains("pb at 10, 1000"), "{said}");
    let svg = render(&figure, &all, Embedding::Page);
    let line = &svg[..svg.find("<title>pb").expect("the curve")];
    let line = &line[line.rfind("d=\"").expect("a path")..];
    assert_eq!((line.matches('M').count(), line.matches('L').count()), (2, 0), "{line}");
}

#[test]
fn values_of_the_paper_and_spreads_are_drawn_in_the_colour_of_their_scheme() {
    let ipp = Series {
        label: "ipp".into(),
        spreads: vec![[0.5, 2.0], [3.0, 3.0]],
        ..series("ipp, 200 MB", vec![[1.0, 1.0], [2.0, 3.0]])
    };
    let at = |label: &str, y: f64| PaperPoint {
        label: label.into(),
        at: [1.0, y],
        text: "8.4 × ipp".into(),
    };
    let mut figure = Figure {
        title: "Overhead".into(),
        series: vec!["ipp, 200 MB".into()],
        y_scale: Scale::Log,
        ..Figure::default()
    };
    let without = render(&figure, std::slice::from_ref(&ipp), Embedding::Page);
    assert!(!without.contains("ring") && !without.contains("the paper"));
    assert_eq!(without.matches("least and greatest").count(), 1, "one point has a spread");
    figure.paper = vec![at("ipp", 8.0), at("ns", 1.0), at("ipp", -1.0)];
    let svg = render(&figure, &[ipp], Embedding::Page);
    assert_eq!(svg.matches("ring line-4").count(), 1, "ipp's colour; others are not drawn");
    assert!(svg.contains("<title>paper: 8.4 × ipp</title>") && svg.contains("the paper"));
}

#[test]
fn a_papers_value_stands_at_its_bar() {
    let bar = |name: &str, median: f64| Bar {
        group: String::new(),
        name: name.into(),
        value: Spread { median, low: median, high: median, runs: 1 },
    };
    let paper = PaperPoint { label: "ns".into(), at: [0.0, 70.0], text: "7 × ipp".into() };
    let figure = Figure {
        bars: vec![bar("ns", 30.0), bar("ipp", 10.0)],
        paper: vec![paper],
        ..Figure::default()
    };
    let svg = render(&figure, &[], Embedding::Page);
    assert_eq!(svg.matches("<title>paper: 7 × ipp</title>").count(), 1, "{svg}");
    assert!(svg.contains("the paper") && svg.contains(">80<"), "the axis holds the ring: {svg}");
}
