#include "rdma/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace tandem::rdma {
namespace {

constexpr size_t kSlabBytes = size_t{4} << 20;
constexpr size_t kLargestInSlab = size_t{1} << 20;
constexpr size_t kPage = size_t{2} << 20;  // large pages, if the system has them
// Limit on the bytes of free blocks that have a registration of their own.
constexpr size_t kMaxIdleBytes = size_t{512} << 20;
constexpr size_t kCopyProbeBytes = size_t{1} << 20;

// The size class: powers of two up to a MiB, then eight sizes for each doubling.
size_t ClassBytes(size_t bytes) {
  if (bytes <= 64) return 64;
  if (bytes <= kLargestInSlab) return std::bit_ceil(bytes);
  const size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

// Maps memory and touches its pages: registering memory pins its pages, which is much faster if
// they already exist.
uint8_t* MapMemory(size_t bytes) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TANDEM_CHECK(at != MAP_FAILED);
  if (bytes >= kPage) madvise(at, bytes, MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE
  madvise(at, bytes, MADV_POPULATE_WRITE);
#endif
  return static_cast<uint8_t*>(at);
}

}  // namespace

class RdmaMemory::Pool {
 public:
  Pool(ibv_pd* pd, const ibv_device_attr& attributes, std::shared_ptr<const void> owner)
      : owner_(std::move(owner)), pd_(pd), attributes_(attributes) {
    windows_ = (attributes.device_cap_flags &
                (IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B)) != 0;
  }

  Buffer Take(size_t bytes);
  void Unref();
  ibv_mr* Find(const void* data, size_t bytes) const;
  void MeasureCopy();
  RdmaMemoryStats stats() const {
    absl::ReaderMutexLock lock(&mutex_);
    return stats_;
  }

 private:
  friend class RdmaMemory;
  struct Region {
    size_t bytes = 0;
    ibv_mr* mr = nullptr;  // null: the system refused
  };
  class Block final : public BufferBlock {
   public:
    Block(Pool* pool, uint8_t* data, size_t bytes, bool own_region)
        : pool_(pool), data_(data), bytes_(bytes), own_region_(own_region) {}

   private:
    friend class Pool;
    void Recycle() override { pool_->Give(this); }
    Pool* const pool_;
    uint8_t* const data_;
    const size_t bytes_;
    const bool own_region_;
    Block* next_ = nullptr;  // while the block is free
  };

  ~Pool();
  void Give(Block* block);
  // The list of free blocks of this size class.
  Block*& FreeList(size_t class_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (class_bytes > kLargestInSlab) return free_[class_bytes];
    return free_in_slabs_[std::countr_zero(class_bytes)];
  }
  // Maps and registers memory. If the system refuses to register it, the memory is used
  // unregistered.
  uint8_t* NewRegion(size_t bytes, bool* registered);
  void DropRegion(uint8_t* data) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Block* NewBlock(size_t bytes);
  Block* NewBlockInSlab(size_t bytes);
  Block* FromSlab(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<const void> owner_;
  ibv_pd* const pd_;
  const ibv_device_attr attributes_;
  bool windows_ = false;
  double copy_rate_ = 1e9;

  mutable absl::Mutex mutex_;
  int64_t references_ ABSL_GUARDED_BY(mutex_) = 1;
  Block* free_in_slabs_[std::bit_width(kLargestInSlab)] ABSL_GUARDED_BY(mutex_) = {};
  absl::flat_hash_map<size_t, Block*> free_ ABSL_GUARDED_BY(mutex_);  // blocks larger than a slab's
  std::map<uintptr_t, Region> regions_ ABSL_GUARDED_BY(mutex_);
  uint8_t* slab_ ABSL_GUARDED_BY(mutex_) = nullptr;  // the part that is not cut into blocks yet
  size_t slab_left_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t idle_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  RdmaMemoryStats stats_ ABSL_GUARDED_BY(mutex_);
};

RdmaMemory::Pool::~Pool() {
  absl::MutexLock lock(&mutex_);
  const auto delete_all = [](Block* block) {
    while (block != nullptr) delete std::exchange(block, block->next_);
  };
  for (const auto& [bytes, block] : free_) delete_all(block);
  for (Block* const block : free_in_slabs_) delete_all(block);
  while (!regions_.empty()) DropRegion(reinterpret_cast<uint8_t*>(regions_.begin()->first));
  ibv_dealloc_pd(pd_);
}

void RdmaMemory::Pool::Unref() {
  {
    absl::MutexLock lock(&mutex_);
    if (--references_ > 0) return;
  }
  delete this;
}

Buffer RdmaMemory::Pool::Take(size_t bytes) {
  const size_t rounded = ClassBytes(bytes);
  Block* block = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    ++references_;
    Block*& free = FreeList(rounded);
    if (free != nullptr) {
      block = free;
      free = block->next_;
      if (block->own_region_) idle_bytes_ -= rounded;
    }
  }
  if (block == nullptr) block = NewBlock(rounded);
  return Buffer(block, block->data_, bytes);
}

// Takes a block back: keeps it for reuse, or frees it if enough memory is idle. Blocks and the pool
// are deleted after the lock is released, because the pool's destructor takes the lock.
void RdmaMemory::Pool::Give(Block* block) {
  bool kept = true, last;
  {
    absl::MutexLock lock(&mutex_);
    if (block->own_region_) {
      const bool registered = regions_[reinterpret_cast<uintptr_t>(block->data_)].mr != nullptr;
      kept = registered && idle_bytes_ + block->bytes_ <= kMaxIdleBytes;
      if (kept) idle_bytes_ += block->bytes_;
      if (!kept) DropRegion(block->data_);
    }
    if (kept) block->next_ = std::exchange(FreeList(block->bytes_), block);
    last = --references_ == 0;
  }
  if (!kept) delete block;
  if (last) delete this;
}

RdmaMemory::Pool::Block* RdmaMemory::Pool::NewBlock(size_t bytes) {
  if (bytes <= kLargestInSlab) return NewBlockInSlab(bytes);
  bool registered;
  uint8_t* const data = NewRegion(bytes, &registered);
  absl::MutexLock lock(&mutex_);
  ++stats_.allocations;
  return new Block(this, data, bytes, /*own_region=*/true);
}

RdmaMemory::Pool::Block* RdmaMemory::Pool::NewBlockInSlab(size_t bytes) {
  {
    absl::MutexLock lock(&mutex_);
    if (slab_left_ >= bytes) return FromSlab(bytes);
  }
  bool registered;
  uint8_t* slab = NewRegion(kSlabBytes, &registered);
  absl::MutexLock lock(&mutex_);
  if (!registered) {
    // Memory that cannot be registered is mapped for this block alone, and unmapped with it.
    DropRegion(slab);
    regions_[reinterpret_cast<uintptr_t>(slab = MapMemory(bytes))] = {bytes, nullptr};
    ++stats_.allocations;
    return new Block(this, slab, bytes, /*own_region=*/true);
  }
  // The rest of the old slab stays unused: less than one MiB of its four.
  slab_ = slab;
  slab_left_ = kSlabBytes;
  return FromSlab(bytes);
}

RdmaMemory::Pool::Block* RdmaMemory::Pool::FromSlab(size_t bytes) {
  ++stats_.allocations;
  auto* const block = new Block(this, slab_, bytes, /*own_region=*/false);
  slab_ += bytes;
  slab_left_ -= bytes;
  return block;
}

uint8_t* RdmaMemory::Pool::NewRegion(size_t bytes, bool* registered) {
  uint8_t* const data = MapMemory(bytes);
  const int access = IBV_ACCESS_LOCAL_WRITE | (windows_ ? IBV_ACCESS_MW_BIND : 0);
  ibv_mr* const mr = ibv_reg_mr(pd_, data, bytes, access);
  *registered = mr != nullptr;
  absl::MutexLock lock(&mutex_);
  ++(mr != nullptr ? stats_.registrations : stats_.refusals);
  if (mr != nullptr) stats_.registered_bytes += bytes;
  regions_[reinterpret_cast<uintptr_t>(data)] = {bytes, mr};
  return data;
}

void RdmaMemory::Pool::DropRegion(uint8_t* data) {
  const auto found = regions_.find(reinterpret_cast<uintptr_t>(data));
  TANDEM_CHECK(found != regions_.end());
  const Region region = found->second;
  regions_.erase(found);
  if (region.mr != nullptr) {
    TANDEM_CHECK(ibv_dereg_mr(region.mr) == 0);
    stats_.registered_bytes -= region.bytes;
  }
  munmap(data, region.bytes);
}

ibv_mr* RdmaMemory::Pool::Find(const void* data, size_t bytes) const {
  const auto at = reinterpret_cast<uintptr_t>(data);
  absl::ReaderMutexLock lock(&mutex_);
  auto after = regions_.upper_bound(at);
  if (after == regions_.begin()) return nullptr;
  const auto& [begin, region] = *--after;
  const size_t offset = at - begin;
  return offset <= region.bytes && bytes <= region.bytes - offset ? region.mr : nullptr;
}

void RdmaMemory::Pool::MeasureCopy() {
  Buffer from = Take(kCopyProbeBytes), to = Take(kCopyProbeBytes);
  std::memset(from.mutable_data(), 1, kCopyProbeBytes);
  for (int round = 0; round < 4; ++round) {
    const auto start = std::chrono::steady_clock::now();
    std::memcpy(to.mutable_data(), from.data(), kCopyProbeBytes);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    copy_rate_ = std::max(copy_rate_, kCopyProbeBytes / std::max(took.count(), 1e-9));
  }
}

absl::StatusOr<std::shared_ptr<RdmaMemory>> RdmaMemory::New(ibv_context* context,
                                                            std::shared_ptr<const void> owner) {
  ibv_device_attr attributes = {};
  if (const int error = ibv_query_device(context, &attributes); error != 0) {
    return absl::UnavailableError(absl::StrCat(ibv_get_device_name(context->device),
                                               ": ibv_query_device: ", std::strerror(error)));
  }
  ibv_pd* const pd = ibv_alloc_pd(context);
  if (pd == nullptr) {
    return absl::UnavailableError(absl::StrCat(ibv_get_device_name(context->device),
                                               ": ibv_alloc_pd: ", std::strerror(errno)));
  }
  std::shared_ptr<RdmaMemory> memory(new RdmaMemory(new Pool(pd, attributes, std::move(owner))));
  memory->pool_->MeasureCopy();
  return memory;
}

RdmaMemory::RdmaMemory(Pool* pool) : pool_(pool) {}
RdmaMemory::~RdmaMemory() { pool_->Unref(); }
ibv_context* RdmaMemory::context() const { return pool_->pd_->context; }
ibv_pd* RdmaMemory::pd() const { return pool_->pd_; }
const ibv_device_attr& RdmaMemory::attributes() const { return pool_->attributes_; }
Buffer RdmaMemory::Alloc(size_t bytes) { return pool_->Take(bytes); }
ibv_mr* RdmaMemory::Find(const void* data, size_t bytes) const { return pool_->Find(data, bytes); }
bool RdmaMemory::has_windows() const { return pool_->windows_; }
double RdmaMemory::copy_rate() const { return pool_->copy_rate_; }
RdmaMemoryStats RdmaMemory::stats() const { return pool_->stats(); }

}  // namespace tandem::rdma
