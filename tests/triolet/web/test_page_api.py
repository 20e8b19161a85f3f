"""The files of the page over HTTP: who may have them, and what a browser is told to do with them."""

from __future__ import annotations

import re

import pytest
from quart import Quart
from tests.triolet.web.fake_engine import FakeEngine
from tests.triolet.web.serving import serving

from triolet.web import WebSettings, blueprint
from triolet.web.page_api import CONTENT_SECURITY_POLICY, read_page_files

pytestmark = pytest.mark.anyio

FILES = read_page_files()


async def test_the_page_and_its_files_need_no_key_and_the_rest_does(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name, api_key="s3cret") as running:
        page = await running.client.get("/")
        assert (page.status_code, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert page.content == FILES["index.html"].content
        for name, file in FILES.items():
            answer = await running.client.get(f"/page/{name}")
            assert (answer.status_code, answer.content) == (200, file.content)
            assert answer.headers["Content-Type"] == file.content_type
        assert (await running.client.get("/v1/models")).status_code == 401


async def test_what_the_browser_is_told(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        for path in ("/", "/page/main.js"):
            answer = await running.client.get(path)
            assert answer.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Referrer-Policy"] == "no-referrer"
            assert answer.headers["Cache-Control"] == "no-cache"


async def test_a_file_that_has_not_changed_is_not_sent_again(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        first = await running.client.get("/page/style.css")
        tag = first.headers["ETag"]
        again = await running.client.get("/page/style.css", headers={"If-None-Match": tag})
        assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", tag)
        other = await running.client.get("/page/style.css", headers={"If-None-Match": '"older"'})
        assert (other.status_code, other.content) == (200, first.content)


async def test_head_has_the_headers_alone(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        for path, name in (("/", "index.html"), ("/page/chat.js", "chat.js")):
            answer = await running.client.head(path)
            assert (answer.status_code, answer.content) == (200, b"")
            assert answer.headers["Content-Length"] == str(len(FILES[name].content))
        assert (await running.client.head("/page/none.js")).status_code == 404


@pytest.mark.parametrize("name", ["none.js", "..%2Fapp.py", "../app.py", "", "page", "%00", "Main.js"])
async def test_there_are_no_other_files(anyio_backend_name: str, name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name) as running:
        answer = await running.client.get(f"/page/{name}")
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "invalid_request_error")
        assert (await running.client.post("/")).status_code == 405


async def test_it_can_be_left_out(anyio_backend_name: str) -> None:
    async with serving(FakeEngine(), anyio_backend_name, page=False) as running:
        for path in ("/", "/page/main.js"):
            assert (await running.client.get(path)).status_code == 404
        paths = (await running.client.get("/openapi.json")).json()["paths"]
    assert not {"/", "/page/{name}"} & set(paths)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("has_page", [True, False])
async def test_an_application_may_have_a_page_of_its_own(anyio_backend: str, has_page: bool) -> None:
    app = Quart(__name__, static_folder=None)
    app.register_blueprint(blueprint(FakeEngine(), WebSettings(has_page=has_page)), url_prefix="/llm")

    @app.get("/")
    async def home() -> str:
        return "home"

    client = app.test_client()
    assert await (await client.get("/")).get_data(as_text=True) == "home"
    assert (await client.get("/llm/")).status_code == (200 if has_page else 404)


def test_the_document_names_its_files_relative_to_itself_and_all_of_them_are_there() -> None:
    document = FILES["index.html"].content.decode()
    named = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="([^"]*)"', document)
    assert len(named) >= 4
    assert {name.removeprefix("page/") for name in named} <= set(FILES)
    for file in FILES.values():
        if file.content_type.startswith("text/javascript"):
            imported = re.findall(r'^import .* from "\./(.*)";$', file.content.decode(), re.MULTILINE)
            assert set(imported) <= set(FILES)
