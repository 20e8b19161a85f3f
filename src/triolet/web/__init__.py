"""HTTP: the OpenAI-compatible routes over an engine, for the server and for embedding in a Quart application.

::

    app.register_blueprint(blueprint(engine))
    app.asgi_app = EngineLifespan(app.asgi_app, engine)

The only package that knows Quart and Hypercorn.
"""

from __future__ import annotations

from triolet.web.app import blueprint, create_app
from triolet.web.lifespan import EngineLifespan
from triolet.web.settings import WebSettings

__all__ = ["EngineLifespan", "WebSettings", "blueprint", "create_app"]
