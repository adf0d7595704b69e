// Saves, on one worker. A save is one folder (server/manifest.h names it). All workers meet, with
// nothing of theirs on its way; rank 0 makes the folder and writes the dense part there, and each
// what only it knows (of a codec, its replica, its program); all meet again, and the scheduler has
// the servers write their ranges before it lets them go on; then rank 0 writes the manifest and makes
// it the latest one. A worker that is ready pushes nothing until the save is done, so all that is saved is of one moment; while it
// lasts, the worker's reports say where it stands, which the scheduler gives rank 0 to keep with the
// save.
//
// What cannot be written ends a save that the job is for (of the best model, and at the end), and with
// it the job. A save in the middle is only lost:
// whoever could not write says so at the second meeting, the scheduler tells all, rank 0 removes what
// there is, and training goes on.
//
// Thread safety: none needed; one thread.
#ifndef TANDEM_WORKER_SAVING_H_
#define TANDEM_WORKER_SAVING_H_

#include <cstdint>
#include <limits>
#include <string>

#include "absl/time/time.h"
#include "proto/wire.pb.h"
#include "worker/dense_synchroniser.h"
#include "worker/trainer_context.h"
#include "worker/trainer_task.h"

namespace tandem::worker {

// One save, from the moment this worker may meet the others for it.
class Saving {
 public:
  Saving(TrainerContext& context, DenseSynchroniser& synchroniser, SaveId id)
      : context_(context),
        synchroniser_(synchroniser),
        id_(id),
        when_ready_(id == SaveId::kFinal  ? BarrierEnter::LAST_SAVE
                    : id == SaveId::kBest ? BarrierEnter::PAUSE_SAVES
                                          : BarrierEnter::NONE) {}

  // Steps below `step` are to be in it. `name`: of its barriers; `path`: the model folder;
  // `request`: number of the command that asked for it, 0 for the one at the end; `position`: where
  // this worker stands.
  void Begin(const std::string& name, const std::string& path, int64_t step, uint64_t request,
             const TrainPosition& position);
  // True when the save is done.
  bool Advance(absl::Time now, TrainerEffects* effects);
  // Under way: this worker pushes nothing.
  bool holds() const { return stage_ != Stage::kIdle; }
  // All have met: files are written.
  bool past_meeting() const { return stage_ > Stage::kMeet; }
  const TrainPosition& position() const { return position_; }
  // Of the last save: why there is none; empty: it was made.
  const std::string& failure() const { return failure_; }

  void OnCollected() {
    context_.report.AddMissedSums(dense_.missed);
    context_.report.AddCollectiveBytes(dense_.bytes_sent);
    dense_.collected = true;
  }
  // One of its tasks has ended.
  void OnTaskDone(const absl::Status& status);
  // False if the request is none of the save's.
  bool OnCompletion(uint64_t request);

 private:
  enum class Stage { kIdle, kMeet, kCollect, kWrite, kMeetServers, kCommit, kDone };

  bool Step(absl::Time now, TrainerEffects* effects);
  bool Write(TrainerEffects* effects);
  bool MeetServers(absl::Time now, TrainerEffects* effects);
  bool may_fail() const { return id_ == SaveId::kRequested; }
  bool Enter(Stage stage) {
    stage_ = stage;
    return true;
  }
  void Run(TrainerTask task, TrainerEffects* effects);

  TrainerContext& context_;
  DenseSynchroniser& synchroniser_;
  const SaveId id_;
  const BarrierEnter::Action when_ready_;  // what the scheduler does when all are
  Stage stage_ = Stage::kIdle;
  std::string name_, directory_;
  int64_t step_ = 0;
  TrainPosition position_;
  DenseSave dense_;
  std::string bytes_;   // of the dense file
  std::string record_;  // RunRecord
  std::string failure_;
  int tasks_ = 0;  // under way
};

// A save that was asked for in the middle. Workers learn of it at different times: they first agree
// on a step that all of them can still reach, finish the steps below it, and save. It runs beside
// everything else a worker does; evaluations and ends of epochs may come in between. The scheduler
// asks for the next one when all workers have answered that the last is written.
class RequestedSave {
 public:
  RequestedSave(TrainerContext& context, DenseSynchroniser& synchroniser)
      : context_(context), saving_(context, synchroniser, SaveId::kRequested) {}

  // `first_free`: the first step that this worker has not begun. A command that comes again is
  // answered if it is done, and changes nothing else.
  void OnCommand(const Command& command, int64_t first_free);

  // What the rest of the worker is doing.
  struct Rest {
    bool out_of_steps = false;   // at the end of its data: it waits for nobody, and nobody for it
    bool synchronising = false;  // its last step
    TrainPosition position;      // where it stands, if it is between two steps
  };
  // A save is wanted and not made.
  bool wanted() const { return wanted_; }
  // Does one thing that can be done; false if there is none.
  bool Advance(absl::Time now, const Rest& rest, TrainerEffects* effects);

  // The save must not see what this step and later ones change: they may not begin yet.
  int64_t HoldsFrom() const {
    if (!wanted_ && !stays_) return std::numeric_limits<int64_t>::max();
    return step_ < 0 ? first_free_ : step_;
  }
  // Nothing at all may be pushed.
  bool holds_pushes() const { return saving_.holds() || stays_; }
  Saving& saving() { return saving_; }
  const Saving& saving() const { return saving_; }

 private:
  TrainerContext& context_;
  Saving saving_;
  bool wanted_ = false;
  bool hold_ = false;     // after it no step is taken
  bool stays_ = false;    // ... which is now
  uint64_t command_ = 0;  // the last one taken
  absl::Status result_;   // of it
  std::string path_;
  int64_t first_free_ = 0;
  int64_t step_ = -1;  // agreed; -1 = not yet
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_SAVING_H_
