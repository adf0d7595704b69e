// Whether a job may go on from a save: what gives the numbers of a save their meaning, and how a job
// differs from it.
#ifndef TANDEM_SERVER_SAVE_CHECK_H_
#define TANDEM_SERVER_SAVE_CHECK_H_

#include <string>
#include <vector>

#include "job/job.h"
#include "server/manifest.h"

namespace tandem::server {

// Fills in seed, model, optimizer, data, hashing and tables.
void DescribeMeaning(const job::JobPlan& plan, Manifest* manifest);

// One line a difference: what the job has, what the save has, and a hint.
struct SaveFit {
  std::vector<std::string> refused;  // numbers would mean something else than they did
  std::vector<std::string> said;     // what a job that trains on may well change
};

// `only`: these tables of the save are wanted, and nothing else of it; none: all of it.
SaveFit CompareSave(const Manifest& saved, const job::JobPlan& plan,
                    const std::vector<std::string>& only);

}  // namespace tandem::server

#endif  // TANDEM_SERVER_SAVE_CHECK_H_
