"""Prints "PASSED FAILED SKIPPED" of a CTest run, from its JUnit file (ctest --output-junit).

A test counts as skipped only if it said so itself; one that could not start has failed.
"""
import sys
import xml.etree.ElementTree


def main(path):
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        skip = case.find("skipped")
        said_so = skip is not None and "SKIP" in skip.get("message", "")
        if case.get("status") == "run":
            counts["passed"] += 1
        elif said_so or case.get("status") == "disabled":
            counts["skipped"] += 1
        else:
            counts["failed"] += 1
    print(counts["passed"], counts["failed"], counts["skipped"])


if __name__ == "__main__":
    main(sys.argv[1])
