#include "node/log.h"

#include <stdlib.h>

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace tandem::node {
namespace {

spdlog::string_view_t View(absl::string_view text) { return {text.data(), text.size()}; }

}  // namespace

bool LogsJson() {
  const char* const format = getenv(kLogFormatVariable);
  return format != nullptr && absl::string_view(format) == "json";
}

Log::Log(const std::string& role, int rank)
    : role_(role),
      rank_(rank),
      json_(LogsJson()),
      logger_(std::make_shared<spdlog::logger>(rank < 0 ? role : absl::StrCat(role, " ", rank),
                                               std::make_shared<spdlog::sinks::stderr_sink_mt>())) {
  logger_->set_pattern(json_ ? "%v" : "%Y-%m-%d %H:%M:%S.%e %l %n: %v");
}

void Log::Info(absl::string_view line) const { Write(spdlog::level::info, line); }
void Log::Warning(absl::string_view line) const { Write(spdlog::level::warn, line); }
void Log::Error(absl::string_view line) const { Write(spdlog::level::err, line); }

void Log::Write(int level, absl::string_view line) const {
  const auto at = static_cast<spdlog::level::level_enum>(level);
  if (!json_) return logger_->log(at, View(line));
  const spdlog::string_view_t name = spdlog::level::to_string_view(at);
  nlohmann::json event = {
      {"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone())},
      {"level", std::string(name.data(), name.size())},
      {"role", role_},
      {"text", std::string(line)}};
  if (rank_ >= 0) event["rank"] = rank_;
  logger_->log(at, View(event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
}

std::string TextOfLogLine(const std::string& line) {
  if (line.empty() || line[0] != '{') return line;
  const nlohmann::json event = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto text = event.find("text");
  return text != event.end() && text->is_string() ? text->get<std::string>() : line;
}

void BoundedLog::Warning(const Log& log, absl::string_view line) {
  if (written_ >= kMax) return;
  log.Warning(line);
  if (++written_ == kMax) log.Warning("more lines like these are not logged");
}

}  // namespace tandem::node
