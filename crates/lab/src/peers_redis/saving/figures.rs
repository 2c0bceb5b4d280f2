//! The curves of a save: latency, throughput and memory over time, and the tail.

use super::{Findings, Save};
use crate::figure::axis::grouped;
use crate::peers_redis::Plan;
use crate::process::Peer;
use crate::result::{ExperimentResult, Figure, Scale, Series, Span};

/// Curves that share a figure.
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

/// Curves of the last run of each peer; second 0 is the moment of BGSAVE.
pub(super) fn add(plan: &Plan, peers: &[Peer], found: &[Findings], result: &mut ExperimentResult) {
    let mut groups = Groups::default();
    for (peer, findings) in peers.iter().zip(found).take(2) {
        if let Some(save) = findings.saves.last() {
            collect(&peer.name, save, &mut groups, &mut result.series);
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
        x_label: "seconds since BGSAVE".into(),
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

fn collect(peer: &str, save: &Save, groups: &mut Groups, series: &mut Vec<Series>) {
    let mut add = |group: &mut Group, what: &str, units: [&str; 2], points: Vec<[f64; 2]>| {
        let name = format!("{peer}: {what}");
        group.series.push(name.clone());
        let [x_unit, y_unit] = units.map(String::from);
        series.push(Series { name: name.clone(), x_unit, y_unit, points });
        let label = format!("{peer} saves");
        group.spans.push(Span { label, from: 0.0, to: save.seconds(), series: Some(name) });
    };
    let shifted = |points: Vec<[f64; 2]>| -> Vec<[f64; 2]> {
        points.into_iter().map(|[x, y]| [x - save.from_s, y]).collect()
    };
    let slow = shifted(save.report.latencies.points_ms(0.999));
    add(&mut groups.slow, "p99.9", ["s", "ms"], slow);
    let rate = shifted(save.report.windows.points());
    add(&mut groups.rate, "throughput", ["s", "requests/s"], rate);
    let rest = save.rest_bytes();
    let beyond = |total: u64| (total as f64 / rest - 1.0) * 100.0;
    let samples = save.memory.iter().filter(|s| save.since(s) >= 0.0);
    let held = samples.map(|s| [save.since(s) - save.from_s, beyond(s.total_bytes())]).collect();
    add(&mut groups.memory, "memory", ["s", "%"], held);
    let tail = [("at rest", save.at_rest()), ("while saving", save.while_saving())];
    for (what, latencies) in tail {
        add(&mut groups.tail, what, ["ms", "share"], latencies.tail_points());
    }
}
