"""The page at ``/docs``: the OpenAPI document for people, with nothing fetched from elsewhere and no script.

Pure; knows the document and nothing of the framework.
"""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from itertools import groupby
from typing import Any

__all__ = ["CONTENT_SECURITY_POLICY", "docs_page"]

_STYLE = """
:root { color-scheme: light dark; font: 1rem/1.5 system-ui, sans-serif; }
body { max-width: 50rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; text-transform: capitalize; }
summary { padding: .4rem 0; cursor: pointer; }
code, pre { font-family: ui-monospace, monospace; font-size: .9rem; }
pre { overflow-x: auto; padding: .75rem; border: 1px solid; border-radius: .4rem; }
td, th { padding: .15rem 1rem .15rem 0; text-align: left; vertical-align: top; }
"""
_DIGEST = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_DIGEST}'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


def docs_page(document: dict[str, Any]) -> str:
    """The page of a document."""
    prefix = document["servers"][0]["url"].rstrip("/")
    operations = [
        (operation["tags"][0], method, prefix + path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>triolet: routes</title><style>{_STYLE}</style></head><body>",
        f"<h1>triolet {escape(document['info']['version'])}</h1>",
        f'<p>For programs: <a href="{escape(prefix)}/openapi.json">openapi.json</a>.</p>',
    ]
    for tag, group in groupby(operations, key=lambda found: found[0]):
        parts.append(f"<h2>{escape(tag)}</h2>")
        parts += [_section(method, path, operation, document) for _, method, path, operation in group]
    return "\n".join(parts) + "\n</body></html>\n"


def _section(method: str, path: str, operation: dict[str, Any], document: dict[str, Any]) -> str:
    head = f"<code>{method.upper()} {escape(path)}</code> {escape(operation['summary'])}"
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    rows = [(parameter["name"], parameter["schema"]) for parameter in operation.get("parameters", [])]
    example = ""
    if body is not None:
        name = body["schema"]["$ref"].rpartition("/")[2]
        rows += document["components"]["schemas"][name]["properties"].items()
        example = f"<pre>{escape(json.dumps(body['example'], indent=2))}</pre>"
    if not rows:
        return f"<p>{head}</p>"
    table = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(_kind(schema))}</td></tr>"
        for name, schema in rows
    )
    return f"<details><summary>{head}</summary>{example}<table>{table}</table></details>"


def _kind(schema: dict[str, Any]) -> str:
    """A type in words; null is left out, for every field may be."""
    if "anyOf" in schema:
        kinds = [_kind(option) for option in schema["anyOf"] if option.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}" if schema.get("items") else "list"
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    return str(schema.get("type", "anything"))
