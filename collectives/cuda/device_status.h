// DeviceStatus: the outcome of a call on device memory: OK, or a code, a message with the numbers,
// and the rank at fault if there is one. Like everything in this folder it uses only the standard
// library, so that the GPU checks build on a machine that has only the CUDA toolkit and a compiler.
#ifndef TANDEM_COLLECTIVES_CUDA_DEVICE_STATUS_H_
#define TANDEM_COLLECTIVES_CUDA_DEVICE_STATUS_H_

#include <string>
#include <utility>

namespace tandem::collectives {

class [[nodiscard]] DeviceStatus {
 public:
  enum class Code {
    kOk,
    kInvalidArgument,  // a mistake of the caller; nothing was done
    kMismatch,         // ranks called with different op, type, count or scalar
    kUnsupported,      // this device, driver or build lacks the feature
    kDeadline,         // a rank did not come in time
    kPeer,             // another rank failed and said so
    kDevice,           // CUDA reported an error
  };

  DeviceStatus() = default;
  DeviceStatus(Code code, std::string message, int rank = -1)
      : code_(code), rank_(rank), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  int rank() const { return rank_; }  // -1: no single rank

 private:
  Code code_ = Code::kOk;
  int rank_ = -1;
  std::string message_;
};

}  // namespace tandem::collectives

// Returns the status of an expression from the enclosing function unless it is OK.
#define TANDEM_DEVICE_RETURN(expression)                              \
  do {                                                                \
    ::tandem::collectives::DeviceStatus device_status = (expression); \
    if (!device_status.ok()) return device_status;                    \
  } while (false)

#endif  // TANDEM_COLLECTIVES_CUDA_DEVICE_STATUS_H_
