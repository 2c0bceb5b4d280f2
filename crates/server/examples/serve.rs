//! The server embedded in a program of your own:
//! `cargo run --release -p stillpoint-server --example serve -- DIR [PORT]`.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use stillpoint::{Config, Engine};
use stillpoint_io::{RealClock, RealRng};
use stillpoint_server::{ServerConfig, serve};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let directory = args.next().ok_or("give a data directory")?;
    let mut config = ServerConfig::new(Arc::new(RealClock), Arc::new(RealRng));
    if let Some(port) = args.next() {
        config.port = port.parse()?;
    }
    let engine = Arc::new(Engine::open(Config::new(directory))?);
    // A signal handler may raise this flag to end the server. The command SHUTDOWN ends the server,
    // too.
    let stopping = Arc::new(AtomicBool::new(false));
    serve(config, Arc::clone(&engine), stopping)?;
    Arc::into_inner(engine).ok_or("a session is still open")?.close()?;
    Ok(())
}
