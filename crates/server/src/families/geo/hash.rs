//! Places as numbers of 52 bits, whose order keeps near places together, and the areas that a
//! search visits. The arithmetic is that of Redis, operation by operation, so that replies are
//! equal.

/// Bounds of a place in degrees.
const LONGITUDES: (f64, f64) = (-180.0, 180.0);
const LATITUDES: (f64, f64) = (-85.05112878, 85.05112878);
/// Bits of each coordinate in a stored place.
pub(super) const STEPS: u8 = 26;
const EARTH_RADIUS_M: f64 = 6_372_797.560_856;
/// Half of the earth's circumference in the Mercator projection, in metres.
const MERCATOR_MAX_M: f64 = 20_037_726.37;
const EVEN: u64 = 0x5555_5555_5555_5555;
const ODD: u64 = 0xaaaa_aaaa_aaaa_aaaa;

/// Longitude and latitude in degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Coordinates {
    pub(super) longitude: f64,
    pub(super) latitude: f64,
}

impl Coordinates {
    /// Whether the place can be stored.
    pub(super) fn is_valid(&self) -> bool {
        let within = |value: f64, (least, most): (f64, f64)| value >= least && value <= most;
        within(self.longitude, LONGITUDES) && within(self.latitude, LATITUDES)
    }

    /// The score of the place.
    pub(super) fn score(&self) -> f64 {
        Area::around(*self, STEPS, LATITUDES).bits as f64
    }

    /// The place that a score encodes.
    pub(super) fn of_score(score: f64) -> Self {
        let bounds = Area { bits: score as u64, steps: STEPS }.bounds();
        let middle = |(from, to): (f64, f64), (least, most): (f64, f64)| {
            ((from + to) / 2.0).clamp(least, most)
        };
        Self {
            longitude: middle(bounds.longitudes, LONGITUDES),
            latitude: middle(bounds.latitudes, LATITUDES),
        }
    }

    /// The place as a geohash of 11 letters, as other programs write it.
    pub(super) fn letters(&self) -> String {
        const ALPHABET: &[u8; 32] = b"0123456789bcdefghjkmnpqrstuvwxyz";
        let bits = Area::around(*self, STEPS, (-90.0, 90.0)).bits;
        // Ten letters take 50 of the 52 bits. As in Redis, the last letter is always that of 0.
        let letter = |i: u32| match i {
            10 => 0,
            i => (bits >> (52 - (i + 1) * 5) & 0x1f) as usize,
        };
        (0..11).map(|i| char::from(ALPHABET[letter(i)])).collect()
    }

    /// The distance to another place in metres.
    pub(super) fn distance(&self, other: &Self) -> f64 {
        let v = ((other.longitude.to_radians() - self.longitude.to_radians()) / 2.0).sin();
        if v == 0.0 {
            return self.distance_of_latitudes(other);
        }
        let (own, others) = (self.latitude.to_radians(), other.latitude.to_radians());
        let u = ((others - own) / 2.0).sin();
        let a = u * u + own.cos() * others.cos() * v * v;
        2.0 * EARTH_RADIUS_M * a.sqrt().asin()
    }

    fn distance_of_latitudes(&self, other: &Self) -> f64 {
        EARTH_RADIUS_M * (other.latitude.to_radians() - self.latitude.to_radians()).abs()
    }
}

/// The shape of a search around a place. Lengths are in metres.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    Circle { radius: f64 },
    Rectangle { width: f64, height: f64 },
}

impl Shape {
    /// The distance of another place from the middle, if the shape holds it.
    pub(super) fn holds(&self, middle: &Coordinates, other: &Coordinates) -> Option<f64> {
        match *self {
            Self::Circle { radius } => {
                let distance = middle.distance(other);
                (distance <= radius).then_some(distance)
            }
            Self::Rectangle { width, height } => {
                if other.distance_of_latitudes(middle) > height / 2.0 {
                    return None;
                }
                let beside = Coordinates { longitude: middle.longitude, latitude: other.latitude };
                if other.distance(&beside) > width / 2.0 {
                    return None;
                }
                Some(middle.distance(other))
            }
        }
    }

    fn half(&self) -> (f64, f64) {
        match *self {
            Self::Circle { radius } => (radius, radius),
            Self::Rectangle { width, height } => (width / 2.0, height / 2.0),
        }
    }

    /// Half-open ranges of scores that together hold all places in the shape.
    pub(super) fn ranges(&self, middle: Coordinates) -> Vec<(f64, f64)> {
        let (width, height) = self.half();
        let radius = match *self {
            Self::Circle { radius } => radius,
            Self::Rectangle { .. } => (width * width + height * height).sqrt(),
        };
        let wanted = wanted_bounds(middle, width, height);
        let mut steps = steps_for(radius, middle.latitude);
        let mut own = Area::around(middle, steps, LATITUDES);
        let is_too_near = {
            let (north, south) = (own.moved(0, 1).bounds(), own.moved(0, -1).bounds());
            let (east, west) = (own.moved(1, 0).bounds(), own.moved(-1, 0).bounds());
            north.latitudes.1 < wanted.latitudes.1
                || south.latitudes.0 > wanted.latitudes.0
                || east.longitudes.1 < wanted.longitudes.1
                || west.longitudes.0 > wanted.longitudes.0
        };
        if steps > 1 && is_too_near {
            steps -= 1;
            own = Area::around(middle, steps, LATITUDES);
        }
        let bounds = own.bounds();
        let is_useless = |(x, y): (i8, i8)| {
            steps >= 2
                && (y < 0 && bounds.latitudes.0 < wanted.latitudes.0
                    || y > 0 && bounds.latitudes.1 > wanted.latitudes.1
                    || x < 0 && bounds.longitudes.0 < wanted.longitudes.0
                    || x > 0 && bounds.longitudes.1 > wanted.longitudes.1)
        };
        let around = [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1)];
        let mut ranges: Vec<(f64, f64)> = Vec::new();
        for (x, y) in around.into_iter().filter(|&by| !is_useless(by)) {
            // Only neighbours go around the earth: the own area of the highest coordinates is beyond
            // the others.
            let area = if (x, y) == (0, 0) { own } else { own.moved(x, y) };
            let range = area.scores();
            // Around the earth, neighbours may be the same area.
            if !ranges.contains(&range) {
                ranges.push(range);
            }
        }
        ranges
    }
}

/// The bounds around a place, `width` and `height` metres to each side.
fn wanted_bounds(middle: Coordinates, width: f64, height: f64) -> Bounds {
    let degrees = |radians: f64| radians / (std::f64::consts::PI / 180.0);
    let latitudes = degrees(height / EARTH_RADIUS_M);
    let longitudes = |latitude: f64| degrees(width / EARTH_RADIUS_M / latitude.to_radians().cos());
    // The side nearer to the pole is the wider one in degrees.
    let by = if middle.latitude < 0.0 {
        longitudes(middle.latitude - latitudes)
    } else {
        longitudes(middle.latitude + latitudes)
    };
    Bounds {
        longitudes: (middle.longitude - by, middle.longitude + by),
        latitudes: (middle.latitude - latitudes, middle.latitude + latitudes),
    }
}

/// How many times the earth is halved so that nine areas hold a circle.
fn steps_for(mut radius: f64, latitude: f64) -> u8 {
    if radius == 0.0 {
        return STEPS;
    }
    let mut steps = 1i32;
    while radius < MERCATOR_MAX_M {
        radius *= 2.0;
        steps += 1;
    }
    steps -= 2;
    // Towards the poles, areas are narrower.
    steps -= i32::from(latitude.abs() > 66.0) + i32::from(latitude.abs() > 80.0);
    steps.clamp(1, i32::from(STEPS)) as u8
}

/// Bounds in degrees.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    longitudes: (f64, f64),
    latitudes: (f64, f64),
}

/// An area: the range of each coordinate, halved a number of times. Odd bits are of the longitude,
/// even bits of the latitude.
#[derive(Clone, Copy, Debug)]
struct Area {
    bits: u64,
    steps: u8,
}

impl Area {
    fn around(place: Coordinates, steps: u8, latitudes: (f64, f64)) -> Self {
        let part = |value: f64, (least, most): (f64, f64)| {
            ((value - least) / (most - least) * (1u64 << steps) as f64) as u32
        };
        let (x, y) = (part(place.longitude, LONGITUDES), part(place.latitude, latitudes));
        Self { bits: spread(y) | spread(x) << 1, steps }
    }

    fn bounds(&self) -> Bounds {
        let range = |number: u32, (least, most): (f64, f64)| {
            let at = |number: f64| least + number / (1u64 << self.steps) as f64 * (most - least);
            (at(f64::from(number)), at(f64::from(number) + 1.0))
        };
        Bounds {
            longitudes: range(gather(self.bits >> 1), LONGITUDES),
            latitudes: range(gather(self.bits), LATITUDES),
        }
    }

    /// The area that lies `east` areas to the east and `north` areas to the north. Behind the last
    /// area comes the first.
    fn moved(&self, east: i8, north: i8) -> Self {
        let mask = u64::MAX >> (64 - 2 * self.steps);
        let moved = |bits: u64, by: i8| {
            let number = gather(bits).wrapping_add_signed(i32::from(by));
            spread(number) & mask
        };
        let bits = moved(self.bits, north) | moved(self.bits >> 1, east) << 1 & mask;
        Self { bits, steps: self.steps }
    }

    /// The scores of the places in the area.
    fn scores(&self) -> (f64, f64) {
        let shift = 52 - 2 * self.steps;
        ((self.bits << shift) as f64, ((self.bits + 1) << shift) as f64)
    }
}

/// Puts the bits of a number at even places.
fn spread(number: u32) -> u64 {
    let mut bits = u64::from(number);
    for (shift, mask) in [
        (16, 0x0000_ffff_0000_ffff),
        (8, 0x00ff_00ff_00ff_00ff),
        (4, 0x0f0f_0f0f_0f0f_0f0f),
        (2, 0x3333_3333_3333_3333),
        (1, EVEN),
    ] {
        bits = (bits | bits << shift) & mask;
    }
    bits
}

/// The number whose bits are at the even places.
fn gather(bits: u64) -> u32 {
    let mut bits = bits & !ODD;
    for (shift, mask) in [
        (1, 0x3333_3333_3333_3333),
        (2, 0x0f0f_0f0f_0f0f_0f0f),
        (4, 0x00ff_00ff_00ff_00ff),
        (8, 0x0000_ffff_0000_ffff),
        (16, 0x0000_0000_ffff_ffff),
    ] {
        bits = (bits | bits >> shift) & mask;
    }
    bits as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const PALERMO: Coordinates = Coordinates { longitude: 13.361389, latitude: 38.115556 };
    const CATANIA: Coordinates = Coordinates { longitude: 15.087269, latitude: 37.502669 };

    #[test]
    fn places_are_those_of_redis() {
        assert_eq!(PALERMO.score(), 3479099956230698.0);
        assert_eq!(CATANIA.score(), 3479447370796909.0);
        let (stored, other) =
            (Coordinates::of_score(PALERMO.score()), Coordinates::of_score(CATANIA.score()));
        assert_eq!(format!("{:.17}", stored.longitude), "13.36138933897018433");
        assert_eq!(stored.letters(), "sqc8b49rny0");
        assert_eq!(format!("{:.4}", stored.distance(&other)), "166274.1516");
    }

    #[test]
    fn bits_are_spread_and_gathered() {
        for number in [0, 1, 2, 0xffff_ffff, 0x1234_5678] {
            assert_eq!(gather(spread(number)), number);
            assert_eq!(gather(spread(number) << 1 >> 1), number);
        }
    }

    #[test]
    fn ranges_hold_the_places_at_the_edges() {
        for (longitude, latitude) in
            [(180.0, 85.051_128_78), (180.0, 0.0), (0.0, 85.051_128_78), (-180.0, -85.051_128_78)]
        {
            let place = Coordinates { longitude, latitude };
            let score = place.score();
            let ranges = Shape::Circle { radius: 1.0 }.ranges(place);
            let is_within = ranges.iter().any(|range| range.0 <= score && score < range.1);
            assert!(is_within, "{place:?} {score} {ranges:?}");
        }
    }

    #[test]
    fn ranges_hold_every_place_of_a_shape() {
        let mut random = 3u64;
        let mut below = |limit: f64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 11) as f64 / (1u64 << 53) as f64 * limit
        };
        for round in 0..3000 {
            let middle =
                Coordinates { longitude: below(340.0) - 170.0, latitude: below(160.0) - 80.0 };
            let size = 10f64.powf(below(4.0)) * 100.0;
            let shape = match round % 2 {
                0 => Shape::Circle { radius: size },
                _ => Shape::Rectangle { width: size, height: below(2.0) * size },
            };
            let ranges = shape.ranges(middle);
            for _ in 0..20 {
                let place = Coordinates {
                    longitude: middle.longitude + below(0.2) - 0.1,
                    latitude: middle.latitude + below(0.2) - 0.1,
                };
                let score = place.score();
                let stored = Coordinates::of_score(score);
                if shape.holds(&middle, &stored).is_some() {
                    let found = ranges.iter().any(|range| range.0 <= score && score < range.1);
                    assert!(found, "{round}: {middle:?} {shape:?} {place:?}");
                }
            }
        }
    }
}
