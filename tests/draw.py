"""Samples slow tests, as tests/test_main.cc does."""
import os


def drawn(cases):
    """One case of TANDEM_SAMPLED, by the number in TANDEM_DRAW. All of them if a variable is missing."""
    if "TANDEM_DRAW" not in os.environ or "TANDEM_SAMPLED" not in os.environ:
        return cases
    sampled = int(os.environ["TANDEM_SAMPLED"])
    return cases[int(os.environ["TANDEM_DRAW"]) % sampled::sampled]
