//! A game for a terminal that no crash takes back: coins, ghosts, and a rewind.
//!
//! `cargo run --release -p stillpoint-state --example ghosts -- [DIR]`
//!
//! Type letters and Enter: `w` `a` `s` `d` walk, `.` waits, and several letters are several ticks.
//! `r 20` shows the game as it was 20 ticks ago. `k` kills the process on the spot, without a
//! goodbye; `kill -9` from outside does the same. Started again, the game goes on at the tick that
//! was durable. `q` ends the game. DIR defaults to `ghosts`.
//!
//! The actions are the letters. A tick draws no random numbers and reads no clock: ghosts move by
//! the number of the tick. So the same steps, run again, give the same game. The rewind depends on
//! equal games.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for a terminal")]

use std::io::{BufRead, IsTerminal};

use stillpoint_state::schemes::Hourglass;
use stillpoint_state::{
    Actions, Array, Arrays, Cells, Config, Environment, Packed, Plain, State, StateBuilder,
    StateError,
};

type Scheme = Hourglass<Packed>;

/// The content of a place of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Plain)]
enum Tile {
    Floor,
    Wall,
    Coin,
}

/// A figure on the map. The player is number 0, the others are ghosts.
#[derive(Clone, Copy, Debug, PartialEq, Plain)]
struct Walker {
    x: i32,
    y: i32,
}

/// The score of the player.
#[derive(Clone, Copy, Debug, PartialEq, Plain)]
struct Score {
    coins: u32,
    deaths: u32,
}

const WIDTH: i32 = 48;
const HEIGHT: i32 = 14;
const GHOSTS: usize = 5;
const HOME: Walker = Walker { x: WIDTH / 2, y: HEIGHT / 2 };

#[derive(Clone, Copy)]
struct Game {
    tiles: Array<Tile>,
    walkers: Array<Walker>,
    score: Array<Score>,
}

/// A number that follows from two others, the same in every run.
fn mix(a: u64, b: u64) -> u64 {
    let z = (a.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ b).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z ^ (z >> 31)
}

fn place(x: i32, y: i32) -> usize {
    (y * WIDTH + x) as usize
}

impl Game {
    fn define(builder: &mut StateBuilder<Scheme>) -> Self {
        Self {
            tiles: builder.array("tiles", (WIDTH * HEIGHT) as usize),
            walkers: builder.array("walkers", 1 + GHOSTS),
            score: builder.array("score", 1),
        }
    }

    /// Sets up the map and the figures of a new game.
    fn first(self, cells: &mut Cells<Scheme>) {
        let tile = |at: usize| {
            let (x, y) = (at as i32 % WIDTH, at as i32 / WIDTH);
            let is_border = x == 0 || y == 0 || x == WIDTH - 1 || y == HEIGHT - 1;
            match mix(at as u64, 1) % 10 {
                _ if is_border => Tile::Wall,
                _ if at == place(HOME.x, HOME.y) => Tile::Floor,
                0 => Tile::Wall,
                1 | 2 => Tile::Coin,
                _ => Tile::Floor,
            }
        };
        let walker = |number: usize| match number {
            0 => HOME,
            _ => Walker { x: 2 + number as i32 * 7, y: 1 + (number as i32 % 2) * (HEIGHT - 3) },
        };
        let filled = cells.fill(self.tiles, tile);
        filled.and_then(|()| cells.fill(self.walkers, walker)).expect("no tick has ended");
    }

    fn step(self, cells: &mut Cells<Scheme>, tick: u64, actions: Actions<'_>) {
        for action in actions {
            let (dx, dy) = match action {
                b"w" => (0, -1),
                b"s" => (0, 1),
                b"a" => (-1, 0),
                b"d" => (1, 0),
                _ => (0, 0),
            };
            self.walk(cells, 0, dx, dy);
        }
        let player = cells.read(self.walkers, 0);
        let at = place(player.x, player.y);
        if cells.read(self.tiles, at) == Tile::Coin {
            cells.write(self.tiles, at, Tile::Floor);
            cells.update(self.score, 0, |score| score.coins += 1);
        }
        for ghost in 1..=GHOSTS {
            let it = cells.read(self.walkers, ghost);
            let (dx, dy) = match mix(tick, ghost as u64) % 5 {
                0 | 1 => ((player.x - it.x).signum(), 0),
                2 | 3 => (0, (player.y - it.y).signum()),
                _ => (0, 0),
            };
            self.walk(cells, ghost, dx, dy);
        }
        if (1..=GHOSTS).any(|ghost| cells.read(self.walkers, ghost) == player) {
            cells.write(self.walkers, 0, HOME);
            cells.update(self.score, 0, |score| score.deaths += 1);
        }
    }

    fn walk(self, cells: &mut Cells<Scheme>, number: usize, dx: i32, dy: i32) {
        let tiles = cells.array(self.tiles);
        let it = cells.read(self.walkers, number);
        let to = Walker { x: it.x + dx, y: it.y + dy };
        if tiles.read(place(to.x, to.y)) != Tile::Wall {
            cells.write(self.walkers, number, to);
        }
    }

    fn show(self, cells: &Cells<Scheme>, title: &str) {
        let score = cells.read(self.score, 0);
        let mut picture = format!(
            "{title}: tick {}, coins {}, deaths {}\n",
            cells.ticks(),
            score.coins,
            score.deaths
        );
        let walkers: Vec<Walker> = cells.iter(self.walkers).collect();
        for y in 0..HEIGHT {
            for x in 0..WIDTH {
                let who = walkers.iter().position(|it| *it == Walker { x, y });
                picture.push(match (who, cells.read(self.tiles, place(x, y))) {
                    (Some(0), _) => '@',
                    (Some(_), _) => 'G',
                    (None, Tile::Wall) => '#',
                    (None, Tile::Coin) => '.',
                    (None, Tile::Floor) => ' ',
                });
            }
            picture.push('\n');
        }
        // A terminal shows one picture, in place of the one before. A file gets all of them.
        let clear = if std::io::stdout().is_terminal() { "\x1b[2J\x1b[H" } else { "" };
        println!("{clear}{picture}");
    }
}

/// Opens the game. The text says at which tick it goes on.
fn open(dir: &str) -> Result<(State<Scheme>, Game, String), StateError> {
    let mut builder = State::<Scheme>::builder();
    let game = Game::define(&mut builder);
    let (state, recovered) = builder.open(
        Environment::at(dir)?,
        &Config::default(),
        |cells| game.first(cells),
        |cells, tick, actions| game.step(cells, tick, actions),
    )?;
    let found = match recovered.is_new {
        true => "a new game".to_owned(),
        false => format!("went on, {} ticks replayed", recovered.replayed_ticks),
    };
    Ok((state, game, found))
}

/// The game as it was when a tick had ended.
fn rewind(dir: &str, tick: u64) -> Result<(Arrays<Scheme>, Game), StateError> {
    let mut builder = State::<Scheme>::builder();
    let game = Game::define(&mut builder);
    let arrays = builder.at_tick(
        Environment::at(dir)?,
        tick,
        |cells| game.first(cells),
        |cells, tick, actions| game.step(cells, tick, actions),
    )?;
    Ok((arrays, game))
}

fn play(dir: &str) -> Result<(), StateError> {
    let (mut state, mut game, found) = open(dir)?;
    game.show(&state, &found);
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        match line.trim() {
            "q" => break,
            "k" => {
                state.wait_durable(state.ticks())?;
                println!("killed at tick {}", state.ticks());
                std::process::abort();
            }
            asked if asked.starts_with('r') => {
                let back = asked[1..].trim().parse().unwrap_or(10);
                let tick = state.ticks().saturating_sub(back);
                state.close()?;
                match rewind(dir, tick) {
                    Ok((then, game)) => game.show(&then, "then"),
                    Err(error) => println!("{error}"),
                }
                (state, game, _) = open(dir)?;
            }
            moves => {
                for letter in moves.bytes() {
                    state.log(&[letter])?;
                    state.step(|cells, tick, actions| game.step(cells, tick, actions))?;
                }
                game.show(&state, "now");
            }
        }
    }
    state.close()
}

fn main() -> std::process::ExitCode {
    let dir = std::env::args().nth(1).unwrap_or_else(|| "ghosts".to_owned());
    match play(&dir) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            std::process::ExitCode::FAILURE
        }
    }
}
