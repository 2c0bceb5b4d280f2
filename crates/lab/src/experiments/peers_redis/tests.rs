//! The whole experiment with redis-server as both peers: the machinery can be tested without our
//! server.

use super::*;

#[test]
fn a_server_beside_itself_is_measured_end_to_end() -> LabResult<()> {
    if !crate::experiments::has_turn(module_path!()) {
        return Ok(());
    }
    let Some(redis) = find_program("redis-server") else {
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "SKIPPED: redis-server is not installed");
        return Ok(());
    };
    let dir = tempfile::tempdir().map_err(|e| crate::LabError::process("tempdir", e))?;
    let context = Context::new(dir.path(), true, redis.clone(), Box::new(std::io::stderr()));
    let both = Peers::stillpoint_and_redis(redis.clone(), redis);
    let peers = Peers {
        plain: vec![both.plain[1].clone(), both.plain[1].clone()],
        durable: [both.durable[1].clone(), both.durable[1].clone(), both.plain[1].clone()],
    };
    let plan = Plan { run_s: 0.3, rest_s: 0.3, ..PeersRedis::quick() };
    let mut result = context.result(PeersRedis::ID, PeersRedis::TITLE, PeersRedis::PAPER);
    run_with(&context, &plan, &peers, &mut result)?;
    assert!(result.claims.len() >= 12, "{:#?}", result.claims);
    for claim in &result.claims {
        assert!(claim.met.is_some(), "not measured: {}", claim.claim);
    }
    for table in &result.tables {
        assert!(!table.rows.is_empty());
        assert!(table.rows.iter().all(|row| row.len() == table.columns.len()), "{}", table.title);
    }
    for figure in &result.figures {
        let drawn = !figure.bars.is_empty()
            || figure
                .series
                .iter()
                .all(|name| result.series.iter().any(|s| &s.name == name && !s.points.is_empty()));
        assert!(drawn, "{}", figure.title);
    }
    Ok(())
}

#[test]
fn without_redis_the_result_says_so() {
    assert!(find_program("no-such-program-anywhere").is_none());
}

#[test]
fn command_lines_are_filled_in() {
    let peers = Peers::stillpoint_and_redis("stillpoint".into(), "redis-server".into());
    for peer in peers.plain.iter().chain(&peers.durable) {
        let line = peer.arguments.join(" ");
        assert!(line.contains("{dir}") && line.contains("{port}"), "{line}");
    }
    assert!(peers.durable[0].arguments.ends_with(&["--durability".into(), "strict".into()]));
    assert_eq!(peers.plain[0], peers.durable[2], "without a log it is the same server");
}
