#include "collectives/message.h"

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace tandem::collectives {
namespace {

// The name of a value that a peer has sent; the value may be anything.
std::string NameOr(bool known, absl::string_view name, int number) {
  return known ? std::string(name) : absl::StrCat("unknown (", number, ")");
}

std::string Describe(const MessageHeader& h) {
  const int primitive = static_cast<int>(h.primitive), algorithm = static_cast<int>(h.algorithm);
  const int type = static_cast<int>(h.type), op = static_cast<int>(h.op);
  const bool known = primitive <= static_cast<int>(Primitive::kPointToPoint);
  const char* elements =
      IsDataType(static_cast<uint8_t>(type)) ? Name(h.type) : "elements of unknown type";
  if (h.called != ElementName::kAsType && IsElementName(static_cast<uint8_t>(h.called))) {
    elements = Name(h.called);
  }
  std::string out = absl::StrCat(NameOr(known, known ? PrimitiveName(h.primitive) : "", primitive),
                                 " #", h.number, " of ", h.count, " ", elements);
  if (known && Reduces(h.primitive)) {
    absl::StrAppend(&out, ", ", IsReduceOp(static_cast<uint8_t>(op)) ? Name(h.op) : "?");
  }
  if (known && HasRoot(h.primitive)) absl::StrAppend(&out, ", root ", h.root);
  if (known && h.primitive != Primitive::kPointToPoint) {
    const bool named = IsAlgorithm(algorithm);
    absl::StrAppend(&out, ", ", NameOr(named, named ? AlgorithmName(h.algorithm) : "", algorithm));
  }
  return out;
}

}  // namespace

absl::Status CheckMessage(int rank, const MessageHeader& expected, int from,
                          absl::Span<const uint8_t> bytes) {
  MessageHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(&header, &expected, sizeof(header)) == 0) return absl::OkStatus();
  if (header.magic != kMessageMagic) {
    return absl::DataLossError("it sent bytes that are not a message");
  }
  const std::string mine = Describe(expected), theirs = Describe(header);
  std::string text =
      absl::StrCat("ranks disagree: rank ", rank, " is in ", mine, ", rank ", from, " in ", theirs);
  if (mine == theirs) {
    absl::StrAppend(&text, "; the message has ", header.bytes, " bytes, expected ", expected.bytes,
                    " (their counts or segment sizes differ)");
  }
  return absl::InvalidArgumentError(text);
}

}  // namespace tandem::collectives
