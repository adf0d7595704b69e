// Declares the CUDA stream type for code that is built without the CUDA toolkit. The declaration is
// the same as in CUDA's own headers, which may be included before or after this one.
#ifndef TANDEM_COLLECTIVES_CUDA_STREAM_H_
#define TANDEM_COLLECTIVES_CUDA_STREAM_H_

typedef struct CUstream_st* cudaStream_t;

#endif  // TANDEM_COLLECTIVES_CUDA_STREAM_H_
