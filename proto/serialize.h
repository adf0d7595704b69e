// Serialises messages to bytes that are always the same for the same message. Plain serialization
// may write the entries of a map in another order each time, and values derived from a seed must
// not depend on that order.
#ifndef TANDEM_PROTO_SERIALIZE_H_
#define TANDEM_PROTO_SERIALIZE_H_

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/message_lite.h>

#include <string>

namespace tandem {

inline std::string Serialize(const google::protobuf::MessageLite& message) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    message.SerializeToCodedStream(&coded);
  }
  return bytes;
}

}  // namespace tandem

#endif  // TANDEM_PROTO_SERIALIZE_H_
