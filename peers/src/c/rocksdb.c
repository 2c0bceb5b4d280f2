/* RocksDB's transactions with locks: TransactionDB. */
#include "peer.h"

#include <rocksdb/c.h>
#include <stdio.h>
#include <stdlib.h>

struct store {
    rocksdb_transactiondb_t *db;
    rocksdb_options_t *options;
    rocksdb_cache_t *cache;
    rocksdb_writeoptions_t *writes;
    rocksdb_readoptions_t *reads;
    rocksdb_transaction_options_t *transactions;
};

struct session {
    struct store *store;
    rocksdb_transaction_t *transaction;
    int is_open;
    char *value;
};

static int failed(char *error, char *why) {
    if (error == NULL) return PEER_OK;
    snprintf(why, PEER_WHY_BYTES, "%s", error);
    rocksdb_free(error);
    return PEER_FAILED;
}

static void *open_store(const char *dir, int is_durable, uint64_t cache_bytes, char *why) {
    struct store *store = calloc(1, sizeof *store);
    if (store == NULL) return NULL;
    store->options = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(store->options, 1);
    store->cache = rocksdb_cache_create_lru(cache_bytes);
    rocksdb_block_based_table_options_t *table = rocksdb_block_based_options_create();
    rocksdb_block_based_options_set_block_cache(table, store->cache);
    rocksdb_block_based_options_set_filter_policy(table, rocksdb_filterpolicy_create_bloom_full(10));
    rocksdb_options_set_block_based_table_factory(store->options, table);
    store->writes = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_sync(store->writes, is_durable != 0);
    store->reads = rocksdb_readoptions_create();
    store->transactions = rocksdb_transaction_options_create();
    rocksdb_transactiondb_options_t *locks = rocksdb_transactiondb_options_create();
    char *error = NULL;
    store->db = rocksdb_transactiondb_open(store->options, locks, dir, &error);
    rocksdb_transactiondb_options_destroy(locks);
    rocksdb_block_based_options_destroy(table);
    return failed(error, why) == PEER_OK ? store : NULL;
}

static void close_store(void *of) {
    struct store *store = of;
    rocksdb_transactiondb_close(store->db);
    rocksdb_transaction_options_destroy(store->transactions);
    rocksdb_readoptions_destroy(store->reads);
    rocksdb_writeoptions_destroy(store->writes);
    rocksdb_options_destroy(store->options);
    rocksdb_cache_destroy(store->cache);
    free(store);
}

static void *begin_session(void *store, char *why) {
    struct session *session = calloc(1, sizeof *session);
    if (session == NULL) snprintf(why, PEER_WHY_BYTES, "no memory");
    else session->store = store;
    return session;
}

static void end_session(void *of) {
    struct session *session = of;
    rocksdb_free(session->value);
    if (session->transaction != NULL) rocksdb_transaction_destroy(session->transaction);
    free(session);
}

static int begin(void *of, char *why) {
    struct session *session = of;
    struct store *store = session->store;
    (void)why;
    session->transaction =
        rocksdb_transaction_begin(store->db, store->writes, store->transactions, session->transaction);
    session->is_open = 1;
    return PEER_OK;
}

static int get(void *of, const void *key, size_t key_bytes, const void **value,
               size_t *value_bytes, char *why) {
    struct session *session = of;
    struct store *store = session->store;
    rocksdb_free(session->value);
    char *error = NULL;
    session->value = session->is_open
        ? rocksdb_transaction_get_for_update(session->transaction, store->reads, key, key_bytes,
                                             value_bytes, 1, &error)
        : rocksdb_transactiondb_get(store->db, store->reads, key, key_bytes, value_bytes, &error);
    *value = session->value;
    if (error != NULL) return failed(error, why);
    return session->value == NULL ? PEER_ABSENT : PEER_OK;
}

static int put(void *of, const void *key, size_t key_bytes, const void *value,
               size_t value_bytes, char *why) {
    struct session *session = of;
    char *error = NULL;
    rocksdb_transaction_put(session->transaction, key, key_bytes, value, value_bytes, &error);
    return failed(error, why);
}

static int commit(void *of, char *why) {
    struct session *session = of;
    char *error = NULL;
    session->is_open = 0;
    rocksdb_transaction_commit(session->transaction, &error);
    return failed(error, why);
}

static int rollback(void *of, char *why) {
    struct session *session = of;
    char *error = NULL;
    session->is_open = 0;
    rocksdb_transaction_rollback(session->transaction, &error);
    return failed(error, why);
}

const struct peer_functions peer_rocksdb = {
    open_store, close_store, begin_session, end_session, begin, get, put, commit, rollback,
};
