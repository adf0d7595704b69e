// Tells ThreadSanitizer about objects that pass between two threads through a library that it
// cannot see into. The giving thread calls HandOver before, the taking thread calls TakeOver after.
// In other builds both do nothing.
#ifndef TANDEM_TRANSPORT_TSAN_ORDER_H_
#define TANDEM_TRANSPORT_TSAN_ORDER_H_

#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#endif

namespace tandem::transport {

#if defined(__SANITIZE_THREAD__)
inline void HandOver(void* object) { __tsan_release(object); }
inline void TakeOver(void* object) { __tsan_acquire(object); }
#else
inline void HandOver(void*) {}
inline void TakeOver(void*) {}
#endif

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_TSAN_ORDER_H_
