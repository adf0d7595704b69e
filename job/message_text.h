// Parses files in protobuf text format other than jobs. Errors have the form of those for jobs,
// with the file, line, column and the likely intention.
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

// Parses `text` into `message` and records in `tree` where each field is. INVALID_ARGUMENT
// "FILE:12:5: no field named ..."; `file_name` is used in messages only.
absl::Status ParseMessageText(absl::string_view text, absl::string_view file_name,
                              google::protobuf::Message* message,
                              google::protobuf::TextFormat::ParseInfoTree* tree);

// The place "FILE:12:5" of the field `path` ("variation[2].set[0]") in a parsed text, or of the
// nearest field around it that the text has; "FILE" if there is none. `root` describes the message.
std::string PlaceInText(absl::string_view path, absl::string_view text, absl::string_view file_name,
                        const google::protobuf::Descriptor* root,
                        google::protobuf::TextFormat::ParseInfoTree* tree);

// The candidate that `word` was most likely meant to be. A candidate is near if it differs by a few
// typing errors or by upper and lower case, or if one word begins with the other. nullopt if no
// candidate is near.
absl::optional<std::string> Nearest(absl::string_view word,
                                    const std::vector<std::string>& candidates);

}  // namespace tandem::job

#endif  // TANDEM_JOB_MESSAGE_TEXT_H_
