//! Parallel jobs that may borrow from their caller.

use crate::thread::{ThreadError, message};

/// Runs each job on a named thread of its own, except the last, which the caller runs. Returns
/// their results in order, once all have ended.
///
/// ```
/// let text = String::from("two words");
/// let jobs: Vec<_> = text.split(' ').map(|word| move || word.len()).collect();
/// assert_eq!(stillpoint_io::in_parallel("count", jobs)?, [3, 5]);
/// # Ok::<(), stillpoint_io::ThreadError>(())
/// ```
///
/// # Errors
/// A thread that cannot be started, or the first panic. All started jobs have ended then.
pub fn in_parallel<T, F>(name: &str, mut jobs: Vec<F>) -> Result<Vec<T>, ThreadError>
where
    T: Send,
    F: FnOnce() -> T + Send,
{
    let Some(own) = jobs.pop() else {
        return Ok(Vec::new());
    };
    std::thread::scope(|scope| {
        let mut threads = Vec::with_capacity(jobs.len());
        for (number, job) in jobs.into_iter().enumerate() {
            let name = format!("{name}-{number}");
            let started = std::thread::Builder::new().name(name.clone()).spawn_scoped(scope, job);
            match started {
                Ok(thread) => threads.push((name, thread)),
                Err(source) => return Err(ThreadError::Start { name, source }),
            }
        }
        let own = own();
        let mut results = Vec::with_capacity(threads.len() + 1);
        for (name, thread) in threads {
            let result = thread.join();
            results.push(
                result.map_err(|payload| ThreadError::Panicked {
                    name,
                    message: message(&*payload),
                })?,
            );
        }
        results.push(own);
        Ok(results)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_and_a_panic_is_an_error() {
        let jobs: Vec<_> = (0..5).map(|n| move || n * n).collect();
        assert_eq!(in_parallel("square", jobs).expect("no panic"), [0, 1, 4, 9, 16]);
        let jobs: Vec<_> = (0..2).map(|n| move || assert!(n != 0, "job {n}")).collect();
        let error = in_parallel("doomed", jobs).expect_err("the first job panics");
        assert_eq!(error.to_string(), "thread doomed-0 panicked: job 0");
    }
}
