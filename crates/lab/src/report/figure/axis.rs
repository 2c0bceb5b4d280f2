//! Scales, ticks and short numbers.

use crate::report::result::Scale;

/// Maps values to positions along one side of a figure.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// An axis that maps all values between the positions `from` and `to`. A linear axis begins at
    /// zero unless a value is negative, and its ends are round numbers.
    pub(super) fn new(scale: Scale, values: &[f64], from: f64, to: f64, round: bool) -> Axis {
        let usable = values.iter().copied().filter(|&v| drawable(scale, v));
        let low = usable.clone().fold(f64::INFINITY, f64::min);
        let high = usable.fold(f64::NEG_INFINITY, f64::max);
        let (low, high) = match scale {
            _ if low > high => (if scale == Scale::Log { 1.0 } else { 0.0 }, 10.0),
            Scale::Log => (10_f64.powf(low.log10().floor()), 10_f64.powf(high.log10().ceil())),
            // Noise just below zero does not make the axis show negative values.
            Scale::Linear if round && low > -0.02 * high => (0.0, high.max(0.0)),
            Scale::Linear if round => (low, high.max(0.0)),
            Scale::Linear => (low, high),
        };
        let high = match scale {
            Scale::Log if high <= low => low * 10.0,
            Scale::Linear if high <= low => low + 1.0,
            _ => high,
        };
        let mut axis = Axis { scale, low, high, from, to };
        if round && scale == Scale::Linear {
            let step = axis.step();
            axis.low = (axis.low / step).floor() * step;
            axis.high = (axis.high / step).ceil() * step;
        }
        axis
    }

    /// The position of a value.
    pub(super) fn position(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value / self.low).log10() / (self.high / self.low).log10(),
        };
        self.from + share * (self.to - self.from)
    }

    /// Whether a value can be shown on this axis.
    pub(super) fn shows(&self, value: f64) -> bool {
        drawable(self.scale, value)
    }

    fn step(&self) -> f64 {
        let rough = (self.high - self.low) / 5.0;
        let power = 10_f64.powf(rough.log10().floor());
        let lead = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|m| m * power >= rough * 0.999);
        lead.unwrap_or(10.0) * power
    }

    /// Round values for tick marks, at most about seven.
    pub(super) fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let step = self.step();
                let first = (self.low / step - 1e-9).ceil() as i64;
                let last = (self.high / step + 1e-9).floor() as i64;
                (first..=last).map(|i| i as f64 * step).collect()
            }
            Scale::Log => {
                let first = self.low.log10().round() as i32;
                let last = self.high.log10().round() as i32;
                let every = ((last - first) / 7 + 1).max(1) as usize;
                (first..=last).step_by(every).map(|e| 10_f64.powi(e)).collect()
            }
        }
    }
}

fn drawable(scale: Scale, value: f64) -> bool {
    value.is_finite() && (scale == Scale::Linear || value > 0.0)
}

/// A count with separated thousands: `10,000,000`.
pub(crate) fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with at most three significant digits and k, M or G.
pub(crate) fn short(value: f64) -> String {
    let (size, unit) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, " G"),
        v if v >= 1e6 => (value / 1e6, " M"),
        v if v >= 1e4 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    if size == 0.0 {
        return "0".into();
    }
    let digits = (2 - size.abs().log10().floor() as i32).clamp(0, 6) as usize;
    let mut text = format!("{size:.digits$}");
    if text.contains('.') {
        text.truncate(text.trim_end_matches('0').trim_end_matches('.').len());
    }
    text + unit
}
