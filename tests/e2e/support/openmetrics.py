"""Reads OpenMetrics text with the strict parser of prometheus_client, and prints its families as
one JSON array."""

import json
import sys

from prometheus_client.openmetrics.parser import text_string_to_metric_families

print(json.dumps([
    {
        "name": family.name,
        "kind": family.type,
        "help": family.documentation,
        "unit": family.unit,
        "samples": len(family.samples),
    }
    for family in text_string_to_metric_families(sys.stdin.read())
]))
