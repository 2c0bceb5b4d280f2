//! The curves of a save: latency, throughput and memory over time, and the tail.

use std::iter::repeat;

use super::{Findings, Saves};
use crate::experiments::peers_redis::Plan;
use crate::report::figure::axis::grouped;
use crate::report::result::{ExperimentResult, Figure, Scale, Series, Span};
use crate::subjects::server::Peer;

/// Most curves that share a figure.
#[derive(Default)]
struct Group {
    series: Vec<String>,
    spans: Vec<Span>,
}

#[derive(Default)]
struct Groups {
    slow: Group,
    rate: Group,
    memory: Group,
    tail: Group,
}

/// Draws the curves of the last run of each peer. Second 0 is the moment of the first BGSAVE.
pub(super) fn add(plan: &Plan, peers: &[Peer], found: &[Findings], result: &mut ExperimentResult) {
    let mut groups = Groups::default();
    for (peer, findings) in peers.iter().zip(found).take(2) {
        if let Some(saves) = findings.saves.last() {
            collect(&peer.name, saves, &mut groups, &mut result.series);
        }
    }
    let caption = format!(
        "{} keys of {} bytes, {:.0} % SET, open loop at {:.0} % of each server's own capacity.",
        grouped(plan.saved_keys),
        plan.value_bytes,
        plan.set_share * 100.0,
        plan.load_share * 100.0
    );
    let over_time = |title: &str, y_label: &str, y_scale: Scale, group: Group| Figure {
        title: title.into(),
        caption: caption.clone(),
        x_label: "seconds since the first BGSAVE".into(),
        y_label: y_label.into(),
        y_scale,
        series: group.series,
        spans: group.spans,
        ..Figure::default()
    };
    result.figures.extend([
        over_time("Slow requests while saving", "p99.9 per 100 ms, ms", Scale::Log, groups.slow),
        over_time("Throughput while saving", "requests/s", Scale::Linear, groups.rate),
        over_time("Memory beyond rest", "% of the memory at rest", Scale::Linear, groups.memory),
        Figure {
            title: "How many requests took longer".into(),
            caption: caption.clone(),
            x_label: "latency from the scheduled time, ms".into(),
            y_label: "share that took longer".into(),
            x_scale: Scale::Log,
            y_scale: Scale::Log,
            series: groups.tail.series,
            ..Figure::default()
        },
    ]);
}

fn collect(peer: &str, saves: &Saves, groups: &mut Groups, series: &mut Vec<Series>) {
    let mut add =
        |group: &mut Group, label: &str, what: &str, units: [&str; 2], points: Vec<[f64; 2]>| {
            let name = format!("{peer}: {what}");
            group.series.push(name.clone());
            let [x_unit, y_unit] = units.map(String::from);
            let label = label.to_owned();
            series.push(Series {
                name: name.clone(),
                label,
                x_unit,
                y_unit,
                points,
                ..Series::default()
            });
            let labels = std::iter::once(format!("{peer} saves")).chain(repeat("again".to_owned()));
            group.spans.extend(saves.stretches.iter().zip(labels).map(|([from, to], label)| {
                Span {
                    label,
                    from: from - saves.first_s(),
                    to: to - saves.first_s(),
                    series: Some(name.clone()),
                }
            }));
        };
    let shifted = |points: Vec<[f64; 2]>| -> Vec<[f64; 2]> {
        points.into_iter().map(|[x, y]| [x - saves.first_s(), y]).collect()
    };
    let slow = shifted(saves.report.latencies.points_ms(0.999));
    add(&mut groups.slow, peer, "p99.9", ["s", "ms"], slow);
    let rate = shifted(saves.report.windows.points());
    add(&mut groups.rate, peer, "throughput", ["s", "requests/s"], rate);
    let rest = saves.rest_bytes();
    let beyond = |total: u64| (total as f64 / rest - 1.0) * 100.0;
    let samples = saves.memory.iter().filter(|s| saves.since(s) >= 0.0);
    let held =
        samples.map(|s| [saves.since(s) - saves.first_s(), beyond(s.total_bytes())]).collect();
    add(&mut groups.memory, peer, "memory", ["s", "%"], held);
    let tail = [("at rest", saves.at_rest()), ("while saving", saves.while_saving())];
    for (what, latencies) in tail {
        add(&mut groups.tail, "", what, ["ms", "share"], latencies.tail_points());
    }
}
