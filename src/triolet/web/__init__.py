"""HTTP: the OpenAI-compatible routes over an engine, for the server and for embedding in a Quart application.

::

    app.register_blueprint(blueprint(engine))
    app.asgi_app = EngineLifespan(app.asgi_app, engine)

The only package that knows Quart and Hypercorn. Neither is imported before a name here is asked for: a
launcher of several API servers needs some of the modules, and none of the two.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triolet.web.app import blueprint, create_app
    from triolet.web.lifespan import EngineLifespan
    from triolet.web.settings import WebSettings

__all__ = ["EngineLifespan", "WebSettings", "blueprint", "create_app"]

_HOMES = {
    "EngineLifespan": "triolet.web.lifespan",
    "WebSettings": "triolet.web.settings",
    "blueprint": "triolet.web.app",
    "create_app": "triolet.web.app",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'triolet.web' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
