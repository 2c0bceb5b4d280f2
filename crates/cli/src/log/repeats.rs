//! Events that repeat too often are counted instead of written.

use std::collections::HashMap;

use tracing::Level;
use tracing::callsite::Identifier;

/// Least time between two messages of the same line of code.
const FIRST_INTERVAL_NS: u64 = 1_000_000_000;
/// Longest time between two messages of a line of code that keeps repeating.
const LONGEST_INTERVAL_NS: u64 = 60_000_000_000;

/// Repetitions of each line of code.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    places: HashMap<Identifier, CallSite>,
}

#[derive(Debug)]
struct CallSite {
    /// Monotonic time after which the event is written again.
    next_ns: u64,
    interval_ns: u64,
    /// Events left out since the last line.
    more: u64,
    level: Level,
    message: String,
}

/// A repeated message, with the number of repetitions.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Repeated {
    pub(super) level: Level,
    pub(super) message: String,
    pub(super) more: u64,
}

impl CallSite {
    /// Takes the number of events left out, and sets the next wait: a longer one if there were any.
    fn take(&mut self, now_ns: u64) -> u64 {
        let more = std::mem::take(&mut self.more);
        self.interval_ns = match more {
            0 => FIRST_INTERVAL_NS,
            _ => (self.interval_ns * 2).min(LONGEST_INTERVAL_NS),
        };
        self.next_ns = now_ns.saturating_add(self.interval_ns);
        more
    }
}

impl Repeats {
    /// The number of events left out before this event. `None` if this event is to be left out,
    /// too.
    pub(super) fn admit(&mut self, place: Identifier, now_ns: u64) -> Option<u64> {
        let place = self.places.entry(place).or_insert(CallSite {
            next_ns: 0,
            interval_ns: FIRST_INTERVAL_NS,
            more: 0,
            level: Level::INFO,
            message: String::new(),
        });
        if now_ns < place.next_ns {
            place.more += 1;
            return None;
        }
        Some(place.take(now_ns))
    }

    /// Notes the last message of this line of code.
    pub(super) fn told(&mut self, place: Identifier, level: Level, message: String) {
        if let Some(place) = self.places.get_mut(&place) {
            (place.level, place.message) = (level, message);
        }
    }

    /// Events left out whose wait has ended.
    pub(super) fn due(&mut self, now_ns: u64) -> Vec<Repeated> {
        let places = self.places.values_mut();
        let due = places.filter(|place| place.more > 0 && now_ns >= place.next_ns);
        due.map(|place| Repeated {
            more: place.take(now_ns),
            level: place.level,
            message: place.message.clone(),
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn place() -> Identifier {
        METADATA.callsite()
    }

    struct Here;
    static HERE: Here = Here;
    static METADATA: tracing::Metadata<'static> = tracing::metadata! {
        name: "here",
        target: "stillpoint",
        level: Level::WARN,
        fields: &[],
        callsite: &HERE,
        kind: tracing::metadata::Kind::EVENT,
    };
    impl tracing::callsite::Callsite for Here {
        fn set_interest(&self, _: tracing::subscriber::Interest) {}
        fn metadata(&self) -> &tracing::Metadata<'_> {
            &METADATA
        }
    }

    #[test]
    fn what_comes_again_at_once_is_counted_and_told_ever_less_often() {
        let mut repeats = Repeats::default();
        assert_eq!(repeats.admit(place(), 0), Some(0));
        repeats.told(place(), Level::WARN, "again".to_owned());
        for _ in 0..5 {
            assert_eq!(repeats.admit(place(), S / 2), None);
        }
        assert_eq!(repeats.due(S - 1), []);
        let told = Repeated { level: Level::WARN, message: "again".to_owned(), more: 5 };
        assert_eq!(repeats.due(S), [told]);
        assert_eq!(repeats.due(2 * S), [], "nothing came meanwhile");
        assert_eq!(repeats.admit(place(), 2 * S), None, "two seconds now");
        assert_eq!(repeats.admit(place(), 3 * S), Some(1));
        assert_eq!(repeats.admit(place(), 6 * S), None, "four seconds now");
        assert_eq!(repeats.admit(place(), 7 * S), Some(1));
        assert_eq!(repeats.admit(place(), 60 * S), Some(0), "it was quiet");
        assert_eq!(repeats.admit(place(), 61 * S), Some(0), "one second again");
    }

    #[test]
    fn a_place_that_does_not_stop_is_told_once_a_minute() {
        let mut repeats = Repeats::default();
        let told = (0..36_000).filter(|tenth| repeats.admit(place(), tenth * S / 10).is_some());
        let count = told.count();
        assert!((60..=67).contains(&count), "{count} lines in an hour");
    }
}
