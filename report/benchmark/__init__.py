"""Throughput reports: report.json with every number, report.html for people, and their comparison with a baseline."""
