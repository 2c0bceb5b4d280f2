/* WiredTiger's B-tree with snapshot isolation and its log. */
#include "peer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wiredtiger.h>

#define TABLE "table:records"

struct session {
    WT_SESSION *session;
    WT_CURSOR *cursor;
};

static int failed(int code, char *why) {
    if (code == 0) return PEER_OK;
    if (code == WT_NOTFOUND) return PEER_ABSENT;
    if (code == WT_ROLLBACK) return PEER_CONFLICT;
    snprintf(why, PEER_WHY_BYTES, "%s", wiredtiger_strerror(code));
    return PEER_FAILED;
}

static void *open_store(const char *dir, int is_durable, uint64_t cache_bytes, char *why) {
    char config[256];
    snprintf(config, sizeof config,
             "create,cache_size=%" PRIu64 "MB,log=(enabled=true),"
             "transaction_sync=(enabled=%s,method=fsync),checkpoint=(wait=30)",
             cache_bytes / 1000000 + 1, is_durable ? "true" : "false");
    WT_CONNECTION *connection;
    if (failed(wiredtiger_open(dir, NULL, config, &connection), why) != PEER_OK) return NULL;
    WT_SESSION *session;
    int code = connection->open_session(connection, NULL, NULL, &session);
    if (code == 0) {
        code = session->create(session, TABLE, "key_format=u,value_format=u");
        session->close(session, NULL);
    }
    if (failed(code, why) != PEER_OK) {
        connection->close(connection, NULL);
        return NULL;
    }
    return connection;
}

static void close_store(void *store) {
    WT_CONNECTION *connection = store;
    connection->close(connection, NULL);
}

static void *begin_session(void *store, char *why) {
    WT_CONNECTION *connection = store;
    struct session *session = calloc(1, sizeof *session);
    if (session == NULL) {
        snprintf(why, PEER_WHY_BYTES, "no memory");
        return NULL;
    }
    int code = connection->open_session(connection, NULL, "isolation=snapshot", &session->session);
    if (code == 0) {
        code = session->session->open_cursor(session->session, TABLE, NULL, NULL, &session->cursor);
    }
    if (failed(code, why) != PEER_OK) {
        free(session);
        return NULL;
    }
    return session;
}

static void end_session(void *of) {
    struct session *session = of;
    session->session->close(session->session, NULL);
    free(session);
}

static int begin(void *of, char *why) {
    struct session *session = of;
    return failed(session->session->begin_transaction(session->session, NULL), why);
}

static void set_key(WT_CURSOR *cursor, const void *key, size_t key_bytes) {
    WT_ITEM item;
    memset(&item, 0, sizeof item);
    item.data = key;
    item.size = key_bytes;
    cursor->set_key(cursor, &item);
}

static int get(void *of, const void *key, size_t key_bytes, const void **value,
               size_t *value_bytes, char *why) {
    WT_CURSOR *cursor = ((struct session *)of)->cursor;
    WT_ITEM item;
    set_key(cursor, key, key_bytes);
    int code = cursor->search(cursor);
    if (code == 0) code = cursor->get_value(cursor, &item);
    if (code == 0) {
        *value = item.data;
        *value_bytes = item.size;
    }
    return failed(code, why);
}

static int put(void *of, const void *key, size_t key_bytes, const void *value,
               size_t value_bytes, char *why) {
    WT_CURSOR *cursor = ((struct session *)of)->cursor;
    WT_ITEM item;
    memset(&item, 0, sizeof item);
    item.data = value;
    item.size = value_bytes;
    set_key(cursor, key, key_bytes);
    cursor->set_value(cursor, &item);
    int code = cursor->insert(cursor);
    return failed(code, why);
}

static int commit(void *of, char *why) {
    struct session *session = of;
    session->cursor->reset(session->cursor);
    return failed(session->session->commit_transaction(session->session, NULL), why);
}

static int rollback(void *of, char *why) {
    struct session *session = of;
    session->cursor->reset(session->cursor);
    return failed(session->session->rollback_transaction(session->session, NULL), why);
}

const struct peer_functions peer_wiredtiger = {
    open_store, close_store, begin_session, end_session, begin, get, put, commit, rollback,
};
