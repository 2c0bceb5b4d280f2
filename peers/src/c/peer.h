/* What the comparison asks of a store that is written for C. */
#include <stddef.h>
#include <stdint.h>

enum { PEER_OK = 0, PEER_ABSENT = 1, PEER_CONFLICT = 2, PEER_FAILED = 3 };

/* Bytes of a buffer for the words of an error. */
enum { PEER_WHY_BYTES = 256 };

/* The functions of a store. Those of a session are called by one thread at a time. A failed call leaves its
   words in `why`, which has PEER_WHY_BYTES. */
struct peer_functions {
    /* Opens a store in an empty directory. NULL: it failed. */
    void *(*open)(const char *dir, int is_durable, uint64_t cache_bytes, char *why);
    void (*close)(void *store);
    /* Begins a session. NULL: it failed. */
    void *(*session)(void *store, char *why);
    void (*end_session)(void *session);
    int (*begin)(void *session, char *why);
    /* Reads a value, within the session's transaction if it has one. The value stays until the next call. */
    int (*get)(void *session, const void *key, size_t key_bytes, const void **value,
               size_t *value_bytes, char *why);
    int (*put)(void *session, const void *key, size_t key_bytes, const void *value,
               size_t value_bytes, char *why);
    int (*commit)(void *session, char *why);
    int (*rollback)(void *session, char *why);
};
