"""Prints "PASSED FAILED SKIPPED" of a CTest run: count_tests.py JUNIT_FILE FOLDER.

JUNIT_FILE is the output of ctest --output-junit. A GoogleTest program also writes FOLDER/NAME.xml
(tandem_test in Tandem.cmake asks for it), and every check in that file counts: a program of 15
checks that skips 13 counts as 2 passed and 13 skipped. Any other test counts as one. A program that
ended without its file counts as one failure. So does one that failed although none of its checks
did.

Skipped checks and their reasons are listed on standard error.
"""
import os
import sys
import xml.etree.ElementTree as ElementTree


def checks(path):
    """(passed, failed, reasons of those skipped) of one GoogleTest program."""
    passed = failed = 0
    reasons = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        if case.find("failure") is not None:
            failed += 1
        elif case.get("result") == "skipped":
            skipped = case.find("skipped")
            message = (skipped.get("message") if skipped is not None else "") or "no reason given"
  # "file:line" stands above the check's own text.
            reasons.append(message.strip().splitlines()[-1])
        elif case.get("status") == "run":
            passed += 1
    return passed, failed, reasons


def outcome(case, folder):
    """(passed, failed, reasons of those skipped) of one CTest test."""
    status = case.get("status")
    skip = case.find("skipped")
    said_so = skip is not None and "SKIP" in skip.get("message", "")
    own = os.path.join(folder, case.get("name") + ".xml")
    if os.path.exists(own) and (status == "run" or status == "fail" or said_so):
        passed, failed, reasons = checks(own)
        return passed, failed or int(status == "fail"), reasons
    if status == "run":
        return 1, 0, []
    if said_so or status == "disabled":
        return 0, 0, ["skipped as a whole"]
    return 0, 1, []


def main(junit, folder):
    totals = [0, 0, 0]
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        passed, failed, reasons = outcome(case, folder)
        for i, count in enumerate((passed, failed, len(reasons))):
            totals[i] += count
        for reason in sorted(set(reasons)):
            print(f"skipped: {case.get('name')}, {reasons.count(reason)}: {reason}",
                  file=sys.stderr)
    print(*totals)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
