// libtandem_arrow.so: Parquet and Arrow files as streams of Arrow's C interface (module.h).
#include "data/arrow/module.h"

#include <arrow/array.h>
#include <arrow/c/bridge.h>
#include <arrow/config.h>
#include <arrow/filesystem/filesystem.h>
#include <arrow/filesystem/localfs.h>
#include <arrow/io/file.h>
#include <arrow/ipc/reader.h>
#include <arrow/record_batch.h>
#include <arrow/type_traits.h>
#include <arrow/util/config.h>
#include <dlfcn.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/arrow/writer.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int64_t kBatchRows = 8192;

// ---- files and addresses ----------------------------------------------------------------------

bool IsAddress(const std::string& path) { return path.find("://") != std::string::npos; }

// Loads the library that has Arrow's code for s3://, if there is one beside libarrow.so. Without
// it this code is inside libarrow.so, or Arrow's error says that it is missing.
arrow::Status LoadScheme(const std::string& path) {
  if (path.compare(0, 5, "s3://") != 0) return arrow::Status::OK();
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&arrow::GetBuildInfo), &info) == 0) {
    return arrow::Status::OK();
  }
  std::string library = info.dli_fname;
  const size_t name = library.rfind("libarrow.so");
  if (name == std::string::npos) return arrow::Status::OK();
  library.insert(name + std::strlen("libarrow"), "_s3");
  if (FILE* const there = std::fopen(library.c_str(), "rb"); there != nullptr) {
    std::fclose(there);
    return arrow::fs::LoadFileSystemFactories(library.c_str());
  }
  return arrow::Status::OK();
}

struct Place {
  std::shared_ptr<arrow::fs::FileSystem> files;
  std::string path;  // in `files`
};

arrow::Result<Place> Find(const std::string& path) {
  Place place;
  if (!IsAddress(path)) {  // Arrow takes absolute names only
    place.files = std::make_shared<arrow::fs::LocalFileSystem>();
    place.path = std::filesystem::absolute(path).string();
    return place;
  }
  ARROW_RETURN_NOT_OK(LoadScheme(path));
  ARROW_ASSIGN_OR_RAISE(place.files, arrow::fs::FileSystemFromUri(path, &place.path));
  // The S3 library has threads, which must end before its static objects do. Functions given to
  // atexit() run in reverse order, so this one runs before the destructors of the library.
  static std::once_flag once;
  std::call_once(once, [] { std::atexit([] { arrow::fs::EnsureFinalized(); }); });
  return place;
}

// ---- reading ----------------------------------------------------------------------------------

class File {
 public:
  virtual ~File() = default;
  virtual std::shared_ptr<arrow::Schema> schema() const = 0;
  virtual std::vector<int64_t> BlockRows() = 0;
  // The places of the file's columns in `read`, which has an order of its own.
  std::vector<int> OrderIn(const arrow::Schema& read, const std::vector<int>& columns) const {
    std::vector<int> order;
    for (const int column : columns) {
      order.push_back(read.GetFieldIndex(schema()->field(column)->name()));
    }
    return order;
  }
  // Returns a reader of one block with some of the columns. The reader may outlive the file.
  virtual arrow::Result<std::shared_ptr<arrow::RecordBatchReader>> Read(
      int block, const std::vector<int>& columns) = 0;
};

// A reader that keeps its file open, and returns some columns in a given order.
class Kept final : public arrow::RecordBatchReader {
 public:
  // `order`: the places of the columns to return among those of `reader`.
  Kept(std::shared_ptr<void> file, std::shared_ptr<arrow::RecordBatchReader> reader,
       std::vector<int> order)
      : file_(std::move(file)), reader_(std::move(reader)), order_(std::move(order)) {
    std::vector<std::shared_ptr<arrow::Field>> fields;
    for (const int column : order_) fields.push_back(reader_->schema()->field(column));
    schema_ = arrow::schema(std::move(fields));
  }
  std::shared_ptr<arrow::Schema> schema() const override { return schema_; }
  arrow::Status ReadNext(std::shared_ptr<arrow::RecordBatch>* batch) override {
    try {
      ARROW_RETURN_NOT_OK(reader_->ReadNext(batch));
      if (*batch == nullptr) return arrow::Status::OK();
      ARROW_ASSIGN_OR_RAISE(*batch, (*batch)->SelectColumns(order_));
      return (*batch)->Validate();
    } catch (const std::exception& error) {
      return arrow::Status::IOError(error.what());
    }
  }

 private:
  const std::shared_ptr<void> file_;
  const std::shared_ptr<arrow::RecordBatchReader> reader_;
  const std::vector<int> order_;
  std::shared_ptr<arrow::Schema> schema_;
};

void AddLeaves(const parquet::arrow::SchemaField& field, std::vector<int>* leaves) {
  if (field.is_leaf()) leaves->push_back(field.column_index);
  for (const parquet::arrow::SchemaField& child : field.children) AddLeaves(child, leaves);
}

class ParquetFile final : public File {
 public:
  // `far`: the file is at an address. Requests take long, so few large ones are better.
  static arrow::Result<std::unique_ptr<File>> Open(
      std::shared_ptr<arrow::io::RandomAccessFile> bytes, bool far) {
    parquet::ArrowReaderProperties properties;
    properties.set_batch_size(kBatchRows);
    properties.set_use_threads(false);
    properties.set_pre_buffer(far);
    // Arrow's default for INT96 is nanoseconds, which end in the year 2262.
    properties.set_coerce_int96_timestamp_unit(arrow::TimeUnit::MICRO);
    parquet::arrow::FileReaderBuilder builder;
    ARROW_RETURN_NOT_OK(builder.Open(std::move(bytes)));
    std::unique_ptr<parquet::arrow::FileReader> reader;
    ARROW_RETURN_NOT_OK(builder.properties(properties)->Build(&reader));
    auto file = std::make_unique<ParquetFile>();
    file->reader_ = std::move(reader);
    ARROW_RETURN_NOT_OK(file->reader_->GetSchema(&file->schema_));
    return file;
  }
  std::shared_ptr<arrow::Schema> schema() const override { return schema_; }
  std::vector<int64_t> BlockRows() override {
    std::vector<int64_t> rows;
    const auto metadata = reader_->parquet_reader()->metadata();
    for (int i = 0; i < metadata->num_row_groups(); ++i) {
      rows.push_back(metadata->RowGroup(i)->num_rows());
    }
    return rows;
  }
  arrow::Result<std::shared_ptr<arrow::RecordBatchReader>> Read(
      int block, const std::vector<int>& columns) override {
    std::vector<int> leaves;
    for (const int column : columns) {
      AddLeaves(reader_->manifest().schema_fields[static_cast<size_t>(column)], &leaves);
    }
    ARROW_ASSIGN_OR_RAISE(std::shared_ptr<arrow::RecordBatchReader> rows,
                          reader_->GetRecordBatchReader({block}, leaves));
    std::vector<int> order = OrderIn(*rows->schema(), columns);
    return std::make_shared<Kept>(reader_, std::move(rows), std::move(order));
  }

 private:
  std::shared_ptr<parquet::arrow::FileReader> reader_;
  std::shared_ptr<arrow::Schema> schema_;
};

using IpcReader = arrow::ipc::RecordBatchFileReader;

class ArrowFile final : public File {
 public:
  static arrow::Result<std::unique_ptr<File>> Open(
      std::shared_ptr<arrow::io::RandomAccessFile> bytes) {
    auto file = std::make_unique<ArrowFile>();
    file->bytes_ = std::move(bytes);
    ARROW_ASSIGN_OR_RAISE(const auto whole, IpcReader::Open(file->bytes_));
    file->schema_ = whole->schema();
    // Only a batch that was read tells its rows. Reading one column of numbers is cheap.
    int cheap = 0;
    while (cheap < file->schema_->num_fields() &&
           !arrow::is_primitive(file->schema_->field(cheap)->type()->id())) {
      ++cheap;
    }
    ARROW_ASSIGN_OR_RAISE(const auto reader,
                          file->Reader({cheap < file->schema_->num_fields() ? cheap : 0}));
    for (int i = 0; i < reader->num_record_batches(); ++i) {
      ARROW_ASSIGN_OR_RAISE(const auto batch, reader->ReadRecordBatch(i));
      file->rows_.push_back(batch->num_rows());
    }
    return file;
  }
  std::shared_ptr<arrow::Schema> schema() const override { return schema_; }
  std::vector<int64_t> BlockRows() override { return rows_; }
  arrow::Result<std::shared_ptr<arrow::RecordBatchReader>> Read(
      int block, const std::vector<int>& columns) override {
    if (reader_ == nullptr || columns != read_) {
      ARROW_ASSIGN_OR_RAISE(reader_, Reader(columns));
      read_ = columns;
    }
    ARROW_ASSIGN_OR_RAISE(const auto batch, reader_->ReadRecordBatch(block));
    // A damaged file may have any bytes, and Arrow has checked only the sizes of each column.
    ARROW_RETURN_NOT_OK(batch->ValidateFull());
    ARROW_ASSIGN_OR_RAISE(auto rows, arrow::RecordBatchReader::Make({batch}, batch->schema()));
    return std::make_shared<Kept>(nullptr, std::move(rows), OrderIn(*batch->schema(), columns));
  }

 private:
  // Returns a reader of some columns, at least one: without a column it would read all.
  arrow::Result<std::shared_ptr<IpcReader>> Reader(std::vector<int> columns) const {
    auto options = arrow::ipc::IpcReadOptions::Defaults();
    options.included_fields = std::move(columns);
    options.use_threads = false;
    return IpcReader::Open(bytes_, options);
  }

  std::shared_ptr<arrow::io::RandomAccessFile> bytes_;
  std::shared_ptr<arrow::Schema> schema_;
  std::shared_ptr<IpcReader> reader_;  // for the columns read_
  std::vector<int> read_;
  std::vector<int64_t> rows_;
};

arrow::Result<std::unique_ptr<File>> OpenFile(const std::string& path) {
  ARROW_ASSIGN_OR_RAISE(const Place place, Find(path));
  ARROW_ASSIGN_OR_RAISE(auto bytes, place.files->OpenInputFile(place.path));
  constexpr int64_t kMagic = 6;
  ARROW_ASSIGN_OR_RAISE(const auto magic, bytes->ReadAt(0, kMagic));
  const std::string start = magic->ToString();
  if (start == "ARROW1") return ArrowFile::Open(std::move(bytes));
  constexpr std::pair<const char*, const char*> kOthers[] = {
      {"FEA1", "a Feather file of version 1, expected Parquet or Arrow; hint: write version 2"},
      {"\xff\xff\xff\xff", "a stream of Arrow, expected a file; hint: pyarrow.ipc.new_file"},
      {"\x28\xb5\x2f\xfd",
       "compressed by zstd, expected Parquet; hint: unpack it, as Parquet "
       "files are compressed inside"},
      {"\x1f\x8b",
       "compressed by gzip, expected Parquet; hint: unpack it, as Parquet files are "
       "compressed inside"}};
  for (const auto& [other, what] : kOthers) {
    if (start.rfind(other, 0) == 0) return arrow::Status::Invalid("it is ", what);
  }
  return ParquetFile::Open(std::move(bytes), IsAddress(path));
}

// ---- writing ----------------------------------------------------------------------------------

arrow::Status WriteRows(const Place& place, const std::string& path, arrow::RecordBatchReader* rows,
                        int64_t rows_per_group) {
  ARROW_ASSIGN_OR_RAISE(auto out, place.files->OpenOutputStream(path));
  const auto properties = parquet::WriterProperties::Builder()
                              .compression(parquet::Compression::ZSTD)
                              ->max_row_group_length(rows_per_group)
                              ->build();
  ARROW_ASSIGN_OR_RAISE(
      auto writer, parquet::arrow::FileWriter::Open(*rows->schema(), arrow::default_memory_pool(),
                                                    out, properties));
  for (;;) {
    std::shared_ptr<arrow::RecordBatch> batch;
    ARROW_RETURN_NOT_OK(rows->ReadNext(&batch));
    if (batch == nullptr) break;
    ARROW_RETURN_NOT_OK(writer->WriteRecordBatch(*batch));
  }
  ARROW_RETURN_NOT_OK(writer->Close());
  return out->Close();
}

arrow::Status WriteFile(const std::string& path, arrow::RecordBatchReader* rows,
                        int64_t rows_per_group) {
  ARROW_ASSIGN_OR_RAISE(const Place place, Find(path));
  // An object in S3 appears when it is complete. A local file has another name until then.
  if (IsAddress(path)) return WriteRows(place, place.path, rows, rows_per_group);
  const std::string partial = place.path + ".partial";
  arrow::Status written = WriteRows(place, partial, rows, rows_per_group);
  if (written.ok()) written = place.files->Move(partial, place.path);
  if (!written.ok()) (void)place.files->DeleteFile(partial);
  return written;
}

// ---- the C interface --------------------------------------------------------------------------

// Runs `action`; 0, or -1 with the first line of its error.
int Answer(char** error, const std::function<arrow::Status()>& action) {
  std::string text;
  try {
    const arrow::Status status = action();
    if (status.ok()) return 0;
    text = status.message();
  } catch (const std::exception& thrown) {
    text = thrown.what();
  }
  *error = strdup(text.substr(0, text.find('\n')).c_str());
  return -1;
}

int Open(const char* path, void** file, ArrowSchema* schema, void (*rows_of)(void*, int64_t),
         void* context, char** error) {
  return Answer(error, [&]() -> arrow::Status {
    ARROW_ASSIGN_OR_RAISE(auto opened, OpenFile(path));
    ARROW_RETURN_NOT_OK(arrow::ExportSchema(*opened->schema(), schema));
    for (const int64_t rows : opened->BlockRows()) rows_of(context, rows);
    *file = opened.release();
    return arrow::Status::OK();
  });
}

int Read(void* file, int64_t block, const int32_t* columns, int32_t count, ArrowArrayStream* rows,
         char** error) {
  return Answer(error, [&]() -> arrow::Status {
    ARROW_ASSIGN_OR_RAISE(
        auto reader, static_cast<File*>(file)->Read(static_cast<int>(block),
                                                    std::vector<int>(columns, columns + count)));
    return arrow::ExportRecordBatchReader(std::move(reader), rows);
  });
}

void Close(void* file) { delete static_cast<File*>(file); }

int Stat(const char* path, int64_t* bytes, int64_t* changed_ns, char** error) {
  return Answer(error, [&]() -> arrow::Status {
    ARROW_ASSIGN_OR_RAISE(const Place place, Find(path));
    ARROW_ASSIGN_OR_RAISE(const auto info, place.files->GetFileInfo(place.path));
    *bytes = info.IsFile() ? info.size() : -1;
    *changed_ns = info.IsFile() ? info.mtime().time_since_epoch().count() : 0;
    return arrow::Status::OK();
  });
}

int List(const char* folder, void (*found)(void*, const char*), void* context, char** error) {
  return Answer(error, [&]() -> arrow::Status {
    ARROW_ASSIGN_OR_RAISE(const Place place, Find(folder));
    arrow::fs::FileSelector selector;
    selector.base_dir = place.path;
    ARROW_ASSIGN_OR_RAISE(const auto infos, place.files->GetFileInfo(selector));
    for (const arrow::fs::FileInfo& info : infos) {
      if (info.IsFile()) found(context, info.base_name().c_str());
    }
    return arrow::Status::OK();
  });
}

int Write(const char* path, ArrowArrayStream* rows, int64_t rows_per_group, char** error) {
  return Answer(error, [&]() -> arrow::Status {
    ARROW_ASSIGN_OR_RAISE(const auto reader, arrow::ImportRecordBatchReader(rows));
    return WriteFile(path, reader.get(), rows_per_group);
  });
}

}  // namespace

__attribute__((visibility("default"))) const tandem_arrow_module* tandem_arrow(void) {
  static constexpr tandem_arrow_module kModule = {
      TANDEM_ARROW_MODULE, ARROW_VERSION_STRING, Open, Read, Close, Stat, List, Write};
  return &kModule;
}
