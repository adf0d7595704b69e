// The C interface of a worker whose training loop is a program's. libtandem.so has these functions
// and no others; it needs neither LibTorch nor Python. docs/PYTHON.md shows the Python package over
// it, and capi/example.c a program that trains.
//
// The shape: the program joins a job (data { format: PROGRAM }, model { program {} }), says what
// dense parameters it has, and then asks again and again what is wanted (tandem_next) and does it:
// give a batch, compute the gradients of a step, score a test batch. Steps, policies, read-ahead,
// ends of epochs, evaluations and saves are the worker's.
//
// Returns: 0, or where something is waited for 1 (it has come) or 0 (not yet); -1 is an error,
// whose text tandem_error() has on the same thread until its next call. After an error of
// tandem_next, tandem_wait_joined or tandem_wait_started the job has failed and only tandem_close
// helps; after one of any other function nothing has changed.
//
// Threads: one at a time for a worker, but for tandem_fail and tandem_fail_diverged, which are for
// any. The worker has threads of its own, none of which ever calls back. No signal handler is set.
// Their descriptors are in a table of their own: a process that the program forks has none of them,
// and is no worker.
//
// Memory: what a call is given is read or written before it returns, and is the caller's.
#ifndef TANDEM_CAPI_TANDEM_H_
#define TANDEM_CAPI_TANDEM_H_

#include <math.h>
#include <stdint.h>

#include "capi/tandem_group.h"
#include "capi/tandem_store.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tandem_worker tandem_worker;

// The text of this thread's last error, one line, UTF-8; "" if there was none. Valid until this
// thread calls another function.
const char* tandem_error(void);

// ---- joining ----

typedef struct {
  uint64_t size;           // of this struct; a later version may have more fields, and those that a
                           // smaller one has not are zero
  const char* job;         // job file, as all nodes of the job have it
  const char* const* set;  // "path=value" each, as --set; ends with NULL; may be NULL
  const char* scheduler;   // tcp://HOST:PORT
  int32_t index;           // wanted rank; -1: any free one
  const char* bind;        // where to listen; NULL: tcp://127.0.0.1:*
  const char* advertise;   // host by which others reach this one, if `bind` names all; may be NULL
  int32_t keeps_state;     // 1: the program answers TANDEM_STATE, and its run can go on from a save
} tandem_join_options;

// Registers at the scheduler, in the background. Errors: the job file (with its line), a job that
// is not one of a program, a malformed address.
int tandem_join(const tandem_join_options* options, tandem_worker** worker);
// 1: all nodes are there, and the rank is known.
int tandem_wait_joined(tandem_worker* worker, int64_t timeout_ms);

// Once joined.
int32_t tandem_rank(const tandem_worker* worker);

// Of the job; any time.
int32_t tandem_world_size(const tandem_worker* worker);
int32_t tandem_servers(const tandem_worker* worker);
int32_t tandem_epochs(const tandem_worker* worker);
int32_t tandem_batch(const tandem_worker* worker);       // the most samples a step
int32_t tandem_test_batch(const tandem_worker* worker);  // the most samples of a test batch
int32_t tandem_depth(const tandem_worker* worker);       // steps that are read ahead
uint64_t tandem_seed(const tandem_worker* worker);
int32_t tandem_dense_on_servers(const tandem_worker* worker);   // 1: yes; 0: replicas
int32_t tandem_program_optimizer(const tandem_worker* worker);  // 1: dense.optimizer is PROGRAM
int32_t tandem_tables(const tandem_worker* worker);             // how many
// Of table `table`, from 0. Names are valid as long as the worker; "" and 0: there is no such table.
const char* tandem_table_name(const tandem_worker* worker, int32_t table);
int32_t tandem_table_dim(const tandem_worker* worker, int32_t table);     // floats a row
int32_t tandem_table_fields(const tandem_worker* worker, int32_t table);  // how many
const char* tandem_field_name(const tandem_worker* worker, int32_t table, int32_t field);

// ---- dense parameters ----

// Once, after joining: `count` dense parameters in their order. shapes: the extents of each laid
// end to end, dims[i] of them for parameter i; values: those of all parameters laid end to end. All
// workers have the same names and shapes; where they are replicas, all take the values of rank 0.
int tandem_start(tandem_worker* worker, int32_t count, const char* const* names,
                 const int32_t* dims, const int64_t* shapes, const float* values);
// 1: tandem_dense has its first values (of rank 0, or of the save that the job begins with). The
// first difference between modules of workers ends the job with its name.
int tandem_wait_started(tandem_worker* worker, int64_t timeout_ms);
// All dense parameters laid end to end, `*count` floats, at one place until tandem_free. They
// change between tandem_finish and TANDEM_STEP_DONE. The program may write them at TANDEM_UPDATE,
// and at no other time.
float* tandem_dense(tandem_worker* worker, int64_t* count);

// ---- what is wanted ----

enum {
  TANDEM_NOTHING = 0,     // not yet
  TANDEM_BATCH = 1,       // tandem_give: the next batch of `epoch`, or none
  TANDEM_TEST_BATCH = 2,  // tandem_give: the next batch of the evaluation after `epoch`, or none
  TANDEM_COMPUTE = 3,     // tandem_rows of each table, then tandem_finish
  TANDEM_SCORE = 4,       // tandem_rows of each table, then tandem_score
  TANDEM_UPDATE = 5,      // tandem_mean_gradient, then tandem_updated
  TANDEM_STEP_DONE = 6,   // nothing: tandem_dense has the values for the next step
  TANDEM_END = 7,         // tandem_close
  TANDEM_STATE = 8,       // tandem_save_state
  // With train.keep_best, after epochs that are evaluated: tandem_give: the next batch of the rows by
  // which the model is judged, or none. A TEST_BATCH comes after those that were the best so far.
  TANDEM_VALIDATION_BATCH = 9
};

typedef struct {
  int32_t kind;
  int64_t step;     // COMPUTE, BATCH: which one; STATE: those below it are in the save
  int64_t epoch;    // of what is wanted; STATE: that the worker stands in
  int64_t samples;  // COMPUTE, SCORE: of the batch
  int32_t first;    // TEST_BATCH, VALIDATION_BATCH: 1: an evaluation begins
  int32_t last;     // STATE: 1: of the save at the end of the job
} tandem_want;

// What is wanted now: the same until it is done, but that a BATCH may come to be wanted while a
// COMPUTE or SCORE is being done (STEP_DONE is said once). 1: *want has it; 0: nothing within the
// time. Batches are asked for ahead of their steps, so that rows travel while others are computed,
// and come to COMPUTE in the order in which they were given. A step without samples on this worker
// is not its business, but may bring an UPDATE.
int tandem_next(tandem_worker* worker, int64_t timeout_ms, tandem_want* want);

// The ids of one field of a batch.
typedef struct {
  const int64_t* ids;  // NULL: no ids at all
  int64_t count;       // ids
  int64_t stride;      // from one id to the next, in ids; 1 = one after the other; not 0
  const int64_t*
      offsets;           // [samples + 1]: sample s has ids offsets[s] to offsets[s + 1]; NULL: one
                         // id a sample
  const float* weights;  // [count], factor of each id's row; NULL: 1
} tandem_field;

// BATCH, TEST_BATCH, VALIDATION_BATCH. fields: of all tables in their order, of each its fields in
// their order. A cell is the (weighted) sum of the rows of a sample's ids; of a table with unpooled[table] != 0
// (NULL: none) each id is a cell, in the order of fields and of ids. samples 0: there are no more
// batches (fields are not looked at).
int tandem_give(tandem_worker* worker, int64_t samples, const tandem_field* fields,
                const uint8_t* unpooled);
// COMPUTE, SCORE: the cells of a table: [samples, fields, dim] floats, sample by sample; unpooled:
// [ids, dim]. `floats`: room at `cells`, exactly. Once for a table: rows are given back.
int tandem_rows(tandem_worker* worker, int32_t table, float* cells, int64_t floats);
// COMPUTE: the gradient of the loss, which is a sum over samples once it is multiplied by `scale`
// (1, or the number of samples for a mean). loss_sum: not scaled, for progress lines, or
// TANDEM_NO_LOSS; NaN and other infinite numbers end the job.
// cells[table]: laid out as by tandem_rows, floats[table] of them; NULL: zeros. dense: as
// tandem_dense, or NULL: zeros.
#define TANDEM_NO_LOSS (-HUGE_VAL)  // of <math.h>
int tandem_finish(tandem_worker* worker, double loss_sum, const float* const* cells,
                  const int64_t* floats, const float* dense, float scale);
// UPDATE (dense.optimizer is PROGRAM): the mean gradient over the samples of all workers, as many
// floats as tandem_dense; then the program changes those, the same way on every worker.
int tandem_mean_gradient(tandem_worker* worker, float* gradient);
int tandem_updated(tandem_worker* worker);
// SCORE: a logit and a label (0 or 1) of each sample; both NULL: the batch does not count. After an
// error, such as another label, the batch can be scored again.
int tandem_score(tandem_worker* worker, const float* logits, const float* labels, int64_t samples);

// ---- state of the program ----

// STATE, which is wanted only if the program keeps state: all steps below `step` of the want are done,
// and none above; all workers wait for the answer. bytes: `count` of them, at least one, of the
// program's own making: what it has to find again if the run goes on from this save and what is in no
// parameter or table: its place in its data, the state of its optimizer and of its generators. They are
// a file of the save, under its checksums.
int tandem_save_state(tandem_worker* worker, const void* bytes, int64_t count);
// Once started. 1: the run goes on from a save, in `*epoch` or, if all had trained on all of that, in
// the one behind it; *bytes and *count: what the program of worker `rank` had given to the save, valid
// until tandem_free. 0: the run begins. -1: there is no such worker.
int tandem_saved_state(tandem_worker* worker, int32_t rank, const void** bytes, int64_t* count,
                       int64_t* epoch);

// Once started. 1: the run begins with a save (--init-from, `tandem predict`); *bytes and *count: what the
// program of worker 0 had given to that, valid until tandem_free. 0: with none, with one without such a
// state, or the run goes on.
int tandem_initial_state(tandem_worker* worker, const void** bytes, int64_t* count);

// ---- barriers ----

// Once joined, and not between a BATCH and the end of its epoch, of which workers may have different
// numbers of steps. tandem_wait_barrier: 1: all workers have entered it; the n-th of one worker is
// the n-th of the others; or the job was told to end.
int tandem_enter_barrier(tandem_worker* worker);
int tandem_wait_barrier(tandem_worker* worker, int64_t timeout_ms);

// ---- what the program has to say ----

// Once joined. `count` values, 1 to 100, for a line of metrics.jsonl and, the last of each name, for
// summary.json: of the later `step` and, where several workers report one name of one step, of the
// lowest rank. Names: 1 to 64 visible ASCII characters, 1000 of them in a job: new ones beyond are
// dropped with a warning; values: finite. 1: taken; 0: the scheduler has not
// taken enough of those before; ask again.
int tandem_report(tandem_worker* worker, int32_t count, const char* const* names,
                  const double* values, int64_t step, int64_t timeout_ms);
// Once joined. Asks for a save, as save.every_steps of the job does: made soon, at a step that all
// workers can still reach. The n-th calls of all workers ask for one save. Returns at once; a job that
// saves nothing (--no-save) warns.
int tandem_ask_for_save(tandem_worker* worker, int64_t step);
// The program computes no more steps, and only answers STATE, SCORE and UPDATE until the job, which
// is then told to end, is saved: a COMPUTE that is wanted is left out of what is saved. Only in a job
// of one worker.
int tandem_rest(tandem_worker* worker);
// 1: the job was told to end before its end, by a signal to `tandem run`. Any time, also after
// TANDEM_END.
int32_t tandem_stopped(const tandem_worker* worker);
// Once joined. 1: the job saves models; 0: TANDEM_STATE will not be wanted (--no-save).
int32_t tandem_saves(const tandem_worker* worker);

// ---- leaving ----

// Ends the job for all nodes, which name this worker and `why`; the first reason counts. Any
// thread; returns at once.
void tandem_fail(tandem_worker* worker, const char* why);
// The same where training has diverged: a loss or a gradient is infinite or no number. summary.json
// says so, and a study does not count the run as one that broke.
void tandem_fail_diverged(tandem_worker* worker, const char* why);
// After TANDEM_END, or an error, or in the middle (the job then fails). Waits until the worker's
// threads have ended. -1: how the job failed. tandem_dense stays.
int tandem_close(tandem_worker* worker);
// Closes what is open, and forgets the worker.
void tandem_free(tandem_worker* worker);

// ---- ids as the readers make them ----

// out[i]: the id that a reader of DELIMITED or CRITEO files gives, in a field of this name, to a cell
// with the text that has the bytes offsets[i] to offsets[i + 1] of `texts`, or with the decimal
// number ids[i]: 7 and "7" are one cell. An empty text is a missing value.
int tandem_hash_ids(const char* field, const int64_t* ids, int64_t count, int64_t* out);
int tandem_hash_texts(const char* field, const char* texts, const int64_t* offsets, int64_t count,
                      int64_t* out);
// The same for the reader of NCF files, which hashes the number and not its text. (LIBSVM files are
// not hashed: an id is its number.)
int tandem_hash_numbers(const char* field, const int64_t* numbers, int64_t count, int64_t* out);

// ---- saved models ----

// Reads all of the save in `folder` (one that has a MANIFEST, whose layout is
// server/range_file.md) and checks it. -1: a file that is missing, or not of the length and the
// bytes that the manifest says. Any thread.
int tandem_check_save(const char* folder);

#ifdef __cplusplus
}
#endif

#endif  // TANDEM_CAPI_TANDEM_H_
