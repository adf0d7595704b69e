// The C interface of libtandem_arrow.so, which is the only part of Tandem that is linked with Arrow
// and Parquet. data/arrow_files.h opens it while a program runs, because Arrow's C++ libraries come
// with pyarrow, in a folder and a version that differ from machine to machine.
//
// Functions return 0, or -1 and one line in `*error`, which the caller frees with free(). A path is
// a file, or an address that Arrow supports (s3://, gs://, file://).
//
// Threads: a file belongs to one thread at a time.
#ifndef TANDEM_DATA_ARROW_MODULE_H_
#define TANDEM_DATA_ARROW_MODULE_H_

#include <stdint.h>

#include "data/arrow_abi.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TANDEM_ARROW_MODULE 1  // the version of this struct

struct tandem_arrow_module {
  int32_t version;
  const char* arrow;  // the version of Arrow, such as "26.0.1"

  // Opens a Parquet file, or an Arrow (IPC) file. Writes the columns to `schema`, and calls
  // `rows_of` with the number of rows of each block: of a row group, or of a record batch.
  int (*open)(const char* path, void** file, struct ArrowSchema* schema,
              void (*rows_of)(void* context, int64_t rows), void* context, char** error);
  // Opens a stream of the rows of block `block`, with `count` of the columns, in this order. The
  // file may be closed before the stream.
  int (*read)(void* file, int64_t block, const int32_t* columns, int32_t count,
              struct ArrowArrayStream* rows, char** error);
  void (*close)(void* file);

  // Size and modification time (nanoseconds since 1970) of a file; -1 bytes: there is no file.
  int (*stat)(const char* path, int64_t* bytes, int64_t* changed_ns, char** error);
  // Calls `found` with the name of each file in `folder`, an address without wildcards. The name is
  // the last part of the file's path.
  int (*list)(const char* folder, void (*found)(void* context, const char* name), void* context,
              char** error);

  // Writes a Parquet file with the rows of a stream, and releases the stream. The file appears
  // whole or, after an error, not at all.
  int (*write)(const char* path, struct ArrowArrayStream* rows, int64_t rows_per_group,
               char** error);
};

// The only exported function.
const struct tandem_arrow_module* tandem_arrow(void);

#ifdef __cplusplus
}
#endif

#endif  // TANDEM_DATA_ARROW_MODULE_H_
