"""cmake/count_tests.py: what the closing line of ./check counts. Run: count_tests_test.py COUNT_TESTS_PY"""
import os
import subprocess
import sys
import tempfile
import unittest

COUNT_TESTS = sys.argv.pop()


def count(cases, programs):
    """Counts a run of CTest: `cases` is the inside of its file, `programs` name -> inside of theirs."""
    with tempfile.TemporaryDirectory() as folder:
        junit = os.path.join(folder, "junit")
        with open(junit, "w", encoding="utf-8") as file:
            file.write(f"<testsuite>{cases}</testsuite>")
        for name, inside in programs.items():
            with open(os.path.join(folder, name + ".xml"), "w", encoding="utf-8") as file:
                file.write(f"<testsuites><testsuite>{inside}</testsuite></testsuites>")
        run = subprocess.run([sys.executable, COUNT_TESTS, junit, folder], capture_output=True, text=True,
                             check=True)
        return run.stdout.strip(), run.stderr


PASSED = '<testcase name="p" status="run" result="completed"/>'
SKIPPED = ('<testcase name="s" status="run" result="skipped">'
           '<skipped message="a_test.cc:7&#x0A;no device&#x0A;"/></testcase>')
FAILED = '<testcase name="f" status="run" result="completed"><failure message="x"/></testcase>'
NOT_RUN = '<testcase name="d" status="notrun" result="suppressed"/>'


class CountTests(unittest.TestCase):
    def test_skipped_checks_of_a_program_that_passed(self):
        counts, said = count('<testcase name="a" status="run"/>', {"a": 2 * PASSED + 13 * SKIPPED})
        self.assertEqual(counts, "2 0 13")
        self.assertEqual(said, "skipped: a, 13: no device\n")

    def test_a_program_that_skipped_everything(self):
        case = '<testcase name="a" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/></testcase>'
        self.assertEqual(count(case, {"a": 3 * SKIPPED})[0], "0 0 3")
        self.assertEqual(count(case, {})[0], "0 0 1")

    def test_failures(self):
        case = '<testcase name="a" status="fail"><failure message=""/></testcase>'
        self.assertEqual(count(case, {"a": PASSED + FAILED + NOT_RUN})[0], "1 1 0")
        self.assertEqual(count(case, {"a": PASSED})[0], "1 1 0")  # it crashed after its last check
        self.assertEqual(count(case, {})[0], "0 1 0")             # or before it could write

    def test_one_that_could_not_start_has_failed(self):
        case = '<testcase name="a" status="notrun"><skipped message="Unable to find executable"/></testcase>'
        self.assertEqual(count(case, {"a": PASSED})[0], "0 1 0")

    def test_other_programs_count_as_one(self):
        self.assertEqual(count('<testcase name="tiny" status="run"/>', {"a": PASSED})[0], "1 0 0")


if __name__ == "__main__":
    unittest.main()
