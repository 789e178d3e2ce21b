"""The routes of the API, one module per noun.

A route is a method with `@Route(...)`, which holds its path, operation id, summary, tag, responses, refusals, examples
and restriction. The OpenAPI document, permission checks and messages about fields come from it. A new route with
its command: the response type (`api/`), the method here, the client's method (`client/`), the command (`cli/`).
"""
