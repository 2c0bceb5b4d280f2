//! A load generator for any server that speaks the Redis protocol.
//!
//! `threads` event loops share `connections` plain TCP connections. In a *closed* loop each
//! connection sends `pipeline` requests, waits for all their replies and sends again. A closed loop
//! measures capacity. In an *open* loop requests come at a fixed rate whatever the server does.
//! Each latency then counts from the moment at which its request was due. So a stalled server is
//! charged for every request that it kept waiting (no coordinated omission).

mod alarm;
mod connection;
mod worker;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use stillpoint_io::JoinHandle;

use crate::error::{LabError, LabResult};
use crate::measure::stats::{Latencies, Windows};
use crate::sys;
use crate::workloads::elements::Command;
use crate::workloads::random::KeyLaw;

/// The rule that says when the next request is sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pacing {
    /// Closed loop: a connection sends when the replies to its last requests have come.
    Closed,
    /// Open loop: requests come at this rate over all connections, whatever the server does.
    Open {
        /// Requests per second.
        rate_per_s: f64,
        /// At random times (Poisson) or evenly spaced.
        arrivals: Arrivals,
    },
}

/// How the requests of an open loop are spaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrivals {
    /// Independent of each other (Poisson), as from many clients.
    Poisson,
    /// Equally spaced, so that a test can count the replies of a toy server.
    #[cfg(test)]
    Even,
}

/// The commands of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// GET and SET of strings.
    Strings,
    /// One command on elements of one collection. A key of the load is the number of an element.
    Elements(Command),
}

/// When the load ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Until {
    /// After this time, the warm-up not counted.
    Elapsed(Duration),
    /// After every key was written once, in order. Such a load reads nothing.
    EveryKeyWritten,
    /// When [`Load::stop`] is called.
    Told,
}

/// The load: its requests, connections and pacing.
#[derive(Clone, Debug)]
pub(crate) struct LoadPlan {
    /// Where the server listens.
    pub(crate) address: SocketAddr,
    /// TCP connections, shared evenly by the threads.
    pub(crate) connections: usize,
    /// Event loops.
    pub(crate) threads: usize,
    /// Requests that a connection sends at once in a closed loop.
    pub(crate) pipeline: usize,
    /// The commands.
    pub(crate) traffic: Traffic,
    /// Size of the key space.
    pub(crate) keys: u64,
    /// Distribution of the keys of the requests.
    pub(crate) law: KeyLaw,
    /// Bytes of each value.
    pub(crate) value_bytes: usize,
    /// Share of requests that are SET, the rest GET: 0 to 1. Of strings alone.
    pub(crate) set_share: f64,
    /// Rule of the requests' times.
    pub(crate) pacing: Pacing,
    /// When the load ends.
    pub(crate) until: Until,
    /// Time at the beginning that is not counted.
    pub(crate) warm_up: Duration,
    /// Seed of keys and arrival times.
    pub(crate) seed: u64,
    /// Whether to remember the last acknowledged write of each key. Each connection then has keys
    /// of its own.
    pub(crate) remember: bool,
}

impl LoadPlan {
    /// GETs of a million keys with values of 100 bytes, in a closed loop without pipelining: 50
    /// connections from two threads, ten seconds.
    pub(crate) fn new(address: SocketAddr) -> LoadPlan {
        LoadPlan {
            address,
            connections: 50,
            threads: 2,
            pipeline: 1,
            traffic: Traffic::Strings,
            keys: 1_000_000,
            law: KeyLaw::Uniform,
            value_bytes: 100,
            set_share: 0.0,
            pacing: Pacing::Closed,
            until: Until::Elapsed(Duration::from_secs(10)),
            warm_up: Duration::ZERO,
            seed: 1,
            remember: false,
        }
    }
}

/// Outcome of a load.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadReport {
    /// Replies after the warm-up.
    pub(crate) commands: u64,
    /// All replies, including those of the warm-up and of the last moments.
    pub(crate) commands_all: u64,
    /// Replies that were errors.
    pub(crate) errors: u64,
    /// The first error reply.
    pub(crate) first_error: Option<String>,
    /// GETs that found no key.
    pub(crate) misses: u64,
    /// Requests that were due but unanswered when the load ended. Each is
    /// counted in the latencies with the time it had waited by then.
    pub(crate) unanswered: u64,
    /// The monotonic time at which the windows begin.
    pub(crate) started_ns: u64,
    /// Length of the measured time.
    pub(crate) seconds: f64,
    /// Replies per window.
    pub(crate) windows: Windows,
    /// Latencies from the scheduled time.
    pub(crate) latencies: Latencies,
    /// CPU seconds of the generator's own threads.
    pub(crate) client_cpu_s: f64,
    /// `(key, stamp of its last acknowledged write)`, when asked for. These writes must survive a
    /// crash. Loads with greater seeds write greater stamps.
    pub(crate) acknowledged: Vec<(u64, u64)>,
    /// The reason why a connection broke, if one did.
    pub(crate) broken: Option<String>,
}

impl LoadReport {
    /// Replies per second after the warm-up.
    pub(crate) fn rate(&self) -> f64 {
        self.commands as f64 / self.seconds
    }

    /// Fails if the server answered with errors, since such a figure does not count.
    ///
    /// # Errors
    /// The first error that the server sent.
    pub(crate) fn expect_no_errors(&self, address: SocketAddr) -> LabResult<()> {
        match &self.first_error {
            None => Ok(()),
            Some(text) => {
                let reason = format!("{} errors, the first: {text}", self.errors);
                Err(LabError::server(address, reason))
            }
        }
    }

    fn merge(&mut self, other: LoadReport) {
        self.commands += other.commands;
        self.commands_all += other.commands_all;
        self.errors += other.errors;
        self.first_error = self.first_error.take().or(other.first_error);
        self.misses += other.misses;
        self.unanswered += other.unanswered;
        self.started_ns = other.started_ns;
        self.seconds = self.seconds.max(other.seconds);
        self.windows.merge(&other.windows);
        self.latencies.merge(&other.latencies);
        self.client_cpu_s += other.client_cpu_s;
        self.acknowledged.extend(other.acknowledged);
        self.broken = self.broken.take().or(other.broken);
    }
}

/// State that the threads of one load share.
#[derive(Debug, Default)]
struct Shared {
    /// Number of threads whose connections are established.
    ready: AtomicUsize,
    /// Start of the windows; 0 until all threads are ready.
    start_ns: AtomicU64,
    stop: AtomicBool,
}

/// A load that is running.
#[derive(Debug)]
pub(crate) struct Load {
    address: SocketAddr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<LabResult<LoadReport>>>,
    started_ns: u64,
}

impl Load {
    /// Connects, then starts all threads at the same moment.
    ///
    /// # Errors
    /// When a connection cannot be made or the plan makes no sense.
    pub(crate) fn start(plan: &LoadPlan) -> LabResult<Load> {
        check(plan)?;
        let shared = Arc::new(Shared::default());
        let mut threads = Vec::new();
        for thread in 0..plan.threads {
            let (plan, shared) = (plan.clone(), Arc::clone(&shared));
            let body = move || worker::run(&plan, thread, &shared);
            threads.push(sys::spawn(&format!("load-{thread}"), body)?);
        }
        // Acquire pairs with each worker's Release once its connections are established.
        while shared.ready.load(Ordering::Acquire) < plan.threads {
            if threads.iter().any(JoinHandle::is_finished) {
                shared.stop.store(true, Ordering::Release);
                break;
            }
            sys::sleep(Duration::from_micros(200));
        }
        let started_ns = sys::now_ns() + 1_000_000 + plan.warm_up.as_nanos() as u64;
        // Release pairs with the workers' Acquire: they begin at one moment.
        shared.start_ns.store(started_ns, Ordering::Release);
        Ok(Load { address: plan.address, shared, threads, started_ns })
    }

    /// The monotonic time at which the windows begin: the end of the warm-up.
    pub(crate) fn started_ns(&self) -> u64 {
        self.started_ns
    }

    /// Ends the load. [`Load::join`] returns soon afterwards.
    pub(crate) fn stop(&self) {
        // Release pairs with the workers' Acquire in their loops.
        self.shared.stop.store(true, Ordering::Release);
    }

    /// Waits for the end of the load and returns its outcome.
    ///
    /// # Errors
    /// When a connection broke.
    pub(crate) fn join(self) -> LabResult<LoadReport> {
        let address = self.address;
        let report = self.join_after_crash()?;
        match &report.broken {
            Some(reason) => Err(LabError::server(address, reason)),
            None => Ok(report),
        }
    }

    /// Waits for the end of a load whose server was killed meanwhile. Broken connections are no
    /// error here; the outcome holds the writes acknowledged before.
    ///
    /// # Errors
    /// When a connection could not be made in the first place.
    pub(crate) fn join_after_crash(self) -> LabResult<LoadReport> {
        let mut sum = LoadReport::default();
        let mut failure = None;
        for thread in self.threads {
            match thread.join() {
                Ok(Ok(report)) => sum.merge(report),
                Ok(Err(error)) => failure = Some(error),
                Err(e) => failure = Some(LabError::server(self.address, e)),
            }
        }
        match failure {
            Some(error) => Err(error),
            None => {
                sum.windows.fit((sum.seconds * 1e9) as u64);
                Ok(sum)
            }
        }
    }
}

/// Runs a load to its end.
///
/// # Errors
/// When a connection cannot be made or breaks, or the plan makes no sense.
pub(crate) fn run(plan: &LoadPlan) -> LabResult<LoadReport> {
    Load::start(plan)?.join()
}

fn check(plan: &LoadPlan) -> LabResult<()> {
    let refuse = |reason: &str| Err(LabError::server(plan.address, reason));
    if plan.threads == 0 || plan.connections < plan.threads {
        return refuse("a load needs at least one thread, and a connection for each");
    }
    if plan.keys < plan.connections as u64 || plan.pipeline == 0 {
        return refuse("a load needs a key for each connection and a pipeline of at least 1");
    }
    match plan.pacing {
        Pacing::Open { rate_per_s, .. } if !(rate_per_s > 0.0 && rate_per_s.is_finite()) => {
            refuse("an open loop needs a rate above 0")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
