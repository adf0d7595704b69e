// The C interface of KEY_VALUE tables, for programs that have their own optimizer. Such programs
// read, assign, insert and erase whole rows on the servers of a running job. capi/tandem.h includes
// this header; docs/STORE.md describes KEY_VALUE tables and their guarantees.
//
// A row has tandem_store_row_floats floats: `dim` and then `extra_floats`, as the job says.
// Programs decide what they mean. Keys are any 64-bit numbers. A row exists from its first write
// until it is erased. A call takes any number of keys and waits until all of them are done; from
// then on every program sees the result. Several programs may write at the same time: the later of
// two writes to a row wins (by arrival), each write counts once, and a row is never a mixture of
// two writes.
//
// Return values: as in capi/tandem.h: 0; 1 or 0 for functions that answer a question; -1 for an
// error with its text in tandem_error(): the job has ended or failed, a server has not answered in
// time, or invalid arguments. After an error in the middle of a write some of its rows may have
// been written; the call may be repeated.
//
// Threads: any number at the same time for a store; one at a time for a scan. The store has threads
// of its own. A process that the program forks must not use the store.
//
// Memory: each call reads or writes the memory that it is given before it returns; the memory stays
// the caller's.
#ifndef TANDEM_CAPI_TANDEM_STORE_H_
#define TANDEM_CAPI_TANDEM_STORE_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tandem_store tandem_store;
typedef struct tandem_scan tandem_scan;

// Opens table `table` of the job whose scheduler listens at `scheduler` (tcp://HOST:PORT), as soon
// as the job has begun. Any process may do so, also a worker of the job. timeout_ms: how long this
// call, and each later one, may wait.
int tandem_store_open(const char* scheduler, const char* table, int64_t timeout_ms,
                      tandem_store** store);
int32_t tandem_store_dim(const tandem_store* store);
int32_t tandem_store_extra_floats(const tandem_store* store);
int32_t tandem_store_row_floats(const tandem_store* store);  // dim + extra_floats

// rows: [count, row_floats]; absent rows are not touched. found: [count], 1: the row exists, 0: it
// does not; may be NULL.
int tandem_store_read(tandem_store* store, int64_t count, const int64_t* keys, float* rows,
                      uint8_t* found);
// rows: [count, row_floats]. If a key repeats, its last row wins.
int tandem_store_assign(tandem_store* store, int64_t count, const int64_t* keys, const float* rows);
// Like assign, but only for absent keys; existing rows stay as they are. If a key repeats, its
// first row wins. inserted: [count], 1: the key was absent; may be NULL.
int tandem_store_insert(tandem_store* store, int64_t count, const int64_t* keys, const float* rows,
                        uint8_t* inserted);
// erased: [count], 1: there was a row; may be NULL.
int tandem_store_erase(tandem_store* store, int64_t count, const int64_t* keys, uint8_t* erased);

// Reads all rows of the table, some at a time, while others may write. A row that exists from the
// first tandem_scan_next to the last one comes exactly once, in a state that it had in between. A
// row that is created or erased meanwhile comes once or not at all. `store` must outlive the scan.
int tandem_scan_open(tandem_store* store, tandem_scan** scan);
// Reads at most `most` rows: keys [most], rows [most, row_floats]; *count is their number. 1: there
// are some; 0: the end.
int tandem_scan_next(tandem_scan* scan, int64_t most, int64_t* keys, float* rows, int64_t* count);
void tandem_scan_free(tandem_scan* scan);

// Closes the store. No other call may be running, and all scans must be freed before.
void tandem_store_free(tandem_store* store);

// ---- rows of tables that the job trains ----

typedef struct tandem_reader tandem_reader;

// Joins the job of this scheduler as a reader. A reader changes nothing, and nobody waits for it.
int tandem_reader_open(const char* scheduler, int64_t timeout_ms, tandem_reader** reader);
// Reads the rows of `count` ids as they are at the moment, float [count, dim]. A row that does not
// exist yet has its initial value.
int tandem_reader_read(tandem_reader* reader, const char* table, int64_t count, const int64_t* ids,
                       float* rows, int64_t timeout_ms);
void tandem_reader_free(tandem_reader* reader);

#ifdef __cplusplus
}
#endif

#endif  // TANDEM_CAPI_TANDEM_STORE_H_
