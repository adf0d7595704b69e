// This folder, capi/, is the C interface of Tandem. This header is the part for a worker whose
// training loop belongs to the program. libtandem.so exports these functions and no others, and
// needs neither LibTorch nor Python. docs/PYTHON.md describes the Python package on top of it, and
// capi/example.c is a program that trains.
//
// Use: the program joins a job (data { format: PROGRAM }, model { program {} }) and describes its
// dense parameters. Then the program repeats two actions. First it asks for the worker's next
// request (tandem_next). Then it does what is requested: give a batch, compute the gradients of a
// step, or score a test batch. The worker does everything else: steps, policies, prefetch, ends of
// epochs, evaluations and checkpoints.
//
// Return values: 0 for success. Functions that wait return 1 (it has happened) or 0 (not yet). -1
// is an error; tandem_error() returns its text on the same thread until the thread's next call.
// After an error of tandem_next, tandem_wait_joined or tandem_wait_started the job has failed, and
// the program can only call tandem_close. After an error of any other function nothing has changed.
//
// Threads: at most one thread at a time may use a worker. Exceptions are tandem_fail,
// tandem_fail_diverged and tandem_fail_again, which any thread may call at any time. The worker has
// threads of its own, which never call back into the program. No signal handler is set. The
// descriptors of these threads are in a table of their own: a process that the program forks has
// none of them and is not a worker.
//
// Memory: each call reads or writes the memory that it is given before it returns; the memory stays
// the caller's.
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

// The text of this thread's last error: one line, UTF-8; "" if there was none. Valid until this
// thread calls another function.
const char* tandem_error(void);

// ---- joining ----

typedef struct {
  // Size of this struct. A later version may have more fields; fields beyond `size` are zero.
  uint64_t size;
  const char* job;         // job file, the same on all nodes of the job
  const char* const* set;  // each "path=value", as for --set; ends with NULL; may be NULL
  const char* scheduler;   // tcp://HOST:PORT
  int32_t index;           // requested rank; -1: any free rank
  const char* bind;        // where to listen; NULL: tcp://127.0.0.1:*
  const char* advertise;   // host by which others reach this one, if `bind` names all; may be NULL
  int32_t keeps_state;     // 1: the program answers TANDEM_STATE, so its run can resume
} tandem_join_options;

// Registers at the scheduler, in the background. Errors: an invalid job file (with its line), a job
// that is not one of a program, an invalid address.
int tandem_join(const tandem_join_options* options, tandem_worker** worker);
// 1: all nodes are there, and the rank is known.
int tandem_wait_joined(tandem_worker* worker, int64_t timeout_ms);

// Requires: joined.
int32_t tandem_rank(const tandem_worker* worker);

// Facts about the job; any time.
int32_t tandem_world_size(const tandem_worker* worker);
int32_t tandem_servers(const tandem_worker* worker);
int32_t tandem_epochs(const tandem_worker* worker);
int32_t tandem_batch(const tandem_worker* worker);  // largest number of samples of a step
// largest number of samples of a test batch
int32_t tandem_test_batch(const tandem_worker* worker);
int32_t tandem_prefetch_steps(const tandem_worker* worker);  // steps that are prefetched
uint64_t tandem_seed(const tandem_worker* worker);
int32_t tandem_dense_on_servers(const tandem_worker* worker);   // 1: yes; 0: replicas
int32_t tandem_program_optimizer(const tandem_worker* worker);  // 1: dense.optimizer is PROGRAM
int32_t tandem_tables(const tandem_worker* worker);             // number of tables
// Facts about table `table`, counted from 0. Names are valid as long as the worker. "" and 0: there
// is no such table.
const char* tandem_table_name(const tandem_worker* worker, int32_t table);
int32_t tandem_table_dim(const tandem_worker* worker, int32_t table);     // floats in a row
// The learning rate of the table at the last COMPUTE that tandem_next returned, as its schedule
// says. 0: programs write the table's rows, or there is no such table.
double tandem_table_rate(const tandem_worker* worker, int32_t table);
int32_t tandem_table_fields(const tandem_worker* worker, int32_t table);  // number of fields
const char* tandem_field_name(const tandem_worker* worker, int32_t table, int32_t field);

// ---- dense parameters ----

// Call it once, after joining. Describes `count` dense parameters in their order. dims[i] is the
// number of extents of parameter i. shapes: the extents of all parameters, laid end to end. values:
// the values of all parameters, laid end to end. All workers must have the same names and shapes.
// If dense parameters are replicated, all workers take the values of rank 0.
int tandem_start(tandem_worker* worker, int32_t count, const char* const* names,
                 const int32_t* dims, const int64_t* shapes, const float* values);
// 1: tandem_dense has its initial values (from rank 0, or from the checkpoint with which the job
// begins). If modules of workers differ, the job ends with the name of the first difference.
int tandem_wait_started(tandem_worker* worker, int64_t timeout_ms);
// All dense parameters laid end to end, `*count` floats. Their address stays the same until
// tandem_free. The values change between tandem_finish and TANDEM_STEP_DONE. The program may write
// them at TANDEM_UPDATE, and at no other time.
float* tandem_dense(tandem_worker* worker, int64_t* count);

// ---- requests of the worker ----

enum {
  TANDEM_NOTHING = 0,     // nothing yet
  TANDEM_BATCH = 1,       // tandem_give: the next batch of `epoch`, or no samples
  TANDEM_TEST_BATCH = 2,  // tandem_give: next batch of the evaluation after `epoch`, or no samples
  TANDEM_COMPUTE = 3,     // tandem_rows for each table, then tandem_finish or tandem_skip
  TANDEM_SCORE = 4,       // tandem_rows for each table, then tandem_score
  TANDEM_UPDATE = 5,      // tandem_mean_gradient, then tandem_updated
  TANDEM_STEP_DONE = 6,   // no call: tandem_dense has the values for the next step
  TANDEM_END = 7,         // tandem_close
  TANDEM_STATE = 8,       // tandem_checkpoint_state
  // With train.keep_best, after epochs that are evaluated. tandem_give: the next batch of the rows
  // by which the model is judged, or no samples. A TEST_BATCH follows only after epochs that were
  // the best so far.
  TANDEM_VALIDATION_BATCH = 9
};

typedef struct {
  int32_t kind;
  int64_t step;     // COMPUTE, BATCH: the step; STATE: steps below it are in the checkpoint
  int64_t epoch;    // the epoch of the request; STATE: the epoch in which the worker is
  int64_t samples;  // COMPUTE, SCORE: samples of the batch
  int32_t first;    // TEST_BATCH, VALIDATION_BATCH: 1: an evaluation begins
  int32_t last;     // STATE: 1: this is the checkpoint at the end of the job
} tandem_request;

// Returns the open request of the worker. 1: *request has it; 0: none came within timeout_ms. The
// request stays the same until the program has done it, with two exceptions: a BATCH may come
// while the program does a COMPUTE or SCORE, and STEP_DONE is reported once. Batches are requested
// ahead of their steps, so that their rows travel while earlier steps are computed. Batches come to
// COMPUTE in the order in which they were given. The program does not see a step without samples on
// this worker, but such a step may bring an UPDATE.
int tandem_next(tandem_worker* worker, int64_t timeout_ms, tandem_request* request);

// The ids of one field of a batch.
typedef struct {
  const int64_t* ids;  // NULL: the field has no ids
  int64_t count;       // number of ids
  int64_t stride;      // distance from one id to the next, in ids; 1: contiguous; not 0
  // [samples + 1]: sample s has ids offsets[s] to offsets[s + 1]. NULL: one id in each sample.
  const int64_t* offsets;
  const float* weights;  // [count], factor of each id's row; NULL: 1
} tandem_field;

// BATCH, TEST_BATCH, VALIDATION_BATCH. fields: all fields of all tables; tables are in their order,
// and so are the fields of each table. A cell is the (weighted) sum of the rows of a sample's ids.
// If unpooled[table] != 0 (NULL: for no table), each id of the table is a cell, in the order of
// fields and then of ids. samples 0: there are no more batches (fields are ignored).
int tandem_give(tandem_worker* worker, int64_t samples, const tandem_field* fields,
                const uint8_t* unpooled);
// COMPUTE, SCORE. Writes the cells of a table: [samples, fields, dim] floats, sample by sample;
// unpooled: [ids, dim]. `floats` must be exactly the number of floats at `cells`. Call it once for
// each table, because it releases the rows.
int tandem_rows(tandem_worker* worker, int32_t table, float* cells, int64_t floats);
// COMPUTE. Gives the gradients of the step.
// - loss_sum: the sum of the losses, not scaled, for progress lines, or TANDEM_NO_LOSS. NaN and
//   other infinite numbers end the job.
// - scale: the gradients times `scale` must be the gradient of a sum over samples (1, or the number
//   of samples if the loss is a mean).
// - cells[table]: laid out as by tandem_rows, floats[table] of them; NULL: zeros.
// - dense: laid out as tandem_dense; NULL: zeros.
#define TANDEM_NO_LOSS (-HUGE_VAL)  // from <math.h>
int tandem_finish(tandem_worker* worker, double loss_sum, const float* const* cells,
                  const int64_t* floats, const float* dense, float scale);
// COMPUTE, in place of tandem_finish: the program has no gradient of the batch, for example because
// it has overflowed. The step counts as one without samples of this worker, so gradients of other
// workers are not changed by it. summary.json counts it in skipped_steps.
int tandem_skip(tandem_worker* worker);
// Any time: tandem_finish shortens the mean gradient of this worker's samples to this norm, dense
// parameters and merged rows together, before it is sent. Rows of frozen tables are left out. 0: no
// limit. -1: the norm is negative, infinite or NaN.
int tandem_clip_norm(tandem_worker* worker, float norm);
// UPDATE (dense.optimizer is PROGRAM). Writes the mean gradient over the samples of all workers, as
// many floats as tandem_dense. Then the program updates tandem_dense, in the same way on every
// worker, and calls tandem_updated.
int tandem_mean_gradient(tandem_worker* worker, float* gradient);
int tandem_updated(tandem_worker* worker);
// SCORE. Gives a logit and a label (0 or 1) for each sample. If both are NULL, the batch does not
// count. After an error, such as an invalid label, the batch can be scored again.
int tandem_score(tandem_worker* worker, const float* logits, const float* labels, int64_t samples);

// The result of the evaluation whose last batch (of no samples) was given. 1: *json is as the
// `evaluation` lines of metrics.jsonl, the same on all workers, valid until the next call; "" if no
// worker had samples, or before the first evaluation. 0: other workers still evaluate.
int tandem_evaluation(tandem_worker* worker, int64_t timeout_ms, const char** json);
// The name of the number that decides which model is kept (train.keep_best.name), "" if none does.
const char* tandem_deciding_number(const tandem_worker* worker);

// ---- state of the program ----

// STATE, which is requested only if the program keeps state. All steps below the request's `step`
// are done, none above has begun, and all workers wait for the answer. bytes: `count` bytes, at
// least one, in a format of the program. The bytes contain whatever the program needs to resume
// from this checkpoint and has in no parameter or table: its position in its data, the state of its
// optimizer and of its random generators. They become a file of the checkpoint with a checksum.
int tandem_checkpoint_state(tandem_worker* worker, const void* bytes, int64_t count);
// Requires: started. 1: the run resumes from a checkpoint. *epoch is the epoch in which it stood,
// or the next one if all workers had finished that epoch. *bytes and *count are the state that the
// program of worker `rank` gave to the checkpoint, valid until tandem_free. 0: the run is new. -1:
// there is no such worker.
int tandem_resumed_state(tandem_worker* worker, int32_t rank, const void** bytes, int64_t* count,
                         int64_t* epoch);

// Requires: started. 1: the run begins with the values of a checkpoint (--init-from, `tandem
// predict`). *bytes and *count are the state that the program of worker 0 gave to it, valid until
// tandem_free. 0: there is no such checkpoint, it has no such state, or the run resumes.
int tandem_initial_state(tandem_worker* worker, const void** bytes, int64_t* count);

// ---- barriers ----

// Requires: joined, and not between a BATCH and the end of its epoch, because workers may have
// different numbers of steps in an epoch. tandem_wait_barrier returns 1 when all workers have
// entered the barrier, or when the job was told to end. The n-th barrier of one worker is the n-th
// barrier of the others.
int tandem_enter_barrier(tandem_worker* worker);
int tandem_wait_barrier(tandem_worker* worker, int64_t timeout_ms);

enum {
  TANDEM_REDUCE_MEAN = 1,
  TANDEM_REDUCE_SUM = 2,
  TANDEM_REDUCE_MIN = 3,
  TANDEM_REDUCE_MAX = 4
};
// Like tandem_enter_barrier, and reduces `count` values (1 to 100, named as for tandem_report) over
// all workers, which give the same names and the same reduction. weight: of this worker's values in
// a mean, for example the number of its samples; 0: they do not count. The reduced values go to
// metrics.jsonl and summary.json, with the largest `step`. of_evaluation: 1: they become a part of
// the evaluation whose TEST_BATCH or VALIDATION_BATCH is open.
int tandem_enter_reduction(tandem_worker* worker, int32_t count, const char* const* names,
                           const double* values, int32_t reduction, double weight, int64_t step,
                           int32_t of_evaluation);
// Requires: tandem_wait_barrier has returned 1. 1: *value is the reduced value of that name, NaN if
// no worker counts. 0: there is none, because the job was told to end.
int tandem_reduced(tandem_worker* worker, const char* name, double* value);

// ---- reports and requests of the program ----

// Requires: joined. Reports `count` values, 1 to 100, for a line of metrics.jsonl. The last value
// of each name also goes to summary.json: that of the latest `step`, and of the lowest rank if
// several workers report the name for the same step. Names: 1 to 64 visible ASCII characters, at
// most 1000 names in a job; further names are dropped with a warning. A value that is not finite
// becomes null, with a warning. 1: taken; 0: the scheduler has not taken enough of the earlier
// reports yet; call again.
int tandem_report(tandem_worker* worker, int32_t count, const char* const* names,
                  const double* values, int64_t step, int64_t timeout_ms);
// The next record of the job: a line of metrics.jsonl, and before the end the summary, each as
// JSON. 1: *json is valid until the next call; 0: there is none yet. Worker 0 alone gets records.
// The newest 1000 are kept. Also after TANDEM_END.
int tandem_record(tandem_worker* worker, const char** json);
// Requires: joined. Asks for a checkpoint, as checkpoint.every_steps of the job does. The
// checkpoint is made soon. The n-th calls of all workers ask for the same checkpoint. Returns at
// once. A job that makes no checkpoints (--no-checkpoint) warns.
int tandem_request_checkpoint(tandem_worker* worker, int64_t step);
// Requires: joined. Requests a last checkpoint and the end of the job for all its workers, as
// `tandem stop` does. The program answers requests until TANDEM_END.
int tandem_request_end(tandem_worker* worker);
// Says that the program computes no more steps: from now on it answers only STATE, SCORE and
// UPDATE. The job, which is then told to end, makes its checkpoint without the step of a COMPUTE
// that is requested at this time. Allowed only in a job of one worker.
int tandem_rest(tandem_worker* worker);
// 1: the job was told to end early: by a signal to `tandem run`, by `tandem stop` or by
// tandem_request_end. Any time, also after TANDEM_END.
int32_t tandem_stopped(const tandem_worker* worker);
// Requires: joined. 1: the job makes checkpoints.
// 0 (--no-checkpoint): no TANDEM_STATE is requested.
int32_t tandem_writes_checkpoints(const tandem_worker* worker);

// ---- leaving ----

// Ends the job for all nodes. Their errors name this worker and `why`; the first reason counts. Any
// thread; returns at once.
void tandem_fail(tandem_worker* worker, const char* why);
// Like tandem_fail, for training that has diverged: a loss or a gradient is infinite or NaN.
// summary.json says so, and a study does not count the run as one that broke.
void tandem_fail_diverged(tandem_worker* worker, const char* why);
// Like tandem_fail, for an error that another attempt would meet again, such as a name that the
// program does not define. `tandem run` makes no other attempt.
void tandem_fail_again(tandem_worker* worker, const char* why);
// Call it after TANDEM_END, after an error, or earlier (the job then fails). Waits until the
// worker's threads have ended. -1: the job has failed; the text says how. tandem_dense stays valid.
int tandem_close(tandem_worker* worker);
// Closes the worker if it is open, and frees it.
void tandem_free(tandem_worker* worker);
// The process ends with status 1 if it would end with 0: when it ends by exit() or by a return from
// main. For a program whose own handlers of exit can no longer change the status. Of the functions
// given to atexit() only later ones run. -1: there is no memory for it.
int tandem_fail_at_exit(void);

// ---- ids as the readers make them ----

// Computes the ids that a reader of DELIMITED or CRITEO files would give to cells in a field of
// this name. For texts: out[i] is the id of a cell whose text is the bytes offsets[i] to offsets[i
// + 1] of `texts`. For numbers: out[i] is the id of a cell with the decimal number ids[i]; 7 and
// "7" are the same cell. An empty text is a missing value.
int tandem_hash_ids(const char* field, const int64_t* ids, int64_t count, int64_t* out);
int tandem_hash_texts(const char* field, const char* texts, const int64_t* offsets, int64_t count,
                      int64_t* out);
// The same for the reader of NCF files, which hashes the number and not its text. LIBSVM files are
// not hashed: an id is its number.
int tandem_hash_numbers(const char* field, const int64_t* numbers, int64_t count, int64_t* out);

// ---- tables of Arrow ----

// A tandem_arrow reads a table that pandas, polars, pyarrow or DuckDB exports as a stream of
// Arrow's C interface. The program chooses columns, and gets their ids or numbers in batches of any
// size. https://arrow.apache.org/docs/format/CStreamInterface.html describes the struct. No library
// of Arrow is needed. At most one batch of the stream is in memory at a time. At most one thread at
// a time may use a tandem_arrow.
typedef struct tandem_arrow tandem_arrow;
struct ArrowArrayStream;

// Takes `stream` over and leaves an empty struct, also after an error. Messages call the source
// `name`.
int tandem_arrow_open(struct ArrowArrayStream* stream, const char* name, tandem_arrow** arrow);
int32_t tandem_arrow_columns(const tandem_arrow* arrow);  // number of columns
// The name of column `column`, counted from 0, valid until tandem_arrow_free. "": no such column.
const char* tandem_arrow_column(const tandem_arrow* arrow, int32_t column);

enum {
  TANDEM_ARROW_ID = 1,   // int64: the id of each value, as a reader of DELIMITED files hashes it
  TANDEM_ARROW_IDS = 2,  // the same; if the column has lists, a row has the ids of all its values
  TANDEM_ARROW_RAW_IDS = 3,  // like IDS, but values are whole numbers, which are the ids
  TANDEM_ARROW_NUMBERS = 4   // float: booleans are 1 and 0, dates days since 1970, nulls NaN
};
// Chooses a column, and one of the constants for its values. Call it before the first
// tandem_arrow_next or tandem_arrow_skip, once for each column that the program reads. The name of
// the column is the field of its ids. A null, NaN or empty text has the id of a missing value, and
// so does a list without values; a missing value inside a list is left out. -1: the type cannot be
// read in this way.
int tandem_arrow_read(tandem_arrow* arrow, int32_t column, int32_t as);
// Reads the next rows, `most` or as many as are left, and sets *rows to their number. 1: there are
// rows; 0: the end. After -1, all later calls return the same error.
int tandem_arrow_next(tandem_arrow* arrow, int64_t most, int64_t* rows);
// Skips rows as tandem_arrow_next, without computing their values.
int tandem_arrow_skip(tandem_arrow* arrow, int64_t most, int64_t* rows);
// The values of a column in the rows that tandem_arrow_next read: *count ids (int64) or floats. The
// pointers are valid until the next tandem_arrow_next, _skip or _free. *offsets: NULL: one value a
// row; else [rows + 1], as in tandem_field.
int tandem_arrow_values(const tandem_arrow* arrow, int32_t column, const void** values,
                        int64_t* count, const int64_t** offsets);
// Releases the stream.
void tandem_arrow_free(tandem_arrow* arrow);

// ---- checkpoints ----

// Reads all files of the checkpoint in `folder` (a folder with a MANIFEST, whose layout is in
// server/checkpoint/range_file.md) and checks them. -1: a file is missing, or its length or bytes
// differ from the manifest. Any thread.
int tandem_check_checkpoint(const char* folder);

#ifdef __cplusplus
}
#endif

#endif  // TANDEM_CAPI_TANDEM_H_
