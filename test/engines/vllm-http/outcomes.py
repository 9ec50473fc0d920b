"""Plugin of pytest: writes the outcome of each case as a line of JSON to OUTCOMES."""

import json
import os

REASON_CHARS = 300


def pytest_runtest_logreport(report):
    """Writes each outcome except a passed set-up or clean-up: a case may have several lines, and fails with any."""
    if report.passed and report.when != "call":
        return
    reason = "" if report.passed else str(report.longrepr).strip()[-REASON_CHARS:]
    outcome = {"case": report.nodeid, "outcome": report.outcome, "reason": reason}
    with open(os.environ["OUTCOMES"], "a") as file:
        print(json.dumps(outcome), file=file)
