// A C program that trains through libtandem.so: logistic regression on samples that it generates,
// with a bias as its only dense parameter. A sample has an item from 0 to 999; the larger the item,
// the more often the sample is a click.
//
//   TANDEM_JOB=job.textproto TANDEM_SCHEDULER=tcp://... tandem_example
//
// The job has one table, with dim 1 and one field. tests/integration/capi_test.cc contains the job
// and runs this program.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "capi/tandem.h"

enum { BATCH = 64, BATCHES = 60, MOST_AHEAD = 8, ITEMS = 1000 };

typedef struct {
  int64_t item[BATCH];
  float label[BATCH];
} samples;

static uint32_t state;

static uint32_t next_random(void) {
  state = state * 1664525u + 1013904223u;
  return state >> 8;
}

static void make_samples(samples* out) {
  for (int i = 0; i < BATCH; ++i) {
    out->item[i] = next_random() % ITEMS;
    out->label[i] = next_random() % ITEMS < (uint32_t)out->item[i] ? 1 : 0;
  }
}

static void give(tandem_worker* worker, const samples* batch) {
  tandem_field field = {batch->item, BATCH, 1, NULL, NULL};
  if (tandem_give(worker, BATCH, &field, NULL) != 0) fprintf(stderr, "%s\n", tandem_error());
}

// The logit of a sample is its row, which has one float, plus the bias.
static double compute(tandem_worker* worker, const samples* batch, float* gradients, float* logits,
                      float* bias_gradient) {
  int64_t count = 0;
  const float bias = tandem_dense(worker, &count)[0];
  if (tandem_rows(worker, 0, logits, BATCH) != 0) fprintf(stderr, "%s\n", tandem_error());
  double loss = 0;
  *bias_gradient = 0;
  for (int i = 0; i < BATCH; ++i) {
    logits[i] += bias;
    const float p = 1 / (1 + expf(-logits[i]));
    loss -= log(batch->label[i] > 0 ? p : 1 - p);
    gradients[i] = p - batch->label[i];
    *bias_gradient += gradients[i];
  }
  return loss;
}

static int train(tandem_worker* worker) {
  static samples ahead[MOST_AHEAD];
  float gradients[BATCH], logits[BATCH], bias_gradient = 0;
  int64_t given = 0, done = 0, epoch = -1;
  for (;;) {
    tandem_request request;
    if (tandem_next(worker, 1000, &request) < 0) return -1;
    switch (request.kind) {
      case TANDEM_BATCH:
      case TANDEM_VALIDATION_BATCH:
      case TANDEM_TEST_BATCH:
        if (request.kind != TANDEM_BATCH ? request.first : request.epoch != epoch) given = done = 0;
        epoch = request.epoch;
        if (given == BATCHES) {
          if (tandem_give(worker, 0, NULL, NULL) != 0) return -1;
          break;
        }
        make_samples(&ahead[given % MOST_AHEAD]);
        give(worker, &ahead[given++ % MOST_AHEAD]);
        break;
      case TANDEM_COMPUTE: {
        const samples* const batch = &ahead[done++ % MOST_AHEAD];
        const double loss = compute(worker, batch, gradients, logits, &bias_gradient);
        const float* const cells[] = {gradients};
        const int64_t floats[] = {BATCH};
        if (tandem_finish(worker, loss, cells, floats, &bias_gradient, 1) != 0) return -1;
        break;
      }
      case TANDEM_SCORE: {
        const samples* const batch = &ahead[done++ % MOST_AHEAD];
        compute(worker, batch, gradients, logits, &bias_gradient);
        if (tandem_score(worker, logits, batch->label, BATCH) != 0) return -1;
        break;
      }
      case TANDEM_END:
        return tandem_close(worker);
      default:
        break;
    }
  }
}

int main(void) {
  tandem_join_options options = {
      sizeof options, getenv("TANDEM_JOB"), NULL, getenv("TANDEM_SCHEDULER"), -1, NULL, NULL, 0};
  tandem_worker* worker = NULL;
  int failed = tandem_join(&options, &worker);
  while (failed == 0 && (failed = tandem_wait_joined(worker, 1000)) == 0) {
  }
  if (failed == 1) {
    state = 7 + (uint32_t)tandem_rank(worker);
    const char* const names[] = {"bias"};
    const int32_t dims[] = {1};
    const int64_t shape[] = {1};
    const float first[] = {0};
    failed = tandem_start(worker, 1, names, dims, shape, first);
    while (failed == 0 && (failed = tandem_wait_started(worker, 1000)) == 0) {
    }
    if (failed == 1) failed = train(worker);
  }
  if (failed != 0) fprintf(stderr, "tandem_example: %s\n", tandem_error());
  if (worker != NULL) tandem_free(worker);
  return failed == 0 ? 0 : 1;
}
