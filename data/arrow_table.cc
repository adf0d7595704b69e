#include "data/arrow_table.h"

#include <array>
#include <cerrno>
#include <memory>
#include <utility>

namespace tandem::data {

// The values of a stream and the structs that describe them. Stream, schema and batch share it,
// because each may outlive the others.
struct ArrowTable::Stream {
  explicit Stream(ArrowTable t) : table(std::move(t)) {
    const size_t count = table.columns_.size();
    schemas.resize(count);
    arrays.resize(count);
    buffers.resize(count);
    for (size_t i = 0; i < count; ++i) {
      const Column& column = table.columns_[i];
      const bool text = !column.offsets.empty();
      schemas[i].format = text ? "U" : "g";
      schemas[i].name = column.name.c_str();
      schemas[i].release = [](ArrowSchema* schema) { schema->release = nullptr; };
      buffers[i] = {nullptr,
                    text ? static_cast<const void*>(column.offsets.data())
                         : static_cast<const void*>(column.doubles.data()),
                    column.bytes.data()};
      arrays[i].length = table.rows_;
      arrays[i].n_buffers = text ? 3 : 2;
      arrays[i].buffers = buffers[i].data();
      arrays[i].release = [](ArrowArray* array) { array->release = nullptr; };
      schema_pointers.push_back(&schemas[i]);
      array_pointers.push_back(&arrays[i]);
    }
  }

  ArrowTable table;
  std::vector<ArrowSchema> schemas;
  std::vector<ArrowArray> arrays;
  std::vector<ArrowSchema*> schema_pointers;
  std::vector<ArrowArray*> array_pointers;
  std::vector<std::array<const void*, 3>> buffers;
  const void* no_nulls = nullptr;  // the buffer of the batch
  bool read = false;
};

void ArrowTable::AddText(std::string name, absl::Span<const std::string> values) {
  Column& column = columns_.emplace_back();
  column.name = std::move(name);
  column.offsets.push_back(0);
  for (const std::string& value : values) {
    column.bytes += value;
    column.offsets.push_back(static_cast<int64_t>(column.bytes.size()));
  }
}

void ArrowTable::AddDoubles(std::string name, std::vector<double> values) {
  Column& column = columns_.emplace_back();
  column.name = std::move(name);
  column.doubles = std::move(values);
}

namespace {

// The `private_data` of each struct is a holder of the values.
template <typename Struct, typename Stream>
void Hold(const std::shared_ptr<Stream>& stream, Struct* out) {
  out->private_data = new std::shared_ptr<Stream>(stream);
  out->release = [](Struct* held) {
    delete static_cast<std::shared_ptr<Stream>*>(held->private_data);
    held->release = nullptr;
  };
}

}  // namespace

ArrowArrayStream ArrowTable::ToStream() && {
  using Held = std::shared_ptr<Stream>;
  ArrowArrayStream out = {};
  Hold(std::make_shared<Stream>(std::move(*this)), &out);
  out.get_schema = [](ArrowArrayStream* from, ArrowSchema* schema) {
    const Held& stream = *static_cast<Held*>(from->private_data);
    *schema = {};
    schema->format = "+s";
    schema->name = "";
    schema->n_children = static_cast<int64_t>(stream->schemas.size());
    schema->children = stream->schema_pointers.data();
    Hold(stream, schema);
    return 0;
  };
  out.get_next = [](ArrowArrayStream* from, ArrowArray* batch) {
    const Held& stream = *static_cast<Held*>(from->private_data);
    *batch = {};
    if (std::exchange(stream->read, true)) return 0;
    batch->length = stream->table.rows_;
    batch->n_buffers = 1;
    batch->buffers = &stream->no_nulls;
    batch->n_children = static_cast<int64_t>(stream->arrays.size());
    batch->children = stream->array_pointers.data();
    Hold(stream, batch);
    return 0;
  };
  out.get_last_error = [](ArrowArrayStream*) -> const char* { return nullptr; };
  return out;
}

}  // namespace tandem::data
