// ArrowStream reads a stream of Arrow's C interface (data/arrow_abi.h): batches of columns, whose
// values it returns as cells with types. No library of Arrow is needed.
//
// Types: integers, floats, booleans, text and bytes (also large ones and views), decimals of up to
// 128 bits, dates, timestamps, dictionaries of these, and lists of these. Errors name other types.
//
// Thread safety: one thread at a time.
#ifndef TANDEM_DATA_ARROW_COLUMNS_H_
#define TANDEM_DATA_ARROW_COLUMNS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "data/arrow_abi.h"
#include "data/typed_cells.h"

namespace tandem::data {

// The type of a column, with only the properties that make a difference for cells.
struct ArrowType {
  enum class Kind {
    kNull,
    kBool,
    kInteger,
    kUnsigned,
    kHalf,
    kFloat,
    kDouble,
    kText,       // 32-bit offsets
    kLargeText,  // 64-bit offsets
    kTextView,
    kFixedBytes,
    kDecimal,
    kDays,  // a date as a 32-bit number of days
    kTime,  // a 64-bit number of units
    kList,
    kLargeList,
    kListView,
    kLargeListView,
    kFixedList,
  };
  Kind kind = Kind::kNull;
  int bytes = 0;          // of a value, if fixed; kFixedList: the number of items
  int scale = 0;          // digits behind the point of a decimal
  double per_second = 1;  // units of kTime in a second
  std::string name;       // for messages: "int64", "list of text"
  bool is_list() const { return kind >= Kind::kList; }
  bool is_time() const { return kind == Kind::kDays || kind == Kind::kTime; }
  std::unique_ptr<ArrowType> items;       // the type of a list's items
  std::unique_ptr<ArrowType> dictionary;  // the type of the values; this is that of their numbers
  // The type of the values.
  const ArrowType& values() const { return dictionary != nullptr ? *dictionary : *this; }
};

// INVALID_ARGUMENT "type map, expected ..." for a type that cells cannot have.
absl::StatusOr<ArrowType> ReadArrowType(const ArrowSchema& schema);

// A column of a batch. The batch must outlive it and must not move. Cells are [0, length).
class ArrowColumn {
 public:
  // INVALID_ARGUMENT if the array cannot be of this type. `offset`: the batch's, in rows.
  absl::Status Set(const ArrowType& type, const ArrowArray& array, int64_t offset);
  // Reads a cell, whose text refers to the batch. Reuses the memory of `cell`. INVALID_ARGUMENT if
  // the array is damaged.
  absl::Status Get(int64_t row, TypedCell* cell);
  const ArrowType& type() const { return *type_; }

 private:
  bool IsNull(int64_t row) const;
  int64_t Integer(int64_t row) const;
  absl::Status GetText(int64_t row, TypedCell* cell) const;
  absl::Status GetList(int64_t row, TypedCell* cell);
  void GetDecimal(int64_t row, TypedCell* cell) const;
  template <typename T>
  const T* Values(int buffer) const {
    return static_cast<const T*>(array_->buffers[buffer]) + offset_;
  }

  const ArrowType* type_ = nullptr;
  const ArrowArray* array_ = nullptr;
  int64_t offset_ = 0;
  int64_t text_end_ = 0;                // kText and kLargeText: bytes of all texts
  std::unique_ptr<ArrowColumn> inner_;  // items, or values of the dictionary
};

// A stream with the columns that a reader wants.
class ArrowStream {
 public:
  // Takes `stream` over, and leaves an empty struct. `name` appears in messages.
  static absl::StatusOr<std::unique_ptr<ArrowStream>> Take(std::string name,
                                                           ArrowArrayStream* stream);
  ~ArrowStream();
  ArrowStream(const ArrowStream&) = delete;
  ArrowStream& operator=(const ArrowStream&) = delete;

  const std::string& name() const { return name_; }
  // The columns of the stream. A type that cells cannot have is an error only if it is read.
  const std::vector<std::string>& columns() const { return columns_; }
  // INVALID_ARGUMENT: cells cannot have the type.
  absl::StatusOr<const ArrowType*> TypeOf(size_t column) const;

  // Goes to the next batch; false at the end. column() then returns its columns `wanted`.
  absl::StatusOr<bool> Next(const std::vector<size_t>& wanted);
  int64_t rows() const { return batch_.length; }
  // The column wanted[i].
  ArrowColumn& column(size_t i) { return read_[i]; }

 private:
  ArrowStream(std::string name, ArrowArrayStream* stream);
  absl::Status Init();
  absl::Status Error(int code);
  void Release();

  const std::string name_;
  ArrowArrayStream stream_;
  ArrowSchema schema_ = {};
  ArrowArray batch_ = {};
  std::vector<std::string> columns_;
  std::vector<absl::StatusOr<ArrowType>> types_;
  std::vector<ArrowColumn> read_;
};

}  // namespace tandem::data

#endif  // TANDEM_DATA_ARROW_COLUMNS_H_
