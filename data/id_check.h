// IdCheck compares the ids of evaluation rows with the ids of training rows, or with the ids that a
// model was trained on. An id in another spelling (12.0 for 12, a blank after a name) is a
// different id. Its row is never trained, and nothing fails, so a warning is the only sign.
//
// Thread safety: one thread at a time.
#ifndef TANDEM_DATA_ID_CHECK_H_
#define TANDEM_DATA_ID_CHECK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "data/row.h"
#include "job/job.h"

namespace tandem::data {

// The text without differences that are frequent between two spellings of one id: blanks and quotes
// around it, the form of a whole number, capital letters, accents.
std::string PlainForm(absl::string_view text);

class IdCheck {
 public:
  // `part` is the field of the job that names the files, for messages. `by_model`: SeeModel is
  // called, not SeeTraining.
  IdCheck(std::string part, std::vector<std::string> fields, bool by_model = false);

  // Remembers the ids of the first rows of `files`. Rows that do not parse are skipped, since the
  // check of the files reports them.
  void Sample(const std::vector<std::string>& files, RowParser* parser);

  // Marks the ids of a training row as trained. `texts` is RowParser::texts() of the row.
  void SeeTraining(const Row& row, absl::Span<const absl::string_view> texts);

  // Marks ids as trained that a checkpoint has rows for. Replaces training rows.
  void SeeModel(absl::Span<const uint64_t> keys);

  // Whether some field has ids that were not seen yet, so that SeeTraining or SeeModel can change
  // the warnings.
  bool LacksIds() const;

  // A line for each field whose ids the training rows lack. `all`: all training rows were seen.
  void Warn(bool all, std::vector<std::string>* warnings) const;

 private:
  struct Id {
    int64_t count = 0;
    bool trained = false;
    std::string text;   // the first bytes of the text; "" if the ids of the format are numbers
    uint64_t form = 0;  // hash of the plain form of the text
  };
  struct Field {
    std::string name;
    uint64_t missing = 0;  // the key of "no value", which does not count
    int64_t count = 0, trained = 0;
    absl::flat_hash_map<uint64_t, Id> ids;  // by key
    // For each form of these ids, a text of the training rows that has the form, or "".
    absl::flat_hash_map<uint64_t, std::string> forms;

    bool IsTrained() const;  // nearly, or it has no ids
  };
  void Add(const Row& row, absl::Span<const absl::string_view> texts);
  void SeeId(uint64_t key, absl::string_view text, Field* field);
  void WarnOf(const Field& field, bool all, std::vector<std::string>* warnings) const;

  const std::string part_;
  const bool by_model_;
  int64_t training_rows_ = 0;
  std::vector<Field> fields_;
};

// Samples the ids of the rows that `tandem predict` scores (data.score_only). The result is empty
// for formats without a row a line.
absl::StatusOr<IdCheck> SampleIdsToScore(const job::ResolvedJob& plan);

}  // namespace tandem::data

#endif  // TANDEM_DATA_ID_CHECK_H_
