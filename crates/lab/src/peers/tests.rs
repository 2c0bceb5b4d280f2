use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::*;

/// A map behind one lock.
#[derive(Default)]
struct Toy {
    values: Mutex<BTreeMap<[u8; 8], Vec<u8>>>,
    /// Whether each tenth update is lost.
    loses: bool,
}

struct ToySession<'a>(&'a Toy, u64);

impl Embedded for Toy {
    fn session(&self) -> Result<Box<dyn EmbeddedSession + '_>, String> {
        Ok(Box::new(ToySession(self, 0)))
    }
}

impl EmbeddedSession for ToySession<'_> {
    fn load(&mut self, records: &[([u8; 8], Vec<u8>)]) -> Result<(), String> {
        self.0.values.lock().extend(records.iter().cloned());
        Ok(())
    }

    fn update(
        &mut self,
        keys: &[[u8; 8]],
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), String> {
        self.1 += 1;
        let mut values = self.0.values.lock();
        for key in keys {
            let value = values.get_mut(key).ok_or("no value")?;
            if !(self.0.loses && self.1.is_multiple_of(10)) {
                change(value);
            }
        }
        Ok(())
    }

    fn read(&mut self, key: [u8; 8], see: &mut dyn FnMut(&[u8])) -> Result<(), String> {
        self.0.values.lock().get(&key).map(|value| see(value)).ok_or("no value".to_owned())
    }
}

fn args(out: &Path) -> PeersArgs {
    let out = out.to_owned();
    PeersArgs { records: 500, seconds: 0.1, runs: 1, quick: true, only: Vec::new(), out }
}

fn row(open: Open) -> Row {
    Row { name: "toy".into(), open }
}

#[test]
fn each_store_is_measured_and_claimed() -> LabResult<()> {
    let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
    let mut said = Vec::new();
    let rows = [row(|_| Ok(Box::new(Toy::default())))];
    run(&rows, &args(dir.path()), "abc", &mut said)?;
    let result = ExperimentResult::load(&dir.path().join("peers.json"))?;
    // The bare table, and the toy at both durabilities.
    assert_eq!(result.claims.len(), 3);
    assert!(result.claims.iter().all(|claim| claim.measured.is_some_and(|it| it > 0.0)));
    // CALC at two durabilities and three mixes; the bare table has CALC alone.
    assert_eq!((result.figures.len(), result.tables[0].rows.len()), (5, 11));
    assert!(dir.path().join("report.html").is_file());
    Ok(())
}

#[test]
fn a_store_that_loses_updates_is_found() -> LabResult<()> {
    let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
    let rows = [row(|_| Ok(Box::new(Toy { loses: true, ..Toy::default() })))];
    let error = run(&rows, &args(dir.path()), "abc", &mut Vec::new()).expect_err("it loses");
    assert!(error.to_string().contains("have committed"), "{error}");
    Ok(())
}

#[test]
fn some_stores_may_be_chosen() -> LabResult<()> {
    let dir = tempfile::tempdir().map_err(|e| LabError::process("tempdir", e))?;
    let rows = [row(|_| Err("is never opened".to_owned()))];
    let only = vec!["another".to_owned()];
    run(&rows, &PeersArgs { only, ..args(dir.path()) }, "abc", &mut Vec::new())
}
