use std::path::PathBuf;

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    #[error(transparent)]
    Engine(#[from] stillpoint::Error),
    #[error(transparent)]
    Server(#[from] stillpoint_server::ServerError),
    #[error("{0}")]
    Lab(String),
    #[error("{}: {reason}", file.display())]
    ConfigFile { file: PathBuf, reason: String },
    #[error("--{option}: {reason}")]
    Option { option: &'static str, reason: String },
    #[error(
        "the limit of open files is {limit}, and the store needs {needed} beside one for each client: raise the \
         limit (ulimit -n, or LimitNOFILE of a service)"
    )]
    OpenFiles { limit: u64, needed: u64 },
    #[error(transparent)]
    Dump(#[from] crate::dump::DumpError),
    #[error("{source}; nothing was loaded")]
    NothingLoaded { source: Box<CliError> },
    #[error("writing the output: {0}")]
    Output(#[from] std::io::Error),
    #[error("{0}")]
    Signals(std::io::Error),
}

impl CliError {
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Self::Engine(error) => error.is_damage(),
            Self::NothingLoaded { source } => source.is_damage(),
            _ => false,
        }
    }

    pub(crate) fn is_broken_pipe(&self) -> bool {
        let broken = |error: &std::io::Error| error.kind() == std::io::ErrorKind::BrokenPipe;
        match self {
            Self::Output(error) | Self::Engine(stillpoint::Error::Output(error)) => broken(error),
            _ => false,
        }
    }
}
