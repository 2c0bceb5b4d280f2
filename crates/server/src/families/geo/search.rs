//! Searches for the places around a given place.

use stillpoint::{KeySet, Mode, Tx};

use super::hash::{Coordinates, Shape};
use super::{GEO, answer_distance, answer_place, place_at, unit};
use crate::args::{integer, is};
use crate::config::Db;
use crate::error::{CmdError, CmdResult, quoted};
use crate::families::sorted_sets::score::{parts, score_bytes};
use crate::families::sorted_sets::score_of;
use crate::keyspace::{Contents, Elements, Keyspace, Kind, NewElements};
use crate::resp::{Args, parse_f64};
use crate::session::context::Context;
use crate::session::row::{Keyed, ONE, R, TWO, WM, declared_by, row, with_further_keys};
use crate::session::spec::{Flags, Spec};

const INEXACT: Flags = WM.or(Flags::INEXACT);

#[rustfmt::skip] // each row takes one line
pub(in crate::families) const ROWS: &[Spec] = &[
    with_further_keys(declared_by(row("georadius", -6, INEXACT, ONE, GEO, "3.2.0", Keyed(georadius), "Returns the members around a place, or stores them."), declare_radius), stored),
    row("georadius_ro", -6, R, ONE, GEO, "3.2.10", Keyed(georadius_ro), "Returns the members around a place."),
    with_further_keys(declared_by(row("georadiusbymember", -5, INEXACT, ONE, GEO, "3.2.0", Keyed(georadiusbymember), "Returns the members around a member, or stores them."), declare_radius), stored),
    row("georadiusbymember_ro", -5, R, ONE, GEO, "3.2.10", Keyed(georadiusbymember_ro), "Returns the members around a member."),
    row("geosearch", -7, R, ONE, GEO, "6.2.0", Keyed(geosearch), "Returns the members in a circle or a rectangle."),
    declared_by(row("geosearchstore", -8, INEXACT, TWO, GEO, "6.2.0", Keyed(geosearchstore), "Stores the members in a circle or a rectangle."), declare_store),
];

/// The argument with the key in which `GEORADIUS` stores its result.
fn store_key(args: Args<'_>) -> Option<usize> {
    let (mut found, mut i) = (None, 5);
    while i + 1 < args.len() {
        if is(args.at(i), "STORE") || is(args.at(i), "STOREDIST") {
            found = Some(i + 1);
            i += 1;
        }
        i += 1;
    }
    found
}

fn stored(args: Args<'_>) -> Option<Vec<usize>> {
    Some(store_key(args).into_iter().collect())
}

fn declare_radius(args: Args<'_>, db: Db, keyspace: &Keyspace, keys: &mut KeySet) {
    keyspace.declare(keys, db, args.at(1), Mode::Read, 0);
    if let Some(target) = store_key(args) {
        keyspace.declare(keys, db, args.at(target), Mode::Write, 0);
    }
}

fn declare_store(args: Args<'_>, db: Db, keyspace: &Keyspace, keys: &mut KeySet) {
    keyspace.declare(keys, db, args.at(2), Mode::Read, 0);
    keyspace.declare(keys, db, args.at(1), Mode::Write, 0);
}

/// The form of a command: one of `GEORADIUS` or one of `GEOSEARCH`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Radius { by_member: bool, may_store: bool },
    Search { stores: bool },
}

impl Form {
    fn is_search(self) -> bool {
        matches!(self, Self::Search { .. })
    }
}

/// The middle of the shape.
#[derive(Clone, Copy, Debug)]
enum Middle {
    Unknown,
    Coordinates(Coordinates),
    /// A member has no place, since its set is missing.
    NoPlace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    None,
    Nearest,
    Farthest,
}

/// A search with the options of its command.
struct Search {
    middle: Middle,
    shape: Option<Shape>,
    /// Metres of the unit in which distances are answered.
    unit: f64,
    with_distance: bool,
    with_hash: bool,
    with_place: bool,
    count: usize,
    any: bool,
    sort: Sort,
    stores: bool,
    stores_distance: bool,
}

/// Reads a length at argument `at`.
fn length(args: Args<'_>, at: usize, what: &str) -> Result<f64, CmdError> {
    parse_f64(args.at(at)).ok_or_else(|| CmdError::text(format!("ERR need numeric {what}")))
}

impl Search {
    /// Reads radius and unit at argument `at`.
    fn circle(&mut self, args: Args<'_>, at: usize) -> CmdResult {
        let radius = length(args, at, "radius")?;
        if radius < 0.0 {
            return Err(CmdError::fixed("ERR radius cannot be negative"));
        }
        self.unit = unit(args.at(at + 1))?;
        self.shape = Some(Shape::Circle { radius: radius * self.unit });
        Ok(())
    }

    /// Reads width, height and unit at argument `at`.
    fn rectangle(&mut self, args: Args<'_>, at: usize) -> CmdResult {
        let (width, height) = (length(args, at, "width")?, length(args, at + 1, "height")?);
        if width < 0.0 || height < 0.0 {
            return Err(CmdError::fixed("ERR height or width cannot be negative"));
        }
        self.unit = unit(args.at(at + 2))?;
        let (width, height) = (width * self.unit, height * self.unit);
        self.shape = Some(Shape::Rectangle { width, height });
        Ok(())
    }

    /// Reads the arguments. Members are looked up in `set` where Redis does, so that the first error is
    /// the same.
    fn parse(
        args: Args<'_>,
        tx: &mut Tx<'_>,
        form: Form,
        set: &mut Option<Elements>,
    ) -> Result<Self, CmdError> {
        let mut search = Self {
            middle: Middle::Unknown,
            shape: None,
            unit: 1.0,
            with_distance: false,
            with_hash: false,
            with_place: false,
            count: 0,
            any: false,
            sort: Sort::None,
            stores: form == Form::Search { stores: true },
            stores_distance: false,
        };
        let first = match form {
            Form::Radius { by_member: false, .. } => {
                search.middle = Middle::Coordinates(place_at(args, 2)?);
                search.circle(args, 4)?;
                6
            }
            Form::Radius { .. } => {
                if set.is_some() {
                    search.find_member(args.at(2), tx, set)?;
                    search.circle(args, 3)?;
                }
                5
            }
            Form::Search { stores } => 2 + usize::from(stores),
        };
        search.options(args, first, tx, form, set)?;
        search.check(args, form)?;
        Ok(search)
    }

    /// Takes the place of a member for the middle, if there is a set.
    fn find_member(
        &mut self,
        member: &[u8],
        tx: &mut Tx<'_>,
        set: &mut Option<Elements>,
    ) -> CmdResult {
        self.middle = Middle::NoPlace;
        if let Some(set) = set {
            let score = score_of(set, tx, member)?
                .ok_or(CmdError::fixed("ERR could not decode requested zset member"))?;
            self.middle = Middle::Coordinates(Coordinates::of_score(score));
        }
        Ok(())
    }

    fn options(
        &mut self,
        args: Args<'_>,
        mut i: usize,
        tx: &mut Tx<'_>,
        form: Form,
        set: &mut Option<Elements>,
    ) -> CmdResult {
        let may_store = form == Form::Radius { by_member: false, may_store: true }
            || form == Form::Radius { by_member: true, may_store: true };
        let mut from_member = None;
        while let Some(arg) = args.get(i) {
            let left = args.len() - i - 1;
            let for_search =
                |word: &str, needs: usize| form.is_search() && left >= needs && is(arg, word);
            if is(arg, "WITHDIST") {
                self.with_distance = true;
            } else if is(arg, "WITHHASH") {
                self.with_hash = true;
            } else if is(arg, "WITHCOORD") {
                self.with_place = true;
            } else if is(arg, "ANY") {
                self.any = true;
            } else if is(arg, "ASC") {
                self.sort = Sort::Nearest;
            } else if is(arg, "DESC") {
                self.sort = Sort::Farthest;
            } else if is(arg, "COUNT") && left > 0 {
                self.count = usize::try_from(integer(args.at(i + 1))?).unwrap_or(0);
                if self.count == 0 {
                    return Err(CmdError::fixed("ERR COUNT must be > 0"));
                }
                i += 1;
            } else if may_store && left > 0 && (is(arg, "STORE") || is(arg, "STOREDIST")) {
                (self.stores, self.stores_distance) = (true, is(arg, "STOREDIST"));
                i += 1;
            } else if for_search("FROMMEMBER", 1) && from_member != Some(false) {
                self.find_member(args.at(i + 1), tx, set)?;
                from_member = Some(true);
                i += 1;
            } else if for_search("FROMLONLAT", 2) && from_member != Some(true) {
                self.middle = Middle::Coordinates(place_at(args, i + 1)?);
                from_member = Some(false);
                i += 2;
            } else if for_search("BYRADIUS", 2)
                && !matches!(self.shape, Some(Shape::Rectangle { .. }))
            {
                self.circle(args, i + 1)?;
                i += 2;
            } else if for_search("BYBOX", 3) && !matches!(self.shape, Some(Shape::Circle { .. })) {
                self.rectangle(args, i + 1)?;
                i += 3;
            } else if form == (Form::Search { stores: true }) && is(arg, "STOREDIST") {
                self.stores_distance = true;
            } else {
                return Err(CmdError::SYNTAX);
            }
            i += 1;
        }
        Ok(())
    }

    /// Refuses options that do not go together.
    fn check(&self, args: Args<'_>, form: Form) -> CmdResult {
        let shows = self.with_distance || self.with_hash || self.with_place;
        let command = quoted(args.at(0), 128);
        let text = match () {
            () if self.stores && shows => {
                let what = match form {
                    Form::Search { .. } => "GEOSEARCHSTORE",
                    Form::Radius { .. } => "STORE option in GEORADIUS",
                };
                format!(
                    "ERR {what} is not compatible with WITHDIST, WITHHASH and WITHCOORD options"
                )
            }
            () if form.is_search() && matches!(self.middle, Middle::Unknown) => format!(
                "ERR exactly one of FROMMEMBER or FROMLONLAT can be specified for {command}"
            ),
            () if form.is_search() && self.shape.is_none() => {
                format!("ERR exactly one of BYRADIUS and BYBOX can be specified for {command}")
            }
            () if self.any && self.count == 0 => {
                "ERR the ANY argument requires COUNT argument".to_owned()
            }
            () => return Ok(()),
        };
        Err(CmdError::text(text))
    }

    /// The members within the shape, in the order in which they are answered.
    fn find(
        &self,
        ctx: &mut Context<'_>,
        set: &mut Elements,
        tx: &mut Tx<'_>,
    ) -> Result<Vec<Found>, CmdError> {
        let (Middle::Coordinates(middle), Some(shape)) = (self.middle, self.shape) else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        let enough = if self.any { self.count } else { usize::MAX };
        let mut ranges = Vec::new();
        for (from, to) in shape.ranges(middle) {
            let first = set.count_before(tx, &|element| parts(element).0 < from)?;
            let end = set.count_before(tx, &|element| parts(element).0 < to)?;
            ranges.push((first, end.saturating_sub(first)));
        }
        let mut heap = ctx.heap();
        ctx.keys().leave_if_long(ranges.iter().map(|(_, count)| count).sum())?;
        for range in ranges {
            set.visit_while(tx, range, false, &mut |element| {
                let (score, member) = parts(element);
                let place = Coordinates::of_score(score);
                if let Some(distance) = shape.holds(&middle, &place)
                    && heap.take(size_of::<Found>() + member.len())
                {
                    found.push(Found { distance, score, place, member: member.to_vec() });
                }
                found.len() < enough && heap.check().is_ok()
            })?;
            heap.check()?;
            if found.len() >= enough {
                break;
            }
        }
        // A command with a count gets the nearest places.
        let nearest = self.sort == Sort::None && self.count > 0 && !self.any;
        match self.sort {
            Sort::Farthest => found.sort_by(|a, b| b.distance.total_cmp(&a.distance)),
            Sort::Nearest => found.sort_by(|a, b| a.distance.total_cmp(&b.distance)),
            Sort::None if nearest => found.sort_by(|a, b| a.distance.total_cmp(&b.distance)),
            Sort::None => {}
        }
        if self.count > 0 {
            found.truncate(self.count);
        }
        Ok(found)
    }
}

/// A member that a search has found; the distance in metres.
struct Found {
    distance: f64,
    score: f64,
    place: Coordinates,
    member: Vec<u8>,
}

fn run(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>, form: Form) -> CmdResult {
    let source = if form == (Form::Search { stores: true }) { 2 } else { 1 };
    let mut set = ctx.keys().open_read(tx, 0, args.at(source), Kind::SORTED_SET)?;
    let search = Search::parse(args, tx, form, &mut set)?;
    let found = match &mut set {
        Some(set) => search.find(ctx, set, tx)?,
        None => Vec::new(),
    };
    if search.stores {
        return store(ctx, tx, &search, &found);
    }
    let shown = [search.with_distance, search.with_hash, search.with_place];
    let shown = shown.iter().filter(|is_shown| **is_shown).count();
    ctx.reply.array(found.len());
    for Found { distance, score, place, member } in &found {
        if shown > 0 {
            ctx.reply.array(1 + shown);
        }
        ctx.reply.bulk(member);
        if search.with_distance {
            answer_distance(ctx.reply, distance / search.unit);
        }
        if search.with_hash {
            ctx.reply.int(*score as i64);
        }
        if search.with_place {
            answer_place(ctx.reply, place);
        }
    }
    Ok(())
}

/// Stores the found places in the second key.
fn store(ctx: &mut Context<'_>, tx: &mut Tx<'_>, search: &Search, found: &[Found]) -> CmdResult {
    let mut contents = Contents::default();
    for Found { distance, score, member, .. } in found {
        let score = if search.stores_distance { distance / search.unit } else { *score };
        contents.push_parts(&[&score_bytes(score), member]);
    }
    ctx.keys().store(tx, 1, &NewElements::of(Kind::SORTED_SET, &contents))?;
    ctx.reply.int(found.len() as i64);
    Ok(())
}

fn georadius(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    run(ctx, args, tx, Form::Radius { by_member: false, may_store: true })
}

fn georadius_ro(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    run(ctx, args, tx, Form::Radius { by_member: false, may_store: false })
}

fn georadiusbymember(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    run(ctx, args, tx, Form::Radius { by_member: true, may_store: true })
}

fn georadiusbymember_ro(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    run(ctx, args, tx, Form::Radius { by_member: true, may_store: false })
}

fn geosearch(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    run(ctx, args, tx, Form::Search { stores: false })
}

fn geosearchstore(ctx: &mut Context<'_>, args: Args<'_>, tx: &mut Tx<'_>) -> CmdResult {
    run(ctx, args, tx, Form::Search { stores: true })
}
