// The three structs of Arrow's C data interface and C stream interface, which are the same in all
// versions of Arrow and in all libraries that speak it (pyarrow, pandas, polars, DuckDB). Their
// layout: https://arrow.apache.org/docs/format/CDataInterface.html
//
// The receiver of a struct calls its `release` once. A struct without `release` is empty.
#ifndef TANDEM_DATA_ARROW_ABI_H_
#define TANDEM_DATA_ARROW_ABI_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// The macros are those of Arrow's own header, so that a source may include both.
#ifndef ARROW_C_DATA_INTERFACE
#define ARROW_C_DATA_INTERFACE

// A type, such as that of a column.
struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;
  int64_t flags;
  int64_t n_children;
  struct ArrowSchema** children;
  struct ArrowSchema* dictionary;
  void (*release)(struct ArrowSchema*);
  void* private_data;
};

// The values of a column, or the columns of a batch.
struct ArrowArray {
  int64_t length;
  int64_t null_count;
  int64_t offset;
  int64_t n_buffers;
  int64_t n_children;
  const void** buffers;
  struct ArrowArray** children;
  struct ArrowArray* dictionary;
  void (*release)(struct ArrowArray*);
  void* private_data;
};

#endif  // ARROW_C_DATA_INTERFACE

#ifndef ARROW_C_STREAM_INTERFACE
#define ARROW_C_STREAM_INTERFACE

// Batches of one type. The functions return 0, or an errno with a text in get_last_error. An array
// without `release` ends the stream.
struct ArrowArrayStream {
  int (*get_schema)(struct ArrowArrayStream*, struct ArrowSchema* out);
  int (*get_next)(struct ArrowArrayStream*, struct ArrowArray* out);
  const char* (*get_last_error)(struct ArrowArrayStream*);
  void (*release)(struct ArrowArrayStream*);
  void* private_data;
};

#endif  // ARROW_C_STREAM_INTERFACE

#ifdef __cplusplus
}
#endif

#endif  // TANDEM_DATA_ARROW_ABI_H_
