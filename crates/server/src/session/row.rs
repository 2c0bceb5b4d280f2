//! How a family writes the rows of its commands.

use super::spec::{
    DeclareFn, Flags, FurtherKeysFn, Group, Handler, KeySpec, LoadingFn, Secrets, Spec, WeighFn,
};

pub(crate) use super::spec::Handler::{Container, Exec, Keyed, Pure, Store};

/// Writes.
pub(crate) const W: Flags = Flags::WRITE;
/// Reads.
pub(crate) const R: Flags = Flags::READONLY;
/// Takes constant or logarithmic time.
pub(crate) const F: Flags = Flags::FAST;
/// Refused at full memory.
pub(crate) const M: Flags = Flags::DENYOOM;
/// For administrators.
pub(crate) const ADM: Flags = Flags::ADMIN.or(Flags::NOSCRIPT);
/// Allowed in any state of the server.
pub(crate) const ANY: Flags = Flags::LOADING.or(Flags::STALE);
/// For tests.
pub(crate) const TEST: Flags = ADM.or(ANY).or(Flags::PROTECTED);
pub(crate) const WF: Flags = W.or(F);
pub(crate) const WM: Flags = W.or(M);
pub(crate) const WMF: Flags = W.or(M).or(F);
pub(crate) const RF: Flags = R.or(F);
/// Concerns the connection.
pub(crate) const CONN: Flags = ANY.or(Flags::NOSCRIPT);
/// As `CONN`, before authentication too.
pub(crate) const OPEN: Flags = CONN.or(F).or(Flags::NO_AUTH);

pub(crate) const NONE: KeySpec = KeySpec::NONE;
pub(crate) const ONE: KeySpec = KeySpec::ONE;
pub(crate) const TWO: KeySpec = KeySpec::TWO;
pub(crate) const ALL: KeySpec = KeySpec::ALL;
pub(crate) const PAIRS: KeySpec = KeySpec::PAIRS;
pub(crate) const FROM_SECOND: KeySpec = KeySpec::FROM_SECOND;
pub(crate) const TIMED: KeySpec = KeySpec::TIMED;
pub(crate) const COUNTED_THIRD: KeySpec = KeySpec::COUNTED_THIRD;
pub(crate) const COUNTED: KeySpec = KeySpec::COUNTED;

/// Groups with commands of several families.
pub(crate) const GENERIC: Group = Group { name: "generic", category: Some("@keyspace") };
pub(crate) const SERVER: Group = Group { name: "server", category: None };
pub(crate) const CONNECTION: Group = Group { name: "connection", category: Some("@connection") };
pub(crate) const STRING: Group = Group { name: "string", category: Some("@string") };
pub(crate) const LIST: Group = Group { name: "list", category: Some("@list") };
pub(crate) const SET: Group = Group { name: "set", category: Some("@set") };
pub(crate) const SORTED_SET: Group = Group { name: "sorted-set", category: Some("@sortedset") };
pub(crate) const HASH: Group = Group { name: "hash", category: Some("@hash") };

/// A command.
#[expect(clippy::too_many_arguments, reason = "a row has that many columns")]
pub(crate) const fn row(
    name: &'static str,
    arity: i16,
    flags: Flags,
    keys: KeySpec,
    group: Group,
    since: &'static str,
    handler: Handler,
    summary: &'static str,
) -> Spec {
    Spec {
        name,
        parent: "",
        arity,
        flags,
        keys,
        group,
        since,
        summary,
        handler,
        while_loading: None,
        declare: None,
        further_keys: None,
        secrets: Secrets::None,
        weigh: None,
        id: 0,
    }
}

/// A subcommand. The table sets its group from its container.
pub(crate) const fn sub(
    name: &'static str,
    arity: i16,
    flags: Flags,
    since: &'static str,
    handler: Handler,
    summary: &'static str,
) -> Spec {
    row(name, arity, flags, NONE, SERVER, since, handler, summary)
}

/// A subcommand whose first argument is a key.
pub(crate) const fn with_key(mut spec: Spec) -> Spec {
    spec.keys = KeySpec { first: 2, last: 2, step: 1, count_at: 0 };
    spec
}

/// A command whose keys a function declares.
pub(crate) const fn declared_by(mut spec: Spec, declare: DeclareFn) -> Spec {
    spec.declare = Some(declare);
    spec
}

/// A command with keys that its row does not tell.
pub(crate) const fn with_further_keys(mut spec: Spec, further_keys: FurtherKeysFn) -> Spec {
    spec.further_keys = Some(further_keys);
    spec
}

/// A command that may cost much more than its arguments tell.
pub(crate) const fn weighed_by(mut spec: Spec, weigh: WeighFn) -> Spec {
    spec.weigh = Some(weigh);
    spec
}

/// A command that opens and closes the collection of its key, and does nothing else with the key.
pub(crate) const fn closing(mut spec: Spec) -> Spec {
    spec.flags = spec.flags.or(Flags::LEAVES_OPEN);
    spec
}

/// A command that copies the values of its keys.
pub(crate) const fn copying(mut spec: Spec) -> Spec {
    spec.flags = spec.flags.or(Flags::COPIES);
    spec
}

/// A command that reads keys whose names follow from values that it has read.
pub(crate) const fn deriving(mut spec: Spec) -> Spec {
    spec.flags = spec.flags.or(Flags::DERIVES_KEYS);
    spec
}

/// A command that may wait for keys.
pub(crate) const fn blocking(mut spec: Spec) -> Spec {
    spec.flags = spec.flags.or(Flags::BLOCKING).or(Flags::NOSCRIPT);
    spec
}

/// A command with arguments that no log may show.
pub(crate) const fn with_secrets(mut spec: Spec, secrets: Secrets) -> Spec {
    spec.secrets = secrets;
    spec
}

/// A command that a function runs while data is loaded.
pub(crate) const fn while_loading(mut spec: Spec, run: LoadingFn) -> Spec {
    spec.while_loading = Some(run);
    spec
}
