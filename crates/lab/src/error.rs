//! Errors of the lab. Each names the thing concerned and the cure.

use std::path::PathBuf;

/// Result of a lab operation.
pub type LabResult<T> = Result<T, LabError>;

/// Why an experiment, a report or a command of the lab could not go on.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A file of the lab itself: results, figures, `/proc`.
    #[error("{op} {}: {source}", path.display())]
    File {
        /// The operation, as a verb phrase: `"read"`, `"create"`.
        op: &'static str,
        /// The file or directory concerned.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: std::io::Error,
    },
    /// A result file that cannot be understood.
    #[error(
        "{} is not a result file of this lab ({reason}); run the experiment again or remove the file",
        path.display()
    )]
    BadResult {
        /// The file.
        path: PathBuf,
        /// The reason why the file cannot be understood.
        reason: String,
    },
    /// There is no experiment of that name. `stillpoint lab list` shows all names.
    #[error(transparent)]
    UnknownExperiment(#[from] stillpoint_format::registry::UnknownName),
    /// The experiment has no part of that name.
    #[error("{id} has no part {part}; parts: {known}")]
    UnknownPart {
        /// The experiment.
        id: &'static str,
        /// The part as given.
        part: String,
        /// The experiment's parts, separated by commas.
        known: String,
    },
    /// The part cannot be merged: the file holds a quick run and the part was measured, or the
    /// reverse.
    #[error(
        "{} holds {of_file}, and {of_run} of a part does not go into it; choose another --out or \
         run the whole experiment",
        path.display()
    )]
    OtherMode {
        /// The result file.
        path: PathBuf,
        /// The kind of run in the file: quick or measured.
        of_file: &'static str,
        /// The kind of run that was asked for.
        of_run: &'static str,
    },
    /// A child process that did not start, did not answer or ended too early.
    #[error("{command}: {reason}")]
    Process {
        /// The command line.
        command: String,
        /// The event, with the end of the child's output if there is any.
        reason: String,
    },
    /// A connection to a server under test.
    #[error("server at {address}: {reason}")]
    Server {
        /// `host:port`.
        address: String,
        /// What happened.
        reason: String,
    },
    /// An engine under test refused a call.
    #[error("engine {engine}: {reason}")]
    Engine {
        /// The engine or scheme, by its registered name.
        engine: String,
        /// What happened.
        reason: String,
    },
    /// The machine cannot run this experiment.
    #[error("{what}; {cure}")]
    Missing {
        /// The missing thing.
        what: String,
        /// The cure.
        cure: String,
    },
}

impl LabError {
    /// Whether an engine or the store had no memory left for a call.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        matches!(self, LabError::Engine { reason, .. } if reason.contains("out of memory"))
    }

    pub(crate) fn server(address: impl ToString, reason: impl ToString) -> Self {
        LabError::Server { address: address.to_string(), reason: reason.to_string() }
    }

    pub(crate) fn process(command: impl ToString, reason: impl ToString) -> Self {
        LabError::Process { command: command.to_string(), reason: reason.to_string() }
    }
}
