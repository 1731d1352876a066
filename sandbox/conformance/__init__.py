"""Checks that any engine must pass: `python -m sandbox.conformance --engine NAME`, or the functions from your tests."""
