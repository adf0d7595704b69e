#include "node/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include "absl/strings/str_cat.h"

namespace tandem::node {
namespace {

spdlog::string_view_t View(absl::string_view text) { return {text.data(), text.size()}; }

}  // namespace

Log::Log(const std::string& role, int rank)
    : logger_(std::make_shared<spdlog::logger>(rank < 0 ? role : absl::StrCat(role, " ", rank),
                                               std::make_shared<spdlog::sinks::stderr_sink_mt>())) {
  logger_->set_pattern("%Y-%m-%d %H:%M:%S.%e %l %n: %v");
}

void Log::Info(absl::string_view line) const { logger_->log(spdlog::level::info, View(line)); }
void Log::Warning(absl::string_view line) const { logger_->log(spdlog::level::warn, View(line)); }
void Log::Error(absl::string_view line) const { logger_->log(spdlog::level::err, View(line)); }

void BoundedLog::Warning(const Log& log, absl::string_view line) {
  if (written_ >= kMost) return;
  log.Warning(line);
  if (++written_ == kMost) log.Warning("more lines like these are not logged");
}

}  // namespace tandem::node
