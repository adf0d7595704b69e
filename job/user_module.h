// HasOwnModule tells whether the job's model is a module that the job file does not describe: a
// program's, or one from a file. Each worker loads its own copy. Workers therefore compare their
// modules before they train, and checkpoints keep the module's state in addition to its parameters.
#ifndef TANDEM_JOB_USER_MODULE_H_
#define TANDEM_JOB_USER_MODULE_H_

#include "proto/job.pb.h"

namespace tandem::job {

inline bool HasOwnModule(const Model& model) { return model.has_program() || model.has_script(); }

}  // namespace tandem::job

#endif  // TANDEM_JOB_USER_MODULE_H_
