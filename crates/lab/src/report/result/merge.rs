//! Merges a run of one part of an experiment into the file of the whole.
//!
//! Every series, figure, table, claim and note carries the part that made it. A run of one part
//! replaces what that part made before and leaves the other parts alone. Entries without a part
//! belong to all parts:
//! - a series without a part keeps its points at values of x that the new run did not measure;
//! - a figure, table or claim of the same title is replaced;
//! - notes are replaced as a whole.

use super::{Claim, ExperimentResult, Figure, PartRun, Series, Table};
use crate::error::LabResult;

/// Lengths of a result's lists before a part was run.
#[derive(Clone, Copy, Debug)]
struct Lengths {
    series: usize,
    figures: usize,
    tables: usize,
    claims: usize,
    notes: usize,
}

impl ExperimentResult {
    fn lengths(&self) -> Lengths {
        Lengths {
            series: self.series.len(),
            figures: self.figures.len(),
            tables: self.tables.len(),
            claims: self.claims.len(),
            notes: self.notes.len(),
        }
    }

    /// Marks everything that `add` adds as made by this part.
    ///
    /// # Errors
    /// The errors of `add`.
    pub(crate) fn in_part<T>(
        &mut self,
        part: &str,
        add: impl FnOnce(&mut ExperimentResult) -> LabResult<T>,
    ) -> LabResult<T> {
        let before = self.lengths();
        let added = add(self)?;
        let marked = |own: &mut String| part.clone_into(own);
        self.series[before.series..].iter_mut().for_each(|it| marked(&mut it.part));
        self.figures[before.figures..].iter_mut().for_each(|it| marked(&mut it.part));
        self.tables[before.tables..].iter_mut().for_each(|it| marked(&mut it.part));
        self.claims[before.claims..].iter_mut().for_each(|it| marked(&mut it.part));
        self.notes[before.notes..].iter_mut().for_each(|it| marked(&mut it.part));
        Ok(added)
    }

    /// The run of a single part, as the file remembers it.
    pub(crate) fn part_run(&self) -> PartRun {
        PartRun {
            commit: self.commit.clone(),
            command: self.command.clone(),
            started_ms: self.started_ms,
            seconds: self.seconds,
            machine: self.machine.clone(),
            conditions: self.conditions.clone(),
            parameters: self.parameters.clone(),
        }
    }

    /// The runs that this result holds, by part. The run of all parts has an empty name, and is left out if
    /// there were runs of single parts only.
    pub(crate) fn named_runs(&self) -> Vec<(String, PartRun)> {
        let whole = self.part_run();
        let is_one_part = self.parts.values().any(|part| part.command == whole.command);
        let whole = (!is_one_part).then(|| (String::new(), whole));
        let parts = self.parts.iter().map(|(name, run)| (name.clone(), run.clone()));
        whole.into_iter().chain(parts).collect()
    }

    /// The runs of [`named_runs`](Self::named_runs).
    pub(crate) fn runs(&self) -> Vec<PartRun> {
        self.named_runs().into_iter().map(|(_, run)| run).collect()
    }

    /// This result without any measurement. A part is merged into this result if there is no file
    /// yet.
    pub(crate) fn without_findings(&self) -> ExperimentResult {
        let mut empty = self.clone();
        (empty.series, empty.figures, empty.tables) = Default::default();
        (empty.claims, empty.notes) = Default::default();
        empty
    }

    /// Puts the run of one part into the result of earlier runs.
    pub(crate) fn merge_part(&mut self, part: &str, new: ExperimentResult) {
        let run = new.part_run();
        self.parts.insert(part.to_owned(), run);
        merge_series(&mut self.series, part, new.series);
        replace(&mut self.figures, part, new.figures, |it: &Figure| (&it.part, &it.title));
        replace(&mut self.tables, part, new.tables, |it: &Table| (&it.part, &it.title));
        replace(&mut self.claims, part, new.claims, |it: &Claim| (&it.part, &it.claim));
        let has_common = new.notes.iter().any(|note| note.part.is_empty());
        self.notes.retain(|note| note.part != part && !(has_common && note.part.is_empty()));
        self.notes.extend(new.notes);
    }
}

/// Replaces entries of the same part or title by the new ones, in their old position.
fn replace<T>(old: &mut Vec<T>, part: &str, new: Vec<T>, key: impl Fn(&T) -> (&String, &String)) {
    let is_replaced = |it: &T| {
        let (own, title) = key(it);
        own == part || new.iter().any(|new| key(new) == (own, title))
    };
    let at = old.iter().position(is_replaced).unwrap_or(old.len());
    old.retain(|it| !is_replaced(it));
    old.splice(at..at, new);
}

fn merge_series(old: &mut Vec<Series>, part: &str, new: Vec<Series>) {
    old.retain(|it| it.part != part);
    for mut series in new {
        let same = old.iter_mut().find(|it| it.part.is_empty() && it.name == series.name);
        let Some(same) = same.filter(|_| series.part.is_empty()) else {
            old.push(series);
            continue;
        };
        let is_measured = |x: f64| series.points.iter().any(|point| point[0] == x);
        let mut all = with_spreads(same);
        all.retain(|(point, _)| !is_measured(point[0]));
        all.extend(with_spreads(&series));
        all.sort_by(|(a, _), (b, _)| a[0].total_cmp(&b[0]));
        let has_spreads = !(same.spreads.is_empty() && series.spreads.is_empty());
        (series.points, series.spreads) = all.into_iter().unzip();
        if !has_spreads {
            series.spreads.clear();
        }
        *same = series;
    }
}

/// The points, each with its least and greatest value. A single value is both.
fn with_spreads(series: &Series) -> Vec<([f64; 2], [f64; 2])> {
    let spread = |at: usize, y: f64| series.spreads.get(at).copied().unwrap_or([y, y]);
    series.points.iter().enumerate().map(|(at, point)| (*point, spread(at, point[1]))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::result::Bound;
    use crate::report::tests::sample;

    fn add(result: &mut ExperimentResult, measured: f64) -> LabResult<()> {
        let claim = Claim::new(format!("measured {measured}"), "s", Bound::AtMost(9.0));
        result.claims.push(claim.measured(measured));
        result.tables.push(Table { title: format!("{measured}"), ..Table::default() });
        let series = Series { points: vec![[1.0, measured]], ..Series::default() };
        result.series.push(series);
        result.note(format!("note {measured}"));
        Ok(())
    }

    fn run(parts: &[&str], measured: f64) -> LabResult<ExperimentResult> {
        let mut result = ExperimentResult { started_ms: measured as u64, ..sample() };
        (result.claims, result.tables, result.notes) = Default::default();
        (result.series, result.figures) = Default::default();
        for part in parts {
            result.in_part(part, |result| add(result, measured))?;
        }
        Ok(result)
    }

    #[test]
    fn a_part_replaces_what_it_made_and_nothing_else() -> LabResult<()> {
        let mut whole = run(&["a", "b", "c"], 1.0)?;
        whole.merge_part("b", run(&["b"], 2.0)?);
        let said: Vec<(&str, Option<f64>)> =
            whole.claims.iter().map(|it| (&*it.part, it.measured)).collect();
        assert_eq!(said, [("a", Some(1.0)), ("b", Some(2.0)), ("c", Some(1.0))]);
        let titles: Vec<&str> = whole.tables.iter().map(|it| &*it.title).collect();
        assert_eq!(titles, ["1", "2", "1"]);
        assert_eq!((whole.series.len(), whole.notes.len()), (3, 3));
        assert_eq!((whole.started_ms, whole.parts["b"].started_ms), (1, 2));
        Ok(())
    }

    #[test]
    fn what_belongs_to_all_parts_keeps_the_points_of_the_others() -> LabResult<()> {
        let curve =
            |points: Vec<[f64; 2]>| Series { name: "n".into(), points, ..Series::default() };
        let mut whole = run(&[], 1.0)?;
        whole.series.push(curve(vec![[5.0, 1.0], [20.0, 1.0]]));
        whole.note("common, old");
        let mut part = run(&[], 2.0)?;
        let spreads = vec![[1.5, 2.5], [1.8, 2.2]];
        part.series.push(Series { spreads, ..curve(vec![[10.0, 2.0], [20.0, 2.0]]) });
        part.note("common, new");
        whole.merge_part("10", part);
        assert_eq!(whole.series[0].points, [[5.0, 1.0], [10.0, 2.0], [20.0, 2.0]]);
        assert_eq!(whole.series[0].spreads, [[1.0, 1.0], [1.5, 2.5], [1.8, 2.2]]);
        assert_eq!((whole.series.len(), whole.notes.len()), (1, 1));
        Ok(())
    }
}
