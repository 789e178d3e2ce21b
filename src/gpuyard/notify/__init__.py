"""Notifications about jobs: subscriptions, messages, the outbox, and the process that sends."""
