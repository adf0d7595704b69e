// The C interface of the compiled models (job.proto's MLP, DLRM, GMF, ...) for a program's training
// loop. A program can compare its own module with a compiled model, in speed and as a baseline.
// These functions are not in libtandem.so but in libtandem_models.so, which also has all of
// libtandem.so and links LibTorch. A process loads one of the two.
//
// Return values: as in capi/tandem.h: 0, or -1 and a text in tandem_error(). Threads: one at a time
// for each model. Memory: each call reads or writes the memory that it is given before it returns;
// the memory stays the caller's.
#ifndef TANDEM_CAPI_TANDEM_MODELS_H_
#define TANDEM_CAPI_TANDEM_MODELS_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tandem_model tandem_model;

// Makes a model. config: as `model` of a job, such as "mlp { hidden: 16 }". A sample has `numbers`
// numbers and, for table t, fields[t] cells of dim[t] floats. names: names of the tables, for
// messages. threads: threads of one operation, as cluster.threads_per_worker; the calling thread
// keeps this setting (OpenMP, PyTorch).
int tandem_model_new(const char* config, int32_t numbers, int32_t tables, const char* const* names,
                     const int32_t* fields, const int32_t* dim, int32_t threads,
                     tandem_model** model);
// Dense parameters are in one buffer of tandem_model_floats floats. tandem_model_parameter returns
// the name, the shape (*dims numbers) and the first element of parameter i; valid as long as the
// model.
int64_t tandem_model_floats(const tandem_model* model);
int32_t tandem_model_parameters(const tandem_model* model);
const char* tandem_model_parameter(const tandem_model* model, int32_t i, int32_t* dims,
                                   const int64_t** shape, int64_t* offset);
// Writes the initial values that a job with this seed has.
int tandem_model_initial_values(const tandem_model* model, uint64_t seed, float* parameters);

// Writes logits [samples]. cells[t]: [samples, fields[t], dim[t]]; inputs: [samples, numbers].
int tandem_model_forward(tandem_model* model, int64_t samples, const float* inputs,
                         const float* const* cells, const float* parameters, float* logits);
// Takes labels [samples]. Writes the sum over the samples of the binary cross-entropy to *loss, and
// the gradients of that sum.
int tandem_model_backward(tandem_model* model, int64_t samples, const float* inputs,
                          const float* labels, const float* const* cells, const float* parameters,
                          double* loss, float* parameter_gradients, float* const* pooled_gradients);
void tandem_model_free(tandem_model* model);

#ifdef __cplusplus
}
#endif

#endif  // TANDEM_CAPI_TANDEM_MODELS_H_
