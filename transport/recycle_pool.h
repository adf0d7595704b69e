// RecyclePool reuses small objects instead of freeing them, so that the data path does not
// allocate.
//
// Thread safety: only the owner thread calls Take() and drops the pool. Any thread may call Give(),
// which needs no lock: it pushes the object on a list that the owner takes as a whole. Nobody pops
// single objects from that list, so there is no ABA problem. The pool outlives its owner until the
// last object has returned.
#ifndef TANDEM_TRANSPORT_RECYCLE_POOL_H_
#define TANDEM_TRANSPORT_RECYCLE_POOL_H_

#include <atomic>
#include <cstdint>
#include <memory>

namespace tandem::transport {

// T is default constructible and has the public members `RecyclePool<T>* pool` and `T* next`, which
// belong to the pool.
template <typename T>
class RecyclePool {
 public:
  struct Dropper {
    void operator()(RecyclePool* pool) const { pool->Drop(); }
  };
  using Owner = std::unique_ptr<RecyclePool, Dropper>;

  static Owner New() { return Owner(new RecyclePool); }

  // Returns a new object, or a reused one in the state in which it was given back.
  T* Take() {
    if (mine_ == nullptr) mine_ = returned_.exchange(nullptr, std::memory_order_acquire);
    references_.fetch_add(1, std::memory_order_relaxed);
    T* const object = mine_ != nullptr ? mine_ : new T;
    mine_ = mine_ != nullptr ? object->next : nullptr;
    object->pool = this;
    return object;
  }

  void Give(T* object) {
    object->next = returned_.load(std::memory_order_relaxed);
    while (!returned_.compare_exchange_weak(object->next, object, std::memory_order_release,
                                            std::memory_order_relaxed)) {
    }
    Unref();
  }

 private:
  RecyclePool() = default;
  ~RecyclePool() {
    DeleteAll(mine_);
    DeleteAll(returned_.load(std::memory_order_acquire));
  }

  void Drop() { Unref(); }
  void Unref() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  static void DeleteAll(T* list) {
    while (list != nullptr) {
      T* const next = list->next;
      delete list;
      list = next;
    }
  }

  T* mine_ = nullptr;                   // owner thread only
  std::atomic<T*> returned_{nullptr};   // given back, not yet taken over by the owner
  std::atomic<int64_t> references_{1};  // the owner, and every object in use
};

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_RECYCLE_POOL_H_
