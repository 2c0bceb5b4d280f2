//! The command table: one row per command. What is not in the rows is not a command.

use std::sync::LazyLock;

use super::Handler::{Container, Exec, Keyed, Pure, Store};
use super::{
    Flags, Group, Handler, KeySpec, Secrets, Spec, client, config, connection, docs, expiry, help,
    keys, keyspace, numbers, server, strings, transactions, whole,
};

const W: Flags = Flags::WRITE;
const R: Flags = Flags::READONLY;
const M: Flags = Flags::DENYOOM;
const F: Flags = Flags::FAST;
const ADM: Flags = Flags::ADMIN.or(Flags::NOSCRIPT);
const ANY: Flags = Flags::LOADING.or(Flags::STALE);
const TEST: Flags = ADM.or(ANY).or(Flags::PROTECTED);
const WF: Flags = W.or(F);
const WM: Flags = W.or(M);
const WMF: Flags = W.or(M).or(F);
const RF: Flags = R.or(F);
const CONN: Flags = ANY.or(Flags::NOSCRIPT);
const OPEN: Flags = CONN.or(F).or(Flags::NO_AUTH);

const NONE: KeySpec = KeySpec::NONE;
const ONE: KeySpec = KeySpec::ONE;
const TWO: KeySpec = KeySpec::TWO;
const ALL: KeySpec = KeySpec::ALL;
const PAIRS: KeySpec = KeySpec::PAIRS;
/// The key after a subcommand's name.
const SUB: KeySpec = KeySpec { first: 2, last: 2, step: 1 };

#[expect(clippy::too_many_arguments, reason = "a row has that many columns")]
const fn row(
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
        declare: None,
        secrets: Secrets::None,
        id: 0,
    }
}

/// A row of a container; group and id are set by [`children`].
const fn sub(
    name: &'static str,
    arity: i16,
    flags: Flags,
    since: &'static str,
    handler: Handler,
    summary: &'static str,
) -> Spec {
    row(name, arity, flags, NONE, Group::Server, since, handler, summary)
}

/// Ids of subcommands begin here, with [`SUBS`] for each container.
const FIRST_SUB: u16 = 256;
/// Most subcommands of one container.
const SUBS: u16 = 32;
const CONTAINERS: u16 = 10;

const fn number<const N: usize>(mut rows: [Spec; N]) -> [Spec; N] {
    assert!(N <= FIRST_SUB as usize, "too many commands for their range of ids");
    let mut i = 0;
    while i < N {
        rows[i].id = i as u16;
        i += 1;
    }
    rows
}

const fn children<const N: usize>(
    parent: &'static str,
    container: u16,
    group: Group,
    mut rows: [Spec; N],
) -> [Spec; N] {
    assert!(N <= SUBS as usize && container < CONTAINERS, "too many subcommands for their ids");
    let mut i = 0;
    while i < N {
        rows[i].parent = parent;
        rows[i].group = group;
        rows[i].id = FIRST_SUB + container * SUBS + i as u16;
        i += 1;
    }
    rows
}

const fn with_key(mut spec: Spec) -> Spec {
    spec.keys = SUB;
    spec
}

const fn declared_by(mut spec: Spec, declare: super::DeclareFn) -> Spec {
    spec.declare = Some(declare);
    spec
}

const fn with_secrets(mut spec: Spec, secrets: Secrets) -> Spec {
    spec.secrets = secrets;
    spec
}

const HELP: Spec = sub("help", 2, ANY, "5.0.0", Pure(help), "Lists the subcommands.");

#[rustfmt::skip] // a row is a line
static CLIENT: [Spec; 18] = children("client", 0, Group::Connection, [
    sub("caching", 3, CONN, "6.0.0", Pure(client::caching), "Tracks keys in the next request."),
    sub("getname", 2, CONN, "2.6.9", Pure(client::getname), "Returns the name of the connection."),
    sub("getredir", 2, CONN, "6.0.0", Pure(client::getredir), "Returns the client that invalidations are redirected to."),
    HELP,
    sub("id", 2, CONN, "5.0.0", Pure(client::id), "Returns the id of the connection."),
    sub("info", 2, CONN, "6.2.0", Pure(client::info), "Describes the connection."),
    sub("kill", -3, ADM.or(ANY), "2.4.0", Pure(client::kill), "Closes connections."),
    sub("list", -2, ADM.or(ANY), "2.4.0", Pure(client::list), "Lists the connections."),
    sub("no-evict", 3, ADM.or(ANY), "7.0.0", Pure(client::no_evict), "Exempts the connection from eviction."),
    sub("no-touch", 3, CONN, "7.2.0", Pure(client::no_touch), "Makes reads leave no trace of access."),
    sub("pause", -3, ADM.or(ANY), "3.0.0", Pure(client::pause), "Holds commands back for a while."),
    sub("reply", 3, CONN, "3.2.0", Pure(connection::client_reply), "Chooses which replies are sent."),
    sub("setinfo", 4, CONN, "7.2.0", Pure(client::setinfo), "Names the client library."),
    sub("setname", 3, CONN, "2.6.9", Pure(client::setname), "Names the connection."),
    sub("tracking", -3, CONN, "6.0.0", Pure(client::tracking), "Switches client-side caching."),
    sub("trackinginfo", 2, CONN, "6.2.0", Pure(client::trackinginfo), "Describes client-side caching of the connection."),
    sub("unblock", -3, ADM.or(ANY), "5.0.0", Pure(client::unblock), "Unblocks a client."),
    sub("unpause", 2, ADM.or(ANY), "6.2.0", Pure(client::unpause), "Ends CLIENT PAUSE."),
]);

#[rustfmt::skip] // a row is a line
static COMMAND: [Spec; 7] = children("command", 1, Group::Server, [
    sub("count", 2, ANY, "2.8.13", Pure(docs::count), "Returns the number of commands."),
    sub("docs", -2, ANY, "7.0.0", Pure(docs::docs), "Returns documentation of commands."),
    sub("getkeys", -3, ANY, "2.8.13", Pure(docs::getkeys), "Extracts the key names of a command."),
    sub("getkeysandflags", -3, ANY, "7.0.0", Pure(docs::getkeysandflags), "Extracts the key names of a command and how they are used."),
    HELP,
    sub("info", -2, ANY, "2.8.13", Pure(docs::info), "Describes commands."),
    sub("list", -2, ANY, "7.0.0", Pure(docs::list), "Lists command names."),
]);

#[rustfmt::skip] // a row is a line
static CONFIG: [Spec; 5] = children("config", 2, Group::Server, [
    sub("get", -3, ADM.or(ANY), "2.0.0", Pure(config::get), "Returns parameters."),
    HELP,
    sub("resetstat", 2, ADM.or(ANY), "2.0.0", Pure(config::resetstat), "Resets the statistics."),
    sub("rewrite", 2, ADM.or(ANY), "2.8.0", Pure(config::rewrite), "Writes the parameters to the configuration file."),
    with_secrets(sub("set", -4, ADM.or(ANY), "2.0.0", Pure(config::set), "Changes parameters."), Secrets::After(&[("requirepass", 1), ("masterauth", 1), ("masteruser", 1), ("tls-key-file-pass", 1), ("tls-client-key-file-pass", 1)])),
]);

#[rustfmt::skip] // a row is a line
static OBJECT: [Spec; 5] = children("object", 3, Group::Generic, [
    with_key(sub("encoding", 3, R, "2.2.3", Keyed(keys::object_encoding), "Returns how a value is stored.")),
    with_key(sub("freq", 3, R, "4.0.0", Keyed(keys::object_freq), "Returns the access frequency of a key.")),
    HELP,
    with_key(sub("idletime", 3, R, "2.2.3", Keyed(keys::object_idletime), "Refuses for a key that exists: when it was used is not tracked.")),
    with_key(sub("refcount", 3, R, "2.2.3", Keyed(keys::object_refcount), "Returns the references to a value.")),
]);

#[rustfmt::skip] // a row is a line
static MEMORY: [Spec; 5] = children("memory", 4, Group::Server, [
    sub("doctor", 2, Flags::NONE, "4.0.0", Pure(server::memory_doctor), "Reports on memory."),
    HELP,
    sub("purge", 2, Flags::NONE, "4.0.0", Pure(server::memory_purge), "Asks the allocator to give memory back."),
    sub("stats", 2, Flags::NONE, "4.0.0", Pure(server::memory_stats), "Returns numbers about memory."),
    with_key(sub("usage", -3, R, "4.0.0", Keyed(keys::memory_usage), "Estimates the bytes of a key and its value.")),
]);

#[rustfmt::skip] // a row is a line
static SLOWLOG: [Spec; 4] = children("slowlog", 5, Group::Server, [
    sub("get", -2, ADM.or(ANY), "2.2.12", Pure(server::slowlog_get), "Returns the slowest commands of late."),
    HELP,
    sub("len", 2, ADM.or(ANY), "2.2.12", Pure(server::slowlog_len), "Returns the length of the slow log."),
    sub("reset", 2, ADM.or(ANY), "2.2.12", Pure(server::slowlog_reset), "Empties the slow log."),
]);

#[rustfmt::skip] // a row is a line
static LATENCY: [Spec; 6] = children("latency", 6, Group::Server, [
    sub("doctor", 2, ADM.or(ANY), "2.8.13", Pure(server::latency_doctor), "Reports on latency."),
    HELP,
    sub("histogram", -2, ADM.or(ANY), "7.0.0", Pure(server::latency_histogram), "Returns the distribution of command latencies."),
    sub("history", 3, ADM.or(ANY), "2.8.13", Pure(server::latency_history), "Returns the samples of a latency event."),
    sub("latest", 2, ADM.or(ANY), "2.8.13", Pure(server::latency_latest), "Returns the latest sample of each latency event."),
    sub("reset", -2, ADM.or(ANY), "2.8.13", Pure(server::latency_reset), "Forgets latency events."),
]);

#[rustfmt::skip] // a row is a line
static DEBUG: [Spec; 6] = children("debug", 7, Group::Server, [
    sub("change-repl-id", 2, TEST, "1.0.0", Pure(server::debug_ok), "Does nothing here."),
    HELP,
    sub("jmap", 2, TEST, "1.0.0", Pure(server::debug_ok), "Does nothing here."),
    sub("quicklist-packed-threshold", 3, TEST, "1.0.0", Pure(server::debug_ok), "Does nothing here."),
    sub("set-active-expire", 3, TEST, "1.0.0", Pure(server::debug_active_expire), "Switches the background deletion of expired keys."),
    sub("sleep", 3, TEST, "1.0.0", Pure(server::debug_sleep), "Answers after some seconds."),
]);

#[rustfmt::skip] // a row is a line
static ACL: [Spec; 5] = children("acl", 8, Group::Server, [
    sub("cat", -2, CONN, "6.0.0", Pure(server::acl_cat), "Lists the categories of commands."),
    HELP,
    sub("list", 2, ADM.or(ANY), "6.0.0", Pure(server::acl_list), "Lists the rules of the users."),
    sub("users", 2, ADM.or(ANY), "6.0.0", Pure(server::acl_users), "Lists the users."),
    sub("whoami", 2, CONN, "6.0.0", Pure(server::acl_whoami), "Returns the user of the connection."),
]);

#[rustfmt::skip] // a row is a line
static MODULE: [Spec; 2] = children("module", 9, Group::Server, [
    HELP,
    sub("list", 2, ADM, "4.0.0", Pure(server::empty_array), "Lists the loaded modules."),
]);

#[rustfmt::skip] // a row is a line
static TOP: [Spec; TOP_ROWS] = number([
    row("acl", -2, Flags::NONE, NONE, Group::Server, "6.0.0", Container(&ACL), "Users and their rights."),
    row("append", 3, WMF, ONE, Group::String, "2.0.0", Keyed(strings::append), "Appends to a string, which is created if it is missing."),
    with_secrets(row("auth", -2, OPEN, NONE, Group::Connection, "1.0.0", Pure(connection::auth), "Authenticates the connection."), Secrets::From(1)),
    row("bgrewriteaof", 1, ADM, NONE, Group::Server, "1.0.0", Pure(server::bgrewriteaof), "Starts a checkpoint, which frees the log before it."),
    row("bgsave", -1, ADM, NONE, Group::Server, "1.0.0", Pure(server::bgsave), "Starts a checkpoint."),
    row("client", -2, Flags::NONE, NONE, Group::Connection, "2.4.0", Container(&CLIENT), "Connections."),
    declared_by(row("copy", -3, WM, TWO, Group::Generic, "6.2.0", Keyed(keys::copy), "Copies a key's value to another key."), keys::declare_copy),
    row("command", -1, ANY, NONE, Group::Server, "2.8.13", Container(&COMMAND), "Describes the commands."),
    row("config", -2, Flags::NONE, NONE, Group::Server, "2.0.0", Container(&CONFIG), "Parameters."),
    row("dbsize", 1, RF, NONE, Group::Server, "1.0.0", Store(keyspace::dbsize, whole::DBSIZE), "Returns the number of keys in the database."),
    row("debug", -2, ADM.or(ANY), NONE, Group::Server, "1.0.0", Container(&DEBUG), "For tests."),
    row("decr", 2, WMF, ONE, Group::String, "1.0.0", Keyed(numbers::decr), "Subtracts one from an integer, which is 0 if it is missing."),
    row("decrby", 3, WMF, ONE, Group::String, "1.0.0", Keyed(numbers::decrby), "Subtracts from an integer, which is 0 if it is missing."),
    row("del", -2, W, ALL, Group::Generic, "1.0.0", Keyed(keys::del), "Deletes keys."),
    row("discard", 1, CONN.or(F).or(Flags::IN_MULTI), NONE, Group::Transactions, "2.0.0", Pure(transactions::discard), "Drops a transaction."),
    row("echo", 2, ANY.or(F), NONE, Group::Connection, "1.0.0", Pure(connection::echo), "Returns the given string."),
    row("exec", 1, CONN.or(Flags::IN_MULTI).or(Flags::SKIP_SLOWLOG), NONE, Group::Transactions, "1.2.0", Exec, "Runs the commands of a transaction."),
    row("exists", -2, RF, ALL, Group::Generic, "1.0.0", Keyed(keys::exists), "Counts which of the keys exist."),
    row("expire", -3, WF, ONE, Group::Generic, "1.0.0", Keyed(expiry::expire), "Sets the expiry of a key in seconds."),
    row("expireat", -3, WF, ONE, Group::Generic, "1.2.0", Keyed(expiry::expireat), "Sets the expiry of a key as a Unix time in seconds."),
    row("expiretime", 2, RF, ONE, Group::Generic, "7.0.0", Keyed(expiry::expiretime), "Returns the expiry of a key as a Unix time in seconds."),
    row("flushall", -1, W, NONE, Group::Server, "1.0.0", Store(keyspace::flushall, whole::FLUSHALL), "Deletes all keys of all databases."),
    row("flushdb", -1, W, NONE, Group::Server, "1.0.0", Store(keyspace::flushdb, whole::FLUSHDB), "Deletes all keys of the database."),
    row("get", 2, RF, ONE, Group::String, "1.0.0", Keyed(strings::get), "Returns the string at a key."),
    row("getdel", 2, WF, ONE, Group::String, "6.2.0", Keyed(strings::getdel), "Returns the string at a key and deletes the key."),
    row("getex", -2, WF, ONE, Group::String, "6.2.0", Keyed(strings::getex), "Returns the string at a key and changes its expiry."),
    row("getrange", 4, R, ONE, Group::String, "2.4.0", Keyed(strings::getrange), "Returns part of the string at a key."),
    row("getset", 3, WMF, ONE, Group::String, "1.0.0", Keyed(strings::getset), "Sets a string and returns the old one."),
    with_secrets(row("hello", -1, OPEN, NONE, Group::Connection, "6.0.0", Pure(connection::hello), "Chooses the protocol version and authenticates."), Secrets::After(&[("auth", 2)])),
    row("incr", 2, WMF, ONE, Group::String, "1.0.0", Keyed(numbers::incr), "Adds one to an integer, which is 0 if it is missing."),
    row("incrby", 3, WMF, ONE, Group::String, "1.0.0", Keyed(numbers::incrby), "Adds to an integer, which is 0 if it is missing."),
    row("incrbyfloat", 3, WMF, ONE, Group::String, "2.6.0", Keyed(numbers::incrbyfloat), "Adds to a number, which is 0 if it is missing."),
    row("info", -1, ANY, NONE, Group::Server, "1.0.0", Pure(server::info), "Returns numbers about the server."),
    row("keys", 2, R, NONE, Group::Generic, "1.0.0", Store(keyspace::keys, whole::KEYS), "Returns the keys that match a pattern."),
    row("lastsave", 1, ANY.or(F), NONE, Group::Server, "1.0.0", Pure(server::lastsave), "Returns the Unix time of the last checkpoint."),
    row("latency", -2, Flags::NONE, NONE, Group::Server, "2.8.13", Container(&LATENCY), "Latency."),
    row("lcs", -3, R, TWO, Group::String, "7.0.0", Keyed(strings::lcs), "Finds the longest common subsequence of two strings."),
    row("lolwut", -1, RF, NONE, Group::Server, "5.0.0", Pure(server::lolwut), "Shows the version."),
    row("memory", -2, Flags::NONE, NONE, Group::Server, "4.0.0", Container(&MEMORY), "Memory."),
    row("mget", -2, RF, ALL, Group::String, "1.0.0", Keyed(strings::mget), "Returns the strings at several keys."),
    row("module", -2, Flags::NONE, NONE, Group::Server, "4.0.0", Container(&MODULE), "Modules."),
    declared_by(row("move", 3, WF, ONE, Group::Generic, "1.0.0", Keyed(keys::move_key), "Moves a key to another database."), keys::declare_move),
    row("mset", -3, WM, PAIRS, Group::String, "1.0.1", Keyed(strings::mset), "Sets several strings at once."),
    row("msetnx", -3, WM, PAIRS, Group::String, "1.0.1", Keyed(strings::msetnx), "Sets several strings at once if none of the keys exists."),
    row("multi", 1, CONN.or(F).or(Flags::IN_MULTI), NONE, Group::Transactions, "1.2.0", Pure(transactions::multi), "Begins a transaction."),
    row("object", -2, Flags::NONE, NONE, Group::Generic, "2.2.3", Container(&OBJECT), "How values are kept."),
    row("persist", 2, WF, ONE, Group::Generic, "2.2.0", Keyed(expiry::persist), "Takes the expiry off a key."),
    row("pexpire", -3, WF, ONE, Group::Generic, "2.6.0", Keyed(expiry::pexpire), "Sets the expiry of a key in milliseconds."),
    row("pexpireat", -3, WF, ONE, Group::Generic, "2.6.0", Keyed(expiry::pexpireat), "Sets the expiry of a key as a Unix time in milliseconds."),
    row("pexpiretime", 2, RF, ONE, Group::Generic, "7.0.0", Keyed(expiry::pexpiretime), "Returns the expiry of a key as a Unix time in milliseconds."),
    row("ping", -1, F, NONE, Group::Connection, "1.0.0", Pure(connection::ping), "Returns PONG or the given string."),
    row("psetex", 4, WM, ONE, Group::String, "2.6.0", Keyed(strings::psetex), "Sets a string and its expiry in milliseconds."),
    row("psubscribe", -2, Flags::PUBSUB.or(CONN), NONE, Group::PubSub, "2.0.0", Pure(connection::unsupported), "Listens to channels by pattern."),
    row("pttl", 2, RF, ONE, Group::Generic, "2.6.0", Keyed(expiry::pttl), "Returns the milliseconds that a key has left."),
    row("publish", 3, Flags::PUBSUB.or(ANY).or(F), NONE, Group::PubSub, "2.0.0", Pure(connection::unsupported), "Sends a message to a channel."),
    row("pubsub", -2, Flags::PUBSUB, NONE, Group::PubSub, "2.8.0", Pure(connection::unsupported), "Publish and subscribe."),
    row("punsubscribe", -1, Flags::PUBSUB.or(CONN), NONE, Group::PubSub, "2.0.0", Pure(connection::unsupported), "Stops listening to channels by pattern."),
    row("quit", -1, OPEN.or(Flags::IN_MULTI), NONE, Group::Connection, "1.0.0", Pure(connection::quit), "Closes the connection."),
    row("randomkey", 1, R, NONE, Group::Generic, "1.0.0", Store(keyspace::randomkey, whole::RANDOMKEY), "Returns a random key."),
    row("rename", 3, W, TWO, Group::Generic, "1.0.0", Keyed(keys::rename), "Renames a key and overwrites the destination."),
    row("renamenx", 3, WF, TWO, Group::Generic, "1.0.0", Keyed(keys::renamenx), "Renames a key if the destination does not exist."),
    row("replicaof", 3, ADM.or(Flags::STALE), NONE, Group::Server, "5.0.0", Pure(server::replicaof), "Makes the server a replica."),
    row("reset", 1, OPEN.or(Flags::IN_MULTI), NONE, Group::Connection, "6.2.0", Pure(connection::reset), "Returns the connection to its first state."),
    row("role", 1, CONN.or(F), NONE, Group::Server, "2.8.12", Pure(server::role), "Returns the role in replication."),
    row("save", 1, ADM.or(Flags::NO_MULTI), NONE, Group::Server, "1.0.0", Pure(server::save), "Makes a checkpoint and waits for it."),
    row("scan", -2, R, NONE, Group::Generic, "2.8.0", Store(keyspace::scan, whole::SCAN), "Walks over the keys, some at a time."),
    row("select", 2, ANY.or(F), NONE, Group::Connection, "1.0.0", Pure(connection::select), "Changes the database."),
    row("set", -3, WM, ONE, Group::String, "1.0.0", Keyed(strings::set), "Sets a string, whatever the key held."),
    row("setex", 4, WM, ONE, Group::String, "2.0.0", Keyed(strings::setex), "Sets a string and its expiry in seconds."),
    row("setnx", 3, WMF, ONE, Group::String, "1.0.0", Keyed(strings::setnx), "Sets a string if the key does not exist."),
    row("setrange", 4, WM, ONE, Group::String, "2.2.0", Keyed(strings::setrange), "Overwrites part of a string."),
    row("shutdown", -1, ADM.or(ANY).or(Flags::NO_MULTI), NONE, Group::Server, "1.0.0", Pure(server::shutdown), "Ends the server."),
    row("slaveof", 3, ADM.or(Flags::STALE), NONE, Group::Server, "1.0.0", Pure(server::replicaof), "Makes the server a replica."),
    row("slowlog", -2, Flags::NONE, NONE, Group::Server, "2.2.12", Container(&SLOWLOG), "Slow commands."),
    row("strlen", 2, RF, ONE, Group::String, "2.2.0", Keyed(strings::strlen), "Returns the length of a string."),
    row("subscribe", -2, Flags::PUBSUB.or(CONN), NONE, Group::PubSub, "2.0.0", Pure(connection::unsupported), "Listens to channels."),
    row("substr", 4, R, ONE, Group::String, "1.0.0", Keyed(strings::getrange), "Returns part of the string at a key."),
    row("time", 1, ANY.or(F), NONE, Group::Server, "2.6.0", Pure(server::time), "Returns the server's time."),
    row("touch", -2, RF, ALL, Group::Generic, "3.2.1", Keyed(keys::exists), "Counts which of the keys exist."),
    row("ttl", 2, RF, ONE, Group::Generic, "1.0.0", Keyed(expiry::ttl), "Returns the seconds that a key has left."),
    row("type", 2, RF, ONE, Group::Generic, "1.0.0", Keyed(keys::type_of), "Returns the type of the value at a key."),
    row("unlink", -2, WF, ALL, Group::Generic, "4.0.0", Keyed(keys::del), "Deletes keys."),
    row("unsubscribe", -1, Flags::PUBSUB.or(CONN), NONE, Group::PubSub, "2.0.0", Pure(connection::unsupported), "Stops listening to channels."),
    row("unwatch", 1, CONN.or(F), NONE, Group::Transactions, "2.2.0", Pure(transactions::unwatch), "Forgets the watched keys."),
    row("wait", 3, Flags::NONE, NONE, Group::Generic, "3.0.0", Pure(server::wait), "Waits for replicas, of which there are none."),
    declared_by(row("watch", -2, CONN.or(F).or(Flags::IN_MULTI), ALL, Group::Transactions, "2.2.0", Keyed(transactions::watch), "Makes the next EXEC fail if a key changes before it."), transactions::declare_watch),
]);

const TOP_ROWS: usize = 86;

/// All rows.
#[derive(Debug)]
pub(crate) struct Commands(());

/// The command table.
pub(crate) static COMMANDS: Commands = Commands(());

impl Commands {
    /// The commands, without subcommands.
    pub(crate) fn top(&self) -> &'static [Spec] {
        &TOP
    }

    /// Every command, then its subcommands.
    pub(crate) fn all(&self) -> impl Iterator<Item = &'static Spec> {
        TOP.iter().flat_map(|spec| std::iter::once(spec).chain(spec.subcommands()))
    }

    /// Ids are below this.
    pub(crate) fn rows(&self) -> usize {
        usize::from(FIRST_SUB + CONTAINERS * SUBS)
    }

    pub(crate) fn by_id(&self, id: u16) -> Option<&'static Spec> {
        self.all().find(|spec| spec.id == id)
    }

    /// The index by name.
    pub(crate) fn lookup(&self) -> &'static Lookup {
        static LOOKUP: LazyLock<Lookup> = LazyLock::new(Lookup::new);
        &LOOKUP
    }
}

/// Places of the index by name; a power of two, some ten times the commands.
const PLACES: usize = 1024;

/// Finds a command by its name in any case: an open hash table of the rows.
#[derive(Debug)]
pub(crate) struct Lookup {
    places: Box<[Option<&'static Spec>; PLACES]>,
}

fn place(name: &[u8]) -> usize {
    let hash = name.iter().fold(name.len() as u64, |hash, byte| {
        (hash ^ u64::from(byte & 0xdf)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    (hash >> 54) as usize
}

impl Lookup {
    fn new() -> Self {
        let mut places = Box::new([None; PLACES]);
        for spec in &TOP {
            let mut at = place(spec.name.as_bytes());
            while places[at].is_some() {
                at = (at + 1) % PLACES;
            }
            places[at] = Some(spec);
        }
        Self { places }
    }

    /// The row of a command.
    #[inline]
    pub(crate) fn find(&self, name: &[u8]) -> Option<&'static Spec> {
        if name.len() > 32 {
            return None;
        }
        let mut at = place(name);
        while let Some(spec) = self.places[at] {
            if spec.name.as_bytes().eq_ignore_ascii_case(name) {
                return Some(spec);
            }
            at = (at + 1) % PLACES;
        }
        None
    }
}
