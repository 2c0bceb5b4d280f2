//! One thread of a load: an event loop over its share of the connections.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mio::{Events, Interest, Poll, Token};

use super::alarm::Alarm;
use super::connection::{Answer, Connection, Flight, Wants};
use super::{Arrivals, LoadPlan, LoadReport, Pacing, Shared, Traffic, Until};
use crate::error::{LabError, LabResult};
use crate::sys;
use crate::workloads::elements::Command;
use crate::workloads::random::{Keys, Random};
use crate::workloads::strings::Requests;

const ALARM: Token = Token(usize::MAX);
/// Most requests of an open loop that one connection carries at a time. Further requests wait in
/// the schedule.
const FLIGHTS_MAX: usize = 1_024;
/// An open loop sends a request at most this late. To wake up for each request would cost the
/// machine more than the server itself.
const COALESCE_NS: u64 = 50_000;
/// Longest wait for the last replies.
const DRAIN_NS: u64 = 10_000_000_000;

pub(super) fn run(plan: &LoadPlan, thread: usize, shared: &Shared) -> LabResult<LoadReport> {
    let failed = |e: io::Error| LabError::server(plan.address, e);
    let mut worker = Worker::connect(plan, thread).map_err(failed)?;
    // Release pairs with the starter's Acquire: the connections are established.
    shared.ready.fetch_add(1, Ordering::Release);
    // Acquire pairs with the starter's Release of the common start.
    while shared.start_ns.load(Ordering::Acquire) == 0 {
        if shared.stop.load(Ordering::Acquire) {
            return Ok(LoadReport::default());
        }
        sys::sleep(Duration::from_micros(100));
    }
    let start_ns = shared.start_ns.load(Ordering::Acquire);
    sys::sleep_until(start_ns - plan.warm_up.as_nanos() as u64);
    worker.begin(start_ns);
    if let Err(error) = worker.work(shared) {
        worker.report.broken = Some(error.to_string());
        worker.end_ns = worker.end_ns.min(sys::now_ns());
    }
    Ok(worker.finish())
}

struct Worker<'a> {
    plan: &'a LoadPlan,
    poll: Poll,
    alarm: Alarm,
    connections: Vec<Connection>,
    source: Source,
    schedule: Option<Schedule>,
    next_connection: usize,
    start_ns: u64,
    end_ns: u64,
    report: LoadReport,
    acknowledged: HashMap<u64, u64>,
}

/// Chooses the next request.
struct Source {
    traffic: Traffic,
    requests: Requests,
    value_bytes: usize,
    random: Random,
    keys: Keys,
    set_share: f64,
    /// With a stride above 0 each connection has its own keys, `connection + k * stride`. The
    /// server then executes the writes of a key in the order of their stamps.
    stride: u64,
    /// Number of the thread's first connection among all.
    first_connection: u64,
    stamp: u64,
    /// Keys still to be written in order, for [`Until::EveryKeyWritten`].
    in_order: Option<std::ops::Range<u64>>,
}

impl Source {
    fn new(plan: &LoadPlan, thread: usize) -> Source {
        let (threads, own) = (plan.threads as u64, thread as u64);
        let connections = plan.connections as u64;
        let (stride, space) =
            if plan.remember { (connections, plan.keys / connections) } else { (0, plan.keys) };
        let part = |n: u64| plan.keys * n / threads;
        Source {
            traffic: plan.traffic,
            requests: Requests::new(plan.value_bytes),
            value_bytes: plan.value_bytes,
            random: Random::for_thread(plan.seed, thread),
            keys: Keys::with(plan.law, space),
            set_share: plan.set_share,
            stride,
            first_connection: connections * own / threads,
            stamp: plan.seed << 32,
            in_order: (plan.until == Until::EveryKeyWritten).then(|| part(own)..part(own + 1)),
        }
    }

    /// Appends the next request to the connection's send buffer. Returns false when no request is
    /// left.
    fn push(&mut self, connection: &mut Connection, index: usize, scheduled_ns: u64) -> bool {
        let (key, set) = match &mut self.in_order {
            Some(range) => match range.next() {
                Some(key) => (key, true),
                None => return false,
            },
            None => {
                let choice = self.keys.next(&mut self.random);
                let key = match self.stride {
                    0 => choice,
                    stride => choice * stride + self.first_connection + index as u64,
                };
                (key, self.set_share > 0.0 && self.random.chance(self.set_share))
            }
        };
        let (stamp, wants) = match self.traffic {
            Traffic::Strings if set => {
                self.stamp += 1;
                self.requests.set(&mut connection.out, key, self.stamp);
                (Some(self.stamp), Wants::Stored)
            }
            Traffic::Strings => {
                self.requests.get(&mut connection.out, key);
                (None, Wants::Value(self.value_bytes))
            }
            Traffic::Elements(command) => {
                self.stamp += 1;
                command.request(&mut connection.out, key, self.stamp);
                let reads = command == Command::ZRange;
                (None, if reads { Wants::Members } else { Wants::Count })
            }
        };
        connection.flights.push_back(Flight { scheduled_ns, key, stamp, wants });
        true
    }
}

/// Times at which the requests of an open loop are due.
struct Schedule {
    next_ns: f64,
    gap_ns: f64,
    arrivals: Arrivals,
    random: Random,
}

impl Schedule {
    fn advance(&mut self) {
        self.next_ns += match self.arrivals {
            #[cfg(test)]
            Arrivals::Even => self.gap_ns,
            Arrivals::Poisson => self.random.exponential(self.gap_ns),
        };
    }
}

impl<'a> Worker<'a> {
    fn connect(plan: &'a LoadPlan, thread: usize) -> io::Result<Worker<'a>> {
        let poll = Poll::new()?;
        let alarm = Alarm::new(&poll, ALARM)?;
        let share = |n: usize| plan.connections * n / plan.threads;
        let mut connections = Vec::new();
        for index in 0..share(thread + 1) - share(thread) {
            let mut connection = Connection::open(plan.address)?;
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(connection.stream(), Token(index), interest)?;
            connections.push(connection);
        }
        let schedule = match plan.pacing {
            Pacing::Closed => None,
            Pacing::Open { rate_per_s, arrivals } => Some(Schedule {
                next_ns: 0.0,
                gap_ns: 1e9 * plan.threads as f64 / rate_per_s,
                arrivals,
                random: Random::for_thread(!plan.seed, thread),
            }),
        };
        Ok(Worker {
            plan,
            poll,
            alarm,
            connections,
            source: Source::new(plan, thread),
            schedule,
            next_connection: 0,
            start_ns: 0,
            end_ns: u64::MAX,
            report: LoadReport::default(),
            acknowledged: HashMap::new(),
        })
    }

    fn begin(&mut self, start_ns: u64) {
        self.start_ns = start_ns;
        if let Until::Elapsed(duration) = self.plan.until {
            self.end_ns = start_ns + duration.as_nanos() as u64;
        }
        if let Some(schedule) = &mut self.schedule {
            schedule.next_ns = sys::now_ns() as f64;
            schedule.advance();
        }
    }

    fn work(&mut self, shared: &Shared) -> io::Result<()> {
        let mut events = Events::with_capacity(256);
        if self.schedule.is_none() {
            for index in 0..self.connections.len() {
                self.refill(index)?;
            }
        }
        loop {
            let now = sys::now_ns();
            // Acquire pairs with the Release in Load::stop.
            if now >= self.end_ns || shared.stop.load(Ordering::Acquire) {
                self.end_ns = self.end_ns.min(now);
                break;
            }
            if self.source.in_order.as_ref().is_some_and(|r| r.is_empty()) && self.idle() {
                self.end_ns = now;
                break;
            }
            self.send_due(now)?;
            self.pass(&mut events, true)?;
        }
        // Requests that became due since the last round still belong to the run.
        self.send_due(self.end_ns)?;
        let deadline_ns = sys::now_ns() + DRAIN_NS;
        while !self.idle() && sys::now_ns() < deadline_ns {
            self.pass(&mut events, false)?;
        }
        Ok(())
    }

    fn idle(&self) -> bool {
        self.connections.iter().all(|c| c.flights.is_empty())
    }

    /// Sends every request that is due, over the connections in turn.
    fn send_due(&mut self, now: u64) -> io::Result<()> {
        let Some(schedule) = &mut self.schedule else {
            return Ok(());
        };
        let count = self.connections.len();
        let mut full = 0;
        while schedule.next_ns <= now as f64 && full < count {
            let index = self.next_connection;
            let connection = &mut self.connections[index];
            self.next_connection = (index + 1) % count;
            if connection.flights.len() >= FLIGHTS_MAX {
                full += 1;
                continue;
            }
            full = 0;
            self.source.push(connection, index, schedule.next_ns as u64);
            schedule.advance();
        }
        let next_ns = (schedule.next_ns as u64).max(now + COALESCE_NS);
        for connection in &mut self.connections {
            if !connection.out.is_empty() {
                connection.flush()?;
            }
        }
        self.alarm.set(next_ns)
    }

    /// Fills an idle connection of a closed loop with the next batch.
    fn refill(&mut self, index: usize) -> io::Result<()> {
        let connection = &mut self.connections[index];
        let now = sys::now_ns();
        for _ in 0..self.plan.pipeline {
            if !self.source.push(connection, index, now) {
                break;
            }
        }
        connection.flush()
    }

    /// One round of the event loop; `more` allows new requests in a closed loop.
    fn pass(&mut self, events: &mut Events, more: bool) -> io::Result<()> {
        let timeout = if cfg!(target_os = "linux") || self.schedule.is_none() { 20 } else { 1 };
        match self.poll.poll(events, Some(Duration::from_millis(timeout))) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(()),
            other => other?,
        }
        for event in events.iter() {
            if event.token() == ALARM {
                continue;
            }
            let index = event.token().0;
            if event.is_readable() {
                self.receive(index)?;
                if more && self.schedule.is_none() && self.connections[index].flights.is_empty() {
                    self.refill(index)?;
                    continue;
                }
            }
            self.connections[index].flush()?;
        }
        Ok(())
    }

    fn receive(&mut self, index: usize) -> io::Result<()> {
        let now = sys::now_ns();
        let (start_ns, end_ns, remember) = (self.start_ns, self.end_ns, self.plan.remember);
        let (report, acknowledged) = (&mut self.report, &mut self.acknowledged);
        self.connections[index].receive(|flight, answer| {
            report.commands_all += 1;
            match answer {
                Answer::Done => {}
                Answer::Miss => report.misses += 1,
                Answer::Failed(text) => {
                    report.errors += 1;
                    report.first_error.get_or_insert(text);
                    return;
                }
            }
            if let (true, Some(stamp)) = (remember, flight.stamp) {
                acknowledged.insert(flight.key, stamp);
            }
            if now < start_ns {
                return;
            }
            let since = now.min(end_ns.saturating_sub(1)) - start_ns;
            if now < end_ns {
                report.commands += 1;
                report.windows.add(since, 1);
            }
            if flight.scheduled_ns < end_ns {
                report.latencies.record(since, now - flight.scheduled_ns);
            }
        })
    }

    fn finish(mut self) -> LoadReport {
        let now = sys::now_ns();
        let measured_ns = self.end_ns.saturating_sub(self.start_ns);
        let last = measured_ns.saturating_sub(1);
        let mut late = |scheduled_ns: u64| {
            self.report.unanswered += 1;
            self.report.latencies.record(last, now.saturating_sub(scheduled_ns));
        };
        for connection in &self.connections {
            connection.flights.iter().for_each(|flight| late(flight.scheduled_ns));
        }
        if let Some(schedule) = &mut self.schedule {
            while schedule.next_ns < self.end_ns as f64 {
                late(schedule.next_ns as u64);
                schedule.advance();
            }
        }
        self.report.started_ns = self.start_ns;
        self.report.seconds = measured_ns as f64 / 1e9;
        self.report.client_cpu_s = sys::thread_cpu_ns() as f64 / 1e9;
        self.report.acknowledged = self.acknowledged.into_iter().collect();
        self.report
    }
}
