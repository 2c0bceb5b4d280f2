//! The crash of `fc-fig10`: a child plays in real time, with images and a log of the players'
//! actions; it is killed when most ticks since the last image are to be replayed. What is recovered
//! is compared with an oracle, and the time beside the disk's own read rate.

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use stillpoint_mem::PageSize;
use stillpoint_state::{Config, Every, Scheme, registry};

use super::Game;
use super::experiments::Plan;
use super::model::TICKS_PER_S;
use crate::arrays::check::{failed, open, recovers};
use crate::arrays::load::Load;
use crate::arrays::outcome::Recovery;
use crate::context::Context;
use crate::device;
use crate::error::{LabError, LabResult};
use crate::process::kill_when;
use crate::sys;

/// What the child is told.
#[derive(Clone, Debug, clap::Args)]
pub struct Child {
    /// The scheme.
    #[arg(long)]
    pub scheme: String,
    /// Players.
    #[arg(long)]
    pub players: usize,
    /// Ticks of the trace.
    #[arg(long)]
    pub trace_ticks: usize,
    /// Ticks from one image to the next.
    #[arg(long)]
    pub image_ticks: u64,
    /// Of the trace.
    #[arg(long)]
    pub seed: u64,
    /// Where the state lies.
    #[arg(long)]
    pub dir: std::path::PathBuf,
}

fn config(image_ticks: u64) -> Config {
    let interval = Duration::from_secs_f64(image_ticks as f64 / TICKS_PER_S);
    Config { every: Every::Interval(interval), ..Config::default() }
}

/// What the child does until it is killed: plays, and says `durable TICK IMAGES IMAGE_TICK` in each
/// tick.
///
/// # Errors
/// When the state refuses.
pub fn child(what: &Child, output: &mut (dyn Write + Send)) -> LabResult<()> {
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
            // The parent may be gone.
            let said = writeln!(output, "{line}").and_then(|()| output.flush());
            said.map_err(|e| LabError::process("standard output", e))?;
            sys::sleep_until(began_ns + (slot as f64 / TICKS_PER_S * 1e9) as u64);
        }
        Ok(())
    }
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Killed {
    /// The scheme.
    pub scheme: String,
    /// The last tick that the child had called durable.
    pub promised_tick: u64,
    /// Seconds from the call that opens the state to its return: memory, image, replay, flushes.
    pub open_s: f64,
    /// What recovery took of them.
    pub recovery: Recovery,
    /// Bytes per second that the disk reads, from the same file in the same way.
    pub disk_bytes_per_s: f64,
}

impl Killed {
    /// Bytes per second at which the image was read.
    pub fn image_bytes_per_s(&self) -> f64 {
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

/// Images that the child takes before it is killed.
const IMAGES: u64 = 3;

/// What the child has said last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Heard {
    durable: u64,
    images: u64,
    image_tick: u64,
}

impl Heard {
    fn of(line: &str) -> Option<Heard> {
        let mut numbers = line.strip_prefix("durable ")?.split(' ').map(str::parse::<u64>);
        let mut number = || numbers.next()?.ok();
        Some(Heard { durable: number()?, images: number()?, image_tick: number()? })
    }

    /// True when the next image is under way, and all ticks since the last are to be replayed.
    fn is_worst(&self, image_ticks: u64) -> bool {
        self.images >= IMAGES && self.durable >= self.image_tick + image_ticks
    }
}

/// Starts the child, kills it, and recovers what it leaves.
///
/// # Errors
/// When the child ends by itself, or what is recovered is less than it promised or anything but
/// what was played.
pub fn kill_and_recover(
    context: &Context,
    plan: &Plan,
    game: &Game,
    scheme: &str,
) -> LabResult<Killed> {
    let dir = context.fresh_dir("game-killed")?;
    let heard = play_and_kill(context, plan, scheme, &dir)?;
    let recover = Recover { game, plan, scheme, dir: &dir, heard };
    let killed = registry::run(scheme, recover).map_err(|e| failed(scheme, e))??;
    context.note(&killed);
    sys::remove_dir_all(&dir)?;
    Ok(killed)
}

fn play_and_kill(context: &Context, plan: &Plan, scheme: &str, dir: &Path) -> LabResult<Heard> {
    let number = |number: u64| number.to_string();
    let mut command = Command::new(&context.binary);
    command
        .args(["lab", "child", "game", "--scheme", scheme])
        .args(["--players", &number(plan.players as u64)])
        .args(["--trace-ticks", &number(plan.trace_ticks as u64)])
        .args(["--image-ticks", &number(plan.image_ticks), "--seed", &number(plan.seed), "--dir"])
        .arg(dir);
    let mut heard = Heard::default();
    kill_when(&mut command, Duration::ZERO, |text| {
        heard = Heard::of(text)?;
        Some(heard.is_worst(plan.image_ticks))
    })?;
    Ok(heard)
}

struct Recover<'a> {
    game: &'a Game,
    plan: &'a Plan,
    scheme: &'a str,
    dir: &'a Path,
    heard: Heard,
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
        // Opened once more, and compared: what was timed above was the first time.
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
    use crate::process::tests::Lines;

    #[test]
    fn a_child_says_how_far_it_has_come() {
        let heard = Heard::of("durable 120 3 78").expect("a line");
        assert_eq!(heard, Heard { durable: 120, images: 3, image_tick: 78 });
        assert!(heard.is_worst(42) && !heard.is_worst(43));
        assert!(!Heard { images: 2, ..heard }.is_worst(42));
        assert_eq!(Heard::of("durable 120 3"), None);
        assert_eq!(Heard::of("image 1 2 3"), None);
    }

    #[test]
    fn what_a_child_leaves_is_recovered_and_compared() -> LabResult<()> {
        let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
        let plan = Plan { players: 20, trace_ticks: 10, image_ticks: 2, ..Plan::quick() };
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
        let heard = said.lines().last().and_then(Heard::of).expect("lines");
        assert!(heard.images > 0 && heard.durable > 0, "{said}");
        let game = Game::new(plan.players, plan.trace_ticks, plan.seed);
        let recover =
            || Recover { game: &game, plan: &plan, scheme: "ipp", dir: dir.path(), heard };
        let killed = registry::run("ipp", recover()).map_err(|e| failed("ipp", e))??;
        assert!(killed.recovery.tick >= heard.durable);
        assert!(killed.disk_bytes_per_s > 0.0 && killed.image_bytes_per_s() > 0.0);
        let more = Recover { heard: Heard { durable: 1_000, ..heard }, ..recover() };
        let error = registry::run("ipp", more).map_err(|e| failed("ipp", e))?;
        assert!(error.expect_err("too little").to_string().contains("tick 1000 was durable"));
        Ok(())
    }
}
