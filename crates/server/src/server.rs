//! Starting and ending the server.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use mio::net::TcpListener;
use mio::{Interest, Poll, Waker};
use stillpoint::Engine;
use stillpoint_io::JoinHandle;

use crate::config::ServerConfig;
use crate::databases::Databases;
use crate::error::ServerError;
use crate::net::{LISTENER, Listener, MAILBOX, Mailboxes, Worker};
use crate::shared::Shared;

/// A running server.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<(), ServerError>>>,
}

impl Server {
    /// Listens and starts the event loops; clients are served when this returns.
    ///
    /// `stopping`, once raised (by a signal handler, say), ends the server within a
    /// tenth of a second plus the time that clients need to take their last replies.
    ///
    /// # Errors
    /// When the address cannot be listened on or the configuration is out of range.
    pub fn start(
        config: ServerConfig,
        engine: Arc<Engine>,
        stopping: Arc<AtomicBool>,
    ) -> Result<Self, ServerError> {
        check(&config)?;
        let databases = Databases::open(engine)?;
        let ip: IpAddr =
            config.bind.parse().map_err(|_| ServerError::BindAddress(config.bind.clone()))?;
        let wanted = SocketAddr::new(ip, config.port);
        let bind_error = |source| ServerError::Bind { address: wanted, source };
        let mut socket = TcpListener::bind(wanted).map_err(bind_error)?;
        let address = socket.local_addr().map_err(bind_error)?;
        let loop_error = |what| move |source| ServerError::Loop { what, source };
        let mut polls = Vec::new();
        let mut wakers = Vec::new();
        for _ in 0..config.threads {
            let poll = Poll::new().map_err(loop_error("creating a poll"))?;
            let waker = Waker::new(poll.registry(), MAILBOX);
            wakers.push(waker.map_err(loop_error("creating a waker"))?);
            polls.push(poll);
        }
        polls[0]
            .registry()
            .register(&mut socket, LISTENER, Interest::READABLE)
            .map_err(loop_error("registering the listening socket"))?;
        let mut listener = Some(Listener::new(socket));
        let mailboxes = Mailboxes::new(wakers);
        let shared = Arc::new(Shared::new(config, databases, address.port(), stopping, mailboxes));
        let mut server = Self { address, shared, threads: Vec::new() };
        for (number, poll) in polls.into_iter().enumerate() {
            server.spawn(number, poll, listener.take())?;
        }
        Ok(server)
    }

    fn spawn(
        &mut self,
        number: usize,
        poll: Poll,
        listener: Option<Listener>,
    ) -> Result<(), ServerError> {
        let shared = Arc::clone(&self.shared);
        let session = shared.databases.engine.session().map_err(ServerError::engine)?;
        let mut worker = Worker::new(number, poll, listener, Arc::clone(&shared), session)?;
        let thread = stillpoint_io::spawn(&format!("stillpoint-{number}"), move || {
            // A thread that saves has short slices, too: with longer ones a loop would wait behind it.
            stillpoint_io::ask_for_short_slices();
            // However a loop ends, by error or by panic, the others must not go on alone.
            let _end = EndAll(shared);
            worker.run()
        });
        self.threads.push(thread.map_err(|error| ServerError::Thread(error.to_string()))?);
        Ok(())
    }

    /// The port listened on.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Asks the server to end; [`join`](Self::join) waits for it.
    pub fn stop(&self) {
        self.shared.stop();
        self.shared.wake_all();
    }

    /// Waits until the server has ended.
    ///
    /// # Errors
    /// The first error that ended an event loop.
    pub fn join(self) -> Result<(), ServerError> {
        let mut first = Ok(());
        for thread in self.threads {
            let result = match thread.join() {
                Ok(result) => result,
                Err(error) => Err(ServerError::Thread(error.to_string())),
            };
            first = first.and(result);
        }
        first
    }
}

/// Asks every event loop to end when dropped.
struct EndAll(Arc<Shared>);

impl Drop for EndAll {
    fn drop(&mut self) {
        self.0.stop();
        self.0.wake_all();
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
    if config.query_buffer_bytes > 2 << 30 || config.output_buffer_bytes > 2 << 30 {
        return wrong("the buffers of a client must not exceed 2 GiB");
    }
    Ok(())
}
