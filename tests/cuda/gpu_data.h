// Inputs, references and comparison for the GPU checks: bytes on the host, folded by the loops of
// reduce_kernels.h that every processor runs.
#ifndef TANDEM_TESTS_CUDA_GPU_DATA_H_
#define TANDEM_TESTS_CUDA_GPU_DATA_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "collectives/types.h"

namespace tandem {

using Bytes = std::vector<uint8_t>;
using Generator = std::mt19937_64;  // the same bits everywhere

// A mixture of small numbers, any bits, and zeros of both signs.
Bytes RandomVector(collectives::DataType type, size_t count, Generator& random);

// The fold in order, with kPreMulSum's and kAverage's multiplies by `scalar`.
Bytes ReferenceFold(collectives::ReduceOp op, collectives::DataType type, double scalar,
                    const std::vector<Bytes>& in);

// Empty if equal to the bit, any NaN being equal to any other; else where they differ first.
std::string Difference(collectives::DataType type, const Bytes& got, const Bytes& want);

}  // namespace tandem

#endif  // TANDEM_TESTS_CUDA_GPU_DATA_H_
