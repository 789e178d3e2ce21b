"""Answers that go on: events and logs as they come."""
