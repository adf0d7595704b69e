/* Calls libtandem.so. */
#include <inttypes.h>
#include <stdio.h>

#include "capi/tandem.h"

int main(void) {
  const int64_t id = 7;
  int64_t hashed = 0;
  if (tandem_hash_ids("city", &id, 1, &hashed) != 0) return puts(tandem_error()), 1;
  printf("%" PRId64 "\n", hashed);
  return 0;
}
