"""Measurements that write to results/ and pages in docs/. A package: else an installed one of that name would win."""
