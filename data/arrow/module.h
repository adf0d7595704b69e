// The C interface of libtandem_arrow.so, which is the only part of Tandem that is linked with Arrow
// and Parquet. data/arrow_files.h opens it while a program runs, because Arrow's C++ libraries come
// with pyarrow, in a folder and a version that differ from machine to machine.
//
// Functions return 0, or -1 and one line in `*error`, which the caller frees with free(). Paths are
// files or addresses that Arrow knows (s3://, gs://, file://).
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

  // Opens a Parquet file, or an Arrow (IPC) file. `rows_of` is called with the rows of each block:
  // a row group, or a record batch. `schema` gets the columns.
  int (*open)(const char* path, void** file, struct ArrowSchema* schema,
              void (*rows_of)(void* context, int64_t rows), void* context, char** error);
  // The rows of one block, with `count` of the columns, in this order. The file may be closed
  // before the stream.
  int (*read)(void* file, int64_t block, const int32_t* columns, int32_t count,
              struct ArrowArrayStream* rows, char** error);
  void (*close)(void* file);

  // Size and time of change of a file; -1 bytes: there is none.
  int (*stat)(const char* path, int64_t* bytes, int64_t* changed_ns, char** error);
  // Calls `found` for each file in the folder of `pattern`, an address, without wildcards there.
  int (*list)(const char* folder, void (*found)(void* context, const char* path), void* context,
              char** error);

  // Writes a Parquet file with the rows of a stream, which it releases. The file appears as a whole
  // or, after an error, not at all.
  int (*write)(const char* path, struct ArrowArrayStream* rows, int64_t rows_per_group,
               char** error);
};

// The only exported function.
const struct tandem_arrow_module* tandem_arrow(void);

#ifdef __cplusplus
}
#endif

#endif  // TANDEM_DATA_ARROW_MODULE_H_
