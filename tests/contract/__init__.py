"""Suites that every implementation of a protocol must pass."""

import pytest

pytest.register_assert_rewrite("tests.contract.engine")
