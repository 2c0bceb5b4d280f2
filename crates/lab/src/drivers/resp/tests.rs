//! The generator against a server of a few lines, whose behaviour is known.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::*;
use crate::subjects::resp::admin::{Admin, Value};
use crate::subjects::resp::codec::{self, Reply};

/// How the toy server treats requests.
#[derive(Clone, Copy, Debug, Default)]
struct Behaviour {
    /// Stops answering for so long after half a second.
    stall: Duration,
    /// Answers the n-th request with an error.
    error_at: u64,
    /// Closes the connection at the n-th request.
    close_at: u64,
}

/// A server that answers GET with a value of 100 bytes and all else with OK.
fn serve(behaviour: Behaviour) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let address = listener.local_addr().expect("bound");
    let began_ns = sys::now_ns();
    let accept = move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let body = move || connection(stream, behaviour, began_ns);
            if sys::spawn("toy", body).is_err() {
                return;
            }
        }
    };
    let _accepts = sys::spawn("toy-accept", accept).expect("a thread");
    address
}

fn connection(mut stream: std::net::TcpStream, behaviour: Behaviour, began_ns: u64) {
    let (mut input, mut chunk, mut served) = (Vec::new(), [0; 65_536], 0);
    let stall_at_ns = began_ns + 500_000_000;
    let mut stalled = behaviour.stall.is_zero();
    while let Ok(n @ 1..) = stream.read(&mut chunk) {
        input.extend_from_slice(&chunk[..n]);
        if !stalled && sys::now_ns() >= stall_at_ns {
            sys::sleep(behaviour.stall);
            stalled = true;
        }
        let mut out = Vec::new();
        while let Ok(Some((Reply::Array { items, .. }, length))) = codec::read(&input) {
            served += 1;
            if served == behaviour.close_at {
                return;
            }
            match codec::read(items) {
                _ if served == behaviour.error_at => out.extend(b"-ERR as told\r\n"),
                Ok(Some((Reply::Bulk(b"GET"), _))) => {
                    out.extend(b"$100\r\n");
                    out.extend([b'x'; 100]);
                    out.extend(b"\r\n");
                }
                Ok(Some((Reply::Bulk(b"DBSIZE"), _))) => out.extend(b":17\r\n"),
                _ => out.extend(b"+OK\r\n"),
            }
            input.drain(..length);
        }
        if stream.write_all(&out).is_err() {
            return;
        }
    }
}

fn plan(behaviour: Behaviour) -> LoadPlan {
    LoadPlan {
        connections: 4,
        keys: 1_000,
        set_share: 0.5,
        until: Until::Elapsed(Duration::from_millis(300)),
        ..LoadPlan::new(serve(behaviour))
    }
}

#[test]
fn a_closed_loop_counts_each_reply_once() -> LabResult<()> {
    for pipeline in [1, 16] {
        let warm_up = Duration::from_millis(100);
        let report = run(&LoadPlan { pipeline, warm_up, ..plan(Behaviour::default()) })?;
        assert!(report.commands > 100, "{}", report.commands);
        assert_eq!(report.windows.total(), report.commands);
        assert!(report.commands_all > report.commands, "the warm-up is not counted");
        assert!((report.seconds - 0.3).abs() < 0.05, "{}", report.seconds);
        let late = report.latencies.all().count() - report.commands;
        assert!(late <= 4 * pipeline as u64, "{late} replies came after the end");
        assert_eq!((report.errors, report.misses, report.unanswered), (0, 0, 0));
    }
    Ok(())
}

#[test]
fn an_open_loop_keeps_its_rate() -> LabResult<()> {
    for arrivals in [Arrivals::Poisson, Arrivals::Even] {
        let pacing = Pacing::Open { rate_per_s: 5_000.0, arrivals };
        let until = Until::Elapsed(Duration::from_millis(600));
        let report = run(&LoadPlan { pacing, until, ..plan(Behaviour::default()) })?;
        let rate = report.rate();
        assert!((4_500.0..5_500.0).contains(&rate), "{arrivals:?}: {rate}");
    }
    Ok(())
}

#[test]
fn a_stall_is_charged_to_everything_that_was_due() -> LabResult<()> {
    let stall = Duration::from_millis(300);
    let behaviour = Behaviour { stall, ..Behaviour::default() };
    let pacing = Pacing::Open { rate_per_s: 2_000.0, arrivals: Arrivals::Even };
    let until = Until::Elapsed(Duration::from_millis(1_200));
    let report = run(&LoadPlan { pacing, until, ..plan(behaviour) })?;
    let all = report.latencies.all();
    // The server answered nothing in a quarter of the time. The requests of that quarter waited 150
    // ms in the median, so more than a tenth of all waited over 100 ms.
    assert!(all.ms(0.90) > 100.0, "p90 is {} ms", all.ms(0.90));
    // Only those that were due in the stall waited for it.
    assert!(all.ms(0.50) < all.ms(0.90) / 2.0, "p50 is {} ms", all.ms(0.50));
    assert!(all.max_ms() >= 250.0, "{}", all.max_ms());
    Ok(())
}

#[test]
fn every_key_is_written_once_and_acknowledgements_are_kept() -> LabResult<()> {
    let plan = plan(Behaviour::default());
    let until = Until::EveryKeyWritten;
    let report = run(&LoadPlan { until, keys: 1_234, pipeline: 100, ..plan.clone() })?;
    assert_eq!(report.commands_all, 1_234);

    let report = run(&LoadPlan { remember: true, set_share: 1.0, seed: 7, ..plan })?;
    let mut keys: Vec<u64> = report.acknowledged.iter().map(|&(key, _)| key).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), report.acknowledged.len(), "each key belongs to one connection");
    assert!(keys.iter().all(|&key| key < 1_000));
    assert!(report.acknowledged.iter().all(|&(_, stamp)| stamp > 7 << 32));
    Ok(())
}

#[test]
fn errors_and_broken_connections_are_told() -> LabResult<()> {
    let plan_of = |behaviour| LoadPlan { connections: 2, ..plan(behaviour) };
    let report = run(&plan_of(Behaviour { error_at: 10, ..Behaviour::default() }))?;
    assert_eq!(report.errors, 2, "one on each connection");
    let error = report.expect_no_errors(plan_of(Behaviour::default()).address);
    assert!(error.expect_err("errors").to_string().contains("ERR as told"));

    let behaviour = Behaviour { close_at: 10, ..Behaviour::default() };
    assert!(run(&plan_of(behaviour)).is_err());
    let load = LoadPlan { remember: true, set_share: 1.0, ..plan_of(behaviour) };
    let report = Load::start(&load)?.join_after_crash()?;
    assert!(report.broken.is_some());
    assert!((1..=18).contains(&report.acknowledged.len()), "{}", report.acknowledged.len());
    Ok(())
}

#[test]
fn nobody_listening_is_an_error_at_once() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    assert!(run(&LoadPlan::new(address)).is_err());
    assert!(Admin::connect(address).is_err());
}

#[test]
fn a_plan_that_makes_no_sense_is_refused() {
    let sound = plan(Behaviour::default());
    let nonsense = [
        LoadPlan { threads: 0, ..sound.clone() },
        LoadPlan { connections: 1, threads: 2, ..sound.clone() },
        LoadPlan { keys: 3, ..sound.clone() },
        LoadPlan { pipeline: 0, ..sound.clone() },
        LoadPlan { pacing: Pacing::Open { rate_per_s: 0.0, arrivals: Arrivals::Even }, ..sound },
    ];
    for plan in nonsense {
        assert!(run(&plan).is_err(), "{plan:?}");
    }
}

#[test]
fn admin_calls_wait_for_their_replies() -> LabResult<()> {
    let mut admin = Admin::connect(serve(Behaviour { error_at: 3, ..Behaviour::default() }))?;
    assert_eq!(admin.dbsize()?, 17);
    assert_eq!(admin.call(&[b"SET", b"k", b"v"])?, Value::Status("OK".into()));
    let error = admin.call(&[b"SET"]).expect_err("the third is refused").to_string();
    assert!(error.contains("ERR as told") && error.contains("SET"), "{error}");
    Ok(())
}
