// Whether this program is built with a sanitizer, by g++ or clang. Sanitizers need memory, threads
// and descriptors of their own, so that tests which take these away cannot run with them.
#ifndef TANDEM_TESTS_SANITIZED_H_
#define TANDEM_TESTS_SANITIZED_H_

namespace tandem {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
#else
constexpr bool kSanitized = false;
#endif

}  // namespace tandem

#endif  // TANDEM_TESTS_SANITIZED_H_
