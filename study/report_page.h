// The report of a study as one page of HTML: opens offline, on paper, light and dark, narrow and wide.
//
// Pure; any thread.
#ifndef TANDEM_STUDY_REPORT_PAGE_H_
#define TANDEM_STUDY_REPORT_PAGE_H_

#include <string>

#include "absl/strings/string_view.h"
#include "study/analysis.h"
#include "study/figures.h"
#include "study/manifest.h"

namespace tandem::study {

std::string ReportPage(const Manifest& manifest, const Analysis& analysis, const Figures& figures);

// A drawing of study/figures.py to stand in a page: its colours are the page's.
std::string InlineSvg(absl::string_view svg);

}  // namespace tandem::study

#endif  // TANDEM_STUDY_REPORT_PAGE_H_
