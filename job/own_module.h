// Models that the job file does not describe: a program's module, or one from a file. Each worker has its
// own, so workers compare theirs before they train, and saves keep what is in it beside parameters.
#ifndef TANDEM_JOB_OWN_MODULE_H_
#define TANDEM_JOB_OWN_MODULE_H_

#include "proto/job.pb.h"

namespace tandem::job {

inline bool HasOwnModule(const Model& model) { return model.has_program() || model.has_script(); }

}  // namespace tandem::job

#endif  // TANDEM_JOB_OWN_MODULE_H_
