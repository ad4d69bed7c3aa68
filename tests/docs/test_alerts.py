"""ops/: alerts and the dashboard name metrics that there are, and sections that an operator finds."""

from __future__ import annotations

import json
import re

import yaml

from harness.alerts import CAUSES
from quorumlog.admin.metrics import METRICS
from tests.docs.markdown import DOCS

OPS = DOCS.parent / "ops"
(GROUP,) = yaml.safe_load((OPS / "prometheus" / "alerts.yml").read_text())["groups"]
RULES = {rule["alert"]: rule for rule in GROUP["rules"]}
METRIC = re.compile(r"\b(?:quorumlog|process)_[a-z0-9_]+")
OF_PROCESS = {"process_open_fds", "process_max_fds", "process_cpu_seconds_total"}


def unknown(text: str) -> set[str]:
    return {re.sub("_bucket$", "", name) for name in METRIC.findall(text)} - set(METRICS) - OF_PROCESS


def test_alerts_and_dashboard_name_metrics_that_there_are() -> None:
    assert unknown(" ".join(rule["expr"] for rule in RULES.values())) == set()
    dashboard = json.loads((OPS / "grafana" / "quorumlog.json").read_text())
    expressions = [t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", ())]
    assert len(expressions) > 20
    assert unknown(" ".join(expressions)) == set()
    (variable,) = (each for each in dashboard["templating"]["list"] if each["name"] == "group")
    assert unknown(variable["query"]) == set()
    assert unknown("rate(quorumlog_no_such_total[5m])") == {"quorumlog_no_such_total"}


def test_each_alert_has_its_section_and_is_tried() -> None:
    text = (DOCS / "operations.md").read_text()
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", each.lower()).replace(" ", "-") for each in headings}
    runbooks = {name: rule["annotations"]["runbook"] for name, rule in RULES.items()}
    assert {each.partition("#")[0] for each in runbooks.values()} == {"docs/operations.md"}
    assert {each.partition("#")[2] for each in runbooks.values()} <= anchors
    assert len(set(runbooks.values())) == len(runbooks)
    tests = yaml.safe_load((OPS / "prometheus" / "alerts_test.yml").read_text())["tests"]
    tried = [each["alert_rule_test"][-1] for each in tests]
    assert sorted(each["alertname"] for each in tried) == sorted(RULES)
    assert all(each["exp_alerts"] for each in tried)
    assert set(CAUSES) == set(RULES), "each is provoked by `make provoke-alerts`"
