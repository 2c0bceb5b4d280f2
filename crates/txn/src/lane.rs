//! Lanes of a replay. Each thing that a record changes belongs to one lane, and the lanes go on beside each other.

/// One lane of some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane {
    number: u64,
    lanes: u64,
}

impl Lane {
    /// The only lane, which has everything.
    pub const ALL: Self = Self { number: 0, lanes: 1 };

    /// The lanes of a replay, one at least.
    pub fn all(lanes: usize) -> impl Iterator<Item = Self> {
        let lanes = lanes.max(1) as u64;
        (0..lanes).map(move |number| Self { number, lanes })
    }

    /// Whether this is the first lane. It has what no kind divides.
    pub fn is_first(&self) -> bool {
        self.number == 0
    }

    /// Number of the lane, from 0 on.
    pub fn number(&self) -> usize {
        self.number as usize
    }

    /// Whether this is the only lane.
    pub fn is_only(&self) -> bool {
        self.lanes == 1
    }

    /// Whether a thing with this number, such as a page, belongs to the lane.
    #[inline]
    pub fn has(&self, thing: u64) -> bool {
        // Neighbours go to different lanes, also if all numbers are multiples of the number of lanes.
        self.is_only()
            || (thing.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % self.lanes == self.number
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn each_thing_has_one_lane_and_each_lane_its_share() {
        for lanes in 1..=5 {
            let all: Vec<Lane> = Lane::all(lanes).collect();
            assert_eq!((all.len(), all[0].is_first(), all[0].is_only()), (lanes, true, lanes == 1));
            let mut shares = vec![0; lanes];
            for thing in (0..4000).step_by(4) {
                let of: Vec<_> = (0..lanes).filter(|&number| all[number].has(thing)).collect();
                assert_eq!(of.len(), 1);
                shares[of[0]] += 1;
            }
            assert!(shares.iter().all(|&share| share > 500 / lanes), "{shares:?}");
        }
        assert_eq!(Lane::all(0).collect::<Vec<_>>(), [Lane::ALL]);
    }
}
