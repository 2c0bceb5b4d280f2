//! Adds curves to a result. Each curve has a series of its own, so two figures can name the same
//! scheme.

use crate::report::result::{ExperimentResult, Figure, PaperPoint, Scale, Series};

/// A figure whose curves are added one after the other.
#[derive(Debug)]
pub(crate) struct Drawing<'a> {
    result: &'a mut ExperimentResult,
    figure: Figure,
    suffix: String,
    units: (String, String),
}

impl<'a> Drawing<'a> {
    /// Begins a figure with this title. The suffix is appended to the names of its curves.
    pub(crate) fn new(result: &'a mut ExperimentResult, title: &str, suffix: &str) -> Self {
        let figure = Figure { title: title.to_owned(), ..Figure::default() };
        let units = (String::new(), String::new());
        Drawing { result, figure, suffix: suffix.to_owned(), units }
    }

    /// Sets the caption, and label and unit of each axis.
    #[must_use]
    pub(crate) fn axes(mut self, caption: &str, x: (&str, &str), y: (&str, &str)) -> Self {
        self.figure.caption = caption.to_owned();
        self.figure.x_label = format!("{}, {}", x.0, x.1);
        self.figure.y_label = format!("{}, {}", y.0, y.1);
        self.units = (x.1.to_owned(), y.1.to_owned());
        self
    }

    /// Makes both axes logarithmic.
    #[must_use]
    pub(crate) fn log(mut self) -> Self {
        (self.figure.x_scale, self.figure.y_scale) = (Scale::Log, Scale::Log);
        self
    }

    /// Makes the x axis logarithmic.
    #[must_use]
    pub(crate) fn log_x(mut self) -> Self {
        self.figure.x_scale = Scale::Log;
        self
    }

    /// Makes the y axis logarithmic.
    #[must_use]
    pub(crate) fn log_y(mut self) -> Self {
        self.figure.y_scale = Scale::Log;
        self
    }

    /// Adds a curve.
    pub(crate) fn curve(&mut self, name: &str, points: Vec<[f64; 2]>) {
        self.curve_with_spreads(name, points, Vec::new());
    }

    /// Adds a value of the paper to a curve that is drawn. A value that is no number is left out.
    pub(crate) fn paper(&mut self, label: &str, at: [f64; 2], text: &str) {
        if at.iter().all(|value| value.is_finite()) {
            let (label, text) = (label.to_owned(), text.to_owned());
            self.figure.paper.push(PaperPoint { label, at, text });
        }
    }

    /// Adds a curve with the least and the greatest value at each point. A point that is no number,
    /// such as a ratio to nothing, is left out. JSON has no such numbers.
    pub(crate) fn curve_with_spreads(
        &mut self,
        name: &str,
        mut points: Vec<[f64; 2]>,
        mut spreads: Vec<[f64; 2]>,
    ) {
        let are_numbers: Vec<bool> =
            points.iter().map(|point| point.iter().all(|value| value.is_finite())).collect();
        for values in [&mut points, &mut spreads] {
            let mut kept = are_numbers.iter();
            values.retain(|_| kept.next().copied().unwrap_or(true));
        }
        let label = name.to_owned();
        let name = format!("{name}{}", self.suffix);
        self.figure.series.push(name.clone());
        let (x_unit, y_unit) = self.units.clone();
        self.result.series.push(Series {
            name,
            label,
            x_unit,
            y_unit,
            points,
            spreads,
            ..Series::default()
        });
    }

    /// Adds the figure to the result.
    pub(crate) fn finish(self) {
        self.result.figures.push(self.figure);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_to_nothing_is_no_point() {
        let mut result = crate::report::tests::sample();
        let mut drawing = Drawing::new(&mut result, "Ratios", "");
        let points = vec![[1.0, f64::NAN], [2.0, 3.0], [3.0, f64::INFINITY]];
        let spreads = vec![[0.0, f64::NAN], [2.5, 3.5], [0.0, f64::INFINITY]];
        drawing.curve_with_spreads("scheme", points, spreads);
        drawing.finish();
        let series = result.series.last().expect("was added");
        assert_eq!((&series.points, &series.spreads), (&vec![[2.0, 3.0]], &vec![[2.5, 3.5]]));
    }
}
