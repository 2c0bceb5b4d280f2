//! Places on the earth: sorted sets whose scores are places.

mod hash;
pub(super) mod search;

use stillpoint::Tx;

use super::sorted_sets::{AddOptions, add_pairs, score_of};
use crate::args::is;
use crate::error::{CmdError, CmdResult};
use crate::keyspace::Kind;
use crate::resp::{Args, Reply, parse_f64};
use crate::session::context::Context;
use crate::session::row::{Keyed, ONE, R, WM, row};
use crate::session::spec::{Group, Spec};
use hash::Coordinates;

const GEO: Group = Group { name: "geo", category: Some("@geo") };

#[rustfmt::skip] // each row takes one line
pub(super) const ROWS: &[Spec] = &[
    row("geoadd", -5, WM, ONE, GEO, "3.2.0", Keyed(geoadd), "Adds places to a sorted set."),
    row("geodist", -4, R, ONE, GEO, "3.2.0", Keyed(geodist), "Returns the distance between two members."),
    row("geohash", -2, R, ONE, GEO, "3.2.0", Keyed(geohash), "Returns the places of members in letters."),
    row("geopos", -2, R, ONE, GEO, "3.2.0", Keyed(geopos), "Returns longitude and latitude of members."),
];

/// Reads longitude and latitude from argument `at` on.
fn place_at(args: Args<'_>, at: usize) -> Result<Coordinates, CmdError> {
    let number = |i: usize| parse_f64(args.at(i)).ok_or(CmdError::NOT_FLOAT);
    let place = Coordinates { longitude: number(at)?, latitude: number(at + 1)? };
    if place.is_valid() {
        return Ok(place);
    }
    let Coordinates { longitude, latitude } = place;
    let text = format!("ERR invalid longitude,latitude pair {longitude:.6},{latitude:.6}");
    Err(CmdError::text(text))
}

/// Metres of a unit.
fn unit(arg: &[u8]) -> Result<f64, CmdError> {
    match () {
        () if is(arg, "M") => Ok(1.0),
        () if is(arg, "KM") => Ok(1000.0),
        () if is(arg, "FT") => Ok(0.3048),
        () if is(arg, "MI") => Ok(1609.34),
        () => Err(CmdError::fixed("ERR unsupported unit provided. please use M, KM, FT, MI")),
    }
}

/// Answers a distance.
fn answer_distance(reply: &mut Reply, distance: f64) {
    reply.bulk(format!("{distance:.4}").as_bytes());
}

/// Answers longitude and latitude.
fn answer_place(reply: &mut Reply, place: &Coordinates) {
    reply.array(2);
    for degrees in [place.longitude, place.latitude] {
        let text = format!("{degrees:.17}");
        let text = text.trim_end_matches('0').trim_end_matches('.');
        reply.double_text(if text == "-0" { "0" } else { text });
    }
}

fn geoadd(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let mut options = AddOptions::default();
    let mut first = 2;
    while let Some(arg) = args.get(first) {
        match arg {
            word if is(word, "NX") => options.only_if_missing = true,
            word if is(word, "XX") => options.only_if_there = true,
            word if is(word, "CH") => options.counts_changes = true,
            _ => break,
        }
        first += 1;
    }
    let rest = args.len() - first;
    if rest == 0 || !rest.is_multiple_of(3) || (options.only_if_missing && options.only_if_there) {
        return Err(CmdError::SYNTAX);
    }
    let mut pairs = Vec::with_capacity(rest / 3);
    for at in (first..args.len()).step_by(3) {
        pairs.push((place_at(args, at)?.score(), args.at(at + 2)));
    }
    add_pairs(ctx, args.at(1), tx, &options, pairs)
}

/// The places of members from argument `first` on.
fn places(
    ctx: &mut Context<'_>,
    args: Args<'_>,
    tx: &mut Tx<'_>,
    (first, end): (usize, usize),
) -> Result<Vec<Option<Coordinates>>, CmdError> {
    let mut set = ctx.keys().open_read(tx, 0, args.at(1), Kind::SORTED_SET)?;
    let mut places = Vec::with_capacity(end - first);
    for i in first..end {
        let score = match &mut set {
            Some(set) => score_of(set, tx, args.at(i))?,
            None => None,
        };
        places.push(score.map(Coordinates::of_score));
    }
    Ok(places)
}

fn geopos(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let places = places(ctx, args, tx, (2, args.len()))?;
    ctx.reply.array(places.len());
    for place in places {
        match place {
            Some(place) => answer_place(ctx.reply, &place),
            None => ctx.reply.null_array(),
        }
    }
    Ok(())
}

fn geohash(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let places = places(ctx, args, tx, (2, args.len()))?;
    ctx.reply.array(places.len());
    for place in places {
        match place {
            Some(place) => ctx.reply.bulk(place.letters().as_bytes()),
            None => ctx.reply.null(),
        }
    }
    Ok(())
}

fn geodist(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    let metres = match args.len() {
        4 => 1.0,
        5 => unit(args.at(4))?,
        _ => return Err(CmdError::SYNTAX),
    };
    match places(ctx, args, tx, (2, 4))?[..] {
        [Some(first), Some(second)] => {
            answer_distance(ctx.reply, first.distance(&second) / metres);
        }
        _ => ctx.reply.null(),
    }
    Ok(())
}
