//! Starting and ending the server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use mio::{Poll, Waker};
use stillpoint::{Engine, Progress};
use stillpoint_io::JoinHandle;

use crate::config::ServerConfig;
use crate::error::ServerError;
use crate::families::COMMANDS;
use crate::keyspace::{Keyspace, Policy};
use crate::net::{
    Evictor, Handover, LASTING_THREADS, LONG_THREADS, Listener, LoadingLoop, LongCommands,
    LongThread, MAILBOX, Worker,
};
use crate::shared::Shared;
use crate::shared::loading::LoadingProgress;
use crate::shared::mailbox::Mailboxes;
use crate::shared::registry::RELAXED;

/// A server that listens and does not serve yet, so that a port in use is reported before loading.
#[derive(Debug)]
pub struct Bound {
    config: ServerConfig,
    listener: Listener,
    address: SocketAddr,
}

/// A server that answers while its data is loaded. A drop disconnects its clients.
#[derive(Debug)]
pub struct Loading {
    config: ServerConfig,
    address: SocketAddr,
    answers: LoadingLoop,
    progress: Arc<LoadingProgress>,
}

impl Bound {
    /// Listens. The system accepts clients, and the server answers from [`answer`](Self::answer) or
    /// [`start`](Self::start) on.
    ///
    /// # Errors
    /// When the server cannot listen on an address, or the configuration is out of range.
    pub fn new(config: ServerConfig) -> Result<Self, ServerError> {
        check(&config)?;
        let listener = Listener::bind(&config.bind, config.port)?;
        let address = listener.addresses().first().copied();
        let address = address.ok_or_else(|| ServerError::BindAddress {
            name: config.bind.clone(),
            reason: "the system does not say where it listens".to_owned(),
        })?;
        Ok(Self { config, listener, address })
    }

    /// The port listened on.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Starts to answer: `PING`, `INFO`, `QUIT` and commands that log in, and `-LOADING` to all
    /// others.
    ///
    /// # Errors
    /// When the system gives no poll, or no thread.
    pub fn answer(self) -> Result<Loading, ServerError> {
        let Self { config, listener, address } = self;
        let progress = Arc::new(LoadingProgress::new(Arc::clone(&config.clock), address.port()));
        let answers = LoadingLoop::start(config.clone(), listener, Arc::clone(&progress))?;
        Ok(Loading { config, address, answers, progress })
    }

    /// Starts the event loops. Clients are served when this returns.
    ///
    /// A signal handler may raise `stopping`. The server then ends within a tenth of a second, plus
    /// the time that clients need to read their last replies.
    ///
    /// # Errors
    /// When the system gives no poll or thread, or the engine no table or session.
    pub fn start(
        self,
        engine: Arc<Engine>,
        stopping: Arc<AtomicBool>,
    ) -> Result<Server, ServerError> {
        let Self { config, listener, address } = self;
        let handover = Handover { listener, clients: Vec::new() };
        Server::run(config, engine, stopping, address, handover)
    }
}

impl Loading {
    /// Sets the progress of loading, which clients may ask for.
    pub fn tell(&self, progress: &Progress) {
        self.progress.tell(progress);
    }

    /// As [`Bound::start`]. Connected clients stay connected.
    ///
    /// # Errors
    /// As [`Bound::start`], or the error that ended the answers before.
    pub fn start(
        self,
        engine: Arc<Engine>,
        stopping: Arc<AtomicBool>,
    ) -> Result<Server, ServerError> {
        let handover = self.answers.end()?;
        Server::run(self.config, engine, stopping, self.address, handover)
    }
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<(), ServerError>>>,
    long: Arc<LongCommands>,
    long_threads: Vec<JoinHandle<Result<(), ServerError>>>,
    evictor: Option<JoinHandle<Result<(), ServerError>>>,
}

impl Server {
    /// Listens and starts the event loops. Clients are served when this returns.
    ///
    /// # Errors
    /// As [`Bound::new`] and [`Bound::start`].
    pub fn start(
        config: ServerConfig,
        engine: Arc<Engine>,
        stopping: Arc<AtomicBool>,
    ) -> Result<Self, ServerError> {
        Bound::new(config)?.start(engine, stopping)
    }

    fn run(
        config: ServerConfig,
        engine: Arc<Engine>,
        stopping: Arc<AtomicBool>,
        address: SocketAddr,
        handover: Handover,
    ) -> Result<Self, ServerError> {
        // The event loops, the threads for long commands, and the evicting thread. A thread for long
        // commands that is not started costs a lock.
        let threads = config.threads + LONG_THREADS + 1;
        let keyspace = Keyspace::open(engine, threads)?;
        let loop_error = |what| move |source| ServerError::Loop { what, source };
        let mut polls = Vec::new();
        let mut wakers = Vec::new();
        for _ in 0..config.threads {
            let poll = Poll::new().map_err(loop_error("creating a poll"))?;
            let waker = Waker::new(poll.registry(), MAILBOX);
            wakers.push(waker.map_err(loop_error("creating a waker"))?);
            polls.push(poll);
        }
        let Handover { mut listener, clients } = handover;
        listener.register(polls[0].registry())?;
        let addresses: Vec<String> = listener.addresses().iter().map(ToString::to_string).collect();
        let mut listener = Some(listener);
        let mailboxes = Mailboxes::new(wakers);
        let (sizes, port) = ((threads, COMMANDS.rows()), address.port());
        let shared = Shared::new(config, keyspace, sizes, port, stopping, mailboxes);
        let shared = Arc::new(shared);
        let policy = Policy::named(&shared.config.max_memory_policy);
        let policy = policy.and_then(|policy| shared.keep_marks(policy).map(|()| policy));
        let policy =
            policy.map_err(|why| ServerError::Config(format!("maxmemory-policy: {why}")))?;
        shared.keyspace.eviction.set_policy(policy, shared.config.clock.wall_ms());
        let long = Arc::new(LongCommands::new(Arc::clone(&shared)));
        let (threads, long_threads) = (Vec::new(), Vec::new());
        let mut server = Self { address, shared, threads, long, long_threads, evictor: None };
        for (number, poll) in polls.into_iter().enumerate() {
            server.spawn(number, poll, listener.take())?;
        }
        let long_threads =
            if server.shared.keyspace.has_all() { LASTING_THREADS } else { LONG_THREADS };
        for number in 0..long_threads {
            server.spawn_long(number)?;
        }
        server.spawn_evictor()?;
        for client in clients {
            server.shared.totals.connections.fetch_add(1, RELAXED);
            server.shared.mailboxes.send(client);
        }
        tracing::info!(addresses = addresses.join(" "), "ready to accept connections");
        Ok(server)
    }

    fn spawn(
        &mut self,
        number: usize,
        poll: Poll,
        listener: Option<Listener>,
    ) -> Result<(), ServerError> {
        let shared = Arc::clone(&self.shared);
        let session = shared.keyspace.engine().session().map_err(ServerError::engine)?;
        let long = Some(Arc::clone(&self.long));
        let mut worker = Worker::new(number, poll, listener, session, Arc::clone(&shared), long)?;
        let thread = stillpoint_io::spawn(&format!("stillpoint-{number}"), move || {
            // The capture thread has short slices, too. With longer slices the capture thread would
            // keep a loop waiting.
            stillpoint_io::ask_for_short_slices();
            // If a loop ends by an error or a panic, the other loops end, too.
            let _end = EndAll(Some(shared));
            worker.run().inspect_err(|error| {
                tracing::error!(%error, event_loop = number, "an event loop has failed; the server ends");
            })
        });
        self.threads.push(thread.map_err(|error| ServerError::Thread(error.to_string()))?);
        Ok(())
    }

    fn spawn_long(&mut self, number: usize) -> Result<(), ServerError> {
        let shared = Arc::clone(&self.shared);
        let session = shared.keyspace.engine().session().map_err(ServerError::engine)?;
        let mut thread = LongThread::new(number, &self.long, session);
        let thread = stillpoint_io::spawn(&format!("long-{number}"), move || {
            if number >= LASTING_THREADS {
                // There are more of them than cores. With longer slices they would keep the clients waiting
                // that they have answered.
                stillpoint_io::ask_for_short_slices();
            }
            let mut end = EndAll(Some(shared));
            let ran = thread.run().inspect_err(|error| {
                tracing::error!(%error, "a thread for long commands has failed; the server ends");
            });
            if ran.is_ok() && number >= LASTING_THREADS {
                // Everything is loaded.
                end.0 = None;
            }
            ran
        });
        self.long_threads.push(thread.map_err(|error| ServerError::Thread(error.to_string()))?);
        Ok(())
    }

    fn spawn_evictor(&mut self) -> Result<(), ServerError> {
        let shared = Arc::clone(&self.shared);
        let session = shared.keyspace.engine().session().map_err(ServerError::engine)?;
        let number = shared.config.threads + LONG_THREADS;
        let mut evictor = Evictor::new(number, Arc::clone(&shared), session);
        let thread = stillpoint_io::spawn("evictor", move || {
            let _end = EndAll(Some(shared));
            evictor.run().inspect_err(|error| {
                tracing::error!(%error, "the thread that gives up keys has failed; the server ends");
            })
        });
        self.evictor = Some(thread.map_err(|error| ServerError::Thread(error.to_string()))?);
        Ok(())
    }

    /// The port listened on.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Asks the server to end. [`join`](Self::join) waits for its end.
    pub fn stop(&self) {
        self.shared.stop();
        self.shared.wake_all();
    }

    /// Waits until the server has ended.
    ///
    /// # Errors
    /// The first error that ended an event loop.
    pub fn join(self) -> Result<(), ServerError> {
        let first = first_error(self.threads);
        // The event loops have waited for their clients' long commands as long as they may.
        self.long.end();
        let first = first.and(first_error(self.long_threads));
        // Long commands may have waited for room until now.
        self.shared.keyspace.eviction.end();
        first.and(first_error(self.evictor.into_iter().collect()))
    }
}

/// Waits for threads, and returns the first error among them.
fn first_error(threads: Vec<JoinHandle<Result<(), ServerError>>>) -> Result<(), ServerError> {
    let mut first = Ok(());
    for thread in threads {
        let result = match thread.join() {
            Ok(result) => result,
            Err(error) => Err(ServerError::Thread(error.to_string())),
        };
        first = first.and(result);
    }
    first
}

/// Asks every event loop to end when dropped.
struct EndAll(Option<Arc<Shared>>);

impl Drop for EndAll {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("a thread that executes commands has panicked; the server ends");
        }
        if let Some(shared) = &self.0 {
            shared.stop();
            shared.wake_all();
        }
    }
}

/// Serves until `stopping` is raised or a client sends `SHUTDOWN`.
///
/// # Errors
/// As [`Server::start`]; and when commits cannot be made durable any more.
pub fn serve(
    config: ServerConfig,
    engine: Arc<Engine>,
    stopping: Arc<AtomicBool>,
) -> Result<(), ServerError> {
    Server::start(config, engine, stopping)?.join()
}

fn check(config: &ServerConfig) -> Result<(), ServerError> {
    let wrong = |text: &str| Err(ServerError::Config(text.to_owned()));
    if !(1..=128).contains(&config.threads) {
        return wrong("--threads must be between 1 and 128");
    }
    if !((1 << 20)..=(512 << 20)).contains(&config.max_bulk_bytes) {
        return wrong("the longest value must be between 1 MiB and 512 MiB");
    }
    if let Err(why) = Policy::named(&config.max_memory_policy) {
        return wrong(&format!("--max-memory-policy: {why}"));
    }
    if config.query_buffer_bytes > 2 << 30 || config.output_buffer_bytes > 2 << 30 {
        return wrong("the buffers of a client must not exceed 2 GiB");
    }
    Ok(())
}
