// Files in text format other than jobs: parsed with the same messages, which say file, line, column and
// what was meant.
#ifndef TANDEM_JOB_MESSAGE_TEXT_H_
#define TANDEM_JOB_MESSAGE_TEXT_H_

#include <string>
#include <vector>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace tandem::job {

// Parses `text` into `message`; `tree` learns where each field is. INVALID_ARGUMENT
// "FILE:12:5: no field named ..."; `file_name` is used in messages only.
absl::Status ParseMessageText(absl::string_view text, absl::string_view file_name,
                              google::protobuf::Message* message,
                              google::protobuf::TextFormat::ParseInfoTree* tree);

// "FILE:12:5": where `path` ("variation[2].set[0]") is in a text that was parsed, or the nearest part
// around it that is there; "FILE" if none is. `root` describes the message.
std::string PlaceInText(absl::string_view path, absl::string_view text, absl::string_view file_name,
                        const google::protobuf::Descriptor* root,
                        google::protobuf::TextFormat::ParseInfoTree* tree);

// The candidate that `word` was most likely meant to be: few slips away, in upper or lower case, or
// one that it begins with. nullopt: none is near.
absl::optional<std::string> Nearest(absl::string_view word,
                                    const std::vector<std::string>& candidates);

}  // namespace tandem::job

#endif  // TANDEM_JOB_MESSAGE_TEXT_H_
