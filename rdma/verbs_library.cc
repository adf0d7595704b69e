#include "rdma/verbs_library.h"

#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"

// These definitions are for the program or library that this file is linked into, and for nobody
// else: librdmacm must go on calling libibverbs itself.
#pragma GCC visibility push(hidden)
#include <rdma/rdma_cma.h>
#pragma GCC visibility pop
#undef ibv_query_port
#undef ibv_reg_mr

namespace tandem::rdma {
namespace {

// A library that stays loaded, as one that was linked would.
class Library {
 public:
  explicit Library(const char* name) : handle_(dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) error_ = dlerror();
  }
  void* Find(const char* function) const {
    return handle_ == nullptr ? nullptr : dlsym(handle_, function);
  }
  const std::string& error() const { return error_; }

 private:
  void* handle_;
  std::string error_;
};

const Library& Verbs() {
  static const Library library("libibverbs.so.1");
  return library;
}

const Library& ConnectionManager() {
  static const Library library("librdmacm.so.1");
  return library;
}

template <typename Function>
Function* Find(const char* name) {
  void* const found = (name[0] == 'i' ? Verbs() : ConnectionManager()).Find(name);
  TANDEM_CHECK(found != nullptr);  // since LoadVerbs() succeeded
  return reinterpret_cast<Function*>(found);
}

}  // namespace

absl::Status LoadVerbs() {
  for (const Library* library : {&Verbs(), &ConnectionManager()}) {
    if (library->error().empty()) continue;
    return absl::UnavailableError(absl::StrCat(
        "RDMA: ", library->error(), "; hint: install libibverbs1, librdmacm1, ibverbs-providers"));
  }
  return absl::OkStatus();
}

}  // namespace tandem::rdma

#define TANDEM_FORWARD(result, name, parameters, arguments)                 \
  result name parameters {                                                  \
    static const auto function = tandem::rdma::Find<decltype(name)>(#name); \
    return function arguments;                                              \
  }

extern "C" {

TANDEM_FORWARD(void, ibv_ack_cq_events, (ibv_cq * q, unsigned n), (q, n))
TANDEM_FORWARD(ibv_pd*, ibv_alloc_pd, (ibv_context * c), (c))
TANDEM_FORWARD(int, ibv_close_device, (ibv_context * c), (c))
TANDEM_FORWARD(ibv_comp_channel*, ibv_create_comp_channel, (ibv_context * c), (c))
TANDEM_FORWARD(ibv_cq*, ibv_create_cq,
               (ibv_context * c, int size, void* user, ibv_comp_channel* channel, int vector),
               (c, size, user, channel, vector))
TANDEM_FORWARD(ibv_srq*, ibv_create_srq, (ibv_pd * pd, ibv_srq_init_attr* a), (pd, a))
TANDEM_FORWARD(int, ibv_dealloc_pd, (ibv_pd * pd), (pd))
TANDEM_FORWARD(int, ibv_dereg_mr, (ibv_mr * mr), (mr))
TANDEM_FORWARD(int, ibv_destroy_comp_channel, (ibv_comp_channel * c), (c))
TANDEM_FORWARD(int, ibv_destroy_cq, (ibv_cq * q), (q))
TANDEM_FORWARD(int, ibv_destroy_srq, (ibv_srq * q), (q))
TANDEM_FORWARD(void, ibv_free_device_list, (ibv_device * *list), (list))
TANDEM_FORWARD(int, ibv_get_cq_event, (ibv_comp_channel * c, ibv_cq** q, void** user), (c, q, user))
TANDEM_FORWARD(__be64, ibv_get_device_guid, (ibv_device * d), (d))
TANDEM_FORWARD(ibv_device**, ibv_get_device_list, (int* count), (count))
TANDEM_FORWARD(const char*, ibv_get_device_name, (ibv_device * d), (d))
TANDEM_FORWARD(int, ibv_modify_qp, (ibv_qp * q, ibv_qp_attr* a, int mask), (q, a, mask))
TANDEM_FORWARD(ibv_context*, ibv_open_device, (ibv_device * d), (d))
TANDEM_FORWARD(int, ibv_query_device, (ibv_context * c, ibv_device_attr* a), (c, a))
TANDEM_FORWARD(int, ibv_query_gid, (ibv_context * c, uint8_t port, int index, ibv_gid* gid),
               (c, port, index, gid))
TANDEM_FORWARD(int, ibv_query_port, (ibv_context * c, uint8_t port, _compat_ibv_port_attr* a),
               (c, port, a))
TANDEM_FORWARD(ibv_mr*, ibv_reg_mr, (ibv_pd * pd, void* at, size_t bytes, int access),
               (pd, at, bytes, access))
TANDEM_FORWARD(ibv_mr*, ibv_reg_mr_iova2,
               (ibv_pd * pd, void* at, size_t bytes, uint64_t iova, unsigned access),
               (pd, at, bytes, iova, access))
TANDEM_FORWARD(const char*, ibv_wc_status_str, (ibv_wc_status s), (s))

TANDEM_FORWARD(int, rdma_accept, (rdma_cm_id * id, rdma_conn_param* p), (id, p))
TANDEM_FORWARD(int, rdma_ack_cm_event, (rdma_cm_event * e), (e))
TANDEM_FORWARD(int, rdma_bind_addr, (rdma_cm_id * id, sockaddr* at), (id, at))
TANDEM_FORWARD(int, rdma_connect, (rdma_cm_id * id, rdma_conn_param* p), (id, p))
TANDEM_FORWARD(rdma_event_channel*, rdma_create_event_channel, (), ())
TANDEM_FORWARD(int, rdma_create_id,
               (rdma_event_channel * c, rdma_cm_id** id, void* user, rdma_port_space space),
               (c, id, user, space))
TANDEM_FORWARD(int, rdma_create_qp, (rdma_cm_id * id, ibv_pd* pd, ibv_qp_init_attr* a), (id, pd, a))
TANDEM_FORWARD(void, rdma_destroy_event_channel, (rdma_event_channel * c), (c))
TANDEM_FORWARD(int, rdma_destroy_id, (rdma_cm_id * id), (id))
TANDEM_FORWARD(void, rdma_destroy_qp, (rdma_cm_id * id), (id))
TANDEM_FORWARD(int, rdma_disconnect, (rdma_cm_id * id), (id))
TANDEM_FORWARD(const char*, rdma_event_str, (rdma_cm_event_type t), (t))
TANDEM_FORWARD(void, rdma_free_devices, (ibv_context * *list), (list))
TANDEM_FORWARD(int, rdma_get_cm_event, (rdma_event_channel * c, rdma_cm_event** e), (c, e))
TANDEM_FORWARD(ibv_context**, rdma_get_devices, (int* count), (count))
TANDEM_FORWARD(__be16, rdma_get_src_port, (rdma_cm_id * id), (id))
TANDEM_FORWARD(int, rdma_listen, (rdma_cm_id * id, int backlog), (id, backlog))
TANDEM_FORWARD(int, rdma_reject, (rdma_cm_id * id, const void* data, uint8_t bytes),
               (id, data, bytes))
TANDEM_FORWARD(int, rdma_resolve_addr, (rdma_cm_id * id, sockaddr* from, sockaddr* to, int ms),
               (id, from, to, ms))
TANDEM_FORWARD(int, rdma_resolve_route, (rdma_cm_id * id, int ms), (id, ms))
TANDEM_FORWARD(int, rdma_set_option,
               (rdma_cm_id * id, int level, int option, void* value, size_t bytes),
               (id, level, option, value, bytes))

}  // extern "C"
