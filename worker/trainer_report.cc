#include "worker/trainer_report.h"

#include <algorithm>

#include "proto/distribution.h"

namespace tandem::worker {

void TrainerReport::AddStep(const StepSlot& slot, int64_t in_flight) {
  if (watch_rows_) rows_.Add(slot.batch);
  samples_ += slot.samples();
  epoch_samples_ += slot.batch.samples;
  if (slot.skipped) ++skipped_steps_;
  loss_sum_ += slot.loss_sum;
  if (slot.has_loss) {
    loss_samples_ += slot.batch.samples;
    if (slot.batch.samples > 0) losses_.Add(slot.loss_sum, slot.batch.samples);
  }
  if (slot.interval_auc > 0) interval_auc_ = slot.interval_auc;
  slept_ += slot.slept;
  joined_ += slot.joined;
  ++steps_;
  if (slot.batch.samples > 0) {
    ++trained_steps_;
    fetched_ += slot.fetched;
    computed_ += slot.computed;
  }
  in_flight_sum_ += static_cast<double>(in_flight);
  in_flight_max_ = std::max(in_flight_max_, static_cast<double>(in_flight));
}

void TrainerReport::AddTrainedBefore(const StepSlot& slot) {
  samples_ += slot.batch.samples;
  epoch_samples_ += slot.batch.samples;
  ++trained_steps_;
}

void TrainerReport::AddSentBefore(uint32_t table, uint64_t updates) {
  if (sent_before_.size() <= table) sent_before_.resize(table + 1);
  sent_before_[table] += updates;
}

void TrainerReport::AddMissedSums(absl::Span<const int64_t> missed) {
  for (const int64_t sums : missed) {
    missed_sums_.Add(static_cast<uint64_t>(sums));
    ++gradients_summed_;
    missed_sum_ += static_cast<double>(sums);
    missed_max_ = std::max(missed_max_, static_cast<double>(sums));
  }
}

void TrainerReport::SetPaused(absl::Time now, bool paused) {
  if (paused == paused_since_.has_value()) return;
  if (paused) {
    paused_since_ = now;
  } else {
    paused_ += now - *std::exchange(paused_since_, std::nullopt);
  }
}

Progress TrainerReport::Take(absl::Time now, const job::ResolvedJob& plan,
                             const client::ClientCore& client, int64_t epoch, int64_t step,
                             bool done) {
  // A report may be lost on its way, so nearly all fields are totals or present values, which the
  // next report repeats. Only the loss is summed since the last report, and its sums are reset
  // here. The order matters in one place: a finished job closes the row fingerprint of its epoch
  // before the fingerprint is read.
  Progress p;
  p.set_epoch(epoch);
  p.set_step(step);
  p.set_trained_steps(trained_steps_);
  p.set_skipped_steps(skipped_steps_);
  p.set_samples(samples_);
  p.set_loss_sum(std::exchange(loss_sum_, 0));
  p.set_loss_samples(std::exchange(loss_samples_, 0));
  constexpr double kEnd = 0.1;  // the last tenth of the samples
  const LossHistory::Part end = losses_.Last(kEnd);
  p.set_end_loss_sum(end.loss);
  p.set_end_loss_samples(end.samples);
  if (estimated_rows_ > 0) {
    p.set_epoch_fraction(
        std::min(1.0, static_cast<double>(epoch_samples_) / static_cast<double>(estimated_rows_)));
  }
  p.set_auc(interval_auc_);
  p.set_epochs_trained(epochs_trained_);
  p.set_done(done);
  if (done) rows_.EndEpoch(/*whole=*/true);  // the whole epoch, or the part that the job takes
  p.set_first_rows(rows_.first_rows());
  p.set_epoch_rows(rows_.epoch());
  p.set_fetched_seconds(absl::ToDoubleSeconds(fetched_));
  p.set_computed_seconds(absl::ToDoubleSeconds(computed_));
  p.set_slept_seconds(absl::ToDoubleSeconds(slept_));
  p.set_joined_seconds(absl::ToDoubleSeconds(joined_));
  // A pause in progress counts too: a checkpoint written during the pause keeps this report.
  const absl::Duration pause =
      paused_since_.has_value() ? now - *paused_since_ : absl::ZeroDuration();
  p.set_paused_seconds(absl::ToDoubleSeconds(paused_ + pause));
  const client::ClientCore::Counters& c = client.counters();
  if (c.shortest_read != absl::InfiniteDuration()) {
    p.set_shortest_read_seconds(absl::ToDoubleSeconds(c.shortest_read));
  }
  p.set_frames_resent(c.frames_resent);
  auto& bytes = *p.mutable_bytes();
  bytes["pull"] = c.pull_bytes;
  bytes["rows"] = c.rows_bytes;
  bytes["push"] = c.push_bytes;
  bytes["ack"] = c.ack_bytes;
  if (c.refresh_bytes > 0) bytes["refresh"] = c.refresh_bytes;
  if (plan.workers_serve) bytes["within_worker"] = c.within_bytes;
  bytes["collective"] = collective_bytes_;
  Distribution& in_flight = *p.mutable_in_flight_depth();
  in_flight.set_count(steps_);
  in_flight.set_sum(in_flight_sum_);
  in_flight.set_max(in_flight_max_);
  if (gradients_summed_ > 0) {
    Distribution& missed = *p.mutable_dense_staleness();
    missed.set_count(gradients_summed_);
    missed.set_sum(missed_sum_);
    missed.set_max(missed_max_);
    FillBuckets(missed_sums_, &missed);
  }
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    const uint64_t before = t < sent_before_.size() ? sent_before_[t] : 0;
    p.add_updates(client.updates_sent()[t] + before);
  }
  p.set_evaluation_json(evaluation_json_);
  if (has_evaluation()) {
    p.set_evaluation(evaluation_);
    p.set_evaluation_aside(evaluation_aside_);
  }
  if (best_.has_value()) *p.mutable_best() = *best_;
  p.set_epochs_to_first_judged(epochs_to_first_judged_);
  return p;
}

}  // namespace tandem::worker
