//! Workloads, runner, metrics, figures and report. Knows no internals of a scheme.
