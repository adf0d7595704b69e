// The report of a study as one HTML page. The page works offline and on paper, with light and dark
// colours, on narrow and wide screens.
//
// Pure; any thread.
#ifndef TANDEM_TOOLS_STUDY_REPORT_PAGE_H_
#define TANDEM_TOOLS_STUDY_REPORT_PAGE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "tools/study/analysis.h"
#include "tools/study/figures.h"
#include "tools/study/manifest.h"

namespace tandem::study {

std::string ReportPage(const Manifest& manifest, const Analysis& analysis, const Figures& figures);

// Prepares a drawing of tools/study/figures.py for a page: its colours become the colours of the
// page.
std::string InlineSvg(absl::string_view svg);

}  // namespace tandem::study

#endif  // TANDEM_TOOLS_STUDY_REPORT_PAGE_H_
