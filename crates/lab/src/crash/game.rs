//! The crash check of `fc-fig10`. A child plays in real time, with images and a log of the players'
//! actions. The lab kills the child shortly before the next image is complete, when the most ticks
//! are to be replayed. The lab compares the recovered state with an oracle, and the time with the
//! disk's own read rate.

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use stillpoint_mem::PageSize;
use stillpoint_state::{Config, Every, Scheme, registry};

use crate::crash::{Killable, words};
use crate::error::{LabError, LabResult};
use crate::measure::device;
use crate::measure::outcome::Recovery;
use crate::subjects::arrays::{failed, open, recovers};
use crate::sys;
use crate::workloads::game::Game;
use crate::workloads::game::model::TICKS_PER_S;
use crate::workloads::load::Load;

/// Arguments of the child.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Child {
    /// The scheme's registered name.
    #[arg(long)]
    pub(crate) scheme: String,
    /// Number of players.
    #[arg(long)]
    pub(crate) players: usize,
    /// Ticks of the trace.
    #[arg(long)]
    pub(crate) trace_ticks: usize,
    /// Ticks from one image to the next.
    #[arg(long)]
    pub(crate) image_ticks: u64,
    /// Seed of the trace.
    #[arg(long)]
    pub(crate) seed: u64,
    /// Directory of the state.
    #[arg(long)]
    pub(crate) dir: std::path::PathBuf,
}

fn config(image_ticks: u64) -> Config {
    let interval = Duration::from_secs_f64(image_ticks as f64 / TICKS_PER_S);
    Config { every: Every::Interval(interval), ..Config::default() }
}

/// The child's work until it is killed: it plays, and prints `durable TICK IMAGES IMAGE_TICK` in
/// each tick.
///
/// # Errors
/// When the state refuses.
pub(crate) fn child(what: &Child, output: &mut (dyn Write + Send)) -> LabResult<()> {
    let game = Game::new(what.players, what.trace_ticks, what.seed);
    let play = Play { what, game: &game, output };
    registry::run(&what.scheme, play).map_err(|e| failed(&what.scheme, e))?
}

struct Play<'a> {
    what: &'a Child,
    game: &'a Game,
    output: &'a mut (dyn Write + Send),
}

impl registry::Program for Play<'_> {
    type Output = LabResult<()>;

    fn run<S: Scheme>(self) -> LabResult<()> {
        let Play { what, game, output } = self;
        let refused = |e: stillpoint_state::StateError| failed(&what.scheme, e);
        let config = config(what.image_ticks);
        let opened = open::<S, Game>(game, &what.dir, PageSize::Huge, &config);
        let (mut state, arrays, _) = opened.map_err(refused)?;
        let began_ns = sys::now_ns();
        for slot in 1.. {
            let tick = state.ticks() + 1;
            let mut logged = Ok(());
            game.actions(tick, &mut |action| {
                if logged.is_ok() {
                    logged = state.log(action);
                }
            });
            logged.map_err(refused)?;
            game.step(arrays, &mut state, tick);
            state.tick().map_err(refused)?;
            let now = state.progress().snapshot();
            let line = format!("durable {} {} {}", now.durable_tick, now.images, now.image_tick);
            // The parent process may have ended.
            let said = writeln!(output, "{line}").and_then(|()| output.flush());
            said.map_err(|e| LabError::process("standard output", e))?;
            sys::sleep_until(began_ns + (slot as f64 / TICKS_PER_S * 1e9) as u64);
        }
        Ok(())
    }
}

/// Outcome of one crash and recovery.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Killed {
    /// The scheme's registered name.
    pub(crate) scheme: String,
    /// The last tick that the child had called durable.
    pub(crate) promised_tick: u64,
    /// Seconds from the call that opens the state to its return: memory, image, replay, flushes.
    pub(crate) open_s: f64,
    /// The engine's own account of the recovery.
    pub(crate) recovery: Recovery,
    /// The disk's own read rate in bytes per second, measured on the same file in the same way.
    pub(crate) disk_bytes_per_s: f64,
}

impl Killed {
    /// Bytes per second at which the image was read.
    pub(crate) fn image_bytes_per_s(&self) -> f64 {
        self.recovery.image_bytes as f64 / self.recovery.image_s
    }
}

impl fmt::Display for Killed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let it = &self.recovery;
        write!(
            f,
            "{}: killed with an image under way, recovered tick {} ({} was promised), equal to the \
             oracle. Downtime {:.2} s, in it an image of {} MB in {:.2} s past the page cache ({:.0} MB/s; \
             the disk reads {:.0}), {} ticks again in {:.2} s. The start of the process is not in \
             it; a replay in real time would take {:.1} s.",
            self.scheme,
            it.tick,
            self.promised_tick,
            self.open_s,
            it.image_bytes / 1_000_000,
            it.image_s,
            self.image_bytes_per_s() / 1e6,
            self.disk_bytes_per_s / 1e6,
            it.replayed_ticks,
            it.replay_s,
            it.replayed_ticks as f64 / TICKS_PER_S,
        )
    }
}

/// The game that a child plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Match {
    /// Number of players.
    pub(crate) players: usize,
    /// Ticks of the trace.
    pub(crate) trace_ticks: usize,
    /// Ticks from one image to the next.
    pub(crate) image_ticks: u64,
    /// Seed of the trace.
    pub(crate) seed: u64,
}

/// Images that the child takes before it is killed.
const IMAGES: u64 = 3;

/// The last report of the child.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reported {
    durable: u64,
    images: u64,
    image_tick: u64,
}

impl Reported {
    fn of(line: &str) -> Option<Reported> {
        let mut numbers = line.strip_prefix("durable ")?.split(' ').map(str::parse::<u64>);
        let mut number = || numbers.next()?.ok();
        Some(Reported { durable: number()?, images: number()?, image_tick: number()? })
    }

    /// Whether the next image is under way, so that recovery must replay all ticks since the last
    /// one.
    fn is_worst(&self, image_ticks: u64) -> bool {
        self.images >= IMAGES && self.durable >= self.image_tick + image_ticks
    }
}

/// A game under a scheme.
pub(crate) struct KilledGame<'a> {
    /// The game that the child plays.
    pub(crate) game: &'a Game,
    /// Sizes and seed of the game.
    pub(crate) plan: Match,
    /// The scheme's registered name.
    pub(crate) scheme: &'a str,
}

impl Killable for KilledGame<'_> {
    type Reported = Reported;
    type Recovered = Killed;

    fn name(&self) -> String {
        format!("game-{}", self.scheme)
    }

    fn arguments(&self) -> Vec<String> {
        let Match { players, trace_ticks, image_ticks, seed } = self.plan;
        words([
            "game",
            "--scheme",
            self.scheme,
            "--players",
            &players.to_string(),
            "--trace-ticks",
            &trace_ticks.to_string(),
            "--image-ticks",
            &image_ticks.to_string(),
            "--seed",
            &seed.to_string(),
        ])
    }

    fn hear(&self, heard: &mut Reported, line: &str) -> Option<bool> {
        *heard = Reported::of(line)?;
        Some(heard.is_worst(self.plan.image_ticks))
    }

    fn linger(&self) -> Duration {
        Duration::ZERO
    }

    fn recover(&self, heard: &Reported, dir: &Path) -> LabResult<Killed> {
        let KilledGame { game, plan, scheme } = self;
        let recover = Recover { game, plan, scheme, dir, heard: *heard };
        registry::run(scheme, recover).map_err(|e| failed(scheme, e))?
    }
}

struct Recover<'a> {
    game: &'a Game,
    plan: &'a Match,
    scheme: &'a str,
    dir: &'a Path,
    heard: Reported,
}

impl registry::Program for Recover<'_> {
    type Output = LabResult<Killed>;

    fn run<S: Scheme>(self) -> LabResult<Killed> {
        let Recover { game, plan, scheme, dir, heard } = self;
        let config = config(plan.image_ticks);
        let began_ns = sys::now_ns();
        let opened = open::<S, Game>(game, dir, PageSize::Huge, &config);
        let (state, _, recovered) = opened.map_err(|e| failed(scheme, e))?;
        let open_s = (sys::now_ns() - began_ns) as f64 / 1e9;
        drop(state);
        if recovered.tick < heard.durable {
            let reason =
                format!("tick {} was durable, {} came back", heard.durable, recovered.tick);
            return Err(failed(scheme, reason));
        }
        let newest = newest_image(dir, recovered.image_bytes)?;
        let disk_bytes_per_s = device::read_bytes_per_s(&newest, config.recovery_threads)?;
        // The comparison opens the state a second time, so that it is no part of the measured time
        // above.
        let same = recovered.tick..=recovered.tick;
        recovers::<S, Game>(game, scheme, dir, PageSize::Huge, &config, same)?;
        let recovery = Recovery {
            tick: recovered.tick,
            image_bytes: recovered.image_bytes,
            image_s: recovered.image_ns as f64 / 1e9,
            replayed_ticks: recovered.replayed_ticks,
            replay_s: recovered.replay_ns as f64 / 1e9,
        };
        let promised_tick = heard.durable;
        Ok(Killed { scheme: scheme.to_owned(), promised_tick, open_s, recovery, disk_bytes_per_s })
    }
}

/// A file of the image's length.
fn newest_image(dir: &Path, bytes: u64) -> LabResult<std::path::PathBuf> {
    let files = sys::list_dir(dir)?;
    let is_image = |path: &std::path::PathBuf| {
        path.metadata().is_ok_and(|it| it.is_file() && it.len() == bytes)
    };
    files.into_iter().find(is_image).ok_or_else(|| LabError::Missing {
        what: format!("{} has no image of {bytes} bytes", dir.display()),
        cure: "leave the folder alone while the experiment runs".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crash::tests::Lines;

    #[test]
    fn a_child_says_how_far_it_has_come() {
        let heard = Reported::of("durable 120 3 78").expect("a line");
        assert_eq!(heard, Reported { durable: 120, images: 3, image_tick: 78 });
        assert!(heard.is_worst(42) && !heard.is_worst(43));
        assert!(!Reported { images: 2, ..heard }.is_worst(42));
        assert_eq!(Reported::of("durable 120 3"), None);
        assert_eq!(Reported::of("image 1 2 3"), None);
    }

    #[test]
    fn what_a_child_leaves_is_recovered_and_compared() -> LabResult<()> {
        let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
        let plan = Match { players: 20, trace_ticks: 10, image_ticks: 2, seed: 1 };
        let what = Child {
            scheme: "ipp".into(),
            players: plan.players,
            trace_ticks: plan.trace_ticks,
            image_ticks: plan.image_ticks,
            seed: plan.seed,
            dir: dir.path().to_owned(),
        };
        let mut output = Lines::before_closing(12);
        let error = child(&what, &mut output).expect_err("the pipe is closed").to_string();
        assert!(error.contains("standard output"), "{error}");
        let said = output.text();
        let heard = said.lines().last().and_then(Reported::of).expect("lines");
        assert!(heard.images > 0 && heard.durable > 0, "{said}");
        let game = Game::new(plan.players, plan.trace_ticks, plan.seed);
        let recover =
            || Recover { game: &game, plan: &plan, scheme: "ipp", dir: dir.path(), heard };
        let killed = registry::run("ipp", recover()).map_err(|e| failed("ipp", e))??;
        assert!(killed.recovery.tick >= heard.durable);
        assert!(killed.disk_bytes_per_s > 0.0 && killed.image_bytes_per_s() > 0.0);
        let more = Recover { heard: Reported { durable: 1_000, ..heard }, ..recover() };
        let error = registry::run("ipp", more).map_err(|e| failed("ipp", e))?;
        assert!(error.expect_err("too little").to_string().contains("tick 1000 was durable"));
        Ok(())
    }
}
