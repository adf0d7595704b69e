// libibverbs and librdmacm, loaded when RDMA is first used. So one build runs on hosts with and
// without them. verbs_library.cc defines the functions of both that this folder calls, and each
// passes on to the library; their headers, and code that uses them, stay as they are.
//
// Thread safety: a free function.
#ifndef TANDEM_RDMA_VERBS_LIBRARY_H_
#define TANDEM_RDMA_VERBS_LIBRARY_H_

#include "absl/status/status.h"

namespace tandem::rdma {

// Before the first call of a function of these libraries. UNAVAILABLE: one of them is not
// installed.
absl::Status LoadVerbs();

}  // namespace tandem::rdma

#endif  // TANDEM_RDMA_VERBS_LIBRARY_H_
