// The GPU checks and benchmarks as one program, for machines without GoogleTest: see
// tests/bench/gpu.sh. Exits with 0 if nothing failed, 1 otherwise, 77 if there is no device.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "collectives/cuda/device_allreduce.h"
#include "tests/cuda/gpu_bench.h"
#include "tests/cuda/gpu_checks.h"
#include "tests/cuda/processes.h"

namespace tandem {
namespace {

constexpr char kUsage[] =
    "usage: gpu_check [--bench] [--small] [--seed=N] [--json=FILE] [CHECK...]\n"
    "  --bench      the benchmarks instead of the checks\n"
    "  --small      fewer and smaller vectors\n"
    "  CHECK        only the checks named (all if none is)\n";

struct Arguments {
  bool bench = false;
  std::string json;
  GpuCheckOptions options;
  std::vector<std::string> only;
};

bool Parse(int argc, char** argv, Arguments* out) {
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--bench") {
      out->bench = true;
    } else if (arg == "--small") {
      out->options.small = true;
    } else if (arg.rfind("--seed=", 0) == 0) {
      out->options.seed = std::strtoull(arg.c_str() + 7, nullptr, 10);
    } else if (arg.rfind("--json=", 0) == 0) {
      out->json = arg.substr(7);
    } else if (arg.rfind("--", 0) == 0) {
      return false;
    } else {
      out->only.push_back(arg);
    }
  }
  return true;
}

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

bool Wanted(const Arguments& arguments, const std::string& name) {
  if (arguments.only.empty()) return true;
  for (const std::string& one : arguments.only) {
    if (one == name) return true;
  }
  return false;
}

void Write(const std::string& file, const std::string& lines) {
  if (!file.empty()) std::ofstream(file) << "[\n" << lines << "\n]\n";
}

int RunChecks(const Arguments& arguments) {
  int failed = 0, ran = 0;
  std::string json;
  for (const GpuCheck& check : GpuChecks()) {
    if (!Wanted(arguments, check.name)) continue;
    std::printf("%-16s ", check.name);
    std::fflush(stdout);
    const std::string wrong = check.run(arguments.options);
    const bool skipped = wrong.rfind(kSkip, 0) == 0;
    const char* const outcome = wrong.empty() ? "passed" : skipped ? "skipped" : "FAILED";
    const std::string why = skipped ? wrong.substr(sizeof(kSkip) - 1) : wrong;
    std::printf("%-8s %s%s%s\n", outcome, check.shows, why.empty() ? "" : ": ", why.c_str());
    failed += !wrong.empty() && !skipped;
    ++ran;
    json += (json.empty() ? "" : ",\n") + std::string("{\"check\": ") + Quoted(check.name) +
            ", \"outcome\": " + Quoted(outcome) + ", \"why\": " + Quoted(why) + "}";
  }
  Write(arguments.json, json);
  if (ran == 0) std::fputs("no such check\n", stderr);
  return failed == 0 && ran > 0 ? 0 : 1;
}

int RunBench(const Arguments& arguments) {
  GpuBenchOptions options;
  if (arguments.options.small) {
    options.device_bytes = size_t{1} << 20;
    options.staged_bytes = size_t{8} << 20;
    options.repetitions = 3;
    options.bars = false;
  }
  std::vector<GpuFigure> figures;
  const std::string wrong = RunGpuBench(options, &figures);
  std::string json;
  int missed = 0;
  std::printf("%-44s %10s %-5s %7s %9s\n", "", "value", "", "spread", "at least");
  for (const GpuFigure& f : figures) {
    const bool ok = f.value >= f.at_least;
    missed += !ok;
    std::printf("%-44s %10.2f %-5s %6.0f%% ", f.name.c_str(), f.value, f.unit.c_str(),
                100 * f.spread);
    if (f.at_least > 0) std::printf("%9.2f %s", f.at_least, ok ? "" : "MISSED");
    std::printf(" %s\n", f.note.c_str());
    char line[512];
    std::snprintf(line, sizeof(line),
                  "{\"name\": %s, \"value\": %.6g, \"unit\": %s, \"spread\": %.4g, "
                  "\"at_least\": %.4g, \"note\": %s}",
                  Quoted(f.name).c_str(), f.value, Quoted(f.unit).c_str(), f.spread, f.at_least,
                  Quoted(f.note).c_str());
    json += (json.empty() ? "" : ",\n") + std::string(line);
  }
  Write(arguments.json, json);
  if (!wrong.empty()) std::printf("FAILED: %s\n", wrong.c_str());
  return wrong.empty() && missed == 0 ? 0 : 1;
}

// In a child: a parent that has asked CUDA anything must not fork children that use it.
std::string WhyNoDevice() {
  return RunProcesses(1, std::chrono::seconds(120), [](Peer&) {
    std::string why;
    return collectives::HaveDevice(&why) ? std::string() : kSkip + why;
  });
}

int Main(int argc, char** argv) {
  Arguments arguments;
  if (!Parse(argc, argv, &arguments)) {
    std::fputs(kUsage, stderr);
    return 2;
  }
  std::printf("seed %llu\n", arguments.options.seed);
  const std::string why = WhyNoDevice();
  if (!why.empty()) std::printf("no device: %s\n", why.substr(sizeof(kSkip) - 1).c_str());
  if (arguments.bench) return why.empty() ? RunBench(arguments) : 77;
  const int result = RunChecks(arguments);
  return result == 0 && !why.empty() ? 77 : result;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) { return tandem::Main(argc, argv); }
