// The compiled models (job.proto's MLP, DLRM, GMF, ...) for a training loop of a program: what the same
// loop costs without a module of its own, and a baseline beside one. Not in libtandem.so but in
// libtandem_models.so, which has all of libtandem.so as well and links LibTorch; a process loads one of
// the two.
//
// Returns: as in capi/tandem.h: 0, or -1 and a text in tandem_error().
// Threads: one at a time for a model. Memory: what a call is given is the caller's, and is read or
// written before it returns.
#ifndef TANDEM_CAPI_TANDEM_MODELS_H_
#define TANDEM_CAPI_TANDEM_MODELS_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tandem_model tandem_model;

// config: as `model` of a job, such as "mlp { hidden: 16 }". A sample has `numbers` numbers and, of
// table t, fields[t] cells of dim[t] floats. names: of the tables, for messages. threads: in one
// operation, as cluster.threads_per_worker; the calling thread keeps this number (OpenMP, PyTorch).
int tandem_model_new(const char* config, int32_t numbers, int32_t tables, const char* const* names,
                     const int32_t* fields, const int32_t* dim, int32_t threads,
                     tandem_model** model);
// Dense parameters lie in one buffer of tandem_model_floats floats. Parameter i: its name, shape
// (*dims numbers) and first element; valid as long as the model.
int64_t tandem_model_floats(const tandem_model* model);
int32_t tandem_model_parameters(const tandem_model* model);
const char* tandem_model_parameter(const tandem_model* model, int32_t i, int32_t* dims,
                                   const int64_t** shape, int64_t* offset);
// Writes the first values that a job with this seed has.
int tandem_model_first_values(const tandem_model* model, uint64_t seed, float* parameters);

// cells[t]: [samples, fields[t], dim[t]]; inputs: [samples, numbers]. Writes logits [samples].
int tandem_model_forward(tandem_model* model, int64_t samples, const float* inputs,
                         const float* const* cells, const float* parameters, float* logits);
// With labels [samples]: writes the sum over the samples of the binary cross-entropy, and the
// gradients of that sum.
int tandem_model_backward(tandem_model* model, int64_t samples, const float* inputs,
                          const float* labels, const float* const* cells, const float* parameters,
                          double* loss, float* parameter_gradients, float* const* cell_gradients);
void tandem_model_free(tandem_model* model);

#ifdef __cplusplus
}
#endif

#endif  // TANDEM_CAPI_TANDEM_MODELS_H_
